//! A directory of this machine behind FUSE.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use larder_fuse::{Bare, MountOptions, mount};
use larder_io::{Arm, RealClock};

use crate::{RUNTIME, transport};

/// With the kernel's passthrough and without it, what is done through the mount is in the
/// directory, and what was in it before is found.
#[test]
fn what_is_done_through_a_bare_mount_is_in_the_directory() {
    for passes_through in [true, false] {
        let top = tempfile::tempdir_in("/dev/shm").unwrap();
        let (dir, mnt) = (top.path().join("dir"), top.path().join("mnt"));
        fs::create_dir(&mnt).unwrap();
        fs::create_dir_all(dir.join("old")).unwrap();
        for number in 0..300 {
            fs::write(dir.join(format!("old/{number}")), "before").unwrap();
        }
        let mut options = MountOptions::new("bare");
        options.transport = transport();
        options.probe_dir = passes_through.then(|| dir.clone());
        let bare = Arc::new(Bare::new(&dir).unwrap());
        let mounted = mount(bare, &mnt, &options, RUNTIME.handle()).unwrap();

        assert_eq!(fs::read_dir(mnt.join("old")).unwrap().count(), 300);
        assert_eq!(fs::read(mnt.join("old/7")).unwrap(), b"before");
        fs::create_dir(mnt.join("new")).unwrap();
        let mut file = File::create_new(mnt.join("new/file")).unwrap();
        file.write_all(b"0123456789").unwrap();
        file.write_all_at(b"abc", 2).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read(dir.join("new/file")).unwrap(), b"01abc56789");
        let mut again =
            OpenOptions::new().read(true).append(true).open(mnt.join("new/file")).unwrap();
        again.write_all(b"end").unwrap();
        again.rewind().unwrap();
        let mut read = String::new();
        again.read_to_string(&mut read).unwrap();
        assert_eq!(read, "01abc56789end");
        again.set_len(3).unwrap();
        drop(again);
        fs::set_permissions(mnt.join("new/file"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", mnt.join("new/link")).unwrap();
        assert_eq!(fs::read(mnt.join("new/link")).unwrap(), b"01a");
        fs::rename(mnt.join("new/file"), mnt.join("old/7")).unwrap();
        let found = fs::metadata(dir.join("old/7")).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (3, 0o600));
        fs::remove_file(mnt.join("new/link")).unwrap();
        fs::remove_dir(mnt.join("new")).unwrap();
        assert!(!dir.join("new").exists());
        let missing = fs::read(mnt.join("missing")).unwrap_err();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        assert!(fs::remove_dir(mnt.join("old")).is_err(), "it is not empty");
        mounted.unmount().unwrap();
    }
}

/// Of ext4 on such a disk, mounted with `sync,dirsync`, each change costs an operation of the disk.
#[test]
fn each_synchronous_change_of_a_file_system_on_a_slow_disk_is_an_operation_of_it() {
    let top = tempfile::tempdir_in("/var/tmp").unwrap();
    let [dir, mnt, ext4] = ["dir", "mnt", "ext4"].map(|name| top.path().join(name));
    for path in [&dir, &mnt, &ext4] {
        fs::create_dir(path).unwrap();
    }
    File::create(dir.join("image")).unwrap().set_len(64 << 20).unwrap();
    succeed("mkfs.ext4", &["-q", "-F"], &[&dir.join("image")]);
    let mut options = MountOptions::new("slow");
    options.transport = transport();
    options.probe_dir = Some(dir.clone());
    let arm = Arc::new(Arm::new(Duration::from_micros(1), Arc::new(RealClock)));
    let slow = Arc::new(Bare::slow(&dir, Arc::clone(&arm)).unwrap());
    let mounted = mount(slow, &mnt, &options, RUNTIME.handle()).unwrap();
    succeed("mount", &["-o", "loop,sync,dirsync,noinit_itable"], &[&mnt.join("image"), &ext4]);

    let costs = |what: &str, change: &dyn Fn()| {
        let before = arm.operations();
        change();
        assert!(arm.operations() > before, "{what} costs the disk nothing");
    };
    let file = ext4.join("file");
    costs("a file", &|| drop(File::create_new(&file).unwrap()));
    costs("a write", &|| fs::write(&file, "0123").unwrap());
    costs("a rename", &|| fs::rename(&file, ext4.join("other")).unwrap());
    costs("a removal", &|| fs::remove_file(ext4.join("other")).unwrap());
    costs("a directory", &|| fs::create_dir(ext4.join("new")).unwrap());

    succeed("umount", &[], &[&ext4]);
    mounted.unmount().unwrap();
}

fn succeed(program: &str, arguments: &[&str], paths: &[&Path]) {
    let done = Command::new(program).args(arguments).args(paths).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}
