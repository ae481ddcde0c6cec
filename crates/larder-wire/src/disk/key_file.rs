//! The file that assigns a disk to a volume: its number, and its master key, as text.
//!
//! ```text
//! larder disk key 1
//! volume 000102030405060708090a0b0c0d0e0f
//! disk 3
//! key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
//! ```
//!
//! Version 2 is the same with one line more, which states the setup of the volume:
//!
//! ```text
//! larder disk key 2
//! volume 000102030405060708090a0b0c0d0e0f
//! disk 3
//! key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
//! setup private
//! ```
//!
//! The disk has it, and the metadata server, each in a file that only its owner may read. The
//! caller reads the file.

use thiserror::Error;

use crate::capability::{DiskId, VolumeId};
use crate::seal::{MasterKey, Setup};

const FORMAT: &str = "larder disk key ";
const VERSION: &str = "1";
const WITH_SETUP: &str = "2";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskKeyFile {
    /// The volume.
    pub volume: VolumeId,
    /// The disk's number in it.
    pub disk: DiskId,
    /// The disk's master key.
    pub master: MasterKey,
    /// The setup that the disk is to have. None: secure, unless the disk is told another one.
    pub setup: Option<Setup>,
}

/// Why a text is not the content of such a file. The text itself is not shown: it may be a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyFileError {
    /// It is something else.
    #[error("it is no key of a disk")]
    Other,
    /// It has a format that is not known here.
    #[error("it has another format than {VERSION} and {WITH_SETUP}")]
    Format,
    /// A line is missing, wrong, or not in its place.
    #[error("its line {0} is not as it should be")]
    Line(usize),
}

impl DiskKeyFile {
    /// The key of a disk of a volume with this setup, as far as the volume states one. Earlier
    /// versions can read it if that is `secure`.
    pub fn new(
        (volume, disk): (VolumeId, DiskId),
        master: MasterKey,
        setup: Option<Setup>,
    ) -> DiskKeyFile {
        let setup = setup.filter(|setup| *setup != Setup::Secure);
        DiskKeyFile { volume, disk, master, setup }
    }

    /// The file's text, in the least version that says it.
    pub fn to_text(&self) -> String {
        let DiskKeyFile { volume, disk, master, setup } = self;
        let (volume, key) = (hex(&volume.0), hex(master.as_bytes()));
        let (version, setup) = match setup {
            None => (VERSION, String::new()),
            Some(setup) => (WITH_SETUP, format!("setup {}\n", setup.name())),
        };
        format!("{FORMAT}{version}\nvolume {volume}\ndisk {}\nkey {key}\n{setup}", disk.0)
    }

    /// Decodes a text.
    ///
    /// # Errors
    /// [`KeyFileError`]
    pub fn from_text(text: &str) -> Result<DiskKeyFile, KeyFileError> {
        let lines: Vec<&str> = text.lines().collect();
        let format = lines.first().and_then(|line| line.strip_prefix(FORMAT));
        let has_setup = match format.ok_or(KeyFileError::Other)? {
            VERSION => false,
            WITH_SETUP => true,
            _ => return Err(KeyFileError::Format),
        };
        let value = |at: usize, name: &str| {
            let line = lines.get(at).and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or(KeyFileError::Line(at + 1))
        };
        let volume = bytes(value(1, "volume")?).ok_or(KeyFileError::Line(2))?;
        let disk = value(2, "disk")?.parse().map_err(|_| KeyFileError::Line(3))?;
        let key = bytes(value(3, "key")?).ok_or(KeyFileError::Line(4))?;
        let setup = match has_setup {
            true => Some(Setup::from_name(value(4, "setup")?).ok_or(KeyFileError::Line(5))?),
            false => None,
        };
        let expected = 4 + usize::from(has_setup);
        if lines.len() != expected {
            return Err(KeyFileError::Line(expected + 1));
        }
        let (volume, disk, master) = (VolumeId(volume), DiskId(disk), MasterKey::new(key));
        Ok(DiskKeyFile { volume, disk, master, setup })
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
            setup: None,
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
            ("larder disk key 3\n", KeyFileError::Format),
            ("larder disk key 2\n", KeyFileError::Line(2)),
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

    /// The text of both versions, letter by letter: that of a volume with setup `secure`, or with
    /// none, is the one that earlier versions read and wrote.
    #[test]
    fn a_key_file_states_a_setup_that_is_not_secure() {
        let master = || MasterKey::new(std::array::from_fn(|at| at as u8));
        let new = |setup| DiskKeyFile::new((VolumeId([0xa5; 16]), DiskId(7)), master(), setup);
        let text = |version: &str| {
            format!(
                "larder disk key {version}\nvolume a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5\ndisk 7\n\
                 key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n"
            )
        };
        for (setup, expected, found) in [
            (None, text("1"), None),
            (Some(Setup::Secure), text("1"), None),
            (Some(Setup::Off), text("2") + "setup off\n", Some(Setup::Off)),
            (Some(Setup::Private), text("2") + "setup private\n", Some(Setup::Private)),
        ] {
            let file = new(setup);
            assert_eq!((file.to_text(), file.setup), (expected.clone(), found));
            assert_eq!(DiskKeyFile::from_text(&expected), Ok(file));
        }
        let stated = text("2") + "setup secure\n";
        let file = DiskKeyFile::from_text(&stated).unwrap();
        assert_eq!((file.setup, file.to_text()), (Some(Setup::Secure), stated.clone()));
        for (text, line) in [
            (text("2"), 5),
            (text("2") + "setup open\n", 5),
            (text("1") + "setup private\n", 5),
            (stated + "setup private\n", 6),
        ] {
            assert_eq!(DiskKeyFile::from_text(&text), Err(KeyFileError::Line(line)));
        }
    }
}
