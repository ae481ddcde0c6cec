//! Callers that get a signal while they wait for an answer.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_vfs::Ino;
use rustix::mount::MountFlags;

use crate::{Mount, eventually};

/// A process that has the mount as its working directory, and ignores no signal, whatever its
/// parent does: background processes ignore SIGINT.
fn process(mount: &Mount, command: &[&str]) -> Child {
    let mut process = Command::new("env");
    process.arg("--default-signal").args(command).current_dir(&mount.dir);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Reads a line that a process says.
fn hears(child: &mut Child, line: &str) {
    let mut said = vec![0; line.len() + 1];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(said, format!("{line}\n").as_bytes());
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

fn interrupts(mount: &Mount) -> u64 {
    let requests = mount.mounted.requests();
    requests.iter().find(|(name, _)| name == "INTERRUPT").map_or(0, |(_, count)| *count)
}

/// What the kernel would have held by answers that reached no caller is released: references and
/// open files.
#[test]
fn killed_callers_go_at_once_and_leave_nothing() {
    let mount = Mount::new();
    mount.file("file", b"x");
    std::fs::create_dir(mount.path("dir")).unwrap();
    std::fs::write(mount.path("dir/inside"), "x").unwrap();
    mount.fs.fill(Ino::ROOT, std::iter::once("behind".to_owned()));
    let cases = [
        ("lookup", "exec stat behind", "KILL"),
        ("lookup", "exec stat absent", "TERM"),
        ("open", "exec cat file", "INT"),
        ("create", ": > new; sleep 60", "KILL"),
        ("make", "exec mkdir made", "KILL"),
        ("opendir", "exec ls dir", "HUP"),
        ("readdir", "exec ls dir", "KILL"),
        ("statfs", "exec stat -f .", "KILL"),
        ("remove", "exec rm -f file", "KILL"),
    ];
    for (call, script, name) in cases {
        let before = mount.fs.count(call);
        mount.fs.hold(Some(call));
        let mut child = process(&mount, &["sh", "-c", script]);
        eventually(call, || mount.fs.count(call) > before);
        signal(&child, name);
        assert!(ended(&mut child).signal().is_some(), "{script}");
        mount.fs.hold(None);
    }
    let count = |call| mount.fs.count(call);
    eventually("all that was opened is closed", || {
        count("open") + count("create") == count("release")
    });
    assert!(mount.path("made").exists(), "what was asked for is carried on with");
    eventually("no reference is left", || {
        // By this the kernel forgets the names of the mount, and of no other.
        rustix::mount::mount_remount(&mount.dir, MountFlags::empty(), "").unwrap();
        let lookups = mount.fs.lookups.lock().unwrap();
        lookups.iter().all(|(ino, count)| *count == 0 || *ino == Ino::ROOT.0)
    });
    let references = mount.mounted.references();
    assert_eq!(references.given, references.returned);
}

/// Prints `handled` for each SIGUSR1.
const HANDLES_SIGNALS: &str = "
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True))
print('ready', flush=True)
os.stat(input())
print('there', flush=True)
";

/// A caller that handles a signal continues to wait. The kernel does not report a second one.
#[test]
fn only_signals_that_end_a_process_interrupt_it() {
    let mount = Mount::new();
    mount.fs.fill(Ino::ROOT, ["first", "second"].into_iter().map(str::to_owned));
    let waits = |name: &str| {
        let mut child = process(&mount, &["python3", "-I", "-c", HANDLES_SIGNALS]);
        hears(&mut child, "ready");
        let (lookups, interrupted) = (mount.fs.count("lookup"), interrupts(&mount));
        mount.fs.hold(Some("lookup"));
        writeln!(child.stdin.as_mut().unwrap(), "{name}").unwrap();
        eventually("it waits", || mount.fs.count("lookup") > lookups);
        signal(&child, "USR1");
        eventually("the kernel tells of it", || interrupts(&mount) > interrupted);
        assert!(child.try_wait().unwrap().is_none());
        child
    };
    let mut child = waits("first");
    mount.fs.hold(None);
    hears(&mut child, "handled");
    hears(&mut child, "there");
    assert!(ended(&mut child).success());

    // Any other signal is queued behind the first one.
    let mut child = waits("second");
    signal(&child, "KILL");
    assert!(ended(&mut child).signal().is_some());
    mount.fs.hold(None);
}

/// Writes, and ends when its input does.
const WRITES: &str = "exec 3>file; echo data >&3; echo ready; read line";

/// The files of a process are flushed while it exits, when it takes no more signals.
#[test]
fn killed_process_does_not_wait_for_its_flushes() {
    let mount = Mount::new();
    let writes = || {
        let mut child = process(&mount, &["sh", "-c", WRITES]);
        hears(&mut child, "ready");
        mount.fs.hold(Some("flush"));
        (child, mount.fs.count("flush"))
    };
    let (mut child, before) = writes();
    signal(&child, "KILL");
    assert!(ended(&mut child).signal().is_some());
    assert!(mount.fs.count("flush") > before);
    mount.fs.hold(None);

    let (mut child, before) = writes();
    drop(child.stdin.take());
    eventually("it flushes", || mount.fs.count("flush") > before);
    assert!(child.try_wait().unwrap().is_none(), "one that ends by itself waits for its data");
    mount.fs.hold(None);
    ended(&mut child);
}

/// A process that executes a program closes files with its own state locked, and a reader of that
/// state waits. We must not: its flush would never be answered, nor anything else.
#[test]
fn a_flush_by_execve_is_looked_at_without_waiting() {
    let one = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let one = one.unwrap();
    let mount = Mount::on(one.handle(), |_| ());
    let open = std::fs::File::create(mount.path("file")).unwrap();
    (&open).write_all(b"data").unwrap();
    mount.fs.hold(Some("flush"));
    std::thread::scope(|scope| {
        let executing = scope.spawn(|| Command::new("true").status().unwrap());
        eventually("it flushes", || mount.fs.count("flush") > 0);
        mount.fs.later.store(true, Ordering::Relaxed);
        let begin = Instant::now();
        // It is checked five times a second.
        while begin.elapsed() < Duration::from_secs(1) {
            rustix::fs::statvfs(&mount.dir).unwrap();
        }
        mount.fs.hold(None);
        assert!(executing.join().unwrap().success());
    });
}
