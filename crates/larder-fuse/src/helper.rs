//! The process of `larder-helper` that works for us.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The program's name.
const PROGRAM: &str = "larder-helper";

/// How long it may take to answer: it does nothing that waits.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A running one. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Helper {
    /// `None` at the end only.
    link: Option<OwnedFd>,
    process: Child,
    program: PathBuf,
}

impl Helper {
    /// Starts it: from the directory of our own program, else from `PATH`.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not there: without it we may not register local files.
    pub(crate) fn start() -> io::Result<Helper> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for way in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, way, Some(ANSWER_MAX))?;
        }
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into());
        let process = Command::new(&program)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's signals are for us.
            .process_group(0)
            .spawn()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => denied(
                    "it takes root, or larder-helper (set-uid root) beside larder or in PATH"
                        .into(),
                ),
                _ => denied(format!("cannot start {}: {error}", program.display())),
            })?;
        Ok(Helper { link: Some(ours), process, program })
    }

    /// The socket to ask through.
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_ref().expect("it is open until the end").as_fd()
    }

    /// An answer of it, as an error for people.
    pub(crate) fn explain(&self, errno: Errno) -> io::Error {
        let program = self.program.display();
        match errno {
            Errno::PERM => denied(format!(
                "{program} lacks its privilege: chown root {program}; chmod 4755 {program} (without \
                 nosuid on its file system, or no_new_privs on us)"
            )),
            Errno::ACCESS | Errno::OPNOTSUPP => io::Error::new(
                io::Error::from(errno).kind(),
                format!(
                    "larder-helper takes only files of one's own, of a local file system: {errno}"
                ),
            ),
            _ => errno.into(),
        }
    }
}

fn denied(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

impl Drop for Helper {
    fn drop(&mut self) {
        // This ends the helper, unless it is stuck. Both calls fail only if it is gone already.
        drop(self.link.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
