//! A directory of this machine as it is, behind FUSE: the least that a file system behind FUSE can
//! cost, for measurements.
//!
//! It has no cache, no rights of its own and no server. Each request is one or two system calls on
//! the directory, on the thread that read it; the kernel itself reads and writes the files where it
//! can (passthrough), and trusts names and attributes for an hour. So nobody else may change the
//! directory meanwhile. Files belong to the user who serves them. *Left out on purpose:* locks,
//! extended attributes, device files, hard links.
//!
//! The same directory can be as slow as a disk: then the kernel reads and writes no file itself,
//! and each sync of a file is an operation of the disk, as it is of a server's
//! ([`larder_io::SlowDisk`]). A file system whose image lies there has a disk of that speed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Arm;
use larder_vfs::{
    Access, Answer, Attr, Change, Cred, DataPath, Device, DirEntry, Entry, Error, FileSystem,
    Fresh, Handle, Ino, Kernel, Kind, LockOwner, Lookup, New, OpenFlags, OpenId, Opened, Removal,
    RenameFlags, Result, SetAttr, SetTime, Stability, StatFs, Time, Verifier, Written,
};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags as Renaming, Stat, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, chmodat, chownat, fstat, mkdirat, openat, readlinkat, renameat_with,
    statvfs, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

/// For how long the kernel trusts names and attributes.
const TTL: Duration = Duration::from_secs(3600);

/// Bytes of a reply to a listing that one entry takes, about.
const ENTRY_BYTES: u32 = 160;

/// A directory behind FUSE.
#[derive(Debug)]
pub struct Bare {
    nodes: Mutex<HashMap<Ino, Node>>,
    opens: Mutex<HashMap<OpenId, Arc<File>>>,
    next_open: AtomicU64,
    passthrough: OnceLock<bool>,
    /// What takes the time of a slow disk.
    arm: Option<Arc<Arm>>,
}

/// A file that the kernel knows.
#[derive(Debug)]
struct Node {
    /// Opened by O_PATH.
    at: Arc<OwnedFd>,
    /// How often the kernel was told of it.
    count: u64,
}

fn error(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::NotFound,
        Errno::EXIST => Error::Exists,
        Errno::NOTDIR => Error::NotDirectory,
        Errno::ISDIR => Error::IsDirectory,
        Errno::NOTEMPTY => Error::NotEmpty,
        Errno::ACCESS => Error::AccessDenied,
        Errno::PERM => Error::NotPermitted,
        Errno::NOSPC => Error::NoSpace,
        Errno::INVAL => Error::InvalidArgument,
        _ => Error::Io,
    }
}

fn io_error(failed: std::io::Error) -> Error {
    Errno::from_io_error(&failed).map_or(Error::Io, error)
}

/// Path of a file that was opened by O_PATH, for calls that want more than that.
fn reopened(at: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", at.as_raw_fd())
}

impl Bare {
    /// The directory `dir`.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn new(dir: &Path) -> std::io::Result<Bare> {
        let at =
            openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root = Node { at: Arc::new(at), count: 1 };
        Ok(Bare {
            nodes: Mutex::new([(Ino::ROOT, root)].into()),
            opens: Mutex::default(),
            next_open: AtomicU64::new(1),
            passthrough: OnceLock::new(),
            arm: None,
        })
    }

    /// The directory `dir`, on a disk whose operations `arm` carries out.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn slow(dir: &Path, arm: Arc<Arm>) -> std::io::Result<Bare> {
        Ok(Bare { arm: Some(arm), ..Bare::new(dir)? })
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Ino, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opens(&self) -> MutexGuard<'_, HashMap<OpenId, Arc<File>>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        self.nodes().get(&ino).map(|node| Arc::clone(&node.at)).ok_or(Error::Stale)
    }

    fn file(&self, open: Option<OpenId>) -> Result<Arc<File>> {
        let open = open.ok_or(Error::InvalidArgument)?;
        self.opens().get(&open).cloned().ok_or(Error::Stale)
    }

    /// What a name stands for; the kernel knows it from now on.
    fn entry(&self, parent: &OwnedFd, name: &OsStr) -> Result<Entry> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = openat(parent, name, flags, Mode::empty()).map_err(error)?;
        let attr = attributes(&fstat(&at).map_err(error)?)?;
        let ino = Ino(attr.fileid);
        let mut nodes = self.nodes();
        nodes.entry(ino).or_insert_with(|| Node { at: Arc::new(at), count: 0 }).count += 1;
        Ok(Entry { ino, fresh: Fresh { attr, ttl: TTL }, ttl: TTL })
    }

    fn opened(&self, file: File) -> Opened {
        let id = OpenId(self.next_open.fetch_add(1, Ordering::Relaxed));
        let file = Arc::new(file);
        self.opens().insert(id, Arc::clone(&file));
        let path = match (&self.arm, self.passthrough.get()) {
            (Some(_), _) => DataPath::Direct,
            (None, Some(true)) => DataPath::Passthrough(file),
            (None, _) => DataPath::Cached { keep: true },
        };
        Opened { id, path }
    }

    fn attributes_of(&self, ino: Ino) -> Result<Fresh> {
        let attr = attributes(&fstat(&*self.at(ino)?).map_err(error)?)?;
        Ok(Fresh { attr, ttl: TTL })
    }

    fn set(&self, ino: Ino, set: SetAttr) -> Result<Fresh> {
        let at = self.at(ino)?;
        let path = reopened(&at);
        if let Some(size) = set.size {
            File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(size))
                .map_err(io_error)?;
        }
        if let Some(mode) = set.mode {
            chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(error)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) =
                (set.uid.map(rustix::fs::Uid::from_raw), set.gid.map(rustix::fs::Gid::from_raw));
            chownat(CWD, &path, uid, gid, AtFlags::empty()).map_err(error)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times =
                Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
            utimensat(CWD, &path, &times, AtFlags::empty()).map_err(error)?;
        }
        self.attributes_of(ino)
    }

    fn list(&self, ino: Ino, offset: u64, bytes_max: u32, plus: bool) -> Result<Vec<DirEntry>> {
        let at = self.at(ino)?;
        let dir =
            openat(&*at, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        // Its names are counted from the beginning each time: directories of a measurement are
        // short, and are listed once.
        let names = Dir::new(dir.map_err(error)?).map_err(error)?;
        let mut listed = Vec::new();
        for (found, number) in names.zip(1..) {
            let found = found.map_err(error)?;
            let name = found.file_name().to_bytes();
            if number <= offset || name == b"." || name == b".." {
                continue;
            }
            if listed.len() as u32 >= (bytes_max / ENTRY_BYTES).max(1) {
                break;
            }
            let name = OsString::from_vec(name.to_vec());
            let entry = plus.then(|| self.entry(&at, &name).ok()).flatten();
            let kind = kind(found.file_type()).ok();
            let (fileid, offset) = (found.ino(), number);
            listed.push(DirEntry { name, fileid, kind, offset, entry, is_elsewhere: false });
        }
        Ok(listed)
    }
}

fn time(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::ServerNow) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
    }
}

fn kind(from: FileType) -> Result<Kind> {
    match from {
        FileType::RegularFile => Ok(Kind::File),
        FileType::Directory => Ok(Kind::Directory),
        FileType::Symlink => Ok(Kind::Symlink),
        _ => Err(Error::NotSupported),
    }
}

fn attributes(of: &Stat) -> Result<Attr> {
    let time = |sec: i64, nsec: u64| Time { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
    Ok(Attr {
        kind: kind(FileType::from_raw_mode(of.st_mode))?,
        mode: of.st_mode & 0o7777,
        nlink: u32::try_from(of.st_nlink).unwrap_or(u32::MAX),
        uid: of.st_uid,
        gid: of.st_gid,
        device: Device::default(),
        size: of.st_size.unsigned_abs(),
        used: of.st_blocks.unsigned_abs() * 512,
        fsid: 0,
        fileid: of.st_ino,
        atime: time(of.st_atime, of.st_atime_nsec),
        mtime: time(of.st_mtime, of.st_mtime_nsec),
        ctime: time(of.st_ctime, of.st_ctime_nsec),
        change: None,
        data_change: None,
        birth: None,
    })
}

fn flags(of: OpenFlags) -> OFlags {
    let access = match (of.read, of.write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    let also = [(of.truncate, OFlags::TRUNC), (of.append, OFlags::APPEND)];
    let also = also.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag);
    also.fold(access | OFlags::CLOEXEC, |all, flag| all | flag)
}

impl FileSystem for Bare {
    fn attach(&self, kernel: Arc<dyn Kernel>) {
        let _ = self.passthrough.set(kernel.passthrough());
    }

    fn lookup(&self, _: &Cred, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        let found = self.at(parent).and_then(|parent| self.entry(&parent, name));
        Answer::Now(match found {
            Err(Error::NotFound) => Ok(Lookup::Absent { ttl: TTL }),
            other => other.map(Lookup::Found),
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut nodes = self.nodes();
        let Some(node) = nodes.get_mut(&ino).filter(|_| ino != Ino::ROOT) else { return };
        node.count = node.count.saturating_sub(count);
        if node.count == 0 {
            nodes.remove(&ino);
        }
    }

    fn getattr(&self, _: &Cred, ino: Ino) -> Answer<Fresh> {
        Answer::Now(self.attributes_of(ino))
    }

    fn setattr(
        &self,
        _: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        set: SetAttr,
    ) -> Answer<(Fresh, Change)> {
        Answer::Now(self.set(ino, set).map(|fresh| (fresh, Change::default())))
    }

    fn access(&self, _: &Cred, _: Ino, wanted: Access) -> Answer<Access> {
        Answer::ok(wanted)
    }

    fn readlink(&self, _: &Cred, ino: Ino) -> Answer<OsString> {
        let target = self.at(ino).and_then(|at| readlinkat(&*at, "", Vec::new()).map_err(error));
        Answer::Now(target.map(|target| OsString::from_vec(target.into_bytes())))
    }

    fn make(&self, _: &Cred, parent: Ino, name: &OsStr, new: New, set: SetAttr) -> Answer<Entry> {
        let mode = Mode::from_raw_mode(set.mode.unwrap_or(0o777));
        let made = self.at(parent).and_then(|parent| {
            match new {
                New::Directory => mkdirat(&*parent, name, mode),
                New::Symlink(target) => symlinkat(&target, &*parent, name),
                New::File | New::FileExclusive | New::Node(..) => return Err(Error::NotSupported),
            }
            .map_err(error)?;
            self.entry(&parent, name)
        });
        Answer::Now(made)
    }

    fn remove(&self, _: &Cred, parent: Ino, name: &OsStr, what: Removal) -> Answer<()> {
        let flags = match what {
            Removal::File => AtFlags::empty(),
            Removal::Directory => AtFlags::REMOVEDIR,
        };
        Answer::Now(self.at(parent).and_then(|at| unlinkat(&*at, name, flags).map_err(error)))
    }

    fn rename(
        &self,
        _: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        how: RenameFlags,
    ) -> Answer<()> {
        let mut flags = Renaming::empty();
        flags.set(Renaming::NOREPLACE, how.no_replace);
        flags.set(Renaming::EXCHANGE, how.exchange);
        let dirs = self.at(from.0).and_then(|old| Ok((old, self.at(to.0)?)));
        Answer::Now(
            dirs.and_then(|(old, new)| {
                renameat_with(&*old, from.1, &*new, to.1, flags).map_err(error)
            }),
        )
    }

    fn link(&self, _: &Cred, _: Ino, _: Ino, _: &OsStr) -> Answer<Entry> {
        Answer::fail(Error::NotSupported)
    }

    fn open(&self, _: &Cred, ino: Ino, of: OpenFlags) -> Answer<Opened> {
        let file = self
            .at(ino)
            .and_then(|at| openat(CWD, reopened(&at), flags(of), Mode::empty()).map_err(error));
        Answer::Now(file.map(|file| self.opened(file.into())))
    }

    fn create(
        &self,
        _: &Cred,
        parent: Ino,
        name: &OsStr,
        set: SetAttr,
        of: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        let mut flags = flags(of) | OFlags::CREATE;
        flags.set(OFlags::EXCL, of.exclusive);
        let mode = Mode::from_raw_mode(set.mode.unwrap_or(0o666));
        let made = self.at(parent).and_then(|parent| {
            let file = openat(&*parent, name, flags, mode).map_err(error)?;
            Ok((self.entry(&parent, name)?, self.opened(file.into())))
        });
        Answer::Now(made)
    }

    fn read(&self, _: &Cred, _: Ino, open: Option<OpenId>, offset: u64, len: u32) -> Answer<Bytes> {
        let read = self.file(open).and_then(|file| {
            let (mut data, mut filled) = (vec![0; len as usize], 0);
            while filled < data.len() {
                match file.read_at(&mut data[filled..], offset + filled as u64).map_err(io_error)? {
                    0 => break,
                    count => filled += count,
                }
            }
            data.truncate(filled);
            Ok(Bytes::from(data))
        });
        Answer::Now(read)
    }

    fn write(
        &self,
        _: &Cred,
        _: Ino,
        open: Option<OpenId>,
        offset: u64,
        data: &[u8],
        _: Stability,
    ) -> Answer<Written> {
        let written = self.file(open);
        let written = written.and_then(|file| file.write_all_at(data, offset).map_err(io_error));
        let (verifier, change) = Default::default();
        let len = data.len() as u32;
        Answer::Now(written.map(|()| Written {
            len,
            stability: Stability::Unstable,
            verifier,
            change,
        }))
    }

    fn flush(&self, _: &Cred, _: Ino, _: OpenId, _: Option<LockOwner>) -> Answer<()> {
        Answer::ok(())
    }

    fn fsync(&self, _: &Cred, _: Ino, open: Option<OpenId>) -> Answer<Verifier> {
        let file = match open {
            Some(_) => self.file(open),
            None => return Answer::ok(Verifier::default()),
        };
        let sync = |file: Arc<File>| {
            file.sync_all().map_err(io_error)?;
            Ok(Verifier::default())
        };
        match (self.arm.clone(), file) {
            (Some(arm), Ok(file)) => Answer::later(async move {
                arm.operation().await;
                sync(file)
            }),
            (_, file) => Answer::Now(file.and_then(sync)),
        }
    }

    fn release(&self, _: Ino, open: OpenId) -> Answer<()> {
        self.opens().remove(&open);
        Answer::ok(())
    }

    fn opendir(&self, _: &Cred, _: Ino) -> Answer<()> {
        Answer::ok(())
    }

    fn readdir(
        &self,
        _: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Answer<Vec<DirEntry>> {
        Answer::Now(self.list(ino, offset, bytes_max, plus))
    }

    fn statfs(&self, _: &Cred, ino: Ino) -> Answer<StatFs> {
        let told = self.at(ino).and_then(|at| statvfs(reopened(&at)).map_err(error));
        Answer::Now(told.map(|told| StatFs {
            bytes: told.f_blocks * told.f_frsize,
            bytes_free: told.f_bfree * told.f_frsize,
            bytes_available: told.f_bavail * told.f_frsize,
            files: told.f_files,
            files_free: told.f_ffree,
            files_available: told.f_favail,
            name_max: u32::try_from(told.f_namemax).unwrap_or(255),
        }))
    }

    fn handle(&self, _: Ino) -> Answer<Handle> {
        Answer::fail(Error::NotSupported)
    }

    fn resolve(&self, _: &Handle) -> Answer<Ino> {
        Answer::fail(Error::NotSupported)
    }
}
