//! Servers whose file system keeps whole seconds: an edit of the same size within the second of the
//! version that was read is still seen. (`larder-client` tests everything within a granule, on a
//! clock that the test sets.)

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_testkit::Squash;
use tempfile::TempDir;

use crate::harness::{Mount, Server};
use crate::small_disk::SmallDisk;

const ROUNDS: usize = 25;

/// An ext4 with inodes of 128 bytes has no room for more than seconds.
fn whole_seconds() -> SmallDisk {
    SmallDisk::new(64, &["-I", "128"])
}

fn export(disk: &SmallDisk) -> TempDir {
    let dir = TempDir::new_in(disk.path()).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

fn check(of: &str, server: &Server) {
    let (mut mount, noac) = (Mount::new(server, &[]), Mount::new(server, &["noac"]));
    let mut hidden = 0;
    for round in 0..ROUNDS {
        let (first, second) = (format!("{round:08}, first "), format!("{round:08}, second"));
        let file = server.path("file");
        fs::write(&file, &first).unwrap();
        for path in [mount.path("file"), noac.path("file")] {
            assert_eq!(fs::read_to_string(path).unwrap(), first, "{of}");
        }
        let before = version(&file);
        fs::write(&file, &second).unwrap();
        hidden += usize::from(version(&file) == before);
        for path in [mount.path("file"), noac.path("file")] {
            assert_eq!(fs::read_to_string(path).unwrap(), second, "{of}, round {round}");
        }
        // The same after a write of our own.
        let (ours, third) = (format!("{round:08}, ours  "), format!("{round:08}, third "));
        fs::write(mount.path("file"), ours).unwrap();
        fs::write(&file, &third).unwrap();
        for path in [mount.path("file"), noac.path("file")] {
            assert_eq!(fs::read_to_string(path).unwrap(), third, "{of}, round {round}, after ours");
        }
        check_names(of, server, &noac, round);
    }
    assert!(hidden > ROUNDS / 2, "{of}: {hidden} edits had the times of the version before");
    fs::write(server.path("file"), "before").unwrap();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "before");
    fs::write(server.path("file"), "behind").unwrap();
    mount.unmount();
    mount.mount();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "behind", "{of}, after a remount");
}

fn version(path: &Path) -> (u64, i64, i64) {
    let is = fs::metadata(path).unwrap();
    (is.len(), is.ctime(), is.ctime_nsec())
}

/// A file is made directly after its directory was listed, and a lookup of its name had failed.
fn check_names(of: &str, server: &Server, noac: &Mount, round: usize) {
    let dir = format!("dir{round}");
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    fs::create_dir(server.path(&dir)).unwrap();
    fs::write(server.path(&format!("{dir}/one")), "").unwrap();
    assert_eq!(names(noac.path(&dir)), ["one"], "{of}");
    let late = format!("{dir}/two");
    assert!(!noac.path(&late).exists());
    fs::write(server.path(&late), "").unwrap();
    assert!(noac.path(&late).exists(), "{of}, round {round}");
    assert_eq!(names(noac.path(&dir)), ["one", "two"], "{of}, round {round}");
}

#[test]
fn edits_within_a_second_are_seen_on_our_exports() {
    let disk = whole_seconds();
    for extra in [&["--no-root-squash"][..], &["--no-root-squash", "--shared"]] {
        check(&format!("{extra:?}"), &Server::larder_of(export(&disk), extra));
    }
}

#[test]
fn edits_within_a_second_are_seen_on_ganesha() {
    let disk = whole_seconds();
    check("nfs-ganesha", &Server::ganesha_of(export(&disk), Squash::None));
}
