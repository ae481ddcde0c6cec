//! Reads, writes and commits data; its room and its holes, which are the local file system's.
//!
//! The attributes that come with a read are taken *before* the bytes: if another process writes
//! between the two, the bytes are newer than the attributes say, and a cache that holds them under
//! these attributes fetches them again. The other order would let it keep old bytes as new.

use std::io::IoSliceMut;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use larder_vfs::{
    Attr, Change, Committed, CopyEnd, Cred, Error, Handle, Kind, RemoteCopied, RemoteRead,
    RemoteWritten, Result, Seek, SpaceChange, SpaceKind, Stability,
};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, seek};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite};

use super::attributes::{may_read, may_write, owns};
use super::descriptors::{OpenFile, Purpose};
use super::errors::error;
use super::export::{Export, change};

/// The most that is copied at once, in bytes: the caller waits until it is on the disk.
const COPIED_BYTES_MAX: u64 = 64 << 20;

/// Answer of [`Export::read_now`].
pub(super) enum ReadNow {
    /// Everything was in memory.
    Done(RemoteRead),
    /// The disk is needed.
    Cold(ColdRead),
}

/// The rest of a read that must wait for the disk.
pub(super) struct ColdRead {
    file: Arc<OpenFile>,
    attr: Attr,
    offset: u64,
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that were read already.
    filled: usize,
}

impl Export {
    /// Reads what is in the page cache.
    pub(super) fn read_now(
        &self,
        cred: &Cred,
        handle: &Handle,
        offset: u64,
        len: u32,
    ) -> Result<ReadNow> {
        let file = self.data(handle, Purpose::Read)?;
        if file.kind == Kind::Directory {
            return Err(Error::IsDirectory);
        }
        let attr = self.attr(&*file)?;
        let who = self.identity(cred);
        if !owns(&who, &attr) {
            let _acting = self.act_as(&who)?;
            may_read(&who, &file, &attr)?;
        }

        let there = attr.size.saturating_sub(offset).min(u64::from(len));
        let mut buffer = vec![0; there as usize];
        if buffer.is_empty() {
            return Ok(ReadNow::Done(answer(buffer, attr, offset)));
        }
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let filled = match preadv2(&*file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(filled) => filled,
            // Not in memory; or a file system that cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => 0,
            Err(other) => return Err(error(other)),
        };
        if filled == buffer.len() {
            return Ok(ReadNow::Done(answer(buffer, attr, offset)));
        }
        Ok(ReadNow::Cold(ColdRead { file, attr, offset, buffer, filled }))
    }

    pub(super) fn write(
        &self,
        cred: &Cred,
        handle: &Handle,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<RemoteWritten> {
        self.writable()?;
        let end = offset.checked_add(data.len() as u64);
        end.and_then(|end| i64::try_from(end).ok()).ok_or(Error::FileTooLarge)?;
        let file = self.data(handle, Purpose::Write)?;
        let who = self.identity(cred);

        // Taken before the write: if a sync fails after it, the two differ.
        let verifier = self.verifier();
        let change = self.change_file(handle, &file, Some(&file), |before| {
            // As the caller, so that the set-uid bit is cleared and the caller's quota is charged.
            let _acting = self.act_as(&who)?;
            may_write(&who, &file, before)?;
            write_all(&file, data, offset)
        })?;

        match stability {
            Stability::Unstable => {}
            Stability::DataSync => self.flush(&file, |file| fdatasync(file))?,
            Stability::Shared(_) | Stability::FileSync => self.flush(&file, |file| fsync(file))?,
        }
        Ok(RemoteWritten { stability, verifier, change })
    }

    pub(super) fn commit(&self, handle: &Handle) -> Result<Committed> {
        let file = self.file(handle)?;
        if file.kind != Kind::File {
            return Err(Error::InvalidArgument);
        }
        let before = self.attr(&*file)?;
        self.sync(handle)?;
        // Taken after the sync: a sync that failed for another caller has changed it by now.
        let verifier = self.verifier();
        let after = self.attr(&*file)?;
        Ok(Committed { verifier, change: change(&before, after) })
    }

    /// Makes a file or directory durable, with all its metadata.
    pub(super) fn sync(&self, handle: &Handle) -> Result<()> {
        let file = self.data(handle, Purpose::Read)?;
        self.flush(&file, |file| fsync(file))
    }

    /// After a failed sync the kernel has dropped what it could not write: the verifier changes, so
    /// that clients send again what they still hold. The kernel reports the failure once per
    /// descriptor, so no other caller may sync through this one before the verifier has changed.
    fn flush(
        &self,
        file: &OpenFile,
        sync: impl FnOnce(&OpenFile) -> Result<(), Errno>,
    ) -> Result<()> {
        self.arm().operate();
        let _alone = file.alone.lock().unwrap_or_else(PoisonError::into_inner);
        sync(file).map_err(|cause| {
            tracing::error!(%cause, export = %self.path().display(), "data may be lost");
            self.lost_data();
            error(cause)
        })
    }
}

impl Export {
    /// Durable on return. Blocks on the disk.
    pub(super) fn change_space(
        &self,
        cred: &Cred,
        handle: &Handle,
        change: &SpaceChange,
    ) -> Result<Change> {
        self.writable()?;
        change.check(i64::MAX.cast_unsigned())?;
        let file = self.data(handle, Purpose::Write)?;
        let who = self.identity(cred);
        let keep = match change.keep_size {
            true => FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::empty(),
        };
        let flags = keep
            | match change.kind {
                SpaceKind::Allocate => FallocateFlags::empty(),
                SpaceKind::Punch => FallocateFlags::PUNCH_HOLE,
                SpaceKind::Zero => FallocateFlags::ZERO_RANGE,
            };
        let (start, length) = (change.range.start, change.range.end - change.range.start);
        let changed = self.change_file(handle, &file, Some(&file), |before| {
            // As the caller, as for a write.
            let _acting = self.act_as(&who)?;
            may_write(&who, &file, before)?;
            fallocate(&*file, flags, start, length).map_err(error)
        })?;
        self.flush(&file, |file| fsync(file))?;
        Ok(changed)
    }

    /// Durable on return. Blocks on the disk.
    pub(super) fn copy_range(
        &self,
        cred: &Cred,
        from: &CopyEnd<'_>,
        to: &CopyEnd<'_>,
        len: u64,
    ) -> Result<RemoteCopied> {
        self.writable()?;
        let source = self.data(from.file, Purpose::Read)?;
        let target = self.data(to.file, Purpose::Write)?;
        if source.kind != Kind::File || target.kind != Kind::File {
            return Err(Error::InvalidArgument);
        }
        let (attr, who) = (self.attr(&*source)?, self.identity(cred));
        if !owns(&who, &attr) {
            let _acting = self.act_as(&who)?;
            may_read(&who, &source, &attr)?;
        }
        let len = from.check(to, len, attr.size, i64::MAX.cast_unsigned())?.min(COPIED_BYTES_MAX);
        let mut copied = 0;
        let change = self.change_file(to.file, &target, Some(&target), |before| {
            // As the caller, as for a write.
            let _acting = self.act_as(&who)?;
            may_write(&who, &target, before)?;
            if len > 0 {
                let (mut from, mut to) = (from.offset, to.offset);
                let len = usize::try_from(len).expect("what is copied at once is short");
                let done = copy_file_range(&*source, Some(&mut from), &*target, Some(&mut to), len);
                copied = done.map_err(not_copied)? as u64;
            }
            Ok(())
        })?;
        self.flush(&target, |file| fsync(file))?;
        Ok(RemoteCopied { len: copied, change })
    }

    pub(super) fn seek(
        &self,
        cred: &Cred,
        handle: &Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        let file = self.data(handle, Purpose::Read)?;
        if file.kind != Kind::File {
            return Err(Error::InvalidArgument);
        }
        let attr = self.attr(&*file)?;
        let who = self.identity(cred);
        if !owns(&who, &attr) {
            let _acting = self.act_as(&who)?;
            may_read(&who, &file, &attr)?;
        }
        if i64::try_from(offset).is_err() {
            return Err(Error::NoData);
        }
        // No read depends on the descriptor's position.
        let found = match what {
            Seek::Data => seek(&*file, SeekFrom::Data(offset)),
            Seek::Hole => seek(&*file, SeekFrom::Hole(offset)),
        };
        found.map_err(|errno| if errno == Errno::NXIO { Error::NoData } else { error(errno) })
    }
}

impl ColdRead {
    /// Reads the rest. Blocks on the disk.
    pub(super) fn finish(mut self) -> Result<RemoteRead> {
        while self.filled < self.buffer.len() {
            let at = self.offset + self.filled as u64;
            match pread(&*self.file, &mut self.buffer[self.filled..], at) {
                Ok(0) => break,
                Ok(count) => self.filled += count,
                Err(Errno::INTR) => {}
                Err(other) => return Err(error(other)),
            }
        }
        // If another process truncated the file in the meantime, it ends where the bytes end.
        let cut = self.filled < self.buffer.len();
        self.buffer.truncate(self.filled);
        let mut read = answer(self.buffer, self.attr, self.offset);
        read.eof |= cut;
        Ok(read)
    }
}

/// The kernel cannot copy between these files, because of their file systems.
fn not_copied(errno: Errno) -> Error {
    match errno {
        Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS => Error::NotSupported,
        other => error(other),
    }
}

fn answer(buffer: Vec<u8>, attr: Attr, offset: u64) -> RemoteRead {
    let eof = offset.saturating_add(buffer.len() as u64) >= attr.size;
    RemoteRead { data: Bytes::from(buffer), eof, attr: Some(attr) }
}

fn write_all(file: &OpenFile, mut data: &[u8], mut offset: u64) -> Result<()> {
    while !data.is_empty() {
        match pwrite(file, data, offset) {
            // It does not happen for regular files, but must not become an endless loop.
            Ok(0) => return Err(Error::Io),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(other) => return Err(error(other)),
        }
    }
    Ok(())
}
