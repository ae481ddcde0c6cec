//! Local files in memory: how they move to the disk, and how files that no record names are
//! removed. [`crate::memory`] has the invariants.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_io::DiskFile;

use crate::file::CachedFile;
use crate::local::with_local_changes;
use crate::local_record::LocalRecord;
use crate::lock;
use crate::memory::is_in_memory;
use crate::pool::parse_data_name;
use crate::records::{key, tag};
use crate::state::State;
use crate::store::Store;

/// Copied at once.
const PIECE_BYTES: u64 = 1 << 20;

impl Store {
    /// Removes local files from memory that contain no local change: of another boot, or of
    /// processes that died between two steps.
    pub(crate) fn sweep_memory(&self) {
        let Some(disk) = self.memory.disk() else { return };
        for dir in disk.list("data").unwrap_or_default() {
            for name in disk.list(&format!("data/{dir}")).unwrap_or_default() {
                let Some((no, serial)) = parse_data_name(&name) else { continue };
                let record = self.index.get(&key(tag::LOCAL, no, &[]));
                let record = record.as_deref().and_then(LocalRecord::decode);
                if record.is_none_or(|record| record.serial != serial) {
                    // If it stays it takes memory until the machine ends.
                    let _ = disk.remove(&format!("data/{dir}/{name}"));
                }
            }
        }
    }

    /// At the end: moves what no server has to the disk, and forgets all else.
    pub(crate) fn empty_memory(self: &Arc<Self>) {
        if self.memory.disk().is_none() {
            return;
        }
        // What an earlier process left may not have been loaded yet.
        let carried = with_local_changes(&self.index).into_iter().map(|no| self.file(no));
        let files = carried.chain(lock(&self.unsaved).values().cloned().collect::<Vec<_>>());
        for file in files.collect::<Vec<_>>() {
            let mut state = file.state();
            if state.is_clean() && is_in_memory(state.serial()) {
                file.drop_content(&mut state);
            } else if let Err(error) = file.move_to_disk(&mut state) {
                tracing::error!(file = file.number().0, %error,
                    "unsent data stays in memory and is lost with it");
            }
        }
    }
}

impl CachedFile {
    /// Whether the next local file is to lie in memory, if there is room.
    pub fn prefer_memory(&self, prefers: bool) {
        self.prefers_memory.store(prefers, Ordering::Relaxed);
    }

    /// Whether the local file is in memory.
    pub fn is_in_memory(&self) -> bool {
        is_in_memory(self.state().serial())
    }

    /// Moves the local file to the disk, if it is in memory. That alone does not make it survive
    /// the boot.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel has it; the disk's. Then it stays where it is.
    pub(crate) fn leave_memory(&self) -> io::Result<()> {
        let _alone = self.alone();
        let mut state = self.state();
        if is_in_memory(state.serial()) && (state.is_bypassed() || state.local().is_handed_out()) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.move_to_disk(&mut state)
    }

    /// The same, while the caller keeps all writers out.
    pub(crate) fn move_to_disk(&self, state: &mut State) -> io::Result<()> {
        let before = state.serial();
        if !is_in_memory(before) {
            return Ok(());
        }
        let from = self.local(state)?;
        let serial = self.store.index.next_number();
        let moved = self.create_file(serial, 0).and_then(|to| copy(&*from, &*to));
        if let Err(error) = moved {
            self.store.remove_from_disk(self.number(), serial);
            self.store.note_error(&error);
            return Err(error);
        }
        state.move_local(serial);
        self.note(state);
        // Not before the record says where the file is now.
        self.store.remove_from_disk(self.number(), before);
        Ok(())
    }

    /// Ensures that a write of `more` bytes does not exceed the limit of memory.
    pub(crate) fn leave_full_memory(&self, state: &mut State, more: u64) {
        let stays = !is_in_memory(state.serial()) || self.store.memory.has_room(more);
        if !stays
            && !state.local().is_handed_out()
            && let Err(error) = self.move_to_disk(state)
        {
            tracing::debug!(file = self.number().0, %error, "it stays in memory, which is full");
        }
    }
}

/// Copies the data of a local file, and leaves holes as holes.
fn copy(from: &dyn DiskFile, to: &dyn DiskFile) -> io::Result<()> {
    let len = from.len()?;
    to.set_len(len)?;
    let mut buffer = vec![0; usize::try_from(PIECE_BYTES).expect("a piece is short")];
    for range in from.data_ranges(0..len)? {
        let mut at = range.start;
        while at < range.end {
            let count = PIECE_BYTES.min(range.end - at);
            let piece = &mut buffer[..usize::try_from(count).expect("a piece is short")];
            from.read_exact_at(piece, at)?;
            to.write_at(piece, at)?;
            at += count;
        }
    }
    Ok(())
}
