//! [`Direct`] over a local directory: what a kernel would ask of it.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_remote::local::{LocalDir, LocalError};
use larder_vfs::{
    Cred, Direct, Entry, Error, FileSystem, Ino, Lookup, New, OpenFlags, OpenId, Removal,
    RenameFlags, SetAttr, Stability,
};

use crate::harness::{KEY, options};

struct Fixture {
    dir: tempfile::TempDir,
    fs: Direct<LocalDir>,
    cred: Cred,
}

async fn fixture() -> Option<Fixture> {
    let dir = tempfile::tempdir().unwrap();
    match LocalDir::open(dir.path(), options(), &KEY) {
        Ok(local) => {
            let fs = Direct::new(Arc::new(local)).await.unwrap();
            Some(Fixture { dir, fs, cred: Cred::root() })
        }
        Err(LocalError::NotPrivileged { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

impl Fixture {
    async fn find(&self, parent: Ino, name: &str) -> Option<Entry> {
        match self.fs.lookup(&self.cred, parent, OsStr::new(name)).wait().await.unwrap() {
            Lookup::Found(entry) => Some(entry),
            Lookup::Absent { .. } => None,
        }
    }

    async fn create(&self, name: &str) -> (Entry, OpenId) {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let made =
            self.fs.create(&self.cred, Ino::ROOT, OsStr::new(name), set, OpenFlags::READ_WRITE);
        let (entry, opened) = made.wait().await.unwrap();
        (entry, opened.id)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[tokio::test]
async fn a_removed_file_lives_until_its_last_release() {
    let Some(t) = fixture().await else { return };
    let (entry, first) = t.create("file").await;
    let second = t.fs.open(&t.cred, entry.ino, OpenFlags::READ_WRITE).wait().await.unwrap().id;
    let write = |data| t.fs.write(&t.cred, entry.ino, None, 0, data, Stability::Unstable);
    write(b"before").wait().await.unwrap();
    t.fs.remove(&t.cred, Ino::ROOT, OsStr::new("file"), Removal::File).wait().await.unwrap();
    assert!(t.find(Ino::ROOT, "file").await.is_none());
    write(b"after!").wait().await.unwrap();
    let read = t.fs.read(&t.cred, entry.ino, Some(second), 0, 100).wait().await.unwrap();
    assert_eq!(&read[..], b"after!");
    t.fs.release(entry.ino, first).wait().await.unwrap();
    assert_eq!(t.names().len(), 1, "under a hidden name");
    t.fs.release(entry.ino, second).wait().await.unwrap();
    assert!(t.names().is_empty());
    let gone = t.fs.getattr(&t.cred, entry.ino).wait().await.unwrap_err();
    assert_eq!(gone, Error::Stale);
}

#[tokio::test]
async fn removing_a_file_that_is_not_open_leaves_nothing() {
    let Some(t) = fixture().await else { return };
    let (other, id) = t.create("other").await;
    std::fs::write(t.dir.path().join("file"), b"").unwrap();
    t.fs.remove(&t.cred, Ino::ROOT, OsStr::new("file"), Removal::File).wait().await.unwrap();
    assert_eq!(t.names(), ["other"]);
    t.fs.release(other.ino, id).wait().await.unwrap();
}

#[tokio::test]
async fn numbers_and_handles_stand_for_each_other() {
    let Some(t) = fixture().await else { return };
    let (entry, _) = t.create("file").await;
    let handle = t.fs.handle(entry.ino).wait().await.unwrap();
    assert_eq!(t.fs.resolve(&handle).wait().await, Ok(entry.ino));
    assert_eq!(t.find(Ino::ROOT, "file").await.unwrap().ino, entry.ino);
    let root = t.fs.handle(Ino::ROOT).wait().await.unwrap();
    assert_eq!(t.fs.resolve(&root).wait().await, Ok(Ino::ROOT));
    assert_eq!(t.find(Ino::ROOT, "..").await.unwrap().ino, Ino::ROOT);
    assert_eq!(t.fs.getattr(&t.cred, Ino(999)).wait().await.unwrap_err(), Error::Stale);
    // Another instance for the same directory resolves the handle, to an inode number of its own.
    let again = Direct::new(Arc::new(LocalDir::open(t.dir.path(), options(), &KEY).unwrap()))
        .await
        .unwrap();
    let ino = again.resolve(&handle).wait().await.unwrap();
    let attr = again.getattr(&t.cred, ino).wait().await.unwrap().attr;
    assert_eq!(attr.fileid, entry.fresh.attr.fileid);
}

#[tokio::test]
async fn opens_are_judged_and_renames_flagged() {
    let Some(t) = fixture().await else { return };
    let (entry, id) = t.create("a").await;
    t.fs.release(entry.ino, id).wait().await.unwrap();
    let stranger = Cred::new(1234, 1234, &[]);
    let refused = t.fs.open(&stranger, entry.ino, OpenFlags::READ_WRITE).wait().await;
    assert_eq!(refused.err(), Some(Error::AccessDenied));
    std::fs::write(t.dir.path().join("a"), b"content").unwrap();
    let cut = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    t.fs.open(&t.cred, entry.ino, cut).wait().await.unwrap();
    assert_eq!(t.fs.getattr(&t.cred, entry.ino).wait().await.unwrap().attr.size, 0);

    let dir = t.fs.make(&t.cred, Ino::ROOT, OsStr::new("d"), New::Directory, SetAttr::default());
    dir.wait().await.unwrap();
    let rename = |flags| {
        t.fs.rename(&t.cred, (Ino::ROOT, OsStr::new("a")), (Ino::ROOT, OsStr::new("d")), flags)
    };
    let no_replace = RenameFlags { no_replace: true, exchange: false };
    assert_eq!(rename(no_replace).wait().await, Err(Error::Exists));
    let exchange = RenameFlags { no_replace: false, exchange: true };
    assert_eq!(rename(exchange).wait().await, Err(Error::NotSupported));
    assert_eq!(rename(RenameFlags::default()).wait().await, Err(Error::IsDirectory));
}

#[tokio::test]
async fn listings_go_on_and_end() {
    let Some(t) = fixture().await else { return };
    for i in 0..100 {
        std::fs::write(t.dir.path().join(format!("f{i}")), b"").unwrap();
    }
    for plus in [false, true] {
        let (mut offset, mut count) = (0, 0);
        loop {
            let listed = t.fs.readdir(&t.cred, Ino::ROOT, offset, 1000, plus).wait().await.unwrap();
            let Some(last) = listed.last() else { break };
            offset = last.offset;
            count += listed.len();
            for entry in &listed {
                assert_eq!(entry.entry.is_some(), plus);
                if let Some(found) = &entry.entry {
                    t.fs.forget(found.ino, 1);
                }
            }
        }
        assert_eq!(count, 100);
    }
    t.fs.opendir(&t.cred, Ino::ROOT).wait().await.unwrap();
}
