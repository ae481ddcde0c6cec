//! nfs-ganesha beside our own server: a third-party server under the same load.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};

use super::confined::{Group, confine};
use crate::link::netns::Netns;
use crate::process::{self, START_MAX, log_to, still_runs};

/// Where it serves NFS, TCP and UDP.
const NFS_PORT: u16 = 2049;
/// Where it serves MOUNT.
const MOUNT_PORT: u16 = 20_048;

/// What its processes need for themselves in a small machine, in bytes: calls that wait for a slow
/// disk took 115 MiB, and with 120 in all, page cache included, the kernel killed it.
pub(super) const OWN_BYTES: u64 = 120 << 20;

/// Made before it starts: it and its port mapper write to fixed paths, so it gets a /run of its
/// own. The copies of our mounts in there must not keep them busy.
const START: &str = "umount --all --lazy --no-canonicalize --types fuse.larder 2>/dev/null; \
     mount -t tmpfs tmpfs /run && mkdir -p /run/ganesha /run/rpcbind && \
     mount -t tmpfs tmpfs /var/lib/nfs && mkdir /var/lib/nfs/ganesha && \
     { rpcbind -f & } && while ! test -S /run/rpcbind.sock; do sleep 0.05; done && \
     exec ganesha.nfsd -F -f \"$1/conf\" -L \"$1/log\" -p /run/ganesha.pid";

/// A running nfs-ganesha, in a network namespace of its own.
#[derive(Debug)]
pub(super) struct Ganesha {
    child: Child,
    /// Its export; clients mount this path.
    pub(super) dir: PathBuf,
    pub(super) netns: Netns,
}

impl Ganesha {
    /// Exports `dir`, with its own files in `state`.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub(super) fn start(state: &Path, dir: &Path, group: Option<&Group>) -> Result<Ganesha> {
        fs::create_dir_all(state)?;
        fs::create_dir_all(dir)?;
        fs::write(state.join("conf"), configuration(dir))?;
        let netns = Netns::create(None)?;
        let mut run = Command::new("unshare");
        run.args(["--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child"]);
        run.args(["sh", "-c", START, "sh"]).arg(state);
        let mut run = confine(group, run);
        let said = state.join("said");
        log_to(&mut run, &said)?;
        let child = netns.spawn(run.stdin(Stdio::null()).process_group(0))?;
        let mut ganesha = Ganesha { child, dir: dir.to_path_buf(), netns };
        let address = SocketAddr::from((ganesha.netns.inside(), NFS_PORT));
        process::wait_for("nfs-ganesha's start", START_MAX, || {
            still_runs(&mut ganesha.child, "nfs-ganesha", &said)?;
            Ok(TcpStream::connect_timeout(&address, START_MAX).ok())
        })?;
        Ok(ganesha)
    }

    /// What is mounted.
    pub(super) fn source(&self) -> String {
        format!("nfs://{}:{NFS_PORT}{}", self.netns.inside(), self.dir.display())
    }

    /// Its process, which leads a group.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Mount options that it takes.
    pub(super) fn option() -> String {
        format!("mountport={MOUNT_PORT}")
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        process::end(&mut self.child);
    }
}

/// Files are touched behind its back, so it must not trust attributes that it remembers.
fn configuration(dir: &Path) -> String {
    let path = dir.display();
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {NFS_PORT}; MNT_Port = {MOUNT_PORT}; Protocols = 3; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = {path}; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Transports = TCP, UDP; Attr_Expiration_Time = 0; \
         FSAL {{ Name = VFS; }} }}\n"
    )
}

/// Whether it can be started here.
///
/// # Errors
/// What is missing.
pub(super) fn is_installed() -> Result<()> {
    for program in ["ganesha.nfsd", "rpcbind"] {
        let found = process::find(program).is_some();
        ensure!(found, "{program} is not installed (Debian: nfs-ganesha nfs-ganesha-vfs rpcbind)");
    }
    Ok(())
}
