//! Local files that are registered with the kernel for passthrough.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::device::Device;
use crate::passthrough::Registered;

/// A local file that the kernel holds for us under a number. Dropping it gives the file back; opens
/// that use it keep it alive in the kernel.
#[derive(Debug)]
pub(crate) struct BackingId {
    number: u32,
    device: Arc<Device>,
}

impl BackingId {
    /// Registers a local file.
    ///
    /// # Errors
    /// What the kernel says against it.
    pub(crate) fn register(device: &Arc<Device>, file: BorrowedFd<'_>) -> io::Result<BackingId> {
        let number = device.open_backing(file)?;
        Ok(BackingId { number, device: Arc::clone(device) })
    }

    /// One that was registered by a process before ours.
    pub(crate) fn known(device: &Arc<Device>, number: u32) -> BackingId {
        BackingId { number, device: Arc::clone(device) }
    }
}

impl Registered for BackingId {
    fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        if let Err(error) = self.device.close_backing(self.number) {
            // Once the mount is gone, so is the registration.
            tracing::debug!(%error, "giving a local file back");
        }
    }
}
