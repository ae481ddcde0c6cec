//! A descriptor of `/dev/fuse`: requests are read from it, replies and notifications written to it.
//!
//! A request belongs to the descriptor through which it was read (clones share the mount, not the
//! requests), and only through it can be answered.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{NotifyCode, OutHeader, ioctl};
use crate::output::Output;

/// An open `/dev/fuse` that is, or is about to be, mounted.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// The result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// Nothing this time.
    Again,
    /// The mount is gone.
    Gone,
}

impl Device {
    /// Takes a descriptor of `/dev/fuse`.
    pub(crate) fn new(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Another descriptor of the same mount, with a queue of its own for the requests read through
    /// it.
    ///
    /// # Errors
    /// If we may not open the device, or it is not mounted yet.
    pub(crate) fn another(&self) -> io::Result<Device> {
        let other = crate::mountpoint::open_device()?;
        clone(other.as_fd(), self.0.as_raw_fd())?;
        Ok(Device(other))
    }

    /// Waits for a request and reads it.
    ///
    /// # Errors
    /// The system's, except those that belong to the life of a mount.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match rustix::io::read(&self.0, buffer) {
            Ok(len) => Ok(Received::Request(len)),
            // ENOENT: the caller went away while the request was being copied.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Again),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a request, in one system call. It is no error if no caller waits any more.
    pub(crate) fn reply(&self, unique: u64, output: &Output) {
        let len = size_of::<OutHeader>() + output.len();
        let header = OutHeader { len: len as u32, error: -output.errno, unique };
        let parts = [header.as_bytes(), output.fixed(), &output.data];
        match self.write(&parts) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(unique, %error, "the kernel does not take a reply");
                let header = OutHeader { len: 16, error: -libc::EIO, unique };
                // If the kernel does not accept that either, nothing is left to do.
                let _ = self.write(&[header.as_bytes()]);
            }
        }
    }

    /// Sends the kernel a message that it did not ask for. May block, see [`crate::notify`].
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode or name, `ENODEV` if the mount is gone,
    /// `EINVAL` if it does not know the code.
    pub(crate) fn notify(&self, code: NotifyCode, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error: code as i32, unique: 0 };
        let mut all = vec![header.as_bytes()];
        all.extend_from_slice(parts);
        Ok(self.write(&all)?)
    }

    /// One vectored write; empty parts are left out.
    fn write(&self, parts: &[&[u8]]) -> Result<(), Errno> {
        let mut slices = [IoSlice::new(&[]); 4];
        let mut count = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            slices[count] = IoSlice::new(part);
            count += 1;
        }
        // All or nothing: the device does not take a part of a message.
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, &slices[..count])).map(drop)
    }

    /// The descriptor itself, to be handed on.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes `other` a descriptor of the mount of `ours`.
#[allow(unsafe_code)]
fn clone(other: BorrowedFd<'_>, ours: i32) -> io::Result<()> {
    // SAFETY: the request only reads, through the pointer, the number of a descriptor, which is
    // alive for the time of the call.
    let done = unsafe {
        libc::ioctl(other.as_raw_fd(), ioctl::CLONE as libc::Ioctl, std::ptr::from_ref(&ours))
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
