//! Tests of the records, against `docs/formats/names.md`.

use super::*;

fn file() -> Object {
    let time = |sec| Time { sec, nsec: 9 };
    let waiting = Waiting {
        body: Body::File,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        maker: Maker { uid: 1000, gid: 100, groups: [4].into() },
        is_attempted: false,
    };
    let dentry = Dentry { dir: Dir::Server(Handle::new(b"dir")), name: "a.o".into() };
    Object { dentry, stage: Stage::Waiting(waiting), given: None }
}

fn others() -> Vec<Object> {
    let Stage::Waiting(waiting) = file().stage else { unreachable!() };
    let device = Device { major: 8, minor: 1 };
    let bodies = [
        Body::Directory,
        Body::Symlink("to".into()),
        Body::Node(Kind::Fifo, Device::default()),
        Body::Node(Kind::Socket, Device::default()),
        Body::Node(Kind::CharDevice, device),
        Body::Node(Kind::BlockDevice, device),
    ];
    let dentry = Dentry { dir: Dir::Made(ObjectNo(7)), name: "x".into() };
    let with = |body| Stage::Waiting(Waiting { body, ..waiting.clone() });
    let mut all: Vec<_> = bodies
        .into_iter()
        .map(|body| Object { dentry: dentry.clone(), stage: with(body), given: None })
        .collect();
    let time = |sec| Time { sec, nsec: 1 };
    let server =
        Validator { change: None, data_change: Some(6), size: 5, mtime: time(1), ctime: time(2) };
    let named = Named {
        handle: Handle::new(b"file"),
        fileid: 77,
        shown: Shown { server, mtime: time(3), ctime: time(4) },
        is_linked: false,
    };
    let given = Some(Given { mtime: time(5), over_ns: 6 });
    all.push(Object { dentry, stage: Stage::Named(named), given });
    all
}

fn taken() -> Vec<Taken> {
    let Stage::Waiting(waiting) = file().stage else { unreachable!() };
    let time = |sec| Time { sec, nsec: 1 };
    let dentry = |name: &str| Dentry { dir: Dir::Server(Handle::new(b"dir")), name: name.into() };
    let moved = Taken {
        origin: dentry("a"),
        dentry: Some(dentry("b")),
        handle: Handle::new(b"file"),
        fileid: 77,
        kind: Kind::File,
        is_last: true,
        version: Validator {
            change: None,
            data_change: None,
            size: 5,
            mtime: time(1),
            ctime: time(2),
        },
        taker: waiting.maker,
        is_attempted: false,
        asked: None,
    };
    let tried = Taken { is_attempted: true, ..moved.clone() };
    let kinds = KINDS.map(|kind| Taken { kind, dentry: None, is_last: false, ..moved.clone() });
    let asked = Taken { asked: Some(dentry("c")), ..moved.clone() };
    [moved, tried, asked].into_iter().chain(kinds).collect()
}

fn altered() -> Vec<Altered> {
    let moved = taken().remove(0);
    let time = |sec| Time { sec, nsec: 1 };
    let set = SetAttr {
        mode: Some(0o600),
        size: Some(0),
        mtime: Some(SetTime::To(time(3))),
        ..SetAttr::default()
    };
    let cut = Altered {
        handle: moved.handle,
        below: moved.version,
        set,
        mtime: time(3),
        ctime: time(4),
        data_change: 5,
        setter: moved.taker,
        is_attempted: false,
        is_done: false,
        claims: None,
    };
    let set = SetAttr { uid: Some(1), gid: Some(2), atime: set.mtime, ..SetAttr::default() };
    let done = Altered { set, is_attempted: true, is_done: true, ..cut.clone() };
    let set = SetAttr { mtime: cut.set.mtime, ..SetAttr::default() };
    let claim = Altered { set, is_attempted: true, claims: Some(cut.below), ..cut.clone() };
    vec![cut, done, claim]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of `docs/formats/names.md`.
#[test]
fn records_are_the_documented_bytes() {
    let head = JournalState { id: *b"0123456789abcdef", next: 1024 };
    let text = include_str!("../../../../docs/formats/names.md");
    let mut all = vec![hex(&head.encode()), hex(&file().encode())];
    all.extend(others().last().map(|named| hex(&named.encode())));
    all.extend([hex(&taken()[0].encode()), hex(&altered()[0].encode())]);
    for bytes in all {
        assert!(text.contains(&bytes), "not in the document: {bytes}");
    }
}

#[test]
fn every_kind_survives_encoding() {
    let head = JournalState { id: [7; 16], next: u64::MAX };
    assert_eq!(JournalState::decode(&head.encode()), Some(head));
    for object in others().into_iter().chain([file()]) {
        assert_eq!(Object::decode(&object.encode()), Some((object, None)));
    }
    for taken in taken() {
        assert!(Taken::is_one(&taken.encode()));
        assert_eq!(Taken::decode(&taken.encode()), Some((taken, None)));
    }
    for altered in altered() {
        assert!(Altered::is_one(&altered.encode()));
        assert_eq!(Altered::decode(&altered.encode()), Some(altered));
    }
}

/// Format 1, of each kind of object and stage: nothing tells of a time that was set over bytes.
/// What is read is written in the present format.
#[test]
fn objects_of_the_format_before_are_read() {
    for object in others().into_iter().chain([file()]) {
        let object = Object { given: None, ..object };
        let (now, mut dentry) = (object.encode(), Writer::with_capacity(64));
        put_dentry(&mut dentry, &object.dentry);
        // The format, the dentry, then the flag that format 1 lacks.
        let at = 1 + dentry.into_bytes().len();
        assert_eq!((now[0], now[at]), (OBJECT_FORMAT, 0));
        let before = [&[OBJECT_FORMAT_UNGIVEN], &now[1..at], &now[at + 1..]].concat();
        let (read, wanted) = Object::decode(&before).expect("the format before is read");
        assert_eq!((&read, wanted), (&object, None));
        assert_eq!(read.encode(), now);
        for len in 0..before.len() {
            assert_eq!(Object::decode(&before[..len]), None, "cut short");
        }
    }
    // As a version that knew no other format wrote it: the file of `docs/formats/names.md`.
    let text = "01000300000064697203000000612e6f0000\
                00a4010000e803000064000000\
                010000000000000009000000020000000000000009000000030000000000000009000000\
                e8030000640000000104000000";
    let bytes: Vec<u8> = (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("they are digits"))
        .collect();
    assert_eq!(Object::decode(&bytes), Some((file(), None)));
    assert_eq!(Object::decode(&[&[3], &bytes[1..]].concat()), None, "no version wrote that");
}

/// What earlier versions told of a conflict.
#[test]
fn the_name_that_an_object_was_to_have_is_read_from_former_records() {
    let told = [&[1][..], &1u32.to_le_bytes(), b"y"].concat();
    let object = others().pop().expect("it is named");
    let mut record = object.encode();
    assert_eq!(record.pop(), Some(0));
    record.extend_from_slice(&told);
    assert_eq!(Object::decode(&record), Some((object, Some("y".into()))));
    let moved = taken().remove(0);
    let mut record = moved.encode();
    assert_eq!(record.pop(), Some(0));
    record.extend_from_slice(&told);
    assert_eq!(Taken::decode(&record), Some((moved, Some("y".into()))));
}

fn no_panic<T: PartialEq + std::fmt::Debug>(
    all: impl Iterator<Item = Vec<u8>>,
    decode: fn(&[u8]) -> Option<T>,
    encode: fn(&T) -> Vec<u8>,
) {
    let mut decoded = 0;
    for bytes in all {
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None);
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[len] = value;
                if let Some(other) = decode(&changed) {
                    decoded += 1;
                    assert_eq!(decode(&encode(&other)), Some(other));
                }
            }
        }
        assert_eq!(decode(&[bytes, vec![0]].concat()), None);
    }
    assert!(decoded > 0);
}

/// Each byte cut off, each one changed to any other value.
#[test]
fn hostile_bytes_do_not_panic() {
    let objects = others().into_iter().chain([file()]).map(|object| object.encode());
    no_panic(objects, |bytes| Some(Object::decode(bytes)?.0), Object::encode);
    let names = taken().into_iter().map(|taken| taken.encode());
    no_panic(names, |bytes| Some(Taken::decode(bytes)?.0), Taken::encode);
    no_panic(altered().iter().map(Altered::encode), Altered::decode, Altered::encode);
    assert_eq!(JournalState::decode(b"\x02"), None);
}
