//! Local changes that no server takes any more, kept for people: their local file is *set aside*.
//!
//! Files that were set aside lie in one directory and belong to nobody here: they are not counted,
//! culled or read again. Their bytes are the changes, and beside them what was ever held of the
//! version below, unchecked, for only the changes are known after a restart; what was never held is
//! a hole.

use std::io;

use crate::aside_dir::{ASIDE_DIR, name_of};
use crate::file::CachedFile;
use crate::pool::data_path;

impl CachedFile {
    /// Gives up all local changes, as [`CachedFile::discard_dirty`] does, but keeps the local file:
    /// as `set-aside/NUMBERS_PATH` in the cache directory, with what no name may have replaced
    /// in `path`. Answers where; or `None` if there were no changes, or if the cache goes with
    /// the process, and they with it. The bytes are durable on return, and so is the name
    /// unless the disk refuses, which is logged. Waits for the disk.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel writes the file; else what the disk says. The changes are
    /// then still there, unless it lost them.
    pub fn set_aside(&self, path: &str) -> io::Result<Option<String>> {
        let _alone = self.alone();
        let mut state = self.state();
        if state.is_bypassed() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if state.dirty().is_empty() || !self.store.disk.outlives_process() {
            self.forget_locked(&mut state);
            return Ok(None);
        }
        let file = self.local(&state)?;
        // A write that failed may have left bytes past the end.
        file.set_len(state.size())?;
        file.sync_data()?;
        let name = name_of(self.number(), state.serial(), path);
        let (disk, to) = (&self.store.disk, format!("{ASIDE_DIR}/{name}"));
        disk.create_dir_all(ASIDE_DIR)?;
        disk.sync_dir("")?;
        disk.rename(&data_path(self.number(), state.serial()), &to)?;
        if let Err(error) = disk.sync_dir(ASIDE_DIR) {
            tracing::warn!(%error, name, "a crash of the machine may undo that this file was set aside");
        }
        self.forget_locked(&mut state);
        Ok(Some(to))
    }
}
