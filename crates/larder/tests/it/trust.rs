//! `--trust`: for how long a disk that is away delays changes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::harness::{Mount, eventually, larder, pattern, succeed};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

/// A change of rights is answered when the disk that cannot be told of it trusts nothing any more:
/// after the time that was set, not after the usual 30 s.
#[test]
fn a_disk_that_is_away_delays_a_change_for_the_time_that_was_set() {
    let mut volume = Volume::with_copies(1, 1);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine(), "--trust", "5s"]);
    eventually("the disk is there", || status(&server)["disks"][0]["state"] == "up");
    assert_eq!(status(&server)["trust_ms"], 5000);
    let mut command = server.larder_here();
    let shown = succeed(command.args(["status", &server.address().to_string()])).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("\ntrust     for 5 s: "), "{shown}");

    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("file"), pattern(1, 5000)).unwrap();
    volume.disks[0].kill();
    let begun = Instant::now();
    fs::set_permissions(mount.path("file"), Permissions::from_mode(0o600)).unwrap();
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(15), "it took {waited:?}");
    volume.disks[0].start();
    assert!(fs::read(mount.path("file")).unwrap() == pattern(1, 5000));
}

#[test]
fn a_disk_is_not_let_trust_for_any_time() {
    for time in ["4s", "11min", "30"] {
        for words in
            [["meta", "--engine", "embedded:/nowhere"], ["serve", "/nowhere", "--insecure"]]
        {
            let done = larder().args(words).args(["--trust", time]).output().unwrap();
            let said = String::from_utf8(done.stderr).unwrap();
            assert!(!done.status.success() && said.contains("--trust"), "{said}");
        }
    }
}
