//! The label of a cache: the file that says what the directory is, and for which volume.
//!
//! It is text, and holds the same lines twice, each copy with a checksum, so that a flipped bit is
//! distinguished from another format, and costs nothing: the other copy counts, and the file is
//! rewritten. Caches made before there were checksums have only the first two lines.
//!
//! Nothing here changes a directory before it is known to be a cache, or to be empty.

use std::io;

use larder_io::{Disk, OpenMode, Writers};

use crate::config::{Config, OpenError};
use crate::open::{LOCK_FILE, read_small};

const LABEL_FILE: &str = "larder-cache";
const LABEL_FILE_NEW: &str = "larder-cache.new";
/// Begins the first line, whatever the format.
const FORMAT_WORDS: &str = "larder cache format ";
const FORMAT_LINE: &str = "larder cache format 1";

/// The kind of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing yet: empty, or a first start was cut short in it.
    Nothing,
    /// Our cache. Its label must be rewritten unless it `is_sound`.
    Cache { is_sound: bool },
}

/// Determines what a directory is, and changes nothing.
///
/// # Errors
/// If it must be left alone: it is something else, another volume's cache, damaged, or its content
/// may come from others.
pub(crate) fn recognise(disk: &dyn Disk, config: &Config) -> Result<Found, OpenError> {
    let text = match read_small(disk, LABEL_FILE) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(OpenError::Unwritable(error)),
    };
    let found = match text {
        Some(text) => Found::Cache { is_sound: judge(&text, config)? },
        None => {
            let names = disk.list("").map_err(OpenError::Unwritable)?;
            let ours = [LABEL_FILE_NEW, LOCK_FILE];
            if !names.iter().all(|name| ours.contains(&name.as_str())) {
                return Err(OpenError::NotACache);
            }
            Found::Nothing
        }
    };
    match (disk.writers().map_err(OpenError::Unwritable)?, found) {
        (Writers::Owner, _) | (Writers::Group, Found::Nothing) => Ok(found),
        // An empty directory that all may write to (/tmp) is there for all.
        (Writers::All | Writers::Group, _) => Err(OpenError::WritableByOthers),
    }
}

/// Writes the label, durably, replacing the previous one.
pub(crate) fn write(disk: &dyn Disk, config: &Config) -> io::Result<()> {
    let file = disk.open(LABEL_FILE_NEW, OpenMode::Create)?;
    file.set_len(0)?;
    file.write_at(text(config).as_bytes(), 0)?;
    file.sync_data()?;
    disk.create_dir_all("data")?;
    disk.rename(LABEL_FILE_NEW, LABEL_FILE)?;
    disk.sync_dir("")
}

fn volume_line(config: &Config) -> String {
    let digits: String = config.identity.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("volume {digits}")
}

fn check_line(format: &[u8], volume: &[u8]) -> String {
    let sum = crc32c::crc32c_append(crc32c::crc32c(format), b"\n");
    format!("check {:08x}", crc32c::crc32c_append(sum, volume))
}

/// The label as it is written. The empty line keeps a flipped end of line from damaging both
/// copies.
fn text(config: &Config) -> String {
    let volume = volume_line(config);
    let check = check_line(FORMAT_LINE.as_bytes(), volume.as_bytes());
    let copy = format!("{FORMAT_LINE}\n{volume}\n{check}\n");
    format!("{copy}\n{copy}")
}

/// Whether a label that names our format and volume is as it was written.
fn judge(found: &[u8], config: &Config) -> Result<bool, OpenError> {
    let lines: Vec<&[u8]> = found.split(|byte| *byte == b'\n').collect();
    let is_sound = |copy: &&[&[u8]]| copy[2] == check_line(copy[0], copy[1]).as_bytes();
    let (format, volume) = match (lines.windows(3).find(is_sound), &lines[..]) {
        (Some(copy), _) => (copy[0], copy[1]),
        // Made before there were checksums.
        (None, [format, volume, b""]) if is_label(format, volume) => (*format, *volume),
        _ => return Err(OpenError::DamagedHead),
    };
    let shown = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
    if format != FORMAT_LINE.as_bytes() {
        let (found, expected) = (shown(format), FORMAT_LINE.to_owned());
        return Err(OpenError::WrongVersion { found, expected });
    }
    if volume != volume_line(config).as_bytes() {
        return Err(OpenError::OtherVolume { found: shown(volume) });
    }
    Ok(found == text(config).as_bytes())
}

/// Whether two lines have the form of a label.
fn is_label(format: &[u8], volume: &[u8]) -> bool {
    let number = format.strip_prefix(FORMAT_WORDS.as_bytes());
    let digits = volume.strip_prefix(b"volume ");
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
        && digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit, and every bit in both copies at once.
    #[test]
    fn one_flipped_bit_costs_nothing_and_two_are_told_from_another_format() {
        let config = Config::new(b"volume");
        let sound = text(&config).into_bytes();
        let flip = |text: &mut Vec<u8>, bit: usize| text[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(judge(&sound, &config), Ok(true)));
        let second = 8 * (sound.len() / 2 + 1);
        for bit in 0..8 * sound.len() {
            let mut damaged = sound.clone();
            flip(&mut damaged, bit);
            assert!(matches!(judge(&damaged, &config), Ok(false)), "bit {bit}");
            if bit + second < 8 * (sound.len() - 1) {
                flip(&mut damaged, bit + second);
                let told = judge(&damaged, &config);
                assert!(matches!(told, Err(OpenError::DamagedHead)), "bit {bit}: {told:?}");
            }
        }
    }
}
