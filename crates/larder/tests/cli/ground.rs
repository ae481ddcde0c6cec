//! Where a test plays: a directory, a runtime directory, a server, mounts; all gone afterwards.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The playground of one test.
pub(crate) struct Ground {
    folder: tempfile::TempDir,
    server: Option<Child>,
    /// Where the server listens.
    pub(crate) port: u16,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    fn new(output: &Output) -> Said {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Its standard output, if it succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its one line on standard error, if it failed with `code`.
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        self.err
    }
}

impl Ground {
    /// An empty playground with the directories `mnt` and `export`.
    pub(crate) fn new() -> Ground {
        let folder = tempfile::tempdir().unwrap();
        // The kernel lists mounts without symbolic links.
        assert_eq!(folder.path(), folder.path().canonicalize().unwrap());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ground = Ground { folder, server: None, port };
        for name in ["mnt", "export"] {
            std::fs::create_dir(ground.path(name)).unwrap();
        }
        ground
    }

    /// A playground with a server that exports `export`.
    pub(crate) fn with_server() -> Ground {
        let mut ground = Ground::new();
        ground.start_server();
        ground
    }

    /// Starts the server, and waits until it listens.
    pub(crate) fn start_server(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = self.command(&["export", &self.text("export"), "--listen", &listen]);
        self.server = Some(command.stderr(Stdio::null()).spawn().unwrap());
        wait_until("the server listens", || TcpStream::connect(&listen).is_ok());
    }

    /// Kills the server; its clients get no answer any more.
    pub(crate) fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Ends the server with a signal, and answers how it ended.
    pub(crate) fn end_server(&mut self) -> Option<i32> {
        let mut server = self.server.take().unwrap();
        send_signal(server.id(), "TERM");
        server.wait().unwrap().code()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path as an argument.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// What is mounted by [`Ground::mount`].
    pub(crate) fn source(&self) -> String {
        format!("nfs://127.0.0.1:{}/", self.port)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.args(args).env("LARDER_RUNTIME_DIR", self.path("run")).stdin(Stdio::null());
        command
    }

    /// Runs larder.
    pub(crate) fn larder(&self, args: &[&str]) -> Said {
        Said::new(&self.command(args).output().unwrap())
    }

    /// Starts larder.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Mounts the server's export at `mnt`, with the cache directory `cache`.
    pub(crate) fn mount(&self, more: &[&str]) {
        let (source, mnt, cache) = (self.source(), self.text("mnt"), self.text("cache"));
        let mut args = vec!["mount", &source, &mnt];
        if !more.contains(&"--cache") {
            args.extend(["--cache", &cache]);
        }
        args.extend(more);
        self.larder(&args).ok();
    }

    /// Unmounts `mnt`.
    pub(crate) fn umount(&self) {
        self.larder(&["umount", &self.text("mnt")]).ok();
    }

    /// Calls of a procedure since the mount.
    pub(crate) fn calls(&self, procedure: &str) -> u64 {
        let stat = self.larder(&["stat", &self.text("mnt"), "--json"]).ok();
        let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
        stat["rpc"][procedure]["calls"].as_u64().unwrap_or(0)
    }

    /// Status of all mounts.
    pub(crate) fn status(&self) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.larder(&["status", "--json"]).ok()).unwrap()
    }

    /// Process of the daemon.
    pub(crate) fn daemon(&self) -> u32 {
        u32::try_from(self.status()[0]["pid"].as_u64().unwrap()).unwrap()
    }

    /// Whether something is mounted at `mnt`.
    pub(crate) fn is_mounted(&self) -> bool {
        is_mounted(&self.path("mnt"))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.is_mounted() {
            self.larder(&["umount", "--lazy", &self.text("mnt")]);
        }
        self.kill_server();
    }
}

fn is_mounted(mountpoint: &Path) -> bool {
    let mounts = std::fs::File::open("/proc/self/mountinfo").unwrap();
    let mut lines = BufReader::new(mounts).lines().map_while(Result::ok);
    lines.any(|line| line.split(' ').nth(4).map(Path::new) == Some(mountpoint))
}

/// Sends a signal by its name.
pub(crate) fn send_signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -s {name} {pid}");
}

/// Waits until `done`, without sleeping longer than the system lets go of the processor.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}
