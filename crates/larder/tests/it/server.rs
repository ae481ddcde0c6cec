//! Servers for tests: ours, nfs-ganesha and Samba. Gone when dropped.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use larder_testkit::{Ganesha, Options, Samba, SambaOptions, Squash};
use tempfile::TempDir;

use crate::harness::{MARKS, eventually, larder, run, scratch, stop};
use crate::ports::{free_address, free_addresses};

/// Which server a test runs against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Our own, by `larder export`.
    Larder,
    /// nfs-ganesha.
    Ganesha,
    /// Samba.
    Samba,
    /// A volume of our own, by `larder serve`.
    Volume,
}

/// Both NFS servers.
pub(crate) const BOTH: [Kind; 2] = [Kind::Larder, Kind::Ganesha];

/// A server that exports [`Server::dir`].
pub(crate) struct Server {
    /// Of the server that another one re-exports: that one's.
    dir: Option<TempDir>,
    runtime: TempDir,
    addr: SocketAddr,
    /// The command of our own one.
    verb: &'static str,
    extra: Vec<String>,
    running: Running,
}

enum Running {
    Larder(Child),
    Ganesha(Ganesha),
    Samba(Samba),
    Stopped,
}

impl Server {
    /// Exports a fresh directory, root not squashed.
    pub(crate) fn start(kind: Kind) -> Server {
        match kind {
            Kind::Larder => Server::larder(&["--no-root-squash"]),
            Kind::Ganesha => Server::ganesha(Squash::None),
            Kind::Samba => Server::samba(&SambaOptions::default()),
            Kind::Volume => Server::volume(&["--size", "8G"]),
        }
    }

    /// A new volume with these options; open to all, like the exports.
    pub(crate) fn volume(extra: &[&str]) -> Server {
        let (runtime, addr) = (scratch("larder-run-"), free_addresses(3));
        let dir = runtime.path().join("volume").to_str().unwrap().to_owned();
        let extra = std::iter::once(dir).chain(extra.iter().map(ToString::to_string)).collect();
        let (dir, running) = (None, Running::Stopped);
        let mut server = Server { dir, runtime, addr, verb: "serve", extra, running };
        server.restart();
        server
    }

    /// The metadata server of a volume whose disks are elsewhere.
    pub(crate) fn meta(options: &[&str]) -> Server {
        let mut server = Server::standby(options);
        server.restart();
        server
    }

    /// The same, not started yet.
    pub(crate) fn standby(options: &[&str]) -> Server {
        let (runtime, addr) = (scratch("larder-run-"), free_address());
        let extra = options.iter().map(ToString::to_string).collect();
        Server { dir: None, runtime, addr, verb: "meta", extra, running: Running::Stopped }
    }

    /// The directory of the volume that it serves by itself.
    pub(crate) fn volume_dir(&self) -> PathBuf {
        self.runtime.path().join("volume")
    }

    fn is_volume(&self) -> bool {
        ["serve", "meta"].contains(&self.verb)
    }

    /// Our own server with these options.
    pub(crate) fn larder(extra: &[&str]) -> Server {
        Server::larder_of(export_dir(), extra)
    }

    /// The same for a directory, which is removed with it.
    pub(crate) fn larder_of(dir: TempDir, extra: &[&str]) -> Server {
        let mut arguments = vec![dir.path().to_str().unwrap()];
        arguments.extend(extra);
        let mut server = Server::export(&arguments, scratch("larder-run-"));
        server.dir = Some(dir);
        server
    }

    /// Our own server in front of another one, with a cache between.
    pub(crate) fn reexport(behind: &Server, options: &[&str]) -> Server {
        let runtime = scratch("larder-run-");
        let cache = runtime.path().join("cache");
        let (url, options) =
            (behind.url(), behind.options(&[&[MARKS], options].concat()).join(","));
        let cache = cache.to_str().unwrap();
        let arguments = ["--source", &url, "--cache", cache, "--no-root-squash", "-o", &options];
        Server::export(&arguments, runtime)
    }

    fn export(arguments: &[&str], runtime: TempDir) -> Server {
        let addr = free_address();
        let extra = arguments.iter().map(ToString::to_string).collect();
        let (dir, running) = (None, Running::Stopped);
        let mut server = Server { dir, runtime, addr, verb: "export", extra, running };
        server.restart();
        server
    }

    /// Samba, with a file of credentials beside it.
    pub(crate) fn samba(options: &SambaOptions) -> Server {
        Server::samba_of(export_dir(), options)
    }

    /// The same for a directory, which is removed with it.
    pub(crate) fn samba_of(dir: TempDir, options: &SambaOptions) -> Server {
        let runtime = scratch("larder-run-");
        let samba = Samba::start(dir.path(), options).unwrap();
        let login = format!("username={}\npassword={}\n", Samba::USER, Samba::PASSWORD);
        let file = runtime.path().join("credentials");
        fs::write(&file, login).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let addr = samba.address();
        let dir = Some(dir);
        Server { dir, runtime, addr, verb: "", extra: vec![], running: Running::Samba(samba) }
    }

    /// The Samba that it is.
    pub(crate) fn as_samba(&mut self) -> &mut Samba {
        match &mut self.running {
            Running::Samba(samba) => samba,
            _ => panic!("not Samba"),
        }
    }

    /// The options with which it is mounted.
    pub(crate) fn options(&self, more: &[&str]) -> Vec<String> {
        let login = self.runtime.path().join("credentials");
        let login = login.exists().then(|| format!("credentials={}", login.display()));
        let guest = more.contains(&"guest");
        let login = login.filter(|_| !guest);
        login.into_iter().chain(more.iter().map(ToString::to_string)).collect()
    }

    /// nfs-ganesha.
    pub(crate) fn ganesha(squash: Squash) -> Server {
        Server::ganesha_of(export_dir(), squash)
    }

    /// The same for a directory, which is removed with it.
    pub(crate) fn ganesha_of(dir: TempDir, squash: Squash) -> Server {
        let options = Options { squash, ..Options::default() };
        let ganesha = Ganesha::start(dir.path(), &options).unwrap();
        let addr = ganesha.nfs();
        let runtime = scratch("larder-run-");
        let dir = Some(dir);
        Server { dir, runtime, addr, verb: "", extra: vec![], running: Running::Ganesha(ganesha) }
    }

    /// The exported directory, on the server's side.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.as_ref().unwrap().path().join(name)
    }

    /// The source to mount.
    pub(crate) fn url(&self) -> String {
        match &self.running {
            Running::Ganesha(server) => {
                format!("nfs://{}{}", server.host(), server.export().display())
            }
            Running::Samba(_) => format!("smb://{}/{}", self.addr, Samba::SHARE),
            _ if self.is_volume() => format!("larder://{}/", self.addr),
            _ => format!("nfs://{}/", self.addr),
        }
    }

    /// Kills the server; its port answers with a reset from then on.
    pub(crate) fn kill(&mut self) {
        match &mut self.running {
            Running::Larder(child) => {
                child.kill().unwrap();
                child.wait().unwrap();
                self.running = Running::Stopped;
            }
            Running::Samba(samba) => samba.kill().unwrap(),
            Running::Ganesha(ganesha) => ganesha.kill().unwrap(),
            Running::Stopped => panic!("it does not run"),
        }
    }

    /// Ends our own server by SIGTERM, which must be in order.
    pub(crate) fn end(&mut self) {
        run("kill", &["-TERM", &self.process().to_string()]);
        let Running::Larder(child) = &mut self.running else { panic!("not our own server") };
        assert_eq!(child.wait().unwrap().code(), Some(0));
        self.running = Running::Stopped;
    }

    /// Stops our own server at an arbitrary moment: it keeps its connections and is silent.
    pub(crate) fn freeze(&self) {
        stop(self.process());
    }

    /// Lets a frozen server go on.
    pub(crate) fn thaw(&self) {
        run("kill", &["-CONT", &self.process().to_string()]);
    }

    /// Cuts the network of a server that has one of its own, without a notification to either side,
    /// or restores it.
    pub(crate) fn cut(&mut self, is_cut: bool) {
        let done = match (&mut self.running, is_cut) {
            (Running::Ganesha(ganesha), true) => ganesha.cut(),
            (Running::Ganesha(ganesha), false) => ganesha.mend(),
            (Running::Samba(samba), true) => samba.cut(),
            (Running::Samba(samba), false) => samba.mend(),
            (Running::Larder(_) | Running::Stopped, _) => panic!("it shares the test's network"),
        };
        done.unwrap();
    }

    /// Of our own server.
    fn process(&self) -> u32 {
        let Running::Larder(child) = &self.running else { panic!("not our own server") };
        child.id()
    }

    /// Starts the server (again) on the same address.
    pub(crate) fn restart(&mut self) {
        if let Running::Ganesha(ganesha) = &mut self.running {
            return ganesha.boot().unwrap();
        }
        if let Running::Samba(samba) = &mut self.running {
            return samba.boot().unwrap();
        }
        self.begin();
        self.listens();
        if self.is_volume() {
            return;
        }
        // It listens before commands find it.
        eventually("commands find the server", || self.can_be_asked());
    }

    /// Starts our own server, which may not listen yet.
    pub(crate) fn begin(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut served = self.larder_here();
        served.arg(self.verb).args(["--listen", &self.addr.to_string()]);
        let served = served.args(&self.extra).stdin(Stdio::null()).stderr(log);
        let child = served.spawn().unwrap();
        self.running = Running::Larder(child);
    }

    /// Waits until it can be reached. Another process that listens there is not taken for it.
    pub(crate) fn listens(&mut self) {
        let Running::Larder(child) = &mut self.running else { panic!("it does not run") };
        eventually("the server listens", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the server at {} has ended: {ended:?}", self.addr);
            TcpStream::connect(self.addr).is_ok()
        });
    }

    /// Waits until our own server gives up by itself.
    pub(crate) fn fails(&mut self) {
        let Running::Larder(child) = &mut self.running else { panic!("it does not run") };
        eventually("the server ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        self.running = Running::Stopped;
    }

    /// Whether an export listens on a socket for commands.
    fn can_be_asked(&self) -> bool {
        let names = fs::read_dir(self.runtime.path().join("run")).into_iter().flatten();
        let mut sockets = names.map(|name| name.unwrap().path());
        sockets.any(|path| UnixStream::connect(path).is_ok())
    }

    /// The same with one option replaced by another.
    pub(crate) fn restart_with(&mut self, option: &str, instead: &str) {
        let given = self.extra.iter_mut().find(|given| *given == option);
        *given.expect("the server has that option") = instead.to_owned();
        self.restart();
    }

    /// The binary, with our own server's runtime directory.
    pub(crate) fn larder_here(&self) -> Command {
        let mut command = larder();
        command.env("LARDER_RUNTIME_DIR", self.runtime.path().join("run"));
        command.env("LARDER_STATE_DIR", self.runtime.path().join("state"));
        command
    }

    fn log_file(&self) -> PathBuf {
        self.runtime.path().join("log")
    }

    /// What our own server has logged since it was first started.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Whether it answers, and the end of its log: for the message of a failure.
    pub(crate) fn condition(&self) -> String {
        match &self.running {
            Running::Ganesha(ganesha) => ganesha.condition(),
            Running::Larder(_) | Running::Samba(_) | Running::Stopped => self.log(),
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addr
    }

    /// `larder stat --export`, to be run.
    pub(crate) fn stat(&self) -> Command {
        let mut command = self.larder_here();
        command.args(["stat", "--export", &self.addr.to_string()]);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} {}: its log:\n{}", self.verb, self.addr, self.log());
        }
        if let Running::Larder(child) = &mut self.running {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn export_dir() -> TempDir {
    let dir = scratch("larder-export-");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}
