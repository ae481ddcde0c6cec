//! Leases: which requests they save, and that they are returned in time.

use super::setup::{Setup, eventually, mount, options, pattern};
use larder_remote::smb::{MountOptions, Smb};
use larder_testkit::Samba;
use larder_vfs::{
    Access, Cred, Error, Handle, Lease, LeaseHandled, Remote, Removal, SetAttr, SetTime, Stability,
    Watcher,
};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// From this version on Samba has leases on directories.
pub(super) const LEASES_DIRECTORIES: (u32, u32) = (4, 22);

/// Passes notifications on to the test, and lets the server continue only when the test allows it.
pub(super) struct Told {
    files: mpsc::UnboundedSender<Handle>,
    may_go_on: tokio::sync::Semaphore,
}

impl Watcher for Told {
    fn distrust<'a>(&'a self, file: &'a Handle) -> LeaseHandled<'a> {
        self.files.send(file.clone()).unwrap();
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async move { drop(self.may_go_on.acquire().await) })
    }
}

pub(super) fn watch(setup: &Setup, at_once: bool) -> (Arc<Told>, mpsc::UnboundedReceiver<Handle>) {
    let (files, told) = mpsc::unbounded_channel();
    let permits = if at_once { 1 } else { 0 };
    let watcher = Arc::new(Told { files, may_go_on: tokio::sync::Semaphore::new(permits) });
    let weak: std::sync::Weak<Told> = Arc::downgrade(&watcher);
    setup.smb.watch(weak);
    (watcher, told)
}

/// Another client puts a file with this content there.
pub(super) async fn smbclient_puts(server: Samba, name: &str, content: &[u8]) -> Samba {
    let local = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(local.path(), content).unwrap();
    let commands = format!("put {} {name}", local.path().display());
    let putting = tokio::task::spawn_blocking(move || {
        server.client(&commands).unwrap_or_else(|error| panic!("{error}"));
        drop(local);
        server
    });
    putting.await.unwrap()
}

pub(super) async fn next(told: &mut mpsc::UnboundedReceiver<Handle>) -> Handle {
    let next = tokio::time::timeout(Duration::from_secs(60), told.recv());
    next.await.expect("nothing was told").unwrap()
}

/// The notification that arrives within a second.
async fn soon(told: &mut mpsc::UnboundedReceiver<Handle>) -> Option<Handle> {
    let next = tokio::time::timeout(Duration::from_secs(1), told.recv()).await;
    next.ok().map(Option::unwrap)
}

/// Changes a directory until that is notified, and returns the notified directory. Samba reports
/// what the kernel reports to it, and begins to watch only a moment after it has answered, so the
/// first changes may be missed.
async fn told_of(
    told: &mut mpsc::UnboundedReceiver<Handle>,
    mut change: impl FnMut(u32),
) -> Handle {
    for number in 0..20 {
        change(number);
        if let Some(file) = soon(told).await {
            return file;
        }
    }
    panic!("nothing was told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_lease_nothing_is_asked() {
    let setup = Setup::new(|_| (), |_| ()).await;
    assert!(setup.smb.gives_leases());
    let file = setup.file("file", &pattern(50_000)).await;
    let first = setup.access(&file).await;
    let lease = first.lease.expect("a lease");
    let requests = setup.requests();
    for _ in 0..10 {
        let again = setup.access(&file).await;
        assert!(again.lease.is_some_and(|again| again.is(&lease)));
        assert_eq!(again.attr, first.attr);
        let attr = setup.smb.getattr(&setup.cred, &file).await.unwrap();
        assert_eq!(Some(attr), first.attr);
    }
    assert_eq!(setup.requests(), requests, "no request");
    assert!(setup.read(&file, 0, 50_000).await == pattern(50_000));
    assert_eq!(setup.requests(), requests + 1, "one READ, and no open");
    assert!(lease.holds());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_writes_is_reported_and_then_read() {
    let mut setup = Setup::new(|_| (), |_| ()).await;
    let (watcher, mut told) = watch(&setup, false);
    let file = setup.file("file", &pattern(100_000)).await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    assert!(setup.read(&file, 0, 100_000).await == pattern(100_000));
    let theirs: Vec<u8> = pattern(120_000).into_iter().rev().collect();
    let server = setup.server;
    let content = theirs.clone();
    let putting = tokio::spawn(async move { smbclient_puts(server, "file", &content).await });
    assert_eq!(next(&mut told).await, file);
    assert!(!lease.holds(), "it ends before it is told");
    // The server does not wait until we have given up what depends on the lease: that is for our
    // own sake.
    watcher.may_go_on.add_permits(1);
    setup.server = putting.await.unwrap();
    assert!(setup.smb.read(&setup.cred, &file, None, 0, 200_000).await.unwrap().data == theirs);
    let again = setup.access(&file).await;
    assert_eq!(again.attr.unwrap().size, 120_000);
    assert!(again.lease.is_none(), "they may be writing still");
    assert!(leased_in_time(&setup.smb, &setup.cred, &file).await.holds());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_do_not_end_the_lease_and_tell_what_was_before() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("file", b"one").await;
    let first = setup.access(&file).await;
    let (lease, mut held) = (first.lease.expect("a lease"), first.attr.unwrap());
    for (offset, data) in [(3, &b"two"[..]), (0, b"ONE"), (6, b"three")] {
        let change = setup.write(&file, offset, data, Stability::FileSync).await.unwrap().change;
        assert!(change.follows(&held.validator()), "{change:?} after {held:?}");
        held = change.after.unwrap();
        assert_eq!(setup.smb.getattr(&setup.cred, &file).await.unwrap(), held);
    }
    let cut = SetAttr { size: Some(4), ..SetAttr::default() };
    let change = setup.smb.setattr(&setup.cred, &file, cut, None).await.unwrap();
    assert!(change.follows(&held.validator()));
    assert_eq!(setup.read(&file, 0, 100).await, "ONEt");
    assert!(lease.holds());
    // A burst: nothing is known in between, and the lease continues.
    setup.write(&file, 4, b"abc", Stability::Unstable).await.unwrap();
    setup.write(&file, 7, b"def", Stability::Unstable).await.unwrap();
    let committed = setup.smb.commit(&setup.cred, &file, None, 0..0).await.unwrap();
    assert_eq!(committed.change.after.unwrap().size, 10);
    let again = setup.access(&file).await;
    assert!(lease.holds() && again.lease.is_some_and(|again| again.is(&lease)));
    assert_eq!(again.attr.unwrap().size, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_mounts_see_what_each_other_writes() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let (_watcher, mut told) = watch(&setup, true);
    let file = setup.file("file", b"first").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    let other = mount(&options(&setup.server)).await;
    let root = other.root().await.unwrap().handle;
    let found = other.lookup(&setup.cred, &root, "file".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(found.handle, file, "handles are the server's");
    let data = bytes::Bytes::from_static(b"second");
    other.write(&setup.cred, &file, None, 0, data, Stability::FileSync).await.unwrap();
    assert_eq!(next(&mut told).await, file);
    assert!(!lease.holds());
    assert_eq!(setup.read(&file, 0, 100).await, "second");
    // Both may have a read lease.
    let ours = leased_in_time(&setup.smb, &setup.cred, &file).await;
    let theirs = leased_in_time(&other, &setup.cred, &file).await;
    assert!(ours.holds() && theirs.holds());
}

/// A lease that ends when the server says so proves that a change of ours was the only one, if no
/// other client has the file open. If another client has, it ends with our change: Samba drops its
/// message about the other client's change if the open through which we made ours is closed when
/// the message arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_proves_our_changes_where_no_other_client_has_the_file_open() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let other = mount(&options(&setup.server)).await;
    let file = setup.file("file", b"first").await;
    let first = setup.access(&file).await;
    let (alone, held) = (first.lease.expect("a lease"), first.attr.unwrap());
    assert!(alone.ends_late(), "others may share it");
    let written = setup.write(&file, 0, b"F", Stability::FileSync).await.unwrap().change;
    assert!(written.follows(&held.validator()) && alone.holds() && !alone.ends_late());
    // Times are set by an open that needs no data.
    let times = SetAttr { mtime: Some(SetTime::To(held.birth.unwrap())), ..SetAttr::default() };
    let touched = setup.smb.setattr(&setup.cred, &file, times, None).await.unwrap();
    assert!(touched.follows(&written.after.unwrap().validator()) && alone.holds());
    other.lookup(&setup.cred, &setup.root, "file".as_ref()).await.unwrap().found.unwrap();
    let theirs = other.access(&setup.cred, &file, Access::READ).await.unwrap();
    assert!(theirs.lease.is_some_and(|lease| lease.holds() && lease.ends_late()));
    assert!(alone.holds() && alone.ends_late(), "from now on they share it");
    let shared = setup.write(&file, 1, b"I", Stability::FileSync).await.unwrap().change;
    assert!(shared.before.is_none() && !alone.holds());
    assert!(setup.access(&file).await.lease.is_none(), "they may be writing");
    assert_eq!(setup.read(&file, 0, 9).await, "FIrst");
}

/// The lease on a file that another client was writing a moment ago.
async fn leased_in_time(smb: &Smb, cred: &Cred, file: &Handle) -> Lease {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    loop {
        if let Some(lease) = smb.access(cred, file, Access::READ).await.unwrap().lease {
            return lease;
        }
        ticks.tick().await;
    }
}

/// Samba 4.17 withdraws no lease for a removal: the file exists, and its name is not free, until
/// the last client closes it. So no client keeps a lease for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_client_removes_goes_soon() {
    let short = |options: &mut MountOptions| options.lease_max = Duration::from_millis(300);
    let setup = Setup::new(|_| (), short).await;
    let file = setup.file("file", b"x").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    setup.server.client("del file").unwrap();
    eventually("the file is gone", || !setup.dir.path().join("file").exists()).await;
    assert!(!lease.holds());
    assert_eq!(setup.smb.getattr(&setup.cred, &file).await, Err(Error::Stale));
    setup.file("file", b"a new one").await;
}

/// A client that keeps a file open under a lease closes it when another client removes it, which
/// waits for that: then its name is free. In many rounds, since their messages cross.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_free_when_its_removal_returns_though_the_file_was_kept_open() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let other = mount(&options(&setup.server)).await;
    let path = setup.dir.path().join("file");
    for round in 0..50 {
        let file = setup.file("file", b"x").await;
        let lease = setup.access(&file).await.lease.expect("a lease");
        let (cred, name) = (&setup.cred, "file".as_ref());
        other.remove(cred, &setup.root, name, Removal::File).await.unwrap();
        assert!(!path.exists(), "round {round}");
        assert!(!lease.holds(), "round {round}");
        assert_eq!(setup.smb.getattr(cred, &file).await, Err(Error::Stale));
    }
}

/// By a lease, or else by a watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_a_directory_is_told() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let (_watcher, mut told) = watch(&setup, true);
    let dir = setup.make("dir", larder_vfs::New::Directory).await.unwrap();
    let looks = setup.calls("QUERY_INFO");
    let lease = setup.access(&dir).await.lease.expect("a lease or a watch");
    // The attributes of a watched directory are requested again when it changes.
    let leased = setup.calls("QUERY_INFO") == looks + 1;
    assert_eq!(leased, Samba::version().unwrap() >= LEASES_DIRECTORIES);
    let requests = setup.requests();
    assert!(setup.access(&dir).await.lease.is_some_and(|again| again.is(&lease)));
    assert_eq!(setup.requests(), requests, "no request");
    let local = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(local.path(), "y").unwrap();
    let put = |number| {
        let put = format!("put {} dir/other{number}", local.path().display());
        setup.server.client(&put).unwrap_or_else(|error| panic!("{error}"));
    };
    assert_eq!(told_of(&mut told, put).await, dir);
    assert!(!lease.holds());
    let found = setup.smb.lookup(&setup.cred, &dir, "other0".as_ref()).await.unwrap().found;
    assert_eq!(found.unwrap().attr.size, 1);
    let again = setup.access(&dir).await.lease.expect("a new one");
    if leased {
        return;
    }
    // Behind the server's back.
    let write = |number| {
        std::fs::write(setup.dir.path().join(format!("dir/new{number}")), "x").unwrap();
    };
    assert_eq!(told_of(&mut told, write).await, dir);
    assert!(!again.holds());
}

/// Whoever writes, and changes modes and times: only other names end a watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_files_do_not_end_the_watch_on_their_directory() {
    if Samba::version().unwrap() >= LEASES_DIRECTORIES {
        eprintln!("left out: this Samba leases directories, which are not watched then");
        return;
    }
    let setup = Setup::new(|_| (), |_| ()).await;
    let (_watcher, mut told) = watch(&setup, true);
    let dir = setup.make("dir", larder_vfs::New::Directory).await.unwrap();
    let at = |name: &str| setup.dir.path().join("dir").join(name);
    std::fs::write(at("file"), "x").unwrap();
    let watched = setup.access(&dir).await.lease.expect("a watch");
    // Twice, since Samba begins to watch only a moment after it has answered.
    for _ in 0..2 {
        for round in 0..20 {
            std::fs::write(at("file"), "x".repeat(round)).unwrap();
            let mode = [0o600, 0o644][round % 2];
            std::fs::set_permissions(at("file"), Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(soon(&mut told).await, None);
    }
    assert!(watched.holds());
    let make = |number| std::fs::write(at(&format!("new{number}")), "x").unwrap();
    assert_eq!(told_of(&mut told, make).await, dir);
    assert!(!watched.holds());
}

/// A watch does not keep a directory alive, and its holder is notified when it is removed. Samba
/// may miss that, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_directory_can_go() {
    if Samba::version().unwrap() >= LEASES_DIRECTORIES {
        eprintln!("left out: this Samba leases directories, which are not watched then");
        return;
    }
    let setup = Setup::new(|_| (), |_| ()).await;
    let (_watcher, mut told) = watch(&setup, true);
    let mut watched = Vec::new();
    for _ in 0..20 {
        let dir = setup.make("dir", larder_vfs::New::Directory).await.unwrap();
        std::fs::write(setup.dir.path().join("dir/inside"), "x").unwrap();
        setup.access(&dir).await.lease.expect("a watch");
        watched.push(dir);
        std::fs::remove_dir_all(setup.dir.path().join("dir")).unwrap();
        // The notification may arrive late, and concern one of those before.
        if let Some(gone) = soon(&mut told).await {
            assert!(watched.contains(&gone), "{gone:?} is none of {watched:?}");
            return;
        }
    }
    panic!("nothing was told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_leave_nothing_open() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let (cred, root) = (&setup.cred, &setup.root);
    let dir = setup.make("dir", larder_vfs::New::Directory).await.unwrap();
    let watch = setup.access(&dir).await.lease.expect("a watch");
    let name = "a".as_ref();
    let made = setup.smb.make(cred, &dir, name, larder_vfs::New::File, Default::default()).await;
    let file = made.unwrap().found.handle;
    let is_watched = Samba::version().unwrap() < LEASES_DIRECTORIES;
    assert_eq!(watch.holds(), is_watched, "a lease on a directory ends");
    setup.access(&file).await.lease.expect("a lease");
    setup.access(&dir).await.lease.expect("a watch");
    setup.smb.rename(cred, (root, "dir".as_ref()), (root, "moved".as_ref())).await.unwrap();
    setup.access(&file).await.lease.expect("a lease at the new place");
    setup.access(&dir).await.lease.expect("a watch");
    setup.smb.remove(cred, &dir, name, Removal::File).await.unwrap();
    setup.access(&dir).await.lease.expect("a watch");
    setup.smb.remove(cred, root, "moved".as_ref(), Removal::Directory).await.unwrap();
    assert!(!setup.dir.path().join("moved").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_used_lease_makes_room() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let mut leases = Vec::new();
    for number in 0..600 {
        let file = setup.make(&number.to_string(), larder_vfs::New::File).await.unwrap();
        leases.push(setup.access(&file).await.lease.expect("a lease"));
    }
    let holding = leases.iter().filter(|lease| lease.holds()).count();
    assert!((400..=512).contains(&holding), "{holding}");
    assert!(!leases[0].holds() && leases[599].holds());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leases_every_look_is_fresh() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    assert!(!setup.smb.gives_leases());
    let file = setup.file("file", b"one").await;
    assert!(setup.access(&file).await.lease.is_none());
    for content in ["two", "three", ""] {
        std::fs::write(setup.dir.path().join("file"), content).unwrap();
        assert_eq!(setup.read(&file, 0, 100).await, content);
        assert_eq!(setup.access(&file).await.attr.unwrap().size, content.len() as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_one_for_all_names_of_a_file() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("one", b"first").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    let (cred, root) = (&setup.cred, &setup.root);
    setup.smb.link(cred, &file, root, "two".as_ref()).await.unwrap();
    for name in ["one", "two"] {
        assert_eq!(setup.find(name).await, Some(file.clone()));
        setup.write(&file, 0, name.as_bytes(), Stability::FileSync).await.unwrap();
        setup.access(&file).await;
        assert_eq!(&setup.read(&file, 0, 100).await[..3], name.as_bytes());
    }
    setup.smb.remove(cred, root, "one".as_ref(), Removal::File).await.unwrap();
    assert!(!lease.holds(), "what is removed is closed first, under all its names");
    assert_eq!(setup.find("two").await, Some(file.clone()));
    assert_eq!(setup.read(&file, 0, 100).await, "twost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_directories_are_leased_or_watched_and_not_all_are_watched() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let mut leases = Vec::new();
    for number in 0..300 {
        let dir = setup.make(&number.to_string(), larder_vfs::New::Directory).await.unwrap();
        leases.extend(setup.access(&dir).await.lease);
    }
    let leased = Samba::version().unwrap() >= LEASES_DIRECTORIES;
    assert_eq!(leases.len(), if leased { 300 } else { 256 });
    assert!(leases.iter().all(larder_vfs::Lease::holds));
    let file = setup.file("file", &pattern(3_000_000)).await;
    assert!(setup.read(&file, 0, 3_000_000).await == pattern(3_000_000), "credits are left");
}

/// An open that waits for another client's lease waits until that client has answered, and it
/// answers before it does anything that may need the file: here, before its watcher ever returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_do_not_wait_for_each_others_leases() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let other = Arc::new(mount(&options(&setup.server)).await);
    let (_watcher, mut told) = watch(&setup, false);
    let file = setup.file("file", b"begin").await;
    let theirs = other.lookup(&setup.cred, &setup.root, "file".as_ref()).await.unwrap();
    let theirs = theirs.found.unwrap().handle;
    setup.smb.access(&setup.cred, &file, Access::ALL).await.unwrap().lease.unwrap();
    let data = bytes::Bytes::from_static(b"x");
    let writing = async {
        for at in 0..3 {
            let data = data.clone();
            other.write(&setup.cred, &theirs, None, at, data, Stability::FileSync).await.unwrap();
        }
    };
    let soon = tokio::time::timeout(Duration::from_secs(10), writing);
    soon.await.expect("it waits for the one who is told");
    assert_eq!(next(&mut told).await, file);
}
