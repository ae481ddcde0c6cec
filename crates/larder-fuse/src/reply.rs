//! Answers of the file system as replies to the kernel.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuser::{
    BackingId, Errno, FileHandle, FopenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs,
};
use larder_vfs::{DataPath, Entry, Fresh, Ino, Lookup, OpenFlags, Opened, Result, StatFs};

use crate::convert;
use crate::errno::errno;
use crate::passthrough::{Way, Ways};

/// Chooses the way of an open's data, on whatever thread the answer comes.
pub(crate) struct Chooser {
    /// `None` where passthrough does not work: then all modes go together.
    ways: Option<Arc<Ways>>,
    flags: FopenFlags,
}

impl Chooser {
    pub(crate) fn new(ways: Option<Arc<Ways>>, open: OpenFlags) -> Chooser {
        // What was not written needs no flush: the kernel then closes without a message.
        let flags = if open.write { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
        Chooser { ways, flags }
    }

    /// The flags to answer with, and the backing file to name.
    fn choose(
        &self,
        ino: Ino,
        opened: &Opened,
        register: impl FnOnce(BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> (FopenFlags, Option<Arc<BackingId>>) {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        let way = match (&self.ways, &opened.path) {
            (Some(ways), wanted) => ways.choose(ino, opened.id, wanted, register),
            (None, DataPath::Cached { keep }) => Way::Cached { keep: *keep },
            (None, DataPath::Direct | DataPath::Passthrough(_)) => Way::Direct,
        };
        match way {
            Way::Cached { keep: true } => (self.flags | FopenFlags::FOPEN_KEEP_CACHE, None),
            Way::Cached { keep: false } => (self.flags, None),
            Way::Direct => (self.flags | direct, None),
            Way::Backed(id) => (self.flags, Some(id)),
            Way::DirectBeside(id) => (self.flags | direct, Some(id)),
        }
    }
}

pub(crate) fn send_empty<T>(reply: ReplyEmpty, result: Result<T>) {
    match result {
        Ok(_) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_entry(reply: ReplyEntry, result: Result<Entry>) {
    match result {
        Ok(Entry { ino, fresh, ttl }) => {
            let attr = convert::file_attr(ino, &fresh.attr);
            reply.entry_with_ttls(&fresh.ttl, &ttl, &attr, convert::GENERATION);
        }
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_lookup(reply: ReplyEntry, result: Result<Lookup>) {
    match result {
        Ok(Lookup::Found(entry)) => send_entry(reply, Ok(entry)),
        Ok(Lookup::Absent { ttl }) if ttl.is_zero() => reply.error(Errno::ENOENT),
        // Node id 0 stands for "no such name", to be believed for the time that comes with it.
        Ok(Lookup::Absent { ttl }) => {
            let nobody = convert::blank_attr(0);
            reply.entry_with_ttls(&ttl, &ttl, &nobody, convert::GENERATION);
        }
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_attr(reply: ReplyAttr, ino: Ino, result: Result<Fresh>) {
    match result {
        Ok(fresh) => reply.attr(&fresh.ttl, &convert::file_attr(ino, &fresh.attr)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_statfs(reply: ReplyStatfs, result: Result<StatFs>) {
    match result {
        Ok(stat) => {
            let blocks = |bytes: u64| bytes / u64::from(convert::BLOCK_BYTES);
            reply.statfs(
                blocks(stat.bytes),
                blocks(stat.bytes_free),
                blocks(stat.bytes_available),
                stat.files,
                stat.files_free,
                convert::BLOCK_BYTES,
                stat.name_max,
                convert::BLOCK_BYTES,
            );
        }
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_opened(chooser: &Chooser, ino: Ino, reply: ReplyOpen, result: Result<Opened>) {
    match result {
        Ok(opened) => {
            let open = FileHandle(opened.id.0);
            match chooser.choose(ino, &opened, |file| reply.open_backing(file)) {
                (flags, None) => reply.opened(open, flags),
                (flags, Some(id)) => reply.opened_passthrough(open, flags, &id),
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn send_created(chooser: &Chooser, reply: ReplyCreate, result: Result<(Entry, Opened)>) {
    match result {
        Ok((entry, opened)) => {
            let attr = convert::file_attr(entry.ino, &entry.fresh.attr);
            let ttl = entry.ttl.min(entry.fresh.ttl);
            let (open, generation) = (FileHandle(opened.id.0), convert::GENERATION);
            match chooser.choose(entry.ino, &opened, |file| reply.open_backing(file)) {
                (flags, None) => reply.created(&ttl, &attr, generation, open, flags),
                (flags, Some(id)) => {
                    reply.created_passthrough(&ttl, &attr, generation, open, flags, &id);
                }
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}
