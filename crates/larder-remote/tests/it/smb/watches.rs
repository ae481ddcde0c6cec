//! Directories under watch: what our own changes in them cost, and what of others' is noticed.
//! Where the server leases directories, none is watched.

use super::leases::{LEASES_DIRECTORIES, Told, next, watch};
use super::setup::Setup;
use larder_testkit::Samba;
use larder_vfs::{Error, Handle, Lease, New, Remote, Removal, SetAttr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A directory under watch whose notices come.
struct Watched {
    setup: Setup,
    dir: Handle,
    lease: Lease,
    told: mpsc::UnboundedReceiver<Handle>,
    _watcher: Arc<Told>,
}

impl Watched {
    /// `None` if this Samba leases directories.
    async fn new() -> Option<Watched> {
        if Samba::version().unwrap() >= LEASES_DIRECTORIES {
            eprintln!("left out: this Samba leases directories, which are not watched then");
            return None;
        }
        let setup = Setup::new(|_| (), |_| ()).await;
        let (_watcher, told) = watch(&setup, true);
        let dir = setup.make("dir", New::Directory).await.unwrap();
        setup.access(&setup.root).await.lease.expect("a watch on the root");
        let lease = setup.access(&dir).await.lease.expect("a watch");
        let mut watched = Watched { setup, dir, lease, told, _watcher };
        watched.again().await;
        Some(watched)
    }

    /// Takes a new watch, and makes changes until the server tells of them: it begins to watch only
    /// a moment after it has answered.
    async fn again(&mut self) {
        loop {
            self.lease = self.setup.access(&self.dir).await.lease.expect("a watch");
            self.make("warm", New::File).await;
            self.remove("warm", Removal::File).await;
            // Late notices, of changes from before, end the watch.
            if tokio::time::timeout(LATE, self.told.recv()).await.is_err() && self.lease.holds() {
                return;
            }
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.setup.dir.path().join("dir").join(name)
    }

    async fn make(&self, name: &str, new: New) -> Handle {
        let Setup { smb, cred, .. } = &self.setup;
        let made = smb.make(cred, &self.dir, name.as_ref(), new, SetAttr::default()).await;
        made.unwrap().found.handle
    }

    async fn remove(&self, name: &str, what: Removal) {
        let Setup { smb, cred, .. } = &self.setup;
        smb.remove(cred, &self.dir, name.as_ref(), what).await.unwrap();
    }

    async fn rename(&self, from: &str, to: &str) {
        let Setup { smb, cred, .. } = &self.setup;
        let (from, to) = ((&self.dir, from.as_ref()), (&self.dir, to.as_ref()));
        smb.rename(cred, from, to).await.unwrap();
    }

    /// How often the server is asked to open something for this.
    async fn opens(&self, change: impl Future) -> u64 {
        let before = self.setup.calls("CREATE");
        change.await;
        self.setup.calls("CREATE") - before
    }
}

/// Longer than a server takes to tell, and shorter than it takes until a notice is late.
const LATE: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_leave_the_watch_and_need_no_look_at_the_directory() {
    let Some(mut watched) = Watched::new().await else { return };
    let Setup { smb, cred, .. } = &watched.setup;
    for number in 0..20 {
        let name = |what: &str| format!("{what}{number}");
        assert_eq!(watched.opens(watched.make(&name("file"), New::File)).await, 1);
        assert_eq!(watched.opens(watched.make(&name("dir"), New::Directory)).await, 1);
        let link = watched.make(&name("link"), New::Symlink("to".into())).await;
        let second = name("second");
        smb.link(cred, &link, &watched.dir, second.as_ref()).await.unwrap();
        watched.rename(&name("file"), &name("moved")).await;
        watched.rename(&name("moved"), &second).await;
        let removed = watched.opens(watched.remove(&second, Removal::File)).await;
        assert_eq!(removed, 2, "one to see what it is");
        watched.remove(&name("dir"), Removal::Directory).await;
        let (name, new) = (name("link"), New::FileExclusive);
        let exists = smb.make(cred, &watched.dir, name.as_ref(), new, SetAttr::default()).await;
        assert_eq!(exists.unwrap_err(), Error::Exists);
        let found = smb.lookup(cred, &watched.dir, name.as_ref()).await.unwrap().found;
        let found = found.expect("it is there");
        assert_eq!(found.handle, link);
    }
    // What is told of our changes comes after them.
    assert!(tokio::time::timeout(LATE, watched.told.recv()).await.is_err(), "nobody else was here");
    assert!(watched.lease.holds());
    let attr = smb.getattr(cred, &watched.dir).await.unwrap();
    let disk = std::fs::metadata(watched.at("")).unwrap();
    let modified = disk.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(attr.mtime.sec, i64::try_from(modified.as_secs()).unwrap());
    std::fs::write(watched.at("other"), "x").unwrap();
    assert_eq!(next(&mut watched.told).await, watched.dir);
    assert!(!watched.lease.holds());
}

/// Whatever another one does to a name, in the midst of changes of ours of this name and others:
/// the watch is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_change_between_changes_of_ours_ends_the_watch() {
    let Some(mut watched) = Watched::new().await else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let aside = elsewhere.path().join("aside");
    type Change = fn(&Watched, &std::path::Path);
    let theirs: [(&str, Change); 6] = [
        ("makes a name", |watched, _| std::fs::write(watched.at("new"), "x").unwrap()),
        ("makes a directory", |watched, _| std::fs::create_dir(watched.at("new")).unwrap()),
        ("removes what we made", |watched, _| std::fs::remove_file(watched.at("ours")).unwrap()),
        ("removes it and makes it", |watched, _| {
            std::fs::remove_file(watched.at("ours")).unwrap();
            std::fs::write(watched.at("ours"), "theirs").unwrap();
        }),
        ("renames what we made", |watched, _| {
            std::fs::rename(watched.at("ours"), watched.at("new")).unwrap();
        }),
        ("takes what we made away", |watched, aside| {
            std::fs::rename(watched.at("ours"), aside).unwrap();
        }),
    ];
    for (what, theirs) in theirs {
        watched.make("ours", New::File).await;
        watched.make("before", New::File).await;
        let change = async {
            theirs(&watched, &aside);
        };
        tokio::join!(change, watched.make("beside", New::File));
        watched.make("after", New::File).await;
        assert_eq!(next(&mut watched.told).await, watched.dir, "{what}");
        assert!(!watched.lease.holds(), "{what}");
        for left in std::fs::read_dir(watched.at("")).unwrap() {
            let left = left.unwrap();
            match left.file_type().unwrap().is_dir() {
                true => std::fs::remove_dir(left.path()).unwrap(),
                false => std::fs::remove_file(left.path()).unwrap(),
            }
        }
        watched.again().await;
    }
}

/// Another client of the server removes and makes the names that we make and remove.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_that_change_one_name_end_each_others_watch() {
    let Some(mut watched) = Watched::new().await else { return };
    let other = super::setup::mount(&super::setup::options(&watched.setup.server)).await;
    let Setup { cred, root, .. } = &watched.setup;
    let cred = cred.clone();
    other.lookup(&cred, root, "dir".as_ref()).await.unwrap();
    for round in 0..6 {
        watched.make("name", New::File).await;
        if round % 2 == 0 {
            let name = "name".as_ref();
            other.remove(&cred, &watched.dir, name, Removal::File).await.unwrap();
            watched.make("name", New::FileExclusive).await;
        } else {
            watched.remove("name", Removal::File).await;
            let (name, new) = ("name".as_ref(), New::FileExclusive);
            other.make(&cred, &watched.dir, name, new, SetAttr::default()).await.unwrap();
        }
        assert_eq!(next(&mut watched.told).await, watched.dir, "round {round}");
        assert!(!watched.lease.holds());
        watched.remove("name", Removal::File).await;
        watched.again().await;
    }
}

/// The path of a watched directory is known to be right only while no directory above it may have
/// been renamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_in_a_directory_that_took_the_place_of_a_watched_one() {
    let Some(mut watched) = Watched::new().await else { return };
    watched.make("first", New::File).await;
    let root = watched.setup.dir.path().to_owned();
    std::fs::rename(root.join("dir"), root.join("moved")).unwrap();
    std::fs::create_dir(root.join("dir")).unwrap();
    assert_eq!(next(&mut watched.told).await, watched.setup.root);
    let Setup { smb, cred, .. } = &watched.setup;
    let lost = smb.make(cred, &watched.dir, "lost".as_ref(), New::File, SetAttr::default()).await;
    assert_eq!(lost.unwrap_err(), Error::Stale);
    assert!(!root.join("dir/lost").exists());
}
