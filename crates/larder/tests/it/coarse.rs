//! Servers whose file system keeps whole seconds: an edit of the same size within the second of the
//! version that was read is still seen. (`larder-client` tests everything within a granule, and a
//! clock that is set back, on a clock that the test sets.)

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_testkit::{SambaOptions, Squash};
use tempfile::TempDir;

use crate::harness::{Mount, Server};
use crate::small_disk::SmallDisk;

/// Edits that leave the file with the times that it had: only these can show a fault.
const HIDDEN: usize = 12;
/// How many edits may come into the next second instead.
const ROUNDS_MAX: usize = 1000;

/// An ext4 with inodes of 128 bytes has no room for more than seconds.
fn whole_seconds() -> SmallDisk {
    SmallDisk::new(64, &["-I", "128"])
}

fn export(disk: &SmallDisk) -> TempDir {
    let dir = TempDir::new_in(disk.path()).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// The files' other writer is a process at the server or another mount: `theirs` says where it has
/// them.
fn check(of: &str, server: &Server, options: &[&str], theirs: &dyn Fn(&str) -> PathBuf) {
    let mut mount = Mount::new(server, options);
    let noac = Mount::new(server, &[options, &["noac"]].concat());
    let mut hidden = 0;
    for round in 0.. {
        let (first, second) = (format!("{round:08}, first "), format!("{round:08}, second"));
        let file = theirs("file");
        fs::write(&file, &first).unwrap();
        for path in [mount.path("file"), noac.path("file")] {
            assert_eq!(fs::read_to_string(path).unwrap(), first, "{of}");
        }
        let before = version(&server.path("file"));
        fs::write(&file, &second).unwrap();
        hidden += usize::from(version(&server.path("file")) == before);
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
        check_names(of, theirs, &noac, round);
        if hidden == HIDDEN {
            break;
        }
        assert!(round < ROUNDS_MAX, "{of}: {hidden} edits had the times of the version before");
    }
    fs::write(theirs("file"), "before").unwrap();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "before");
    fs::write(theirs("file"), "behind").unwrap();
    mount.unmount();
    mount.mount();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "behind", "{of}, after a remount");
}

fn version(path: &Path) -> (u64, i64, i64) {
    let is = fs::metadata(path).unwrap();
    (is.len(), is.ctime(), is.ctime_nsec())
}

/// A file is made directly after its directory was listed, and a lookup of its name had failed.
fn check_names(of: &str, theirs: &dyn Fn(&str) -> PathBuf, noac: &Mount, round: usize) {
    let dir = format!("dir{round}");
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    fs::create_dir(theirs(&dir)).unwrap();
    fs::write(theirs(&format!("{dir}/one")), "").unwrap();
    assert_eq!(names(noac.path(&dir)), ["one"], "{of}");
    let late = format!("{dir}/two");
    assert!(!noac.path(&late).exists());
    fs::write(theirs(&late), "").unwrap();
    assert!(noac.path(&late).exists(), "{of}, round {round}");
    assert_eq!(names(noac.path(&dir)), ["one", "two"], "{of}, round {round}");
}

#[test]
fn edits_within_a_second_are_seen_on_our_exports() {
    let disk = whole_seconds();
    for extra in [&["--no-root-squash"][..], &["--no-root-squash", "--shared"]] {
        let server = Server::larder_of(export(&disk), extra);
        check(&format!("{extra:?}"), &server, &[], &|name| server.path(name));
    }
}

#[test]
fn edits_within_a_second_are_seen_on_ganesha() {
    let disk = whole_seconds();
    let server = Server::ganesha_of(export(&disk), Squash::None);
    check("nfs-ganesha", &server, &[], &|name| server.path(name));
}

/// Without leases, past Samba; with them, by another client.
#[test]
fn edits_within_a_second_are_seen_on_samba() {
    let disk = whole_seconds();
    let server = Server::samba_of(export(&disk), &SambaOptions::default());
    check("Samba, nolease", &server, &["nolease"], &|name| server.path(name));
    let server = Server::samba_of(export(&disk), &SambaOptions::default());
    let other = Mount::new(&server, &[]);
    check("Samba", &server, &[], &|name| other.path(name));
}
