//! Where a file is, for every client of a volume.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// A path without `.`, `..` and repeated slashes: relative to the root of the volume, or absolute
/// on the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulePath(PathBuf);

impl RulePath {
    /// The path of an absolute path, on a machine that has the volume at `root`; `None` if the
    /// path is not absolute, or not plain.
    pub fn of(path: &Path, root: &Path) -> Option<RulePath> {
        let is_plain = path.components().all(|part| part != Component::ParentDir);
        (path.is_absolute() && is_plain).then(|| match path.strip_prefix(root) {
            Ok(below) => RulePath(below.components().collect()),
            Err(_) => RulePath(path.components().collect()),
        })
    }

    /// A path from its text; `None` if the text is not in the one permitted form.
    pub fn parse(written: &OsStr) -> Option<RulePath> {
        let path: PathBuf = Path::new(written).components().collect();
        let is_plain = |part| matches!(part, Component::Normal(_) | Component::RootDir);
        let is_same = path.as_os_str().as_bytes() == written.as_bytes();
        (is_same && path.components().all(is_plain)).then_some(RulePath(path))
    }

    /// Whether it is a file of the volume.
    pub fn is_in_volume(&self) -> bool {
        self.0.is_relative()
    }

    /// Its absolute path, where the volume is at `root`.
    pub fn at(&self, root: &Path) -> PathBuf {
        match self.0.as_os_str().is_empty() {
            true => root.to_owned(),
            false => root.join(&self.0),
        }
    }

    /// As it is written.
    pub fn written(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl fmt::Display for RulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_os_str().is_empty() {
            true => f.write_str("."),
            false => self.0.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_the_volume_or_on_the_machine() {
        let root = Path::new("/mnt/v");
        for (path, written) in [
            ("/mnt/v/a/b", Some("a/b")),
            ("/mnt/v", Some("")),
            ("/mnt/v//a/", Some("a")),
            ("/mnt/vv/a", Some("/mnt/vv/a")),
            ("/", Some("/")),
            ("a", None),
            ("/mnt/v/../x", None),
        ] {
            let place = RulePath::of(Path::new(path), root);
            assert_eq!(place.as_ref().map(RulePath::written), written.map(OsStr::new), "{path}");
            let Some(place) = place else { continue };
            assert_eq!(
                place.at(root),
                path.parse::<PathBuf>().unwrap().components().collect::<PathBuf>()
            );
            assert_eq!(RulePath::parse(place.written()), Some(place));
        }
        for wrong in ["a//b", "a/", "./a", "../a", "a/../b", "/a/..", "//a", "a/."] {
            assert_eq!(RulePath::parse(OsStr::new(wrong)), None, "{wrong}");
        }
    }
}
