//! New files that replace others all together: each is made in a directory beside the file that it
//! replaces, and renamed when all of them are made.
//!
//! A set that is dropped before it is placed leaves everything as it was. The renames are not one
//! step: if one fails, those before it stay.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// New files that are not in place yet.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Each file, and where it will be.
    files: Vec<(PathBuf, PathBuf)>,
    /// Where the files are made.
    beside: BTreeSet<PathBuf>,
    /// Directories that were not there, parents first.
    dirs: Vec<PathBuf>,
}

impl Staged {
    /// Makes a directory, and those above it, where they are not.
    ///
    /// # Errors
    /// If one cannot be made, or a file is in its place.
    pub(super) fn dir(&mut self, dir: &Path) -> Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Ok(()) => self.dirs.push(dir.to_owned()),
                // Another process made it meanwhile, and may use it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                Err(error) => return Err(error).with_context(|| dir.display().to_string()),
            }
        }
        ensure!(dir.is_dir(), "{} is no directory", dir.display());
        Ok(())
    }

    /// Makes a file that will be at `path`, under its own name: so rules by name and by directory
    /// give it the class of the file.
    ///
    /// # Errors
    /// Those of `make`, and of making a directory.
    pub(super) fn file(
        &mut self,
        path: &Path,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let parent = path.parent().context("no file")?;
        let name = path.file_name().context("no file")?;
        let dir = parent.join(format!(".larder-new-{}", std::process::id()));
        if !self.beside.contains(&dir) {
            fs::create_dir(&dir)?;
            self.beside.insert(dir.clone());
        }
        let new = dir.join(name);
        self.files.push((new.clone(), path.to_owned()));
        make(&new)
    }

    /// Puts all files in place.
    ///
    /// # Errors
    /// Of renaming.
    pub(super) fn place(mut self) -> Result<()> {
        self.dirs.clear();
        while let Some((new, path)) = self.files.last() {
            fs::rename(new, path).with_context(|| path.display().to_string())?;
            self.files.pop();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for (new, _) in &self.files {
            let _ = fs::remove_file(new);
        }
        for dir in self.beside.iter().chain(self.dirs.iter().rev()) {
            // One that another process has put a file into stays.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Makes a file and replaces another one by it.
///
/// # Errors
/// Those of `make`, and of renaming.
pub(super) fn beside(path: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut staged = Staged::default();
    staged.file(path, make)?;
    staged.place()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_not_placed_leaves_everything_as_it_was() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let stage = || {
            let mut staged = Staged::default();
            staged.dir(&at("made/deep")).unwrap();
            for name in ["old", "new", "made/deep/new"] {
                staged.file(&at(name), |path| Ok(fs::write(path, name)?)).unwrap();
            }
            staged
        };
        fs::write(at("old"), "as it was").unwrap();
        drop(stage());
        assert_eq!(names(&at("")), ["old"]);
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "as it was");

        stage().place().unwrap();
        assert_eq!(names(&at("")), ["made", "new", "old"]);
        assert_eq!(names(&at("made/deep")), ["new"]);
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "old");
        // A directory that was there stays, and a file is not taken for one.
        let mut staged = Staged::default();
        staged.dir(&at("made/deep")).unwrap();
        assert!(staged.dir(&at("old")).is_err() && staged.dir(&at("old/below")).is_err());
        drop(staged);
        assert_eq!(names(&at("made/deep")), ["new"]);
    }
}
