//! Disks that are started with another store than their own: an empty one, or an older copy.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Mount, eventually, larder, pattern, succeed, tree};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const MIB: u64 = 1 << 20;
const REFUSED: &str = "its store is not the one that it had, or is an older copy of that";

fn is_whole(server: &Server, at: usize) -> bool {
    let disk = &status(server)["disks"][at];
    disk["is_there"] == true && disk["stale_bytes"] == 0
}

/// Why a disk is not used.
fn problem(server: &Server, at: usize) -> String {
    let told = status(server);
    told["disks"][at]["problem"].as_str().unwrap_or_default().to_owned()
}

/// Kills a disk, and waits until the metadata server has noticed.
fn kill(volume: &mut Volume, server: &Server, at: usize) {
    volume.disks[at].kill();
    eventually("it is away", || status(server)["disks"][at]["is_there"] == false);
}

fn change(mount: &Mount, number: u64) {
    fs::write(mount.path(&format!("new{number}")), pattern(number, 100_000)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(mount.path("large")).unwrap();
    file.write_all_at(&pattern(50 + number, 300_000), number * 100_003).unwrap();
    file.sync_all().unwrap();
}

/// With two copies a disk is started with an older copy of its store, and with none. It gets
/// everything from the other one, nobody sees an old byte meanwhile, and then the other one is
/// killed.
#[test]
fn an_older_or_empty_store_is_brought_up_to_date_before_it_counts() {
    let mut volume = Volume::with_copies(2, 2);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let older = volume.dir.path().join("older");
    let mount = Mount::new(&server, &["hard"]);
    fs::write(mount.path("large"), pattern(1, 4 << 20)).unwrap();
    change(&mount, 0);
    kill(&mut volume, &server, 1);
    fs::copy(&volume.disks[1].store, &older).unwrap();
    volume.disks[1].start();
    eventually("the disk is whole", || is_whole(&server, 1));
    for (number, replacement) in [(1, Some(older.as_path())), (2, None::<&Path>)] {
        change(&mount, number);
        // A writer may have gone on without a disk that was slow.
        eventually("both are whole", || is_whole(&server, 0) && is_whole(&server, 1));
        kill(&mut volume, &server, 1);
        fs::remove_file(&volume.disks[1].store).unwrap();
        if let Some(other) = replacement {
            fs::copy(other, &volume.disks[1].store).unwrap();
        }
        volume.disks[1].start();
        let expected = tree(&mount.path(""));
        let reader = Mount::plain(&server, &["hard"]);
        assert!(expected == tree(&reader.path("")), "while it is brought up to date");
        eventually("the disk is whole", || is_whole(&server, 1));
        kill(&mut volume, &server, 0);
        let reader = Mount::plain(&server, &["hard"]);
        assert!(expected == tree(&reader.path("")), "from that disk alone");
        volume.disks[0].start();
        eventually("the other disk is there", || is_whole(&server, 0));
    }
    drop(mount);
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}

/// Without copies such a store is not used, however often the disk is started with it, and one line
/// says why. The disk's own store is used again, and the other one when a person accepts it.
#[test]
fn without_copies_another_store_is_refused_in_one_line_until_it_is_accepted() {
    let mut volume = Volume::with_copies(1, 1);
    volume.disks[0].start();
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let path = |name: &str| volume.dir.path().join(name);
    let (older, own) = (path("older"), path("own"));
    let mount = Mount::plain(&server, &["hard"]);
    fs::write(mount.path("file"), pattern(1, MIB as usize)).unwrap();
    drop(mount);
    kill(&mut volume, &server, 0);
    fs::copy(&volume.disks[0].store, &older).unwrap();
    volume.disks[0].start();
    eventually("the disk is there", || is_whole(&server, 0));
    let mount = Mount::plain(&server, &["hard"]);
    fs::write(mount.path("file"), pattern(2, MIB as usize)).unwrap();
    drop(mount);
    kill(&mut volume, &server, 0);
    fs::copy(&volume.disks[0].store, &own).unwrap();
    for other in [Some(&older), None] {
        fs::remove_file(&volume.disks[0].store).unwrap();
        if let Some(other) = other {
            fs::copy(other, &volume.disks[0].store).unwrap();
        }
        for _ in 0..3 {
            volume.disks[0].start();
            eventually("it is refused", || problem(&server, 0).starts_with(REFUSED));
            assert_eq!(problem(&server, 0).lines().count(), 1);
            kill(&mut volume, &server, 0);
        }
    }
    fs::copy(&own, &volume.disks[0].store).unwrap();
    volume.disks[0].start();
    eventually("the disk is there", || is_whole(&server, 0));
    let mount = Mount::plain(&server, &["hard"]);
    assert!(fs::read(mount.path("file")).unwrap() == pattern(2, MIB as usize));
    drop(mount);

    kill(&mut volume, &server, 0);
    fs::copy(&older, &volume.disks[0].store).unwrap();
    volume.disks[0].start();
    eventually("it is refused", || problem(&server, 0).starts_with(REFUSED));
    server.kill();
    succeed(larder().args(["disk", "accept", "1", "--engine", &volume.engine()]));
    server.restart();
    eventually("the disk is there", || is_whole(&server, 0));
    let mount = Mount::plain(&server, &["hard"]);
    let read = fs::read(mount.path("file")).unwrap();
    assert!(read == pattern(1, MIB as usize) || read.iter().all(|byte| *byte == 0));
}
