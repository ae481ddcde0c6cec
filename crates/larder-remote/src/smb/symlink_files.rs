//! The form in which a file is a symbolic link, and what the files of that size were found to be.
//!
//! It is the form of Minshall and French: a mark, the length of the target in four digits and its
//! MD5, a line each, then the target and, if there is room, a new line and spaces.

use larder_vfs::{Attr, Error, Handle, Result, Time};
use md5::{Digest, Md5};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Mutex, PoisonError};

/// Size of every link, in bytes.
pub(super) const BYTES: usize = 1067;
/// Longest target, in bytes.
const TARGET_BYTES_MAX: usize = 1024;
const MARK: &[u8] = b"XSym\n";
/// What is before the target.
const HEAD_BYTES: usize = BYTES - TARGET_BYTES_MAX;
/// Most files that are remembered: 4 MiB of targets.
const FILES_MAX: usize = 4096;

/// What the files of that size are, as far as they were read.
#[derive(Default)]
pub(super) struct Symlinks {
    read: Mutex<HashMap<Handle, File>>,
}

/// A file of a link's size in one of its versions.
struct File {
    version: Version,
    /// `None`: an ordinary file.
    target: Option<OsString>,
}

/// When data and attributes were changed last.
type Version = (Time, Time);

fn version(attr: &Attr) -> Version {
    (attr.mtime, attr.ctime)
}

impl Symlinks {
    /// What the file is in the version that `attr` describes, if it was read.
    pub(super) fn known(&self, file: &Handle, attr: &Attr) -> Option<Option<OsString>> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let known = read.get(file).filter(|known| known.version == version(attr))?;
        Some(known.target.clone())
    }

    pub(super) fn learn(&self, file: &Handle, attr: &Attr, target: Option<OsString>) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.len() >= FILES_MAX {
            read.clear();
        }
        read.insert(file.clone(), File { version: version(attr), target });
    }
}

/// What a link to `target` contains.
///
/// # Errors
/// [`Error::NameTooLong`] above 1,024 bytes.
pub(super) fn content(target: &OsStr) -> Result<Vec<u8>> {
    let target = target.as_bytes();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    let mut content = head(target);
    content.extend_from_slice(target);
    if content.len() < BYTES {
        content.push(b'\n');
    }
    content.resize(BYTES, b' ');
    Ok(content)
}

/// The lines before a target.
fn head(target: &[u8]) -> Vec<u8> {
    let sum = Md5::digest(target);
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    [MARK, format!("{:04}\n{sum}\n", target.len()).as_bytes()].concat()
}

/// The target of the link with this content; `None` if it is that of an ordinary file.
pub(super) fn target(content: &[u8]) -> Option<OsString> {
    if content.len() != BYTES || !content.starts_with(MARK) {
        return None;
    }
    let length = str::from_utf8(&content[MARK.len()..MARK.len() + 4]).ok()?;
    let length: usize = length.parse().ok()?;
    let target = content.get(HEAD_BYTES..HEAD_BYTES + length)?;
    let is_whole =
        !target.is_empty() && !target.contains(&0) && head(target) == content[..HEAD_BYTES];
    is_whole.then(|| OsString::from_vec(target.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::attr::{Info, Shape};
    use proptest::prelude::*;

    #[test]
    fn a_link_has_the_form_that_other_clients_know() {
        let content = content(OsStr::new("../lib/libz.so")).unwrap();
        let head = "XSym\n0014\nf06e61f05130fd2292a534e7772a7997\n../lib/libz.so\n";
        assert!(content.starts_with(head.as_bytes()) && content.len() == 1067);
        assert!(content[head.len()..].iter().all(|byte| *byte == b' '));
    }

    #[test]
    fn only_a_whole_link_is_one() {
        let longest = "x".repeat(TARGET_BYTES_MAX);
        let too_long = content(OsStr::new(&format!("{longest}x")));
        assert_eq!(too_long, Err(Error::NameTooLong));
        for text in ["a", "../b\nc", &longest] {
            let whole = content(OsStr::new(text)).unwrap();
            assert_eq!(target(&whole), Some(text.into()));
            // Of what comes behind a target, clients have different views.
            for at in 0..HEAD_BYTES + text.len() {
                let mut other = whole.clone();
                other[at] ^= 1;
                assert_eq!(target(&other), None, "{at}");
            }
            assert_eq!(target(&whole[1..]), None);
            assert_eq!(target(&[&whole[..], b" "].concat()), None);
        }
        for length in ["0000", "1025", "9999", "+001", "-001", "   1"] {
            let mut wrong = content(OsStr::new("a")).unwrap();
            wrong[5..9].copy_from_slice(length.as_bytes());
            assert_eq!(target(&wrong), None, "{length}");
        }
        assert_eq!(target(&[head(b"").as_slice(), &[b' '; TARGET_BYTES_MAX]].concat()), None);
    }

    #[test]
    fn a_file_is_known_in_its_version_only_and_few_are_remembered() {
        let shape = Shape { uid: 0, gid: 0, file_mode: 0, dir_mode: 0, fsid: 0 };
        let mut info = Info::parse(&[7; 96]).unwrap();
        let (known, handle) =
            (Symlinks::default(), |number: u32| Handle::new(&number.to_le_bytes()));
        known.learn(&handle(1), &info.attr(&shape), Some("a".into()));
        assert_eq!(known.known(&handle(1), &info.attr(&shape)), Some(Some("a".into())));
        assert_eq!(known.known(&handle(2), &info.attr(&shape)), None);
        info.written += 10;
        assert_eq!(known.known(&handle(1), &info.attr(&shape)), None);
        for number in 0..2 * FILES_MAX as u32 {
            known.learn(&handle(number), &info.attr(&shape), None);
        }
        assert!(known.read.lock().unwrap().len() <= FILES_MAX);
    }

    proptest! {
        #[test]
        fn hostile_content_does_no_harm(
            start in 0..60_usize, bytes in proptest::collection::vec(any::<u8>(), 0..40)
        ) {
            let mut hostile = content(OsStr::new("target")).unwrap();
            for (at, byte) in (start..).zip(bytes) {
                hostile[at] = byte;
            }
            let _ = target(&hostile);
        }
    }
}
