//! Bytes that are kept within their record.
//!
//! To sync a short local file and its name costs as much as to sync a long one. So short changes
//! are kept by putting their bytes into the [`KeptRecord`]: then the sync that makes the record
//! durable is the only one, and the local file needs none. Callers who keep several files at the
//! same time share it.
//!
//! The bytes are in the local file as well, which is used. In another boot they are written into it
//! before anything else happens, since it may lack them. Each checkpoint *drains* such records: it
//! syncs the local files, and puts the records again without bytes. So an index has few of them,
//! and the log forgets them with the commit that follows.

use std::io;
use std::sync::Arc;

use larder_io::DiskFile;

use crate::file::CachedFile;
use crate::kept_record::{KeptBytes, KeptRecord, kept_key, places};
use crate::pool::data_dir;
use crate::store::{SYNC_EACH_MAX, Store};
use crate::{FileNo, lock};

/// Most bytes of one record.
pub(crate) const OF_A_FILE_MAX: u64 = 64 << 10;

impl CachedFile {
    /// The record with the bytes that it is about; `None` if they are too many, or cannot be read.
    /// The caller has the file's state.
    pub(crate) fn with_bytes(&self, kept: &KeptRecord, file: &dyn DiskFile) -> Option<KeptRecord> {
        let len: u64 = kept.ranges.iter().map(|range| range.end - range.start).sum();
        let len = usize::try_from(len).ok().filter(|_| len <= OF_A_FILE_MAX)?;
        if !lock(&self.store.kept_bytes).has_room(len) {
            return None;
        }
        // First: what is written meanwhile is newer.
        let mtime_ns = file.stamp().ok()?.mtime_ns;
        let mut bytes = vec![0; len];
        for (place, offset) in places(&kept.ranges) {
            file.read_exact_at(&mut bytes[place], offset).ok()?;
        }
        let bytes = Some(KeptBytes { mtime_ns, bytes });
        Some(KeptRecord { bytes, ..kept.clone() })
    }

    /// Makes what the local file has durable.
    fn sync_local(&self) -> io::Result<()> {
        let file = {
            let state = self.state();
            if !state.local().is_there() {
                return Ok(());
            }
            self.local(&state)?
        };
        file.sync_data()?;
        self.store.sync_name_in(data_dir(self.number()))
    }

    /// The local file was synced: its record needs no bytes any more, unless it was put again.
    fn drain(&self) {
        let state = self.state();
        let (index, key) = (&self.store.index, kept_key(self.number()));
        if lock(&self.store.kept_bytes).has(self.number()) || !state.local().is_there() {
            return;
        }
        let kept = index.get(&key).as_deref().and_then(KeptRecord::decode);
        if let Some(kept) = kept.filter(|kept| kept.local.serial == state.serial()) {
            index.put(key, Some(KeptRecord { bytes: None, ..kept }.encode()));
        }
    }
}

impl Store {
    /// Syncs the local files of records with bytes, and takes the bytes out of the records. The
    /// caller holds `checkpoint`.
    pub(crate) fn drain_kept(self: &Arc<Self>) {
        let taken = lock(&self.kept_bytes).take();
        if taken.is_empty() {
            return;
        }
        let at_once = taken.len() > SYNC_EACH_MAX;
        if at_once {
            let names = std::mem::take(&mut *lock(&self.new_names));
            if let Err(error) = self.disk.sync_all() {
                tracing::warn!(%error, "the cache disk does not sync; kept bytes stay in records");
                lock(&self.new_names).extend(names);
                return self.take_up_again(&taken);
            }
        }
        for no in taken {
            let file = self.file(no);
            if !at_once && let Err(error) = file.sync_local() {
                tracing::warn!(%error, "a file does not sync; its kept bytes stay in their record");
                self.take_up_again(&[no]);
                continue;
            }
            file.drain();
        }
    }

    fn take_up_again(&self, files: &[FileNo]) {
        for no in files {
            let held = self.index.get(&kept_key(*no)).as_deref().and_then(KeptRecord::decode);
            let bytes = held.map_or(0, |kept| kept.bytes_len());
            lock(&self.kept_bytes).set(*no, bytes);
        }
    }
}
