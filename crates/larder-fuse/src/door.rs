//! Each request of the kernel as a call of the file system.
//!
//! What was agreed with the kernel at INIT, and why:
//! - `DO_READDIRPLUS` without `READDIRPLUS_AUTO`: the adaptive mode stops asking for attributes after the
//!   first part of a listing, which costs `ls -l` one lookup for each further name.
//! - `ATOMIC_O_TRUNC`: `O_TRUNC` comes with the open, not as a setattr after it.
//! - No `AUTO_INVAL_DATA`: the kernel would drop all pages when the modification time moved, also by
//!   our own writes, and ask for attributes before reads. No `EXPLICIT_INVAL_DATA` either: then a
//!   file that grew on the server would show zeros from the tail of its last page until our
//!   invalidation arrives. So the kernel drops pages when the size changed, the file system says
//!   when they are to be dropped otherwise (`DataPath::Cached`, `Kernel::invalidate`).
//! - No `WRITEBACK_CACHE`: it excludes passthrough, and hides writes from the file system.
//! - No `HANDLE_KILLPRIV`: who writes to a set-uid file past the file system (passthrough) must clear
//!   the bit, and that is the kernel, by a setattr. It costs nothing on other files. Direct writes
//!   it leaves to the file system, which sees them, and their writer.
//! - No `EXPORT_SUPPORT`: the file system has no lookup of `.`. Use larder's own NFS server.
//! - No `DONT_MASK`: the kernel has applied the umask to the mode that we get.
//! - No `POSIX_LOCKS`, `FLOCK_LOCKS`: the kernel keeps locks, for this machine.
//! - `FOPEN_CACHE_DIR` is not used: opendir has no answer that says whether a kept listing is right.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use larder_vfs::{
    Answer, Cred, FileSystem, Ino, Kernel, Kind, New, OpenFlags, OpenId, Removal, Result, SetAttr,
};
use tokio::runtime::Handle;

use crate::convert;
use crate::errno::errno;
use crate::groups::Groups;
use crate::listing::{self, Listings};
use crate::notify::Invalidations;
use crate::passthrough::Ways;
use crate::reply::{
    Chooser, send_attr, send_created, send_empty, send_entry, send_lookup, send_opened, send_statfs,
};

/// Requests without a waiting process (readahead) that the kernel has under way at most, and from
/// how many on it calls us congested. Enough for a window of 1 MiB requests on a long fat link.
const BACKGROUND_MAX: u16 = 128;
const CONGESTED_FROM: u16 = 96;

/// What the kernel must be able to do.
const NEEDED: [InitFlags; 3] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
];

/// What is used where the kernel can do it.
const WANTED: [InitFlags; 3] = [
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// What fuser calls for each request.
pub(crate) struct Door {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) runtime: Handle,
    pub(crate) groups: Groups,
    pub(crate) kernel: Arc<Invalidations>,
    pub(crate) ways: Arc<Ways>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) io_bytes_max: u32,
    /// How deep file systems may be stacked; 0: no passthrough.
    pub(crate) stack_depth: u32,
}

impl Door {
    fn cred(&self, request: &Request) -> Cred {
        self.groups.cred(request.pid(), request.uid(), request.gid())
    }

    /// Sends what is there, or has the runtime send it later.
    fn answer<T: 'static, R: Send + 'static>(
        &self,
        answer: Answer<T>,
        reply: R,
        send: impl FnOnce(R, Result<T>) + Send + 'static,
    ) {
        match answer {
            Answer::Now(result) => send(reply, result),
            Answer::Later(future) => {
                self.runtime.spawn(async move { send(reply, future.await) });
            }
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: New,
        mode: Option<u32>,
        reply: ReplyEntry,
    ) {
        let set = SetAttr { mode: mode.map(|mode| mode & 0o7777), ..SetAttr::default() };
        let made = self.fs.make(&self.cred(request), Ino(parent.0), name, new, set);
        self.answer(made, reply, send_entry);
    }

    fn remove(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        what: Removal,
        reply: ReplyEmpty,
    ) {
        let removed = self.fs.remove(&self.cred(request), Ino(parent.0), name, what);
        self.answer(removed, reply, send_empty);
    }

    fn chooser(&self, flags: OpenFlags) -> Chooser {
        Chooser::new(self.kernel.passthrough().then(|| Arc::clone(&self.ways)), flags)
    }
}

impl fuser::Filesystem for Door {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let has = config.capabilities();
        for flag in NEEDED {
            config.add_capabilities(flag).map_err(|missing| {
                io::Error::new(io::ErrorKind::Unsupported, format!("{missing:?}"))
            })?;
        }
        for flag in WANTED.into_iter().filter(|flag| has.contains(*flag)) {
            config.add_capabilities(flag).expect("the kernel offers it");
        }
        if self.stack_depth > 0 && has.contains(InitFlags::FUSE_PASSTHROUGH) {
            config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).expect("the kernel offers it");
            config.set_max_stack_depth(self.stack_depth).expect("1 and 2 are allowed");
        }
        config.set_max_write(self.io_bytes_max).expect("checked by `mount`");
        config.set_max_background(BACKGROUND_MAX).expect("not zero");
        config.set_congestion_threshold(CONGESTED_FROM).expect("not zero");
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.fs.lookup(&self.cred(request), Ino(parent.0), name);
        self.answer(found, reply, send_lookup);
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.fs.forget(Ino(ino.0), count);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let ino = Ino(ino.0);
        let fresh = self.fs.getattr(&self.cred(request), ino);
        self.answer(fresh, reply, move |reply, result| send_attr(reply, ino, result));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        open: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
        };
        let (ino, open) = (Ino(ino.0), open.map(|open| OpenId(open.0)));
        let fresh = self.fs.setattr(&self.cred(request), ino, open, set);
        self.answer(fresh, reply, move |reply, result| send_attr(reply, ino, result));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.fs.readlink(&self.cred(request), Ino(ino.0));
        self.answer(target, reply, |reply, result| match result {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let new = match convert::kind_from_mode(mode) {
            None => return reply.error(Errno::EINVAL),
            Some(Kind::File) => New::FileExclusive,
            Some(kind) => New::Node(kind, convert::device_from(device)),
        };
        self.make(request, parent, name, new, Some(mode), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(request, parent, name, New::Directory, Some(mode), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.make(request, parent, name, New::Symlink(target.into()), None, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, Removal::File, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(request, parent, name, Removal::Directory, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE).contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let flags = larder_vfs::RenameFlags {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        let (from, to) = ((Ino(parent.0), name), (Ino(new_parent.0), new_name));
        self.answer(self.fs.rename(&self.cred(request), from, to, flags), reply, send_empty);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.fs.link(&self.cred(request), Ino(ino.0), Ino(parent.0), name);
        self.answer(linked, reply, send_entry);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let (ino, flags) = (Ino(ino.0), convert::open_flags(flags.0));
        let chooser = self.chooser(flags);
        let opened = self.fs.open(&self.cred(request), ino, flags);
        self.answer(opened, reply, move |reply, result| send_opened(&chooser, ino, reply, result));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = convert::open_flags(flags);
        let chooser = self.chooser(flags);
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        let created = self.fs.create(&self.cred(request), Ino(parent.0), name, set, flags);
        self.answer(created, reply, move |reply, result| send_created(&chooser, reply, result));
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        open: FileHandle,
        offset: u64,
        len: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (cred, open) = (self.cred(request), Some(OpenId(open.0)));
        let data = self.fs.read(&cred, Ino(ino.0), open, offset, len);
        self.answer(data, reply, |reply, result| match result {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        open: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (cred, open) = (self.cred(request), Some(OpenId(open.0)));
        let stability = convert::stability(flags.0);
        let written = self.fs.write(&cred, Ino(ino.0), open, offset, data, stability);
        self.answer(written, reply, |reply, result| match result {
            Ok(written) => reply.written(written.len),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        open: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flushed = self.fs.flush(&self.cred(request), Ino(ino.0), OpenId(open.0));
        self.answer(flushed, reply, send_empty);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        open: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, open) = (Ino(ino.0), OpenId(open.0));
        // The kernel has let the backing file go already.
        self.ways.release(ino, open);
        self.answer(self.fs.release(ino, open), reply, send_empty);
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(self.fs.fsync(&self.cred(request), Ino(ino.0)), reply, send_empty);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: fuser::OpenFlags, reply: ReplyOpen) {
        let listings = Arc::clone(&self.listings);
        let opened = self.fs.opendir(&self.cred(request), Ino(ino.0));
        self.answer(opened, reply, move |reply, result| match result {
            Ok(()) => reply.opened(FileHandle(listings.open()), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        dir: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let position = match self.listings.position(dir.0, offset) {
            Ok(position) => position,
            Err(error) => return reply.error(errno(error)),
        };
        let listing = listing::Request {
            fs: Arc::clone(&self.fs),
            listings: Arc::clone(&self.listings),
            cred: self.cred(request),
            ino: Ino(ino.0),
            dir: dir.0,
            position,
        };
        match listing.ask() {
            Answer::Now(listed) if listing::Request::is_complete(&listed) => {
                listing.reply(listed, reply);
            }
            answer => {
                self.runtime.spawn(listing.finish(answer, reply));
            }
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        dir: FileHandle,
        _: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.close(dir.0);
        reply.ok();
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.answer(self.fs.statfs(&self.cred(request), Ino(ino.0)), reply, send_statfs);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let mask = mask.bits();
        let wanted = convert::access_wanted(mask);
        let granted = self.fs.access(&self.cred(request), Ino(ino.0), wanted);
        self.answer(granted, reply, move |reply: ReplyEmpty, result| match result {
            Ok(granted) if convert::access_granted(mask, granted) => reply.ok(),
            Ok(_) => reply.error(Errno::EACCES),
            Err(error) => reply.error(errno(error)),
        });
    }

    // The rest is refused with ENOSYS, which the kernel remembers. Applications then see EOPNOTSUPP
    // for extended attributes and fallocate, a plain copy for copy_file_range, a file without holes
    // for lseek, and success for fsync of a directory: names are durable when they are answered.

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
