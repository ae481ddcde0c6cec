//! Keys against another implementation (Python's hmac, and AES-GCM by the book), and every way in
//! which a sealed message can be altered.

use super::*;
use crate::capability::{
    BootEpoch, CapabilityId, Extent, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};

fn capability() -> Capability {
    let extents = [(4096, 8192), (1 << 20, 100)];
    let extents = extents.map(|(offset, length)| Extent::new(offset, length).unwrap());
    Capability {
        volume: VolumeId(std::array::from_fn(|at| 0xa0 + at as u8)),
        disk: DiskId(3),
        boot: BootEpoch(0x0102_0304_0506_0708),
        key: KeyEpoch(7),
        group: GroupId(9),
        id: CapabilityId(11),
        mode: Mode::Write,
        expiry_ms: 60_000,
        extents: Extents::new(extents.to_vec()).unwrap(),
    }
}

fn master() -> MasterKey {
    MasterKey::new(std::array::from_fn(|at| at as u8))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_those_that_the_format_says() {
    let master = master();
    let key = master.disk_key(KeyEpoch(7));
    let secret = key.secret(&capability());
    let session = secret.session_key(&[0x11; 32], &[0x22; 32]);
    let control = master.control_secret(capability().volume, DiskId(3));
    let table = [
        (key.as_bytes(), "462de6a3f46857318f443d15901114f061ffd269f4758b2bf85f4be571243dd5"),
        (secret.as_bytes(), "e419c689b5de2da4a1d9660c44e0ae295a55c0e6b86b9f95e901751f66467d2a"),
        (control.as_bytes(), "47f70228a9ee4cfe28c10eda7e511671e37a6ffd7f2d1746c96a3940cde5d676"),
        (session.as_bytes(), "49c000c01b632214978f3d5e4d0f5e3b6487a0c8763ed8ee81bccceff4de256e"),
        (
            &session.sign_ending(&[0x11; 32]),
            "586e6de21546b33dd9f2e2f7b188aa99fb59f31698285972b371bf976a402fc3",
        ),
    ];
    for (at, (key, expected)) in table.into_iter().enumerate() {
        assert_eq!(hex(key), expected, "number {at}");
    }
}

/// A capability that differs in any field has another secret.
#[test]
fn no_field_of_a_capability_can_be_changed() {
    let key = master().disk_key(KeyEpoch(7));
    let ours = key.secret(&capability());
    let changes: [fn(&mut Capability); 9] = [
        |one| one.volume.0[15] ^= 1,
        |one| one.disk.0 ^= 1,
        |one| one.boot.0 ^= 1,
        |one| one.key.0 ^= 1,
        |one| one.group.0 ^= 1,
        |one| one.id.0 ^= 1,
        |one| one.mode = Mode::ReadWrite,
        |one| one.expiry_ms ^= 1,
        |one| one.extents = Extents::new(vec![Extent::new(4096, 8192).unwrap()]).unwrap(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut other = capability();
        change(&mut other);
        assert_ne!(key.secret(&other), ours, "field {at}");
    }
}

#[test]
fn keys_do_not_show_themselves() {
    let keys = master().disk_key(KeyEpoch(7));
    let secret = keys.secret(&capability());
    let session = secret.session_key(&[1; 32], &[2; 32]);
    let shown = format!("{keys:?} {secret:?} {session:?} {:?}", session.request_keys(&secret));
    assert!(!shown.contains(|one: char| one.is_ascii_digit()), "{shown}");
}

/// Each bit of each part counts, and so do the sequence number, the key and the setup.
#[test]
fn an_altered_message_does_not_open() {
    let secret = master().disk_key(KeyEpoch(7)).secret(&capability());
    let keys = secret.session_key(&[1; 32], &[2; 32]).request_keys(&secret);
    let other = secret.session_key(&[1; 32], &[3; 32]).request_keys(&secret);
    let (head, clear) = (b"what is asked".to_vec(), Bytes::from_static(b"data of several blocks"));
    for setup in [Setup::Secure, Setup::Private] {
        let (tag, sent) = keys.to_disk.seal(setup, 5, head.clone(), clear.clone());
        assert_eq!(sent == clear, setup == Setup::Secure);
        let open = |key: &SealKey, setup, sequence, head: &[u8], tag: &Tag, data: &[u8]| {
            key.open(setup, sequence, head.to_vec(), tag, Bytes::copy_from_slice(data))
        };
        assert_eq!(open(&keys.to_disk, setup, 5, &head, &tag, &sent), Ok(clear.clone()));
        assert_eq!(open(&keys.to_disk, setup, 6, &head, &tag, &sent), Err(Forged));
        assert_eq!(open(&keys.from_disk, setup, 5, &head, &tag, &sent), Err(Forged));
        assert_eq!(open(&other.to_disk, setup, 5, &head, &tag, &sent), Err(Forged));
        let swapped = if setup == Setup::Secure { Setup::Private } else { Setup::Secure };
        assert_eq!(open(&keys.to_disk, swapped, 5, &head, &tag, &sent), Err(Forged));
        let flips = |bytes: &[u8]| {
            let bytes = bytes.to_vec();
            (0..bytes.len() * 8).map(move |bit| {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            })
        };
        for head in flips(&head).chain([head[1..].to_vec()]) {
            assert_eq!(open(&keys.to_disk, setup, 5, &head, &tag, &sent), Err(Forged));
        }
        for data in flips(&sent).chain([sent[1..].to_vec()]) {
            assert_eq!(open(&keys.to_disk, setup, 5, &head, &tag, &data), Err(Forged));
        }
        for tag in flips(&tag) {
            let tag = tag.try_into().unwrap();
            assert_eq!(open(&keys.to_disk, setup, 5, &head, &tag, &sent), Err(Forged));
        }
    }
}

/// Bytes cannot move between the head and the data.
#[test]
fn the_border_between_head_and_data_is_sealed() {
    let secret = Secret::new([7; 32]);
    let key = secret.session_key(&[1; 32], &[2; 32]).request_keys(&secret).to_disk;
    for setup in [Setup::Secure, Setup::Private] {
        let (tag, _) = key.seal(setup, 1, b"abcd".to_vec(), Bytes::from_static(b"efgh"));
        for (head, data) in [(&b"abcde"[..], &b"fgh"[..]), (b"abc", b"defgh"), (b"", b"abcdefgh")] {
            let data = Bytes::copy_from_slice(data);
            assert_eq!(key.open(setup, 1, head.to_vec(), &tag, data), Err(Forged));
        }
    }
}
