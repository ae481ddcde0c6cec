//! A local file of an older version that the kernel still uses.
//!
//! The kernel is given one local file of an inode at a time. Processes that read by passthrough see
//! that file, and so do processes that map it, however they have opened it, until no process has
//! the file open any more (`fuse_file_mmap` and `fuse_file_io_open` in `fs/fuse` of 6.18). A newer
//! version has another local file. So the older one is updated: each change that is made here is
//! applied to both, and, once no process reads it by passthrough any more, what other clients have
//! closed is copied to it when the file is opened for reading.
//!
//! While a process reads it by passthrough it stays at its version, because that process may be in
//! the middle of the file; so it does if the file is being executed, or long. A mapping that is
//! made during that time shows the older version.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use larder_cache::{BackingFile, CachedFile};
use larder_vfs::{Cred, Error, Result};

use crate::core::{Core, blocking};
use crate::journal::Version;
use crate::node::Node;

/// Longer files are not copied: each open would have to wait for all of the file.
const FOLLOWED_BYTES_MAX: u64 = 64 << 20;

/// How often the copy is begun, if the file changes each time before it ends.
const TRIES_MAX: u32 = 4;

/// An older local file, and the version that it is to show.
struct Older {
    local: Arc<BackingFile>,
    version: Version,
    size: u64,
}

impl Core {
    /// A local file of an older version, which the kernel still shows. `None` if there is none.
    fn older_local_file(&self, node: &Node, file: &CachedFile) -> Option<Arc<BackingFile>> {
        let state = node.state();
        let backing = state.opens().backing_unwritten()?;
        (!file.is_backed_by(backing)).then(|| backing.clone())
    }

    /// Processes that are shown an older local file see what is written here. Best effort: the
    /// change itself is stored elsewhere.
    pub(crate) fn write_older(&self, node: &Node, file: &CachedFile, at: u64, data: &[u8]) {
        self.change_older(node, file, |older| older.write_at(data, at));
    }

    /// The same when the file is cut or extended.
    pub(crate) fn cut_older(&self, node: &Node, file: &CachedFile, size: u64) {
        self.change_older(node, file, |older| older.set_len(size));
    }

    /// The same when a range is zeroed.
    pub(crate) fn zero_older(&self, node: &Node, file: &CachedFile, range: Range<u64>) {
        self.change_older(node, file, |older| older.punch_hole(range));
    }

    fn change_older(
        &self,
        node: &Node,
        file: &CachedFile,
        change: impl FnOnce(&BackingFile) -> io::Result<()>,
    ) {
        if let Some(older) = self.older_local_file(node, file)
            && let Err(error) = change(&older)
        {
            tracing::warn!(ino = node.ino.0, %error, "open files may not see a change");
        }
    }

    /// Copies the present version to an older local file, for a caller that opens the file to read
    /// it and may map it. Waits for the server if the version is not cached. If that fails, a
    /// mapping shows the older version.
    pub(crate) async fn update_older(self: &Arc<Self>, node: &Arc<Node>, cred: &Cred) {
        if self.is_older_free(node).await {
            self.follow_older(node, cred).await;
        }
    }

    /// The same even while a process reads it by passthrough: for a caller that has locked the
    /// file, and thereby decides when it may change under its readers.
    pub(crate) async fn follow_older(self: &Arc<Self>, node: &Arc<Node>, cred: &Cred) {
        for _ in 0..TRIES_MAX {
            let Some(older) = self.older_to_update(node).await else { return };
            if let Err(error) = self.copy_to_older(node, cred, &older).await {
                tracing::warn!(ino = node.ino.0, %error, "a mapping may show an older version");
                return;
            }
            let mut state = node.state();
            if state.version().same(&older.version) && state.attr().size == older.size {
                state.opens_mut().set_backing_shows(older.version);
                return;
            }
        }
    }

    /// Whether there is an older local file that the kernel still uses, but no process reads by
    /// passthrough.
    async fn is_older_free(&self, node: &Node) -> bool {
        let (shows_older, is_read) = {
            let state = node.state();
            let shows = state.opens().backing_unwritten().and(state.opens().backing_shows());
            let shows_older =
                state.opens().backing_unwritten().is_some() && shows != Some(state.version());
            (shows_older, state.opens().is_read_by_kernel())
        };
        if shows_older && is_read {
            // They may have closed it, and their releases not have arrived yet.
            self.await_release(node).await;
        }
        shows_older && !node.state().opens().is_read_by_kernel()
    }

    async fn older_to_update(self: &Arc<Self>, node: &Arc<Node>) -> Option<Older> {
        {
            let state = node.state();
            state.opens().backing_unwritten()?;
            if state.opens().backing_shows() == Some(state.version()) {
                return None;
            }
        }
        if self.is_executed(node) {
            return None;
        }
        let (core, prepared) = (self.clone(), node.clone());
        let find = move || {
            let file = core.file(&prepared);
            core.prepare(&prepared, &file);
            core.older_local_file(&prepared, &file)
        };
        let local = blocking(find).await.ok()??;
        let state = node.state();
        let (version, size) = (state.version(), state.attr().size);
        (size <= FOLLOWED_BYTES_MAX).then_some(Older { local, version, size })
    }

    async fn copy_to_older(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        older: &Older,
    ) -> Result<()> {
        let step = self.request_bytes_max();
        let mut at = 0;
        while at < older.size {
            let bytes = self.read_range(node, cred, at, step).await?;
            if bytes.is_empty() {
                break;
            }
            let (local, offset) = (older.local.clone(), at);
            at += bytes.len() as u64;
            let write = move || local.write_at(&bytes, offset);
            blocking(write).await?.map_err(|_| Error::Io)?;
        }
        let (local, file, size) = (older.local.clone(), self.file(node), older.size);
        let finish = move || {
            local.set_len(size)?;
            // Written since it was read.
            local.take_dirty(&file)
        };
        blocking(finish).await?.map_err(|_| Error::Io)
    }
}
