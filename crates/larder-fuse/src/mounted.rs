//! A mount in use: made by [`mount`] or [`serve`], ended by [`Mounted::unmount`], by umount(8), or
//! by dropping it.
//!
//! Threads: those that serve requests, one that waits for them (`larder-session`), and two that
//! tell the kernel what to forget (`larder-notify`). All end with the session; the file system is
//! let go then.
//!
//! Ending it takes these steps, each bounded in time: unmount, lazily if files are in use; if the
//! session has not ended after [`GRACE`], abort the connection, which makes every waiting and later
//! call on the mount fail, and so releases a stuck one. This needs no answer from the file system.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_vfs::{FileSystem, Kernel};
use tokio::runtime::Handle;

use crate::abi::NotifyCode;
use crate::backing::{BackingId, Registry};
use crate::counts::{Counts, References};
use crate::device::Device;
use crate::dispatcher::Dispatcher;
use crate::error::MountError;
use crate::groups::Groups;
use crate::ledger::Ledger;
use crate::listing::Listings;
use crate::mountpoint::Mountpoint;
use crate::notify::{Invalidations, Lane};
use crate::options::{MountOptions, Transport};
use crate::passthrough::Ways;
use crate::ring::Rings;
use crate::session::Session;
use crate::waits::Waits;
use crate::{reader, ring};

/// Longest time that [`Mounted::unmount`] takes.
pub const UNMOUNT_LIMIT: Duration = Duration::from_secs(5);

/// How long users of a detached mount may finish before the connection is aborted.
const GRACE: Duration = Duration::from_secs(2);

/// How long an aborted session may take to end. Twice this and [`GRACE`] stay below
/// [`UNMOUNT_LIMIT`].
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// Pause between two checks whether all requests are answered.
const LOOK: Duration = Duration::from_millis(1);

/// A file system that is mounted. Dropping it unmounts.
pub struct Mounted {
    mountpoint: Mountpoint,
    transport: Transport,
    dispatcher: Arc<Dispatcher>,
    session: Arc<Ended>,
}

/// Whether the session has ended, and how.
#[derive(Debug, Default)]
struct Ended {
    result: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
}

/// Mounts `fs` at `mountpoint`, for as long as this process lives. Requests are answered from now
/// on; answers that have to wait run on `runtime`.
///
/// [`FileSystem::attach`] is called before the first request, and [`Kernel::passthrough`] is known
/// then.
///
/// # Errors
/// See [`MountError`]; nothing is mounted then.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: &MountOptions,
    runtime: &Handle,
) -> Result<Mounted, MountError> {
    serve(Session::open(mountpoint, options)?, fs, runtime, Begin::First)
}

/// Whether another process has served the session before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// No process has served it.
    First,
    /// Another process served it, and is gone: the kernel sends again the requests that it left
    /// unanswered, and open files continue under the numbers that it gave them.
    Again,
}

/// Serves `fs` on an existing mount.
///
/// # Errors
/// If threads cannot be started. The mount is then removed unless another process holds it.
pub fn serve(
    session: Session,
    fs: Arc<dyn FileSystem>,
    runtime: &Handle,
    begin: Begin,
) -> Result<Mounted, MountError> {
    let transport = session.transport();
    let Session { devices, ledger, agreed, mountpoint } = session;
    let fail = |error| MountError::system("start of session", &mountpoint.path, error);
    let devices: Vec<Arc<Device>> =
        devices.into_iter().map(|fd| Arc::new(Device::new(fd))).collect();
    let kernel = Arc::new(Invalidations::default());
    kernel.set_passthrough(agreed.passthrough());
    kernel.set_epochs(agreed.epochs());
    let ways = match agreed.passthrough() {
        true => {
            let registry = Arc::new(Registry::new(Arc::clone(&devices[0])));
            let known = Arc::clone(&registry);
            let register = move |file: BorrowedFd<'_>| BackingId::register(&registry, file);
            let ledger = Ledger::open(ledger).map_err(fail)?;
            Ways::with(Box::new(register), Some(ledger), |id| BackingId::known(&known, id))
        }
        false => Ways::without(),
    };
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let dispatcher = Arc::new(Dispatcher {
        fs: Arc::clone(&fs),
        groups: Groups::new(Arc::clone(&clock)),
        clock,
        kernel: Arc::clone(&kernel),
        ways,
        listings: Listings::default(),
        counts: Counts::default(),
        waits: Waits::default(),
        waiting: AtomicU64::new(0),
        leaving: AtomicBool::new(false),
        locks: agreed.locks(),
        xattrs: fs.has_xattrs(),
        lock_waits: Arc::default(),
    });
    // From here on, dropping `mounted` takes the mount away again.
    let mounted = Mounted {
        mountpoint,
        transport,
        dispatcher: Arc::clone(&dispatcher),
        session: Arc::new(Ended::default()),
    };
    fs.attach(Arc::clone(&kernel) as Arc<dyn Kernel>);
    // Before anything is read: the kernel sends again all requests that any process read and did
    // not answer.
    if begin == Begin::Again
        && let Err(error) = devices[0].notify(NotifyCode::Resend, &[])
    {
        tracing::error!(%error, "the kernel does not send again what was left unanswered");
    }
    let io_bytes_max = agreed.io_bytes_max as usize;
    let started = start(&mounted, &devices, runtime, io_bytes_max);
    if let Err(error) = started {
        kernel.close();
        mounted.session.set(Err(error.to_string()));
        return Err(MountError::system("start of session", mounted.mountpoint(), error));
    }
    Ok(mounted)
}

/// Starts the threads.
fn start(
    mounted: &Mounted,
    devices: &[Arc<Device>],
    runtime: &Handle,
    io_bytes_max: usize,
) -> io::Result<()> {
    let dispatcher = &mounted.dispatcher;
    let rings = match mounted.transport {
        Transport::Uring => ring::start(dispatcher, &devices[0], runtime, io_bytes_max)?,
        _ => Rings::none(),
    };
    let mut threads: Vec<JoinHandle<io::Result<()>>> = Vec::new();
    for device in devices {
        let (dispatcher, device, runtime) =
            (Arc::clone(dispatcher), Arc::clone(device), runtime.clone());
        let serve = move || reader::serve(&dispatcher, &device, &runtime, io_bytes_max);
        threads.push(thread::Builder::new().name("larder-fuse".into()).spawn(serve)?);
    }
    let lanes: [fn(&Invalidations) -> &Lane; 2] =
        [|kernel| &kernel.inodes, |kernel| &kernel.entries];
    for lane in lanes {
        let (kernel, device) = (Arc::clone(&dispatcher.kernel), Arc::clone(&devices[0]));
        let tell = move || lane(&kernel).run(&device);
        thread::Builder::new().name("larder-notify".into()).spawn(tell)?;
    }
    let (kernel, ended) = (Arc::clone(&dispatcher.kernel), Arc::clone(&mounted.session));
    let wait = move || {
        let result = joined(threads);
        // The threads that read the device see the end of the mount even while all entries of a
        // ring wait.
        let result = result.and(joined(rings.end()));
        kernel.close();
        ended.set(result);
    };
    thread::Builder::new().name("larder-session".into()).spawn(wait).map(drop)
}

/// Waits for threads, and returns how they ended: the first that ended with an error.
fn joined(threads: Vec<JoinHandle<io::Result<()>>>) -> Result<(), String> {
    let ended = |thread: JoinHandle<io::Result<()>>| match thread.join() {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(_) => Err("a thread that serves requests panicked".to_owned()),
    };
    threads.into_iter().map(ended).fold(Ok(()), Result::and)
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mounted { mountpoint, transport, session, .. } = self;
        f.debug_struct("Mounted")
            .field("mountpoint", mountpoint)
            .field("transport", transport)
            .field("session", session)
            .finish_non_exhaustive()
    }
}

impl Mounted {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint.path
    }

    /// Whether the mount is the topmost at its path. Does not touch it.
    pub fn is_mounted(&self) -> bool {
        self.mountpoint.is_on_top()
    }

    /// How requests travel.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// How many requests of each kind arrived since our process began, by the kernel's name for
    /// them.
    pub fn requests(&self) -> Vec<(String, u64)> {
        let named = |(opcode, count)| (format!("{opcode:?}").to_uppercase(), count);
        self.dispatcher.counts.all().into_iter().map(named).collect()
    }

    /// References that the kernel was given and gave back.
    pub fn references(&self) -> References {
        self.dispatcher.counts.references()
    }

    /// Blocks until it is unmounted, by any process.
    ///
    /// # Errors
    /// If the session broke off. The mount may still be there then, without service: drop `self`.
    pub fn wait(&self) -> Result<(), MountError> {
        match self.session.wait() {
            Ok(()) => Ok(()),
            Err(text) => {
                let error = io::Error::other(text);
                Err(MountError::system("the FUSE session", &self.mountpoint.path, error))
            }
        }
    }

    /// Accepts no more requests, and waits, for at most `limit`, until those that were accepted are
    /// answered. Returns whether they are. Later requests, and unanswered ones, are for the next
    /// process that serves the session: this process must exit without unmounting.
    pub fn leave(&self, limit: Duration) -> bool {
        self.dispatcher.leaving.store(true, Ordering::Release);
        let deadline = self.dispatcher.clock.instant() + limit;
        // A waiter for a lock may wait for ever, and continues to wait with the next process.
        let unanswered = |dispatcher: &Dispatcher| {
            dispatcher.waiting.load(Ordering::Acquire) > dispatcher.lock_waits.count() as u64
        };
        while unanswered(&self.dispatcher) {
            if self.dispatcher.clock.instant() > deadline {
                return false;
            }
            self.dispatcher.clock.block(LOOK);
        }
        true
    }

    /// Unmounts, even while files are open: those have two seconds to be closed, then every call on
    /// them fails. Returns within [`UNMOUNT_LIMIT`], even if the file system does not answer.
    ///
    /// # Errors
    /// [`MountError::StillMounted`] if the mount is still visible.
    pub fn unmount(&self) -> Result<(), MountError> {
        let detached = self.detach_on_thread()?;
        let mut outcome = match self.session.wait_for(GRACE) {
            true => detached.recv_timeout(ABORT_LIMIT).ok(),
            false => detached.try_recv().ok(),
        };
        if !self.session.has_ended() {
            if let Err(error) = self.mountpoint.abort() {
                tracing::warn!(path = %self.mountpoint.path.display(), %error, "cannot abort");
            }
            self.session.wait_for(ABORT_LIMIT);
        }
        if outcome.is_none() {
            outcome = detached.recv_timeout(ABORT_LIMIT).ok();
        }
        match outcome {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(path = %self.mountpoint.path.display(), %error, "cannot unmount");
                Err(MountError::StillMounted(self.still_there()))
            }
            None => Err(MountError::StillMounted(self.still_there())),
        }
    }

    fn still_there(&self) -> PathBuf {
        self.mountpoint.path.clone()
    }

    /// Unmounting may wait for dirty pages to be written, by a file system that may be stuck.
    fn detach_on_thread(&self) -> Result<mpsc::Receiver<io::Result<()>>, MountError> {
        let (sender, receiver) = mpsc::channel();
        let mountpoint = self.mountpoint.clone();
        let dead = self.session.has_ended();
        thread::Builder::new()
            .name("larder-unmount".into())
            .spawn(move || {
                // The receiver is gone if it took too long.
                let _ = sender.send(mountpoint.detach(dead));
            })
            .map_err(|error| MountError::system("start a thread", &self.mountpoint.path, error))?;
        Ok(receiver)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Even after the session has ended: it may have broken off and left the mount.
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "at the end of a mount");
        }
    }
}

impl Ended {
    fn set(&self, result: Result<(), String>) {
        *self.lock() = Some(result);
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.lock().is_some()
    }

    fn wait(&self) -> Result<(), String> {
        let running = |result: &mut Option<Result<(), String>>| result.is_none();
        let result =
            self.changed.wait_while(self.lock(), running).unwrap_or_else(PoisonError::into_inner);
        result.clone().expect("waited until it was there")
    }

    /// Whether it ended in time.
    fn wait_for(&self, limit: Duration) -> bool {
        let running = |result: &mut Option<Result<(), String>>| result.is_none();
        let (result, _) = self
            .changed
            .wait_timeout_while(self.lock(), limit, running)
            .unwrap_or_else(PoisonError::into_inner);
        result.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
