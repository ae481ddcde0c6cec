//! Every operation by system calls, with its errors; credentials.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use crate::{Mount, PATIENCE, RUNTIME, as_user, eventually, open_at, os_error, while_remembered};

/// Answers on the thread that asked, and through the runtime.
fn both(check: impl Fn(&Mount)) {
    for later in [false, true] {
        let mount = Mount::new();
        mount.fs.later.store(later, SeqCst);
        check(&mount);
    }
}

/// truncate(2), whose request has no open file.
#[allow(unsafe_code)]
fn truncate(path: &Path, size: i64) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a string that ends in a zero byte and lives over the call.
    let done = unsafe { libc::truncate(path.as_ptr(), size) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn files() {
    both(|mount| {
        let path = mount.file("a", b"hello");
        assert_eq!(fs::read(&path).unwrap(), b"hello");
        File::options().append(true).open(&path).unwrap().write_all(b" there").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"hello there");
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"hell");
        truncate(&path, 6);
        assert_eq!(fs::read(&path).unwrap(), b"hell\0\0");

        assert_eq!(os_error(File::create_new(&path)), libc::EEXIST);
        assert_eq!(os_error(File::open(mount.path("none"))), libc::ENOENT);
        assert_eq!(os_error(File::open(mount.path("a/b"))), libc::ENOTDIR);
        fs::remove_file(&path).unwrap();
        assert_eq!(os_error(fs::remove_file(&path)), libc::ENOENT);
        assert_eq!(os_error(fs::metadata(&path)), libc::ENOENT);
    });
}

#[test]
fn directories() {
    both(|mount| {
        let dir = mount.path("d");
        fs::create_dir(&dir).unwrap();
        assert_eq!(os_error(fs::create_dir(&dir)), libc::EEXIST);
        fs::write(dir.join("f"), b"x").unwrap();
        assert_eq!(os_error(fs::remove_dir(&dir)), libc::ENOTEMPTY);
        assert_eq!(os_error(fs::remove_dir(dir.join("f"))), libc::ENOTDIR);
        assert_eq!(os_error(fs::remove_file(&dir)), libc::EISDIR);
        assert_eq!(fs::read(dir.join("../d/f")).unwrap(), b"x");
        File::open(&dir).unwrap().sync_all().unwrap();
        fs::remove_file(dir.join("f")).unwrap();
        fs::remove_dir(&dir).unwrap();
        assert!(!dir.exists());
    });
}

#[test]
fn links() {
    let check = |mount: &Mount| {
        let path = mount.file("a", b"x");
        fs::hard_link(&path, mount.path("b")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
        assert_eq!(
            fs::metadata(&path).unwrap().ino(),
            fs::metadata(mount.path("b")).unwrap().ino()
        );

        let target = "t".repeat(3000);
        symlink(&target, mount.path("s")).unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read_link(mount.path("s")).unwrap().to_str(), Some(&*target));
        }
        assert_eq!(mount.fs.count("readlink"), 1, "the kernel keeps the target");
        symlink("a", mount.path("good")).unwrap();
        assert_eq!(fs::read(mount.path("good")).unwrap(), b"x");
    };
    while_remembered(|| both(check));
}

#[test]
fn special_files() {
    both(|mount| {
        let make = |name: &str, kind, device| {
            rustix::fs::mknodat(CWD, mount.path(name), kind, Mode::from(0o600), device).unwrap();
            mount.path(name).metadata().unwrap()
        };
        assert!(make("fifo", FileType::Fifo, 0).file_type().is_fifo());
        assert!(make("socket", FileType::Socket, 0).file_type().is_socket());
        assert!(make("file", FileType::RegularFile, 0).file_type().is_file());
        let device = rustix::fs::makedev(259, 70_000);
        let made = make("block", FileType::BlockDevice, device);
        assert!(made.file_type().is_block_device());
        assert_eq!(made.rdev(), device);
    });
}

/// More requests than a ring has entries: each is answered, and none early.
#[test]
fn many_requests_wait_and_all_are_answered() {
    const READERS: usize = 40;
    let mount = Mount::new();
    let path = mount.file("a", &[7; 4096]);
    mount.fs.set_way(crate::fs::Way::Direct);
    mount.fs.hold(Some("read"));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
                bytes
            })
        })
        .collect();
    // With io_uring, sixteen per CPU wait in the file system, and further ones of that CPU in front
    // of it.
    eventually("they wait", || mount.fs.count("read") >= 16);
    mount.fs.hold(None);
    for reader in readers {
        assert_eq!(reader.join().unwrap(), [7; 64]);
    }
    assert_eq!(fs::read(path).unwrap(), [7; 4096]);
}

#[test]
fn attributes() {
    both(|mount| {
        let path = mount.file("a", &[7; 5000]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(77)), None).unwrap();
        let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
        // Before 1970, where fuser puts the nanoseconds on the wrong side.
        let times = Timestamps {
            last_access: time(-5, 250_000_000),
            last_modification: time(1_700_000_000, 123_456_789),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(&path).unwrap();
        // chown(2) clears the set-uid bit.
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o751, 77, 0));
        assert_eq!((meta.atime(), meta.atime_nsec()), (-5, 250_000_000));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_700_000_000, 123_456_789));
        assert_eq!((meta.size(), meta.blocks(), meta.blksize()), (5000, 16, 4096));
    });
}

#[test]
fn attributes_are_kept_for_their_time() {
    while_remembered(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        fs::metadata(&path).unwrap();
        let (lookups, getattrs) = (mount.fs.count("lookup"), mount.fs.count("getattr"));
        for _ in 0..10 {
            fs::metadata(&path).unwrap();
        }
        assert_eq!((mount.fs.count("lookup"), mount.fs.count("getattr")), (lookups, getattrs));
    });
}

#[test]
fn absent_names_are_kept_for_their_time() {
    while_remembered(|| {
        let mount = Mount::new();
        for _ in 0..5 {
            assert!(!mount.path("none").exists());
        }
        assert_eq!(mount.fs.count("lookup"), 1);
    });
}

#[test]
fn renames() {
    both(|mount| {
        let rename = |from, to, flags| {
            let (from, to) = (mount.path(from), mount.path(to));
            rustix::fs::renameat_with(CWD, from, CWD, to, flags).map_err(std::io::Error::from)
        };
        let read = |name| fs::read(mount.path(name)).unwrap();
        mount.file("a", b"a");
        mount.file("b", b"b");
        assert_eq!(os_error(rename("a", "b", RenameFlags::NOREPLACE)), libc::EEXIST);
        rename("a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!((read("a"), read("b")), (b"b".to_vec(), b"a".to_vec()));
        assert_eq!(os_error(rename("a", "c", RenameFlags::WHITEOUT)), libc::EINVAL);
        assert_eq!(os_error(rename("a", "c", RenameFlags::EXCHANGE)), libc::ENOENT);
        rename("a", "c", RenameFlags::NOREPLACE).unwrap();
        rename("b", "c", RenameFlags::empty()).unwrap();
        assert_eq!(read("c"), b"a");
        assert!(!mount.path("a").exists() && !mount.path("b").exists());
        assert_eq!(os_error(rename("none", "c", RenameFlags::empty())), libc::ENOENT);
    });
}

#[test]
fn what_we_do_not_have() {
    let mount = Mount::new();
    let path = mount.file("a", b"hello");
    let xattr = |result: rustix::io::Result<usize>| result.unwrap_err().raw_os_error();
    for _ in 0..2 {
        assert_eq!(xattr(rustix::fs::getxattr(&path, "user.x", &mut [0; 9])), libc::EOPNOTSUPP);
        assert_eq!(xattr(rustix::fs::listxattr(&path, &mut [0; 9])), libc::EOPNOTSUPP);
        let set = rustix::fs::setxattr(&path, "user.x", b"1", rustix::fs::XattrFlags::empty());
        assert_eq!(set.unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
        let removed = rustix::fs::removexattr(&path, "user.x");
        assert_eq!(removed.unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
    }
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 9);
    assert_eq!(allocated.unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1)).unwrap(), 5);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(2)).unwrap(), 2);

    let copy = File::create(mount.path("b")).unwrap();
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 1), &copy, None, 9).unwrap();
    assert_eq!((copied, fs::read(mount.path("b")).unwrap()), (4, b"ello".to_vec()));
    let done = Command::new("cp").arg("-a").args([&path, &mount.path("c")]).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}

#[test]
fn locks_are_kept_by_the_kernel() {
    let mount = Mount::new();
    let path = mount.file("a", b"");
    let (first, second) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    first.lock().unwrap();
    assert!(second.try_lock().is_err());
    first.unlock().unwrap();
    second.try_lock().unwrap();
}

#[test]
fn space_is_reported() {
    let mount = Mount::new();
    let stat = rustix::fs::statvfs(&mount.dir).unwrap();
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 40);
    assert_eq!(stat.f_bfree * stat.f_frsize, 1 << 39);
    assert_eq!(stat.f_bavail * stat.f_frsize, 1 << 38);
    assert_eq!((stat.f_files, stat.f_ffree, stat.f_namemax), (1000, 900, 255));
}

#[test]
fn umask_is_applied_once() {
    let mount = Mount::new();
    let script = "umask 027; cd \"$0\"; mkdir d; : > f; mkfifo p; mkdir -m 777 wide";
    let done = Command::new("sh").args(["-c", script]).arg(&mount.dir).status().unwrap();
    assert!(done.success());
    let mode = |name: &str| mount.path(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("f"), mode("p"), mode("wide")), (0o750, 0o640, 0o640, 0o777));
}

#[test]
fn programs_run() {
    let mount = Mount::new();
    // Not copied by this process: a process that another test starts at that moment would inherit
    // the file, open for writing.
    let copied = Command::new("cp").arg("/bin/true").arg(mount.path("true")).status();
    assert!(copied.unwrap().success());
    assert!(Command::new(mount.path("true")).status().unwrap().success());
    assert!(mount.fs.opens.lock().unwrap().iter().any(|flags| flags.execute));
}

#[test]
fn supplementary_groups_reach_the_file_system() {
    let mount = Mount::new();
    let path = mount.file("a", b"x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let dir = File::open(&mount.dir).unwrap();
    as_user(1234, 2345, &[4, 24, 70_000], || open_at(&dir, "a", OFlags::RDONLY).unwrap());
    let cred = mount.fs.last_cred("open");
    assert_eq!((cred.uid, cred.gid, &*cred.groups), (1234, 2345, &[4, 24, 70_000][..]));
    assert_ne!(cred.pid, 0);
}

#[test]
fn the_kernel_checks_modes_for_each_user() {
    let mount = Mount::new();
    let path = mount.file("a", b"x");
    let dir = File::open(&mount.dir).unwrap();
    let read = |uid, gid, groups: &[u32]| {
        let opened = as_user(uid, gid, groups, || open_at(&dir, "a", OFlags::RDONLY));
        opened.map_err(|error| error.raw_os_error())
    };
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    rustix::fs::chown(
        &path,
        Some(rustix::fs::Uid::from_raw(1001)),
        Some(rustix::fs::Gid::from_raw(500)),
    )
    .unwrap();
    mode(0o600);
    assert!(read(1001, 9, &[]).is_ok());
    assert_eq!(read(1002, 9, &[500]).unwrap_err(), Some(libc::EACCES));
    mode(0o640);
    assert!(read(1002, 9, &[500]).is_ok());
    assert_eq!(read(1002, 9, &[501]).unwrap_err(), Some(libc::EACCES));
}

#[test]
fn without_default_permissions_the_file_system_is_asked() {
    let mount = Mount::with(|options| options.default_permissions = false);
    let path = mount.file("a", b"x");
    let access = |access| rustix::fs::access(&path, access);
    access(rustix::fs::Access::READ_OK).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o200)).unwrap();
    assert!(access(rustix::fs::Access::READ_OK).is_err());
    access(rustix::fs::Access::WRITE_OK).unwrap();
    assert!(mount.fs.count("access") >= 3);
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mount = Mount::with(|options| options.read_only = true);
    assert_eq!(os_error(fs::write(mount.path("a"), b"x")), libc::EROFS);
    assert_eq!(mount.fs.count("create"), 0);
}

#[test]
fn changed_attributes_are_asked_for_again() {
    while_remembered(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        let ino = fs::metadata(&path).unwrap().ino();
        mount.fs.change(ino, |attr, _| attr.mode = 0o604);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        mount.fs.kernel().invalidate(larder_vfs::Ino(ino), true);
        eventually("new mode", || fs::metadata(&path).unwrap().mode() & 0o777 == 0o604);
    });
}

#[test]
fn changed_names_are_asked_for_again() {
    while_remembered(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        let ino = fs::metadata(&path).unwrap().ino();
        assert!(!mount.path("b").exists());
        mount.fs.add_name(ino, "b");
        assert!(!mount.path("b").exists());
        mount.fs.kernel().invalidate_entry(larder_vfs::Ino::ROOT, "b".as_ref());
        eventually("the new name", || mount.path("b").exists());
    });
}

/// An open may wait until the kernel was notified about its file: neither the open nor what other
/// calls wait for holds what the notification needs. (A create holds the lock of its directory, for
/// which the notification about a name waits.)
#[test]
fn the_kernel_is_told_of_a_file_while_calls_wait() {
    for held in ["open", "create"] {
        let mount = Mount::new();
        let path = mount.file("a", b"x");
        let ino = larder_vfs::Ino(fs::metadata(&path).unwrap().ino());
        let kernel = mount.fs.kernel();
        std::thread::scope(|scope| {
            mount.fs.hold(Some(held));
            let before = mount.fs.count(held);
            let opened = if held == "open" { path.clone() } else { mount.path("new") };
            let waiting = scope.spawn(move || {
                File::options().write(true).create(true).truncate(true).open(opened)
            });
            eventually("the call has come", || mount.fs.count(held) > before);
            kernel.invalidate_entry(larder_vfs::Ino::ROOT, "a".as_ref());
            kernel.invalidate(ino, false);
            if let Some(told) = kernel.told(ino) {
                let told = RUNTIME.block_on(async { tokio::time::timeout(PATIENCE, told).await });
                assert!(told.is_ok(), "{held}");
            }
            assert!(!waiting.is_finished(), "{held}");
            mount.fs.hold(None);
            waiting.join().unwrap().unwrap();
        });
    }
}

#[test]
fn invalidating_under_load_does_not_block() {
    let mount = Mount::new();
    let path = mount.file("a", &[1; 100_000]);
    let ino = larder_vfs::Ino(fs::metadata(&path).unwrap().ino());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(fs::read(&path).unwrap().len(), 100_000);
                }
            });
        }
        let begin = std::time::Instant::now();
        for _ in 0..10_000 {
            mount.fs.kernel().invalidate(ino, false);
            mount.fs.kernel().invalidate_entry(larder_vfs::Ino::ROOT, "a".as_ref());
        }
        assert!(begin.elapsed() < PATIENCE);
    });
}
