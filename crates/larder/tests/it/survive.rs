//! The process that serves a mount dies; the mount continues.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::harness::{
    Kind, Mount, Server, eventually, pattern, run, said, succeed, tree, waits_in,
};
use crate::several_disks::Volume;
use crate::unmounts::processes_of;

/// Kills the worker, and waits until another one serves.
fn kill_worker(mount: &Mount) {
    let [keeper, worker] = mount.pids();
    assert_ne!(keeper, worker, "it is supervised");
    run("kill", &["-KILL", &worker.to_string()]);
    let another = || mount.pids()[1] != worker;
    eventually("another worker serves", another);
}

#[test]
fn open_files_go_on() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 300_000);
    for name in ["read", "cached", "mapped"] {
        fs::write(server.path(name), &bytes).unwrap();
    }
    let mount = Mount::new(&server, &[]);
    fs::create_dir(mount.path("dir")).unwrap();
    // One that the kernel reads by itself, one through the page cache, one that is mapped.
    assert_eq!(fs::read(mount.path("read")).unwrap(), bytes);
    let mut read = File::open(mount.path("read")).unwrap();
    read.read_exact(&mut [0; 1000]).unwrap();
    let cached = File::open(mount.path("cached")).unwrap();
    let mut mapper = Mapper::new(&mount.path("mapped"));
    mapper.change(0);
    let mut written = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("written"))
        .unwrap();
    written.write_all(&bytes[..100_000]).unwrap();
    let removed = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("removed"))
        .unwrap();
    removed.write_all_at(b"still here", 0).unwrap();
    fs::remove_file(mount.path("removed")).unwrap();
    let inode = fs::metadata(mount.path("read")).unwrap();
    let locked = File::create(mount.path("locked")).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();

    for round in 0..3_u64 {
        kill_worker(&mount);
        let mut rest = Vec::new();
        read.seek(SeekFrom::Start(1000)).unwrap();
        read.read_to_end(&mut rest).unwrap();
        assert!(rest == bytes[1000..]);
        let mut all = vec![0; bytes.len()];
        cached.read_exact_at(&mut all, 0).unwrap();
        assert!(all == bytes);
        let at = 100_000 + round as usize * 50_000;
        written.write_all(&bytes[at..at + 50_000]).unwrap();
        removed.write_all_at(&[b'0' + round as u8], 20 + round).unwrap();
        let mut ten = [0; 10];
        removed.read_exact_at(&mut ten, 0).unwrap();
        assert_eq!(&ten, b"still here");
        mapper.change(1 + round);
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(mount.path("read")).unwrap().ino(), inode.ino());
        let second = File::open(mount.path("locked")).unwrap();
        assert!(flock(&second, FlockOperation::NonBlockingLockExclusive).is_err());
        assert!(fs::read_dir(mount.path("dir")).unwrap().next().is_none());
    }
    assert_eq!(mount.json(&["status"])["restarts"], 3);
    mapper.end();
    drop((read, cached, written, removed, locked));
    assert!(fs::read(server.path("written")).unwrap() == bytes[..250_000]);
    let mut expected = bytes.clone();
    expected[..4].copy_from_slice(b"0123");
    let begin = Instant::now();
    eventually("it is written back", || fs::read(server.path("mapped")).unwrap() == expected);
    assert!(begin.elapsed() < Duration::from_secs(25), "after 30 s the kernel would");
    // A file that was removed while it was open is gone, now that it is closed.
    let names = || fs::read_dir(server.path("")).unwrap().count();
    eventually("nothing hidden is left", || names() == 6);
    assert!(mount.log().contains("killed by signal 9"));
}

/// A program that has mapped a file, and changes a byte of it on request.
struct Mapper {
    child: Child,
}

impl Mapper {
    fn new(path: &Path) -> Mapper {
        let script = "import mmap, os, sys\n\
            fd = os.open(sys.argv[1], os.O_RDWR)\n\
            mapping = mmap.mmap(fd, 0)\n\
            os.close(fd)\n\
            for line in sys.stdin:\n\
            \x20   mapping[int(line)] = 48 + int(line)\n\
            \x20   mapping.flush()\n\
            \x20   print('done', flush=True)\n";
        let child = Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Mapper { child: child.unwrap() }
    }

    fn change(&mut self, at: u64) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{at}").unwrap();
        let mut done = [0; 5];
        self.child.stdout.as_mut().unwrap().read_exact(&mut done).unwrap();
        assert_eq!(&done, b"done\n");
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// A process that has read all entries of a directory, and asks whether there are more, hears from
/// the next worker that there are none.
#[test]
fn a_listing_ends_although_its_worker_died() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        fs::create_dir(server.path("dir")).unwrap();
        for name in ["one", "two", "three"] {
            fs::write(server.path("dir").join(name), name).unwrap();
        }
        let mount = Mount::new(&server, &[]);
        let mut entries = fs::read_dir(mount.path("dir")).unwrap();
        assert!(entries.next().is_some());
        kill_worker(&mount);
        let rest: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(rest.len(), 2, "{kind:?}: {rest:?}");
    }
}

/// A worker tells the kernel to drop a file's pages, and the kernel waits for those that a read has
/// locked, which has no answer yet. A thread that waits so cannot be killed. The next worker serves
/// all the same, and answers the read.
#[test]
fn a_worker_that_the_kernel_does_not_let_go_of_is_replaced() {
    let mut volume = Volume::with_copies(1, 1);
    volume.disks[0].start();
    let server = Server::meta(&["--engine", &volume.engine()]);
    let other = Mount::plain(&server, &["hard"]);
    let (bytes, at) = (pattern(7, 8 << 20), 6 << 20);
    fs::write(other.path("file"), &bytes).unwrap();
    let mount = Mount::new(&server, &["hard", "nopassthrough"]);
    let file = File::open(mount.path("file")).unwrap();
    let [_, worker] = mount.pids();
    std::thread::scope(|scope| {
        let frozen = volume.disks[0].freeze();
        let (tell, told) = mpsc::channel();
        let reading = scope.spawn(move || {
            let mut read = vec![0; 1000];
            tell.send(rustix::thread::gettid()).unwrap();
            file.read_exact_at(&mut read, at as u64).map(|()| read)
        });
        let stack = format!("/proc/{}/stack", told.recv().unwrap());
        let has_locked = || fs::read_to_string(&stack).unwrap().contains("folio_wait");
        eventually("the read waits for its page", has_locked);
        let changed = other.path("file");
        let changing = scope.spawn(|| File::options().write(true).open(changed)?.set_len(7 << 20));
        eventually("the worker waits for a page", || waits_in(worker, "fuse_reverse_inval_inode"));
        run("kill", &["-KILL", &worker.to_string()]);
        eventually("another worker serves", || mount.pids()[1] != worker);
        drop(frozen);
        // The version that the read began with may be gone.
        match reading.join().unwrap() {
            Ok(read) => assert!(read == bytes[at..at + 1000]),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
        }
        changing.join().unwrap().unwrap();
    });
    assert!(fs::read(mount.path("file")).unwrap() == bytes[..7 << 20]);
    let gone = || !Path::new(&format!("/proc/{worker}")).exists();
    eventually("the one that was killed is gone", gone);
}

#[test]
fn work_sees_no_error_while_workers_are_killed() {
    const KILLS: u32 = 10;
    let server = Server::start(Kind::Ganesha);
    let mount = Mount::new(&server, &[]);
    let mirror = tempfile::tempdir_in("/var/tmp").unwrap();
    let stop = AtomicBool::new(false);
    let (rounds, longest) = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            for _ in 0..KILLS {
                std::thread::park_timeout(Duration::from_millis(300));
                kill_worker(&mount);
            }
            stop.store(true, SeqCst);
        });
        let asking = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !stop.load(SeqCst) {
                let begin = Instant::now();
                // The name was not looked up before, so the kernel asks.
                assert!(!mount.path(&format!("absent{begin:?}")).exists());
                longest = longest.max(begin.elapsed());
                std::thread::park_timeout(Duration::from_millis(5));
            }
            longest
        });
        let mut rounds = 0;
        while !stop.load(SeqCst) {
            for base in [mount.path("").as_path(), mirror.path()] {
                work(base, rounds);
            }
            rounds += 1;
        }
        killing.join().unwrap();
        (rounds, asking.join().unwrap())
    });
    println!("{rounds} rounds, longest pause {longest:?}");
    assert!(rounds > 0);
    assert_eq!(mount.json(&["status"])["restarts"], KILLS);
    let expected = tree(mirror.path());
    eventually("releases have come", || tree(&server.path("")).len() == expected.len());
    assert!(tree(&server.path("")) == expected, "at the server");
    assert!(tree(&mount.path("")) == expected, "through the mount");
}

/// Ordinary changes of a tree, none of which may fail.
fn work(base: &Path, round: u64) {
    let dir = base.join(format!("dir{}", round % 3));
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir(&dir).unwrap();
    for number in 0..12 {
        let path = dir.join(format!("file{number}"));
        let bytes = pattern(round * 100 + number, 500 + 7000 * number as usize);
        let mut file = File::options().write(true).create_new(true).open(&path).unwrap();
        for part in bytes.chunks(3000) {
            file.write_all(part).unwrap();
        }
        drop(file);
        let mut appended = File::options().append(true).open(&path).unwrap();
        appended.write_all(b"end").unwrap();
        appended.sync_all().unwrap();
        drop(appended);
        match number % 4 {
            0 => fs::rename(&path, dir.join(format!("renamed{number}"))).unwrap(),
            1 => fs::hard_link(&path, dir.join(format!("linked{number}"))).unwrap(),
            2 => std::os::unix::fs::symlink(&path, dir.join(format!("symbolic{number}"))).unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
    }
    let again = dir.join("file1");
    let mut edited = fs::read(&again).unwrap();
    edited[10] ^= 0xff;
    fs::write(&again, &edited).unwrap();
    assert!(fs::read(&again).unwrap() == edited);
}

#[test]
fn an_upgrade_goes_on_with_open_files() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mount.path("a")).unwrap();
    file.write_all(b"before ").unwrap();
    let before = mount.pids();
    let upgraded = succeed(mount.larder().arg("upgrade").arg(mount.path("")));
    let text = String::from_utf8_lossy(&upgraded.stdout).into_owned();
    assert!(text.contains("is served by larder "), "{text}");
    let after = mount.pids();
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    file.write_all(b"after").unwrap();
    drop(file);
    assert_eq!(fs::read(server.path("a")).unwrap(), b"before after");
    assert_eq!(mount.json(&["status"])["restarts"], 0, "nobody died");
}

#[test]
fn a_mount_that_is_not_to_survive_says_so() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["nosurvive"]);
    let status = mount.json(&["status"]);
    assert_eq!(status["pid"], status["worker_pid"]);
    assert!(status["supervisor_pid"].is_null());
    let (code, text) = said(&mount, &["upgrade", mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(text.contains("survive"), "{text}");
}

#[test]
fn a_mount_outlives_its_supervisor_and_both_leave_a_clean_cache() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(3, 200_000);
    let mut mount = Mount::new(&server, &[]);
    fs::write(mount.path("closed"), &bytes).unwrap();
    let [keeper, worker] = mount.pids();
    run("kill", &["-KILL", &keeper.to_string()]);
    eventually("the worker notices", || mount.log().contains("the supervisor is gone"));
    assert!(fs::read(mount.path("closed")).unwrap() == bytes);
    let unclosed = File::create(mount.path("unclosed")).unwrap();
    unclosed.write_all_at(&bytes, 0).unwrap();
    run("kill", &["-KILL", &worker.to_string()]);
    drop(unclosed);
    assert!(mount.unmount() < Duration::from_secs(5));
    mount.mount();
    // Files that were not closed yet are also at the server, or being sent.
    eventually("it is there", || fs::read(server.path("unclosed")).is_ok_and(|held| held == bytes));
    assert!(fs::read(mount.path("unclosed")).unwrap() == bytes);
    mount.unmount();
    let verify = succeed(mount.larder().args(["cache", "verify"]).arg(mount.cache()));
    let report = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(report.contains(" 0 wrong"), "{report}");
}

/// With a supervisor the next worker answers; without one the mount is dead, which is not a failure
/// of umount.
#[test]
fn umount_that_a_worker_took_and_did_not_answer_succeeds() {
    for supervised in [true, false] {
        let server = Server::start(Kind::Larder);
        let mut mount = Mount::new(&server, &[]);
        fs::write(mount.path("written"), "here").unwrap();
        let [keeper, worker] = mount.pids().map(|pid| pid.to_string());
        if !supervised {
            run("kill", &["-KILL", &keeper]);
        }
        run("kill", &["-STOP", &worker]);
        let mut umount = mount.larder();
        let umount = umount.arg("umount").arg(mount.path("")).stderr(Stdio::piped()).spawn();
        let umount = umount.unwrap();
        eventually("it waits for its answer", || waits_in(umount.id(), "unix_stream"));
        run("kill", &["-KILL", &worker]);
        let ended = umount.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "supervised {supervised}: {said}");
        assert!(!mount.path("written").exists());
        mount.mount();
        assert_eq!(fs::read(mount.path("written")).unwrap(), b"here");
    }
}

/// A question may break off with the worker that was to answer it.
fn is_given_up(mount: &Mount) -> bool {
    said(mount, &["status"]).1.contains("larder upgrade")
}

#[test]
fn workers_that_die_again_and_again_are_given_up_until_told_otherwise() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "here").unwrap();
    let mut mount = Mount::new(&server, &[]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"here");
    // No cache, no worker: it reports what this is and for which volume.
    let format = mount.cache().join("larder-cache");
    let kept = fs::read(&format).unwrap();
    fs::write(&format, "something else\n").unwrap();
    run("kill", &["-KILL", &mount.pids()[1].to_string()]);
    eventually("it is given up", || is_given_up(&mount));
    let error = fs::metadata(mount.path("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(mount.json(&["status"])["state"], "failed");

    fs::write(&format, kept).unwrap();
    succeed(mount.larder().arg("upgrade").arg(mount.path("")));
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"here");

    fs::write(&format, "something else\n").unwrap();
    run("kill", &["-KILL", &mount.pids()[1].to_string()]);
    eventually("it is given up again", || is_given_up(&mount));
    assert!(mount.unmount() < Duration::from_secs(5));
    // The supervisor ends after the worker that answered umount.
    let top = mount.path("").parent().unwrap().to_owned();
    eventually("no process is left", || processes_of(&top).is_empty());
}
