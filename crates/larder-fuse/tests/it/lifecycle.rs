//! Coming and going of mounts.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_fuse::{MountError, MountOptions, UNMOUNT_LIMIT, mount};

use crate::fs::TestFs;
use crate::{Mount, RUNTIME, eventually, mounts_at, os_error};

/// Asserts that an unmount keeps its limit: a busy machine may spoil a measurement, but not every
/// one.
fn keeps_the_limit(unmount: impl Fn() -> Duration) {
    let took: Vec<_> =
        (0..5).map(|_| unmount()).take_while(|took| *took >= UNMOUNT_LIMIT).collect();
    assert!(took.len() < 5, "{took:?}");
}

#[test]
fn the_mount_table_tells_what_it_is() {
    let mount = Mount::with(|options| (options.no_suid, options.no_dev) = (true, true));
    assert_eq!(mount.mounted.mountpoint(), mount.dir);
    let lines = mounts_at(&mount.dir);
    let line = lines.first().unwrap();
    assert!(line.starts_with("test:/source "), "{line}");
    assert!(line.contains(" fuse.larder rw,nosuid,nodev,"), "{line}");
    assert!(line.contains("default_permissions,allow_other"), "{line}");
}

#[test]
fn ten_mounts_leave_nothing() {
    let parent = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        let fs = TestFs::new(parent.path());
        let dir = parent.path().join("m");
        fs::create_dir_all(&dir).unwrap();
        let options = MountOptions::new("x");
        let handle = RUNTIME.handle().clone();
        let mounted = mount(Arc::clone(&fs) as _, &dir, &options, &handle).unwrap();
        fs::write(dir.join("a"), b"x").unwrap();
        mounted.unmount().unwrap();
        assert_eq!(mounts_at(&dir), [""; 0]);
        mounted.wait().unwrap();
        drop(mounted);
        eventually("the file system is let go", || Arc::strong_count(&fs) == 1);
    }
}

#[test]
fn unmount_while_a_file_is_open() {
    keeps_the_limit(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        let mut file = File::open(path).unwrap();
        let begin = Instant::now();
        mount.mounted.unmount().unwrap();
        let took = begin.elapsed();
        assert_eq!(mounts_at(&mount.dir), [""; 0]);
        assert!(mount.mounted.wait().is_ok());
        assert!(file.read(&mut [0; 1]).is_err());
        took
    });
}

#[test]
fn unmount_while_the_file_system_does_not_answer() {
    keeps_the_limit(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        mount.fs.kernel().invalidate(larder_vfs::Ino(2), false);
        mount.fs.hold(Some("read"));
        mount.fs.set_way(crate::fs::Way::Direct);
        let reader = std::thread::spawn(move || fs::read(path));
        eventually("the read has come", || mount.fs.count("read") > 0);
        let begin = Instant::now();
        mount.mounted.unmount().unwrap();
        let took = begin.elapsed();
        let error = os_error(reader.join().unwrap());
        assert!([libc::ECONNABORTED, libc::ENOTCONN, libc::EIO].contains(&error), "{error}");
        assert_eq!(mounts_at(&mount.dir), [""; 0]);
        took
    });
}

#[test]
fn unmounting_from_outside_ends_the_wait() {
    let mount = Mount::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mount.mounted.wait());
        assert!(Command::new("umount").arg(&mount.dir).status().unwrap().success());
        waiting.join().unwrap().unwrap();
    });
    mount.mounted.unmount().unwrap();
}

#[test]
fn the_next_mount_at_the_same_place_is_left_alone() {
    let first = Mount::new();
    assert!(Command::new("umount").arg(&first.dir).status().unwrap().success());
    first.mounted.wait().unwrap();
    let fs = TestFs::new(first.dir.parent().unwrap());
    let options = MountOptions::new("second");
    let second = mount(fs, &first.dir, &options, RUNTIME.handle()).unwrap();
    first.mounted.unmount().unwrap();
    assert_eq!(mounts_at(&first.dir).len(), 1);
    second.unmount().unwrap();
}

fn refused(path: &Path) -> MountError {
    let parent = tempfile::tempdir().unwrap();
    let fs = TestFs::new(parent.path());
    mount(fs, path, &MountOptions::new("x"), RUNTIME.handle()).unwrap_err()
}

#[test]
fn refusals_name_the_next_step() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("none");
    assert!(matches!(refused(&missing), MountError::NoMountpoint(path) if path == missing));
    let file = parent.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(refused(&file), MountError::NotDirectory(path) if path == file));
    assert!(matches!(refused(&file.join("x")), MountError::NotDirectory(_)));

    let mount = Mount::new();
    let error = refused(&mount.dir);
    assert!(matches!(&error, MountError::AlreadyMounted(path) if *path == mount.dir));
    assert!(error.to_string().contains("umount "), "{error}");
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&mount.dir, &link).unwrap();
    assert!(matches!(refused(&link), MountError::AlreadyMounted(path) if path == mount.dir));
}

#[test]
fn a_dead_mount_is_recognised_and_cleaned_up() {
    let mount = Mount::new();
    fs::metadata(&mount.dir).unwrap();
    abort(&mount.dir);
    mount.mounted.wait().unwrap();
    assert_eq!(mounts_at(&mount.dir).len(), 1);
    // One that does not show it within a second is taken for alive.
    eventually(
        "it is seen to be dead",
        || matches!(refused(&mount.dir), MountError::Stale(path) if path == mount.dir),
    );
    eventually("it is cleaned up", || {
        mount.mounted.unmount().unwrap();
        mounts_at(&mount.dir).is_empty()
    });
}

/// Cuts the connection as the death of a daemon does.
fn abort(dir: &Path) {
    use std::os::unix::fs::MetadataExt;
    let connections = Path::new("/sys/fs/fuse/connections");
    let device = rustix::fs::minor(fs::metadata(dir).unwrap().dev()).to_string();
    let abort: PathBuf = connections.join(device).join("abort");
    if !abort.exists() {
        // It fails if another test was faster.
        Command::new("mount").args(["-t", "fusectl", "none"]).arg(connections).status().unwrap();
    }
    fs::write(abort, "1").unwrap();
}
