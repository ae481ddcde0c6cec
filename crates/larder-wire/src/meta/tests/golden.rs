//! The procedures of which no other test has the bytes: those in `docs/formats/meta-protocol.md`.

use super::*;

const SESSION: SessionId = SessionId([0xa5; 16]);
const FILE: FileId = FileId(0x1122);

/// The change after which the attributes are these.
fn changed(change: u64, data_change: u64) -> Changed {
    let before = Version { change: ChangeId(change), data_change: ChangeId(data_change) };
    Changed { before, after: attributes() }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

#[test]
fn sessions_are_what_the_document_says() {
    let (client, boot) = ([0xc1; 16], 0x0102_0304_0506_0708);
    golden(
        &Session { client, boot, slots: 16 },
        "c1c1c1c1 c1c1c1c1 c1c1c1c1 c1c1c1c1 01020304 05060708 00000010",
    );
    let address = Opaque::copy_from_slice(b"d:1");
    let info = DiskInfo { disk: DiskId(2), address, epoch: boot, is_memory: true, leaves: false };
    let disks: Disks = Array(vec![info]);
    let given = SessionGiven {
        session: SESSION,
        slots: 16,
        lease_ms: 60_000,
        resumed: true,
        volume: VolumeId([0xb2; 16]),
        server_boot: 9,
        root: FileId::ROOT,
        copies: 2,
        disks: disks.clone(),
        has_archive: true,
    };
    golden(
        &Ok::<_, Status>(given),
        "00000000 a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000010 0000ea60 00000001 b2b2b2b2
         b2b2b2b2 b2b2b2b2 b2b2b2b2 00000000 00000009 00000000 00000001 00000002 00000001
         00000002 00000003 643a3100 01020304 05060708 00000001 00000000 00000001",
    );
    golden(&Renew { session: SESSION }, "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5");
    golden(
        &Ok::<_, Status>(Renewed { server_boot: 9, disks }),
        "00000000 00000000 00000009 00000001 00000002 00000003 643a3100 01020304 05060708
         00000001 00000000",
    );
    golden(&EndSession { session: SESSION }, "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5");
    golden(&LocksClaimed { session: SESSION }, "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5");
    let number = WaiterNumber(9);
    golden(
        &ForgoLock { session: SESSION, file: FILE, number },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000000 00000009",
    );
}

#[test]
fn attributes_are_asked_and_set_as_the_document_says() {
    golden(
        &GetAttr { session: SESSION, file: FILE },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122",
    );
    golden(&Ok::<_, Status>(attributes()), "00000000 <attributes>");
    let set = SetAttributes {
        gid: Some(100),
        size: Some(5000),
        mtime: SetTime::To(Time { seconds: 3, nanoseconds: 4 }),
        ..mode(0o600)
    };
    let guard = Some(Time { seconds: 5, nanoseconds: 6 });
    golden(
        &SetAttr { sequence: sequence(), file: FILE, open: OpenId(4), set, guard },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000000
         00000004 00000001 00000180 00000000 00000001 00000064 00000001 00000000 00001388
         00000000 00000002 00000000 00000003 00000004 00000001 00000000 00000005 00000006",
    );
    golden(
        &Ok::<_, Status>(FileChanged { file: changed(8, 5) }),
        "00000000 00000000 00000008 00000000 00000005 <attributes>",
    );
    golden(
        &calls::Access { session: SESSION, file: FILE, wanted: 0x1f },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 0000001f",
    );
    golden(
        &Ok::<_, Status>(AccessGiven { attributes: attributes(), granted: 5 }),
        "00000000 <attributes> 00000005",
    );
    golden(&FsStat { session: SESSION }, "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5");
    let (bytes, bytes_free) = (1 << 40, 1 << 39);
    golden(
        &Ok::<_, Status>(Space { bytes, bytes_free, files: 1000, files_free: 1_000_000 }),
        "00000000 00000100 00000000 00000080 00000000 00000000 000003e8 00000000 000f4240",
    );
}

#[test]
fn open_files_are_what_the_document_says() {
    let opens = Array(vec![OpenId(4), OpenId(5)]);
    golden(
        &Close { sequence: sequence(), opens },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000002 00000000 00000004
         00000000 00000005",
    );
    let (open, range) = (OpenId(4), ByteRange { offset: 4096, length: 8192 });
    golden(
        &GetCaps { session: SESSION, file: FILE, open, mode: Mode::Read, range },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000000 00000004 00000001
         00000000 00001000 00000000 00002000",
    );
}

#[test]
fn new_objects_are_what_the_document_says() {
    let (sequence, set) = (sequence(), SetAttributes::default());
    golden(
        &MkDir { sequence, dentry: dentry("src"), set: mode(0o755) },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000003
         73726300 00000001 000001ed 00000000 00000000 00000000 00000000 00000000",
    );
    let target = Opaque::copy_from_slice(b"src");
    golden(
        &Symlink { sequence, dentry: dentry("l"), target: target.clone(), set },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000001
         6c000000 00000003 73726300 00000000 00000000 00000000 00000000 00000000 00000000",
    );
    golden(
        &ReadLink { session: SESSION, file: FILE },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122",
    );
    golden(
        &Ok::<_, Status>(LinkRead { attributes: attributes(), target }),
        "00000000 <attributes> 00000003 73726300",
    );
    let (kind, device) = (Kind::CharacterDevice, Device { major: 1, minor: 3 });
    golden(
        &MkNod { sequence, dentry: dentry("null"), kind, device, set },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000004
         6e756c6c 00000004 00000001 00000003 00000000 00000000 00000000 00000000 00000000
         00000000",
    );
    golden(
        &Ok::<_, Status>(Made { made: attributes(), dir: changed(8, 5) }),
        "00000000 <attributes> 00000000 00000008 00000000 00000005 <attributes>",
    );
}

#[test]
fn names_are_what_the_document_says() {
    let sequence = sequence();
    golden(
        &Lookup { session: SESSION, dentry: dentry("a.txt") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00000001 00000005 612e7478 74000000",
    );
    golden(
        &Ok::<_, Status>(LookedUp { dir: attributes(), found: None }),
        "00000000 <attributes> 00000000",
    );
    golden(
        &Link { sequence, file: FILE, dentry: dentry("a.txt") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000000
         00000001 00000005 612e7478 74000000",
    );
    golden(
        &Remove { sequence, dentry: dentry("a.txt") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000005
         612e7478 74000000",
    );
    golden(
        &RmDir { sequence, dentry: dentry("a.txt") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000005
         612e7478 74000000",
    );
    golden(
        &Ok::<_, Status>(NameChanged { file: changed(8, 5), dir: changed(10, 7) }),
        "00000000 00000000 00000008 00000000 00000005 <attributes> 00000000 0000000a 00000000
         00000007 <attributes>",
    );
    let to = Dentry { dir: FileId(2), name: name("b") };
    golden(
        &Rename { sequence, from: dentry("a.txt"), to, keep: true },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00000001 00000005
         612e7478 74000000 00000000 00000002 00000001 62000000 00000001",
    );
    let (from_dir, to_dir, moved) = (changed(8, 5), changed(10, 7), changed(9, 6));
    golden(
        &Ok::<_, Status>(calls::Renamed { from_dir, to_dir, moved, replaced: None }),
        "00000000 00000000 00000008 00000000 00000005 <attributes> 00000000 0000000a 00000000
         00000007 <attributes> 00000000 00000009 00000000 00000006 <attributes> 00000000",
    );
}

#[test]
fn a_listing_is_what_the_document_says() {
    let (dir, cookie, bytes_max) = (FileId(1), 2, 1 << 16);
    golden(
        &ReadDir { session: SESSION, dir, cookie, bytes_max, attributes: true },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00000001 00000000 00000002 00010000
         00000001",
    );
    let first =
        Entry { name: name("a.txt"), file: FILE, cookie: 3, attributes: Some(attributes()) };
    let second = Entry { name: name("b"), file: FileId(0x1123), cookie: 4, attributes: None };
    let entries = Array(vec![first, second]);
    golden(
        &Ok::<_, Status>(Entries { dir: attributes(), entries, end: true }),
        "00000000 <attributes> 00000002 00000005 612e7478 74000000 00000000 00001122 00000000
         00000003 00000001 <attributes> 00000001 62000000 00000000 00001123 00000000 00000004
         00000000 00000001",
    );
}

#[test]
fn extended_attributes_are_what_the_document_says() {
    let (sequence, file, change) = (sequence(), FILE, ChangeId(9));
    let value: XattrValue = Opaque::copy_from_slice(b"v");
    golden(
        &GetXattr { session: SESSION, file, name: name("user.a") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122 00000006 75736572 2e610000",
    );
    golden(
        &Ok::<_, Status>(XattrGot { value: value.clone(), change }),
        "00000000 00000001 76000000 00000000 00000009",
    );
    let if_set = IfSet::Replace;
    golden(
        &SetXattr { sequence, file, name: name("user.a"), value, if_set },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000006
         75736572 2e610000 00000001 76000000 00000002",
    );
    golden(
        &ListXattr { session: SESSION, file },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001122",
    );
    let names = Array(vec![name("user.a"), name("user.bc")]);
    golden(
        &Ok::<_, Status>(XattrNames { names, change }),
        "00000000 00000002 00000006 75736572 2e610000 00000007 75736572 2e626300 00000000
         00000009",
    );
    golden(
        &RemoveXattr { sequence, file, name: name("user.a") },
        "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000003 00000007 00000000 00001122 00000006
         75736572 2e610000",
    );
}
