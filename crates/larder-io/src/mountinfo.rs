//! The kernel's list of mounts (proc_pid_mountinfo(5)). Reading it touches no mount, so it cannot
//! hang on a dead one.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mountpoint; the kernel lists it without symbolic links.
    pub mountpoint: PathBuf,
    /// Minor number of its device. For FUSE, the major number is 0 and this is the number of the
    /// connection.
    pub device_minor: u32,
    /// File system type, as `fuse.larder`.
    pub kind: String,
    /// The mount's source, as given to mount(2).
    pub source: String,
    /// Options of the file system, separated by commas.
    pub options: String,
}

/// The mounts of this process's name space, in the order in which they were made.
///
/// # Errors
/// If `/proc` is not there.
pub fn mounts() -> io::Result<Vec<Mount>> {
    const LIST: &str = "/proc/self/mountinfo";
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{LIST}: {error}"));
    let text = std::fs::read(LIST).map_err(named)?;
    Ok(parse(&text))
}

/// The mount at a path: of several mounts there, the topmost.
///
/// # Errors
/// As [`mounts`].
pub fn mounted_at(path: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.mountpoint == path))
}

/// The mount that contains a path without symbolic links.
///
/// # Errors
/// As [`mounts`].
pub fn mounted_around(path: &Path) -> io::Result<Option<Mount>> {
    let around = mounts()?.into_iter().filter(|mount| path.starts_with(&mount.mountpoint));
    // Of several mounts with the same mountpoint, the last one is on top.
    Ok(around.max_by_key(|mount| mount.mountpoint.components().count()))
}

/// Parses the lines; skips those that are not in the kernel's format.
fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let mountpoint = unescaped(words.nth(1)?).into();
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let mut text = || Some(unescaped(behind.next()?).to_string_lossy().into_owned());
    Some(Mount {
        mountpoint,
        device_minor: device.split_once(':')?.1.parse().ok()?,
        kind: text()?,
        source: text()?,
        options: text()?,
    })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescaped(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = behind;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let text = b"\
22 1 0:21 / /proc rw,relatime shared:5 - proc proc rw\n\
41 22 0:46 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.larder nfs://s/x rw,user_id=0\n\
36 35 98:0 / /mnt rw\n\
bad line\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        let expected = Mount {
            mountpoint: "/mnt/a b".into(),
            device_minor: 46,
            kind: "fuse.larder".to_owned(),
            source: "nfs://s/x".to_owned(),
            options: "rw,user_id=0".to_owned(),
        };
        assert_eq!(found[1], expected);
    }

    #[test]
    fn octal_escapes() {
        for (word, expected) in [
            ("a", "a"),
            ("\\134\\040", "\\ "),
            ("/a\\134b\\011", "/a\\b\t"),
            ("\\9", "\\9"),
            ("\\04", "\\04"),
            ("\\777", "\\777"),
        ] {
            assert_eq!(unescaped(word.as_bytes()), expected, "{word}");
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        assert!(mounted_at(Path::new("/no/such/mount")).unwrap().is_none());
        let around = mounted_around(Path::new("/proc/self")).unwrap().unwrap();
        assert_eq!(around.mountpoint, Path::new("/proc"));
    }
}
