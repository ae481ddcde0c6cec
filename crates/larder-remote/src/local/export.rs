//! The exported directory: from handles to descriptors, and the steps that operations share.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_io::handle::{KernelHandle, handle_of, open_by_handle};
use larder_io::lease::{Company, alone};
use larder_io::{Arm, Clock, RealClock};
use larder_vfs::{Attr, Before, Change, Cred, Error, Found, Handle, Kind, Result, Verifier};
use rustix::fs::{Mode, OFlags, fstatvfs, open, openat, readlinkat};
use rustix::io::Errno;

use super::descriptors::{Descriptors, OpenFile, Purpose};
use super::errors::{LocalError, error};
use super::handle::Seals;
use super::identity::{Acting, Identities, Identity};
use super::key::HandleKey;
use super::options::LocalOptions;
use super::stat::{attributes, kind_of};

/// Locks that order changes of objects. Two objects that share one wait for each other needlessly,
/// which is rare with this many.
const LOCKS: usize = 256;
/// How often the sweeper closes descriptors that were not used since its last round.
const SWEEP_PERIOD: Duration = Duration::from_secs(2);
/// Most levels that a directory may lie below the exported one.
const DEPTH_MAX: usize = 4096;

/// To open a file without following a symbolic link, only to refer to it.
pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An exported directory.
#[derive(Debug)]
pub(super) struct Export {
    path: PathBuf,
    options: LocalOptions,
    root: OwnedFd,
    root_kernel: KernelHandle,
    root_handle: Handle,
    mount_id: i32,
    /// `/proc/self/fd`, where the kernel says where an open directory is.
    own_descriptors: OwnedFd,
    seals: Seals,
    fsid: u64,
    device: u64,
    /// The bits that the process's umask removes from the mode of new files.
    pub(super) umask: u32,
    identities: Identities,
    descriptors: Descriptors,
    locks: [Mutex<()>; LOCKS],
    verifier: AtomicU64,
    arm: Arm,
}

impl Export {
    /// Opens the directory and finds out whether it can be served.
    pub(super) fn open(
        path: &Path,
        options: LocalOptions,
        key: &HandleKey,
    ) -> Result<Export, LocalError> {
        let failed = |cause| LocalError::Open { path: path.to_owned(), cause };
        let no_handles = |cause| LocalError::NoHandles { path: path.to_owned(), cause };

        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty()).map_err(failed)?;
        let (root_kernel, mount_id) = handle_of(&root).map_err(no_handles)?;
        let fsid = fstatvfs(&root).map_err(failed)?.f_fsid;
        let seals = Seals::new(key, fsid, &root_kernel);
        let root_handle = seals.seal(&root_kernel).ok_or_else(|| no_handles(Errno::OVERFLOW))?;
        open_by_handle(&root, &root_kernel, PATH_ONLY)
            .map_err(|cause| LocalError::NotPrivileged { path: path.to_owned(), cause })?;

        let own_descriptors =
            open("/proc/self/fd", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())
                .map_err(|cause| LocalError::Open { path: "/proc/self/fd".into(), cause })?;
        let device = rustix::fs::fstat(&root).map_err(failed)?.st_dev;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(failed)?;
        Ok(Export {
            path: path.to_owned(),
            options,
            root,
            root_kernel,
            root_handle,
            mount_id,
            seals,
            own_descriptors,
            fsid,
            device,
            umask: umask(),
            identities: Identities::new(&options)?,
            descriptors: Descriptors::default(),
            locks: std::array::from_fn(|_| Mutex::new(())),
            verifier: AtomicU64::new(u64::from_ne_bytes(random)),
            arm: Arm::new(options.disk_latency, Arc::new(RealClock)),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn options(&self) -> &LocalOptions {
        &self.options
    }

    /// What takes the disk's time, beside the work that the machine's own does.
    pub(super) fn arm(&self) -> &Arm {
        &self.arm
    }

    pub(super) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// The exported directory itself.
    pub(super) fn root(&self) -> Result<Found> {
        let attr = self.getattr(&self.root_handle)?;
        Ok(Found { handle: self.root_handle.clone(), attr })
    }

    /// Whether `handle` is that of the exported directory.
    pub(super) fn is_root(&self, handle: &Handle) -> bool {
        *handle == self.root_handle
    }

    pub(super) fn verifier(&self) -> Verifier {
        Verifier(self.verifier.load(Relaxed))
    }

    /// Data that was written may be lost: the new verifier tells clients to send it again.
    pub(super) fn lost_data(&self) {
        self.verifier.fetch_add(1, Relaxed);
    }

    /// # Errors
    /// [`Error::ReadOnly`] if changes are refused.
    pub(super) fn writable(&self) -> Result<()> {
        match self.options.read_only {
            true => Err(Error::ReadOnly),
            false => Ok(()),
        }
    }

    /// The identity with which `cred` acts.
    pub(super) fn identity(&self, cred: &Cred) -> Identity {
        self.identities.of(cred)
    }

    /// Makes this thread act as `who`.
    pub(super) fn act_as(&self, who: &Identity) -> Result<Acting<'_>> {
        self.identities.act_as(who)
    }

    /// A descriptor that refers to the file.
    ///
    /// # Errors
    /// [`Error::Stale`] also for a directory that is outside the exported one by now.
    pub(super) fn file(&self, handle: &Handle) -> Result<Arc<OpenFile>> {
        let file = match self.descriptors.get(handle, Purpose::Path) {
            Some(file) => file,
            None => {
                let kernel = self.seals.open(handle)?;
                let fd = open_by_handle(&self.root, &kernel, PATH_ONLY).map_err(stale)?;
                let kind = kind_of(&fd)?;
                self.descriptors.keep(handle, Purpose::Path, OpenFile::new(fd, kind))
            }
        };
        // Each time: another process may move a directory out while its descriptor is kept.
        if file.kind == Kind::Directory && !self.is_inside(&*file)? {
            tracing::warn!(?handle, "a directory was moved out of the export");
            self.descriptors.forget(handle);
            return Err(Error::Stale);
        }
        Ok(file)
    }

    /// A descriptor that stands for the directory.
    pub(super) fn dir(&self, handle: &Handle) -> Result<Arc<OpenFile>> {
        let dir = self.file(handle)?;
        match dir.kind {
            Kind::Directory => Ok(dir),
            _ => Err(Error::NotDirectory),
        }
    }

    /// A descriptor to read or write data, or to read entries. Opened with our own rights: the
    /// caller's are checked at each use. Special files are never opened, which could block or have
    /// effects on the device.
    ///
    /// Never to be called with the file's lock held, see [`Export::change_file`].
    pub(super) fn data(&self, handle: &Handle, purpose: Purpose) -> Result<Arc<OpenFile>> {
        // A descriptor that is open for writing is open for reading, too.
        let enough = [purpose, Purpose::Write];
        if let Some(file) = enough.iter().find_map(|purpose| self.descriptors.get(handle, *purpose))
        {
            return Ok(file);
        }
        let kind = self.file(handle)?.kind;
        let flags = match (kind, purpose) {
            (Kind::File, Purpose::Write) => OFlags::RDWR,
            (Kind::File | Kind::Directory, Purpose::Read) => OFlags::RDONLY,
            (Kind::Directory, _) => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument),
        };
        let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let kernel = self.seals.open(handle)?;
        let opened = match open_by_handle(&self.root, &kernel, flags) {
            // A process has a lease on it: perhaps this one, until the end of a change.
            Err(Errno::AGAIN) => {
                drop(self.lock(handle));
                open_by_handle(&self.root, &kernel, flags)
            }
            opened => opened,
        };
        let file = OpenFile::new(opened.map_err(stale)?, kind);
        if purpose == Purpose::Write {
            // So that we have it open once, and can be alone with it.
            self.descriptors.forget_one(handle, Purpose::Read);
        }
        Ok(self.descriptors.keep(handle, purpose, file))
    }

    /// Changes a file of which `data` is a descriptor for writing, if it could be opened for that.
    /// `work` is given the attributes from just before; the reply has them if no other process can
    /// have written between them and those from after.
    ///
    /// Other calls wait for the lock, and processes of this machine for a lease: while we have one,
    /// no other process has the file open or opens it. A process that has it open already may write
    /// at any moment, so then the attributes from before are left out. On a file system without
    /// leases it is assumed that no process writes, unless the directory is
    /// [`LocalOptions::shared`].
    pub(super) fn change_file(
        &self,
        handle: &Handle,
        file: &OpenFile,
        data: Option<&OpenFile>,
        work: impl FnOnce(&Attr) -> Result<()>,
    ) -> Result<Change> {
        let _locked = self.lock(handle);
        let company = data.map_or(Company::Others, |data| alone(data));
        let before = self.attr(file)?;
        work(&before)?;
        let after = self.attr(file)?;
        let is_alone = match company {
            Company::Alone(_) => true,
            Company::Others => false,
            Company::Unknown => !self.options.shared,
        };
        let Change { before, after } = change(&before, after);
        Ok(Change { before: before.filter(|_| is_alone), after })
    }

    /// Opens the entry `name` of `dir` with the rights of the calling thread.
    pub(super) fn open_entry(&self, dir: &OpenFile, name: &OsStr) -> Result<OwnedFd> {
        openat(dir, name, PATH_ONLY, Mode::empty()).map_err(error)
    }

    /// Handle and attributes of an open file.
    ///
    /// # Errors
    /// [`Error::AccessDenied`] if something else is mounted there.
    pub(super) fn describe(&self, fd: impl AsFd) -> Result<Found> {
        let (kernel, mount_id) = handle_of(&fd).map_err(error)?;
        if mount_id != self.mount_id {
            return Err(Error::AccessDenied);
        }
        let handle = self.seals.seal(&kernel).ok_or(Error::NotSupported)?;
        Ok(Found { handle, attr: self.attr(fd)? })
    }

    /// Describes an open file and keeps the descriptor: a file that was looked up is often used
    /// next.
    pub(super) fn found(&self, fd: OwnedFd) -> Result<Found> {
        let found = self.describe(&fd)?;
        let file = OpenFile::new(fd, found.attr.kind);
        self.descriptors.keep(&found.handle, Purpose::Path, file);
        Ok(found)
    }

    /// Attributes of an open file.
    pub(super) fn attr(&self, fd: impl AsFd) -> Result<Attr> {
        let (mut attr, device) = attributes(fd)?;
        // A subvolume of btrfs has inode numbers of its own.
        attr.fsid = if device == self.device { self.fsid } else { self.fsid ^ device };
        Ok(attr)
    }

    /// Waits for the right to change the object.
    pub(super) fn lock(&self, object: &Handle) -> MutexGuard<'_, ()> {
        self.lock_slot(slot(object))
    }

    /// Waits for the right to change both objects.
    pub(super) fn lock_both(
        &self,
        one: &Handle,
        other: &Handle,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        // In the order of the locks, so that no two operations deadlock.
        let (low, high) = (slot(one).min(slot(other)), slot(one).max(slot(other)));
        (self.lock_slot(low), (low < high).then(|| self.lock_slot(high)))
    }

    fn lock_slot(&self, slot: usize) -> MutexGuard<'_, ()> {
        self.locks[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an open directory is the exported one or is below it at this moment.
    pub(super) fn is_inside(&self, directory: impl AsFd) -> Result<bool> {
        let mut known = None;
        loop {
            let (root, at) = match (self.place(&self.root), self.place(&directory)) {
                (Ok(root), Ok(at)) => (root, at),
                // Deeper than the kernel has words for.
                (Err(Errno::NAMETOOLONG), _) | (_, Err(Errno::NAMETOOLONG)) => {
                    return self.climbs_to_root(directory);
                }
                (Err(other), _) | (_, Err(other)) => return Err(error(other)),
            };
            let inside = match at.strip_prefix(&root[..]) {
                Some([]) | Some([b'/', ..]) => true,
                Some(_) => root == b"/",
                None => false,
            };
            // If the whole tree was moved between the two checks, the two paths differ.
            if inside || known.replace(root.clone()) == Some(root) {
                return Ok(inside);
            }
        }
    }

    /// The path of an open directory, as the kernel reports it to us.
    fn place(&self, directory: impl AsFd) -> Result<Vec<u8>, Errno> {
        let number = directory.as_fd().as_raw_fd().to_string();
        let path = readlinkat(&self.own_descriptors, number, Vec::new())?;
        Ok(path.into_bytes())
    }

    /// The same as [`Export::is_inside`], by opening each directory above it.
    fn climbs_to_root(&self, directory: impl AsFd) -> Result<bool> {
        let (mut at, _) = handle_of(&directory).map_err(error)?;
        let mut above: Option<OwnedFd> = None;
        for _ in 0..DEPTH_MAX {
            if at == self.root_kernel {
                return Ok(true);
            }
            let from = above.as_ref().map_or(directory.as_fd(), AsFd::as_fd);
            let parent = openat(from, "..", PATH_ONLY, Mode::empty()).map_err(error)?;
            let (kernel, mount_id) = handle_of(&parent).map_err(error)?;
            // The root of a file system is its own parent; the parent of a mount's root is on
            // another mount.
            if mount_id != self.mount_id || kernel == at {
                return Ok(false);
            }
            at = kernel;
            above = Some(parent);
        }
        Ok(false)
    }
}

fn slot(object: &Handle) -> usize {
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    (hasher.finish() % LOCKS as u64) as usize
}

/// Translates the errors of open_by_handle_at(2) for handles that name nothing. Handles come from
/// outside, and file systems refuse garbage with different errors.
fn stale(errno: Errno) -> Error {
    match errno {
        Errno::STALE | Errno::INVAL | Errno::NOENT | Errno::PERM | Errno::LOOP => Error::Stale,
        other => error(other),
    }
}

/// How an object changed.
pub(super) fn change(before: &Attr, after: Attr) -> Change {
    let before = Before {
        size: before.size,
        mtime: before.mtime,
        ctime: before.ctime,
        change: before.change,
        data_change: before.data_change,
    };
    Change { before: Some(before), after: Some(after) }
}

/// Refuses anything but the name of one entry.
pub(super) fn check_name(name: &OsStr) -> Result<()> {
    let bytes = name.as_encoded_bytes();
    let bad = bytes.is_empty() || bytes.contains(&b'/') || bytes.contains(&0);
    if bad { Err(Error::InvalidArgument) } else { Ok(()) }
}

/// The process's umask. The system call that returns it also sets it, for all threads; so it is
/// read from proc(5), and assumed to be zero if that cannot be read.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0)
}

/// Starts the thread that sweeps until the export is gone.
pub(super) fn start_sweeper(export: &Arc<Export>) -> Result<(), LocalError> {
    let clock: &'static dyn Clock = &RealClock;
    let weak = Arc::downgrade(export);
    let sweeper = move || {
        loop {
            clock.block(SWEEP_PERIOD);
            let Some(export) = weak.upgrade() else { return };
            export.descriptors().sweep();
        }
    };
    let started = std::thread::Builder::new().name("larder-sweeper".to_owned()).spawn(sweeper);
    started.map(drop).map_err(|cause| LocalError::Open {
        path: export.path().to_owned(),
        cause: Errno::from_io_error(&cause).unwrap_or(Errno::AGAIN),
    })
}
