//! Handles and where they are: identity, staleness, recovery.

use super::setup::{Setup, mount, options};
use larder_vfs::{Error, New, Remote, Removal, Stability};

#[tokio::test]
async fn a_handle_has_no_place_until_its_name_is_looked_up() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let dir = setup.make("dir", New::Directory).await.unwrap();
    let name = "file".as_ref();
    let made = setup.smb.make(&setup.cred, &dir, name, New::File, Default::default()).await;
    let file = made.unwrap().found.handle;
    // A later mount has the handles, as from a cache, but knows no paths.
    let later = mount(&options(&setup.server)).await;
    let cred = &setup.cred;
    assert_eq!(later.getattr(cred, &file).await, Err(Error::Stale));
    assert_eq!(
        later.access(cred, &file, larder_vfs::Access::READ).await.unwrap_err(),
        Error::Stale
    );
    assert_eq!(later.read(cred, &file, None, 0, 1).await.unwrap_err(), Error::Stale);
    assert_eq!(later.lookup(cred, &dir, name).await.unwrap_err(), Error::Stale);
    let root = later.root().await.unwrap().handle;
    assert_eq!(root, setup.root);
    let found = later.lookup(cred, &root, "dir".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(found.handle, dir);
    let found = later.lookup(cred, &dir, name).await.unwrap().found.unwrap();
    assert_eq!(found.handle, file);
    assert_eq!(later.getattr(cred, &file).await.unwrap(), found.attr);
}

#[tokio::test]
async fn a_listing_teaches_places() {
    let setup = Setup::new(|_| (), |_| ()).await;
    setup.file("file", b"x").await;
    let later = mount(&options(&setup.server)).await;
    let root = later.root().await.unwrap().handle;
    let page = later.readdir(&setup.cred, &root, Default::default(), 4096).await.unwrap();
    let entry = &page.entries[0];
    let read = later.read(&setup.cred, entry.handle.as_ref().unwrap(), None, 0, 9).await.unwrap();
    assert_eq!(read.data, "x");
    assert_eq!(entry.attr.unwrap().size, 1);
}

#[tokio::test]
async fn what_another_client_renamed_is_stale_until_it_is_found() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let file = setup.file("file", b"x").await;
    std::fs::rename(setup.dir.path().join("file"), setup.dir.path().join("moved")).unwrap();
    assert_eq!(setup.smb.getattr(&setup.cred, &file).await, Err(Error::Stale));
    assert_eq!(setup.find("file").await, None);
    assert_eq!(setup.find("moved").await, Some(file.clone()), "the same handle");
    assert_eq!(setup.read(&file, 0, 9).await, "x");
}

#[tokio::test]
async fn another_file_at_the_path_is_never_taken_for_the_first() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let file = setup.file("file", b"mine").await;
    setup.file("other", b"theirs").await;
    let path = |name| setup.dir.path().join(name);
    std::fs::rename(path("file"), path("kept")).unwrap();
    std::fs::rename(path("other"), path("file")).unwrap();
    assert_eq!(setup.smb.read(&setup.cred, &file, None, 0, 9).await.unwrap_err(), Error::Stale);
    let written = setup.write(&file, 0, b"XXXX", Stability::FileSync).await;
    assert_eq!(written.unwrap_err(), Error::Stale);
    assert_eq!(std::fs::read(path("file")).unwrap(), b"theirs");
    assert_eq!(std::fs::read(path("kept")).unwrap(), b"mine");
}

#[tokio::test]
async fn a_file_that_the_server_did_not_make_keeps_its_handle() {
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let path = setup.dir.path().join("local");
    std::fs::write(&path, "one").unwrap();
    let file = setup.find("local").await.unwrap();
    // Samba makes up the creation time of such a file, from times that change.
    for content in ["two", "three", "four"] {
        std::fs::read(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        let times = std::fs::FileTimes::new().set_accessed(std::time::SystemTime::now());
        std::fs::File::open(&path).unwrap().set_times(times).unwrap();
        assert_eq!(setup.read(&file, 0, 9).await, content);
        assert_eq!(setup.find("local").await, Some(file.clone()));
    }
    let later = mount(&options(&setup.server)).await;
    let root = later.root().await.unwrap().handle;
    let found = later.lookup(&setup.cred, &root, "local".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(found.handle, file, "also for a later mount");
}

#[tokio::test]
async fn without_ids_files_go_by_their_paths() {
    let setup = Setup::new(|_| (), |options| options.server_ids = false).await;
    setup.data_survives("data", 300_000).await;
    let file = setup.find("data").await.unwrap();
    let (cred, root) = (&setup.cred, &setup.root);
    setup.access(&file).await.lease.expect("a lease");
    setup.smb.rename(cred, (root, "data".as_ref()), (root, "moved".as_ref())).await.unwrap();
    assert_eq!(setup.read(&file, 0, 1).await.len(), 1, "our own rename is known");
    let moved = setup.find("moved").await.unwrap();
    assert_ne!(moved, file, "the limit that is documented");
    setup.access(&moved).await.lease.expect("a lease");
    let removed = setup.smb.remove(cred, root, "moved".as_ref(), larder_vfs::Removal::File);
    removed.await.unwrap();
    assert!(!setup.dir.path().join("moved").exists());
    assert_eq!(setup.smb.getattr(cred, &moved).await, Err(Error::Stale));
}

#[tokio::test]
async fn a_subfolder_is_mounted_as_the_root() {
    let setup = Setup::new(|_| (), |_| ()).await;
    std::fs::create_dir_all(setup.dir.path().join("a/b")).unwrap();
    std::fs::write(setup.dir.path().join("a/b/file"), "x").unwrap();
    let mut options = options(&setup.server);
    options.path = "/a/b/".into();
    let smb = mount(&options).await;
    let root = smb.root().await.unwrap().handle;
    let found = smb.lookup(&setup.cred, &root, "file".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(smb.read(&setup.cred, &found.handle, None, 0, 9).await.unwrap().data, "x");
    let up = smb.lookup(&setup.cred, &root, "..".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(up.handle, root);
}

/// A client that removes a name opens the file so that nobody else may. To the other client that is
/// no error, but a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removals_by_one_client_hinder_no_rename_by_another() {
    const ROUNDS: u32 = 300;
    let setup = Setup::new(|_| (), |options| options.leases = false).await;
    let (file, root, cred) = (setup.file("file", b"x").await, &setup.root, &setup.cred);
    setup.smb.link(cred, &file, root, "another".as_ref()).await.unwrap();
    let other = mount(&options(&setup.server)).await;
    let removing = {
        let (smb, root, cred) = (setup.smb.clone(), root.clone(), cred.clone());
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                // On a busy machine these may find a name gone that another is renamed beside.
                let linked = smb.link(&cred, &file, &root, "further".as_ref()).await;
                let removed = smb.remove(&cred, &root, "further".as_ref(), Removal::File).await;
                let fits = |error| matches!(error, Error::NotFound | Error::Exists);
                assert!(linked.err().is_none_or(fits) && removed.err().is_none_or(fits));
            }
        })
    };
    let (mut names, mut renames) = (["another", "moved"], 0);
    while !removing.is_finished() {
        let [from, to] = names.map(AsRef::as_ref);
        let renamed = other.rename(cred, (root, from), (root, to)).await;
        assert_eq!(renamed.err(), None, "after {renames} renames");
        names.reverse();
        renames += 1;
    }
    removing.await.unwrap();
    assert!(renames > ROUNDS / 4, "only {renames} renames beside {ROUNDS} removals");
}
