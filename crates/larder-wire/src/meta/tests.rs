//! Every type against itself, and against bytes that are written down.

mod golden;

use bytes::Bytes;

use super::calls::*;
use super::recall::{LockFree, Recall, RecallNull};
use super::words::*;
use super::*;
use crate::sample::check_types;
use crate::xdr::{Array, Opaque, to_segments};
use crate::{Procedure, rpc};

check_types!(arguments_survive:
    Null, Session, Renew, EndSession, GetAttr, SetAttr, Lookup, Open, Close, GetCaps, Alloc,
    CommitExtents, Punch, MkDir, Symlink, ReadLink, MkNod, Link, Remove, RmDir, Rename, ReadDir,
    calls::Access, FsStat, GetXattr, SetXattr, ListXattr, RemoveXattr, ReturnLease, Look,
    Lock, TestLock, AwaitLock, ForgoLock, LocksClaimed, Preallocate, Destage,
    Archive, ArchiveTold, Make, Lost, Retain, AllocNear,
    RecallNull, Recall, LockFree,
);
check_types!(results_survive:
    Res<SessionGiven>, Res<Renewed>, Res<()>, Res<Attributes>, Res<FileChanged>, Res<LookedUp>,
    Res<Opened>, Res<LayoutGiven>, Res<Made>, Res<LinkRead>, Res<NameChanged>, Res<calls::Renamed>,
    Res<Entries>, Res<AccessGiven>, Res<Space>, Res<XattrGot>, Res<XattrNames>, Res<LookedAt>,
    Res<LockTested>, Res<LockAwaited>, Res<LostTold>,
);

fn name(text: &'static str) -> Name {
    Name::new(Bytes::from_static(text.as_bytes())).unwrap()
}

fn dentry(text: &'static str) -> Dentry {
    Dentry { dir: FileId(1), name: name(text) }
}

fn sequence() -> Sequence {
    Sequence { session: SessionId([0xa5; 16]), slot: 3, sequence: 7 }
}

fn attributes() -> Attributes {
    Attributes {
        file: FileId(0x1122),
        kind: Kind::File,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        device: Device::default(),
        size: 5000,
        used: 8192,
        atime: Time { seconds: 1, nanoseconds: 2 },
        mtime: Time { seconds: 3, nanoseconds: 4 },
        ctime: Time { seconds: 5, nanoseconds: 6 },
        birth: Time { seconds: -7, nanoseconds: 8 },
        change: ChangeId(9),
        data_change: ChangeId(6),
    }
}

/// The words of hexadecimal digits, whatever the spaces between them.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// Those of [`attributes`].
const ATTRIBUTES: &str = "\
     00000000 00001122 00000001 000001a4 00000001 000003e8 00000064 00000000 00000000
     00000000 00001388 00000000 00002000
     00000000 00000001 00000002 00000000 00000003 00000004
     00000000 00000005 00000006 ffffffff fffffff9 00000008 00000000 00000009
     00000000 00000006";

/// The bytes in docs/formats/meta-protocol.md, where `<attributes>` stands for [`ATTRIBUTES`].
fn golden<T>(value: &T, written: &str)
where
    T: Encode + Decode + PartialEq + std::fmt::Debug,
{
    let hex = &written.replace("<attributes>", ATTRIBUTES);
    let encoded = to_segments(value).to_bytes();
    let shown = |bytes: &[u8]| -> String {
        bytes
            .chunks(4)
            .map(|unit| format!("{:08x} ", u32::from_be_bytes(unit.try_into().unwrap())))
            .collect()
    };
    assert_eq!(shown(&encoded), shown(&bytes(hex)), "{value:?}");
    assert_eq!(&T::decode(&mut Bytes::from(bytes(hex))).unwrap(), value);
    let text = include_str!("../../../../docs/formats/meta-protocol.md");
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(text).contains(&squeezed(written)), "the document lacks {written}");
}

#[test]
fn a_call_is_what_the_document_says() {
    let create = Create {
        dentry: dentry("a.txt"),
        set: SetAttributes { mode: Some(0o644), mtime: SetTime::Now, ..SetAttributes::default() },
        if_exists: IfExists::Fail,
    };
    let open = Open {
        sequence: sequence(),
        what: OpenWhat::Create(create),
        mode: Mode::ReadWrite,
        lease: LeaseKind::Write,
        range: ByteRange { offset: 0, length: 4096 },
        allocate: Some(Medium::Memory(2)),
    };
    golden(
        &open,
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000002 00000000 00000001 00000005 612e7478 74000000
         00000001 000001a4 00000000 00000000 00000000 00000000 00000001 00000001
         00000003 00000002 00000000 00000000 00000000 00001000 00000001 00000002
         00000002",
    );
    let commit = CommitExtents {
        sequence: sequence(),
        file: FileId(0x1122),
        open: OpenId(4),
        written: Array(vec![Written {
            offset: 0,
            length: 5000,
            disk: DiskId(1),
            position: 0x10_0000,
        }]),
        copies: Array(vec![DiskId(1), DiskId(2)]),
        merged: Array(vec![Merged {
            offset: 4096,
            from: Some(MergedFrom { disk: DiskId(1), position: 0x2000, length: 1000 }),
        }]),
        mtime: None,
        all: true,
        on_way: true,
        due_ms: Some(30_000),
        archive_ms: Some(3_600_000),
    };
    golden(
        &commit,
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000004
         00000001 00000000 00000000 00000000 00001388 00000001 00000000 00100000
         00000002 00000001 00000002
         00000001 00000000 00001000 00000001 00000001 00000000 00002000 000003e8
         00000000 00000001 00000001 00000001 00007530 00000001 0036ee80",
    );
}

#[test]
fn a_reply_is_what_the_document_says() {
    let extent = Extent {
        offset: 0,
        length: 8192,
        disk: DiskId(1),
        position: 0x10_0000,
        state: ExtentState::Provisional,
    };
    let grant = Grant {
        disk: DiskId(1),
        mode: Mode::Write,
        expires_ms: 60_000,
        capability: Opaque::copy_from_slice(b"cap"),
        secret: [0x5e; 32],
    };
    let given = LayoutGiven {
        attributes: attributes(),
        layout: Layout {
            covered: ByteRange { offset: 0, length: 8192 },
            extents: Array(vec![extent]),
            grants: Array(vec![grant]),
        },
    };
    golden(
        &Ok::<_, Status>(given),
        "00000000
         00000000 00001122 00000001 000001a4 00000001 000003e8 00000064 00000000 00000000
         00000000 00001388 00000000 00002000
         00000000 00000001 00000002 00000000 00000003 00000004
         00000000 00000005 00000006 ffffffff fffffff9 00000008 00000000 00000009
         00000000 00000006
         00000000 00000000 00000000 00002000
         00000001 00000000 00000000 00000000 00002000 00000001 00000000 00100000 00000002
         00000001 00000001 00000002 0000ea60 00000003 63617000
         5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e 5e5e5e5e",
    );
    golden(&Err::<Attributes, _>(Status::Stale), "00000074");
    let address = Opaque::copy_from_slice(b"d:1");
    let (disk, epoch) = (DiskId(2), 0x0102_0304_0506_0708);
    golden(
        &DiskInfo { disk, address, epoch, is_memory: true, leaves: false },
        "00000002 00000003 643a3100 01020304 05060708 00000001 00000000",
    );
}

#[test]
fn a_recall_is_what_the_document_says() {
    let (file, number, keep) = (FileId(0x1122), LeaseNumber(0x3_0000_0001), LeaseKind::Read);
    let recall = Recall { session: SessionId([0xa5; 16]), file, number, keep };
    golden(
        &recall,
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000003 00000001 00000001",
    );
    let returned = Array(vec![Returned { file, number, keep: LeaseKind::None }]);
    golden(
        &ReturnLease { sequence: sequence(), returned },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000001 00000000 00001122 00000003 00000001 00000000",
    );
}

#[test]
fn a_look_is_what_the_document_says() {
    let look = Look {
        session: SessionId([0xa5; 16]),
        at: LookAt::Name(dentry("a.txt")),
        lease: LeaseKind::Read,
        range: ByteRange { offset: 0, length: 1 << 20 },
    };
    golden(
        &look,
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5
         00000001 00000000 00000001 00000005 612e7478 74000000
         00000001 00000000 00000000 00000000 00100000",
    );
    let seen = Seen {
        attributes: attributes(),
        granted: 0x1f,
        lease: Some(LeaseGiven { kind: LeaseKind::Read, number: LeaseNumber(0x3_0000_0001) }),
        layout: Layout {
            covered: ByteRange { offset: 0, length: 0 },
            extents: Array::default(),
            grants: Array::default(),
        },
    };
    golden(
        &Ok::<_, Status>(LookedAt { dir: None, found: Some(seen) }),
        "00000000 00000000 00000001
         00000000 00001122 00000001 000001a4 00000001 000003e8 00000064 00000000 00000000
         00000000 00001388 00000000 00002000
         00000000 00000001 00000002 00000000 00000003 00000004
         00000000 00000005 00000006 ffffffff fffffff9 00000008 00000000 00000009
         00000000 00000006
         0000001f 00000001 00000001 00000003 00000001
         00000000 00000000 00000000 00000000 00000000 00000000",
    );
}

#[test]
fn locks_are_what_the_document_says() {
    let changes = Array(vec![
        LockChange { range: (16..26).into(), mode: Some(LockMode::Exclusive) },
        LockChange { range: (26..LOCK_END).into(), mode: None },
    ]);
    golden(
        &Lock { sequence: sequence(), file: FileId(0x1122), changes, claim: false },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000002
         00000000 00000010 00000000 0000000a 00000001 00000002
         00000000 0000001a 7fffffff ffffffe6 00000000 00000000",
    );
    let found = LockFound { range: (16..26).into(), mode: LockMode::Exclusive };
    golden(
        &Ok::<_, Status>(LockTested { found: Some(found) }),
        "00000000 00000001 00000000 00000010 00000000 0000000a 00000002",
    );
    let (session, file, number) = (SessionId([0xa5; 16]), FileId(0x1122), WaiterNumber(9));
    let changes = Array(vec![LockChange { range: (0..1).into(), mode: Some(LockMode::Shared) }]);
    golden(
        &AwaitLock { session, file, number, changes },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000000 00000009
         00000001 00000000 00000000 00000000 00000001 00000001 00000001",
    );
    golden(
        &LockFree { session, file, number },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000000 00000009",
    );
}

#[test]
fn changes_of_space_are_what_the_document_says() {
    let (sequence, file, open) = (sequence(), FileId(0x1122), OpenId(4));
    let range = ByteRange { offset: 5, length: 1 << 20 };
    golden(
        &Preallocate { sequence, file, open, range },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000004
         00000000 00000005 00000000 00100000",
    );
    let range = ByteRange { offset: 4096, length: 8192 };
    golden(
        &Punch { sequence, file, open: OpenId::NONE, range },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000000
         00000000 00001000 00000000 00002000",
    );
}

#[test]
fn destaging_is_what_the_document_says() {
    golden(
        &Destage { session: sequence().session, file: FileId(0x1122), due_ms: 30_000 },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00007530",
    );
}

#[test]
fn allocating_is_what_the_document_says() {
    let alloc = |length, medium| Alloc {
        sequence: sequence(),
        file: FileId(0x1122),
        open: OpenId(4),
        range: ByteRange { offset: 0, length },
        medium,
    };
    golden(
        &alloc(4096, Medium::Memory(2)),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000004
         00000000 00000000 00000000 00001000 00000002 00000002",
    );
    golden(
        &alloc(4096, Medium::INSTEAD),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000004
         00000000 00000000 00000000 00001000 00000002 ffffffff",
    );
    let near = |offset, disk| Near { range: ByteRange { offset, length: 4096 }, disk };
    let near = Array(vec![near(0, DiskId(3)), near(4096, DiskId(1))]);
    golden(
        &AllocNear { alloc: alloc(8192, Medium::Disk), near },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00001122 00000000 00000004
         00000000 00000000 00000000 00002000 00000001
         00000002 00000000 00000000 00000000 00001000 00000003
         00000000 00001000 00000000 00001000 00000001",
    );
}

#[test]
fn archiving_is_what_the_document_says() {
    let (session, file) = (sequence().session, FileId(0x1122));
    golden(
        &Archive { session, file, within_ms: Some(30_000) },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000001 00007530",
    );
    golden(
        &ArchiveTold { is_there: false, due_ms: Some(30_000), late_ms: 0 },
        "00000000 00000001 00000000 00007530 00000000 00000000",
    );
}

#[test]
fn making_is_what_the_document_says() {
    let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let make = |text, what, set| {
        let (sequence, medium) = (sequence(), Medium::Memory(1));
        Make { sequence, dentry: dentry(text), what, set, medium }
    };
    golden(
        &make("src", MakeWhat::Directory, set),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00000001 00000003 73726300 00000000
         00000001 000001ed 00000000 00000000 00000000 00000000 00000000
         00000002 00000001",
    );
    let target = Opaque(Bytes::from_static(b"src"));
    golden(
        &make("l", MakeWhat::Symlink(target), SetAttributes::default()),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00000001 00000001 6c000000 00000001 00000003 73726300
         00000000 00000000 00000000 00000000 00000000 00000000
         00000002 00000001",
    );
    let special = Special { kind: Kind::CharacterDevice, device: Device { major: 1, minor: 3 } };
    golden(
        &make("null", MakeWhat::Special(special), SetAttributes::default()),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007
         00000000 00000001 00000004 6e756c6c 00000002 00000004 00000001 00000003
         00000000 00000000 00000000 00000000 00000000 00000000
         00000002 00000001",
    );
}

#[test]
fn what_is_lost_is_told_as_the_document_says() {
    let session = sequence().session;
    golden(
        &Lost { session, look: true, since: 2, after: FileId(0x1122) },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000001 00000000 00000002 00000000 00001122",
    );
    let path = Opaque::copy_from_slice(b"dir/out");
    let file = LostFile { file: FileId(0x1123), uid: 1000, path };
    golden(
        &LostTold { number: 3, files: Array(vec![file]), end: true },
        "00000000 00000003 00000001 00000000 00001123 000003e8 00000007 6469722f 6f757400 00000001",
    );
}

#[test]
fn retaining_is_what_the_document_says() {
    let retain = |what| Retain { sequence: sequence(), file: FileId(0x1122), what };
    golden(
        &retain(Retention::Retained(5000)),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122
         00000001 00000000 00001388",
    );
    golden(
        &retain(Retention::Released),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000000",
    );
    golden(
        &retain(Retention::GivenUp),
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000002",
    );
    golden(&Ok::<(), Status>(()), "00000000");
}

#[test]
fn attributes_have_the_stated_length() {
    assert_eq!(to_segments(&attributes()).len(), ATTRIBUTES_BYTES);
    let entry = |attributes| Entry { name: name("abcde"), file: FileId(1), cookie: 2, attributes };
    for entry in [entry(None), entry(Some(attributes()))] {
        assert_eq!(to_segments(&entry).len(), entry.encoded_bytes());
    }
}

#[test]
fn ranges_are_those_that_a_file_can_have() {
    let get = |offset, length| ByteRange { offset, length }.get();
    assert_eq!(get(1, 2), Some(1..3));
    assert_eq!(get(FILE_BYTES_MAX - 1, 1), Some(FILE_BYTES_MAX - 1..FILE_BYTES_MAX));
    for (offset, length) in [(0, 0), (FILE_BYTES_MAX, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(get(offset, length), None, "{offset} {length}");
    }
    assert_eq!(ByteRange::from(3..5), ByteRange { offset: 3, length: 2 });
    let lockable = |offset, length| ByteRange { offset, length }.lockable();
    assert_eq!(lockable(FILE_BYTES_MAX, 1), Some(FILE_BYTES_MAX..FILE_BYTES_MAX + 1));
    assert_eq!(lockable(0, LOCK_END), Some(0..LOCK_END));
    for (offset, length) in [(0, 0), (1, LOCK_END), (u64::MAX, 2)] {
        assert_eq!(lockable(offset, length), None, "{offset} {length}");
    }
}

/// A capability of the greatest length on each of the most disks fits into what a connection takes.
#[test]
fn the_longest_reply_fits_into_a_record() {
    let grant = Grant {
        disk: DiskId(1),
        mode: Mode::ReadWrite,
        expires_ms: 1,
        capability: Opaque(vec![0; CAPABILITY_BYTES_MAX].into()),
        secret: [0; 32],
    };
    let extent = Extent {
        offset: 0,
        length: BLOCK_BYTES,
        disk: DiskId(1),
        position: 0,
        state: ExtentState::Committed,
    };
    let layout = Layout {
        covered: ByteRange { offset: 0, length: 1 },
        extents: Array(vec![extent; EXTENTS_MAX]),
        grants: Array(vec![grant; GRANTS_MAX]),
    };
    assert!(to_segments(&layout).len() < 1 << 20);
}

#[test]
fn a_close_names_no_more_opens_than_it_may() {
    let close = |count| Close { sequence: sequence(), opens: Array(vec![OpenId(7); count]) };
    let decoded = |count| Close::decode(&mut to_segments(&close(count)).to_bytes());
    for count in [0, 1, CLOSES_MAX] {
        assert_eq!(decoded(count), Ok(close(count)));
    }
    // The count is behind session, slot and sequence.
    let mut too_many = to_segments(&close(CLOSES_MAX)).to_bytes().to_vec();
    too_many[24..28].copy_from_slice(&(CLOSES_MAX as u32 + 1).to_be_bytes());
    too_many.extend([0; 8]);
    let refused = Err(XdrError::TooLong { length: CLOSES_MAX + 1, limit: CLOSES_MAX });
    assert_eq!(Close::decode(&mut too_many.into()), refused);
    let mut short = to_segments(&close(3)).to_bytes();
    short.truncate(short.len() - 8);
    assert_eq!(Close::decode(&mut short), Err(XdrError::Short));
}

#[test]
fn procedures_have_their_names() {
    assert_eq!(PROCEDURE_NAMES.len(), AllocNear::NUMBER as usize + 1);
    assert_eq!(PROCEDURE_NAMES[Open::NUMBER as usize], "OPEN");
    assert_eq!(PROCEDURE_NAMES[CommitExtents::NUMBER as usize], "COMMIT_EXTENTS");
    assert_eq!(PROCEDURE_NAMES[ReadDir::NUMBER as usize], "READDIR");
    assert_eq!(PROCEDURE_NAMES[Preallocate::NUMBER as usize], "PREALLOCATE");
    assert_eq!(PROCEDURE_NAMES[Destage::NUMBER as usize], "DESTAGE");
    assert_eq!(PROCEDURE_NAMES[Archive::NUMBER as usize], "ARCHIVE");
    assert_eq!(PROCEDURE_NAMES[Make::NUMBER as usize], "MAKE");
    assert_eq!(PROCEDURE_NAMES[Lost::NUMBER as usize], "LOST");
    assert_eq!(PROCEDURE_NAMES[Retain::NUMBER as usize], "RETAIN");
    assert_eq!(PROCEDURE_NAMES[AllocNear::NUMBER as usize], "ALLOC_NEAR");
    assert!(MetaProc::try_from(AllocNear::NUMBER).is_ok());
    let call = rpc::encode_call(
        rpc::Xid(1),
        &rpc::Credential::None,
        &GetAttr { session: SessionId([0; 16]), file: FileId::ROOT },
        crate::xdr::Framing::Datagram,
    );
    let header = rpc::CallHeader::decode(&mut call.to_bytes()).unwrap();
    assert_eq!((header.program, header.version, header.procedure), (PROGRAM, VERSION, 4));
}
