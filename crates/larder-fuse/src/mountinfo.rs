//! The kernel's list of mounts (proc_pid_mountinfo(5)). Reading it touches no mount, so it cannot hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Type of our mounts, as the list shows it.
pub(crate) const KIND: &str = "fuse.larder";

/// A line of the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Minor device number; the major one is 0 for FUSE. It is also the number of the connection.
    pub(crate) device_minor: u32,
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// Type, such as [`KIND`].
    pub(crate) kind: String,
}

/// What is seen at `path`: of several mounts there, the one on top.
pub(crate) fn at(path: &Path) -> io::Result<Option<Line>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(top(&text, path))
}

fn top(text: &[u8], path: &Path) -> Option<Line> {
    text.split(|byte| *byte == b'\n').filter_map(parse).rfind(|line| line.path == path)
}

fn parse(line: &[u8]) -> Option<Line> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let path = unescape(words.nth(1)?);
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    Some(Line {
        device_minor: device.split_once(':')?.1.parse().ok()?,
        path,
        kind: String::from_utf8_lossy(kind).into_owned(),
    })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(word: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 0:21 / /proc rw,relatime shared:5 - proc proc rw\n\
40 22 0:45 / /mnt/a\\040b rw - fuse.other x rw\n\
41 22 0:46 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.larder s:/x rw,user_id=0\n\
bad line\n";

    #[test]
    fn the_mount_on_top_is_found() {
        let line = top(TEXT, Path::new("/mnt/a b")).unwrap();
        assert_eq!((line.device_minor, line.kind.as_str()), (46, KIND));
        assert_eq!(top(TEXT, Path::new("/mnt")), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(b"/a\\134b\\011"), Path::new("/a\\b\t"));
        assert_eq!(unescape(b"/a\\9"), Path::new("/a\\9"));
        assert_eq!(unescape(b"\\04"), Path::new("\\04"));
    }
}
