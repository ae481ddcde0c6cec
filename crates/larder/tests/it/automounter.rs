//! Automounters: automount(8) with the maps of autofs(5), and what systemd does for
//! `x-systemd.automount`. Each runs in a mount namespace of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::harness::{Kind, Server, eventually, larder, run, scratch, succeed};

/// Makes the mounts of a map. The program is run from a copy, since our helper hides all of
/// /usr/sbin.
const AUTOMOUNT: &str = "mount -t tmpfs none /usr/sbin && ln -s \"$LARDER\" /usr/sbin/mount.larder \
    && mount -t tmpfs none /run && exec \"$1/automount\" -f -C --pid-file \"$1/pid\" \"$1/master\"";

/// As systemd does it (`systemd.automount(5)`): a mount of type autofs with a pipe, through which
/// the kernel reports an access; then the mount command, in the same process group; then the report
/// that the mount exists.
const SYSTEMD: &str = "
import ctypes, fcntl, os, struct, subprocess, sys
at, *command = sys.argv[1:]
READY, FAIL = 0x9360, 0x9361
kernel_end = os.pipe()
os.set_inheritable(kernel_end[1], True)
options = f'fd={kernel_end[1]},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct'
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b'systemd-1', at.encode(), b'autofs', 0, options.encode()):
    raise OSError(ctypes.get_errno(), 'mount')
root = os.open(at, os.O_RDONLY)
print('waiting', flush=True)
while packet := os.read(kernel_end[0], 512):
    token, = struct.unpack_from('I', packet, 8)
    done = subprocess.run(command, stdin=subprocess.DEVNULL)
    fcntl.ioctl(root, FAIL if done.returncode else READY, token)
";

/// A running automounter. Its mounts are gone when it is dropped.
struct Automounter {
    dirs: TempDir,
    child: Child,
}

impl Automounter {
    /// Runs a program in a mount namespace, and in a process group that the kernel lets through.
    fn start(dirs: TempDir, program: &mut Command) -> Automounter {
        program.env("LARDER_RUNTIME_DIR", dirs.path().join("runtime"));
        let child = program.stdin(Stdio::null()).process_group(0).spawn().unwrap();
        Automounter { dirs, child }
    }

    fn unshared(program: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", program]);
        command.envs(larder().get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("LARDER", env!("CARGO_BIN_EXE_larder"));
        command
    }

    /// automount(8) with an indirect map for `indirect/export` and a direct one for `direct`.
    fn automount(dirs: TempDir, server: &Server) -> Automounter {
        let dir = |name: &str| dirs.path().join(name).display().to_string();
        let url = server.url();
        let (_, port) = url.trim_end_matches('/').rsplit_once(':').unwrap();
        let entry = |key: &str, cache: &str| {
            let cache = dir(cache);
            format!("{key} -fstype=larder,cache={cache},port={port},mountport={port} 127.0.0.1:/\n")
        };
        fs::write(dir("auto.indirect"), entry("export", "cache-1")).unwrap();
        fs::write(dir("auto.direct"), entry(&dir("direct"), "cache-2")).unwrap();
        let (indirect, maps) = (dir("indirect"), [dir("auto.indirect"), dir("auto.direct")]);
        let master = format!("{indirect} {} --timeout=1\n/- {} --timeout=1\n", maps[0], maps[1]);
        fs::write(dir("master"), master).unwrap();
        let found = succeed(Command::new("sh").args(["-c", "command -v automount"])).stdout;
        run("install", &[String::from_utf8(found).unwrap().trim(), &dir("automount")]);
        let mut command = Automounter::unshared("sh");
        command.args(["-c", AUTOMOUNT, "sh"]).arg(dirs.path());
        let automounter = Automounter::start(dirs, &mut command);
        eventually("automount(8) is ready", || automounter.mounts("autofs").len() == 2);
        automounter
    }

    /// What systemd does for a line of fstab(5) with `x-systemd.automount`.
    fn systemd(dirs: TempDir, server: &Server, option: &str) -> Automounter {
        let at = dirs.path().join("direct");
        fs::create_dir(&at).unwrap();
        let mut command = Automounter::unshared("python3");
        command.args(["-c", SYSTEMD]).arg(&at).arg(env!("CARGO_BIN_EXE_larder"));
        command
            .args(["mount", &server.url()])
            .arg(&at)
            .arg("--cache")
            .arg(dirs.path().join("cache"));
        let options = format!("{option},x-systemd.automount,_netdev");
        command.args(["-o", &options]).stdout(Stdio::piped());
        let mut automounter = Automounter::start(dirs, &mut command);
        let mut said = String::new();
        let output = automounter.child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        assert_eq!(said, "waiting\n");
        automounter
    }

    /// Where mounts of this type are, in the automounter's namespace.
    fn mounts(&self, kind: &str) -> Vec<PathBuf> {
        let list = format!("/proc/{}/mountinfo", self.child.id());
        let list = fs::read_to_string(list).unwrap_or_default();
        let lines = list.lines().filter(|line| line.contains(&format!(" - {kind} ")));
        let path = |line: &str| PathBuf::from(line.split(' ').nth(4).unwrap());
        lines.map(path).filter(|path| path.starts_with(self.dirs.path())).collect()
    }

    /// A program in the automounter's namespace, as any user would run it: the kernel makes it wait
    /// for the mount, but not for ever.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        let pid = self.child.id().to_string();
        command.args(["--signal=KILL", "40", "nsenter", "--mount", "--target", &pid, program]);
        command.env("LARDER_RUNTIME_DIR", self.dirs.path().join("runtime"));
        command
    }

    fn read(&self, name: &str) -> String {
        let read = succeed(self.command("cat").arg(self.dirs.path().join(name)));
        String::from_utf8(read.stdout).unwrap()
    }

    /// Whether the daemons of all mounts have ended, in order.
    fn is_idle(&self) -> bool {
        let traces = fs::read_dir(self.dirs.path().join("runtime")).unwrap();
        let mut kinds = traces.map(|entry| entry.unwrap().path());
        let is_trace = |path: PathBuf| path.extension().is_some_and(|kind| kind != "log");
        self.mounts("fuse.larder").is_empty() && !kinds.any(is_trace)
    }
}

impl Drop for Automounter {
    fn drop(&mut self) {
        for mount in self.mounts("fuse.larder") {
            let umount =
                self.command(env!("CARGO_BIN_EXE_larder")).arg("umount").arg(mount).output();
            drop(umount);
        }
        // Programs that wait for it fail, and the namespace ends with its last process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn export() -> Server {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "by an automounter").unwrap();
    server
}

/// Both maps, and both again after automount(8) has unmounted unused mounts.
#[test]
fn automount_mounts_both_kinds_of_maps_and_lets_them_expire() {
    let server = export();
    let automounter = Automounter::automount(scratch("larder-automount-"), &server);
    for _ in 0..2 {
        for name in ["indirect/export/file", "direct/file"] {
            assert_eq!(automounter.read(name), "by an automounter");
        }
        eventually("unused mounts expire, and their daemons end", || automounter.is_idle());
    }
}

/// The mount is on top of the trigger, is served after the command has ended, and ends with its
/// daemon.
#[test]
fn a_mount_lies_on_the_automount_of_systemd() {
    let server = export();
    for option in ["survive", "nosurvive"] {
        let automounter = Automounter::systemd(scratch("larder-systemd-"), &server, option);
        let at = automounter.dirs.path().join("direct");
        for _ in 0..2 {
            assert_eq!(automounter.read("direct/file"), "by an automounter");
            assert_eq!(automounter.mounts("fuse.larder"), [Path::new(&at)]);
            succeed(automounter.command(env!("CARGO_BIN_EXE_larder")).arg("umount").arg(&at));
            assert!(automounter.is_idle());
            assert_eq!(automounter.mounts("autofs"), [Path::new(&at)]);
        }
    }
}
