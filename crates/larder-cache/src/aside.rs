//! Local changes that no server takes any more, kept for people: their local file is *set aside*.
//!
//! Files that were set aside lie in one directory and belong to nobody here: they are not counted, culled or read
//! again. Their bytes are the changes, and beside them what was ever held of the version below, unchecked, for only the
//! changes are known after a restart; what was never held is a hole.

use std::io;

use crate::FileNo;
use crate::file::CachedFile;
use crate::pool::data_path;
use crate::store::Store;

/// Where they lie in the cache directory.
const ASIDE_DIR: &str = "set-aside";
/// As much of a path goes into a file's name: names on Linux have at most 255 bytes.
const PATH_BYTES_MAX: usize = 200;

impl CachedFile {
    /// Gives up all local changes, as [`CachedFile::discard_dirty`] does, but keeps the local file: as
    /// `set-aside/NUMBERS_PATH` in the cache directory, with what no name may have replaced in `path`. Answers where;
    /// or `None` if there were no changes, or if the cache goes with the process, and they with it. The bytes are
    /// durable on return, and so is the name unless the disk refuses, which is logged. Waits for the disk.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel writes the file; else what the disk says. The changes are then still there, unless it lost
    /// them.
    pub fn set_aside(&self, path: &str) -> io::Result<Option<String>> {
        let _alone = self.alone();
        let mut state = self.state();
        if state.bypasses > 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if state.dirty.is_empty() || !self.store.disk.outlives_process() {
            self.forget_locked(&mut state);
            return Ok(None);
        }
        let file = self.local(&state)?;
        // A write that failed may have left bytes past the end.
        file.set_len(state.size)?;
        file.sync_data()?;
        let name = name_of(&numbers_of(self.number(), state.serial), path);
        let (disk, to) = (&self.store.disk, format!("{ASIDE_DIR}/{name}"));
        disk.create_dir_all(ASIDE_DIR)?;
        disk.sync_dir("")?;
        disk.rename(&data_path(self.number(), state.serial), &to)?;
        if let Err(error) = disk.sync_dir(ASIDE_DIR) {
            tracing::warn!(%error, name, "a crash of the machine may undo that this file was set aside");
        }
        self.forget_locked(&mut state);
        Ok(Some(to))
    }
}

impl Store {
    /// How many files were set aside, and not removed since.
    pub(crate) fn aside_count(&self) -> u64 {
        // Mostly there is no such directory.
        self.disk.list(ASIDE_DIR).map_or(0, |names| names.len() as u64)
    }

    /// Whether a local file was set aside.
    pub(crate) fn is_aside(&self, no: FileNo, serial: u64) -> bool {
        let start = name_of(&numbers_of(no, serial), "");
        let names = self.disk.list(ASIDE_DIR).unwrap_or_default();
        names.iter().any(|name| name.starts_with(&start))
    }
}

fn numbers_of(no: FileNo, serial: u64) -> String {
    format!("{:x}.{serial:x}", no.0)
}

/// The name of a file that is set aside: `numbers` make it unique, the end of `path` tells people what it was.
fn name_of(numbers: &str, path: &str) -> String {
    let is_odd = |c: char| c == '/' || c.is_control();
    let mut path: String = path.chars().map(|c| if is_odd(c) { '_' } else { c }).collect();
    while path.len() > PATH_BYTES_MAX {
        path.remove(0);
    }
    format!("{numbers}_{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_path_and_are_names() {
        assert_eq!(name_of("7f.1", "dir/a file.odt"), "7f.1_dir_a file.odt");
        assert_eq!(name_of("7f.1", "line\nfeed\0"), "7f.1_line_feed_");
        assert_eq!(name_of("7f.1", ""), "7f.1_");
        let long = name_of("ffffffffffffffff.ffffffffffffffff", &"ä/".repeat(300));
        assert!(long.len() <= 255 && long.ends_with("_ä_"), "{long}");
    }
}
