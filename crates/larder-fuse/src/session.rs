//! A mount's connection to the kernel, independent of the process that serves it.
//!
//! A [`Session`] consists of the descriptors, what was negotiated at INIT, and the ledger of open
//! files. As long as a process holds it the mount lives: calls on it wait. So one process may hold
//! it while another process, to which it was sent, serves, dies, and is replaced. A request belongs
//! to the descriptor through which it was read, so all descriptors are held and sent.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::MIN_READ_BUFFER;
use crate::agree::Agreed;
use crate::backing::Registry;
use crate::device::{Device, Received};
use crate::error::MountError;
use crate::ledger::{self, Ledger};
use crate::mountpoint::{self, Mountpoint};
use crate::options::{MountOptions, Transport};
use crate::output::Output;
use crate::passthrough;
use crate::request::{Operation, Request};

/// Most descriptors of a session that is sent: the kernel takes 253 at a time.
const DESCRIPTORS_MAX: usize = MountOptions::THREADS_MAX + 1;

/// Marks the beginning of a session that is sent, so that nothing else is mistaken for one.
const MAGIC: u64 = u64::from_le_bytes(*b"larder\0\x01");

/// A mount, as one holder has it. When the last holder drops it the mount ends: calls fail from
/// then on, and what is left of it must be unmounted.
#[derive(Debug)]
pub struct Session {
    /// The first is the one that was mounted.
    pub(crate) devices: Vec<OwnedFd>,
    pub(crate) ledger: OwnedFd,
    pub(crate) agreed: Agreed,
    pub(crate) mountpoint: Mountpoint,
}

/// State that is not in the descriptors, before the path of the mount point.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LedgerHeader {
    magic: u64,
    agreed: Agreed,
    device_minor: u32,
    path_len: u32,
}

impl Session {
    /// Mounts at `mountpoint` and negotiates with the kernel. No process serves it yet: calls on
    /// the mount wait.
    ///
    /// # Errors
    /// See [`MountError`]; nothing is mounted then.
    pub fn open(mountpoint: &Path, options: &MountOptions) -> Result<Session, MountError> {
        options.check()?;
        let uring = options.uring()?;
        let (fuse, mountpoint) = mountpoint::connect(mountpoint, options)?;
        let begun = begin(Device::new(fuse), options, uring);
        match begun {
            Ok((devices, agreed, ledger)) => {
                mountpoint.set_readahead(options.readahead_bytes);
                let session = Session { devices, ledger, agreed, mountpoint };
                match session.record() {
                    Ok(()) => Ok(session),
                    Err(error) => {
                        let path = session.mountpoint().to_owned();
                        if let Err(error) = session.end() {
                            tracing::warn!(%error, "cannot take a mount back");
                        }
                        Err(MountError::system("start of session", &path, error))
                    }
                }
            }
            Err(error) => {
                if let Err(error) = mountpoint.detach(true) {
                    tracing::warn!(%error, "cannot take a mount back");
                }
                Err(match error {
                    Begin::Kernel(text) => MountError::Kernel(text),
                    Begin::System(error) => {
                        MountError::system("start of session", &mountpoint.path, error)
                    }
                })
            }
        }
    }

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
        if self.agreed.uring() { Transport::Uring } else { Transport::Device }
    }

    /// Whether another process can continue when the one that serves has died: the kernel must send
    /// unanswered requests again, which it does not do for requests that it handed over by
    /// io_uring.
    pub fn survives(&self) -> bool {
        self.agreed.resend() && !self.agreed.uring()
    }

    /// A second holder in this process.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Session> {
        let devices = self.devices.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let (ledger, mountpoint) = (self.ledger.try_clone()?, self.mountpoint.clone());
        Ok(Session { devices, ledger, agreed: self.agreed, mountpoint })
    }

    /// The descriptors, for a service manager that must keep them (systemd's fdstore).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.devices.iter().map(AsFd::as_fd).chain([self.ledger.as_fd()])
    }

    /// Gives another process a share, through a stream socket. Blocks until it is in the socket's
    /// buffer.
    ///
    /// # Errors
    /// If the peer is gone.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptors().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let byte = [IoSlice::new(&[0])];
        rustix::net::sendmsg(&socket, &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Takes the share that another process sends. Blocks until it is there.
    ///
    /// # Errors
    /// If the peer is gone, or sends something else.
    pub fn receive(socket: impl AsFd) -> io::Result<Session> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        rustix::io::retry_on_intr(|| {
            let mut buffers = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&socket, &mut buffers, &mut ancillary, flags)
        })?;
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        Session::from_descriptors(rights.flatten().collect())
    }

    /// The session of these descriptors, in the order of [`Session::descriptors`].
    ///
    /// # Errors
    /// If they are not those of a session.
    pub fn from_descriptors(mut descriptors: Vec<OwnedFd>) -> io::Result<Session> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no mount was handed over");
        let ledger = descriptors.pop().ok_or_else(wrong)?;
        let bytes = ledger::header(&ledger)?;
        let (header, path) = LedgerHeader::read_from_prefix(&bytes).map_err(|_| wrong())?;
        let path = path.get(..header.path_len as usize).ok_or_else(wrong)?;
        if header.magic != MAGIC || descriptors.is_empty() {
            return Err(wrong());
        }
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
        let mountpoint = Mountpoint { path, device_minor: header.device_minor };
        Ok(Session { devices: descriptors, ledger, agreed: header.agreed, mountpoint })
    }

    /// Writes the state that is not in the descriptors themselves where the process that gets them
    /// finds it.
    fn record(&self) -> io::Result<()> {
        let path = self.mountpoint.path.as_os_str().as_bytes();
        let header = LedgerHeader {
            magic: MAGIC,
            agreed: self.agreed,
            device_minor: self.mountpoint.device_minor,
            path_len: path.len() as u32,
        };
        ledger::put_header(&self.ledger, &[header.as_bytes(), path].concat())
    }

    /// Ends the mount: takes it out of the name space, lazily if it is in use, and makes every call
    /// on it fail. For a process that holds a mount that no process can serve. May wait for the
    /// kernel to write dirty pages, which fails at once.
    ///
    /// # Errors
    /// If the mount is still visible.
    pub fn end(self) -> io::Result<()> {
        if let Err(error) = self.mountpoint.abort() {
            tracing::debug!(%error, "cannot abort; closing the descriptors does as well");
        }
        let Session { devices, mountpoint, .. } = self;
        drop(devices);
        mountpoint.detach(true)
    }
}

enum Begin {
    Kernel(String),
    System(io::Error),
}

impl From<io::Error> for Begin {
    fn from(error: io::Error) -> Begin {
        Begin::System(error)
    }
}

fn begin(
    device: Device,
    options: &MountOptions,
    uring: bool,
) -> Result<(Vec<OwnedFd>, Agreed, OwnedFd), Begin> {
    let ledger = Ledger::memory()?;
    let device = Arc::new(device);
    let mut agreed = answer_init(&device, options, uring)?;
    if let Some(dir) = options.probe_dir.as_deref().filter(|_| agreed.offers_passthrough()) {
        let registry = Registry::new(Arc::clone(&device));
        let tried = passthrough::nameless_file(dir)
            .and_then(|file| registry.close(registry.open(file.as_fd())?));
        agreed.set_passthrough(tried.is_ok());
        if let Err(error) = tried {
            tracing::info!(dir = %dir.display(), %error, "no passthrough: data goes through the page cache");
        }
    }
    let mut devices = Vec::new();
    // With io_uring, only requests that do not belong to a queue arrive here.
    let threads = if uring { 1 } else { options.threads };
    for _ in 1..threads {
        match device.another() {
            Ok(other) => devices.push(other.into_fd()),
            Err(error) => {
                // Without the right to open the device, the threads share one descriptor.
                tracing::debug!(%error, "no descriptor for each thread");
                break;
            }
        }
    }
    let device = Arc::into_inner(device).expect("nobody else uses it yet");
    devices.insert(0, device.into_fd());
    Ok((devices, agreed, ledger))
}

fn answer_init(device: &Device, options: &MountOptions, uring: bool) -> Result<Agreed, Begin> {
    let mut buffer = vec![0; MIN_READ_BUFFER];
    let len = loop {
        match device.receive(&mut buffer)? {
            Received::Request(len) => break len,
            Received::Again => {}
            Received::Gone => return Err(Begin::Kernel("the mount was taken away".to_owned())),
        }
    };
    let request =
        Request::decode(&buffer[..len]).map_err(|error| Begin::Kernel(error.to_string()))?;
    let Operation::Init(offer) = request.operation else {
        return Err(Begin::Kernel("it does not begin with INIT".to_owned()));
    };
    let depth = options.probe_dir.as_deref().map_or(0, passthrough::stack_depth);
    let unique = request.header.unique;
    match Agreed::on(&offer, options, uring, depth) {
        Ok((agreed, out)) => {
            device.reply(unique, &Output::of(&out));
            Ok(agreed)
        }
        Err(text) => {
            device.reply(unique, &Output::error(libc::EPROTO));
            Err(Begin::Kernel(text))
        }
    }
}
