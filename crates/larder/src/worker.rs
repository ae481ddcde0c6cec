//! A process that serves a mount which its supervisor holds; see [`crate::supervisor`].

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use larder_fuse::{Begin, Session};
use rustix::stdio;

use crate::control::Server;
use crate::mounted::{self, Announce, End};
use crate::runtime_dir::RuntimeDir;
use crate::stack::Plan;
use crate::supervisor::{ENDED, LEFT, READY, Role, SERVING, TRYING};
use crate::{broken, daemon, log};

/// Who holds the mount that we serve.
#[derive(Clone)]
pub(crate) enum Hold {
    /// We do: it ends with us.
    Ours,
    /// A supervisor does.
    Supervised(Arc<Link>),
}

/// Whoever keeps a mount alive, as its worker knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper {
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
    pub(crate) fn keeper(&self) -> Option<Keeper> {
        match self {
            Hold::Ours => None,
            Hold::Supervised(link) => Some(link.keeper),
        }
    }

    /// The mount is gone, so our end is in order, whatever it looks like.
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
    keeper: Keeper,
}

impl Link {
    /// Takes over what the supervisor put in the place of standard input and output: the link, and
    /// the control socket.
    fn inherit(role: Role, restarts: u64, socket: &Path) -> Result<(Link, Server)> {
        let taken = |fd: rustix::fd::BorrowedFd<'_>| -> Result<OwnedFd> {
            Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
        };
        let stream = UnixStream::from(taken(stdio::stdin()).context("no link to a supervisor")?);
        let control = taken(stdio::stdout()).context("no control socket")?;
        let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        stdio::dup2_stdin(&nothing)?;
        stdio::dup2_stdout(&nothing)?;
        let keeper = Keeper { pid: parent_id(), restarts };
        Ok((Link { stream, role, keeper }, Server::from_listener(control, socket)))
    }

    /// Whether somebody has served the mount before us.
    pub(crate) fn begin(&self) -> Begin {
        if self.role == Role::First { Begin::First } else { Begin::Again }
    }

    /// Says that we are ready, and takes the mount. Blocks until it is there.
    ///
    /// # Errors
    /// If the supervisor does not give it, since it cannot be made or it is gone.
    pub(crate) fn take_session(&self) -> Result<Session> {
        self.say(READY);
        Session::receive(self.stream.as_fd()).context("the supervisor gives no mount")
    }

    /// Workers that died before.
    pub(crate) fn restarts(&self) -> u64 {
        self.keeper.restarts
    }

    /// Says that the mount is gone, so that our end is in order, whatever it looks like.
    pub(crate) fn ended(&self) {
        self.say(ENDED);
    }

    /// Says that nothing is mounted yet, since the server does not answer.
    fn trying(&self) {
        self.say(TRYING);
    }

    /// Says that requests are answered.
    pub(crate) fn serving(&self) {
        self.say(SERVING);
    }

    /// Says that everything is answered, and that another worker is to go on.
    pub(crate) fn left(&self) {
        self.say(LEFT);
    }

    fn say(&self, byte: u8) {
        use std::io::Write;
        if (&self.stream).write_all(&[byte]).is_err() {
            tracing::debug!("nobody supervises us any more");
        }
    }

    /// Waits, on a thread of its own, for the death of the supervisor. The mount is served on, by
    /// us alone, until it is unmounted.
    fn watch(self: &Arc<Self>) -> Result<()> {
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

/// Serves a mount in this role until its end, or ours.
///
/// # Errors
/// If the stack cannot be put together, or dirty data did not reach the server at the mount's end.
pub(crate) fn run(
    plan: &Plan,
    role: Role,
    restarts: u64,
    announce: Announce,
    log: Option<&Path>,
) -> Result<ExitCode> {
    if announce == Announce::Parent {
        // Signals come from the supervisor, which mounts.
        daemon::leave_session();
    }
    let runtime_dir = RuntimeDir::open()?;
    let (link, server) = Link::inherit(role, restarts, &runtime_dir.socket(&plan.mountpoint))?;
    let log = match (log, announce) {
        (Some(path), _) => Some(path.to_owned()),
        (None, Announce::Parent) => Some(runtime_dir.log(&plan.mountpoint)),
        (None, Announce::Nobody) => None,
    };
    log::begin(log.as_deref())?;
    // What panicked may have left anything behind: the next worker begins from what is safe.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        report(panic);
        std::process::abort();
    }));
    let (link, record) = (Arc::new(link), mounted::record(plan, parent_id(), log));
    let serving = |record: &crate::runtime_dir::Record| {
        if record.is_trying {
            link.trying();
        } else {
            link.watch()?;
            link.serving();
        }
        match (announce, &record.log) {
            (Announce::Parent, Some(log)) => daemon::let_go(log),
            _ => Ok(()),
        }
    };
    let end = match role {
        Role::First | Role::Again => {
            mounted::serve(plan, Hold::Supervised(Arc::clone(&link)), record, server, serving)?
        }
        Role::Broken => broken::serve(&link, record, server, serving)?,
    };
    if matches!(end, End::Left) {
        link.left();
        // Nothing is to be taken down: what is there is for the next worker.
        std::process::exit(0);
    }
    Ok(ExitCode::SUCCESS)
}
