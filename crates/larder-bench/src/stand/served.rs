//! The server of a stand, as a process.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::confined::{Group, confine};
use crate::link::netns::Netns;
use crate::process::{self, START_MAX};

/// What Samba calls the directory.
const SHARE: &str = "share";

/// How the directory of a stand is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// By our own NFS server.
    #[default]
    Nfs,
    /// By Samba, to guests.
    Smb,
}

impl Protocol {
    /// What is mounted.
    pub(super) fn source(self, address: SocketAddr) -> String {
        match self {
            Protocol::Nfs => format!("nfs://{address}/"),
            Protocol::Smb => format!("smb://{address}/{SHARE}"),
        }
    }

    /// Mount options that it takes.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Protocol::Nfs => &[],
            Protocol::Smb => &["guest"],
        }
    }
}

/// When a server answers a change of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// When it is on the disk.
    Durable,
    /// Before.
    Asynchronous,
}

/// How our server is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct How<'a> {
    pub(super) names: Names,
    /// How long each operation of its disk takes, if not the machine's own time.
    pub(super) disk_latency: Option<Duration>,
    pub(super) group: Option<&'a Group>,
}

/// Our server, as a process.
#[derive(Debug)]
pub(super) struct Export {
    child: Child,
    pub(super) dir: PathBuf,
    pub(super) address: SocketAddr,
}

impl Export {
    /// Ours.
    pub(super) fn nfs(
        larder: &Path,
        dir: &Path,
        address: SocketAddr,
        netns: Option<&Netns>,
        how: How<'_>,
    ) -> Result<Export> {
        let mut run = Command::new(larder);
        run.arg("export").arg(dir).args(["--listen", &address.to_string(), "--no-root-squash"]);
        if how.names == Names::Asynchronous {
            run.arg("--async-names");
        }
        if let Some(latency) = how.disk_latency {
            run.args(["--disk-latency", &format!("{}us", latency.as_micros())]);
        }
        let mut run = confine(how.group, run);
        Export::listening(&mut run, dir, address, netns)
    }

    /// Samba, for guests who work as root, with all its files in `state`.
    pub(super) fn smb(
        state: &Path,
        dir: &Path,
        address: SocketAddr,
        netns: Option<&Netns>,
        group: Option<&Group>,
    ) -> Result<Export> {
        fs::create_dir_all(state)?;
        let place = state.display();
        let folders = ["private dir", "lock directory", "state directory", "cache directory"];
        let folders = folders.into_iter().chain(["pid directory", "ncalrpc dir"]);
        let folders: String = folders.map(|name| format!(" {name} = {place}\n")).collect();
        let configuration = format!(
            "[global]\n server role = standalone server\n disable netbios = yes\n smb ports = {}\n{folders} \
             log file = {place}/log\n load printers = no\n disable spoolss = yes\n map to guest = Bad User\n \
             server min protocol = SMB2_10\n\
             [{SHARE}]\n path = {}\n read only = no\n guest ok = yes\n force user = root\n",
            address.port(),
            dir.display()
        );
        let conf = state.join("smb.conf");
        fs::write(&conf, configuration)?;
        let mut run = Command::new("smbd");
        run.args(["--foreground", "--no-process-group", "--configfile"]).arg(&conf);
        let mut run = confine(group, run);
        Export::listening(&mut run, dir, address, netns)
    }

    /// Its process, which leads a group.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts a server and waits until it listens.
    fn listening(
        run: &mut Command,
        dir: &Path,
        address: SocketAddr,
        netns: Option<&Netns>,
    ) -> Result<Export> {
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = spawn_at(run, netns)?;
        let mut export = Export { child, dir: dir.to_path_buf(), address };
        process::wait_for("the server's start", START_MAX, || {
            let ended = export.child.try_wait()?;
            ensure!(ended.is_none(), "the server ended at once ({})", ended.unwrap_or_default());
            Ok(TcpStream::connect_timeout(&address, START_MAX).ok())
        })?;
        Ok(export)
    }
}

/// Starts a program where a server is to be.
pub(super) fn spawn_at(command: &mut Command, netns: Option<&Netns>) -> Result<Child> {
    match netns {
        Some(netns) => netns.spawn(command),
        None => command.spawn().with_context(|| format!("cannot run {command:?}")),
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        process::end(&mut self.child);
    }
}
