//! A descriptor of `/dev/fuse` that is mounted somewhere, and its removal.
//!
//! We call mount(2) ourselves: that gives the type `fuse.larder`, exact errors, and control over
//! unmounting. Where we may not, `fusermount3` mounts for us and passes the descriptor through a
//! socket (`_FUSE_COMMFD`).
//!
//! Nothing here touches the mount once it is made, so nothing here can hang on it:
//! `/proc/self/mountinfo` says what is mounted.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use larder_io::mountinfo::mounted_at;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::error::MountError;
use crate::options::MountOptions;

/// Type of our mounts, as the kernel's list shows it.
pub const KIND: &str = "fuse.larder";

/// Where the kernel shows its FUSE connections, once that file system is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How long to wait for proof that a mount of ours on the mountpoint is dead.
const STALE_CHECK_LIMIT: Duration = Duration::from_secs(1);

/// A mount of ours.
#[derive(Clone, Debug)]
pub(crate) struct Mountpoint {
    pub(crate) path: PathBuf,
    /// Minor device number, and number of the connection.
    pub(crate) device_minor: u32,
}

/// Mounts at `path`. Blocks, also for `fusermount3`.
pub(crate) fn connect(
    path: &Path,
    options: &MountOptions,
) -> Result<(OwnedFd, Mountpoint), MountError> {
    let path = check(path)?;
    let fuse = match open_device() {
        Ok(fuse) => match mount_ourselves(&fuse, &path, options) {
            Ok(()) => Ok(fuse),
            Err(Errno::PERM) => mount_by_helper(&path, options),
            Err(Errno::BUSY) => Err(MountError::Busy(path.clone())),
            Err(error) => Err(MountError::system("mount", &path, error.into())),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            mount_by_helper(&path, options)
        }
        Err(error) if is_missing(&error) => Err(MountError::NoDevice),
        Err(error) => Err(MountError::system("open /dev/fuse", &path, error)),
    }?;
    let line = mounted_at(&path)
        .map_err(|error| MountError::system("read the list of mounts", &path, error))?;
    match line {
        Some(line) if line.kind == KIND => {
            Ok((fuse, Mountpoint { path, device_minor: line.device_minor }))
        }
        // Another mount covered ours in between. Closing the descriptor makes ours harmless.
        _ => Err(MountError::Busy(path)),
    }
}

/// `/dev/fuse`, opened for one more thread or for a mount.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/fuse")?.into())
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO))
}

/// The real path of a directory that may be mounted on.
fn check(path: &Path) -> Result<PathBuf, MountError> {
    // Before the first touch: a dead mount answers with an error, a stuck one not at all.
    let absolute = std::path::absolute(path)
        .map_err(|error| MountError::system("find the current directory", path, error))?;
    refuse_our_own(&absolute)?;
    let real = match absolute.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::NoMountpoint(absolute));
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(MountError::NotDirectory(absolute));
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(MountError::Stale(absolute));
        }
        Err(error) => return Err(MountError::system("look up", &absolute, error)),
    };
    if real != absolute {
        refuse_our_own(&real)?;
    }
    match real.metadata() {
        Ok(meta) if meta.is_dir() => Ok(real),
        Ok(_) => Err(MountError::NotDirectory(real)),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Err(MountError::Stale(real)),
        Err(error) => Err(MountError::system("look up", &real, error)),
    }
}

fn refuse_our_own(path: &Path) -> Result<(), MountError> {
    match mounted_at(path) {
        Ok(Some(line)) if line.kind == KIND => match is_stale(path) {
            true => Err(MountError::Stale(path.to_owned())),
            false => Err(MountError::AlreadyMounted(path.to_owned())),
        },
        Ok(_) => Ok(()),
        Err(error) => Err(MountError::system("read the list of mounts", path, error)),
    }
}

/// Whether the daemon of the mount at `path` is gone. Checked on a thread of its own, since a
/// living daemon might not answer.
fn is_stale(path: &Path) -> bool {
    let path = path.to_owned();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC;
        let dead = rustix::fs::statx(CWD, &path, flags, StatxFlags::BASIC_STATS)
            .is_err_and(|error| error == Errno::NOTCONN);
        // The receiver is gone if it took too long.
        let _ = sender.send(dead);
    });
    receiver.recv_timeout(STALE_CHECK_LIMIT).unwrap_or(false)
}

fn mount_ourselves(fuse: &OwnedFd, path: &Path, options: &MountOptions) -> Result<(), Errno> {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        fuse.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.driver(),
    );
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(options.source.as_str(), path, KIND, options.flags(), data.as_c_str())
}

fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::system("run fusermount3", path, error);
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    // The socket is the helper's standard input, so that no descriptor needs to survive exec.
    let helper = Command::new("fusermount3")
        .args(["-o", &options.helper(), "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let helper = match helper {
        Ok(helper) => helper,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::NotAllowed);
        }
        Err(error) => return Err(failed(error)),
    };
    let fuse = receive_descriptor(&ours);
    drop(ours);
    let output = helper.wait_with_output().map_err(failed)?;
    fuse.map_err(failed)?.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        MountError::Helper(said.trim().trim_start_matches("fusermount3: ").to_owned())
    })
}

/// The descriptor that the peer sends; `None` if it hangs up without.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

impl Mountpoint {
    /// Whether our mount is the topmost at its path.
    pub(crate) fn is_on_top(&self) -> bool {
        mounted_at(&self.path)
            .is_ok_and(|line| line.is_some_and(|line| line.device_minor == self.device_minor))
    }

    /// Takes the mount out of the name space, even while it is in use. May block while dirty pages
    /// are written, until [`Mountpoint::abort`].
    ///
    /// `dead` says that the session has ended. Then the mount may be gone, and its device number
    /// may belong to another mount at the same path, which is left alone if it answers.
    ///
    /// # Errors
    /// The system's; `EBUSY` if another mount covers ours.
    pub(crate) fn detach(&self, dead: bool) -> io::Result<()> {
        if !self.is_on_top() {
            // Unmounting by path would hit another mount, or there is nothing to do.
            let covered = !dead && mounted_at(&self.path)?.is_some_and(|line| line.kind != KIND);
            return if covered { Err(Errno::BUSY.into()) } else { Ok(()) };
        }
        if dead && !is_stale(&self.path) {
            return Ok(());
        }
        let mut lazily = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => {
                // Once it is detached, only its connection can be used to end it.
                if self.connection().is_none() {
                    lazily |= UnmountFlags::FORCE;
                }
                Ok(rustix::mount::unmount(&self.path, lazily)?)
            }
            Err(Errno::PERM) => self.detach_by_helper(),
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    fn detach_by_helper(&self) -> io::Result<()> {
        let output =
            Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&self.path).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Ends the connection: waiting callers get an error, and so do later ones.
    ///
    /// # Errors
    /// If the kernel does not show the connection.
    pub(crate) fn abort(&self) -> io::Result<()> {
        let connection = self.connection().ok_or(io::ErrorKind::NotFound)?;
        File::options().write(true).open(connection.join("abort"))?.write_all(b"1")
    }

    /// The connection's directory, mounting the file system that shows it if need be.
    fn connection(&self) -> Option<PathBuf> {
        let connection = Path::new(CONNECTIONS).join(self.device_minor.to_string());
        if !connection.exists() {
            let flags = rustix::mount::MountFlags::empty();
            let mounted = rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", flags, None);
            tracing::debug!(?mounted, "mounting fusectl");
        }
        connection.exists().then_some(connection)
    }

    /// Sets how far the kernel reads ahead. INIT can only lower it, so it is set from outside, if
    /// we may.
    pub(crate) fn set_readahead(&self, bytes: u32) {
        let knob = format!("/sys/class/bdi/0:{}/read_ahead_kb", self.device_minor);
        if let Err(error) = std::fs::write(&knob, (bytes / 1024).to_string()) {
            tracing::debug!(%knob, %error, "readahead stays as it is");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs root or a set-uid `fusermount3`, like the tests with real mounts.
    #[test]
    fn the_helper_passes_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let fuse = mount_by_helper(dir.path(), &MountOptions::new("a,b")).unwrap();
        let line = mounted_at(dir.path()).unwrap().unwrap();
        assert_eq!(line.kind, KIND);
        let mountpoint =
            Mountpoint { path: dir.path().to_owned(), device_minor: line.device_minor };
        drop(fuse);
        // On a machine that stands still it does not show that in time.
        assert!((0..60).any(|_| is_stale(dir.path())));
        mountpoint.detach_by_helper().unwrap();
        assert_eq!(mounted_at(dir.path()).unwrap(), None);
    }

    #[test]
    fn the_helper_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let error = mount_by_helper(&none, &MountOptions::new("x")).unwrap_err();
        assert!(matches!(&error, MountError::Helper(_)), "{error}");
    }
}
