//! Mounts for tests, and programs that work on them. Everything is gone when it is dropped.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

pub(crate) use crate::kernel_memory::{MayForget, kernel_remembers};
pub(crate) use crate::server::{BOTH, Kind, Server};
use crate::unmounts::when_unused;

/// Longest wait for anything that should happen soon, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Marks of free space for a cache on a disk that the machine shares: the results do not depend on
/// how full that is, as long as the tests themselves find room.
pub(crate) const MARKS: &str = "brun=3,bcull=2,bstop=1";

/// A directory that other users can reach (`/tmp` may be private), on a real disk.
pub(crate) fn scratch(prefix: &str) -> TempDir {
    tempfile::Builder::new().prefix(prefix).tempdir_in("/var/tmp").unwrap()
}

/// A mountpoint with its cache and runtime directories, mounted or not.
pub(crate) struct Mount {
    dirs: TempDir,
    url: String,
    cache: PathBuf,
    mountpoint: String,
    options: Vec<String>,
    mounted: bool,
}

impl Mount {
    /// Mounts a server with a cache.
    pub(crate) fn new(server: &Server, options: &[&str]) -> Mount {
        let mut mount = Mount::unmounted(server, options);
        mount.mount();
        mount
    }

    /// The reference client: the same protocol code and timeouts, no cache on disk.
    pub(crate) fn plain(server: &Server, options: &[&str]) -> Mount {
        let mut all = vec!["plain"];
        all.extend(options);
        Mount::new(server, &all)
    }

    /// Directories for a mount that is not made yet.
    pub(crate) fn unmounted(server: &Server, options: &[&str]) -> Mount {
        let dirs = scratch("larder-mount-");
        fs::create_dir(dirs.path().join("mnt")).unwrap();
        // Other users have to reach the mountpoint.
        fs::set_permissions(dirs.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let options = server.options(options);
        let (url, cache) = (server.url(), dirs.path().join("cache"));
        Mount { dirs, url, cache, mountpoint: "mnt".to_owned(), options, mounted: false }
    }

    /// The cache directory.
    pub(crate) fn cache(&self) -> PathBuf {
        self.cache.clone()
    }

    /// Has the cache elsewhere.
    pub(crate) fn set_cache(&mut self, cache: PathBuf) {
        self.cache = cache;
    }

    /// Sets the options of the next mount.
    pub(crate) fn set_options(&mut self, server: &Server, options: &[&str]) {
        self.options = server.options(options);
    }

    /// Sets another source.
    pub(crate) fn set_url(&mut self, url: String) {
        self.url = url;
    }

    /// Mounts elsewhere.
    pub(crate) fn set_mountpoint(&mut self, name: &str) {
        self.mountpoint = name.to_owned();
    }

    /// The test has mounted it by itself.
    pub(crate) fn mounted(&mut self) {
        self.mounted = true;
    }

    fn mountpoint(&self) -> PathBuf {
        self.dirs.path().join(&self.mountpoint)
    }

    /// A path below the mountpoint.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mountpoint().join(name)
    }

    /// The mount command, to be run.
    pub(crate) fn command(&self) -> Command {
        let plain = self.options.iter().any(|option| option == "plain");
        let mut command = self.larder();
        command.args(["mount", &self.url]).arg(self.mountpoint()).arg("--cache");
        if plain {
            command.arg("none")
        } else {
            command.arg(self.cache())
        };
        let shares_disk = !plain && self.cache.starts_with(self.dirs.path());
        let marks = shares_disk.then_some(MARKS);
        // If an option is given twice, the last one counts.
        let options: Vec<_> =
            marks.into_iter().chain(self.options.iter().map(String::as_str)).collect();
        if !options.is_empty() {
            command.arg("-o").arg(options.join(","));
        }
        command
    }

    /// The binary, with this mount's runtime directory.
    pub(crate) fn larder(&self) -> Command {
        let mut command = larder();
        command.env("LARDER_RUNTIME_DIR", self.dirs.path().join("run"));
        command
    }

    /// Mounts.
    pub(crate) fn mount(&mut self) {
        succeed(&mut self.command());
        self.mounted = true;
    }

    /// Unmounts, which must succeed; returns how long it took.
    pub(crate) fn unmount(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        when_unused(&self.mountpoint(), || {
            let start = Instant::now();
            let unmounted = self.larder().arg("umount").arg(self.mountpoint()).output().unwrap();
            took = start.elapsed();
            unmounted
        });
        self.mounted = false;
        took
    }

    /// Unmounts and mounts again, with nothing of the files left in the page cache.
    pub(crate) fn remount(&mut self) {
        self.unmount();
        MayForget::now().everything();
        self.mount();
    }

    /// Waits until this much of what was read is in the cache.
    pub(crate) fn landed(&self, bytes: u64) {
        let list = || {
            let mut list = self.larder();
            list.args(["cache", "ls", "--json"]).arg(self.mountpoint());
            list
        };
        eventually("what was read is in the cache", || held_bytes(&mut list()) >= bytes);
    }

    /// `larder status --json` of this mount.
    pub(crate) fn status(&self) -> serde_json::Value {
        self.json(&["status"])
    }

    /// Calls of a procedure since the mount.
    pub(crate) fn calls(&self, procedure: &str) -> u64 {
        self.json(&["stat"])["rpc"][procedure]["calls"].as_u64().unwrap_or(0)
    }

    /// Calls of all procedures since the mount.
    pub(crate) fn all_calls(&self) -> u64 {
        self.calls_by_procedure().values().sum()
    }

    /// Calls of each procedure since the mount.
    pub(crate) fn calls_by_procedure(&self) -> BTreeMap<String, u64> {
        let stat = self.json(&["stat"]);
        let rpc = stat["rpc"].as_object().unwrap();
        rpc.iter().map(|(name, of)| (name.clone(), of["calls"].as_u64().unwrap())).collect()
    }

    /// Messages of each kind that the kernel has sent.
    pub(crate) fn messages(&self) -> BTreeMap<String, u64> {
        let stat = self.json(&["stat"]);
        let counts = stat["fuse"].as_object().unwrap().iter();
        counts.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect()
    }

    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let mut command = self.larder();
        command.args(args).arg(self.mountpoint()).arg("--json");
        serde_json::from_slice(&succeed(&mut command).stdout).unwrap()
    }

    /// Processes of the daemon: the supervisor, then the worker.
    pub(crate) fn pids(&self) -> [u32; 2] {
        let status = self.json(&["status"]);
        ["pid", "worker_pid"].map(|name| u32::try_from(status[name].as_u64().unwrap()).unwrap())
    }

    /// Kills the daemon, whatever waits for it.
    pub(crate) fn kill_processes(&self) {
        kill(self.pids());
    }

    /// Kills the daemon and removes the dead mount.
    pub(crate) fn kill(&mut self) {
        self.kill_processes();
        run("umount", &["-l", self.path("").to_str().unwrap()]);
        self.mounted = false;
    }

    /// What the daemon logged, as far as there is a log.
    pub(crate) fn log(&self) -> String {
        let entries = fs::read_dir(self.dirs.path().join("run")).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .map(|path| fs::read_to_string(path).unwrap_or_default())
            .collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: its log:\n{}", self.mountpoint().display(), self.log());
        }
        if self.mounted {
            let umount = self.larder().arg("umount").arg(self.mountpoint()).output();
            drop(umount);
        }
        // Unmounts whatever is still there.
        let _ = rustix::mount::unmount(self.mountpoint(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Bytes that a cache holds, as `larder cache ls --json` lists them. Bytes that were read get there
/// after their reader has them.
pub(crate) fn held_bytes(listing: &mut Command) -> u64 {
    let listed = succeed(listing).stdout;
    let files = serde_json::Deserializer::from_slice(&listed).into_iter::<serde_json::Value>();
    files.map(|file| file.unwrap()["held_bytes"].as_u64().unwrap()).sum()
}

/// Runs a command of the mount, and returns its exit code and all its output.
pub(crate) fn said(mount: &Mount, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = mount.larder().args(args).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Kills processes of a daemon, in this order; they may be one. When it returns they are gone, and
/// their open files closed.
pub(crate) fn kill(pids: [u32; 2]) {
    let processes = pids.map(|pid| {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    });
    for process in &processes {
        match pidfd_send_signal(process, Signal::KILL) {
            // The second one may be the first.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let soon = Timespec::try_from(SOON).unwrap();
    for process in &processes {
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&soon));
        assert_eq!(ended, Ok(1), "not in time: a killed process ends");
    }
}

/// The binary under test.
pub(crate) fn larder() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    // The key of exports is no test's own, and must not be the machine's.
    command.env("LARDER_STATE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    command
}

/// Whether a thread of the process waits in this function of the kernel.
pub(crate) fn waits_in(pid: u32, function: &str) -> bool {
    let stack = |task: fs::DirEntry| fs::read_to_string(task.path().join("stack"));
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.any(|task| stack(task).is_ok_and(|stack| stack.contains(function)))
}

/// Stops a process at an arbitrary moment, until it gets SIGCONT.
pub(crate) fn stop(pid: u32) {
    run("kill", &["-STOP", &pid.to_string()]);
    // The signal is in flight when kill(1) returns: wait until each thread has stopped.
    eventually("it has stopped", || {
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
            let status = fs::read_to_string(task.unwrap().path().join("status"));
            status.is_ok_and(|status| status.contains("\nState:\tT"))
        })
    });
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Writes a new file by a process of its own. A file that a test has open is inherited, until exec,
/// by what other tests start, and closed there: a flush in the middle of the writing. If less than
/// one request was written by then, a share does not prove the rest to be ours alone, so that it is
/// read anew.
pub(crate) fn write_undisturbed(path: &Path, bytes: &[u8]) {
    let mut tee = Command::new("tee");
    let mut tee = tee.arg(path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    tee.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(tee.wait().unwrap().success());
}

/// Runs a tool that must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    succeed(Command::new(program).args(args))
}

/// Runs a shell script as a user; answers whether it succeeded.
pub(crate) fn shell_as(uid: u32, gid: u32, script: &str) -> bool {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", script]).uid(uid).gid(gid).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

/// Runs a command beside a mount; its exit code and a part of what it writes are to be these.
pub(crate) fn check(mount: &Mount, args: &[&str], code: i32, word: &str) {
    let (found, text) = said(mount, args);
    assert_eq!(found, Some(code), "{args:?}: {text}");
    assert!(text.contains(word), "{args:?}: {word:?} is not in {text:?}");
}

/// Waits until a condition holds, which must be soon.
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_or(what, holds, String::new);
}

/// The same. If it does not hold in time, the failure shows what `tell` says.
pub(crate) fn eventually_or(
    what: &str,
    mut holds: impl FnMut() -> bool,
    tell: impl FnOnce() -> String,
) {
    let begin = Instant::now();
    while !holds() {
        let waited = begin.elapsed();
        if waited >= SOON {
            panic!("not in time: {what}\n{}", tell());
        }
        // To ask mostly takes a process: who waits for long leaves the processors to the others.
        let pause = (waited / 16).clamp(Duration::from_millis(5), Duration::from_millis(50));
        std::thread::park_timeout(pause);
    }
}

/// Bytes that differ everywhere, from a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Every file below a directory with its bytes, to compare trees.
pub(crate) fn tree(root: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}
