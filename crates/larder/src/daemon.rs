//! Starts the daemon in the background, without a fork of our own: the program runs itself again.
//!
//! The parent runs itself with the same arguments and [`FLAG`], its standard output a pipe. The
//! child mounts, leaves the session, writes [`READY`] to the pipe and redirects standard output and
//! error to its log. Until then the child's standard error is the terminal's, so the child itself
//! reports errors there, and its exit code becomes the parent's.
//!
//! The child mounts before it leaves the session, because an automounter may wait for it
//! (automount(8), systemd.automount(5)): until that mount is made, the kernel lets only processes
//! of the automounter's own process group pass the mountpoint, and all others wait for the mount,
//! even the process that makes it.
//!
//! If the parent is gone before the child is ready, the child's write fails, and it undoes what it
//! did: nothing is left half made.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use larder_remote::smb::Password;

use crate::log::Service;
use crate::login;

/// Hidden flag of `larder mount`: we are the child.
pub(crate) const FLAG: &str = "--daemon";

/// The receiver of the news that the mount is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    /// None: this process is in the foreground.
    Nobody,
    /// The process that started us.
    Parent,
}

/// Standard output and error are the log's.
static HAS_LET_GO: AtomicBool = AtomicBool::new(false);

/// What the child writes when the mount is usable.
const READY: &[u8] = b"ready\n";

/// Runs this program in the background and waits until the mount is usable, or the child has
/// failed. The child gets `password` in its environment.
///
/// # Errors
/// If the child cannot be started.
pub(crate) fn start(password: Option<&Password>) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find our own program")?;
    let mut command = Command::new(program);
    if let Some(password) = password {
        login::hand(password, &mut command);
    }
    let mut child = command
        .args(std::env::args_os().skip(1))
        .arg(FLAG)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let mut said = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        // An error here means that the child ended without a message.
        let _ = pipe.take(READY.len() as u64).read_to_end(&mut said);
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("cannot wait for the daemon")?;
    if let Some(signal) = status.signal() {
        eprintln!("larder: the daemon was killed by signal {signal} before the mount was made");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Leaves the parent's session, so that its terminal's signals do not reach us. From then on the
/// mountpoint must not be touched before it is mounted on.
pub(crate) fn leave_session() {
    // It fails only for the leader of a process group, and then there is nothing to leave.
    let _ = rustix::process::setsid();
}

/// In the child: reports that the mount is usable, and leaves the terminal and its session.
///
/// # Errors
/// If the parent is gone, or the log cannot be opened: then the mount must be undone.
pub(crate) fn ready(log: &Path) -> Result<()> {
    leave_session();
    let mut out = std::io::stdout().lock();
    out.write_all(READY)
        .and_then(|()| out.flush())
        .context("nobody waits for the mount any more")?;
    let_go(log)
}

/// Leaves the terminal and the working directory: output goes to the log.
///
/// # Errors
/// If the log cannot be opened.
pub(crate) fn let_go(log: &Path) -> Result<()> {
    let log = open_log(log)?;
    std::env::set_current_dir("/").context("cannot leave the working directory")?;
    HAS_LET_GO.store(true, Ordering::Relaxed);
    redirect(&log)
}

/// Redirects output to this file, if the terminal was left.
///
/// # Errors
/// If that is not possible.
pub(crate) fn redirect(log: &File) -> Result<()> {
    if HAS_LET_GO.load(Ordering::Relaxed) {
        rustix::stdio::dup2_stdout(log).context("cannot let go of standard output")?;
        rustix::stdio::dup2_stderr(log).context("cannot let go of standard error")?;
    }
    Ok(())
}

/// Opens a log to append to it; it is made if it does not exist. Output that bypasses a service's
/// log is lost.
///
/// # Errors
/// If that is not possible.
pub(crate) fn open_log(path: &Path) -> Result<File> {
    let path = if Service::of(path).is_some() { Path::new("/dev/null") } else { path };
    let opened = File::options().create(true).append(true).open(path);
    opened.with_context(|| format!("cannot write the log {}", path.display()))
}
