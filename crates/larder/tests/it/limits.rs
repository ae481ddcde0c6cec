//! Limits of descriptors, inodes and space: no reader ever sees them. And a cache directory whose
//! contents are removed under a mount.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::{Kind, MayForget, Mount, Server, eventually, pattern, run, scratch, succeed};
use crate::small_disk::SmallDisk;

/// A daemon that was in use keeps this much more memory than one that was just started, whatever it
/// did: the allocator's records of what it once held, and the stacks of some 18 threads.
const MORE_AFTER_USE_KIB: u64 = 3 << 10;

fn many_files(server: &Server, count: usize, len: usize) {
    for i in 0..count {
        fs::write(server.path(&format!("f{i}")), pattern(i as u64, len)).unwrap();
    }
}

fn read_all_twice(mount: &Mount, count: usize, len: usize) {
    for _ in 0..2 {
        for i in 0..count {
            let bytes = fs::read(mount.path(&format!("f{i}"))).unwrap();
            assert!(bytes == pattern(i as u64, len), "file {i}");
        }
    }
}

#[test]
fn full_cache_disk_fails_no_read() {
    let server = Server::start(Kind::Larder);
    let disk = SmallDisk::for_cache(24, 4096);
    many_files(&server, 40, 1 << 20);
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_cache(disk.path().join("cache"));
    mount.mount();
    read_all_twice(&mount, 40, 1 << 20);
    let written = pattern(99, 1 << 20);
    fs::write(mount.path("new"), &written).unwrap();
    assert!(fs::read(server.path("new")).unwrap() == written);
    mount.unmount();
}

/// First the kernel wrote it by itself, to the disk of the cache, and its error for a full disk was
/// the caller's.
#[test]
fn a_new_file_may_be_longer_than_the_disk_of_the_cache() {
    let server = Server::start(Kind::Larder);
    let disk = SmallDisk::for_cache(64, 4096);
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_cache(disk.path().join("cache"));
    mount.mount();
    let long = pattern(3, 150 << 20);
    let mut file = fs::File::create(mount.path("long")).unwrap();
    for piece in long.chunks(100_000) {
        file.write_all(piece).unwrap();
    }
    file.sync_data().unwrap();
    drop(file);
    assert!(fs::read(server.path("long")).unwrap() == long);
    assert!(fs::read(mount.path("long")).unwrap() == long);
    mount.unmount();
}

/// Percent of the disk that a user may still fill.
fn free_percent(disk: &SmallDisk) -> f64 {
    let space = rustix::fs::statvfs(disk.path()).unwrap();
    let reserved = space.f_bfree - space.f_bavail;
    space.f_bavail as f64 * 100.0 / (space.f_blocks - reserved) as f64
}

/// First culling comes late, then it goes on for too long.
#[test]
fn a_burst_leaves_a_small_cache_disk_with_room_and_it_can_be_mounted_and_emptied() {
    let server = Server::start(Kind::Larder);
    let large = pattern(7, 80 << 20);
    fs::write(server.path("large"), &large).unwrap();
    many_files(&server, 60, 1 << 20);
    for (marks, cull, stop) in
        [(&[][..], 7.0, 3.0), (&["brun=40,bcull=30,bstop=20"][..], 30.0, 20.0)]
    {
        let disk = SmallDisk::for_cache(64, 4096);
        let mut mount = Mount::unmounted(&server, marks);
        mount.set_cache(disk.path().join("cache"));
        mount.mount();
        assert!(fs::read(mount.path("large")).unwrap() == large);
        assert!(free_percent(&disk) >= stop - 2.0, "{} % are free", free_percent(&disk));
        // Otherwise it blocks other files until it is culled as a whole.
        succeed(mount.larder().args(["cache", "drop"]).arg(mount.path("")));
        for i in 0..60 {
            fs::read(mount.path(&format!("f{i}"))).unwrap();
            assert!(free_percent(&disk) >= stop - 2.0, "{} % are free", free_percent(&disk));
        }
        eventually("enough is culled", || free_percent(&disk) >= cull - 2.0);
        // The disk is used again up to the marks. How far culling may go is tested on a simulated
        // disk.
        eventually("the cache holds what fits", || {
            (0..60).for_each(|i| drop(fs::read(mount.path(&format!("f{i}"))).unwrap()));
            mount.status()["cache"]["bytes"].as_u64().unwrap() >= 14 << 20
        });
        assert_eq!(mount.status()["cache"]["failed"], false);
        // Once it is listed it is on the disk, before others take the blocks that it would need.
        succeed(mount.larder().args(["cache", "ls"]).arg(mount.path("")));
        disk.fill_up();
        fs::read(mount.path("f0")).unwrap();
        mount.unmount();
        disk.fill_up();
        mount.mount();
        let drop = mount.larder().args(["cache", "drop"]).arg(mount.path("")).output().unwrap();
        let drop = String::from_utf8(drop.stdout).unwrap();
        println!("{drop}");
        assert_eq!(mount.status()["cache"]["bytes"], 0);
        assert_eq!(mount.status()["cache"]["failed"], false);
        assert!(free_percent(&disk) > 5.0);
        mount.unmount();
    }
}

/// The kernel writes a new file itself, but appends come to the daemon.
#[test]
fn an_append_needs_no_room_below_the_stop_mark() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["brun=99,bcull=98,bstop=97"]);
    let path = mount.path("log");
    let append = |reads| fs::File::options().read(reads).create(true).append(true).open(&path);
    let (one, two) = (append(true).unwrap(), append(false).unwrap());
    for (mut file, line) in [(&one, "a"), (&two, "b"), (&one, "c")] {
        file.write_all(line.as_bytes()).unwrap();
    }
    drop((one, two));
    assert_eq!(fs::read_to_string(server.path("log")).unwrap(), "abc");
}

#[test]
fn cache_disk_without_inodes_fails_no_read() {
    let server = Server::start(Kind::Larder);
    let disk = SmallDisk::for_cache(64, 128);
    many_files(&server, 300, 5000);
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_cache(disk.path().join("cache"));
    mount.mount();
    read_all_twice(&mount, 300, 5000);
    mount.unmount();
}

/// A mount by a process that may have this many descriptors.
fn mount_with_descriptors(mount: &mut Mount, limit: usize) {
    let mut command = std::process::Command::new("sh");
    let line = format!("ulimit -n {limit}; exec \"$@\"");
    let inner = mount.command();
    command.args(["-c", &line, "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.process_group(0);
    succeed(&mut command);
    mount.mounted();
}

/// More files are open for writing than the daemon has descriptors. The kernel itself writes those
/// for which there is one; all others are written through the daemon, and enough descriptors are
/// left for the daemon itself.
#[test]
fn descriptor_limit_loses_no_write() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::unmounted(&server, &[]);
    mount_with_descriptors(&mut mount, 160);
    let name = |i: usize| format!("f{i}");
    let open: Vec<_> = (0..300)
        .map(|i| {
            let mut file = fs::File::create(mount.path(&name(i))).unwrap();
            file.write_all(&pattern(i as u64, 5000)).unwrap();
            file
        })
        .collect();
    let another = pattern(1000, 300_000);
    fs::write(mount.path("another"), &another).unwrap();
    assert!(fs::read(server.path("another")).unwrap() == another);
    for (i, mut file) in open.into_iter().enumerate() {
        let written = file.write_all(b"end").and_then(|()| file.sync_all());
        written.unwrap_or_else(|error| panic!("{i}: {error}: {}", mount.log()));
        let expected = [pattern(i as u64, 5000), b"end".to_vec()].concat();
        assert!(fs::read(server.path(&name(i))).unwrap() == expected, "{i}");
    }
    let status = mount.status();
    assert!(!mount.log().contains("interrupted"), "{}", mount.log());
    assert!(status["cache"]["failed"] == false, "{status}");
    mount.unmount();
}

#[test]
fn descriptor_limit_fails_no_read() {
    let server = Server::start(Kind::Larder);
    many_files(&server, 200, 5000);
    let mut mount = Mount::unmounted(&server, &[]);
    // Enough for the daemon itself, by far not for a descriptor per file.
    mount_with_descriptors(&mut mount, 64);
    let open: Vec<_> =
        (0..200).map(|i| fs::File::open(mount.path(&format!("f{i}"))).unwrap()).collect();
    read_all_twice(&mount, 200, 5000);
    drop(open);
    mount.unmount();
}

#[test]
fn cache_stays_within_its_limit() {
    let server = Server::start(Kind::Larder);
    many_files(&server, 64, 1 << 20);
    // A disk of its own: on a full one less is cached, or nothing.
    let disk = SmallDisk::for_cache(256, 4096);
    let mut mount = Mount::unmounted(&server, &["cache_max=16M"]);
    mount.set_cache(disk.path().join("cache"));
    mount.mount();
    read_all_twice(&mount, 64, 1 << 20);
    let held = mount.status()["cache"]["bytes"].as_u64().unwrap();
    assert!(held > 0 && held <= 16 << 20, "{held}");
    mount.unmount();
}

/// A field of the worker's /proc/PID/status in KiB.
fn memory_kib(mount: &Mount, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pids()[1])).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

/// More files than nodes are kept in memory; `bench/million` walks a million of them.
#[test]
fn walk_over_many_files_stays_within_memory_and_gives_it_back() {
    let server = Server::start(Kind::Larder);
    for dir in 0..50 {
        fs::create_dir(server.path(&format!("d{dir}"))).unwrap();
        for file in 0..1000 {
            fs::File::create(server.path(&format!("d{dir}/file-{file}"))).unwrap();
        }
    }
    let mount = Mount::new(&server, &[]);
    let begin_kib = memory_kib(&mount, "RssAnon");
    // Before the walk: if the daemon pauses for a minute between the walk and the rest, it does not
    // return the memory.
    let forgetting = MayForget::now();
    let found = run("find", &[mount.path("").to_str().unwrap(), "-type", "f"]);
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 50_000);
    let peak_kib = memory_kib(&mount, "VmHWM");
    assert!(peak_kib < 256 << 10, "{peak_kib} KiB");

    let left = || {
        let kernel = mount.json(&["stat"])["kernel"].clone();
        let count = |name: &str| kernel[name].as_u64().unwrap();
        count("given") - count("returned") + count("nodes_in_memory").saturating_sub(1)
    };
    // As long as some come back: a busy machine takes minutes for all of them.
    let mut before = left();
    while before > 0 {
        eventually(&format!("some of {before} references come back"), || {
            forgetting.names();
            left() < before
        });
        before = left();
    }
    drop(forgetting);
    eventually("the memory is given back", || {
        memory_kib(&mount, "RssAnon") <= begin_kib + MORE_AFTER_USE_KIB
    });
}

/// Runs a command, which must end soon, whatever comes of it.
fn ends(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    eventually(&format!("{command:?} ends"), || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

/// Writes a file and closes it. Answers whether all of that was acknowledged: dd(1) looks at what
/// each write, fsync and close says.
fn is_put(path: &Path, bytes: &[u8], syncs: bool) -> bool {
    let folder = scratch("larder-put-");
    let source = folder.path().join("source");
    fs::write(&source, bytes).unwrap();
    let mut dd = Command::new("dd");
    dd.args(["bs=64k", "status=none"]).args(syncs.then_some("conv=fsync"));
    dd.arg(format!("if={}", source.display())).arg(format!("of={}", path.display()));
    ends(&mut dd).status.success()
}

/// The name and the bytes of a file to be written.
fn another(count: usize) -> (String, Vec<u8>) {
    (format!("dir/f{count}"), pattern(count as u64, [10, 5_000, 70_000, 300_000][count % 4]))
}

/// Unmounts, whatever comes of it but a mount that stays.
fn is_unmounted(mount: &Mount) -> bool {
    let told = ends(mount.larder().arg("umount").arg(mount.path("")));
    println!("umount: {}", String::from_utf8_lossy(&told.stderr).trim_end());
    let path = mount.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    !fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {path} "))
}

/// Somebody removes the contents of the cache directory under a mount that is in use. What is
/// acknowledged after that gets to the server, no call or command hangs, and a sync that succeeds
/// means that the server has everything, also what was kept in that directory before.
#[test]
fn what_is_acknowledged_after_the_cache_was_removed_gets_to_the_server() {
    for options in [
        &[][..],
        &["class=generated"],
        &["exclusive", "class=generated", "actimeo=86400"],
        &["exclusive", "class=scratch", "actimeo=86400"],
    ] {
        let server = Server::start(Kind::Larder);
        let read = pattern(77, 200_000);
        fs::write(server.path("read"), &read).unwrap();
        let mut mount = Mount::unmounted(&server, options);
        mount.mount();
        fs::create_dir(mount.path("dir")).unwrap();
        assert!(fs::read(mount.path("read")).unwrap() == read);
        mount.landed(read.len() as u64);
        let mut before = BTreeMap::new();
        for count in 100..104 {
            let (name, bytes) = another(count);
            assert!(is_put(&mount.path(&name), &bytes, true), "{options:?}: {name}");
            before.insert(name, bytes);
        }
        // The daemon may make something in the middle of it.
        let entries = fs::read_dir(mount.cache()).unwrap().map(|entry| entry.unwrap().path());
        ends(Command::new("rm").arg("-rf").args(entries));
        let (mut acknowledged, mut refused) = (BTreeMap::new(), 0);
        for count in 0..20 {
            let (name, bytes) = another(count);
            match is_put(&mount.path(&name), &bytes, count % 3 == 0) {
                true => drop(acknowledged.insert(name, bytes)),
                false => refused += 1,
            }
        }
        assert!(fs::read(mount.path("read")).unwrap() == read, "{options:?}");
        let sync = ends(mount.larder().arg("sync").arg(mount.path("")));
        let code = sync.status.code();
        println!(
            "{options:?}: {} acknowledged, {refused} refused, sync: {sync:?}",
            acknowledged.len()
        );
        assert!(matches!(code, Some(0 | 1)), "{options:?}: {sync:?}");
        let is_there = |(name, bytes): (&String, &Vec<u8>)| {
            fs::read(server.path(name)).is_ok_and(|there| there == *bytes)
        };
        if code == Some(0) {
            let all = before.iter().chain(&acknowledged);
            let lost: Vec<_> = all.filter(|one| !is_there(*one)).map(|(name, _)| name).collect();
            assert!(lost.is_empty(), "{options:?}: the sync succeeded without {lost:?}");
        }
        eventually("it is unmounted", || is_unmounted(&mount));
        mount.set_cache(mount.cache().with_extension("new"));
        mount.mount();
        for (name, bytes) in &acknowledged {
            assert!(is_there((name, bytes)), "{options:?}: {name} is not at the server");
            assert!(fs::read(mount.path(name)).unwrap() == *bytes, "{options:?}: {name}");
        }
        mount.unmount();
    }
}
