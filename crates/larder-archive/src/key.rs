//! Which object has which bytes. Numbers have a fixed width, so that keys are listed in the order
//! of the numbers.

use object_store::path::Path;

/// Name of the object with the checksums of a version's sections.
const SUMS: &str = "sums";

/// A file's bytes at one data version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The volume's identity.
    pub volume: [u8; 16],
    /// The file's inode number, which no other file of the volume ever has.
    pub ino: u64,
    /// The data version: it changes with the bytes, and with nothing else.
    pub data_version: u64,
}

impl Version {
    /// Below which key its objects lie.
    pub(crate) fn folder(&self, prefix: &Path) -> Path {
        volume(prefix, self.volume)
            .join(format!("{:016x}", self.ino))
            .join(format!("{:016x}", self.data_version))
    }

    /// The key of one of the objects with its bytes.
    pub(crate) fn object(&self, prefix: &Path, number: u64) -> Path {
        self.folder(prefix).join(format!("{number:08x}"))
    }

    /// The key of the object with the checksums.
    pub(crate) fn sums(&self, prefix: &Path) -> Path {
        self.folder(prefix).join(SUMS)
    }
}

/// Below which key a volume's objects lie.
pub(crate) fn volume(prefix: &Path, volume: [u8; 16]) -> Path {
    let name: String = volume.iter().map(|byte| format!("{byte:02x}")).collect();
    prefix.clone().join(name)
}

/// The version that an object of this volume is part of. None: the object is not ours.
pub(crate) fn version_of(prefix: &Path, volume_id: [u8; 16], key: &Path) -> Option<Version> {
    let below = volume(prefix, volume_id);
    let rest: Vec<_> = key.prefix_match(&below)?.collect();
    let [ino, data_version, object] = &rest[..] else { return None };
    let is_ours = object.as_ref() == SUMS || number(object.as_ref(), 8).is_some();
    let (ino, data_version) = (number(ino.as_ref(), 16)?, number(data_version.as_ref(), 16)?);
    is_ours.then_some(Version { volume: volume_id, ino, data_version })
}

/// A number as we write it, and in no other spelling.
fn number(text: &str, digits: usize) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != digits || !is_plain {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: [u8; 16] = [0xa5; 16];

    #[test]
    fn a_key_names_its_version() {
        let prefix = Path::from("backup/office");
        for (ino, data_version) in [(0, 0), (1, 2), (u64::MAX, u64::MAX - 1)] {
            let version = Version { volume: VOLUME, ino, data_version };
            for key in [version.object(&prefix, 0), version.object(&prefix, 77)] {
                assert_eq!(version_of(&prefix, VOLUME, &key), Some(version));
            }
            assert_eq!(version_of(&prefix, VOLUME, &version.sums(&prefix)), Some(version));
            assert_eq!(version_of(&prefix, [0; 16], &version.sums(&prefix)), None);
        }
    }

    #[test]
    fn other_keys_are_not_ours() {
        let prefix = Path::from("");
        let below = volume(&prefix, VOLUME);
        for rest in [
            "1/2/00000000",
            "0000000000000001/0000000000000002",
            "0000000000000001/0000000000000002/readme",
            "000000000000000A/0000000000000002/sums",
            "+000000000000001/0000000000000002/sums",
            "0000000000000001/0000000000000002/sums/x",
        ] {
            let key = Path::from(format!("{below}/{rest}"));
            assert_eq!(version_of(&prefix, VOLUME, &key), None, "{rest}");
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        let prefix = Path::from("p");
        let key = |ino, data_version, number| {
            Version { volume: VOLUME, ino, data_version }.object(&prefix, number)
        };
        let keys = [key(2, 0, 0), key(2, 9, 0), key(2, 10, 15), key(2, 10, 16), key(10, 0, 0)];
        assert!(keys.is_sorted());
    }
}
