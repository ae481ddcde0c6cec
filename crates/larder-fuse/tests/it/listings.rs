//! Listings: complete, in pieces, from any position on, and with the right number of references.

use std::collections::HashMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use larder_fuse::References;
use rustix::fs::{RawDir, SeekFrom};

use crate::{Mount, eventually, while_remembered};

/// One entry, and the position after it.
type Entry = (String, u64, i64);

fn list(dir: impl AsFd, bytes: usize, entries_max: usize) -> Vec<Entry> {
    let mut buffer = vec![MaybeUninit::uninit(); bytes];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    while entries.len() < entries_max
        && let Some(entry) = raw.next()
    {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        entries.push((name, entry.ino(), entry.next_entry_cookie() as i64));
    }
    entries
}

fn fill(mount: &Mount, names: usize) {
    let path = mount.path("d");
    fs::create_dir(&path).unwrap();
    let ino = larder_vfs::Ino(fs::metadata(&path).unwrap().ino());
    mount.fs.fill(ino, (0..names).map(|number| format!("file {number:05}")));
}

fn names(dir: &Path, bytes: usize) -> HashMap<String, u64> {
    let listed = list(File::open(dir).unwrap(), bytes, usize::MAX);
    let count = listed.len();
    let names: HashMap<_, _> = listed.into_iter().map(|(name, ino, _)| (name, ino)).collect();
    assert_eq!(names.len(), count, "a name came twice");
    names
}

#[test]
fn ten_thousand_names_from_any_place() {
    let mount = Mount::new();
    fill(&mount, 10_000);
    let dir = File::open(mount.path("d")).unwrap();
    let all = list(&dir, 32_768, usize::MAX);
    assert_eq!(all.len(), 10_002);
    assert_eq!((&*all[0].0, &*all[1].0), (".", ".."));
    for index in [0, 1, 2, 500, 9_999, 10_000] {
        assert!(all[index].2 > 0);
        rustix::fs::seek(&dir, SeekFrom::Start(all[index].2 as u64)).unwrap();
        assert_eq!(list(&dir, 4096, 1), all[index + 1..index + 2], "after entry {index}");
    }
    rustix::fs::seek(&dir, SeekFrom::Start(0)).unwrap();
    assert_eq!(list(&dir, 1024, usize::MAX), all, "rewound, with a small buffer");
}

#[test]
fn cookies_beyond_63_bits() {
    let mount = Mount::new();
    fill(&mount, 1000);
    mount.fs.cookie_base.store(u64::MAX - 1000, SeqCst);
    let dir = File::open(mount.path("d")).unwrap();
    let all = list(&dir, 8192, usize::MAX);
    assert_eq!(all.len(), 1002);
    for index in [0, 2, 700, 999] {
        rustix::fs::seek(&dir, SeekFrom::Start(all[index].2 as u64)).unwrap();
        assert_eq!(list(&dir, 4096, 1), all[index + 1..index + 2], "after entry {index}");
    }
}

#[test]
fn attributes_come_with_the_listing() {
    while_remembered(|| {
        let mount = Mount::new();
        fill(&mount, 300);
        fs::metadata(mount.path("d")).unwrap();
        let before = (mount.fs.count("lookup"), mount.fs.count("getattr"));
        for (name, ino) in names(&mount.path("d"), 32_768) {
            if !name.starts_with('.') {
                assert_eq!(mount.path("d").join(name).symlink_metadata().unwrap().ino(), ino);
            }
        }
        assert_eq!((mount.fs.count("lookup"), mount.fs.count("getattr")), before);
    });
}

/// Names whose attributes another client alone knows are listed without asking for them. A process
/// that uses one has it looked up then.
#[test]
fn what_another_client_alone_knows_is_not_looked_up_to_be_listed() {
    for later in [false, true] {
        let mount = Mount::new();
        fill(&mount, 300);
        mount.fs.later.store(later, SeqCst);
        mount.fs.bare.store(true, SeqCst);
        mount.fs.elsewhere.store(true, SeqCst);
        fs::metadata(mount.path("d")).unwrap();
        let before = mount.fs.count("lookup");
        let names = names(&mount.path("d"), 32_768);
        assert_eq!((names.len(), mount.fs.count("lookup")), (302, before), "{later}");
        let file = fs::metadata(mount.path("d/file 00123")).unwrap();
        assert_eq!((file.ino(), mount.fs.count("lookup")), (names["file 00123"], before + 1));
    }
}

#[test]
fn what_comes_without_attributes_is_looked_up() {
    for later in [false, true] {
        let mount = Mount::new();
        fill(&mount, 300);
        mount.fs.later.store(later, SeqCst);
        mount.fs.bare.store(true, SeqCst);
        let names = names(&mount.path("d"), 32_768);
        assert_eq!(names.len(), 302);
        assert!(names.values().all(|ino| *ino != 0));
    }
}

#[test]
fn a_name_that_cannot_be_looked_up_hides_no_other() {
    for (later, refused) in [(false, "file 00000"), (true, "file 00123"), (true, "file 00299")] {
        let mount = Mount::new();
        fill(&mount, 300);
        mount.fs.later.store(later, SeqCst);
        mount.fs.bare.store(true, SeqCst);
        *mount.fs.refused.lock().unwrap() = Some(refused.into());
        let dir = mount.path("d");
        let names = names(&dir, 32_768);
        assert_eq!(names.len(), 302, "{refused}");
        assert!(names.values().all(|ino| *ino != 0), "{refused}");
        let error = fs::metadata(dir.join(refused)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{refused}");
        *mount.fs.refused.lock().unwrap() = None;
        assert_eq!(fs::metadata(dir.join(refused)).unwrap().ino(), names[refused]);
    }
}

#[test]
fn every_lookup_is_forgotten() {
    for bytes in [1024, 4096, 65_536] {
        let mount = Mount::new();
        fill(&mount, 500);
        let dir = mount.path("d");
        for bare in [false, true, false] {
            mount.fs.bare.store(bare, SeqCst);
            assert_eq!(names(&dir, bytes).len(), 502);
        }
        for number in 0..500 {
            fs::remove_file(dir.join(format!("file {number:05}"))).unwrap();
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
        // What the file system listed and the reply had no room for was forgotten at once.
        eventually("all forgotten", || {
            mount.fs.lookups.lock().unwrap().values().all(|count| *count == 0)
        });
        let References { given, returned } = mount.mounted.references();
        assert_eq!(given, returned);
    }
}
