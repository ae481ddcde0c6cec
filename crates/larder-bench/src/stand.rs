//! A stand: an export of our server and mounts of it, made as a user makes them, by the binary's own
//! commands, and gone when it is dropped.
//!
//! Every contestant has a directory of its own in the export, so that none profits from what another
//! one read. All mounts have the same memory, timeouts and attribute timeouts: what is not said here is
//! the default of `larder mount`, for all of them.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::rpc::Counter;
use crate::target::{Target, mount_of};

/// Longest wait for a server to listen.
const START_MAX: Duration = Duration::from_secs(20);

/// Memory of each of our mounts: the same for all.
const MEMORY: &str = "memory=256M";

/// A client of ours that is to be measured.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Name in the report.
    pub name: &'static str,
    /// With a cache on disk, or the reference client without.
    pub cached: bool,
    /// Further mount options.
    pub options: &'static [&'static str],
    /// The tests that it runs; empty: all.
    pub only: &'static [&'static str],
}

/// Through the persistent cache.
pub const LARDER: Contestant = Contestant { name: "larder", cached: true, options: &[], only: &[] };
/// The reference client: the same code, timeouts and memory, no cache on disk.
pub const PLAIN: Contestant = Contestant { name: "plain", cached: false, options: &[], only: &[] };

/// Clients of ours that a suite measures by default. The local disk is added to all.
pub fn contestants(suite: &str) -> Vec<Contestant> {
    let udp = |name, cached| Contestant { name, cached, options: &["proto=udp"], only: &[] };
    let synchronous =
        Contestant { name: "plain-sync", options: &["sync"], only: &["small-writes"], ..PLAIN };
    match suite {
        "badros" => vec![LARDER, PLAIN, synchronous],
        "basic5" => vec![LARDER, PLAIN, udp("larder-udp", true), udp("plain-udp", false)],
        _ => vec![LARDER, PLAIN],
    }
}

/// An export and what is mounted of it.
#[derive(Debug)]
pub struct Stand {
    larder: PathBuf,
    mounts: Vec<Arc<Mount>>,
    export: Export,
    top: TempDir,
}

impl Stand {
    /// Exports an empty directory on this machine.
    ///
    /// # Errors
    /// If the server does not come up.
    pub fn new(larder: &Path) -> Result<Stand> {
        let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Stand::with(larder, listen, Command::new(larder))
    }

    /// Exports an empty directory at `listen`; `run` runs our binary where that address is.
    fn with(larder: &Path, listen: SocketAddr, run: Command) -> Result<Stand> {
        // On a real disk: /tmp may be memory, and may be closed to other users.
        let top = tempfile::Builder::new().prefix("larder-bench-").tempdir_in("/var/tmp")?;
        let dir = top.path().join("export");
        fs::create_dir(&dir)?;
        fs::create_dir(top.path().join("local"))?;
        let export = Export::start(run, &dir, listen)?;
        Ok(Stand { larder: larder.to_path_buf(), mounts: Vec::new(), export, top })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.export.address
    }

    /// Mounts for a contestant, with an empty cache.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount(&mut self, contestant: &Contestant) -> Result<Target> {
        let home = self.top.path().join(contestant.name);
        let back = self.export.dir.join(contestant.name);
        fs::create_dir_all(home.join("mnt"))?;
        fs::create_dir_all(&back)?;
        let cache = contestant.cached.then(|| home.join("cache"));
        let mut options = vec![MEMORY];
        options.extend(contestant.options);
        if !contestant.cached {
            options.push("plain");
        }
        let mount = Arc::new(Mount {
            larder: self.larder.clone(),
            source: format!("nfs://{}/", self.export.address),
            mountpoint: home.join("mnt"),
            cache: cache.clone(),
            options: options.join(","),
            mounted: Mutex::new(false),
        });
        self.mounts.push(mount.clone());
        mount.mount()?;
        let mountpoint = mount.mountpoint.clone();
        let mut target = Target::new(contestant.name, &mountpoint.join(contestant.name));
        target.back = Some(back.clone());
        target.counter = Counter::Daemon { larder: self.larder.clone(), mountpoint };
        target.disks = std::iter::once(back).chain(cache.map(|cache| cache.join("data"))).collect();
        target.options =
            format!("{} -o {}", mount_of(&target.dir).unwrap_or_default(), mount.options);
        target.only = contestant.only.to_vec();
        target.restart = Some(Arc::new(move |empty| mount.restart(empty)));
        Ok(target)
    }

    /// The local disk on which the server and the caches are.
    pub fn local(&self) -> Target {
        let dir = self.top.path().join("local");
        let mut target = Target::new("local", &dir);
        target.options = mount_of(&dir).unwrap_or_default();
        target.disks = vec![dir];
        target
    }
}

/// Our server, as a process.
#[derive(Debug)]
struct Export {
    child: Child,
    dir: PathBuf,
    address: SocketAddr,
}

impl Export {
    fn start(mut run: Command, dir: &Path, address: SocketAddr) -> Result<Export> {
        run.arg("export").arg(dir).args(["--listen", &address.to_string(), "--no-root-squash"]);
        // A group of its own: Ctrl-C ends the run, and the run ends its server, in this order.
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = run.spawn().context("cannot start larder export")?;
        let mut export = Export { child, dir: dir.to_path_buf(), address };
        let deadline = Instant::now() + START_MAX;
        while TcpStream::connect_timeout(&address, START_MAX).is_err() {
            let ended = export.child.try_wait()?;
            ensure!(ended.is_none(), "larder export ended at once ({})", ended.unwrap_or_default());
            ensure!(Instant::now() < deadline, "larder export does not listen on {address}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(export)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        drop(self.child.wait());
    }
}

/// A mount of ours that is unmounted when the stand goes.
#[derive(Debug)]
struct Mount {
    larder: PathBuf,
    source: String,
    mountpoint: PathBuf,
    cache: Option<PathBuf>,
    options: String,
    mounted: Mutex<bool>,
}

impl Mount {
    fn mount(&self) -> Result<()> {
        let mut mounted = self.mounted();
        let mut command = Command::new(&self.larder);
        command.args(["mount", &self.source]).arg(&self.mountpoint).arg("--cache");
        match &self.cache {
            Some(dir) => command.arg(dir),
            None => command.arg("none"),
        };
        succeed(command.args(["-o", &self.options]))?;
        *mounted = true;
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        let mut mounted = self.mounted();
        if std::mem::take(&mut *mounted) {
            succeed(Command::new(&self.larder).arg("umount").arg(&self.mountpoint))?;
        }
        Ok(())
    }

    fn restart(&self, empty: bool) -> Result<()> {
        self.unmount()?;
        if let (true, Some(cache)) = (empty, &self.cache) {
            fs::remove_dir_all(cache).context("cannot empty the cache")?;
        }
        self.mount()
    }

    fn mounted(&self) -> MutexGuard<'_, bool> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        for mount in &self.mounts {
            if let Err(error) = mount.unmount() {
                eprintln!("larder: {error:#}");
            }
        }
    }
}

/// Runs a command of ours that must succeed; its own line says why it did not.
fn succeed(command: &mut Command) -> Result<()> {
    // Through files: a daemon that is left behind may hold the other end of a pipe.
    let mut said = tempfile::tempfile()?;
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said.try_clone()?)
        .process_group(0)
        .status()?;
    if status.success() {
        return Ok(());
    }
    let mut line = String::new();
    std::io::Seek::rewind(&mut said)?;
    std::io::Read::read_to_string(&mut said, &mut line)?;
    bail!("{}", line.trim().trim_start_matches("larder: "))
}
