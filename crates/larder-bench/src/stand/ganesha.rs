//! nfs-ganesha beside our own server: a third-party server under the same load.
//!
//! Over UDP nfs-ganesha 4.3 never frees the bytes that a READ returned (mended by ntirpc's change
//! 266). So in a small machine its memory is what it takes beside the page cache, and it is started
//! again before each round.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::confined::{Group, OwnMemory, confine};
use super::served::Names;
use crate::link::netns::Netns;
use crate::process::{self, START_MAX, log_to, still_runs};

const PROGRAM: &str = "ganesha.nfsd";
/// Where it serves NFS, TCP and UDP.
const NFS_PORT: u16 = 2049;
/// Where it serves MOUNT.
const MOUNT_PORT: u16 = 20_048;

/// What its processes may take for themselves in a small machine, in bytes: with nothing beside the
/// page cache the kernel kills it, as calls wait for a slow disk. In a round of suite `basic5` in
/// full, 1.7 GiB are read over UDP.
pub(super) const OWN: OwnMemory = OwnMemory { ahead_bytes: 60 << 20, most_bytes: 3 << 30 };

/// The file that has it started again when it ends; it is removed then.
const AGAIN: &str = "again";

/// Made before it starts: it and its port mapper write to fixed paths, so it gets a /run of its
/// own. The copies of our mounts in there must not keep them busy.
const START: &str = "umount --all --lazy --no-canonicalize --types fuse.larder 2>/dev/null; \
     mount -t tmpfs tmpfs /run && mkdir -p /run/ganesha /run/rpcbind && \
     mount -t tmpfs tmpfs /var/lib/nfs && mkdir /var/lib/nfs/ganesha && \
     { rpcbind -f & } && while ! test -S /run/rpcbind.sock; do sleep 0.05; done && \
     while ganesha.nfsd -F -f \"$1/conf\" -L \"$1/log\" -p /run/ganesha.pid; \
         rm \"$1/again\"; do rm -f /run/ganesha.pid; done";

/// A running nfs-ganesha, in a network namespace of its own.
#[derive(Debug)]
pub(super) struct Ganesha {
    child: Child,
    /// Its export; clients mount this path.
    pub(super) dir: PathBuf,
    /// Its own files.
    state: PathBuf,
    pub(super) netns: Netns,
}

/// Has the file system write each change of names in and below `dir` to its disk before the change
/// returns: nfs-ganesha does not sync them. Directories that are made in it inherit that.
fn sync_names(dir: &Path) -> Result<()> {
    let open = File::open(dir)?;
    let flags = ioctl_getflags(&open)?;
    ioctl_setflags(&open, flags | IFlags::DIRSYNC).with_context(|| {
        format!(
            "{} cannot sync names, as nfs-ganesha must here (chattr +D): take a --dir on ext4, or \
             leave nfs-ganesha out with --only",
            dir.display()
        )
    })
}

impl Ganesha {
    /// Exports `dir`, with its own files in `state`.
    ///
    /// # Errors
    /// If it is not installed, or does not start; or if names are to be durable, and the file
    /// system of `dir` cannot do that.
    pub(super) fn start(
        state: &Path,
        dir: &Path,
        names: Names,
        group: Option<&Group>,
    ) -> Result<Ganesha> {
        fs::create_dir_all(state)?;
        fs::create_dir_all(dir)?;
        if names == Names::Durable {
            sync_names(dir)?;
        }
        fs::write(state.join("conf"), configuration(dir))?;
        let netns = Netns::create(None)?;
        let mut run = Command::new("unshare");
        run.args(["--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child"]);
        run.args(["sh", "-c", START, "sh"]).arg(state);
        let mut run = confine(group, run);
        let said = state.join("said");
        log_to(&mut run, &said)?;
        let child = netns.spawn(run.stdin(Stdio::null()).process_group(0))?;
        let mut ganesha =
            Ganesha { child, dir: dir.to_path_buf(), state: state.to_path_buf(), netns };
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

    /// What starts it again.
    pub(super) fn renewal(&self) -> Renewal {
        let address = SocketAddr::from((self.netns.inside(), NFS_PORT));
        Renewal { again: self.state.join(AGAIN), leader: self.pid(), address }
    }

    /// Mount options that it takes.
    pub(super) fn option() -> String {
        format!("mountport={MOUNT_PORT}")
    }
}

/// Ends it and starts it again, with the memory that it had at first.
#[derive(Clone, Debug)]
pub(super) struct Renewal {
    again: PathBuf,
    leader: u32,
    address: SocketAddr,
}

impl Renewal {
    /// Returns when it serves again. What was closed by a client is on its disk.
    ///
    /// # Errors
    /// If it does not run, or does not start.
    pub(super) fn renew(&self) -> Result<()> {
        fs::write(&self.again, "")?;
        ensure!(process::kill_of_group(self.leader, PROGRAM), "nfs-ganesha does not run");
        process::wait_for("nfs-ganesha's next start", START_MAX, || {
            let has_ended = !self.again.exists();
            Ok(TcpStream::connect_timeout(&self.address, START_MAX).ok().filter(|_| has_ended))
        })?;
        Ok(())
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
    for program in [PROGRAM, "rpcbind"] {
        let found = process::find(program).is_some();
        ensure!(found, "{program} is not installed (Debian: nfs-ganesha nfs-ganesha-vfs rpcbind)");
    }
    Ok(())
}
