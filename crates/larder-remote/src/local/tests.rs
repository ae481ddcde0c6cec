//! [`LocalDir`] against the kernel. The tests need the superuser; where skipped, they print that.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use larder_vfs::{Device, Kind, SetTime};
use tempfile::TempDir;

use super::*;
use std::path::PathBuf;

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const KEY: HandleKey = HandleKey::from_bytes([7; 32]);

struct Fixture {
    dir: TempDir,
    remote: LocalDir,
    root: Handle,
}

impl Fixture {
    /// Exports `export` below a new directory. `None` if we may not.
    async fn new(options: LocalOptions) -> Option<Fixture> {
        let dir = tempfile::tempdir().unwrap();
        let export = dir.path().join("export");
        fs::create_dir(&export).unwrap();
        fs::set_permissions(&export, fs::Permissions::from_mode(0o777)).unwrap();
        Fixture::again(dir, options).await
    }

    /// Exports the directory that is there.
    async fn again(dir: TempDir, options: LocalOptions) -> Option<Fixture> {
        match LocalDir::open(&dir.path().join("export"), options, &KEY) {
            Ok(remote) => {
                let root = remote.root().await.unwrap().handle;
                Some(Fixture { dir, remote, root })
            }
            Err(LocalError::NotPrivileged { .. }) => {
                eprintln!("skipped: needs CAP_DAC_READ_SEARCH");
                None
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("export").join(name)
    }

    async fn find(&self, name: impl AsRef<OsStr>) -> Handle {
        let found = self.remote.lookup(&Cred::root(), &self.root, name.as_ref()).await.unwrap();
        found.found.unwrap().handle
    }

    async fn make(&self, cred: &Cred, name: &str, new: New, mode: u32) -> Result<Made> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.remote.make(cred, &self.root, name.as_ref(), new, set).await
    }

    async fn read(&self, cred: &Cred, file: &Handle) -> Result<Vec<u8>> {
        self.remote.read(cred, file, None, 0, 1 << 20).await.map(|read| read.data.to_vec())
    }

    async fn write(&self, cred: &Cred, file: &Handle, data: &'static [u8]) -> Result<()> {
        let data = Bytes::from_static(data);
        self.remote.write(cred, file, None, 0, data, Stability::FileSync).await.map(drop)
    }
}

fn open_to_root() -> LocalOptions {
    LocalOptions { squash: Squash::None, ..LocalOptions::default() }
}

fn user(uid: u32) -> Cred {
    Cred::new(uid, uid, &[])
}

macro_rules! fixture {
    ($options:expr) => {
        match Fixture::new($options).await {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

mod boundary;

#[tokio::test]
async fn handles_survive_renames_and_restarts() {
    let t = fixture!(open_to_root());
    fs::write(t.path("a"), b"content").unwrap();
    let file = t.find("a").await;
    assert!(file.as_bytes().len() <= 64);
    fs::create_dir(t.path("sub")).unwrap();
    let sub = t.find("sub").await;
    fs::rename(t.path("a"), t.path("sub/b")).unwrap();
    assert_eq!(t.read(&Cred::root(), &file).await.unwrap(), b"content");

    let Fixture { dir, remote, root } = t;
    drop(remote);
    let t = Fixture::again(dir, open_to_root()).await.unwrap();
    assert_eq!(t.root, root);
    assert_eq!(t.read(&Cred::root(), &file).await.unwrap(), b"content");
    assert_eq!(t.remote.getattr(&Cred::root(), &sub).await.unwrap().kind, Kind::Directory);
}

#[tokio::test]
async fn handles_of_removed_files_are_stale() {
    let t = fixture!(open_to_root());
    for name in ["ours", "behind our back"] {
        fs::write(t.path(name), b"x").unwrap();
    }
    let (ours, others) = (t.find("ours").await, t.find("behind our back").await);
    assert_eq!(t.read(&Cred::root(), &ours).await.unwrap(), b"x");
    assert_eq!(t.read(&Cred::root(), &others).await.unwrap(), b"x");
    t.remote.remove(&Cred::root(), &t.root, "ours".as_ref(), Removal::File).await.unwrap();
    fs::remove_file(t.path("behind our back")).unwrap();
    for file in [ours, others] {
        assert_eq!(t.remote.getattr(&Cred::root(), &file).await.unwrap_err(), Error::Stale);
        assert_eq!(t.read(&Cred::root(), &file).await.unwrap_err(), Error::Stale);
    }
}

#[tokio::test]
async fn the_kernel_judges_by_the_callers_identity() {
    let t = fixture!(LocalOptions::default());
    let (alice, bob) = (user(ALICE), user(BOB));
    let made = t.make(&alice, "f", New::File, 0o640).await.unwrap().found;
    assert_eq!((made.attr.uid, made.attr.gid, made.attr.mode), (ALICE, ALICE, 0o640));
    t.write(&alice, &made.handle, b"hers").await.unwrap();
    assert_eq!(t.read(&bob, &made.handle).await.unwrap_err(), Error::AccessDenied);
    assert_eq!(t.write(&bob, &made.handle, b"his").await.unwrap_err(), Error::AccessDenied);
    let friend = Cred::new(BOB, BOB, &[5, ALICE]);
    assert_eq!(t.read(&friend, &made.handle).await.unwrap(), b"hers");
    assert_eq!(t.write(&friend, &made.handle, b"his").await.unwrap_err(), Error::AccessDenied);
    // The superuser is squashed, and so is the id that stands for no user.
    assert_eq!(t.read(&Cred::root(), &made.handle).await.unwrap_err(), Error::AccessDenied);
    let anonymous = Cred::new(u32::MAX, u32::MAX, &[]);
    assert_eq!(t.read(&anonymous, &made.handle).await.unwrap_err(), Error::AccessDenied);

    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let refused = t.remote.setattr(&bob, &made.handle, chmod, None).await.unwrap_err();
    assert_eq!(refused, Error::NotPermitted);
    t.remote.setattr(&alice, &made.handle, chmod, None).await.unwrap();
    let give = SetAttr { uid: Some(BOB), ..SetAttr::default() };
    let refused = t.remote.setattr(&alice, &made.handle, give, None).await.unwrap_err();
    assert_eq!(refused, Error::NotPermitted);

    let rights = t.remote.access(&bob, &made.handle, Access::ALL).await.unwrap().granted;
    assert_eq!(rights, Access::NONE);
    let rights = t.remote.access(&alice, &made.handle, Access::ALL).await.unwrap().granted;
    assert_eq!(rights, Access::READ | Access::MODIFY | Access::EXTEND);
    assert!(rustix::process::geteuid().is_root(), "the thread is itself again");
}

#[tokio::test]
async fn squashed_superuser_makes_files_as_nobody() {
    let t = fixture!(LocalOptions::default());
    let made = t.make(&Cred::root(), "f", New::File, 0o644).await.unwrap().found;
    assert_eq!((made.attr.uid, made.attr.gid), (65_534, 65_534));
    let t = fixture!(open_to_root());
    let made = t.make(&Cred::root(), "f", New::File, 0o644).await.unwrap().found;
    assert_eq!((made.attr.uid, made.attr.gid), (0, 0));
    let all = LocalOptions { squash: Squash::All, anonymous_uid: BOB, ..LocalOptions::default() };
    let t = fixture!(all);
    let made = t.make(&user(ALICE), "f", New::File, 0o644).await.unwrap().found;
    assert_eq!((made.attr.uid, made.attr.gid), (BOB, 65_534));
}

#[tokio::test]
async fn owners_use_their_data_whatever_the_mode_says() {
    let t = fixture!(LocalOptions::default());
    let alice = user(ALICE);
    let made = t.make(&alice, "f", New::FileExclusive, 0o000).await.unwrap().found;
    t.write(&alice, &made.handle, b"x").await.unwrap();
    assert_eq!(t.read(&alice, &made.handle).await.unwrap(), b"x");
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    t.remote.setattr(&alice, &made.handle, cut, None).await.unwrap();
    let refused = t.remote.setattr(&user(BOB), &made.handle, cut, None).await.unwrap_err();
    assert_eq!(refused, Error::AccessDenied);
    // A user who may execute a file may read it.
    let tool = t.make(&alice, "tool", New::File, 0o711).await.unwrap().found;
    t.write(&alice, &tool.handle, b"#!").await.unwrap();
    assert_eq!(t.read(&user(BOB), &tool.handle).await.unwrap(), b"#!");
}

#[tokio::test]
async fn writing_takes_the_set_uid_bit_away_from_users() {
    let t = fixture!(LocalOptions::default());
    let alice = user(ALICE);
    let made = t.make(&alice, "f", New::File, 0o4777).await.unwrap().found;
    assert_eq!(made.attr.mode, 0o4777);
    t.write(&user(BOB), &made.handle, b"x").await.unwrap();
    assert_eq!(t.remote.getattr(&alice, &made.handle).await.unwrap().mode, 0o777);
}

#[tokio::test]
async fn new_entries_take_the_group_of_a_set_gid_directory_and_no_umask() {
    let t = fixture!(LocalOptions::default());
    std::os::unix::fs::chown(t.path(""), None, Some(4242)).unwrap();
    fs::set_permissions(t.path(""), fs::Permissions::from_mode(0o2777)).unwrap();
    let file = t.make(&user(ALICE), "f", New::File, 0o666).await.unwrap().found.attr;
    assert_eq!((file.uid, file.gid, file.mode), (ALICE, 4242, 0o666));
    let dir = t.make(&user(ALICE), "d", New::Directory, 0o777).await.unwrap().found.attr;
    assert_eq!((dir.uid, dir.gid, dir.mode), (ALICE, 4242, 0o2777));
}

#[tokio::test]
async fn read_only_exports_refuse_changes() {
    let t = fixture!(LocalOptions { read_only: true, ..open_to_root() });
    fs::write(t.path("f"), b"x").unwrap();
    let (root, file) = (Cred::root(), t.find("f").await);
    assert_eq!(t.read(&root, &file).await.unwrap(), b"x");
    assert_eq!(t.write(&root, &file, b"y").await.unwrap_err(), Error::ReadOnly);
    assert_eq!(t.make(&root, "g", New::File, 0o600).await.unwrap_err(), Error::ReadOnly);
    let removed = t.remote.remove(&root, &t.root, "f".as_ref(), Removal::File).await;
    assert_eq!(removed.unwrap_err(), Error::ReadOnly);
    let rights = t.remote.access(&root, &t.root, Access::ALL).await.unwrap().granted;
    assert_eq!(rights, Access::READ | Access::LOOKUP);
}

#[tokio::test]
async fn attributes_are_the_kernels_to_the_nanosecond() {
    let t = fixture!(open_to_root());
    fs::write(t.path("f"), vec![1; 5000]).unwrap();
    let file = t.find("f").await;
    let times = Time { sec: -5, nsec: 123_456_789 };
    let set = SetAttr {
        atime: Some(SetTime::To(times)),
        mtime: Some(SetTime::To(Time { sec: 1_700_000_000, nsec: 999_999_999 })),
        ..SetAttr::default()
    };
    let changed = t.remote.setattr(&Cred::root(), &file, set, None).await.unwrap();
    let (attr, kernel) = (changed.after.unwrap(), fs::metadata(t.path("f")).unwrap());
    assert_eq!(attr, t.remote.getattr(&Cred::root(), &file).await.unwrap());
    assert_eq!(attr.atime, times);
    assert_eq!(attr.mtime, Time { sec: 1_700_000_000, nsec: 999_999_999 });
    assert_eq!((attr.ctime.sec, i64::from(attr.ctime.nsec)), (kernel.ctime(), kernel.ctime_nsec()));
    assert_eq!((attr.size, attr.used), (5000, kernel.blocks() * 512));
    assert_eq!((attr.fileid, attr.nlink), (kernel.ino(), 1));
    assert!(attr.birth.is_some());
    for nsec in [1_000_000_000, (1 << 30) - 1, (1 << 30) - 2] {
        let bad = Some(SetTime::To(Time { sec: 0, nsec }));
        let set = SetAttr { mtime: bad, ..SetAttr::default() };
        let answer = t.remote.setattr(&Cred::root(), &file, set, None).await;
        assert_eq!(answer.unwrap_err(), Error::InvalidArgument, "{nsec}");
    }
}

#[tokio::test]
async fn setattr_honours_its_guard() {
    let t = fixture!(open_to_root());
    fs::write(t.path("f"), b"x").unwrap();
    let file = t.find("f").await;
    let before = t.remote.getattr(&Cred::root(), &file).await.unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let wrong = Time { nsec: before.ctime.nsec ^ 1, ..before.ctime };
    let refused = t.remote.setattr(&Cred::root(), &file, set, Some(wrong)).await.unwrap_err();
    assert_eq!(refused, Error::TryAgain);
    let done = t.remote.setattr(&Cred::root(), &file, set, Some(before.ctime)).await.unwrap();
    assert!(done.follows(&before.validator()));
}

#[tokio::test]
async fn every_kind_of_object_can_be_made() {
    let t = fixture!(open_to_root());
    let root = Cred::root();
    let device = Device { major: 1, minor: 7 };
    let long = "n".repeat(255);
    for (name, new, kind) in [
        ("file", New::File, Kind::File),
        (&long, New::FileExclusive, Kind::File),
        ("dir", New::Directory, Kind::Directory),
        ("link", New::Symlink("no where/\u{e9}".into()), Kind::Symlink),
        ("fifo", New::Node(Kind::Fifo, Device::default()), Kind::Fifo),
        ("socket", New::Node(Kind::Socket, Device::default()), Kind::Socket),
        ("chr", New::Node(Kind::CharDevice, device), Kind::CharDevice),
        ("blk", New::Node(Kind::BlockDevice, device), Kind::BlockDevice),
    ] {
        let before = t.remote.getattr(&root, &t.root).await.unwrap();
        let made = t.make(&root, name, new.clone(), 0o640).await.unwrap();
        assert_eq!(made.found.attr.kind, kind, "{name}");
        assert!(made.dir.follows(&before.validator()), "{name}");
        // To find names for a handle, the kernel reads the directory, which moves its access time.
        let after = made.dir.after.unwrap();
        let now = t.remote.getattr(&root, &t.root).await.unwrap();
        assert_eq!(Attr { atime: now.atime, ..after }, now, "{name}");
        if kind != Kind::Symlink {
            assert_eq!(made.found.attr.mode, 0o640, "{name}");
        }
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            assert_eq!(made.found.attr.device, device);
        }
        let found = t.find(name).await;
        assert_eq!(found, made.found.handle, "{name}");
        let again = t.make(&root, name, new.clone(), 0o640).await;
        match new {
            New::File => assert_eq!(again.unwrap().found.handle, found),
            _ => assert_eq!(again.unwrap_err(), Error::Exists, "{name}"),
        }
        // Data of special files is never touched.
        if !matches!(kind, Kind::File) {
            let read = t.read(&root, &found).await.unwrap_err();
            assert!(matches!(read, Error::InvalidArgument | Error::IsDirectory), "{name}");
        }
    }
    let (target, _) = t.remote.readlink(&root, &t.find("link").await).await.unwrap();
    assert_eq!(target, "no where/\u{e9}");
    let over = t.make(&root, "dir", New::File, 0o600).await.unwrap_err();
    assert_eq!(over, Error::Exists);
    let name = "n".repeat(256);
    assert_eq!(t.make(&root, &name, New::File, 0o600).await.unwrap_err(), Error::NameTooLong);
    for name in ["", "a/b", "a\0"] {
        let answer = t.make(&root, name, New::File, 0o600).await;
        assert_eq!(answer.unwrap_err(), Error::InvalidArgument, "{name:?}");
    }
}

#[tokio::test]
async fn an_existing_file_keeps_its_mode_and_takes_the_size() {
    let t = fixture!(open_to_root());
    fs::write(t.path("f"), b"old content").unwrap();
    fs::set_permissions(t.path("f"), fs::Permissions::from_mode(0o604)).unwrap();
    let set = SetAttr { mode: Some(0o777), size: Some(3), ..SetAttr::default() };
    let made = t.remote.make(&Cred::root(), &t.root, "f".as_ref(), New::File, set).await.unwrap();
    assert_eq!((made.found.attr.mode, made.found.attr.size), (0o604, 3));
}

#[tokio::test]
async fn reads_and_writes_keep_holes_and_ends() {
    let t = fixture!(open_to_root());
    let root = Cred::root();
    let file = t.make(&root, "f", New::File, 0o600).await.unwrap().found.handle;
    let far = 1 << 32;
    for (offset, stability) in
        [(0, Stability::Unstable), (far, Stability::DataSync), (far + 3, Stability::FileSync)]
    {
        let before = t.remote.getattr(&root, &file).await.unwrap();
        let data = Bytes::from_static(b"abc");
        let written = t.remote.write(&root, &file, None, offset, data, stability).await.unwrap();
        assert_eq!(written.stability, stability);
        assert!(written.change.follows(&before.validator()));
        let committed = t.remote.commit(&root, &file, None, 0..0).await.unwrap();
        assert_eq!(committed.verifier, written.verifier);
    }
    let attr = t.remote.getattr(&root, &file).await.unwrap();
    assert_eq!(attr.size, far + 6);
    assert!(attr.used < 1 << 20, "a hole takes no space: {}", attr.used);
    for (offset, len, expected, eof) in [
        (0, 3, &b"abc"[..], false),
        (1, 4, b"bc\0\0", false),
        (far - 2, 10, b"\0\0abcabc", true),
        (far + 3, 3, b"abc", true),
        (far + 6, 10, b"", true),
        (u64::MAX, 10, b"", true),
        (0, 0, b"", false),
    ] {
        let read = t.remote.read(&root, &file, None, offset, len).await.unwrap();
        assert_eq!((&read.data[..], read.eof), (expected, eof), "{offset} {len}");
    }
    let (x, beyond) = (Bytes::from_static(b"x"), i64::MAX as u64);
    let beyond = t.remote.write(&root, &file, None, beyond, x, Stability::Unstable);
    assert_eq!(beyond.await.unwrap_err(), Error::FileTooLarge);
}

#[tokio::test]
async fn reads_that_are_not_in_memory_go_to_the_disk() {
    let t = fixture!(open_to_root());
    let content: Vec<u8> = (0..3 << 20).map(|i| (i % 251) as u8).collect();
    let path = t.path("f");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let read = t.remote.read(&Cred::root(), &t.find("f").await, None, 5, 2 << 20).await.unwrap();
    assert!(read.data == content[5..][..2 << 20] && !read.eof);
}

#[tokio::test]
async fn names_are_removed_renamed_and_linked() {
    let t = fixture!(open_to_root());
    let root = Cred::root();
    fs::write(t.path("a"), b"a").unwrap();
    fs::write(t.path("b"), b"b").unwrap();
    fs::create_dir(t.path("d")).unwrap();
    symlink("a", t.path("s")).unwrap();
    let (a, b, d, s) = (t.find("a").await, t.find("b").await, t.find("d").await, t.find("s").await);

    let (attr, dir) = t.remote.link(&root, &a, &d, "a2".as_ref()).await.unwrap();
    assert_eq!(attr.unwrap().nlink, 2);
    assert!(dir.before.is_some() && dir.after.is_some());
    t.remote.link(&root, &s, &d, "s2".as_ref()).await.unwrap();
    assert_eq!(fs::read_link(t.path("d/s2")).unwrap().as_os_str(), "a");
    let taken = t.remote.link(&root, &a, &t.root, "b".as_ref()).await.unwrap_err();
    assert_eq!(taken, Error::Exists);

    let (from, to) = ((&t.root, "a".as_ref()), (&d, "b".as_ref()));
    t.remote.rename(&root, from, to).await.unwrap();
    let (from, to) = ((&d, "b".as_ref()), (&t.root, "b".as_ref()));
    t.remote.rename(&root, from, to).await.unwrap();
    assert_eq!(fs::read(t.path("b")).unwrap(), b"a");
    assert_eq!(t.remote.getattr(&root, &b).await.unwrap_err(), Error::Stale);

    for (name, what, error) in [
        ("d", Removal::File, Error::IsDirectory),
        ("d", Removal::Directory, Error::NotEmpty),
        ("b", Removal::Directory, Error::NotDirectory),
        ("none", Removal::File, Error::NotFound),
        (".", Removal::Directory, Error::InvalidArgument),
        ("..", Removal::Directory, Error::InvalidArgument),
    ] {
        let answer = t.remote.remove(&root, &t.root, name.as_ref(), what).await;
        assert_eq!(answer.unwrap_err(), error, "{name} {what:?}");
    }
    let below_itself = t.remote.rename(&root, (&t.root, "d".as_ref()), (&d, "x".as_ref())).await;
    assert_eq!(below_itself.unwrap_err(), Error::InvalidArgument);
    let absent = t.remote.lookup(&root, &t.root, "none".as_ref()).await.unwrap();
    assert!(absent.found.is_none() && absent.dir.is_some());
    let in_file = t.remote.lookup(&root, &a, "x".as_ref()).await.unwrap_err();
    assert_eq!(in_file, Error::NotDirectory);
}

#[tokio::test]
async fn a_listing_in_small_pieces_is_complete_while_names_come_and_go() {
    let t = fixture!(open_to_root());
    let odd = OsStr::from_bytes(b"\xff\xfenot utf-8");
    fs::write(t.path("").join(odd), b"").unwrap();
    let stable: HashSet<OsString> =
        (0..500).map(|i| OsString::from(format!("stable-{i}"))).chain([odd.to_owned()]).collect();
    for name in &stable {
        fs::write(t.path("").join(name), b"").unwrap();
    }
    let (mut cookie, mut seen, mut round) = (Cookie::default(), Vec::new(), 0);
    loop {
        let listing = t.remote.readdir(&Cred::root(), &t.root, cookie, 1000).await.unwrap();
        for entry in &listing.entries {
            assert!(entry.name != "." && entry.name != "..");
            assert_eq!(entry.attr.unwrap().fileid, entry.fileid);
            assert_eq!(entry.handle, Some(t.find(&entry.name).await));
            seen.push(entry.name.clone());
        }
        if listing.eof {
            break;
        }
        let last = listing.entries.last().expect("at least one entry until the end");
        cookie = Cookie { position: last.position, verifier: listing.verifier };
        fs::write(t.path(&format!("passing-{round}")), b"").unwrap();
        if round > 3 {
            fs::remove_file(t.path(&format!("passing-{}", round - 3))).unwrap();
        }
        round += 1;
    }
    assert!(round > 50);
    let distinct: HashSet<_> = seen.iter().cloned().collect();
    assert_eq!(distinct.len(), seen.len(), "no name twice");
    assert!(stable.is_subset(&distinct));
    let wrong = Cookie { position: 0, verifier: 1 };
    let answer = t.remote.readdir(&Cred::root(), &t.root, wrong, 1000).await;
    assert_eq!(answer.unwrap_err(), Error::BadCookie);
}

#[tokio::test]
async fn a_user_that_may_not_search_a_directory_lists_names_only() {
    let t = fixture!(LocalOptions::default());
    fs::create_dir(t.path("d")).unwrap();
    fs::write(t.path("d/f"), b"").unwrap();
    let d = t.find("d").await;
    for (mode, entries, described) in [(0o754, 1, false), (0o755, 1, true), (0o711, 0, false)] {
        fs::set_permissions(t.path("d"), fs::Permissions::from_mode(mode)).unwrap();
        match t.remote.readdir(&user(BOB), &d, Cookie::default(), 4096).await {
            Ok(listing) => {
                assert_eq!(listing.entries.len(), entries);
                assert_eq!(listing.entries[0].handle.is_some(), described, "{mode:o}");
            }
            Err(error) => assert_eq!((entries, error), (0, Error::AccessDenied)),
        }
    }
}

#[tokio::test]
async fn parallel_changes_tell_each_its_own_step() {
    let t = fixture!(open_to_root());
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..32 {
        let (remote, root) = (t.remote.clone(), t.root.clone());
        tasks.spawn(async move {
            let name = OsString::from(format!("f{i}"));
            let set = SetAttr::default();
            let made = remote.make(&Cred::root(), &root, &name, New::File, set).await.unwrap();
            (made.dir.before.unwrap(), made.dir.after.unwrap())
        });
    }
    let mut steps = tasks.join_all().await;
    // They end in another order than they were done in.
    steps.sort_by_key(|(before, after)| (before.ctime, after.ctime));
    for pair in steps.windows(2) {
        // The state after one change is that before the next, unless the clock did not advance.
        assert!(pair[0].1.ctime <= pair[1].0.ctime, "{pair:?}");
    }
}

#[tokio::test]
async fn statfs_tells_of_the_export() {
    let t = fixture!(open_to_root());
    let space = t.remote.statfs(&Cred::root(), &t.root).await.unwrap();
    assert!(space.bytes > 0 && space.bytes_available <= space.bytes && space.name_max == 255);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    for path in [dir.path().join("none"), dir.path().join("file")] {
        let answer = LocalDir::open(&path, LocalOptions::default(), &KEY);
        assert!(matches!(answer, Err(LocalError::Open { .. })));
    }
    let proc = LocalDir::open(Path::new("/proc"), LocalOptions::default(), &KEY);
    assert!(proc.is_err(), "proc(5) has no handles");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_of_every_server_is_kept() {
    use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
    let t = fixture!(open_to_root());
    let remote: Arc<dyn Remote> = Arc::new(t.remote.clone());
    let base = t.make(&Cred::root(), "base", New::Directory, 0o755).await.unwrap().found.handle;
    let mut failures = Vec::new();
    // Its front door is an NFSv3 server, which has neither.
    let lacking = |need: &Ability| matches!(need, Ability::Locks | Ability::Xattrs);
    for case in cases().iter().filter(|case| !case.needs.iter().any(lacking)) {
        match case.check(&remote, &base, &Traits::default()).await {
            Verdict::Passed => {}
            Verdict::Skipped(reason) => panic!("{} skipped: {reason}", case.name),
            Verdict::Failed(text) => failures.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A process writes to the file all the time. Whenever a reply says that our change followed the
/// known version, no process wrote in between.
#[tokio::test]
async fn a_change_is_told_to_follow_only_if_no_process_wrote_in_between() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let t = fixture!(LocalOptions { shared: true, ..open_to_root() });
    fs::write(t.path("f"), vec![0; 8192]).unwrap();
    let (root, file) = (Cred::root(), t.find("f").await);
    let (path, over) = (t.path("f"), Arc::new(AtomicBool::new(false)));
    let begun = Arc::new(AtomicU64::new(0));
    let (is_over, begins) = (Arc::clone(&over), Arc::clone(&begun));
    let writer = std::thread::spawn(move || {
        for number in 0_u64.. {
            if is_over.load(Ordering::Relaxed) {
                return number;
            }
            begins.store(number, Ordering::SeqCst);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&number.to_ne_bytes(), 0).unwrap();
        }
        unreachable!("the numbers do not end")
    });
    // The kernel changes times before bytes: a read in between lacks a write. Skipped.
    let seen = async || loop {
        let number = begun.load(Ordering::SeqCst);
        let before = t.remote.getattr(&root, &file).await.unwrap().validator();
        let bytes = t.remote.read(&root, &file, None, 0, 8).await.unwrap().data;
        let is_written = u64::from_ne_bytes(bytes[..].try_into().unwrap()) >= number;
        if is_written && t.remote.getattr(&root, &file).await.unwrap().validator().same(&before) {
            break (before, bytes);
        }
    };
    let mut followed = 0;
    for round in 0..1500_u32 {
        let (held, bytes) = seen().await;
        let data = Bytes::copy_from_slice(&round.to_ne_bytes());
        let set = SetAttr { size: Some(8192 + u64::from(round)), ..SetAttr::default() };
        let change = if round % 2 == 0 {
            let written = t.remote.write(&root, &file, None, 4096, data, Stability::Unstable);
            written.await.unwrap().change
        } else {
            t.remote.setattr(&root, &file, set, None).await.unwrap()
        };
        let (now, bytes_now) = seen().await;
        if change.follows(&held) && change.after.unwrap().validator().same(&now) {
            followed += 1;
            assert_eq!(bytes, bytes_now, "round {round}: somebody wrote in between");
        }
    }
    over.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    println!("{written} foreign writes, {followed} changes followed");
    let (held, _) = seen().await;
    let x = Bytes::from_static(b"x");
    let change = t.remote.write(&root, &file, None, 0, x, Stability::Unstable);
    assert!(change.await.unwrap().change.follows(&held), "nobody else is there any more");
}
