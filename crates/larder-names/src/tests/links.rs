//! Other names of files, of those that the server has and of those that it lacks.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_vfs::{Attr, Error, Held, Listed, RemoteLimits, Trouble};

use super::*;

/// A machine, a file `file` that the server has or lacks, and one call-free moment after that.
struct Links {
    rig: Rig,
    top: Handle,
    file: Handle,
}

/// Whether the server has the file.
const STATES: [bool; 2] = [false, true];

impl Links {
    async fn new(is_there: bool) -> Links {
        Links::on(Rig::new().await, is_there).await
    }

    async fn on(rig: Rig, is_there: bool) -> Links {
        let top = rig.top().await;
        let file = rig.made(&top, "file", New::FileExclusive).await.unwrap().handle;
        rig.made(&top, "dir", New::Directory).await.unwrap();
        if is_there {
            rig.deferring().replay(None).await.unwrap();
        }
        rig.server.reset_calls();
        Links { rig, top, file }
    }

    async fn link(&self, name: &str) -> Result<()> {
        let user = user();
        let linked = self.rig.remote().link(&user, &self.file, &self.top, name.as_ref());
        linked.await.map(drop)
    }

    async fn remove(&self, name: &str) {
        self.rig.remove(&self.top, name, Removal::File).await.unwrap();
    }

    async fn rename(&self, from: &str, to: &str) {
        let (from, to) = ((&self.top, OsStr::new(from)), (&self.top, OsStr::new(to)));
        self.rig.remote().rename(&user(), from, to).await.unwrap();
    }

    /// The files below the root, with the first path and the number of the names of each.
    async fn files(&self) -> Vec<(String, String, u32)> {
        let here = files(self.rig.remote()).await;
        self.rig.server.reset_calls();
        here
    }

    /// All of it is made at the server, where nothing else is, and nothing shows here.
    async fn replay(&self) {
        let before = self.files().await;
        self.rig.deferring().replay(None).await.unwrap();
        assert_eq!(files(self.rig.remote()).await, before);
        assert_eq!(files(&*self.rig.server).await, before);
        self.rig.is_quiet("all of it is there");
    }
}

async fn files(remote: &dyn Remote) -> Vec<(String, String, u32)> {
    let all = tree(remote).await.into_iter();
    let files = all.filter(|(_, leaf)| leaf.kind == Kind::File);
    files.map(|(path, leaf)| (path, leaf.first, leaf.links)).collect()
}

fn of_one(names: &[&str]) -> Vec<(String, String, u32)> {
    let count = u32::try_from(names.len()).unwrap();
    names.iter().map(|name| ((*name).to_owned(), names[0].to_owned(), count)).collect()
}

/// The calls that change something at the server.
fn changes(rig: &Rig) -> u64 {
    ["make", "link", "remove", "rename", "setattr"].iter().map(|name| rig.server.calls(name)).sum()
}

/// Every name has the file's handle, attributes and number of names, before and after the server
/// has it; and one that is removed in time is never asked for.
#[tokio::test]
async fn a_name_that_a_file_gets_and_loses_in_time_costs_no_call() {
    for is_there in STATES {
        let links = Links::new(is_there).await;
        links.link("other").await.unwrap();
        links.link("third").await.unwrap();
        links.rename("third", "last").await;
        assert_eq!(links.link("last").await, Err(Error::Exists));
        let linked = links.rig.find(&links.top, "last").await.unwrap();
        assert_eq!((&linked.handle, linked.attr.nlink), (&links.file, 3));
        let attr = links.rig.remote().getattr(&user(), &links.file).await.unwrap();
        assert_eq!(attr, linked.attr);
        assert_eq!(links.files().await, of_one(&["/file", "/last", "/other"]));
        links.remove("other").await;
        links.remove("last").await;
        assert_eq!(links.files().await, of_one(&["/file"]));
        assert_eq!(changes(&links.rig), 0, "{is_there}");
        links.link("other").await.unwrap();
        links.replay().await;
        assert_eq!(links.rig.server.calls("link"), 1);
        assert_eq!(links.rig.find(&links.top, "other").await.unwrap().handle, links.file);
    }
}

/// A file that loses its first name is made, or stays, under the ones that are left; without any it
/// is gone.
#[tokio::test]
async fn a_file_outlives_its_first_name() {
    for is_there in STATES {
        for dies in [false, true] {
            let mut links = Links::new(is_there).await;
            links.link("other").await.unwrap();
            links.link("third").await.unwrap();
            links.remove("file").await;
            assert_eq!(links.files().await, of_one(&["/other", "/third"]));
            if dies {
                links.rig.deferring().keep().await.unwrap();
                links.rig = links.rig.crash(Some(Image::Synced));
                links.rig.be_seen().await;
                assert_eq!(links.files().await, of_one(&["/other", "/third"]));
            }
            assert!(!links.rig.deferring().is_removed(&links.file));
            links.replay().await;
            links.remove("third").await;
            links.remove("other").await;
            let gone = links.rig.remote().getattr(&user(), &links.file).await;
            assert_eq!(gone.map(drop), Err(Error::Stale), "{is_there} {dies}");
            links.replay().await;
        }
    }
}

/// What programs do with links: a copy of the old one beside the new one, a lock that is a link,
/// names that are exchanged, a name that comes back.
#[tokio::test]
async fn names_that_are_taken_and_given_are_at_the_server_as_here() {
    for is_there in STATES {
        let links = Links::new(is_there).await;
        let made = async |name: &str| {
            links.rig.made(&links.top, name, New::FileExclusive).await.unwrap().handle
        };
        // A backup, and another file in the place of the first one.
        links.link("backup").await.unwrap();
        let new = made("new").await;
        links.rename("new", "file").await;
        links.replay().await;
        assert_eq!(links.rig.find(&links.top, "file").await.unwrap().handle, new);
        // A name is exchanged for another file's by links alone.
        let name = |name: &'static str| OsStr::new(name);
        for (file, at) in [(&links.file, "one"), (&new, "two")] {
            links.rig.remote().link(&user(), file, &links.top, name(at)).await.unwrap();
        }
        links.remove("file").await;
        links.remove("backup").await;
        links.rename("one", "file").await;
        links.rename("two", "backup").await;
        links.replay().await;
        assert_eq!(links.rig.find(&links.top, "file").await.unwrap().handle, links.file);
        // A name that is lost and given again is as it was.
        links.link("third").await.unwrap();
        links.remove("file").await;
        links.rename("third", "file").await;
        links.rig.server.reset_calls();
        links.rig.deferring().replay(None).await.unwrap();
        assert_eq!(changes(&links.rig), 0);
        // A link in the place of something else.
        made("old").await;
        links.replay().await;
        links.link("third").await.unwrap();
        links.rename("third", "old").await;
        links.replay().await;
        assert_eq!(links.rig.server.calls("link"), 1);
    }
}

/// Whichever answer is lost, and whoever goes on: each name is made once, and no temporary one is
/// left.
#[tokio::test]
async fn a_lost_answer_leaves_each_name_once() {
    let mut losses = 0;
    for case in 0..8 {
        let (is_there, replaces, dies) = (case & 1 == 1, case & 2 == 2, case & 4 == 4);
        for count in 0.. {
            let mut links = Links::new(is_there).await;
            if replaces {
                links.rig.made(&links.top, "other", New::FileExclusive).await.unwrap();
                links.rig.deferring().replay(None).await.unwrap();
            }
            links.link("new").await.unwrap();
            links.rename("new", "other").await;
            links.remove("file").await;
            links.rig.server.trouble_after(count, Trouble::Unanswered);
            let _ = links.rig.deferring().replay(None).await;
            let was_lost = !links.rig.server.is_trouble_to_come();
            links.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            if dies {
                links.rig = links.rig.crash(Some(Image::Synced));
            }
            links.rig.deferring().replay(None).await.unwrap();
            for remote in [links.rig.remote(), &*links.rig.server] {
                assert_eq!(files(remote).await, of_one(&["/other"]), "{case} {count}");
            }
            if !was_lost {
                break;
            }
            losses += 1;
        }
    }
    assert!(losses > 20, "{losses}");
}

/// However far the server has got with a link of which it has not said whether it made it, the
/// number of names is the one that there are.
#[tokio::test]
async fn the_number_of_names_is_right_while_an_answer_is_out() {
    let mut losses = 0;
    for is_there in STATES {
        for count in 0.. {
            let links = Links::new(is_there).await;
            links.link("one").await.unwrap();
            links.link("two").await.unwrap();
            let before = links.files().await;
            links.rig.server.trouble_after(count, Trouble::Unanswered);
            let _ = links.rig.deferring().replay(None).await;
            let was_lost = !links.rig.server.is_trouble_to_come();
            links.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            assert_eq!(links.files().await, before, "{is_there} {count}");
            links.replay().await;
            if !was_lost {
                break;
            }
            losses += 1;
        }
    }
    assert!(losses > 4, "{losses}");
}

/// Another client has made the name: both are kept, and a user is told until he changes it.
#[tokio::test]
async fn a_link_whose_name_another_client_has_made_is_kept_beside_it() {
    for is_there in STATES {
        let links = Links::new(is_there).await;
        links.link("name").await.unwrap();
        let other = links.rig.server.another_client();
        let user = user();
        let theirs = other.make(&user, &links.top, "name".as_ref(), New::File, mode(0o644));
        let theirs = theirs.await.unwrap().found.handle;
        links.rig.deferring().replay(None).await.unwrap();
        let found = links.rig.find(&links.top, "name").await.unwrap();
        assert_eq!(found.handle, theirs);
        let told = links.rig.conflicts();
        let [(ConflictKind::Linked, wanted, kept)] = &told[..] else { panic!("{told:?}") };
        assert!(wanted == "name" && kept.starts_with("name.conflict-here-"), "{told:?}");
        links.rig.cache.clear_conflicts(None);
        assert_eq!(links.rig.find(&links.top, kept).await.unwrap().handle, links.file);
        links.rename(kept, "mine").await;
        links.replay().await;
        assert_eq!(links.rig.find(&links.top, "mine").await.unwrap().handle, links.file);
    }
}

/// A name that is taken at the server at once, since its class demands that, does not take the file
/// along that has another name here only.
#[tokio::test]
async fn a_file_gets_its_other_names_before_the_server_takes_one() {
    for replaces in [false, true] {
        let links = Links::new(true).await;
        links.link("other").await.unwrap();
        let name = OsStr::new("file");
        if replaces {
            let new = OsStr::new("new");
            let set = mode(0o644);
            links.rig.names.make(&user(), &links.top, new, New::File, set).await.unwrap();
            let (from, to) = ((&links.top, new), (&links.top, name));
            links.rig.names.rename(&user(), from, to).await.unwrap();
        } else {
            links.rig.names.remove(&user(), &links.top, name, Removal::File).await.unwrap();
        }
        let found = links.rig.server.lookup(&user(), &links.top, "other".as_ref()).await.unwrap();
        assert_eq!(found.found.unwrap().attr.nlink, 1);
        links.replay().await;
    }
}

/// A server without links is asked, and says so.
#[tokio::test]
async fn where_there_are_no_links_none_is_made_here() {
    let limits = RemoteLimits { links: false, ..MemRemote::new().limits() };
    let rig = Rig::of(MemRemote::with_limits(limits), SimDisk::new()).await;
    let links = Links::on(rig, false).await;
    assert_eq!(links.link("other").await, Err(Error::NotSupported));
    assert!(links.rig.find(&links.top, "other").await.is_none());
}

/// A file that was made here loses all its names, of which the server has two or one: it is gone to
/// its client before the server hears of that, and afterwards, and in the next process.
#[tokio::test]
async fn a_file_that_has_lost_all_its_names_is_removed() {
    for (is_there, dies) in STATES.into_iter().flat_map(|there| [(there, false), (there, true)]) {
        let mut links = Links::new(true).await;
        links.link("link").await.unwrap();
        if is_there {
            links.rig.deferring().replay(None).await.unwrap();
        }
        links.remove("file").await;
        assert!(!links.rig.deferring().is_removed(&links.file), "{is_there} {dies}");
        links.remove("link").await;
        if dies {
            links.rig = links.rig.crash(None);
        }
        assert!(links.rig.deferring().is_removed(&links.file), "{is_there} {dies}");
        links.rig.deferring().replay(None).await.unwrap();
        assert!(links.rig.deferring().is_removed(&links.file), "{is_there} {dies}, replayed");
    }
}

/// A caller renames `link` to `old` while a file's bytes are sent, before it gets that name.
struct Renames {
    names: Weak<Names>,
    top: Handle,
    is_done: AtomicBool,
}

impl Held for Renames {
    fn held(&self, _file: &Handle) -> Option<Attr> {
        None
    }

    fn held_name(&self, _dir: &Handle, _name: &OsStr) -> Option<Option<Found>> {
        None
    }

    fn bring<'a>(&'a self, _file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        Box::pin(async move {
            if self.is_done.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            let names = self.names.upgrade().expect("a replay needs it");
            let here = names.deferring().expect("it defers").names();
            let (from, to) = ((&self.top, OsStr::new("link")), (&self.top, OsStr::new("old")));
            here.rename(&user(), from, to).await.map(drop)
        })
    }

    fn bring_limited<'a>(&'a self, file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        self.bring(file)
    }

    fn held_entries(&self, _dir: &Handle) -> Option<Vec<Listed>> {
        None
    }
}

/// A file is about to get a name at the server, and a caller renames that meanwhile, over a file
/// that the server has: that file is replaced, and no conflict. The name was free before, or not.
#[tokio::test]
async fn a_name_that_is_renamed_before_it_is_made_replaces_what_was_there() {
    for was_free in [true, false] {
        let rig = Rig::new().await;
        let top = rig.top().await;
        rig.made(&top, "old", New::FileExclusive).await.unwrap();
        if !was_free {
            rig.made(&top, "link", New::FileExclusive).await.unwrap();
        }
        let links = Links::on(rig, true).await;
        if !was_free {
            links.remove("link").await;
        }
        links.link("link").await.unwrap();
        let names = Arc::downgrade(&links.rig.names);
        let renames = Renames { names, top: links.top.clone(), is_done: AtomicBool::new(false) };
        let renames = Arc::new(renames);
        let weak: Weak<Renames> = Arc::downgrade(&renames);
        links.rig.deferring().held_by(weak);
        let replaying = links.rig.deferring().replay(None);
        let replayed = tokio::time::timeout(Duration::from_secs(120), replaying).await;
        replayed.expect("the rename waits for nothing").unwrap();
        links.rig.deferring().replay(None).await.unwrap();
        assert!(renames.is_done.load(Ordering::Relaxed), "{was_free}");
        links.rig.is_quiet(&format!("{was_free}"));
        let file = |name: &str| (format!("/{name}"), "/file".to_owned(), 2);
        assert_eq!(files(&*links.rig.server).await, [file("file"), file("old")], "{was_free}");
    }
}
