//! Copies within the server (copy_file_range(2)), where that costs less than reading and writing.
//!
//! What is unsent of the target is sent first, so that the copy overwrites it. What is cached of
//! the target is updated, as after a truncation: it gets the bytes of the source that are cached
//! here, or forgets the range. A local file that the kernel has must have no missing ranges, so for
//! that the bytes are fetched, if they are not cached; even then they are not sent.
//!
//! Cached bytes of the source are those that the server has copied if the source is in the same
//! version before and after. Under a lease this takes no request.

use std::ops::Range;
use std::sync::Arc;

use larder_class::Level;
use larder_vfs::{CopyEnd, Cred, Error, OpenOffset, RemoteCopied, Result};

use crate::core::{Core, blocking};
use crate::journal::Version;
use crate::limits::Transferring;
use crate::names::on_handle;
use crate::node::Node;
use crate::open::OpenFile;

/// Shorter ranges are read and written by the kernel: opens of both files at the server, the copy
/// and its flush are more round trips than a READ and a WRITE.
const COPIED_BYTES_MIN: u64 = 256 << 10;

/// Most bytes that are copied at once into a local file that the kernel has: its bytes must be
/// fetched, and the caller waits.
const SHOWN_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are in memory at once while they are copied to a local file.
const PIECE_BYTES: u64 = 1 << 20;

/// A copy that the server is asked for.
struct Copy {
    source: Arc<Node>,
    target: Arc<Node>,
    from: u64,
    to: u64,
    /// On whose behalf.
    cred: Cred,
}

/// What is known of a source before it is copied.
struct Source {
    version: Version,
    /// What is cached of it belongs to this version, and the server would notify us of another
    /// one.
    is_vouched_for: bool,
}

impl Core {
    /// See [`larder_vfs::FileSystem::copy_range`].
    pub(crate) async fn copy_range(
        self: &Arc<Self>,
        from: OpenOffset,
        to: OpenOffset,
        len: u64,
    ) -> Result<u64> {
        self.refuse_read_only()?;
        self.refuse_lost(from.ino, Some(from.open))?;
        self.refuse_lost(to.ino, Some(to.open))?;
        let (reader, writer) = (self.open_file(from.open)?, self.open_file(to.open)?);
        let deadline = self.deadline();
        let (source, target) = (self.node(from.ino)?, self.node(to.ino)?);
        let cred = writer.cred.until(deadline);
        let copy = Copy { source, target, from: from.offset, to: to.offset, cred };
        let there = copy.source.state().attr().size.saturating_sub(copy.from);
        if there == 0 {
            return Ok(0);
        }
        if !self.copies_at_server(&copy, &reader, &writer, len.min(there)) {
            return Err(Error::NotSupported);
        }
        self.copy_at_server(copy, len).await
    }

    /// Whether to ask the server. If not, the kernel reads and writes: what is unsent of the source
    /// is cached here, and what the target's class keeps from the server stays here.
    fn copies_at_server(
        &self,
        copy: &Copy,
        reader: &OpenFile,
        writer: &OpenFile,
        len: u64,
    ) -> bool {
        // The server learns of one caller only, and checks the rights on both files for it.
        let ids = |cred: &Cred| (cred.uid, cred.gid, cred.groups.clone());
        len >= COPIED_BYTES_MIN
            && self.remote.reachable()
            && ids(&reader.cred) == ids(&writer.cred)
            && writer.class().promised.close > Some(Level::Local)
            && !self.has_unsent_source(copy)
    }

    /// Whether the source has bytes that the server lacks, and that are not sent with the target's.
    fn has_unsent_source(&self, copy: &Copy) -> bool {
        copy.source.ino != copy.target.ino
            && (self.has_unsent(&copy.source) || !self.file(&copy.source).dirty().is_empty())
    }

    async fn copy_at_server(self: &Arc<Self>, mut copy: Copy, len: u64) -> Result<u64> {
        let node = &copy.target.clone();
        let transfer = node.transfer.begin(copy.cred.deadline).await?;
        // Otherwise a local file would be read again for each piece of a long copy, to compare it.
        let unsent = self.file(node).unsent();
        if unsent.is_bound || unsent.bytes > 0 {
            self.upload_locked(node, &transfer, copy.cred.deadline).await?;
        }
        self.forget_kept(node).await?;
        // A server that grants leases does not report the attributes from before a copy.
        self.lease_before_change(node, &copy.cred).await;
        copy.cred = copy.cred.until(transfer.extend(copy.cred.deadline));
        let shows = node.state().opens().has_local_file();
        let len = if shows { len.min(SHOWN_BYTES_MAX) } else { len };
        let source = self.source_of(&copy);
        self.begin_change(node);
        let answer = self.ask_to_copy(&copy, len).await;
        let followed = match &answer {
            Ok(copied) => {
                transfer.progress();
                self.follow_copy(&copy, &transfer, source, copied.len).await
            }
            Err(_) => Ok(()),
        };
        if let Ok(copied) = &answer {
            node.state().wrote(copy.to + copied.len);
        }
        let told = answer.as_ref().ok().filter(|_| followed.is_ok());
        self.end_change(node, told.map(|copied| copied.change));
        if answer.as_ref().is_err_and(|error| *error != Error::NotSupported) || followed.is_err() {
            self.lose_track(node);
        }
        let copied = answer?;
        // What the cache has no room for is read from the server; but a local file that the kernel
        // has would then show other bytes.
        followed.or_else(|error| if shows { Err(error) } else { Ok(()) })?;
        Ok(copied.len)
    }

    async fn ask_to_copy(&self, copy: &Copy, len: u64) -> Result<RemoteCopied> {
        let Copy { source, target, from, to, cred } = copy;
        let reads = self.open_files.token(source.ino, false);
        let writes = self.open_files.token(target.ino, true);
        on_handle!(self, cred, source, source_handle => async {
            on_handle!(self, cred, target, target_handle => {
                let from =
                    CopyEnd { file: &source_handle, open: reads.as_ref(), offset: *from };
                let to = CopyEnd { file: &target_handle, open: writes.as_ref(), offset: *to };
                self.remote.copy_range(cred, from, to, len)
            })
        })
    }

    /// A part of the range may have been copied: what is cached is not trusted.
    fn lose_track(&self, node: &Node) {
        {
            let mut state = node.state();
            state.distrust();
            state.doubt_what_is_held();
        }
        // What is being written here stays, and is dropped once it is sent.
        if !self.start_over(node) {
            node.state().unsent_mut().mix();
        }
    }

    fn source_of(&self, copy: &Copy) -> Source {
        let state = copy.source.state();
        Source { version: state.version(), is_vouched_for: state.is_vouched_for() }
    }

    /// Updates what is cached of the target, and what the kernel shows of it, after the server has
    /// copied `len` bytes.
    async fn follow_copy(
        self: &Arc<Self>,
        copy: &Copy,
        transfer: &Transferring<'_>,
        source: Source,
        len: u64,
    ) -> Result<()> {
        let node = &copy.target;
        let size = node.state().attr().size;
        if copy.to + len > size && len > 0 {
            self.truncate_held(node, copy.to + len).await?;
        }
        let (is_held, shows) = {
            let (state, file) = (node.state(), self.file(node));
            let is_present = file.version() == Some(state.version().bytes());
            (is_present || state.opens().bypassing(), state.opens().has_local_file())
        };
        let range = copy.to..copy.to + len;
        if (!is_held && !shows) || len == 0 {
            return Ok(());
        }
        let is_source_here = self.is_source_here(copy, &source, len).await;
        for start in range.clone().step_by(PIECE_BYTES as usize) {
            let piece = start..range.end.min(start + PIECE_BYTES);
            let bytes = match is_source_here {
                true => self.held_of_source(copy, &source, &piece).await?,
                false => None,
            };
            let bytes = match bytes {
                None if shows => Some(self.fetch_copied(copy, transfer, &piece).await?),
                bytes => bytes,
            };
            self.take_copied(node, piece, bytes, is_held).await?;
        }
        if is_held {
            let mut state = node.state();
            let end = state.opens().local_end();
            state.opens_mut().set_collected(end);
        }
        Ok(())
    }

    /// Whether all that was copied is cached here, as the server copied it.
    async fn is_source_here(&self, copy: &Copy, source: &Source, len: u64) -> bool {
        let (node, file) = (&copy.source, self.file(&copy.source));
        let range = copy.from..copy.from + len;
        let is_held = file.version() == Some(source.version.bytes()) && file.holds(range.clone());
        let is_doubtful = node.state().known().doubtful;
        if !is_held || is_doubtful {
            return false;
        }
        if node.ino == copy.target.ino {
            // The replies show whether this was the only change.
            return true;
        }
        let is_told = source.is_vouched_for && node.state().is_vouched_for();
        if !is_told && self.ask_attributes(node, &copy.cred).await.is_err() {
            return false;
        }
        let state = node.state();
        state.version().same(&source.version)
            && !state.changing()
            && (is_told || self.remote.reachable())
    }

    /// Bytes of the source for a piece of the target, if they are cached.
    async fn held_of_source(
        &self,
        copy: &Copy,
        source: &Source,
        piece: &Range<u64>,
    ) -> Result<Option<Vec<u8>>> {
        let (file, version) = (self.file(&copy.source), source.version.bytes());
        let offset = copy.from + (piece.start - copy.to);
        let mut bytes = vec![0; piece_len(piece)];
        let read = move || {
            let is_read = file.read(offset, &mut bytes).is_ok();
            (is_read && file.version() == Some(version)).then_some(bytes)
        };
        blocking(read).await
    }

    /// Bytes that the server has copied, from the server.
    async fn fetch_copied(
        &self,
        copy: &Copy,
        transfer: &Transferring<'_>,
        piece: &Range<u64>,
    ) -> Result<Vec<u8>> {
        let node = &copy.target;
        let mut bytes = Vec::with_capacity(piece_len(piece));
        while bytes.len() < piece_len(piece) {
            let (at, missing) = (piece.start + bytes.len() as u64, piece_len(piece) - bytes.len());
            let len = u32::try_from(missing).expect("a piece is short");
            let cred = &copy.cred.until(transfer.extend(copy.cred.deadline));
            let open = self.open_files.token(node.ino, false);
            let read = on_handle!(self, cred, node, handle =>
                self.remote.read(cred, &handle, open.as_ref(), at, len))?;
            transfer.progress();
            if read.data.is_empty() {
                // Another client has truncated the file: the reply to the copy will show that.
                bytes.resize(piece_len(piece), 0);
            }
            bytes.extend_from_slice(&read.data);
        }
        Ok(bytes)
    }

    /// Stores copied bytes where the kernel and the cache find them, or forgets what was there.
    async fn take_copied(
        &self,
        node: &Arc<Node>,
        piece: Range<u64>,
        bytes: Option<Vec<u8>>,
        is_held: bool,
    ) -> Result<()> {
        let file = self.file(node);
        if let Some(bytes) = &bytes {
            self.write_older(node, &file, piece.start, bytes);
        }
        if !is_held {
            return Ok(());
        }
        let taken = blocking(move || match bytes {
            Some(bytes) => file.take_copied(piece.start, &bytes),
            None => file.forget_range(piece),
        });
        taken.await?.map_err(|larder_cache::NoSpace| Error::NoSpace)
    }
}

fn piece_len(piece: &Range<u64>) -> usize {
    usize::try_from(piece.end - piece.start).expect("a piece is short")
}
