//! Locks that a mount passes on to the server, when mounts, connections and processes end.
//! [`crate::posix_cases`] tests which locks exclude which.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::harness::{Kind, Mount, Server, eventually, run, succeed};

const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

fn open(mount: &Mount, name: &str) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(mount.path(name))
        .unwrap()
}

/// Servers that locks are passed on to.
const PASSED_ON: [Kind; 2] = [Kind::Samba, Kind::Volume];

fn locks(file: &File) -> bool {
    flock(file, EXCLUSIVE).is_ok()
}

/// A volume's metadata server waits until the mount's session has expired, and calls the waiter for
/// the lock.
#[test]
fn locks_on_a_volume_end_with_the_session_of_the_mount() {
    let server = Server::start(Kind::Volume);
    let (one, mut two) = (Mount::new(&server, &[]), Mount::new(&server, &["nosurvive"]));
    let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
    assert!(locks(&theirs) && !locks(&mine));
    let calls = || ["LOCK", "AWAIT_LOCK", "FORGO_LOCK", "SESSION"].map(|name| one.calls(name));
    let before = calls();
    two.kill();
    flock(&mine, FlockOperation::LockExclusive).unwrap();
    // Once in vain, once when it was called.
    let after = calls();
    assert_eq!(after[0] - before[0], 2, "{before:?} {after:?}");
    // A mount that ends in order gives its locks up at once.
    two.mount();
    let theirs = open(&two, "file");
    drop(mine);
    eventually("it is unlocked", || locks(&theirs));
    drop(theirs);
    two.unmount();
    assert!(locks(&open(&one, "file")));
}

/// A file that one of them has just made, and both have open: each locks bytes of its own in one
/// block, changes them, and unlocks. Also while a process reads the file by passthrough.
#[test]
fn two_mounts_change_one_block_under_locks() {
    for kind in PASSED_ON {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
        for is_read in [false, true] {
            let name = if is_read { "read" } else { "made" };
            let path = one.path(name);
            let mut new = File::options();
            let mine = new.read(true).write(true).create_new(true).open(&path).unwrap();
            let mut expected = vec![7; 200_000];
            mine.write_all_at(&expected, 0).unwrap();
            mine.sync_all().unwrap();
            let reader = is_read.then(|| {
                drop(File::open(&path).unwrap());
                File::open(&path).unwrap()
            });
            let mine = if is_read {
                drop(mine);
                File::options().read(true).write(true).open(&path).unwrap()
            } else {
                mine
            };
            let theirs = open(&two, name);
            for round in 0..6_usize {
                for (number, file) in [&mine, &theirs].into_iter().enumerate() {
                    flock(file, FlockOperation::LockExclusive).unwrap();
                    let mut seen = vec![0; expected.len()];
                    file.read_exact_at(&mut seen, 0).unwrap();
                    let differs = (0..seen.len()).find(|at| seen[*at] != expected[*at]);
                    // Beside a reader the kernel writes the file, and shows its own.
                    let is_shown = !is_read || number == 1;
                    assert!(
                        !is_shown || differs.is_none(),
                        "{kind:?} {round}: {number} {differs:?}"
                    );
                    let at = 100_000 + 10 * round + number;
                    file.write_all_at(&[b'a' + number as u8], at as u64).unwrap();
                    expected[at] = b'a' + number as u8;
                    flock(file, FlockOperation::Unlock).unwrap();
                }
            }
            drop((mine, theirs, reader));
            assert!(fs::read(two.path(name)).unwrap() == expected, "{kind:?} {name}");
        }
    }
}

#[test]
fn locks_end_with_the_mount_that_holds_them() {
    let server = Server::start(Kind::Samba);
    let (one, mut two) = (Mount::new(&server, &[]), Mount::new(&server, &["nosurvive"]));
    let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
    assert!(locks(&theirs) && !locks(&mine));
    two.kill();
    eventually("the server has found that it is gone", || locks(&mine));
}

#[test]
fn a_wait_for_another_mounts_lock_ends_by_a_signal() {
    for kind in PASSED_ON {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
        let theirs = open(&two, "file");
        assert!(locks(&theirs));
        let begin = Instant::now();
        // flock(1) waits by flock(2), and has a signal end that.
        let path = one.path("file");
        let waited =
            Command::new("flock").args(["-w", "0.3"]).arg(&path).arg("true").status().unwrap();
        assert_eq!(waited.code(), Some(1), "it is somebody else's");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        drop(theirs);
        succeed(Command::new("flock").args(["-w", "20"]).arg(&path).arg("true"));
        let again = open(&two, "file");
        eventually("who gave up has nothing", || locks(&again));
    }
}

#[test]
fn locks_go_on_when_the_process_that_serves_is_replaced() {
    for kind in PASSED_ON {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
        let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
        let again = "locks were taken again after the process that held them ended";
        assert!(locks(&mine));
        for round in 1..=2 {
            let [_, worker] = one.pids();
            match round {
                1 => drop(succeed(one.larder().arg("upgrade").arg(one.path("")))),
                _ => drop(run("kill", &["-KILL", &worker.to_string()])),
            }
            eventually("they are taken again", || one.log().matches(again).count() == round);
            assert!(!locks(&theirs), "round {round}");
            mine.write_all_at(b"under a lock", 0).unwrap();
            mine.sync_all().unwrap();
        }
        drop(mine);
        eventually("it is unlocked", || locks(&theirs));
        assert_eq!(fs::read(two.path("file")).unwrap(), b"under a lock");
    }
}

/// Also for a waiter: the kernel sends its request to the next process.
#[test]
fn a_wait_for_a_lock_goes_on_with_the_next_process() {
    for kind in PASSED_ON {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
        let theirs = open(&two, "file");
        assert!(locks(&theirs));
        let path = one.path("file");
        let mut waits = Command::new("flock").arg(&path).args(["echo", "got it"]).spawn().unwrap();
        let asleep = || {
            let place = format!("/proc/{}/wchan", waits.id());
            fs::read_to_string(place)
                .is_ok_and(|place| place.contains("fuse") || place.contains("request_wait_answer"))
        };
        eventually("it waits", asleep);
        let begin = Instant::now();
        succeed(one.larder().arg("upgrade").arg(one.path("")));
        assert!(begin.elapsed() < Duration::from_secs(30), "the upgrade waits for nobody's lock");
        assert!(waits.try_wait().unwrap().is_none());
        drop(theirs);
        assert!(waits.wait().unwrap().success());
    }
}

#[test]
fn locks_are_taken_again_after_the_connection_was_lost() {
    for kind in PASSED_ON {
        let mut server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
        let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
        assert!(locks(&mine) && !locks(&theirs));
        server.kill();
        server.restart();
        let again = "locks were taken again after the connection was lost";
        eventually("they are taken again", || one.log().contains(again));
        assert!(!locks(&theirs));
        mine.write_all_at(b"mine", 0).unwrap();
        mine.sync_all().unwrap();
        drop(mine);
        eventually("it is unlocked", || locks(&theirs));
    }
}

/// While the process that serves a mount is stopped, the server is restarted, and another mount
/// gets the lock.
#[test]
fn a_process_that_lost_a_lock_is_told() {
    let mut server = Server::start(Kind::Samba);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
    assert!(locks(&mine));
    let [_, worker] = one.pids();
    let signal = |signal| {
        // Not with a program: it would close its copy of the file at its start, and wait for the
        // worker.
        let worker = rustix::process::Pid::from_raw(i32::try_from(worker).unwrap()).unwrap();
        rustix::process::kill_process(worker, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    server.kill();
    server.as_samba().boot().unwrap();
    eventually("nobody has it at the server", || locks(&theirs));
    signal(rustix::process::Signal::CONT);
    eventually("it is found out", || one.log().contains("locks are lost"));
    let refused = mine.write_all_at(b"no", 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(flock(&mine, EXCLUSIVE).unwrap_err().raw_os_error(), libc::EIO);
    assert!(
        !locks(&open(&one, "file")),
        "another open file has lost nothing, and is refused by the server"
    );
    flock(&mine, FlockOperation::Unlock).unwrap();
    drop(theirs);
    eventually("all is as before", || locks(&mine));
    mine.write_all_at(b"yes", 0).unwrap();
}

#[test]
fn locks_stay_with_the_machine_if_that_is_wanted() {
    for kind in PASSED_ON {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &["nobrl"]), Mount::new(&server, &["nobrl"]));
        let (mine, theirs) = (open(&one, "file"), open(&two, "file"));
        assert!(locks(&mine) && locks(&theirs));
        assert!(!locks(&open(&one, "file")));
        assert_eq!(one.calls("LOCK"), 0);
        assert!(!one.messages().contains_key("SETLKW") && !one.messages().contains_key("SETLK"));
    }
}
