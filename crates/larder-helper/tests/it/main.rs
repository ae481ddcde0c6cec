//! The installed program: what it keeps of its privilege, whom it listens to, what it takes. Needs
//! root, to install it; that the kernel takes files from it is tested with real mounts, by the
//! `larder` crate.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_helper::protocol::{Failure, ask_close, ask_open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;

/// A user that is not root.
const USER: u32 = 65534;

/// `CAP_SYS_ADMIN` alone, as `/proc/PID/status` shows it.
const SYS_ADMIN_ONLY: &str = "0000000000200000";
const NONE: &str = "0000000000000000";

/// How the program is installed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    SetUid,
    Capability,
    Plain,
}

/// A copy of the program, on a file system that other users can reach and that honours set-uid
/// bits.
fn install(mode: Mode) -> Option<(TempDir, PathBuf)> {
    let dir = tempfile::Builder::new().prefix("larder-helper-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("larder-helper");
    let bits = if mode == Mode::SetUid { "4755" } else { "755" };
    // Copied by another process: a program that any process has open for writing cannot be
    // executed, and a child that a concurrent test is starting would inherit our descriptor.
    let built = env!("CARGO_BIN_EXE_larder-helper");
    let copied = Command::new("install").args(["-m", bits, built]).arg(&program).status();
    assert!(copied.unwrap().success());
    if mode == Mode::Capability {
        let set = Command::new("setcap").arg("cap_sys_admin+ep").arg(&program).status();
        if !set.as_ref().is_ok_and(std::process::ExitStatus::success) {
            println!("not tested: setcap (package libcap2-bin): {set:?}");
            return None;
        }
    }
    Some((dir, program))
}

/// Runs `work` on a thread with the ids of a user: ids belong to threads, if they are changed by
/// system calls instead of libc.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_and_work = || {
        let (user, group) =
            (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(uid));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(become_and_work).join().unwrap())
}

fn link() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn start(program: &Path, theirs: OwnedFd) -> Child {
    Command::new(program).stdin(Stdio::from(theirs)).stderr(Stdio::piped()).spawn().unwrap()
}

fn status_line(pid: u32, name: &str) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().split_whitespace().map(str::to_owned).collect()
}

fn refused<T: std::fmt::Debug>(asked: Result<T, Failure>) -> Errno {
    match asked {
        Err(Failure::Refused(errno)) => errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_keeps_one_capability_and_nothing_else_of_root() {
    for (mode, caps) in
        [(Mode::SetUid, SYS_ADMIN_ONLY), (Mode::Capability, SYS_ADMIN_ONLY), (Mode::Plain, NONE)]
    {
        let Some((_dir, program)) = install(mode) else { continue };
        as_user(USER, || {
            let (ours, theirs) = link();
            let mut child = start(&program, theirs);
            let other = File::open("/dev/null").unwrap();
            // Once it has answered, it has dropped its privileges.
            assert_eq!(refused(ask_close(ours.as_fd(), other.as_fd(), 1)), Errno::NODEV);
            for name in ["CapPrm", "CapEff"] {
                assert_eq!(status_line(child.id(), name), [caps], "{mode:?}");
            }
            for name in ["CapInh", "CapAmb"] {
                assert_eq!(status_line(child.id(), name), [NONE], "{mode:?}");
            }
            for name in ["Uid", "Gid"] {
                assert_eq!(status_line(child.id(), name), [USER.to_string().as_str(); 4]);
            }
            assert_eq!(status_line(child.id(), "NoNewPrivs"), ["1"]);
            drop(ours);
            assert!(child.wait().unwrap().success(), "it ends with its peer");
        });
    }
}

#[test]
fn it_takes_ones_own_files_for_fuse_only() {
    let (dir, program) = install(Mode::SetUid).unwrap();
    let folder = dir.path().join("files");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    // A file of root that every user may open.
    fs::write(folder.join("roots"), "").unwrap();
    fs::set_permissions(folder.join("roots"), fs::Permissions::from_mode(0o666)).unwrap();
    let both = || File::options().read(true).write(true).clone();
    let fuse = both().open("/dev/fuse").unwrap();
    let special = both().open("/proc/self/mem").unwrap();
    as_user(USER, || {
        let (ours, theirs) = link();
        let mut child = start(&program, theirs);
        let ask =
            |fuse: &File, file: &File| refused(ask_open(ours.as_fd(), fuse.as_fd(), file.as_fd()));
        fs::write(folder.join("own"), "").unwrap();
        let own = both().open(folder.join("own")).unwrap();
        let roots = both().open(folder.join("roots")).unwrap();
        let read_only = File::open(folder.join("own")).unwrap();
        assert_eq!(ask(&own, &own), Errno::NODEV);
        assert_eq!(ask(&fuse, &roots), Errno::ACCESS);
        assert_eq!(ask(&fuse, &read_only), Errno::ACCESS);
        assert_eq!(ask(&fuse, &special), Errno::OPNOTSUPP);
        // The kernel refuses this: the device has no mount.
        assert_eq!(ask(&fuse, &own), Errno::PERM);
        // A packet that is not a request ends the helper.
        rustix::net::send(&ours, b"anything", rustix::net::SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(ask_open(ours.as_fd(), fuse.as_fd(), own.as_fd()), Err(Failure::Gone(_))));
        assert_eq!(child.wait().unwrap().code(), Some(1));
    });
}

#[test]
fn it_listens_only_to_the_process_that_started_it() {
    let (_dir, program) = install(Mode::SetUid).unwrap();
    let (_roots, theirs) = link();
    let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
    for stdin in [theirs, stream.into(), File::open("/dev/null").unwrap().into()] {
        as_user(USER, || {
            let told = start(&program, stdin).wait_with_output().unwrap();
            let text = String::from_utf8(told.stderr).unwrap();
            assert_eq!(told.status.code(), Some(2), "{text}");
            assert!(text.starts_with("larder-helper: registers ") && text.lines().count() == 1);
        });
    }
}
