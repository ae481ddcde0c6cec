//! Files of class scratch on volumes: their bytes are in the memory of the machine that wrote them
//! until somebody else asks for them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use crate::harness::{Mount, eventually, kill, pattern, said};
use crate::memory::{explained, memory_of};
use crate::memory_disks::written;
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const SCRATCH: &[&str] = &["class=scratch"];

/// A volume with a disk, or with a disk and a memory disk.
fn volume(has_memory: bool) -> (Volume, Server) {
    let mut volume = match has_memory {
        true => Volume::with_memory_disk(),
        false => Volume::with_copies(1, 1),
    };
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    let are_up =
        || status(&server)["disks"].as_array().unwrap().iter().all(|it| it["state"] == "up");
    eventually("the disks are there", are_up);
    (volume, server)
}

/// Bytes that were written to any disk of the volume.
fn on_disks(server: &Server) -> u64 {
    let told = status(server);
    (0..told["disks"].as_array().unwrap().len()).map(|at| written(&told, at)).sum()
}

fn lost(server: &Server) -> Vec<String> {
    let told = status(server);
    let all = told["lost"].as_array().unwrap().iter();
    all.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
}

/// What is made, written, closed, read and removed sends nothing to any disk, and reads as it was
/// written.
#[test]
fn a_scratch_file_that_is_removed_again_sends_no_byte() {
    for has_memory in [false, true] {
        let (_volume, server) = volume(has_memory);
        let mount = Mount::new(&server, SCRATCH);
        let large = pattern(1, 3 << 20);
        for round in 0..10 {
            fs::write(mount.path("small"), format!("text {round}")).unwrap();
            fs::write(mount.path("large"), &large).unwrap();
            let mut file = fs::OpenOptions::new().append(true).open(mount.path("small")).unwrap();
            file.write_all(b" and more").unwrap();
            file.sync_all().unwrap();
            drop(file);
            let read = fs::read_to_string(mount.path("small")).unwrap();
            assert_eq!(read, format!("text {round} and more"));
            assert!(fs::read(mount.path("large")).unwrap() == large);
            fs::remove_file(mount.path("small")).unwrap();
            fs::remove_file(mount.path("large")).unwrap();
        }
        assert_eq!(on_disks(&server), 0);
        let calls = mount.calls_by_procedure();
        for call in ["ALLOC", "COMMIT_EXTENTS"] {
            assert_eq!(calls.get(call).copied().unwrap_or(0), 0, "{calls:?}");
        }
        fs::write(mount.path("stays"), "text").unwrap();
        let told = explained(&mount, "stays");
        assert_eq!((&told["class"], &told["raised"]), (&"scratch".into(), &"".into()), "{told}");
        assert_eq!(told["durable"]["level"], "memory", "{told}");
    }
}

/// How often a mount called procedures that a file's bytes may need, after some work.
fn calls_of<const N: usize>(mount: &Mount, names: [&str; N], work: impl FnOnce()) -> [u64; N] {
    let calls = || {
        let all = mount.calls_by_procedure();
        names.map(|name| all.get(name).copied().unwrap_or(0))
    };
    let before = calls();
    work();
    let after = calls();
    std::array::from_fn(|at| after[at] - before[at])
}

/// Made, written, closed and removed, a file costs one call more than its name does: the server is
/// told who has its bytes. What one reader asks for is recalled once, and moved once.
#[test]
fn a_scratch_file_costs_a_call_and_its_first_reader_one_recall() {
    let (_volume, server) = volume(true);
    let [mount, reader] = [(); 2].map(|()| Mount::new(&server, SCRATCH));
    let bytes = pattern(1, 300_000);
    fs::create_dir(mount.path("dir")).unwrap();
    // Who has listed a directory knows which names it lacks.
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 0);
    let names = ["OPEN", "RETAIN", "REMOVE", "LOOK", "LOOKUP", "GETATTR", "GETCAPS", "SETATTR"];
    let made = calls_of(&mount, names, || {
        for name in 0..10 {
            let path = mount.path(&format!("dir/{name}"));
            fs::write(&path, &bytes).unwrap();
            fs::remove_file(&path).unwrap();
        }
    });
    assert_eq!(made, [10, 10, 10, 0, 0, 0, 0, 0]);
    let files = 5_u64;
    for name in 0..files {
        fs::write(mount.path(&format!("dir/{name}")), &bytes).unwrap();
    }
    // Told when it moves a file, and returned once with all that was written.
    let names = ["RETAIN", "RETURN_LEASE", "COMMIT_EXTENTS"];
    for name in 0..files {
        for (readers, wanted) in [(&reader, [1, 1, 1]), (&reader, [0, 0, 0]), (&mount, [0, 0, 0])] {
            let read = readers.path(&format!("dir/{name}"));
            let moved = calls_of(&mount, names, || assert!(fs::read(read).unwrap() == bytes));
            assert_eq!(moved, wanted, "{name}");
        }
    }
    assert_eq!(on_disks(&server), files * bytes.len().next_multiple_of(4096) as u64);
}

/// Whoever opens a file, or asks for its size or time, has what the other mount has closed: it is
/// sent then, to the memory disk if there is one.
#[test]
fn who_reads_a_scratch_file_of_another_mount_has_what_was_closed() {
    for has_memory in [false, true] {
        let (_volume, server) = volume(has_memory);
        let mounts = [(); 2].map(|()| Mount::new(&server, SCRATCH));
        let [one, other] = [0, 1].map(|which: usize| mounts[which].path("file"));
        for round in 0..10_usize {
            let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
            let bytes = pattern(round as u64, 1 + round * 300_000);
            fs::write(writer, &bytes).unwrap();
            let (ours, theirs) = (fs::metadata(writer).unwrap(), fs::metadata(reader).unwrap());
            assert_eq!(theirs.len(), bytes.len() as u64, "{round}");
            assert_eq!((ours.mtime(), ours.mtime_nsec()), (theirs.mtime(), theirs.mtime_nsec()));
            assert!(fs::read(reader).unwrap() == bytes, "{round}");
            let mut open = fs::OpenOptions::new();
            open.append(true).open(reader).unwrap().write_all(b"more").unwrap();
            assert!(fs::read(writer).unwrap()[bytes.len()..] == *b"more", "{round}");
        }
        let told = status(&server);
        assert_eq!(written(&told, 0) == 0, has_memory, "{told}");
        assert_eq!((lost(&server), told["losses"].as_array().unwrap().len()), (vec![], 0));
        for mount in &mounts {
            assert_eq!(said(mount, &["status", "--unsaved"]), (Some(0), String::new()));
            assert_eq!(mount.status()["cache"]["set_aside"], 0);
        }
    }
}

/// The bytes outlive the metadata server, the worker, and all processes of the mount: whoever asks
/// waits for the next ones.
#[test]
fn who_reads_a_scratch_file_waits_for_the_creators_next_process() {
    let (_volume, mut server) = volume(true);
    let (mut mount, other) = (Mount::new(&server, SCRATCH), Mount::new(&server, &["hard"]));
    let content = |name: &str| [pattern(7, 700_000), name.into()];
    let write = |mount: &Mount, name: &str| {
        for (at, bytes) in content(name).iter().enumerate() {
            fs::write(mount.path(&format!("{name}{at}")), bytes).unwrap();
        }
    };
    let check = |name: &str| {
        for (at, bytes) in content(name).iter().enumerate() {
            assert!(fs::read(other.path(&format!("{name}{at}"))).unwrap() == *bytes, "{name}{at}");
        }
    };
    write(&mount, "server");
    server.kill();
    server.restart();
    check("server");
    write(&mount, "worker");
    let [_, worker] = mount.pids();
    kill([worker, worker]);
    check("worker");
    write(&mount, "all");
    mount.kill();
    mount.mount();
    check("all");
    write(&mount, "unmounted");
    mount.unmount();
    check("unmounted");
    assert_eq!((lost(&server), status(&server)["losses"].as_array().unwrap().len()), (vec![], 0));
}

/// A mount that is gone with its machine's memory: the file is lost for everybody, on record once,
/// and can be written anew. What others had asked for before is not lost.
#[test]
fn what_was_in_a_dead_creators_memory_is_lost_and_told_once() {
    let (_volume, mut server) = volume(true);
    let mut mount = Mount::new(&server, SCRATCH);
    let other = Mount::new(&server, &["class=scratch", "hard"]);
    let bytes = pattern(1, 700_000);
    for name in ["asked", "lost", "removed"] {
        fs::write(mount.path(name), &bytes).unwrap();
    }
    assert!(fs::read(other.path("asked")).unwrap() == bytes);
    let memory = memory_of(&mount);
    mount.kill();
    fs::remove_dir_all(memory).unwrap();
    let read = |name: &str| fs::read(other.path(name)).map_err(|error| error.raw_os_error());
    let gone = Some(Errno::NOTRECOVERABLE.raw_os_error());
    assert_eq!(read("lost"), Err(gone), "its session is over by then");
    assert_eq!(fs::metadata(other.path("lost")).unwrap().len(), 700_000);
    assert!(read("asked").unwrap() == bytes);
    assert_eq!(lost(&server), ["/lost", "/removed"]);
    let losses = status(&server)["losses"].clone();
    assert_eq!(losses.as_array().unwrap().len(), 1, "{losses}");
    assert_eq!((&losses[0]["files"], &losses[0]["bytes"]), (&2.into(), &1_400_000.into()));
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    let shown = String::from_utf8(crate::harness::succeed(&mut shown).stdout).unwrap();
    let said = "1.34 MiB of 2 files lost with the client that alone had them\n";
    assert!(shown.contains(said), "{shown}");
    fs::remove_file(other.path("removed")).unwrap();
    server.kill();
    server.restart();
    assert_eq!(read("lost"), Err(gone));
    fs::write(other.path("lost"), "anew").unwrap();
    let third = Mount::new(&server, &[]);
    assert_eq!(fs::read_to_string(third.path("lost")).unwrap(), "anew");
    assert_eq!(lost(&server), [] as [&str; 0]);
    assert_eq!(status(&server)["losses"], losses, "it is told once");
}
