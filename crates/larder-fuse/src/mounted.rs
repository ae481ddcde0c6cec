//! A mount in use: made by [`mount`], ended by [`Mounted::unmount`], by umount(8), or by dropping it.
//!
//! Threads: those that serve requests (fuser's), one that waits for them (`larder-session`), and one
//! that tells the kernel what to forget (`larder-notify`). All end with the session; the file system
//! is let go then.
//!
//! The way out, each step bounded in time: unmount, lazily if files are in use; when the session has
//! not ended after [`GRACE`], abort the connection, which makes every waiting and later call on the
//! mount fail, and so lets a stuck one go. It needs no answer of the file system.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use fuser::{Config, Session, SessionACL};
use larder_io::RealClock;
use larder_vfs::{FileSystem, Kernel};
use tokio::runtime::Handle;

use crate::door::Door;
use crate::error::MountError;
use crate::groups::Groups;
use crate::mountpoint::{self, Mountpoint};
use crate::notify::Invalidations;
use crate::options::MountOptions;
use crate::passthrough;

/// Longest time that [`Mounted::unmount`] takes.
pub const UNMOUNT_LIMIT: Duration = Duration::from_secs(5);

/// How long users of a detached mount may finish before the connection is aborted.
const GRACE: Duration = Duration::from_secs(2);

/// How long an aborted session may take to end. Twice this and [`GRACE`] stay below [`UNMOUNT_LIMIT`].
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// Largest request that fuser has a buffer for, in bytes.
const IO_BYTES_MAX: u32 = 16 << 20;

/// A file system that is mounted. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    mountpoint: Mountpoint,
    session: Arc<Ended>,
}

/// Whether the session has ended, and how.
#[derive(Debug, Default)]
struct Ended {
    result: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
}

/// Mounts `fs` at `mountpoint`. Requests are answered from now on; what has to wait runs on `runtime`.
///
/// [`FileSystem::attach`] is called before the first request, and [`Kernel::passthrough`] is known then.
///
/// # Errors
/// See [`MountError`]; nothing is mounted then.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: MountOptions,
    runtime: Handle,
) -> Result<Mounted, MountError> {
    validate(&options)?;
    let (fuse, mountpoint) = mountpoint::connect(mountpoint, &options)?;
    // From here on, dropping `mounted` takes the mount away again.
    let session = Arc::new(Ended::default());
    let mounted = Mounted { mountpoint, session: Arc::clone(&session) };

    let kernel = Arc::new(Invalidations::default());
    let door = Door {
        fs: Arc::clone(&fs),
        runtime,
        groups: Groups::new(Arc::new(RealClock)),
        kernel: Arc::clone(&kernel),
        ways: Arc::default(),
        listings: Arc::default(),
        io_bytes_max: options.io_bytes_max,
        stack_depth: options.probe_dir.as_deref().map_or(0, passthrough::stack_depth),
    };
    let begun = begin(door, fuse, &options, &kernel).and_then(|fuser_session| {
        fs.attach(Arc::clone(&kernel) as Arc<dyn Kernel>);
        mounted.mountpoint.set_readahead(options.readahead_bytes);
        serve(fuser_session, kernel, Arc::clone(&session))
    });
    match begun {
        Ok(()) => Ok(mounted),
        Err(error) => {
            session.set(Err(error.to_string()));
            Err(match error.kind() {
                io::ErrorKind::Unsupported => MountError::Kernel(error.to_string()),
                _ => MountError::system("start of session", mounted.mountpoint(), error),
            })
        }
    }
}

fn validate(options: &MountOptions) -> Result<(), MountError> {
    let refuse = |text: String| Err(MountError::Option(text));
    if options.source.contains('\0') {
        return refuse(format!("source {:?} contains a zero byte", options.source));
    }
    if options.threads == 0 || options.threads > 64 {
        return refuse(format!("threads = {}; take 1 to 64", options.threads));
    }
    if options.io_bytes_max < 4096 || options.io_bytes_max > IO_BYTES_MAX {
        return refuse(format!("io_bytes_max = {}; take 4 KiB to 16 MiB", options.io_bytes_max));
    }
    Ok(())
}

/// Agrees with the kernel on the protocol and finds out whether passthrough works.
fn begin(
    door: Door,
    fuse: OwnedFd,
    options: &MountOptions,
    kernel: &Invalidations,
) -> io::Result<Session<Door>> {
    let for_probe = fuse.try_clone()?;
    let mut config = Config::default();
    config.n_threads = Some(options.threads);
    // Without the right to open the device, the threads share one descriptor.
    config.clone_fd = options.threads > 1 && mountpoint::open_device().is_ok();
    // The kernel holds back other users by itself, unless `allow_other`.
    let session = Session::from_fd(door, fuse, SessionACL::All, config)?;
    if let Some(dir) = &options.probe_dir {
        let works = passthrough::probe(for_probe.as_fd(), dir);
        kernel.set_passthrough(works.is_ok());
        if let Err(error) = works {
            tracing::info!(dir = %dir.display(), %error, "no passthrough: data goes through the page cache");
        }
    }
    Ok(session)
}

/// Starts the threads.
fn serve(session: Session<Door>, kernel: Arc<Invalidations>, ended: Arc<Ended>) -> io::Result<()> {
    let notifier = session.notifier();
    let to_tell = Arc::clone(&kernel);
    thread::Builder::new().name("larder-notify".into()).spawn(move || to_tell.run(&notifier))?;
    let to_close = Arc::clone(&kernel);
    let spawned = thread::Builder::new().name("larder-session".into()).spawn(move || {
        let result = session.run();
        to_close.close();
        ended.set(result.map_err(|error| error.to_string()));
    });
    if spawned.is_err() {
        kernel.close();
    }
    spawned.map(drop)
}

impl Mounted {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint.path
    }

    /// Blocks until it is unmounted, by whomever.
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

    /// Unmounts, also while files are open: those have two seconds to be closed, then every call on
    /// them fails. Returns within [`UNMOUNT_LIMIT`], also if the file system does not answer.
    ///
    /// # Errors
    /// [`MountError::StillMounted`] if the mount is still to be seen.
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
                // Nobody listens any more if it took too long.
                let _ = sender.send(mountpoint.detach(dead));
            })
            .map_err(|error| MountError::system("start a thread", &self.mountpoint.path, error))?;
        Ok(receiver)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Also after the session has ended: it may have broken off and left the mount behind.
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
