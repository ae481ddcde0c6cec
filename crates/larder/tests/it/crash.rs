//! The daemon dies at any moment; the cache serves no wrong byte afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Kind, Mount, Server, eventually, kill, pattern, run, succeed};

/// Kills the daemon in the middle of reading and writing, repeatedly. What was closed without an
/// error is at the server, and what is read after the next mount is what the server has.
#[test]
fn killed_daemon_leaves_a_cache_that_serves_no_wrong_byte() {
    const ROUNDS: u64 = 12;
    let server = Server::start(Kind::Larder);
    let stable = pattern(1, 6 << 20);
    fs::write(server.path("stable"), &stable).unwrap();
    let mut mount = Mount::new(&server, &[]);
    let mut closed: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let pids = mount.pids();
        let delay_ms = 20 + 37 * round % 400;
        let writer = std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                std::thread::park_timeout(std::time::Duration::from_millis(delay_ms));
                kill(pids);
            });
            let done = work_until_it_dies(&mount, round);
            killer.join().unwrap();
            done
        });
        for (name, outcome) in writer {
            match outcome {
                Some(bytes) => drop(closed.insert(name, bytes)),
                None => drop(closed.remove(&name)),
            }
        }
        run("umount", &["-l", mount.path("").to_str().unwrap()]);
        mount.mount();
        // What the kill left unsent is sent in the background.
        eventually("nothing is unsent", || mount.status()["dirty"]["files"] == 0);
        for (name, bytes) in &closed {
            assert!(fs::read(server.path(name)).unwrap() == *bytes, "{name} at the server");
            assert!(fs::read(mount.path(name)).unwrap() == *bytes, "{name} round {round}");
        }
        assert!(fs::read(mount.path("stable")).unwrap() == stable, "round {round}");
        compare(&server.path(""), &mount.path(""));
    }
    mount.unmount();
    let verify = succeed(mount.larder().args(["cache", "verify"]).arg(mount.cache()));
    let report = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(report.contains(" 0 wrong"), "{report}");
}

/// Writes files until the mount fails; returns the content of each, `None` where it is not known.
fn work_until_it_dies(mount: &Mount, round: u64) -> Vec<(String, Option<Vec<u8>>)> {
    let mut done = Vec::new();
    for i in 0.. {
        let name = format!("file-{}", (round * 7 + i) % 20);
        let bytes = pattern(round * 1000 + i, 1000 + 40_000 * usize::try_from(i % 5).unwrap());
        let alive = fs::read(mount.path("stable")).is_ok();
        if !alive || !write_synced(&mount.path(&name), &bytes) {
            done.push((name, None));
            return done;
        }
        done.push((name, Some(bytes)));
    }
    unreachable!("the daemon is killed")
}

fn write_synced(path: &Path, bytes: &[u8]) -> bool {
    let Ok(file) = fs::File::create(path) else { return false };
    file.write_all_at(bytes, 0).is_ok() && file.sync_all().is_ok()
}

/// Every file reads the same through the mount and at the server.
fn compare(server: &Path, mount: &Path) {
    for entry in fs::read_dir(server).unwrap() {
        let name = entry.unwrap().file_name();
        let (ours, theirs) = (fs::read(mount.join(&name)), fs::read(server.join(&name)));
        assert!(ours.unwrap() == theirs.unwrap(), "{}", name.display());
    }
}

/// Files that are open and written when the daemon is killed: new ones, and one that was wholly
/// cached, which the kernel writes itself where possible.
#[test]
fn what_was_written_before_a_kill_reaches_the_server() {
    let server = Server::start(Kind::Larder);
    let mut old = pattern(99, 1 << 20);
    fs::write(server.path("old"), &old).unwrap();
    let mut mount = Mount::new(&server, &[]);
    assert!(fs::read(mount.path("old")).unwrap() == old);
    let writing = fs::File::options().write(true).open(mount.path("old")).unwrap();
    writing.write_all_at(b"changed", 500_000).unwrap();
    old[500_000..500_007].copy_from_slice(b"changed");
    let files: Vec<_> = (0..30)
        .map(|i| {
            let (name, bytes) = (format!("new-{i}"), pattern(i, 1 + 7919 * i as usize));
            let file = fs::File::create(mount.path(&name)).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            (name, bytes, file)
        })
        .collect();
    mount.kill();
    mount.mount();
    eventually("nothing is unsent", || mount.status()["dirty"]["files"] == 0);
    assert!(fs::read(server.path("old")).unwrap() == old);
    for (name, bytes, _file) in &files {
        assert!(fs::read(server.path(name)).unwrap() == *bytes, "{name}");
        assert!(fs::read(mount.path(name)).unwrap() == *bytes, "{name}");
    }
    drop((writing, files));
    mount.unmount();
}

#[test]
fn clean_cache_is_still_used_after_a_crash() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 5 << 20);
    fs::write(server.path("file"), &bytes).unwrap();
    let mut mount = Mount::new(&server, &[]);
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    // A request for its content makes the cache write a checkpoint, which records the file as
    // valid.
    mount.landed(5 << 20);
    mount.unmount();
    mount.mount();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    mount.kill();
    mount.mount();
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    assert_eq!(mount.calls("READ"), 0);
}

#[test]
fn corrupted_cache_file_is_read_from_the_server() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 300_000);
    for i in 0..4 {
        fs::write(server.path(&format!("f{i}")), &bytes).unwrap();
    }
    let mut mount = Mount::new(&server, &[]);
    let read_all = |mount: &Mount| {
        for i in 0..4 {
            assert!(fs::read(mount.path(&format!("f{i}"))).unwrap() == bytes, "file {i}");
        }
    };
    read_all(&mount);
    mount.unmount();
    // Several bytes of every file of the cache in turn, including the index.
    let files: Vec<_> = crate::harness::tree(&mount.cache()).into_iter().collect();
    assert!(files.len() > 4);
    for (round, (name, content)) in files.iter().enumerate() {
        let file = fs::File::options().write(true).open(mount.cache().join(name)).unwrap();
        let len = content.len() as u64;
        for at in (0..8).map(|i| (len * i / 8 + 13 * round as u64) % len.max(1)) {
            if let Some(byte) = content.get(usize::try_from(at).unwrap()) {
                file.write_all_at(&[!byte], at).unwrap();
            }
        }
        drop(file);
        let output = mount.command().output().unwrap();
        if !output.status.success() {
            // The format file itself: refused with one line rather than misread.
            let line = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(line.contains("cache"), "{name:?}: {line}");
            fs::write(mount.cache().join(name), content).unwrap();
            continue;
        }
        read_all(&mount);
        mount.mounted();
        mount.unmount();
    }
}

#[test]
fn one_cache_serves_one_mount() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let other = Mount::unmounted(&server, &[]);
    let output = mount
        .larder()
        .args(["mount", &server.url()])
        .arg(other.path(""))
        .arg("--cache")
        .arg(mount.cache())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("in use") && line.lines().count() == 1, "{line}");
}

#[test]
fn other_format_and_other_volume_are_refused() {
    let (server, other) = (Server::start(Kind::Larder), Server::start(Kind::Larder));
    fs::write(server.path("file"), "one").unwrap();
    let mut mount = Mount::new(&server, &[]);
    mount.unmount();

    let output = mount
        .larder()
        .args(["mount", &other.url()])
        .arg(mount.path(""))
        .arg("--cache")
        .arg(mount.cache())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("it holds") && line.lines().count() == 1, "{line}");

    fs::write(mount.cache().join("larder-cache"), "larder cache format 0\nvolume 00\n").unwrap();
    let output = mount.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.contains("format") && line.lines().count() == 1, "{line}");
}
