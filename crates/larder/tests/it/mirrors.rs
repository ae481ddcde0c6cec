//! A volume with two copies: disks are killed, restarted and replaced while mounts work.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use crate::harness::{Mount, eventually, larder, pattern, succeed, tree};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, refusal, status};

const MIB: u64 = 1 << 20;

/// How many bytes all disks have that are not up to date.
fn stale(server: &Server) -> u64 {
    let told = status(server);
    let disks = told["disks"].as_array().unwrap();
    disks.iter().map(|disk| disk["stale_bytes"].as_u64().unwrap()).sum()
}

/// A disk is killed during work, which continues: what is written in the meantime is copied to it
/// when it is back. Then the other one is lost for good: a new one gets everything from the first,
/// which is finally killed, too.
#[test]
fn a_disk_may_be_lost_and_replaced_while_work_goes_on() {
    let mut volume = Volume::with_copies(2, 2);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let one = Mount::new(&server, &["hard"]);
    fs::write(one.path("large"), pattern(1, 6 << 20)).unwrap();
    for number in 0..10 {
        fs::write(one.path(&format!("f{number}")), pattern(number, 10_000)).unwrap();
    }
    let told = status(&server);
    assert_eq!(told["size_bytes"].as_u64().unwrap(), 64 * MIB, "as much as one disk has");
    for disk in told["disks"].as_array().unwrap() {
        assert!(disk["status"]["written_bytes"].as_u64().unwrap() > 6 * MIB, "{told}");
    }

    // Parts of blocks, over existing ones and beyond the end.
    volume.disks[1].kill();
    let mut large = fs::OpenOptions::new().read(true).write(true).open(one.path("large")).unwrap();
    for at in [5, 4090, 3 << 20, (6 << 20) - 3] {
        large.write_all_at(b"changed", at).unwrap();
        large.sync_all().unwrap();
    }
    for number in 0..5 {
        let mut file =
            fs::OpenOptions::new().append(true).open(one.path(&format!("f{number}"))).unwrap();
        file.write_all(b"appended").unwrap();
        file.sync_all().unwrap();
    }
    fs::remove_file(one.path("f9")).unwrap();
    fs::write(one.path("new"), pattern(77, 3 << 20)).unwrap();
    let other = Mount::plain(&server, &["hard"]);
    let before = tree(&one.path(""));
    assert_same(&before, &tree(&other.path("")));
    assert!(stale(&server) > 3 * MIB);

    volume.disks[1].start();
    eventually("the disk is up to date", || stale(&server) == 0);
    let mut wanted = pattern(1, 6 << 20);
    wanted.resize((6 << 20) + 4, 0);
    for at in [5, 4090, 3 << 20, (6 << 20) - 3] {
        wanted[at..at + 7].copy_from_slice(b"changed");
    }
    let mut has = Vec::new();
    large.seek(SeekFrom::Start(0)).unwrap();
    large.read_to_end(&mut has).unwrap();
    assert!(has == wanted);
    drop(large);

    // Now only the disk that was away is there.
    volume.disks[0].kill();
    let third = Mount::plain(&server, &["hard"]);
    assert_same(&before, &tree(&third.path("")));
    drop((one, other, third));
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");

    // A new disk replaces the lost one.
    volume.enrol(&["--replace", "1"]).start();
    server.restart();
    let mount = Mount::plain(&server, &["hard"]);
    fs::write(mount.path("meanwhile"), pattern(5, 2 << 20)).unwrap();
    eventually("the new disk is up to date", || stale(&server) == 0);
    let before = tree(&mount.path(""));
    volume.disks[1].kill();
    let mount = Mount::plain(&server, &["hard"]);
    assert_same(&before, &tree(&mount.path("")));
    drop(mount);
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}

/// A disk of a served volume is replaced, as one that was stolen: it still runs, and no client is
/// sent to it any more. The new one gets everything from the other.
#[test]
fn a_disk_is_thrown_out_of_a_served_volume_and_replaced() {
    let mut volume = Volume::with_copies(2, 2);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let one = Mount::new(&server, &["hard"]);
    fs::write(one.path("large"), pattern(1, 6 << 20)).unwrap();
    let mut open = fs::File::create(one.path("open")).unwrap();
    open.write_all(&pattern(2, 1 << 20)).unwrap();
    volume.enrol_at(&server, &["--replace", "1"]).start();
    open.write_all(&pattern(3, 1 << 20)).unwrap();
    open.sync_all().unwrap();
    drop(open);
    fs::write(one.path("after"), pattern(4, 2 << 20)).unwrap();
    let told = status(&server);
    let numbers: Vec<u64> = told["disks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|disk| disk["disk"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [2, 3]);
    assert!(!volume.dir.path().join("meta/keys/disk1.key").exists());
    eventually("the new disk is up to date", || stale(&server) == 0);
    let before = tree(&one.path(""));
    drop(one);
    volume.disks[1].kill();
    let other = Mount::plain(&server, &["hard"]);
    assert_same(&before, &tree(&other.path("")));
    drop(other);
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}

fn assert_same(
    one: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
    other: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
) {
    assert!(one.keys().eq(other.keys()), "{:?} {:?}", one.keys(), other.keys());
    for (path, bytes) in one {
        let differs = bytes.iter().zip(&other[path]).position(|(one, other)| one != other);
        let lengths = (bytes.len(), other[path].len());
        assert!(differs.is_none() && lengths.0 == lengths.1, "{path:?}: {differs:?} {lengths:?}");
    }
}

/// Invalid arguments are refused in one line, and change nothing.
#[test]
fn copies_that_cannot_be_had_are_refused_in_one_line() {
    let check = |said: String, word: &str| assert!(said.contains(word), "{said}");
    let mut volume = Volume::with_copies(2, 1);
    let engine = volume.engine();
    let nowhere = format!("{engine}-not");
    for copies in ["0", "5"] {
        let mut create = larder();
        create.args(["volume", "create", "--engine", &nowhere, "--copies", copies]);
        let done = create.output().unwrap();
        assert_eq!(done.status.code(), Some(2));
        check(String::from_utf8(done.stderr).unwrap(), "1..=4");
    }
    let mut meta = larder();
    meta.args(["meta", "--listen", "127.0.0.1:0", "--engine", &engine]);
    check(refusal(&mut meta), "keeps 2 copies of each block, and has 1 disks");
    let key = volume.dir.path().join("other");
    let replacing = |number: &str| {
        let mut command = volume.enrolling(&key, "127.0.0.1:9");
        refusal(command.args(["--replace", number]))
    };
    check(replacing("1"), "no disk 1 with copies");
    assert!(!key.exists());
    volume.enrol(&[]);
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
    let plain = Volume::with_copies(1, 1);
    let mut replacing = plain.enrolling(&key, "127.0.0.1:9");
    check(refusal(replacing.args(["--replace", "1"])), "the only copy of what is on it");
}
