//! The bytes of records of files, as `docs/formats/meta-store.md` has them.

use larder_wire::meta::words::{Attributes, ChangeId, Device, FileId, Kind, Time};
use larder_wire::xdr::Opaque;

use crate::store::records::{Inode, Retaining};
use crate::store::{Record, key};
use crate::whereabouts::{NOBODY, Whereabouts};

const CLIENT: [u8; 16] = [0xa5; 16];

/// The fields that each format has.
const FIELDS: &str = "00000000 00001122 00000001 000001a4 00000001 000003e8 00000064
    00000000 00000000 00000000 00001388 00000000 00000000
    00000000 00000001 00000002 00000000 00000003 00000004
    00000000 00000005 00000006 ffffffff fffffff9 00000008
    00000000 00000009 00000000 00000006
    00000000 00000001 00000000 00000000 00000000 00000001 00000000";

fn inode(late: u64, whereabouts: Whereabouts) -> Inode {
    let attributes = Attributes {
        file: FileId(0x1122),
        kind: Kind::File,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        device: Device::default(),
        size: 5000,
        used: 0,
        atime: Time { seconds: 1, nanoseconds: 2 },
        mtime: Time { seconds: 3, nanoseconds: 4 },
        ctime: Time { seconds: 5, nanoseconds: 6 },
        birth: Time { seconds: -7, nanoseconds: 8 },
        change: ChangeId(9),
        data_change: ChangeId(6),
    };
    let (parent, target) = (FileId::ROOT, Opaque::default());
    Inode { attributes, parent, entries: 0, next_cookie: 1, target, late, whereabouts }
}

fn words(bytes: &[u8]) -> String {
    let word = |word: &[u8]| format!("{:08x}", u32::from_be_bytes(word.try_into().unwrap()));
    bytes.chunks(4).map(word).collect::<Vec<_>>().join(" ")
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn bytes(hex: &str) -> Vec<u8> {
    let word = |word: &str| u32::from_str_radix(word, 16).unwrap().to_be_bytes();
    hex.split_whitespace().flat_map(word).collect()
}

/// Earlier versions read the record of a file that no client retains, and this one reads theirs:
/// then the disks have the bytes.
#[test]
fn an_inode_record_has_the_least_format_that_says_it() {
    let client = CLIENT;
    let of_client = "a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5 00000000 00001388";
    let document = squeezed(include_str!("../../../../docs/formats/meta-store.md"));
    for (inode, format, more) in [
        (inode(0, Whereabouts::AtDisks), 2, String::new()),
        (inode(7, Whereabouts::AtDisks), 3, "00000000 00000007".into()),
        (
            inode(7, Whereabouts::Retained { client, bytes: 5000 }),
            4,
            format!("00000000 00000007 00000001 {of_client}"),
        ),
        (
            inode(0, Whereabouts::Moving { client, bytes: 5000 }),
            4,
            format!("00000000 00000000 00000002 {of_client}"),
        ),
        (
            inode(0, Whereabouts::Lost { bytes: 5000 }),
            4,
            "00000000 00000000 00000003 00000000 00000000 00000000 00000000 00000000 00001388"
                .into(),
        ),
    ] {
        let record = squeezed(&format!("{format:08x} {FIELDS} {more}"));
        assert_eq!(words(&inode.to_bytes()), record);
        assert_eq!(Inode::from_bytes(bytes(&record)), Ok(inode));
        assert!(document.contains(&record), "the document lacks {record}");
    }
    let record = squeezed(&format!("00000005 {FIELDS} 00000000 00000000 00000001 {of_client}"));
    assert!(Inode::from_bytes(bytes(&record)).unwrap_err().contains("format 5"));
    let unknown = squeezed(&format!("00000004 {FIELDS} 00000000 00000000 00000004 {of_client}"));
    assert!(Inode::from_bytes(bytes(&unknown)).is_err());
}

#[test]
fn the_record_of_a_retained_file_is_what_the_document_says() {
    let document = squeezed(include_str!("../../../../docs/formats/meta-store.md"));
    let shown = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (client, text) in [
        (CLIENT, "63a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a50000000000001122"),
        (NOBODY, "63000000000000000000000000000000000000000000001122"),
    ] {
        assert_eq!(shown(&key::retaining(client, FileId(0x1122))), text);
        assert!(document.contains(text), "the document lacks {text}");
    }
    assert_eq!(words(&Retaining {}.to_bytes()), "00000001");
}
