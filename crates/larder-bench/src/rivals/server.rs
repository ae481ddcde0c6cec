//! A rival's server: a process that listens where our own server is.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::link::proxy::{self, Proxy};
use crate::process::{self, START_MAX, still_runs, wait_for};
use crate::stand::Stand;

/// A running server. Dropped, it ends, and with it what it left running.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Where clients reach it.
    address: SocketAddr,
    _proxy: Option<Proxy>,
    /// A directory with files `*.pid` of processes that it left running.
    pids: Option<PathBuf>,
}

/// A port that is free now, on the side of the link where servers are.
///
/// # Errors
/// If there is none.
pub(super) fn free_address(stand: &Stand) -> Result<SocketAddr> {
    let bind = |address: SocketAddr| TcpListener::bind(address)?.local_addr();
    let address = match stand.netns() {
        Some(netns) => netns.enter(|| bind((netns.inside(), 0).into()))?,
        None => bind(([127, 0, 0, 1], 0).into()),
    };
    address.context("no port is free")
}

impl Server {
    /// Starts a server that will listen at `address`, and waits until it does. It logs to `log`.
    ///
    /// # Errors
    /// If it ends at once, with the end of its log, or does not listen in time.
    pub(super) fn start(
        stand: &Stand,
        command: &mut Command,
        address: SocketAddr,
        log: &Path,
    ) -> Result<Server> {
        process::log_to(command, log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = stand.spawn(command)?;
        let mut server = Server { child, address, _proxy: None, pids: None };
        wait_for(&format!("{name} to listen"), START_MAX, || {
            still_runs(&mut server.child, &name, log)?;
            Ok(TcpStream::connect_timeout(&address, START_MAX).ok())
        })?;
        if let Some(shape) = stand.proxied() {
            let proxy = Proxy::start(&proxy::Options::to(address, shape))?;
            server.address = proxy.address();
            server._proxy = Some(proxy);
        }
        Ok(server)
    }

    /// Also ends the processes that are named by `*.pid` files somewhere below a directory of this
    /// server's alone.
    pub(super) fn ending_pids_below(mut self, dir: &Path) -> Server {
        self.pids = Some(dir.to_path_buf());
        self
    }

    /// Where clients reach it.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        process::end(&mut self.child);
        if let Some(dir) = &self.pids {
            end_named_below(dir, dir);
        }
    }
}

/// Kills the processes that are named below `dir`, if their command lines contain `top`: the number
/// of a dead process may belong to another one by now.
fn end_named_below(dir: &Path, top: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            end_named_below(&path, top);
        } else if path.extension().is_some_and(|extension| extension == "pid") {
            let pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            let known = |pid: &i32| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&*top.to_string_lossy())
            };
            if let Some(pid) = pid.filter(known).and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    use super::*;

    /// A process whose command line names a file, once it can be seen in /proc: `spawn` returns
    /// before that.
    fn reader_of(file: &Path) -> Child {
        let mut command = Command::new("tail");
        let mut child =
            command.args(["-n", "+1", "-f"]).arg(file).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn processes_are_ended_by_their_files_if_they_are_of_this_server() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let named = dir.path().join("sub/brick.pid");
        fs::write(&named, "\n").unwrap();
        fs::write(&elsewhere, "\n").unwrap();
        let mut ours = reader_of(&named);
        let mut other = reader_of(elsewhere.path());
        fs::write(&named, format!("{}\n", ours.id())).unwrap();
        fs::write(dir.path().join("old.pid"), other.id().to_string()).unwrap();
        fs::write(dir.path().join("empty.pid"), "").unwrap();
        end_named_below(dir.path(), dir.path());
        let ended = process::waited(&mut ours, START_MAX);
        assert_eq!(ended.and_then(|status| status.signal()), Some(Signal::KILL.as_raw()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
