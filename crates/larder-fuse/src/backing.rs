//! Local files that are registered with the kernel for passthrough: by this process if it may,
//! otherwise through [`larder_helper`], which is started when it is first needed, and ends with
//! this process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use larder_helper::backing;
use larder_helper::protocol::{self, Failure};

use crate::device::Device;
use crate::helper::Helper;
use crate::passthrough::Registered;

/// How often the helper is started without giving an answer, before it is given up.
const STARTS_MAX: u32 = 3;

/// A local file that the kernel holds for us under a number. Dropping it gives the file back; opens
/// that use it keep it alive in the kernel.
#[derive(Debug)]
pub(crate) struct BackingId {
    number: u32,
    registry: Arc<Registry>,
}

impl BackingId {
    /// Registers a local file.
    ///
    /// # Errors
    /// See [`Registry::open`].
    pub(crate) fn register(
        registry: &Arc<Registry>,
        file: BorrowedFd<'_>,
    ) -> io::Result<BackingId> {
        let number = registry.open(file)?;
        Ok(BackingId { number, registry: Arc::clone(registry) })
    }

    /// One that was registered by a process before ours.
    pub(crate) fn known(registry: &Arc<Registry>, number: u32) -> BackingId {
        BackingId { number, registry: Arc::clone(registry) }
    }
}

impl Registered for BackingId {
    fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        if let Err(error) = self.registry.close(self.number) {
            // Once the mount is gone, so is the registration.
            tracing::debug!(%error, "giving a local file back");
        }
    }
}

/// Registers local files with a mount.
#[derive(Debug)]
pub(crate) struct Registry {
    device: Arc<Device>,
    by: Mutex<By>,
}

#[derive(Debug)]
enum By {
    /// This process does, as far as is known.
    Ourselves,
    /// We may not.
    Helper { running: Option<Helper>, starts: u32 },
}

impl Registry {
    /// For the mount of `device`. Nothing is started yet.
    pub(crate) fn new(device: Arc<Device>) -> Registry {
        Registry { device, by: Mutex::new(By::Ourselves) }
    }

    /// Registers a local file, and returns its number. If the helper is needed, waits for it for a
    /// bounded time.
    ///
    /// # Errors
    /// The kernel's. `PermissionDenied` says what would help.
    pub(crate) fn open(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let fuse = self.device.as_fd();
        self.ask(
            || backing::open(fuse, file),
            |helper| protocol::ask_open(helper.link(), fuse, file),
        )
    }

    /// Gives a local file back. Waits as [`Registry::open`] does.
    ///
    /// # Errors
    /// If there is no such registration.
    pub(crate) fn close(&self, id: u32) -> io::Result<()> {
        let fuse = self.device.as_fd();
        self.ask(|| backing::close(fuse, id), |helper| protocol::ask_close(helper.link(), fuse, id))
    }

    fn ask<T>(
        &self,
        ourselves: impl FnOnce() -> io::Result<T>,
        helper: impl Fn(&Helper) -> Result<T, Failure>,
    ) -> io::Result<T> {
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*by, By::Ourselves) {
            match ourselves() {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    *by = By::Helper { running: None, starts: 0 };
                }
                done => return done,
            }
        }
        let By::Helper { running, starts } = &mut *by else { unreachable!("it was just set") };
        loop {
            if running.is_none() {
                if *starts >= STARTS_MAX {
                    return Err(io::Error::other("larder-helper ends without an answer"));
                }
                *running = Some(Helper::start()?);
                *starts += 1;
            }
            let one = running.as_ref().expect("it was just started");
            match helper(one) {
                Err(Failure::Gone(error)) => {
                    tracing::warn!(%error, "larder-helper does not answer");
                    *running = None;
                }
                Err(Failure::Refused(errno)) => {
                    *starts = 0;
                    return Err(one.explain(errno));
                }
                Ok(done) => {
                    *starts = 0;
                    return Ok(done);
                }
            }
        }
    }
}
