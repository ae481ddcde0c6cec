//! The file that assigns a disk to a volume: its number, and its master key, as text.
//!
//! ```text
//! larder disk key 1
//! volume 000102030405060708090a0b0c0d0e0f
//! disk 3
//! key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
//! ```
//!
//! The disk has it, and the metadata server, each in a file that only its owner may read. The
//! caller reads the file.

use thiserror::Error;

use crate::capability::{DiskId, VolumeId};
use crate::seal::MasterKey;

const FORMAT: &str = "larder disk key ";
const VERSION: &str = "1";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskKeyFile {
    /// The volume.
    pub volume: VolumeId,
    /// The disk's number in it.
    pub disk: DiskId,
    /// The disk's master key.
    pub master: MasterKey,
}

/// Why a text is not the content of such a file. The text itself is not shown: it may be a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyFileError {
    /// It is something else.
    #[error("it is no key of a disk")]
    Other,
    /// It has a format that is not known here.
    #[error("it has another format than {VERSION}")]
    Format,
    /// A line is missing, wrong, or not in its place.
    #[error("its line {0} is not as it should be")]
    Line(usize),
}

impl DiskKeyFile {
    /// The file's text.
    pub fn to_text(&self) -> String {
        let DiskKeyFile { volume, disk, master } = self;
        let (volume, key) = (hex(&volume.0), hex(master.as_bytes()));
        format!("{FORMAT}{VERSION}\nvolume {volume}\ndisk {}\nkey {key}\n", disk.0)
    }

    /// Decodes a text.
    ///
    /// # Errors
    /// [`KeyFileError`]
    pub fn from_text(text: &str) -> Result<DiskKeyFile, KeyFileError> {
        let lines: Vec<&str> = text.lines().collect();
        let format = lines.first().and_then(|line| line.strip_prefix(FORMAT));
        if format.ok_or(KeyFileError::Other)? != VERSION {
            return Err(KeyFileError::Format);
        }
        let value = |at: usize, name: &str| {
            let line = lines.get(at).and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or(KeyFileError::Line(at + 1))
        };
        let volume = bytes(value(1, "volume")?).ok_or(KeyFileError::Line(2))?;
        let disk = value(2, "disk")?.parse().map_err(|_| KeyFileError::Line(3))?;
        let key = bytes(value(3, "key")?).ok_or(KeyFileError::Line(4))?;
        match lines.len() {
            4 => Ok(DiskKeyFile {
                volume: VolumeId(volume),
                disk: DiskId(disk),
                master: MasterKey::new(key),
            }),
            _ => Err(KeyFileError::Line(5)),
        }
    }
}

impl VolumeId {
    /// It as people write it: 32 hexadecimal digits.
    pub fn to_text(self) -> String {
        hex(&self.0)
    }

    /// Decodes 32 hexadecimal digits.
    pub fn from_text(text: &str) -> Option<VolumeId> {
        bytes(text).map(VolumeId)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    if hex.len() != 2 * N || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_says_what_was_written() {
        let file = DiskKeyFile {
            volume: VolumeId([0xa5; 16]),
            disk: DiskId(7),
            master: MasterKey::new(std::array::from_fn(|at| at as u8)),
        };
        let text = file.to_text();
        assert_eq!(DiskKeyFile::from_text(&text), Ok(file));
        let lines: Vec<&str> = text.lines().collect();
        for at in 1..4 {
            let without: String = lines
                .iter()
                .enumerate()
                .filter(|(n, _)| *n != at)
                .map(|(_, l)| format!("{l}\n"))
                .collect();
            assert!(matches!(DiskKeyFile::from_text(&without), Err(KeyFileError::Line(_))));
        }
        let wrong = [
            ("", KeyFileError::Other),
            ("-----BEGIN PRIVATE KEY-----\n", KeyFileError::Other),
            ("larder disk key 2\n", KeyFileError::Format),
            ("larder disk key 1\nvolume xyz\n", KeyFileError::Line(2)),
        ];
        for (text, error) in wrong {
            assert_eq!(DiskKeyFile::from_text(text), Err(error));
        }
        let longer = format!("{text}key 00\n");
        assert_eq!(DiskKeyFile::from_text(&longer), Err(KeyFileError::Line(5)));
        let odd = text.replace("0001", "é01");
        assert_eq!(DiskKeyFile::from_text(&odd), Err(KeyFileError::Line(4)));
    }
}
