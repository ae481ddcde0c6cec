//! Files that are open here are kept open at the server: they are found again, and keep their
//! identity.

use super::given_up::{Point, give_up_after, in_flight};
use super::setup::{Setup, eventually, mount, options};
use bytes::Bytes;
use larder_remote::smb::Smb;
use larder_vfs::{Error, Handle, Intent, Remote, Removal, SetAttr, Stability, Token};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

impl Setup {
    async fn keep(&self, file: &Handle) -> Token {
        let opened = self.smb.open(&self.cred, file, Intent::READ).await.unwrap();
        opened.token.expect("a token")
    }

    async fn another(&self, leases: bool) -> Arc<Smb> {
        let mut options = options(&self.server);
        options.leases = leases;
        mount(&options).await
    }
}

/// (whether it has a lease, whether another client renames through the server, or a process
/// directly on its disk)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_found_under_the_name_that_another_client_gave_it() {
    for leases in [true, false] {
        let setup = Setup::new(|_| (), |options| options.leases = leases).await;
        let (cred, root) = (&setup.cred, &setup.root);
        let other = setup.another(true).await;
        std::fs::create_dir_all(setup.dir.path().join("some/where")).unwrap();
        let some = other.lookup(cred, root, "some".as_ref()).await.unwrap().found.unwrap().handle;
        let place =
            other.lookup(cred, &some, "where".as_ref()).await.unwrap().found.unwrap().handle;
        let file = setup.file("file", b"before").await;
        setup.access(&file).await;
        let _kept = setup.keep(&file).await;
        let found = other.lookup(cred, root, "file".as_ref()).await.unwrap().found.unwrap();
        assert_eq!(found.handle, file);
        other.rename(cred, (root, "file".as_ref()), (&place, "new".as_ref())).await.unwrap();
        setup.write(&file, 0, b"AFTER!", Stability::FileSync).await.unwrap();
        let at_server = std::fs::read(setup.dir.path().join("some/where/new")).unwrap();
        assert_eq!(at_server, b"AFTER!", "leases: {leases}");
        assert_eq!(setup.read(&file, 0, 9).await, "AFTER!");
        other.rename(cred, (&place, "new".as_ref()), (root, "again".as_ref())).await.unwrap();
        assert_eq!(setup.smb.getattr(cred, &file).await.unwrap().size, 6);
        other.rename(cred, (root, "again".as_ref()), (root, "last".as_ref())).await.unwrap();
        let cut = SetAttr { size: Some(5), ..SetAttr::default() };
        setup.smb.setattr(cred, &file, cut, None).await.unwrap();
        assert_eq!(std::fs::read(setup.dir.path().join("last")).unwrap(), b"AFTER");
    }
}

/// The number of a file that is open here is given to no other file, which would be mistaken for
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handle_of_an_open_file_is_given_to_no_other() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let path = setup.dir.path().join("file");
    for _ in 0..20 {
        let file = setup.file("file", b"one").await;
        let number = path.metadata().unwrap().ino();
        let kept = setup.keep(&file).await;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another").unwrap();
        assert_ne!(path.metadata().unwrap().ino(), number);
        assert_eq!(setup.smb.getattr(&setup.cred, &file).await, Err(Error::Stale));
        let written = setup.write(&file, 0, b"XXX", Stability::FileSync).await;
        assert_eq!(written.map(drop), Err(Error::Stale));
        drop(kept);
        std::fs::remove_file(&path).unwrap();
    }
}

/// Removing a file that another client has open frees its name; what is left is removed with the
/// last close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_free_when_its_removal_returns_though_the_file_is_in_use() {
    for leases in [true, false] {
        let setup = Setup::new(|_| (), |options| options.leases = leases).await;
        let (cred, root) = (&setup.cred, &setup.root);
        let other = setup.another(leases).await;
        let file = setup.file("file", b"still here").await;
        setup.access(&file).await;
        let kept = setup.keep(&file).await;
        other.remove(cred, root, "file".as_ref(), Removal::File).await.unwrap();
        let left = setup.names();
        assert!(left.len() == 1 && left[0].starts_with(".nfs"), "leases: {leases}, {left:?}");
        assert_eq!(setup.find("file").await, None);
        let new = setup.file("file", b"new").await;
        assert_ne!(new, file);
        drop(kept);
        setup.comes_to(&["file"]).await;
    }
}

/// The process of Samba that serves the other client learns of the hidden name only after that
/// client has closed the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_name_goes_though_the_server_learns_of_it_late() {
    let mut setup = Setup::new(|_| (), |options| options.leases = false).await;
    let other = setup.another(false).await;
    let (cred, root) = (setup.cred.clone(), setup.root.clone());
    for round in 0..3 {
        let file = setup.file("file", b"in use").await;
        other.lookup(&cred, &root, "file".as_ref()).await.unwrap().found.unwrap();
        let kept = other.open(&cred, &file, Intent::READ).await.unwrap().token.expect("a token");
        setup.server.freeze_newest().unwrap();
        let sent = other.stats().connections[0].offered;
        drop(kept);
        eventually("it is closed", || other.stats().connections[0].offered > sent).await;
        setup.smb.remove(&cred, &root, "file".as_ref(), Removal::File).await.unwrap();
        assert!(setup.names()[0].starts_with(".nfs"), "round {round}: {:?}", setup.names());
        setup.server.thaw().unwrap();
        setup.comes_to(&[]).await;
    }
}

/// A removal is given up at each point at which it waits, while another client uses the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_is_given_up_leaves_no_hidden_name() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let (cred, root) = (&setup.cred, &setup.root);
    let other = setup.another(false).await;
    let mut next = Some(Point::first(4));
    while let Some(point) = next {
        let waits = point.waits;
        let file = setup.file("file", b"in use").await;
        other.lookup(cred, root, "file".as_ref()).await.unwrap().found.unwrap();
        let kept = other.open(cred, &file, Intent::READ).await.unwrap().token.expect("a token");
        let removal = setup.smb.remove(cred, root, "file".as_ref(), Removal::File);
        let has_ended = give_up_after(waits, Box::pin(async { removal.await.map(drop) })).await;
        println!("given up after {waits}");
        eventually("all is answered", || in_flight(&setup.smb) == 0).await;
        drop(kept);
        let is_hidden = |name: &String| name.starts_with(".nfs");
        eventually("the hidden name is gone", || !setup.names().iter().any(is_hidden)).await;
        next = point.next(has_ended);
        if has_ended {
            assert!(setup.names().is_empty());
            continue;
        }
        // It may not have begun.
        match setup.smb.remove(cred, root, "file".as_ref(), Removal::File).await {
            Ok(_) | Err(Error::NotFound) => (),
            Err(error) => panic!("given up after {waits}: {error}"),
        }
        setup.comes_to(&[]).await;
    }
}

/// A file that is renamed or removed here stays open, and its open does not block that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_of_names_keep_a_file_open() {
    for leases in [true, false] {
        let setup = Setup::new(|_| (), |options| options.leases = leases).await;
        let (cred, root) = (&setup.cred, &setup.root);
        let name = |name: &'static str| (root, std::ffi::OsStr::new(name));
        let other = setup.another(leases).await;
        let file = setup.file("file", b"one").await;
        setup.access(&file).await;
        let kept = setup.keep(&file).await;
        setup.smb.link(cred, &file, root, "link".as_ref()).await.unwrap();
        setup.smb.rename(cred, name("file"), name("moved")).await.unwrap();
        setup.smb.remove(cred, root, "moved".as_ref(), Removal::File).await.unwrap();
        assert_eq!(setup.names(), ["link"], "leases: {leases}");
        let found = other.lookup(cred, root, "link".as_ref()).await.unwrap().found.unwrap();
        assert_eq!(found.handle, file);
        other.rename(cred, name("link"), name("elsewhere")).await.unwrap();
        setup.write(&file, 0, b"two", Stability::FileSync).await.unwrap();
        assert_eq!(std::fs::read(setup.dir.path().join("elsewhere")).unwrap(), b"two");
        // Another file takes its path.
        setup.file("third", b"three").await;
        setup.find("elsewhere").await;
        setup.smb.rename(cred, name("third"), name("elsewhere")).await.unwrap();
        assert_eq!(setup.names(), ["elsewhere"]);
        drop(kept);
    }
}

/// If there is a lease its open is the one that is kept, even after the lease has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_lease_a_file_is_kept_open_without_a_request() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("file", b"one").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    let requests = setup.requests();
    let kept = setup.keep(&file).await;
    assert_eq!(setup.requests(), requests, "no request");
    let other = setup.another(true).await;
    let (cred, root) = (&setup.cred, &setup.root);
    other.lookup(cred, root, "file".as_ref()).await.unwrap().found.unwrap();
    let data = Bytes::from_static(b"two");
    other.write(cred, &file, None, 0, data, Stability::FileSync).await.unwrap();
    eventually("the lease has ended", || !lease.holds()).await;
    other.rename(cred, (root, "file".as_ref()), (root, "moved".as_ref())).await.unwrap();
    assert_eq!(setup.read(&file, 0, 9).await, "two");
    drop(kept);
    other.remove(cred, root, "moved".as_ref(), Removal::File).await.unwrap();
    setup.comes_to(&[]).await;
}

/// A file with several names is found by a remaining one, even if the name by which it was opened
/// is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_lost_the_name_it_is_open_by_is_found_by_another() {
    for is_kept in [true, false] {
        let setup = Setup::new(|_| (), |options| options.leases = false).await;
        let (cred, root) = (&setup.cred, &setup.root);
        let file = setup.file("file", b"one").await;
        let path = |name| setup.dir.path().join(name);
        std::fs::hard_link(path("file"), path("link")).unwrap();
        assert_eq!(setup.find("link").await, Some(file.clone()));
        assert_eq!(setup.find("file").await, Some(file.clone()));
        let kept = if is_kept { Some(setup.keep(&file).await) } else { None };
        let other = setup.another(false).await;
        other.lookup(cred, root, "file".as_ref()).await.unwrap().found.unwrap();
        other.remove(cred, root, "file".as_ref(), Removal::File).await.unwrap();
        setup.write(&file, 0, b"two", Stability::FileSync).await.unwrap();
        assert_eq!(std::fs::read(path("link")).unwrap(), b"two", "kept open: {is_kept}");
        drop(kept);
    }
}
