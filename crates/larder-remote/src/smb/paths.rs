//! Paths of files, by handle.
//!
//! Requests name a file by path, so a handle without a dentry means [`Error::Stale`]; the caller
//! then looks the name up again, which records the dentry. A dentry may be wrong, because others
//! rename: its user checks that the file at the path is the one that was meant.
//!
//! A file may have several names, and stays reachable by one when another is removed. The one that
//! was learned last is used. A directory has one.
//!
//! Invariants:
//! - At most [`DENTRIES_MAX`] are kept; when there are more, all but the root are forgotten.
//! - A dentry leads to a file in `at` exactly if it is one of the file's in `of`, which has no
//!   empty list.

use super::handle;
use super::names;
use larder_vfs::{Error, Handle, Result};
use std::collections::HashMap;

/// Most dentries kept: about 200 bytes each.
pub(super) const DENTRIES_MAX: usize = 1 << 20;
/// Most names kept of a file.
const NAMES_MAX: usize = 16;
/// Deepest path: more is a loop of our own making.
const DEPTH_MAX: usize = 512;

/// A directory and the component in it.
type Dentry = (Handle, String);

/// Every dentry that is known.
#[derive(Debug)]
pub(super) struct Paths {
    root: Handle,
    /// Path of the root below the share.
    base: String,
    /// The last one leads.
    of: HashMap<Handle, Vec<Dentry>>,
    at: HashMap<Dentry, Handle>,
    dentries_max: usize,
}

impl Paths {
    /// With the root only.
    pub(super) fn new(root: Handle, base: String) -> Paths {
        Paths { root, base, of: HashMap::new(), at: HashMap::new(), dentries_max: DENTRIES_MAX }
    }

    /// Notes that `component` of `dir` is `file`.
    pub(super) fn learn(&mut self, dir: &Handle, component: &str, file: &Handle) {
        if *file == self.root {
            return;
        }
        if self.at.len() >= self.dentries_max {
            self.of.clear();
            self.at.clear();
        }
        let dentry = (dir.clone(), component.to_owned());
        if let Some(other) = self.at.insert(dentry.clone(), file.clone())
            && other != *file
        {
            self.take(&other, &dentry);
        }
        let kept = if handle::is_directory(file) { 0 } else { NAMES_MAX - 1 };
        let of = self.of.entry(file.clone()).or_default();
        of.retain(|held| *held != dentry);
        let excess = of.len().saturating_sub(kept);
        let gone: Vec<Dentry> = of.drain(..excess).collect();
        of.push(dentry);
        for dentry in gone {
            self.at.remove(&dentry);
        }
    }

    /// A path of `file` is no longer one.
    fn take(&mut self, file: &Handle, dentry: &Dentry) {
        if let Some(of) = self.of.get_mut(file) {
            of.retain(|held| held != dentry);
            if of.is_empty() {
                self.of.remove(file);
            }
        }
    }

    fn leading(&self, file: &Handle) -> Option<&Dentry> {
        self.of.get(file)?.last()
    }

    /// The path by which `file` was looked for leads to another file. It may have others.
    pub(super) fn mistaken(&mut self, file: &Handle) {
        if let Some(dentry) = self.leading(file).cloned() {
            self.at.remove(&dentry);
            self.take(file, &dentry);
        }
    }

    /// Records that `component` of `dir` does not exist any more. The file may have other names.
    pub(super) fn removed(&mut self, dir: &Handle, component: &str) {
        let dentry = (dir.clone(), component.to_owned());
        if let Some(file) = self.at.remove(&dentry) {
            self.take(&file, &dentry);
        }
    }

    /// The file that was last known to be called `component` in `dir`.
    pub(super) fn child(&self, dir: &Handle, component: &str) -> Option<Handle> {
        self.at.get(&(dir.clone(), component.to_owned())).cloned()
    }

    /// The directory that contains `file`; for the root, the root.
    ///
    /// # Errors
    /// [`Error::Stale`] if that is not known.
    pub(super) fn parent(&self, file: &Handle) -> Result<Handle> {
        if *file == self.root {
            return Ok(self.root.clone());
        }
        self.leading(file).map(|dentry| dentry.0.clone()).ok_or(Error::Stale)
    }

    /// All directories above `dir`, up to the root. `None` if they are not all known, or the root
    /// is below others.
    pub(super) fn above(&self, dir: &Handle) -> Option<Vec<Handle>> {
        let (mut above, mut at) = (Vec::new(), dir);
        while *at != self.root {
            at = &self.leading(at)?.0;
            above.push(at.clone());
            if above.len() > DEPTH_MAX {
                return None;
            }
        }
        self.base.is_empty().then_some(above)
    }

    /// The path to `file`, below the share.
    ///
    /// # Errors
    /// [`Error::Stale`] if a step of it is not known.
    pub(super) fn path(&self, file: &Handle) -> Result<String> {
        let mut components = Vec::new();
        let mut at = file;
        while *at != self.root {
            let (dir, component) = self.leading(at).ok_or(Error::Stale)?;
            components.push(component.as_str());
            if components.len() > DEPTH_MAX {
                return Err(Error::Stale);
            }
            at = dir;
        }
        let below = components.iter().rev().copied().collect::<Vec<_>>().join("\\");
        Ok(if below.is_empty() { self.base.clone() } else { names::join(&self.base, &below) })
    }

    /// Whether `file` is `dir` or is somewhere below it.
    pub(super) fn is_below(&self, file: &Handle, dir: &Handle) -> bool {
        let mut at = Some(file);
        for _ in 0..DEPTH_MAX {
            match at {
                Some(here) if here == dir => return true,
                Some(here) => at = self.leading(here).map(|dentry| &dentry.0),
                None => return false,
            }
        }
        false
    }

    /// The handle for a server without ids.
    pub(super) fn handle_by_path(path: &str) -> Handle {
        handle::by_path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::Identity;
    use super::*;

    fn file(number: u64) -> Handle {
        Identity { file_id: number, directory: false }.handle(9)
    }

    fn dir(number: u64) -> Handle {
        Identity { file_id: number, directory: true }.handle(9)
    }

    fn paths() -> Paths {
        let mut paths = Paths::new(dir(1), "base".into());
        paths.learn(&dir(1), "d", &dir(2));
        paths.learn(&dir(2), "f", &file(3));
        paths
    }

    #[test]
    fn a_path_is_made_of_dentries() {
        let paths = paths();
        assert_eq!(paths.path(&dir(1)).unwrap(), "base");
        assert_eq!(paths.path(&file(3)).unwrap(), "base\\d\\f");
        assert_eq!(paths.path(&file(4)), Err(Error::Stale));
        assert_eq!(paths.parent(&file(3)), Ok(dir(2)));
        assert_eq!(paths.parent(&dir(1)), Ok(dir(1)));
        assert!(paths.is_below(&file(3), &dir(2)) && !paths.is_below(&dir(2), &file(3)));
    }

    #[test]
    fn a_renamed_directory_takes_along_what_is_in_it() {
        let mut paths = paths();
        paths.learn(&dir(1), "e", &dir(2));
        assert_eq!(paths.path(&file(3)).unwrap(), "base\\e\\f");
        assert_eq!(paths.child(&dir(1), "d"), None);
        assert_eq!(paths.child(&dir(1), "e"), Some(dir(2)));
    }

    #[test]
    fn a_name_that_another_file_took_leads_there_only() {
        let mut paths = paths();
        paths.learn(&dir(2), "f", &file(5));
        assert_eq!(paths.path(&file(3)), Err(Error::Stale));
        assert_eq!(paths.path(&file(5)).unwrap(), "base\\d\\f");
        paths.mistaken(&file(5));
        assert_eq!(paths.child(&dir(2), "f"), None);
        assert_eq!(paths.path(&file(5)), Err(Error::Stale));
    }

    #[test]
    fn a_file_is_reached_by_the_names_that_are_left() {
        let mut paths = paths();
        paths.learn(&dir(1), "second", &file(3));
        paths.learn(&dir(2), "f", &file(3));
        paths.removed(&dir(2), "f");
        assert_eq!(paths.path(&file(3)).unwrap(), "base\\second");
        paths.learn(&dir(1), "third", &file(3));
        paths.mistaken(&file(3));
        assert_eq!(paths.path(&file(3)).unwrap(), "base\\second");
        paths.removed(&dir(1), "second");
        assert_eq!(paths.path(&file(3)), Err(Error::Stale));
        (0..100).for_each(|number| paths.learn(&dir(1), &number.to_string(), &file(3)));
        assert_eq!(paths.at.len(), NAMES_MAX + 1, "with the directory");
    }

    #[test]
    fn the_directories_above_are_known_up_to_the_root_of_the_share() {
        let mut whole = Paths::new(dir(1), String::new());
        whole.learn(&dir(1), "d", &dir(2));
        whole.learn(&dir(2), "e", &dir(3));
        assert_eq!(whole.above(&dir(1)), Some(vec![]));
        assert_eq!(whole.above(&dir(3)), Some(vec![dir(2), dir(1)]));
        assert_eq!(whole.above(&dir(4)), None, "a directory that nobody has found");
        assert_eq!(paths().above(&dir(2)), None, "nobody watches what is above the mount's root");
    }

    #[test]
    fn a_loop_ends() {
        let mut paths = paths();
        paths.learn(&dir(3), "d", &dir(2));
        paths.learn(&dir(2), "e", &dir(3));
        assert_eq!((paths.path(&dir(2)), paths.above(&dir(2))), (Err(Error::Stale), None));
        assert!(!paths.is_below(&dir(2), &file(9)));
    }

    #[test]
    fn there_are_never_too_many() {
        let mut paths = paths();
        paths.dentries_max = 10;
        for number in 10..100 {
            paths.learn(&dir(1), &number.to_string(), &file(number));
            assert!(paths.of.len() <= 10 && paths.at.len() <= 10);
        }
        assert_eq!(paths.path(&file(99)).unwrap(), "base\\99");
        assert_eq!(paths.path(&file(3)), Err(Error::Stale));
    }
}
