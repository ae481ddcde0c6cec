//! A user who is not root mounts, works, loses a worker, and unmounts: without `larder-helper`, and
//! with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{MARKS, Server, eventually, held_bytes, pattern, run, scratch, succeed};
use crate::shell::Shell;

/// The mounting user, who must be in the list of users: `fusermount3` looks up the name.
const USER: u32 = 65534;

/// How `larder-helper` is installed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Helper {
    Missing,
    Unprivileged,
    SetUid,
    Capability,
}

/// Copies a program, by a process of its own: a program that is open for writing, even in a child
/// that another test is just starting, cannot be run.
fn install(program: &Path, to: &Path, mode: &str) {
    run("install", &["-m", mode, program.to_str().unwrap(), to.to_str().unwrap()]);
}

/// A user with a home, a mountpoint, and an installed larder.
struct User {
    dirs: TempDir,
    url: String,
}

/// Where udev runs, every user may open the device; where it does not, the kernel leaves it to
/// root.
fn open_device_to_users() {
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
}

impl User {
    fn new(server: &Server, helper: Helper) -> Option<User> {
        open_device_to_users();
        let dirs = scratch("larder-rootless-");
        fs::set_permissions(dirs.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["home", "home/mnt", "run"] {
            fs::create_dir(dirs.path().join(name)).unwrap();
            chown(dirs.path().join(name), Some(USER), Some(USER)).unwrap();
        }
        let user = User { dirs, url: server.url() };
        fs::create_dir(user.bin("")).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_larder"));
        install(built, &user.bin("larder"), "755");
        if helper != Helper::Missing {
            let built = built.with_file_name("larder-helper");
            assert!(built.exists(), "not built yet: cargo build --package larder-helper");
            let mode = if helper == Helper::SetUid { "4755" } else { "755" };
            install(&built, &user.bin("larder-helper"), mode);
        }
        if helper == Helper::Capability {
            let mut setcap = Command::new("setcap");
            let set = setcap.arg("cap_sys_admin+ep").arg(user.bin("larder-helper")).status();
            if !set.as_ref().is_ok_and(std::process::ExitStatus::success) {
                println!("not tested: setcap (package libcap2-bin): {set:?}");
                return None;
            }
        }
        Some(user)
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.dirs.path().join("bin").join(name)
    }

    fn path(&self, name: &str) -> String {
        self.dirs.path().join("home/mnt").join(name).to_str().unwrap().to_owned()
    }

    /// A program, run as the user, with the environment of a login.
    fn program(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let home = self.dirs.path().join("home");
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home).current_dir(&home);
        command.env("XDG_RUNTIME_DIR", self.dirs.path().join("run"));
        command.uid(USER).gid(USER);
        command
    }

    fn larder(&self, args: &[&str]) -> Command {
        let mut command = self.program(self.bin("larder"));
        command.args(args);
        command
    }

    fn mount(&self) {
        let options = ["-o", MARKS, "-o", "noresvport"];
        succeed(&mut self.larder(&[&["mount", &self.url, "mnt"], &options[..]].concat()));
    }

    fn umount(&self) {
        succeed(&mut self.larder(&["umount", "mnt"]));
    }

    fn status(&self) -> serde_json::Value {
        let told = succeed(&mut self.larder(&["status", "mnt", "--json"]));
        serde_json::from_slice(&told.stdout).unwrap()
    }

    fn opens_passthrough(&self) -> u64 {
        self.status()["reads"]["opens_passthrough"].as_u64().unwrap()
    }

    fn kill_worker(&self) {
        let worker = self.status()["worker_pid"].clone();
        run("kill", &["-KILL", &worker.to_string()]);
        eventually("another worker serves", || self.status()["worker_pid"] != worker);
    }

    fn log(&self) -> String {
        let names = fs::read_dir(self.dirs.path().join("run/larder")).unwrap();
        let paths = names.map(|entry| entry.unwrap().path());
        let logs = paths.filter(|path| path.extension().is_some_and(|kind| kind == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    /// Processes of the user's programs.
    fn processes(&self) -> String {
        let bin = self.bin("");
        let found = Command::new("pgrep").arg("-af").arg(bin).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // Nothing is mounted any more unless the test has failed.
        drop(self.larder(&["umount", "mnt"]).output());
        let _ = rustix::mount::unmount(self.path(""), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Mounts, works, has a worker killed in between, and unmounts. Returns the passthrough opens of
/// each worker, and the log.
fn work(helper: Helper) -> Option<([u64; 2], String)> {
    let server = Server::larder(&["--no-root-squash", "--insecure"]);
    let bytes = pattern(5, 300_000);
    fs::write(server.path("there"), &bytes).unwrap();
    let user = User::new(&server, helper)?;
    let compare = user.dirs.path().join("compare");
    fs::write(&compare, &bytes).unwrap();
    let read = format!("cmp {} {}", user.path("there"), compare.display());

    user.mount();
    let mut shell = Shell::new(user.program("/bin/sh"));
    shell.run(&read);
    let mut list = user.larder(&["cache", "ls", "mnt", "--json"]);
    eventually("it is in the cache", || held_bytes(&mut list) >= bytes.len() as u64);
    shell.run(&read);
    shell.run(&format!("exec 3>{}; echo before >&3", user.path("new")));
    shell.run(&format!("exec 4<{}; head -c 1000 <&4 >/dev/null", user.path("there")));
    let by_first = user.opens_passthrough();
    user.kill_worker();
    shell.run("echo after >&3");
    shell.run("exec 3>&-");
    assert_eq!(fs::read(server.path("new")).unwrap(), b"before\nafter\n");
    let rest = shell.run("tail -c +1 <&4 | wc -c; exec 4<&-");
    assert_eq!(rest, (bytes.len() - 1000).to_string());
    shell.run(&read);
    shell.run(&format!("mkdir {0} && mv {1} {0}/moved", user.path("dir"), user.path("new")));
    shell.run(&format!("cp {} {}", compare.display(), user.path("copy")));
    assert!(fs::read(server.path("copy")).unwrap() == bytes);
    let by_second = user.opens_passthrough();
    shell.end();

    assert_eq!(user.status()["restarts"], 1);
    assert!(user.dirs.path().join("home/.cache/larder").is_dir(), "where users have caches");
    user.umount();
    eventually("no process is left", || user.processes().is_empty());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(user.dirs.path().to_str().unwrap()));
    Some(([by_first, by_second], user.log()))
}

#[test]
fn a_user_mounts_without_the_helper_and_is_told_once() {
    for (helper, advice) in
        [(Helper::Missing, "larder-helper (set-uid root)"), (Helper::Unprivileged, "chmod 4755")]
    {
        let (opens, log) = work(helper).unwrap();
        assert_eq!(opens, [0, 0], "{helper:?}");
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("no passthrough")).collect();
        assert_eq!(lines.len(), 1, "{helper:?}: {log}");
        assert!(lines[0].contains(advice), "{helper:?}: {log}");
    }
}

#[test]
fn a_user_has_passthrough_through_the_helper() {
    for helper in [Helper::SetUid, Helper::Capability] {
        let Some((opens, log)) = work(helper) else { continue };
        assert!(opens.iter().all(|opens| *opens > 0), "{helper:?}: {opens:?}: {log}");
        println!("{helper:?}: opens by passthrough, of each worker: {opens:?}");
        assert!(!log.contains("no passthrough"), "{helper:?}: {log}");
        assert!(!log.contains("is refused"), "{helper:?}: {log}");
    }
}
