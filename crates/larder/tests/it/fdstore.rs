//! A service manager keeps the descriptors of a mount (systemd's `FileDescriptorStoreMax=`): the
//! mount outlives the death of all its processes. The service manager is the test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tempfile::TempDir;

use crate::harness::{Kind, Mount, SOON, Server, eventually, kill, pattern, run, scratch};
use crate::shell::Shell;

/// Reads descriptors from standard input, puts them where a service manager puts them
/// (sd_listen_fds(3)), and becomes the given program, with the same process number.
const LAUNCHER: &str = "\
import array, fcntl, os, socket, sys
link = socket.socket(fileno=os.dup(0))
_, given, _, _ = socket.recv_fds(link, 1, 64, socket.MSG_CMSG_CLOEXEC)
# They may lie where others are to go.
given = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in given]
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
for place, fd in enumerate(given):
    os.dup2(fd, 3 + place)
os.environ['LISTEN_PID'] = str(os.getpid())
os.environ['LISTEN_FDS'] = str(len(given))
os.execv(sys.argv[1], sys.argv[1:])
";

/// A service manager, as far as a mount knows it.
struct Manager {
    dir: TempDir,
    notices: UnixDatagram,
    kept: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new() -> Manager {
        let dir = scratch("larder-manager-");
        let notices = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notices.set_read_timeout(Some(SOON)).unwrap();
        Manager { dir, notices, kept: BTreeMap::new() }
    }

    /// Starts a mount as a service, with the descriptors that are kept for it.
    fn start(&self, mount: &Mount) -> Child {
        let service = mount.command();
        let (names, descriptors): (Vec<_>, Vec<_>) =
            self.kept.iter().map(|(name, fd)| (name.as_str(), fd.as_fd())).unzip();
        let mut command = Command::new("python3");
        command.args(["-c", LAUNCHER]).arg(service.get_program()).args(service.get_args());
        let environment = service.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.arg("--foreground").envs(environment);
        command.env("NOTIFY_SOCKET", self.dir.path().join("notify"));
        command.env("LISTEN_FDNAMES", names.join(":"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = child.stderr(Stdio::piped()).spawn().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(
            descriptors.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(&descriptors))
        );
        let byte = [IoSlice::new(&[0])];
        rustix::net::sendmsg(&ours, &byte, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        child
    }

    /// Receives the next notification, and does what it asks; returns its first line.
    fn next(&mut self) -> String {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 1000];
        let received = {
            let mut buffers = [IoSliceMut::new(&mut text)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&self.notices, &mut buffers, &mut ancillary, flags)
        };
        let len = received.expect("a notice comes soon").bytes;
        let given = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let text = str::from_utf8(&text[..len]).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
        let first = text.lines().next().unwrap().to_owned();
        match first.as_str() {
            "FDSTORE=1" => {
                let before = self.kept.insert(name.unwrap(), given.expect("one comes with it"));
                assert!(before.is_none(), "each has a name of its own");
            }
            "FDSTOREREMOVE=1" => drop(self.kept.remove(&name.unwrap())),
            _ => assert!(given.is_none(), "{text}"),
        }
        first
    }

    /// Receives notifications until the service is ready; returns how many came before.
    fn wait_until_ready(&mut self) -> usize {
        let mut count = 0;
        while self.next() != "READY=1" {
            count += 1;
        }
        count
    }
}

/// The lines in the list of mounts about it: with another number it would be another mount.
fn listed(mount: &Mount) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = format!(" {} ", mount.path("").to_str().unwrap().trim_end_matches('/'));
    text.lines().filter(|line| line.contains(&path)).map(str::to_owned).collect()
}

#[test]
fn a_mount_outlives_all_its_processes() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(9, 200_000);
    fs::write(server.path("read"), &bytes).unwrap();
    let mut mount = Mount::unmounted(&server, &[]);
    let mut manager = Manager::new();
    let mut first = manager.start(&mount);
    mount.mounted();
    let stored = manager.wait_until_ready();
    assert!(stored >= 2 && manager.kept.len() == stored, "{stored}: device and ledger at least");

    let before = listed(&mount);
    assert_eq!(before.len(), 1);
    let mut shell = Shell::new(Command::new("/bin/sh"));
    let path = |name: &str| mount.path(name).display().to_string();
    shell.run(&format!("cat {0} >/dev/null; exec 3>{1} 4<{0}", path("read"), path("written")));
    shell.run("echo before >&3; head -c 1000 <&4 >/dev/null");
    kill(mount.pids());
    assert_eq!(first.wait().unwrap().signal(), Some(9));
    shell.begin(&format!("echo after >&3; echo made > {}", path("made")));
    shell.waits_for_mount();

    let mut second = manager.start(&mount);
    assert_eq!(manager.wait_until_ready(), 0, "nothing new is to be kept");
    shell.finish();
    assert_eq!(shell.run("wc -c <&4"), (bytes.len() - 1000).to_string());
    shell.run("exec 3>&- 4<&-");
    shell.end();
    assert_eq!(fs::read(server.path("written")).unwrap(), b"before\nafter\n");
    assert_eq!(fs::read(server.path("made")).unwrap(), b"made\n");
    assert_eq!(listed(&mount), before, "it is the same mount");

    // Afterwards a worker may die as before, and the end is in order.
    let worker = mount.pids()[1];
    run("kill", &["-KILL", &worker.to_string()]);
    eventually("another worker serves", || mount.pids()[1] != worker);
    assert!(fs::read(mount.path("read")).unwrap() == bytes);
    mount.unmount();
    assert!(second.wait().unwrap().success());
    while !manager.kept.is_empty() {
        manager.next();
    }
}

/// Ends a service as its manager does: by a signal to its first process.
fn stop(mut service: Child) {
    run("kill", &["-TERM", &service.id().to_string()]);
    assert!(service.wait().unwrap().success());
}

#[test]
fn what_was_kept_of_a_mount_that_is_gone_is_no_hindrance() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::unmounted(&server, &[]);
    let mut manager = Manager::new();
    let mut first = manager.start(&mount);
    mount.mounted();
    let stored = manager.wait_until_ready();
    kill(mount.pids());
    first.wait().unwrap();
    run("umount", &["-l", mount.path("").to_str().unwrap()]);

    let second = manager.start(&mount);
    let asked = manager.wait_until_ready();
    assert_eq!((asked, manager.kept.len()), (2 * stored, stored), "let go, then kept anew");
    fs::write(mount.path("file"), "through the new one").unwrap();
    stop(second);
    assert!(listed(&mount).is_empty());
}

#[test]
fn another_mount_than_the_one_that_was_kept_is_refused() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::unmounted(&server, &[]);
    let mut manager = Manager::new();
    let mut first = manager.start(&mount);
    mount.mounted();
    manager.wait_until_ready();
    kill(mount.pids());
    first.wait().unwrap();

    let other = Mount::unmounted(&server, &[]);
    let told = manager.start(&other).wait_with_output().unwrap();
    let text = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(1), "{text}");
    assert!(text.contains("systemd keeps the mount on ") && text.lines().count() == 1, "{text}");
    assert!(!manager.kept.is_empty(), "it is not taken from the one that it belongs to");
    let again = manager.start(&mount);
    manager.wait_until_ready();
    fs::write(mount.path("file"), "goes on").unwrap();
    stop(again);
}
