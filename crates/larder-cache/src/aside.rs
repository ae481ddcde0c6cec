//! Setting aside local changes that no server will accept: their local file is kept for people to
//! inspect.
//!
//! Files that were *set aside* are in one directory and no longer belong to the cache: they are not
//! counted, culled or read again. They contain the changes, and besides them, unchecked, whatever
//! was ever held of the version below, because after a restart only the changes are known; parts
//! that were never held are holes.

use std::io;

use crate::aside_dir::{ASIDE_DIR, name_of};
use crate::conflicts::{Conflict, ConflictKind};
use crate::file::CachedFile;
use crate::pool::{data_dir, data_path};

impl CachedFile {
    /// Gives up all local changes, as [`CachedFile::discard_dirty`] does, but keeps the local file:
    /// as `set-aside/NUMBERS_PATH` in the cache directory, with characters that a name may not
    /// contain replaced in `path`. Returns where it is; `None` if there were no changes, or if the
    /// cache does not outlive the process. The bytes are durable on return, and so is the name
    /// unless the disk refuses, which is logged. That is a conflict on record, with the server's
    /// `reason`. Waits for the disk.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel writes the file; otherwise the disk's. The changes are then
    /// still there, unless the disk lost them.
    pub fn set_aside(
        &self,
        path: &str,
        kind: ConflictKind,
        reason: &str,
    ) -> io::Result<Option<String>> {
        self.set_aside_for(path, kind, reason, None)
    }

    /// The same. If there is a `wanted`, what it describes to the caller is to be made at the
    /// server of what is set aside ([`crate::Cache::besides`]): that is on record, durably, before
    /// the local file is moved.
    ///
    /// # Errors
    /// As [`CachedFile::set_aside`].
    pub fn set_aside_for(
        &self,
        path: &str,
        kind: ConflictKind,
        reason: &str,
        wanted: Option<Vec<u8>>,
    ) -> io::Result<Option<String>> {
        let _alone = self.alone();
        let mut state = self.state();
        if state.is_bypassed() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if state.dirty().is_empty() || !self.store.disk.outlives_process() {
            self.forget_locked(&mut state);
            return Ok(None);
        }
        self.move_to_disk(&mut state)?;
        let file = self.local(&state)?;
        // A write that failed may have left bytes past the end.
        file.set_len(state.size())?;
        file.sync_data()?;
        let name = name_of(self.number(), state.serial(), path);
        let (disk, to) = (&self.store.disk, format!("{ASIDE_DIR}/{name}"));
        let conflict = Conflict::aside(self.number(), to.clone(), path, kind, reason);
        if let Some(wanted) = wanted {
            self.store.intend_beside((self.number(), state.serial()), &conflict, wanted);
        }
        disk.create_dir_all(ASIDE_DIR)?;
        disk.sync_dir("")?;
        // A name that was never durable cannot be moved durably: bytes that were kept in a record
        // do without.
        disk.sync_dir(&data_dir(self.number()))?;
        disk.rename(&data_path(self.number(), state.serial()), &to)?;
        if let Err(error) = disk.sync_dir(ASIDE_DIR) {
            tracing::warn!(%error, name, "a crash of the machine may undo that this file was set aside");
        }
        self.store.put_aside((self.number(), state.serial()), conflict);
        self.forget_locked(&mut state);
        Ok(Some(to))
    }
}
