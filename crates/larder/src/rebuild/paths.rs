//! Which paths belong to the system, and how a path is resolved while its symbolic links are
//! reported.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Directories that come with the system: a confined command sees them whole.
pub(super) const SYSTEM: [&str; 13] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu",
    "/var/lib", "/snap",
];

/// Directories of the kernel, which say nothing about files.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Most symbolic links on the way to a path, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The tree to which a path belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    System,
    Kernel,
    /// The user, and the volume.
    User,
}

/// The tree to which a path belongs. A volume that is mounted in a directory of the system belongs
/// to the user.
pub(super) fn of(path: &Path, root: &Path) -> Of {
    let is_in = |dirs: &[&str]| dirs.iter().any(|dir| path.starts_with(dir));
    match () {
        () if path.starts_with(root) => Of::User,
        () if is_in(&KERNEL) => Of::Kernel,
        () if is_in(&SYSTEM) => Of::System,
        () => Of::User,
    }
}

/// Resolves paths. Results are remembered: directories are seldom replaced by links while a command
/// runs.
#[derive(Default)]
pub(super) struct Resolver {
    dirs: HashMap<PathBuf, Option<PathBuf>>,
    links: HashMap<PathBuf, OsString>,
}

impl Resolver {
    /// The path without symbolic links and `..`, except for a link at its end if `path` ends with
    /// one and `follows` is not set. `None` if that cannot be determined.
    pub(super) fn resolve(&mut self, path: &Path, follows: bool) -> Option<PathBuf> {
        self.walk(path, follows, LINKS_MAX)
    }

    /// The links that were found so far.
    pub(super) fn links(&self) -> impl Iterator<Item = (&PathBuf, &OsString)> {
        self.links.iter()
    }

    fn walk(&mut self, path: &Path, follows: bool, links_left: usize) -> Option<PathBuf> {
        let last = path.components().next_back()?;
        let Component::Normal(name) = last else {
            return match last {
                Component::ParentDir => Some(
                    self.dir(path.parent()?, links_left)?
                        .parent()
                        .unwrap_or(Path::new("/"))
                        .to_owned(),
                ),
                _ => Some(PathBuf::from("/")),
            };
        };
        let at = self.dir(path.parent()?, links_left)?.join(name);
        match fs::read_link(&at) {
            Ok(target) => {
                self.links.insert(at.clone(), target.clone().into_os_string());
                let next = at.parent()?.join(target);
                if follows { self.walk(&next, true, links_left.checked_sub(1)?) } else { Some(at) }
            }
            Err(_) => Some(at),
        }
    }

    /// The same for a directory in the path.
    fn dir(&mut self, dir: &Path, links_left: usize) -> Option<PathBuf> {
        if let Some(known) = self.dirs.get(dir) {
            return known.clone();
        }
        let found = self.walk(dir, true, links_left);
        // A path that does not exist yet may become a link.
        if found.as_ref().is_some_and(|dir| dir.is_dir()) {
            self.dirs.insert(dir.to_owned(), found.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("real/deep")).unwrap();
        symlink("real", at("way")).unwrap();
        symlink("../way/deep/file", at("real/last")).unwrap();
        symlink("round", at("round")).unwrap();
        let mut resolver = Resolver::default();
        let mut resolved = |name: &str, follows| {
            let found = resolver.resolve(&at(name), follows)?;
            Some(found.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(resolved("way/last", true).unwrap(), "real/deep/file");
        assert_eq!(resolved("way/last", false).unwrap(), "real/last");
        assert_eq!(resolved("way/../real/./none", true).unwrap(), "real/none");
        assert_eq!(resolved("round", true), None);
        let mut links: Vec<_> = resolver.links().map(|(at, _)| at.file_name().unwrap()).collect();
        links.sort();
        assert_eq!(links, ["last", "round", "way"]);
    }
}
