//! The link between a supervisor and its worker: its messages, and the worker's end.
//!
//! | from | over the link | |
//! |---|---|---|
//! | worker | [`TRYING`] | the server does not answer and the worker keeps trying, nothing is mounted; only before [`READY`] |
//! | worker | [`READY`] | server and cache are available, a mount would work |
//! | supervisor | the session | made now if it is the first worker |
//! | worker | [`SERVING`] | requests are answered |
//! | worker | [`LEFT`], then its end | everything is answered, a newer program is to take over |
//! | worker | [`ENDED`], then its end | the mount is gone, in order |
//! | worker | its end | it died |
//!
//! The link is the worker's standard input, the control socket its standard output: a client that
//! connects while no worker is there waits for the next one.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use larder_fuse::{Begin, Session};
use rustix::stdio;

use crate::control::Server;

/// The messages of a worker.
pub(crate) const TRYING: u8 = b't';
/// As above.
pub(crate) const READY: u8 = b'r';
/// As above.
pub(crate) const SERVING: u8 = b's';
/// As above.
pub(crate) const LEFT: u8 = b'l';
/// As above.
pub(crate) const ENDED: u8 = b'e';

/// The task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Serve a mount that begins.
    First,
    /// Go on with a mount that others have served.
    Again,
    /// Answer with errors only.
    Broken,
}

/// The holder of the mount that this process serves.
#[derive(Clone)]
pub(crate) enum Hold {
    /// We do: it ends with us.
    Ours,
    /// A supervisor does.
    Supervised(Arc<Link>),
}

/// The supervisor of a mount, as its worker knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supervisor {
    /// The supervisor's process.
    pub(crate) pid: u32,
    /// Workers that died before.
    pub(crate) restarts: u64,
}

impl Hold {
    /// Whether the mount ends with us.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Hold::Ours)
    }

    /// Whether the mount is there already, and others have served it.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self, Hold::Supervised(link) if link.begin() == Begin::Again)
    }

    /// The supervisor, if there is one.
    pub(crate) fn supervisor(&self) -> Option<Supervisor> {
        match self {
            Hold::Ours => None,
            Hold::Supervised(link) => Some(link.supervisor),
        }
    }

    /// Reports that the mount is gone, so that the end of this process counts as orderly, whatever
    /// its exit status.
    pub(crate) fn tell_end(&self) {
        if let Hold::Supervised(link) = self {
            link.ended();
        }
    }
}

/// The worker's end of the link to its supervisor.
pub(crate) struct Link {
    stream: UnixStream,
    role: Role,
    supervisor: Supervisor,
}

impl Link {
    /// Takes over what the supervisor passed as standard input and output: the link, and the
    /// control socket.
    pub(crate) fn inherit(role: Role, restarts: u64, socket: &Path) -> Result<(Link, Server)> {
        let taken = |fd: rustix::fd::BorrowedFd<'_>| -> Result<OwnedFd> {
            Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
        };
        let stream = UnixStream::from(taken(stdio::stdin()).context("no link to a supervisor")?);
        let control = taken(stdio::stdout()).context("no control socket")?;
        let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        stdio::dup2_stdin(&nothing)?;
        stdio::dup2_stdout(&nothing)?;
        let supervisor = Supervisor { pid: parent_id(), restarts };
        Ok((Link { stream, role, supervisor }, Server::from_listener(control, socket)))
    }

    /// Whether another process has served the mount before.
    pub(crate) fn begin(&self) -> Begin {
        if self.role == Role::First { Begin::First } else { Begin::Again }
    }

    /// Reports that this worker is ready, and takes the mount. Blocks until it arrives.
    ///
    /// # Errors
    /// If the supervisor does not send it, because it cannot be made, or because the supervisor is
    /// gone.
    pub(crate) fn take_session(&self) -> Result<Session> {
        self.say(READY);
        Session::receive(self.stream.as_fd()).context("the supervisor gives no mount")
    }

    /// Workers that died before.
    pub(crate) fn restarts(&self) -> u64 {
        self.supervisor.restarts
    }

    /// Reports that the mount is gone, so that the end of this process counts as orderly, whatever
    /// its exit status.
    pub(crate) fn ended(&self) {
        self.say(ENDED);
    }

    /// Says that nothing is mounted yet, since the server does not answer.
    pub(crate) fn trying(&self) {
        self.say(TRYING);
    }

    /// Says that requests are answered.
    pub(crate) fn serving(&self) {
        self.say(SERVING);
    }

    /// Reports that everything is answered, and that another worker is to continue.
    pub(crate) fn left(&self) {
        self.say(LEFT);
    }

    fn say(&self, byte: u8) {
        use std::io::Write;
        if (&self.stream).write_all(&[byte]).is_err() {
            tracing::debug!("nobody supervises us any more");
        }
    }

    /// Waits, on a thread of its own, for the death of the supervisor. After that this process
    /// serves the mount alone, until it is unmounted.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<()> {
        let link = Arc::clone(self);
        let watch = move || {
            use std::io::Read;
            let mut byte = [0];
            while (&link.stream).read(&mut byte).is_ok_and(|len| len > 0) {}
            tracing::warn!(
                "the supervisor is gone: the mount is served on, and ends with this process"
            );
        };
        std::thread::Builder::new().name("larder-link".to_owned()).spawn(watch)?;
        Ok(())
    }
}
