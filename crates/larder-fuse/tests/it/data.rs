//! Bytes in each I/O mode: page cache, direct, passthrough.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::Ordering::SeqCst;

use rustix::fs::OFlags;

use crate::fs::Way;
use crate::{Mount, as_user, eventually, open_at, while_remembered};

fn on_each_way(check: impl Fn(&Mount, Way)) {
    for way in [Way::Cached, Way::Direct, Way::Passthrough, Way::OtherFile] {
        for later in [false, true] {
            let mount = Mount::new();
            assert!(mount.fs.kernel().passthrough());
            mount.fs.set_way(way);
            mount.fs.later.store(later, SeqCst);
            check(&mount, way);
        }
    }
}

#[test]
fn bytes_are_right() {
    on_each_way(|mount, way| {
        let content: Vec<u8> = (0..3_000_001_u32).map(|number| (number % 251) as u8).collect();
        let path = mount.file("a", &content);
        assert!(fs::read(&path).unwrap() == content, "{way:?}");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"middle", 1_500_000).unwrap();
        file.write_all_at(b"end", 4_000_000).unwrap();
        let mut some = [0; 8];
        file.read_exact_at(&mut some, 1_499_999).unwrap();
        assert_eq!(&some[1..7], b"middle", "{way:?}");
        assert_eq!(file.metadata().unwrap().len(), 4_000_003, "{way:?}");
        file.read_exact_at(&mut some, 3_999_995).unwrap();
        assert_eq!(&some, b"\0\0\0\0\0end", "{way:?}");
        assert_eq!(file.read_at(&mut some, 4_000_003).unwrap(), 0, "{way:?}");
        file.sync_all().unwrap();
        assert!(mount.fs.count("fsync") > 0);
    });
}

#[test]
fn truncation_comes_with_the_open() {
    on_each_way(|mount, way| {
        let path = mount.file("a", b"long content");
        let before = mount.fs.count("setattr");
        let mut file = File::options().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(mount.fs.count("setattr"), before, "{way:?}");
        assert!(mount.fs.opens.lock().unwrap().last().unwrap().truncate);
        assert_eq!(file.metadata().unwrap().len(), 0, "{way:?}");
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"new", "{way:?}");
    });
}

#[test]
fn two_append() {
    on_each_way(|mount, way| {
        let path = mount.file("a", b"");
        let open = || File::options().append(true).open(&path).unwrap();
        let (mut first, mut second) = (open(), open());
        for _ in 0..100 {
            first.write_all(b"ab").unwrap();
            second.write_all(b"cde").unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"abcde".repeat(100), "{way:?}");
    });
}

/// Calls `f` with the file's first page mapped shared.
fn mapped<T>(file: &File, f: impl FnOnce(*mut u8) -> T) -> T {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: the kernel chooses where; nothing that exists is mapped over.
    let page = unsafe { libc::mmap(null, 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let result = f(page.cast());
    // SAFETY: the page is mapped.
    let synced = unsafe { libc::msync(page, 4096, libc::MS_SYNC) };
    assert_eq!(synced, 0);
    // SAFETY: the page is mapped, and `f` has given its pointer up.
    unsafe { libc::munmap(page, 4096) };
    result
}

#[test]
fn mapped_memory() {
    on_each_way(|mount, way| {
        let path = mount.file("a", &[b'x'; 5000]);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        mapped(&file, |page| {
            // SAFETY: the file is longer than a page, so the first one can be read.
            let first = unsafe { page.read_volatile() };
            assert_eq!(first, b'x', "{way:?}");
            // SAFETY: it is mapped for writing too.
            unsafe { page.add(1).write_volatile(b'y') };
        });
        drop(file);
        let content = fs::read(&path).unwrap();
        assert_eq!((&content[..3], content.len()), (&b"xyx"[..], 5000), "{way:?}");
    });
}

#[test]
fn passthrough_reads_and_writes_are_not_seen() {
    let mount = Mount::new();
    mount.fs.set_way(Way::Passthrough);
    let path = mount.file("a", &[1; 200_000]);
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all(b"changed").unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 200_000 - 7);
    assert_eq!(fs::read(&path).unwrap()[..7], *b"changed");
    assert_eq!((mount.fs.count("read"), mount.fs.count("write")), (0, 0));
}

#[test]
fn passthrough_beside_direct() {
    let mount = Mount::new();
    let path = mount.file("a", b"0123456789");
    let open = |way| {
        mount.fs.set_way(way);
        File::options().read(true).write(true).open(&path).unwrap()
    };
    let first = open(Way::Passthrough);
    let direct = open(Way::Direct);
    let second = open(Way::Passthrough);
    let other = open(Way::OtherFile);
    for (number, file) in [&first, &direct, &second, &other].into_iter().enumerate() {
        let digit = [b'a' + number as u8];
        file.write_all_at(&digit, number as u64).unwrap();
        for reader in [&first, &direct, &second, &other] {
            let mut byte = [0];
            reader.read_exact_at(&mut byte, number as u64).unwrap();
            assert_eq!(byte, digit, "written by {number}");
        }
    }
    drop((first, second));
    eventually("release", || mount.fs.count("release") >= 3);
    drop((direct, other));
    // Now another local file may be used in its place.
    eventually("release", || mount.fs.count("release") >= 5);
    let before = mount.fs.count("read");
    let again = open(Way::OtherFile);
    again.read_exact_at(&mut [0; 4], 0).unwrap();
    assert_eq!(mount.fs.count("read"), before);
}

#[test]
fn many_passthrough_opens_leave_nothing() {
    let mount = Mount::new();
    let path = mount.file("a", b"x");
    mount.fs.set_way(Way::Passthrough);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(fs::read(&path).unwrap(), b"x");
                }
            });
        }
    });
}

#[test]
fn without_a_probe_directory_there_is_no_passthrough() {
    let mount = Mount::with(|options| options.probe_dir = None);
    assert!(!mount.fs.kernel().passthrough());
    // A file system that answers with this mode in spite of that is served correctly.
    mount.fs.set_way(Way::Passthrough);
    let path = mount.file("a", b"hello");
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    assert!(mount.fs.count("read") > 0);
}

#[test]
fn kept_pages_until_they_are_invalidated() {
    while_remembered(|| {
        let mount = Mount::new();
        let path = mount.file("a", b"old");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let before = mount.fs.count("read");
        let ino = fs::metadata(&path).unwrap().ino();
        mount.fs.change(ino, |_, file| file.unwrap().write_all_at(b"new", 0).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(mount.fs.count("read"), before);
        mount.fs.kernel().invalidate(larder_vfs::Ino(ino), false);
        eventually("new bytes", || fs::read(&path).unwrap() == b"new");
    });
}

#[test]
fn a_file_that_grew_shows_no_zeros() {
    let mount = Mount::new();
    let path = mount.file("a", b"old");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let ino = fs::metadata(&path).unwrap().ino();
    mount.fs.change(ino, |_, file| file.unwrap().write_all_at(b"NEWER", 3).unwrap());
    // Only the attributes are dropped; since the size changed, the kernel drops the pages.
    mount.fs.kernel().invalidate(larder_vfs::Ino(ino), true);
    eventually("new size", || fs::metadata(&path).unwrap().len() == 8);
    assert_eq!(fs::read(&path).unwrap(), b"oldNEWER");
}

#[test]
fn only_what_may_have_written_is_flushed() {
    let mount = Mount::new();
    // A process that another test starts at that moment inherits and closes descriptors, each with
    // a flush.
    let thread = rustix::thread::gettid().as_raw_pid() as u32;
    let flushes = || {
        let calls = mount.fs.calls.lock().unwrap();
        calls.iter().filter(|(name, cred)| *name == "flush" && cred.pid == thread).count()
    };
    let path = mount.file("a", b"x");
    assert_eq!(flushes(), 1);
    fs::read(&path).unwrap();
    assert_eq!(flushes(), 1);
    drop(File::options().write(true).open(&path).unwrap());
    assert_eq!(flushes(), 2);
}

#[test]
fn set_uid_is_cleared_by_the_kernel() {
    // A direct write reaches the file system with the writer's credentials, and the server clears
    // it.
    for way in [Way::Cached, Way::Passthrough] {
        let mount = Mount::new();
        // The file is made in this mode, too: while one of another mode is not released, an open in
        // this mode becomes a direct one.
        mount.fs.set_way(way);
        let path = mount.file("a", b"x");
        rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(1001)), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        let dir = File::open(&mount.dir).unwrap();
        as_user(1002, 9, &[], || {
            open_at(&dir, "a", OFlags::WRONLY).unwrap().write_all(b"y").unwrap();
        });
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{way:?}");
    }
}
