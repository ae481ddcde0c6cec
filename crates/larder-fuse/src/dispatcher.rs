//! The dispatcher: turns each request of the kernel into a call of the file system.
//!
//! `session` describes what was negotiated with the kernel at INIT, and why. Here:
//! - A file that was not written needs no flush (`FOPEN_NOFLUSH`): its close costs no message
//!   except the release, for which no caller waits. If locks are passed on, each close is a
//!   message, because it ends locks ([`crate::locks`]).
//! - A direct open may be written by several threads at once (`FOPEN_PARALLEL_DIRECT_WRITES`): the
//!   file system keeps its own order.
//! - `FOPEN_CACHE_DIR` is not used: the kernel's own copy of a listing has names without
//!   attributes, and once their time is over `ls -l` costs a lookup for each name, where
//!   READDIRPLUS costs one message for some hundred.
//! - Operations that the file system does not have are refused with ENOSYS, which the kernel
//!   remembers. Applications then see EOPNOTSUPP for extended attributes of mounts that have none,
//!   a plain copy for copy_file_range, and success for fsync of a directory: names are durable when
//!   they are answered. A refused STATX makes the kernel ask GETATTR: no server of ours reports
//!   more.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use larder_io::Clock;
use larder_vfs::{
    Answer, Cred, Entry, Error, FileSystem, Fresh, Ino, Kind, Lookup, New, OpenFlags, OpenId,
    Opened, Removal, RenameFlags, Result, SetAttr, StatFs, Verifier, Written,
};

use crate::abi::{
    self, AccessIn, CopyFileRangeIn, CreateOut, InHeader, IoctlIn, LkIn, MknodIn, OpenOut, ReadIn,
    Rename2In, SetattrIn, StatfsOut, WriteOut, fattr, getattr,
};
use crate::convert;
use crate::copy;
use crate::counts::Counts;
use crate::errno::errno;
use crate::groups::Groups;
use crate::hint;
use crate::late::Late;
use crate::listing::{self, Listings};
use crate::locks::{self, LockWaits};
use crate::notify::Invalidations;
use crate::output::{Output, Response};
use crate::passthrough::Ways;
use crate::request::{Operation, Request};
use crate::space;
use crate::waits::Waits;
use crate::xattrs;

/// Answers requests, whatever transport brings them.
pub(crate) struct Dispatcher {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) groups: Groups,
    pub(crate) kernel: Arc<Invalidations>,
    pub(crate) ways: Ways,
    pub(crate) listings: Listings,
    pub(crate) counts: Counts,
    /// Requests whose answer is not there yet.
    pub(crate) waits: Waits,
    /// Number of requests not answered yet, including those being processed.
    pub(crate) waiting: AtomicU64,
    /// Another process takes over: requests are left to it from now on.
    pub(crate) leaving: AtomicBool,
    /// Locks of processes come to us.
    pub(crate) locks: bool,
    /// The file system has extended attributes.
    pub(crate) xattrs: bool,
    /// Callers that wait for a lock.
    pub(crate) lock_waits: Arc<LockWaits>,
}

/// How an answer of the file system is encoded for the kernel: `C` is the additional data that this
/// needs.
type Encode<T, C> = fn(&Dispatcher, C, Result<T>) -> Output;

impl Dispatcher {
    /// Answers a request: at once, if the file system does.
    pub(crate) fn answer(self: &Arc<Self>, request: &Request<'_>) -> Response {
        let Request { header, operation } = request;
        let ino = Ino(header.nodeid);
        let cred = || self.cred(header);
        let fs = &self.fs;
        match *operation {
            Operation::Lookup { name } => {
                self.respond(fs.lookup(&cred(), ino, name), (), Dispatcher::looked_up)
            }
            Operation::Forget(forget) => self.forget([(ino, forget.nlookup)]),
            Operation::BatchForget(inodes) => {
                self.forget(inodes.iter().map(|one| (Ino(one.nodeid), one.nlookup)))
            }
            Operation::Getattr(get) if get.getattr_flags & getattr::FH == 0 => {
                self.respond(fs.stat(&cred(), ino), ino, Dispatcher::attributes)
            }
            Operation::Getattr(_) => {
                self.respond(fs.getattr(&cred(), ino), ino, Dispatcher::attributes)
            }
            Operation::Setattr(set) => self.set_attributes(&cred(), ino, &set),
            Operation::Readlink => self.respond(fs.readlink(&cred(), ino), (), Dispatcher::target),
            Operation::Symlink { name, target } => {
                self.make(header, name, New::Symlink(target.into()), None)
            }
            Operation::Mknod { mknod, name } => self.make_node(header, name, mknod),
            Operation::Mkdir { mkdir, name } => {
                self.make(header, name, New::Directory, Some(mkdir.mode))
            }
            Operation::Unlink { name } => {
                self.respond(fs.remove(&cred(), ino, name, Removal::File), (), Dispatcher::done)
            }
            Operation::Rmdir { name } => self.respond(
                fs.remove(&cred(), ino, name, Removal::Directory),
                (),
                Dispatcher::done,
            ),
            Operation::Rename { rename, from, to } => self.rename(header, rename, from, to),
            Operation::Link { link, name } => {
                let linked = fs.link(&cred(), Ino(link.oldnodeid), ino, name);
                self.respond(linked, (), Dispatcher::entry)
            }
            Operation::Statfs => self.respond(fs.statfs(&cred(), ino), (), Dispatcher::space),
            Operation::Access(access) => self.access(&cred(), ino, access),
            Operation::Fsyncdir(_) => self.sync_names(&cred(), ino),
            _ => self.answer_open(request),
        }
    }

    /// Answers requests that concern open files and directories, and refuses unknown ones.
    fn answer_open(self: &Arc<Self>, request: &Request<'_>) -> Response {
        let Request { header, operation } = request;
        let ino = Ino(header.nodeid);
        let cred = || self.cred(header);
        let fs = &self.fs;
        match *operation {
            Operation::Open(open) => {
                let flags = convert::open_flags(open.flags as i32);
                self.respond(fs.open(&cred(), ino, flags), (ino, flags), Dispatcher::opened)
            }
            Operation::Create { create, name } => {
                let flags = convert::open_flags(create.flags as i32);
                let set = SetAttr { mode: Some(create.mode & 0o7777), ..SetAttr::default() };
                let created = fs.create(&cred(), ino, name, set, flags);
                self.respond(created, flags, Dispatcher::created)
            }
            Operation::Read(read) => {
                let open = Some(OpenId(read.fh));
                let data = fs.read(&cred(), ino, open, read.offset, read.size);
                self.respond(data, (), Dispatcher::data)
            }
            Operation::Write { write, data } => {
                let (open, flags) = (Some(OpenId(write.fh)), write.flags as i32);
                let stability = convert::stability(flags);
                let written = fs.write(&cred(), ino, open, write.offset, data, stability);
                self.respond(written, (), Dispatcher::written)
            }
            Operation::Flush(flush) => {
                let owner = self.locks.then(|| locks::process(flush.lock_owner));
                self.respond(fs.flush(&cred(), ino, OpenId(flush.fh), owner), (), Dispatcher::done)
            }
            Operation::Fsync(sync) => self.sync_data(&cred(), ino, OpenId(sync.fh)),
            Operation::Release(release) => {
                let open = OpenId(release.fh);
                // The kernel has let the backing file go already.
                self.ways.release(ino, open);
                self.respond(fs.release(ino, open), (), Dispatcher::done)
            }
            Operation::Setlk(lock) => self.lock(header, lock, Some(false)),
            Operation::Setlkw(lock) => self.lock(header, lock, Some(true)),
            Operation::Getlk(lock) => self.lock(header, lock, None),
            Operation::Getxattr { .. }
            | Operation::Listxattr(_)
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
                if self.xattrs =>
            {
                self.answer_xattrs(request)
            }
            Operation::Opendir(_) => {
                self.respond(fs.opendir(&cred(), ino), (), Dispatcher::directory_opened)
            }
            Operation::Readdirplus(read) => self.list(cred(), ino, &read),
            Operation::Releasedir(release) => {
                self.listings.close(release.fh);
                Response::Now(Output::empty())
            }
            Operation::Destroy => Response::Now(Output::empty()),
            Operation::Interrupt(interrupt) => {
                self.interrupted(interrupt.unique);
                Response::Nothing
            }
            Operation::NotifyReply { .. } => Response::Nothing,
            Operation::Init(_) => Response::error(libc::EIO),
            // Asked again each time, whatever the answer.
            Operation::Ioctl { ioctl, data } => self.hint(header, &ioctl, data),
            _ => self.answer_space(request),
        }
    }

    fn sync_data(self: &Arc<Self>, cred: &Cred, ino: Ino, open: OpenId) -> Response {
        self.respond(self.fs.fsync(cred, ino, Some(open)), (), Dispatcher::synced)
    }

    /// Once refused, the kernel does not ask again.
    fn sync_names(self: &Arc<Self>, cred: &Cred, dir: Ino) -> Response {
        match self.fs.sync_names(cred, dir) {
            Some(synced) => self.respond(synced, (), Dispatcher::done),
            None => Response::error(libc::ENOSYS),
        }
    }

    /// Answers an ioctl.
    fn hint(self: &Arc<Self>, header: &InHeader, ioctl: &IoctlIn, data: &[u8]) -> Response {
        let (ino, open) = (Ino(header.nodeid), OpenId(ioctl.fh));
        match hint::class(ioctl, data) {
            Ok(class) => {
                let hinted = self.fs.hint_class(&self.cred(header), ino, open, class);
                self.respond(hinted, (), |_, (), hinted| hint::taken(hinted))
            }
            Err(errno) => Response::error(errno),
        }
    }

    /// Answers COPY_FILE_RANGE.
    fn copy(self: &Arc<Self>, header: &InHeader, asked: &CopyFileRangeIn) -> Response {
        let Some((from, to, len)) = copy::asked(header, asked) else {
            return Response::error(libc::EINVAL);
        };
        let copied = self.fs.copy_range(&self.cred(header), from, to, len);
        self.respond(copied, copy::Form::of(header), |_, form, copied| copy::copied(form, copied))
    }

    /// Answers requests that concern room, holes and copies of open files; refuses others.
    fn answer_space(self: &Arc<Self>, request: &Request<'_>) -> Response {
        let Request { header, operation } = request;
        let (ino, cred) = (Ino(header.nodeid), self.cred(header));
        match *operation {
            Operation::Fallocate(asked) => {
                let Some(change) = space::change(&asked) else {
                    return Response::error(libc::EOPNOTSUPP);
                };
                let changed = self.fs.change_space(&cred, ino, OpenId(asked.fh), change);
                self.respond(changed, (), Dispatcher::done)
            }
            Operation::Lseek(asked) => {
                let Some(what) = space::wanted(&asked) else {
                    return Response::error(libc::EINVAL);
                };
                let found = self.fs.seek(&cred, ino, OpenId(asked.fh), asked.offset, what);
                self.respond(found, (), |_, (), found| space::found(found))
            }
            Operation::CopyFileRange(asked) if self.fs.copies() => self.copy(header, &asked),
            _ => Response::error(libc::ENOSYS),
        }
    }

    /// Answers requests that concern extended attributes.
    fn answer_xattrs(self: &Arc<Self>, request: &Request<'_>) -> Response {
        let Request { header, operation } = request;
        let (ino, cred) = (Ino(header.nodeid), self.cred(header));
        let change = match *operation {
            Operation::Getxattr { get, name } => {
                let Some(name) = xattrs::own(name) else {
                    return Response::error(libc::EOPNOTSUPP);
                };
                let value = self.fs.xattr(&cred, ino, name);
                return self.respond(value, get.size, |_, size, value| xattrs::found(size, value));
            }
            Operation::Listxattr(list) => {
                let names = self.fs.xattrs(&cred, ino);
                return self
                    .respond(names, list.size, |_, size, names| xattrs::listed(size, names));
            }
            Operation::Setxattr { set, name, value } => xattrs::change(name, Some((set, value))),
            Operation::Removexattr { name } => xattrs::change(name, None),
            _ => Err(libc::ENOSYS),
        };
        match change {
            Ok(change) => self.respond(self.fs.set_xattr(&cred, ino, change), (), Dispatcher::done),
            Err(errno) => Response::error(errno),
        }
    }

    fn cred(&self, header: &InHeader) -> Cred {
        let cred = self.groups.cred(header.pid, header.uid, header.gid);
        let retried = header.unique & abi::UNIQUE_RESEND != 0;
        Cred { retried, request: header.unique & !abi::UNIQUE_RESEND, ..cred }
    }

    /// SETLK, or SETLKW, which waits; GETLK if `waits` is `None`.
    fn lock(self: &Arc<Self>, header: &InHeader, lock: LkIn, waits: Option<bool>) -> Response {
        let (ino, open, fs) = (Ino(header.nodeid), OpenId(lock.fh), &self.fs);
        match (locks::wanted(&lock), waits) {
            _ if !self.locks => Response::error(libc::ENOSYS),
            (None, _) | (Some((_, true)), None) => Response::error(libc::EINVAL),
            (Some((lock, false)), None) => {
                self.respond(fs.test_lock(ino, open, lock), (), |_, (), found| locks::found(found))
            }
            (Some((lock, true)), _) => {
                self.respond(fs.unlock(ino, open, lock.owner, lock.range), (), Dispatcher::done)
            }
            (Some((lock, false)), Some(false)) => {
                self.respond(fs.lock(ino, open, lock, None), (), Dispatcher::done)
            }
            (Some((lock, false)), Some(true)) => {
                let wait = |given_up| fs.lock(ino, open, lock, Some(given_up));
                self.respond(self.lock_waits.wait(header.unique, wait), (), Dispatcher::done)
            }
        }
    }

    fn respond<T: 'static, C: Send + 'static>(
        self: &Arc<Self>,
        answer: Answer<T>,
        context: C,
        encode: Encode<T, C>,
    ) -> Response {
        match answer {
            Answer::Now(result) => Response::Now(encode(self, context, result)),
            Answer::Later(future) => {
                let dispatcher = Arc::clone(self);
                Late::begin(async move { encode(&dispatcher, context, future.await) })
            }
        }
    }

    pub(crate) fn forget(&self, inodes: impl IntoIterator<Item = (Ino, u64)>) -> Response {
        for (ino, count) in inodes {
            self.counts.take_back(count);
            self.fs.forget(ino, count);
        }
        Response::Nothing
    }

    fn set_attributes(self: &Arc<Self>, cred: &Cred, ino: Ino, set: &SetattrIn) -> Response {
        let open = (set.valid & fattr::FH != 0).then_some(OpenId(set.fh));
        let set = self.fs.setattr(cred, ino, open, convert::set_attr(set));
        self.respond(set, ino, |dispatcher, ino, set| {
            dispatcher.attributes(ino, set.map(|(fresh, _)| fresh))
        })
    }

    fn make_node(self: &Arc<Self>, header: &InHeader, name: &OsStr, mknod: MknodIn) -> Response {
        let new = match convert::kind_from_mode(mknod.mode) {
            None => return Response::error(libc::EINVAL),
            Some(Kind::File) => New::FileExclusive,
            Some(kind) => New::Node(kind, convert::device_from(mknod.rdev)),
        };
        self.make(header, name, new, Some(mknod.mode))
    }

    fn make(
        self: &Arc<Self>,
        header: &InHeader,
        name: &OsStr,
        new: New,
        mode: Option<u32>,
    ) -> Response {
        let set = SetAttr { mode: mode.map(|mode| mode & 0o7777), ..SetAttr::default() };
        let is_special = matches!(new, New::Node(..));
        let made = self.fs.make(&self.cred(header), Ino(header.nodeid), name, new, set);
        self.respond(made, is_special, |dispatcher, is_special, made| match made {
            // What mknod(2) names for a file system without files of this type.
            Err(Error::NotSupported) if is_special => Output::error(libc::EPERM),
            made => dispatcher.entry((), made),
        })
    }

    fn rename(
        self: &Arc<Self>,
        header: &InHeader,
        rename: Rename2In,
        from: &OsStr,
        to: &OsStr,
    ) -> Response {
        if rename.flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Response::error(libc::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: rename.flags & libc::RENAME_NOREPLACE != 0,
            exchange: rename.flags & libc::RENAME_EXCHANGE != 0,
        };
        let (from, to) = ((Ino(header.nodeid), from), (Ino(rename.newdir), to));
        self.respond(self.fs.rename(&self.cred(header), from, to, flags), (), Dispatcher::done)
    }

    fn list(self: &Arc<Self>, cred: Cred, ino: Ino, read: &ReadIn) -> Response {
        let position = match self.listings.position(read.fh, read.offset) {
            Ok(position) => position,
            Err(error) => return Response::error(errno(error)),
        };
        let (dir, bytes_max) = (read.fh, read.size);
        listing::Part { cred, ino, dir, position, bytes_max }.answer(self)
    }

    fn access(self: &Arc<Self>, cred: &Cred, ino: Ino, access: AccessIn) -> Response {
        let mask = access.mask as i32;
        let granted = self.fs.access(cred, ino, convert::access_wanted(mask));
        self.respond(granted, mask, |_, mask, result| match result {
            Ok(granted) if convert::access_granted(mask, granted) => Output::empty(),
            Ok(_) => Output::error(libc::EACCES),
            Err(error) => Output::error(errno(error)),
        })
    }
}

/// Answers of the file system as answers to the kernel.
impl Dispatcher {
    fn done<T>(&self, (): (), result: Result<T>) -> Output {
        result.map_or_else(|error| Output::error(errno(error)), |_| Output::empty())
    }

    fn synced(&self, (): (), result: Result<Verifier>) -> Output {
        self.done((), result)
    }

    fn entry(&self, (): (), result: Result<Entry>) -> Output {
        match result {
            Ok(entry) => {
                self.counts.give();
                Output::of(&convert::entry(&entry))
            }
            Err(error) => Output::error(errno(error)),
        }
    }

    fn looked_up(&self, (): (), result: Result<Lookup>) -> Output {
        match result {
            Ok(Lookup::Found(entry)) => self.entry((), Ok(entry)),
            Ok(Lookup::Absent { ttl }) if ttl.is_zero() => Output::error(libc::ENOENT),
            Ok(Lookup::Absent { ttl }) => Output::of(&convert::absent(ttl)),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn attributes(&self, ino: Ino, result: Result<Fresh>) -> Output {
        match result {
            Ok(fresh) => Output::of(&convert::attributes(ino, &fresh)),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn target(&self, (): (), result: Result<OsString>) -> Output {
        match result {
            Ok(target) => Output::data(target.into_encoded_bytes()),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn data(&self, (): (), result: Result<Bytes>) -> Output {
        result.map_or_else(|error| Output::error(errno(error)), Output::data)
    }

    fn written(&self, (): (), result: Result<Written>) -> Output {
        match result {
            Ok(written) => Output::of(&WriteOut { size: written.len, padding: 0 }),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn opened(&self, (ino, flags): (Ino, OpenFlags), result: Result<Opened>) -> Output {
        match result {
            Ok(opened) => Output::of(&self.choose(ino, flags, &opened)),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn created(&self, flags: OpenFlags, result: Result<(Entry, Opened)>) -> Output {
        match result {
            Ok((entry, opened)) => {
                self.counts.give();
                let open = self.choose(entry.ino, flags, &opened);
                Output::of(&CreateOut { entry: convert::entry(&entry), open })
            }
            Err(error) => Output::error(errno(error)),
        }
    }

    fn directory_opened(&self, (): (), result: Result<()>) -> Output {
        match result {
            Ok(()) => Output::of(&OpenOut { fh: self.listings.open(), ..OpenOut::default() }),
            Err(error) => Output::error(errno(error)),
        }
    }

    fn space(&self, (): (), result: Result<StatFs>) -> Output {
        let stat = match result {
            Ok(stat) => stat,
            Err(error) => return Output::error(errno(error)),
        };
        let blocks = |bytes: u64| bytes / u64::from(convert::BLOCK_BYTES);
        Output::of(&StatfsOut {
            blocks: blocks(stat.bytes),
            bfree: blocks(stat.bytes_free),
            bavail: blocks(stat.bytes_available),
            files: stat.files,
            ffree: stat.files_free,
            bsize: convert::BLOCK_BYTES,
            namelen: stat.name_max,
            frsize: convert::BLOCK_BYTES,
            ..StatfsOut::default()
        })
    }

    /// Chooses the I/O mode of an open file.
    fn choose(&self, ino: Ino, flags: OpenFlags, opened: &Opened) -> OpenOut {
        let way = self.ways.choose(ino, opened.id, &opened.path);
        // A close also ends locks of the process that closes.
        let flush = if flags.write || self.locks { 0 } else { abi::fopen::NOFLUSH };
        let open_flags = flush | way.flags();
        OpenOut { fh: opened.id.0, open_flags, backing_id: way.backing() }
    }
}
