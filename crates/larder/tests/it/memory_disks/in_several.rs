//! What is in several memories at once, on mounts.

use std::fs;

use rustix::io::Errno;
use serde_json::{Value, json};

use crate::harness::{Mount, eventually, pattern};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const MIB: u64 = 1 << 20;
/// So many files are in as many memories as their class asks for.
const FILES: u64 = 11;

fn name(number: u64) -> String {
    format!("f{number}")
}

/// Of several sizes; the last one is large.
fn content(number: u64) -> Vec<u8> {
    let length = if number == FILES - 1 { 3 << 20 } else { 5000 + number as usize * 20_000 };
    pattern(number, length)
}

/// What a disk has, if it says it in time.
fn held(told: &Value, at: usize) -> Option<u64> {
    told["disks"][at]["status"]["written_bytes"].as_u64()
}

/// A volume with a disk, a memory disk by itself, and from number 3 on so many beside each other;
/// and its metadata server.
fn with_beside(copies: usize) -> (Volume, Server) {
    let mut volume = Volume::with_copies(1, 1);
    volume.enrol(&["--memory"]);
    volume.enrol(&["--memory"]);
    for _ in 1..copies {
        volume.enrol(&["--memory", "--beside", "3"]);
    }
    volume.disks[1..].iter_mut().for_each(Disk::keep_in_memory);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("all disks are there", || {
        status(&server)["disks"].as_array().unwrap().iter().all(|disk| disk["state"] == "up")
    });
    (volume, server)
}

/// A mount of class `several`, whose bytes are in so many memories, on which all files have been
/// written.
fn with_files(volume: &Volume, server: &Server, copies: usize) -> Mount {
    let rules = volume.dir.path().join("rules.toml");
    let class = format!("[class.several]\nlike = 'volatile'\nshared = {{ copies = {copies} }}\n");
    fs::write(&rules, class).unwrap();
    let mount = Mount::new(server, &[&format!("rules={}", rules.display()), "class=several"]);
    // The first bytes go to the disk while the server finds out that the memory disks are new.
    eventually("all disks beside each other are used", || {
        fs::write(mount.path("first"), pattern(0, 1 << 20)).unwrap();
        let told = status(server);
        (2..2 + copies).all(|at| held(&told, at) >= Some(MIB))
    });
    fs::remove_file(mount.path("first")).unwrap();
    eventually("nothing is left", || {
        let told = status(server);
        (0..2 + copies).all(|at| held(&told, at) == Some(0))
    });
    for number in 0..FILES {
        fs::write(mount.path(&name(number)), content(number)).unwrap();
    }
    mount
}

/// A mount that has read nothing yet finds all files whole.
fn are_there(server: &Server) {
    let mount = Mount::plain(server, &["hard"]);
    for number in 0..FILES {
        assert!(fs::read(mount.path(&name(number))).unwrap() == content(number), "{number}");
    }
}

/// All files are lost, each is listed once, and they are one loss.
fn are_lost(server: &Server) {
    let told = status(server);
    let blocks = |number| content(number).len().next_multiple_of(4096) as u64;
    let bytes: u64 = (0..FILES).map(blocks).sum();
    let losses = told["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 1, "{told}");
    assert_eq!(
        (&losses[0]["number"], &losses[0]["files"], &losses[0]["bytes"]),
        (&1.into(), &FILES.into(), &bytes.into()),
        "{told}"
    );
    let mut lost: Vec<String> = Vec::new();
    for file in told["lost"].as_array().unwrap() {
        lost.push(file["path"].as_str().unwrap().to_owned());
    }
    let mut expected: Vec<String> = (0..FILES).map(|number| format!("/{}", name(number))).collect();
    lost.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lost, expected);
    let mount = Mount::plain(server, &["hard"]);
    let not_recoverable = Some(Errno::NOTRECOVERABLE.raw_os_error());
    for number in 0..FILES {
        let refused = fs::read(mount.path(&name(number))).unwrap_err();
        assert_eq!(refused.raw_os_error(), not_recoverable, "{number}");
    }
}

/// Kills all but one of the memory disks beside each other, whichever that is, and then all.
fn is_lost_with_all_alone(copies: usize) {
    let (mut volume, server) = with_beside(copies);
    let beside = 2..2 + copies;
    let _several = with_files(&volume, &server, copies);
    let mut told = Value::Null;
    eventually("each of them has all", || {
        told = status(&server);
        beside.clone().all(|at| held(&told, at) >= Some(3 * MIB))
    });
    assert_eq!(held(&told, 1), Some(0), "one copy is not enough: {told}");
    let kept = Mount::new(&server, &[]);
    fs::write(kept.path("kept"), content(1)).unwrap();
    let one = Mount::new(&server, &["class=volatile"]);
    eventually("something is on the memory disk by itself", || {
        fs::write(one.path("elsewhere"), content(2)).unwrap();
        held(&status(&server), 1) > Some(0)
    });

    for alive in beside.clone() {
        let dead: Vec<usize> = beside.clone().filter(|at| *at != alive).collect();
        dead.iter().for_each(|at| volume.disks[*at].kill());
        are_there(&server);
        dead.iter().for_each(|at| volume.disks[*at].start());
        eventually("they have what the other one has", || {
            let told = status(&server);
            let is_whole = |at: &usize| {
                let disk = &told["disks"][*at];
                disk["state"] == "up"
                    && disk["stale_bytes"] == 0
                    && held(&told, *at) >= Some(3 * MIB)
            };
            dead.iter().all(is_whole)
        });
        let told = status(&server);
        assert_eq!((&told["lost"], &told["losses"]), (&json!([]), &json!([])));
    }

    beside.clone().for_each(|at| volume.disks[at].kill());
    beside.for_each(|at| volume.disks[at].start());
    eventually("the loss is told", || status(&server)["losses"] != json!([]));
    are_lost(&server);
    let reader = Mount::plain(&server, &["hard"]);
    assert!(fs::read(reader.path("kept")).unwrap() == content(1));
    assert!(fs::read(reader.path("elsewhere")).unwrap() == content(2));
}

/// A class that asks for two copies, on two memory disks beside each other, and a single memory
/// disk: killing one of the two loses nothing, and its bytes are restored from the other; killing
/// both loses what was only there, as one loss with one report per file, and nothing else.
#[test]
fn what_is_in_two_memories_is_lost_with_both_alone() {
    is_lost_with_all_alone(2);
}

/// The same with three copies: killing any two of the three at once loses nothing.
#[test]
fn what_is_in_three_memories_is_lost_with_all_three_alone() {
    is_lost_with_all_alone(3);
}
