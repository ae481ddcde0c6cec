//! `larder volume rotate`: other keys for the disks of a volume that is in use.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::harness::{Mount, eventually, larder, pattern, succeed};
use crate::memory_disks::calls_to_read;
use crate::ports::free_address;
use crate::server::Server;
use crate::several_disks::{Disk, Volume, refusal, status};

/// Rotates the keys; returns the epoch, and whether each disk has it.
fn rotate(server: &Server) -> (u64, Vec<bool>) {
    let mut command = server.larder_here();
    command.args(["volume", "rotate", "--json", &server.address().to_string()]);
    let rotated: Value = serde_json::from_slice(&succeed(&mut command).stdout).unwrap();
    let disks = rotated["disks"].as_array().unwrap();
    let told = disks.iter().map(|disk| disk["is_told"].as_bool().unwrap()).collect();
    (rotated["key_epoch"].as_u64().unwrap(), told)
}

/// The key epoch of the volume, and of each disk.
fn epochs(told: &Value) -> (u64, Vec<Option<u64>>) {
    let disks = told["disks"].as_array().unwrap();
    let of = |disk: &Value| disk["status"]["key_epoch"].as_u64();
    (told["key_epoch"].as_u64().unwrap(), disks.iter().map(of).collect())
}

/// How often disks have refused a capability whose key was too old.
fn too_old(told: &Value) -> u64 {
    let disks = told["disks"].as_array().unwrap().iter();
    let refused = disks.flat_map(|disk| disk["status"]["refused"].as_array().unwrap());
    let old = refused.filter(|one| one["reason"] == "OldKey");
    old.map(|one| one["count"].as_u64().unwrap()).sum()
}

/// Two mounts write and read while the keys are rotated again and again: no call fails, and
/// everything is as it was written. What was made before the last two epochs is refused and
/// counted. The next server has a later epoch.
#[test]
fn keys_are_rotated_while_mounts_work() {
    let mut volume = Volume::with_copies(1, 2);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    eventually("the disks are there", || epochs(&status(&server)).1 == [Some(3), Some(3)]);
    let (one, other) = (Mount::new(&server, &[]), Mount::plain(&server, &[]));

    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let grows = File::create(one.path("grows")).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let round = rounds.load(Ordering::Relaxed);
                fs::write(one.path(&name(round)), pattern(round, 70_000)).unwrap();
                assert!(fs::read(other.path(&name(round))).unwrap() == pattern(round, 70_000));
                grows.write_all_at(&pattern(round, 5000), round * 5000).unwrap();
                grows.sync_all().unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        for rotated in 1..=8 {
            assert_eq!(rotate(&server), (3 + rotated, vec![true, true]));
            let begun = rounds.load(Ordering::Relaxed);
            eventually("they work", || rounds.load(Ordering::Relaxed) > begun);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let rounds = rounds.load(Ordering::Relaxed);

    // What a reader has is refused after the second rotation: two round trips more.
    let bytes = pattern(7, 5000);
    fs::write(one.path("small"), &bytes).unwrap();
    let file = File::open(other.path("small")).unwrap();
    let without_more = BTreeMap::from([("READ".to_owned(), 1)]);
    eventually("it reads under a lease", || {
        fs::metadata(other.path("small")).unwrap();
        calls_to_read(&other, &file, &bytes) == without_more
    });
    let before = too_old(&status(&server));
    assert_eq!(rotate(&server), (12, vec![true, true]));
    assert_eq!(calls_to_read(&other, &file, &bytes), without_more);
    assert_eq!(rotate(&server), (13, vec![true, true]));
    let calls = calls_to_read(&other, &file, &bytes);
    let asked: u64 = ["LOOK", "GETCAPS"].iter().filter_map(|name| calls.get(*name)).sum();
    assert_eq!((calls["READ"], asked), (2, 1), "{calls:?}");
    let told = status(&server);
    assert_eq!(too_old(&told), before + 1, "{told}");
    assert_eq!(epochs(&told), (13, vec![Some(13), Some(13)]));

    // A disk that is away is told when it is back.
    let frozen = volume.disks[1].freeze();
    assert_eq!(rotate(&server), (14, vec![true, false]));
    drop(frozen);
    eventually("it is told", || epochs(&status(&server)).1 == [Some(14), Some(14)]);
    let mut command = server.larder_here();
    let shown = succeed(command.args(["volume", "status", &server.address().to_string()])).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("\nkeys      epoch 14, since 20"), "{shown}");

    server.kill();
    server.restart();
    eventually("the next epoch", || epochs(&status(&server)) == (15, vec![Some(15), Some(15)]));
    is_all_there(&Mount::plain(&server, &[]), rounds);
}

/// What so many rounds have written.
fn is_all_there(mount: &Mount, rounds: u64) {
    for round in 0..rounds {
        let bytes = fs::read(mount.path(&name(round))).unwrap();
        assert!(bytes == pattern(round, 70_000), "{round}");
    }
    let grown = fs::read(mount.path("grows")).unwrap();
    let parts: Vec<u8> = (0..rounds).flat_map(|round| pattern(round, 5000)).collect();
    assert!(grown == parts);
}

/// The file of a round.
fn name(round: u64) -> String {
    format!("f{round}")
}

#[test]
fn keys_of_a_volume_with_its_own_disk_are_rotated_and_of_none_are_not() {
    let server = Server::volume(&["--size", "64M"]);
    let first = status(&server)["key_epoch"].as_u64().unwrap();
    assert_eq!(rotate(&server), (first + 1, vec![true]));
    let address = free_address().to_string();
    let said = refusal(larder().args(["volume", "rotate", &address]));
    assert!(said.contains("no metadata server of this user listens at"), "{said}");
}
