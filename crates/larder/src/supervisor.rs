//! The supervisor, which keeps a mount alive: it holds the mount's [`Session`], and does nothing
//! that could fail. A *worker*, a child with the same command line and [`ROLE`], serves; when it
//! dies another takes over, and calls on the mount wait for that.
//!
//! When workers die repeatedly ([`crashes`]), the next one has the role of [`Role::Broken`] and
//! answers every call with EIO, until `larder upgrade` asks for another attempt, or the mount is
//! unmounted.

mod crashes;
mod systemd;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use larder_fuse::Session;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use crate::clock::{Since, clock};
use crate::daemon::{self, Announce};
use crate::link::{ENDED, LEFT, READY, Role, SERVING, TRYING};
use crate::plan::Plan;
use crate::runtime_dir::Record;
use crate::signals::{Request, Requests};
use crate::traces::{Traces, record};
use crate::{front_door, log, login};
use crashes::{Crashes, Next};
pub(crate) use systemd::from_fd_store;

/// Hidden option of `larder mount`: we are a worker, in this role.
const ROLE: &str = "--worker";

/// Hidden option of `larder mount`: the mountpoint, resolved.
const AT: &str = "--at";

/// Hidden option of `larder mount`: how many workers died before.
const RESTARTS: &str = "--restarts";

/// Pause between two workers that only have to fail calls, and die even so.
const BROKEN_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two looks at a worker that ends.
const END_PAUSE: Duration = Duration::from_millis(2);

/// So long a killed worker may take to end, before another one takes over.
const LINGER: Duration = Duration::from_millis(100);

/// How a worker came to its end.
enum Outcome {
    /// In order, and the mount with it.
    Ended(ExitCode),
    /// In order, to be followed by a newer program.
    Left,
    /// It was killed, or failed.
    Died {
        /// How long it served, if it did.
        served: Option<Duration>,
        code: ExitCode,
        how: String,
    },
}

impl Outcome {
    fn failed(error: &anyhow::Error) -> Outcome {
        let how = format!("could not be employed: {error:#}");
        Outcome::Died { served: None, code: ExitCode::FAILURE, how }
    }
}

/// Mounts, unless a mount was `stored`, and keeps the mount served until it is gone.
///
/// # Errors
/// If the mount cannot be made. A worker's messages go to standard error, or to the log.
pub(crate) fn run(
    plan: &Plan,
    stored: Option<Session>,
    announce: Announce,
    log: Option<&Path>,
) -> Result<ExitCode> {
    let (server, traces, log) = Traces::begin(plan, announce, log)?;
    log::begin(log.as_deref())?;
    if stored.is_some() {
        tracing::info!("going on with the mount that systemd kept");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut supervisor = Supervisor {
            plan,
            announce,
            record: record(plan, std::process::id(), log),
            traces,
            control: server.into_listener(),
            work_dir: std::env::current_dir().context("cannot find the working directory")?,
            program: std::env::current_exe().context("cannot find our own program")?,
            session: stored,
            requests: Requests::begin()?,
            restarts: 0,
        };
        supervisor.keep().await
    })
}

struct Supervisor<'a> {
    plan: &'a Plan,
    announce: Announce,
    record: Record,
    traces: Traces,
    control: OwnedFd,
    /// Typed paths may be relative to it.
    work_dir: PathBuf,
    /// By its name: after an upgrade it is another program.
    program: PathBuf,
    /// The mount, once it is made.
    session: Option<Session>,
    requests: Requests,
    /// Workers that died.
    restarts: u64,
}

impl Supervisor<'_> {
    async fn keep(&mut self) -> Result<ExitCode> {
        let mut crashes = Crashes::default();
        let mut role = if self.session.is_some() { Role::Again } else { Role::First };
        loop {
            let outcome = match self.employ(role).await {
                // A mount that has been served is not given up because a worker cannot be started.
                Err(error) if role != Role::First => Outcome::failed(&error),
                outcome => outcome?,
            };
            match outcome {
                Outcome::Ended(code) => return Ok(code),
                Outcome::Left => {
                    tracing::info!("the worker has left; the next one goes on");
                    crashes = Crashes::default();
                    role = Role::Again;
                }
                Outcome::Died { code, .. } if self.session.is_none() => return Ok(code),
                Outcome::Died { served: None, code, how } if role == Role::First => {
                    // Its message is complete; nothing of the mount is left.
                    tracing::error!("the first worker {how} before the mount was served");
                    self.end_session();
                    return Ok(code);
                }
                Outcome::Died { served, how, .. } => {
                    self.restarts += 1;
                    tracing::error!(restarts = self.restarts, "the worker {how}");
                    let pause = match crashes.next(served) {
                        Next::After(pause) => {
                            role = if role == Role::Broken { role } else { Role::Again };
                            pause
                        }
                        Next::GiveUp => {
                            let shown = self.plan.mountpoint.display();
                            tracing::error!(
                                "workers die again and again: calls on {shown} fail from now on; \
                                 `larder upgrade {shown}` tries again"
                            );
                            let pause =
                                if role == Role::Broken { BROKEN_PAUSE } else { Duration::ZERO };
                            role = Role::Broken;
                            pause
                        }
                    };
                    tokio::select! {
                        () = clock().sleep(pause) => {}
                        request = self.requests.next() => {
                            if request == Request::End {
                                self.end_session();
                                bail!("ended by a signal while no worker was there");
                            }
                            log::reopen();
                        }
                    }
                }
            }
        }
    }

    /// Starts a worker and follows it to its end.
    async fn employ(&mut self, role: Role) -> Result<Outcome> {
        let (mut child, mut link) = self.start(role)?;
        let mut served_since: Option<Since> = None;
        let (mut last, mut is_reopened, mut is_trying) = (0, false, false);
        loop {
            let said = tokio::select! {
                said = link.read_u8() => said.ok(),
                request = self.requests.next() => {
                    match request {
                        // It unmounts, and then ends.
                        Request::End => terminate(&child),
                        Request::Reopen => {
                            log::reopen();
                            is_reopened = true;
                            hang_up(&child, served_since.is_some() || is_trying);
                        }
                    }
                    continue;
                }
            };
            match said {
                Some(READY) => {
                    if let Err(error) = self.hand_over(&link) {
                        // Its end of the link closes, and it exits.
                        drop(link);
                        let _ = child.wait();
                        return Err(error);
                    }
                }
                Some(said @ (TRYING | SERVING)) => {
                    is_trying = said == TRYING;
                    served_since = (said == SERVING).then(Since::now);
                    // It began before.
                    hang_up(&child, is_reopened);
                    match self.announce(is_trying) {
                        Err(error) if role == Role::First => {
                            // Nothing must be left: it unmounts, and then ends.
                            terminate(&child);
                            let _ = child.wait();
                            return Err(error);
                        }
                        Err(error) => tracing::warn!("{error:#}"),
                        Ok(()) => {}
                    }
                }
                Some(byte) => last = byte,
                None => break,
            }
        }
        let status = end(child).await.context("cannot wait for the worker")?;
        let code = status.and_then(|status| status.code());
        let code = code.and_then(|code| u8::try_from(code).ok());
        Ok(match last {
            ENDED => Outcome::Ended(ExitCode::from(code.unwrap_or(1))),
            LEFT => Outcome::Left,
            _ => Outcome::Died {
                served: served_since.map(Since::elapsed),
                code: ExitCode::from(code.filter(|code| *code != 0).unwrap_or(1)),
                how: match status.map(|status| (status.signal(), status)) {
                    Some((Some(signal), _)) => format!("was killed by signal {signal}"),
                    Some((None, status)) => format!("ended with {status}"),
                    None => "was killed, and the kernel has yet to let go of it".to_owned(),
                },
            },
        })
    }

    fn start(&self, role: Role) -> Result<(Child, UnixStream)> {
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().context("cannot make a socket")?;
        ours.set_nonblocking(true).context("cannot make a socket")?;
        let role = clap::ValueEnum::to_possible_value(&role).expect("all roles have names");
        let given: Vec<OsString> = std::env::args_os().skip(1).collect();
        let mut command = Command::new(&self.program);
        if let Some(password) = &self.plan.back.asked {
            login::hand(password, &mut command);
        }
        let child = command
            .args(given)
            .args([ROLE, role.get_name(), RESTARTS, &self.restarts.to_string(), AT])
            .arg(&self.plan.mountpoint)
            .current_dir(&self.work_dir)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(self.control.try_clone().context("no descriptor left")?))
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok((child, UnixStream::from_std(ours)?))
    }

    /// Gives the mount to the worker; makes it first if there is none yet.
    fn hand_over(&mut self, link: &UnixStream) -> Result<()> {
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                let options = front_door::fuse_options(self.plan, self.plan.back.cache.is_some());
                let opened = Session::open(&self.plan.mountpoint, &options)?;
                systemd::store(&opened);
                none.insert(opened)
            }
        };
        session.send(link).map_err(|error| anyhow!("cannot hand the mount over: {error}"))
    }

    /// Records the state of the mount for other commands; the first time, tells the command that
    /// waits.
    fn announce(&mut self, is_trying: bool) -> Result<()> {
        self.traces.put(&Record { is_trying, ..self.record.clone() })?;
        systemd::ready();
        if self.announce == Announce::Parent
            && let Some(log) = &self.record.log
        {
            daemon::ready(log)?;
            self.announce = Announce::Nobody;
        }
        Ok(())
    }

    fn end_session(&mut self) {
        let Some(session) = self.session.take() else { return };
        systemd::forget(&session);
        if let Err(error) = session.end() {
            tracing::error!(%error, "cannot unmount");
        }
    }
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            systemd::forget(session);
        }
    }
}

fn terminate(child: &Child) {
    send(child, rustix::process::Signal::TERM);
}

/// Waits for the end of a worker that has closed its end of the link. `None`: it was killed while
/// one of its threads has the kernel drop pages that a request without an answer has locked (see
/// `notify` in larder-fuse). That thread ends when another worker has answered; everything else of
/// it is gone.
async fn end(mut child: Child) -> std::io::Result<Option<ExitStatus>> {
    let mut dead_since: Option<Since> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        dead_since = is_dead(child.id()).then(|| dead_since.unwrap_or_else(Since::now));
        if dead_since.is_some_and(|since| since.elapsed() > LINGER) {
            std::thread::spawn(move || child.wait());
            return Ok(None);
        }
        clock().sleep(END_PAUSE).await;
    }
}

/// Whether a child's first thread has ended, as when the process was killed.
fn is_dead(pid: u32) -> bool {
    let about = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // The name, in brackets, may have any characters (proc_pid_stat(5)).
    let state = about.ok().and_then(|about| Some(about.rsplit_once(") ")?.1.chars().next()));
    state.flatten().is_some_and(|state| matches!(state, 'Z' | 'X'))
}

/// Has a worker open its log again, if it `listens` already: before that, the signal would end it.
fn hang_up(child: &Child, listens: bool) {
    if listens {
        send(child, rustix::process::Signal::HUP);
    }
}

fn send(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    // It is our child and was not reaped, so the number is still its own.
    let _ = rustix::process::kill_process(pid, signal);
}
