//! Directories that are gone at the server while something waits for them: another client has
//! removed them, or the server has others in their place.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Mutex, OnceLock, Weak};

use larder_vfs::{Attr, Error, Held, Listed, Trouble};

use super::*;

/// What a client knows of where the server's directories are.
#[derive(Default)]
struct Seen {
    root: OnceLock<Handle>,
    places: Mutex<HashMap<Handle, (Handle, OsString)>>,
    files: Mutex<HashMap<Handle, Attr>>,
}

impl Held for Seen {
    fn held(&self, file: &Handle) -> Option<Attr> {
        self.files.lock().unwrap().get(file).copied()
    }

    fn held_name(&self, _dir: &Handle, _name: &OsStr) -> Option<Option<Found>> {
        None
    }

    fn last_seen(&self, file: &Handle) -> Option<(Handle, OsString)> {
        self.places.lock().unwrap().get(file).cloned()
    }

    fn is_root(&self, file: &Handle) -> bool {
        self.root.get() == Some(file)
    }

    fn bring<'a>(&'a self, _file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn held_entries(&self, _dir: &Handle) -> Option<Vec<Listed>> {
        None
    }
}

/// A machine, another client, and the server's directory `a/dir` with `old`, `moved` and `kept`.
struct Gone {
    rig: Rig,
    seen: Arc<Seen>,
    other: MemRemote,
    top: Handle,
    above: Handle,
    dir: Handle,
}

impl Gone {
    /// The machine knows where the directory is, or does not.
    async fn new(is_seen: bool) -> Gone {
        let rig = Rig::new().await;
        let (top, other) = (rig.top().await, rig.server.another_client());
        let made = async |dir: &Handle, name: &str, new| {
            let made = other.make(&user(), dir, OsStr::new(name), new, mode(0o755)).await;
            made.unwrap().found.handle
        };
        let above = made(&top, "a", New::Directory).await;
        let dir = made(&above, "dir", New::Directory).await;
        for name in ["old", "moved", "kept"] {
            made(&dir, name, New::FileExclusive).await;
        }
        let seen = Arc::<Seen>::default();
        if is_seen {
            seen.root.set(top.clone()).unwrap();
            let mut places = seen.places.lock().unwrap();
            places.insert(above.clone(), (top.clone(), "a".into()));
            places.insert(dir.clone(), (above.clone(), "dir".into()));
        }
        let gone = Gone { rig, seen, other, top, above, dir };
        gone.hold();
        gone
    }

    /// A mount that works without its server.
    fn offline(mut self) -> Gone {
        let (server, cache, clock) =
            (self.rig.server.clone(), self.rig.cache.clone(), self.rig.clock.clone());
        let licence = Licence { offline: true, ..Licence::default() };
        self.rig.names = Arc::new(Names::new(server, cache, clock, "here", licence));
        self.hold();
        self
    }

    fn hold(&self) {
        let weak: Weak<Seen> = Arc::downgrade(&self.seen);
        self.rig.deferring().held_by(weak);
    }

    /// What users do in the directory, and with it, while nothing goes to the server.
    async fn work(&self) {
        let (rig, dir, cred) = (&self.rig, &self.dir, user());
        let file = rig.made(dir, "file", New::FileExclusive).await.unwrap().handle;
        let sub = rig.made(dir, "sub", New::Directory).await.unwrap().handle;
        rig.made(&sub, "inner", New::FileExclusive).await.unwrap();
        rig.made(&sub, "link", New::Symlink("inner".into())).await.unwrap();
        rig.remote().link(&cred, &file, dir, "name".as_ref()).await.unwrap();
        rig.remove(dir, "old", Removal::File).await.unwrap();
        let (from, to) = ((dir, OsStr::new("moved")), (&self.top, OsStr::new("out")));
        rig.remote().rename(&cred, from, to).await.unwrap();
        assert_eq!(rig.server.calls("remove") + rig.server.calls("rename"), 0);
    }

    /// Another client removes the directory with all that it has there.
    async fn lose(&self) {
        for name in ["old", "moved", "kept"] {
            self.other.remove(&user(), &self.dir, name.as_ref(), Removal::File).await.unwrap();
        }
        let (cred, what) = (user(), Removal::Directory);
        self.other.remove(&cred, &self.above, "dir".as_ref(), what).await.unwrap();
    }

    /// What the server has under a path.
    async fn find(&self, path: &[&str]) -> Found {
        let mut found = self.other.root().await.unwrap();
        for name in path {
            let answer = self.other.lookup(&user(), &found.handle, OsStr::new(name)).await;
            found = answer.unwrap().found.unwrap();
        }
        found
    }

    /// What the server has, in which `conflict` stands for the time of one.
    async fn there(&self) -> Vec<String> {
        let time = format!("conflict-here-{}", self.rig.names.shared().clock.wall().sec);
        let all = tree(&self.other).await.into_keys();
        all.map(|path| path.replace(&time, "conflict")).collect()
    }

    fn met(&self) -> Vec<(ConflictKind, String)> {
        self.rig.conflicts().into_iter().map(|(kind, wanted, _)| (kind, wanted)).collect()
    }

    async fn replay(&self) -> Result<()> {
        self.rig.deferring().replay(None).await
    }

    fn waits_for_nothing(&self, what: &str) {
        let waiting = self.rig.deferring().deferred();
        assert!(waiting.is_empty(), "{what}: {waiting:?}");
    }
}

/// What is left of the work when the directory is gone.
const KEPT: [&str; 7] = [
    "/a",
    "/a/dir.conflict",
    "/a/dir.conflict/file",
    "/a/dir.conflict/name",
    "/a/dir.conflict/sub",
    "/a/dir.conflict/sub/inner",
    "/a/dir.conflict/sub/link",
];

#[tokio::test]
async fn what_was_made_in_a_directory_that_is_gone_is_kept_beside_it() {
    let gone = Gone::new(true).await;
    gone.work().await;
    gone.lose().await;
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it is there, or on record");
    assert_eq!(gone.there().await, KEPT);
    let met = [(ConflictKind::Gone, "out".into()), (ConflictKind::Gone, "dir".into())];
    assert_eq!(gone.met(), met);
    assert_eq!(tree(gone.rig.remote()).await, tree(&gone.other).await);
    // Once is enough.
    gone.replay().await.unwrap();
    assert_eq!((gone.there().await, gone.met().len()), (KEPT.map(String::from).into(), 2));
}

/// A caller who needs such a file at the server has it there.
#[tokio::test]
async fn bytes_go_to_where_their_file_is_kept() {
    let gone = Gone::new(true).await;
    let file = gone.rig.made(&gone.dir, "file", New::FileExclusive).await.unwrap().handle;
    gone.lose().await;
    let (remote, stable) = (gone.rig.remote(), larder_vfs::Stability::FileSync);
    remote.write(&user(), &file, None, 0, "bytes".into(), stable).await.unwrap();
    let attr = remote.getattr(&user(), &file).await.unwrap();
    assert_eq!(attr.size, 5, "it is the same file");
    assert_eq!(gone.there().await, &KEPT[..3]);
}

/// What was only removed there, or moved out of there, is no reason to make anything.
#[tokio::test]
async fn what_was_removed_in_a_directory_that_is_gone_waits_no_more() {
    for is_seen in [false, true] {
        let gone = Gone::new(is_seen).await;
        gone.rig.remove(&gone.dir, "old", Removal::File).await.unwrap();
        gone.lose().await;
        gone.replay().await.unwrap();
        gone.rig.is_quiet("a removal");
        assert_eq!(gone.there().await, ["/a"]);
    }
}

/// The server was restored from a backup: each name leads to another object.
#[tokio::test]
async fn what_waits_goes_on_in_the_directory_that_came_back() {
    let gone = Gone::new(true).await;
    gone.work().await;
    gone.lose().await;
    let made = async |dir: &Handle, name: &str, new| {
        let made = gone.other.make(&user(), dir, OsStr::new(name), new, mode(0o755)).await;
        made.unwrap().found.handle
    };
    let dir = made(&gone.above, "dir", New::Directory).await;
    for name in ["old", "kept", "file"] {
        made(&dir, name, New::FileExclusive).await;
    }
    let theirs = gone.other.lookup(&user(), &dir, "file".as_ref()).await.unwrap().found.unwrap();
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it went on");
    let there = gone.there().await;
    let wanted = [
        "/a",
        "/a/dir",
        "/a/dir/file",
        "/a/dir/file.conflict",
        "/a/dir/kept",
        "/a/dir/name",
        "/a/dir/old",
        "/a/dir/sub",
        "/a/dir/sub/inner",
        "/a/dir/sub/link",
    ];
    assert_eq!(there, wanted);
    let now = gone.other.lookup(&user(), &dir, "file".as_ref()).await.unwrap().found.unwrap();
    assert_eq!(now.handle, theirs.handle, "it has kept its name");
    // Nobody knows whether what came back is what was removed or moved.
    let mut met = gone.met();
    met.sort();
    let kinds: Vec<_> = met.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
    let wanted = [
        (ConflictKind::Made, "file"),
        (ConflictKind::Renamed, "out"),
        (ConflictKind::Removed, "old"),
    ];
    assert_eq!(kinds, wanted);
}

/// The whole path is gone, or only known in part; and a directory in which its user may make
/// nothing is not chosen.
#[tokio::test]
async fn it_is_kept_beside_the_first_directory_that_is_gone() {
    for (is_seen, is_writable) in [(true, true), (true, false), (false, true)] {
        let gone = Gone::new(is_seen).await;
        let file = gone.rig.made(&gone.dir, "file", New::FileExclusive).await.unwrap();
        gone.rig.made(&gone.above, "upper", New::FileExclusive).await.unwrap();
        gone.lose().await;
        let root = Cred::root();
        if is_writable {
            let removed = gone.other.remove(&root, &gone.top, "a".as_ref(), Removal::Directory);
            removed.await.unwrap();
        } else {
            let set = SetAttr { uid: Some(0), ..mode(0o755) };
            gone.other.setattr(&root, &gone.above, set, None).await.unwrap();
            gone.rig.names.shared().state().forget_known();
        }
        let replayed = gone.replay().await;
        let wanted: &[&str] = match (is_seen, is_writable) {
            (true, true) => {
                &["/a.conflict", "/a.conflict/dir", "/a.conflict/dir/file", "/a.conflict/upper"]
            }
            (true, false) => &["/a", "/dir.conflict", "/dir.conflict/file"],
            (false, _) => {
                &["/unknown.conflict", "/unknown.conflict/file", "/unknown.conflict/upper"]
            }
        };
        assert_eq!(gone.there().await, wanted);
        // What is refused waits on, with its reason.
        assert_eq!(replayed.is_ok(), is_writable, "{replayed:?}");
        assert_eq!(gone.rig.deferring().deferred().len(), usize::from(!is_writable));
        let found = gone.rig.remote().getattr(&user(), &file.handle).await.unwrap();
        assert_eq!(found.fileid, file.attr.fileid, "it is the same file");
    }
}

/// A directory that was made here, that the server has had, and that is gone: with it, what waits.
#[tokio::test]
async fn a_directory_that_was_made_here_may_go_too() {
    let gone = Gone::new(true).await;
    let (rig, cred) = (&gone.rig, user());
    let mine = rig.made(&gone.above, "mine", New::Directory).await.unwrap().handle;
    gone.replay().await.unwrap();
    rig.made(&mine, "file", New::FileExclusive).await.unwrap();
    let what = Removal::Directory;
    gone.other.remove(&cred, &gone.above, "mine".as_ref(), what).await.unwrap();
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it is there");
    let there = gone.there().await;
    assert!(there.contains(&"/a/mine.conflict/file".to_owned()), "{there:?}");
    assert_eq!(gone.met(), [(ConflictKind::Gone, "mine".into())]);
    assert_eq!(rig.remote().getattr(&cred, &mine).await.map(drop), Err(Error::Stale));
    // It is made again here, and another client removes it again.
    let again = rig.made(&gone.above, "mine", New::Directory).await.unwrap().handle;
    assert_ne!(again, mine);
}

/// A file that is gone gets no further name.
#[tokio::test]
async fn another_name_of_a_file_that_is_gone_is_on_record() {
    let gone = Gone::new(true).await;
    let (rig, cred) = (&gone.rig, user());
    let kept = gone.other.lookup(&cred, &gone.dir, "kept".as_ref()).await.unwrap().found.unwrap();
    rig.remote().link(&cred, &kept.handle, &gone.top, "name".as_ref()).await.unwrap();
    gone.other.remove(&cred, &gone.dir, "kept".as_ref(), Removal::File).await.unwrap();
    gone.replay().await.unwrap();
    gone.waits_for_nothing("there is no such file");
    assert_eq!(gone.met(), [(ConflictKind::Gone, "name".into())]);
}

/// Something of the server's that was moved into the directory is moved to where that is kept.
#[tokio::test]
async fn what_was_moved_into_a_directory_that_is_gone_is_kept() {
    let gone = Gone::new(true).await;
    let cred = user();
    let made = gone.other.make(&cred, &gone.above, "x".as_ref(), New::FileExclusive, mode(0o644));
    let file = made.await.unwrap().found.handle;
    let (from, to) = ((&gone.above, OsStr::new("x")), (&gone.dir, OsStr::new("in")));
    gone.rig.remote().rename(&cred, from, to).await.unwrap();
    gone.lose().await;
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it is moved");
    assert_eq!(gone.there().await, ["/a", "/a/dir.conflict", "/a/dir.conflict/in"]);
    assert_eq!(gone.other.getattr(&cred, &file).await.unwrap().nlink, 1, "it is that file");
}

/// What depends on something in the directory waits no longer than that, whatever was done first.
#[tokio::test]
async fn what_depends_on_a_directory_that_is_gone_waits_no_more() {
    let gone = Gone::new(true).await;
    let (rig, cred) = (&gone.rig, user());
    let made = gone.other.make(&cred, &gone.above, "x".as_ref(), New::FileExclusive, mode(0o644));
    made.await.unwrap();
    let [x, y, z] = ["x", "y", "in"].map(OsStr::new);
    rig.remote().rename(&cred, (&gone.above, x), (&gone.above, y)).await.unwrap();
    let sub = rig.made(&gone.dir, "sub", New::Directory).await.unwrap().handle;
    rig.remote().rename(&cred, (&gone.above, y), (&sub, z)).await.unwrap();
    gone.lose().await;
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it is moved");
    let wanted = ["/a", "/a/dir.conflict", "/a/dir.conflict/sub", "/a/dir.conflict/sub/in"];
    assert_eq!(gone.there().await, wanted);
}

/// Two directories are gone, of which one was in the other: so it is with what is kept.
#[tokio::test]
async fn directories_that_are_gone_together_are_kept_together() {
    let gone = Gone::new(true).await;
    let (rig, cred, what) = (&gone.rig, user(), Removal::Directory);
    let mine = rig.made(&gone.dir, "mine", New::Directory).await.unwrap().handle;
    gone.replay().await.unwrap();
    rig.made(&mine, "inner", New::FileExclusive).await.unwrap();
    rig.made(&gone.dir, "outer", New::FileExclusive).await.unwrap();
    gone.other.remove(&cred, &gone.dir, "mine".as_ref(), what).await.unwrap();
    gone.lose().await;
    gone.replay().await.unwrap();
    gone.waits_for_nothing("all is there");
    let wanted = [
        "/a",
        "/a/dir.conflict",
        "/a/dir.conflict/mine",
        "/a/dir.conflict/mine/inner",
        "/a/dir.conflict/outer",
    ];
    assert_eq!(gone.there().await, wanted);
    assert_eq!(gone.met(), [(ConflictKind::Gone, "dir".into())]);
}

/// Silence, refusals and a server that does not know its root are no proof.
#[tokio::test]
async fn only_the_servers_word_counts() {
    let gone = Gone::new(true).await;
    gone.work().await;
    let waiting = gone.rig.deferring().deferred().len();
    // A server whose file system is not mounted: everything is stale, its root, too.
    for error in [Error::Stale, Error::AccessDenied, Error::Io] {
        gone.rig.server.fail_next(1000, error);
        assert!(gone.replay().await.is_err(), "{error}");
        assert_eq!(gone.met(), [], "{error}");
        assert_eq!(gone.rig.deferring().deferred().len(), waiting, "{error}");
        while gone.rig.server.root().await.is_err() {}
    }
    gone.replay().await.unwrap();
    gone.rig.is_quiet("the server has everything as it was");
}

/// The server was restored with all its files under other handles, its root's, too, and the client
/// has not noticed.
#[tokio::test]
async fn what_waits_goes_on_below_another_root() {
    let gone = Gone::new(true).await;
    let file = gone.rig.made(&gone.dir, "file", New::FileExclusive).await.unwrap();
    gone.rig.made(&gone.top, "top", New::FileExclusive).await.unwrap();
    gone.rig.server.give_new_handles();
    gone.replay().await.unwrap();
    gone.rig.is_quiet("each directory has its place");
    let there = gone.there().await;
    assert_eq!(
        there,
        ["/a", "/a/dir", "/a/dir/file", "/a/dir/kept", "/a/dir/moved", "/a/dir/old", "/top"]
    );
    let attr = gone.rig.remote().getattr(&user(), &file.handle).await.unwrap();
    assert_eq!(attr.fileid, file.attr.fileid, "it is the same file");
}

/// Users find the directory that came back, and work in it, while names wait in the other one.
#[tokio::test]
async fn names_that_meet_in_the_directory_that_came_back_are_both_kept() {
    let gone = Gone::new(true).await;
    gone.work().await;
    gone.lose().await;
    let cred = user();
    let made = gone.other.make(&cred, &gone.above, "dir".as_ref(), New::Directory, mode(0o755));
    let dir = made.await.unwrap().found.handle;
    let made = gone.other.make(&cred, &dir, "old".as_ref(), New::FileExclusive, mode(0o755));
    made.await.unwrap();
    for name in ["file", "sub", "name"] {
        gone.rig.made(&dir, name, New::FileExclusive).await.unwrap();
    }
    gone.rig.remove(&dir, "old", Removal::File).await.unwrap();
    gone.replay().await.unwrap();
    gone.waits_for_nothing("it went on");
    let wanted = [
        "/a",
        "/a/dir",
        "/a/dir/file",
        "/a/dir/file.conflict",
        "/a/dir/name",
        "/a/dir/name.conflict",
        "/a/dir/sub",
        "/a/dir/sub.conflict",
        "/a/dir/sub.conflict/inner",
        "/a/dir/sub.conflict/link",
    ];
    assert_eq!(gone.there().await, wanted);
}

/// The client knows that a directory has another handle.
#[tokio::test]
async fn what_waits_follows_the_handle_of_its_directory() {
    let gone = Gone::new(true).await;
    gone.work().await;
    gone.rig.server.give_new_handles();
    let find = async |path: &[&str]| gone.find(path).await.handle;
    let (top, above, dir) = (find(&[]).await, find(&["a"]).await, find(&["a", "dir"]).await);
    for (before, now) in [(&gone.top, &top), (&gone.above, &above), (&gone.dir, &dir)] {
        gone.rig.deferring().found_again(before, now);
    }
    for name in ["old", "moved"] {
        let handle = find(&["a", "dir", name]).await;
        let known = {
            let state = gone.rig.names.shared().state();
            let taken = state.journal().taken();
            let dir = crate::object::Dir::Server(dir.clone());
            taken.get(taken.from(&dir, OsStr::new(name)).unwrap()).unwrap().handle.clone()
        };
        gone.rig.deferring().found_again(&known, &handle);
    }
    gone.replay().await.unwrap();
    gone.rig.is_quiet("all of it is as it was asked for");
    let there = gone.there().await;
    let wanted = [
        "/a",
        "/a/dir",
        "/a/dir/file",
        "/a/dir/kept",
        "/a/dir/name",
        "/a/dir/sub",
        "/a/dir/sub/inner",
        "/a/dir/sub/link",
        "/out",
    ];
    assert_eq!(there, wanted);
}

/// Attributes wait for a file of the server's that has another handle when they are due: it is
/// found by its name, with silence after each call and if the first request was carried out. What
/// another client has changed, or put in its place, keeps its own.
#[tokio::test]
async fn attributes_are_set_on_a_file_that_came_back_by_another_handle() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Came {
        Back,
        Changed,
        Replaced,
        /// Under a name that nobody here has seen.
        Elsewhere,
    }
    for came in [Came::Back, Came::Changed, Came::Replaced, Came::Elsewhere] {
        let mut after = 0;
        loop {
            let gone = Gone::new(true).await.offline();
            let (cred, rig) = (Cred::root(), &gone.rig);
            let kept = gone.find(&["a", "dir", "kept"]).await;
            let place = (gone.dir.clone(), "kept".into());
            gone.seen.places.lock().unwrap().insert(kept.handle.clone(), place);
            gone.seen.files.lock().unwrap().insert(kept.handle.clone(), kept.attr);
            rig.server.time_out();
            let set = rig.deferring().set_here(&cred, &kept.handle, &mode(0o600), None);
            set.unwrap().unwrap();
            rig.server.reconnect();
            let put = async |name: &str, to: &str| {
                let [from, to] = [name, to].map(|name| (&gone.dir, OsStr::new(name)));
                gone.other.rename(&cred, from, to).await.unwrap()
            };
            match came {
                Came::Back => {}
                Came::Changed => {
                    gone.other.setattr(&cred, &kept.handle, mode(0o640), None).await.unwrap();
                }
                Came::Replaced => drop(put("old", "kept").await),
                Came::Elsewhere => drop(put("kept", "elsewhere").await),
            }
            gone.rig.server.give_new_handles();
            gone.rig.server.trouble_after(after, Trouble::Unanswered);
            let first = gone.replay().await;
            let is_over = gone.rig.server.is_trouble_to_come();
            assert!(is_over || first.is_err(), "{came:?} {after}");
            gone.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            gone.replay().await.unwrap();
            gone.waits_for_nothing("it is set or given up");
            let name = if came == Came::Elsewhere { "elsewhere" } else { "kept" };
            let there = gone.find(&["a", "dir", name]).await.attr.mode;
            let wanted = match came {
                Came::Back => 0o600,
                Came::Changed => 0o640,
                Came::Replaced | Came::Elsewhere => 0o755,
            };
            assert_eq!(there, wanted, "{came:?} {after}");
            let is_given_up = came != Came::Back;
            assert_eq!(gone.met().len(), usize::from(is_given_up), "{came:?} {after}");
            if is_over {
                assert!(after > 3, "{came:?}: {after} calls");
                break;
            }
            after += 1;
        }
    }
}

/// The process dies, or the machine crashes, after any call of the replay, which may have been
/// carried out: in the end everything is there once, and on record once.
#[tokio::test]
async fn whenever_a_process_dies_what_is_kept_beside_is_there_once() {
    let mut is_over = false;
    let mut after = 0;
    while !is_over {
        for image in [None, Some(Image::Synced), Some(Image::Torn(after))] {
            let gone = Gone::new(true).await;
            gone.work().await;
            gone.lose().await;
            gone.rig.deferring().keep().await.unwrap();
            gone.rig.server.trouble_after(after, Trouble::Unanswered);
            let _ = gone.replay().await;
            is_over = gone.rig.server.is_trouble_to_come();
            gone.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            let Gone { rig, seen, other, top, above, dir } = gone;
            let rig = rig.crash(image);
            let gone = Gone { rig, seen, other, top, above, dir };
            gone.hold();
            gone.replay().await.unwrap();
            gone.waits_for_nothing("after a crash");
            assert_eq!(gone.there().await, KEPT, "{after} {image:?}");
            assert_eq!(gone.met().len(), 2, "{after} {image:?}: {:?}", gone.met());
        }
        after += 1;
    }
    assert!(after > 10, "{after} calls");
}
