//! Names under the server's leases on directories: another client looks only into directories that
//! were recalled before, as the metadata server sees to it.

use std::sync::Weak;

use larder_vfs::{Error, LeaseHandled, Watcher};

use super::*;
use crate::leased::WAITING_IN_DIR_MAX;

/// A client that trusts nothing.
struct Nobody;

impl Watcher for Nobody {
    fn distrust<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }
}

/// A machine with leases, and another client.
struct Leased {
    rig: Rig,
    other: MemRemote,
    top: Handle,
    _nobody: Arc<Nobody>,
}

impl Leased {
    async fn new() -> Leased {
        let mut rig = Rig::on(SimDisk::new()).await;
        let licence = Licence { leased: true, ..Licence::default() };
        let (server, cache, clock) = (rig.server.clone(), rig.cache.clone(), rig.clock.clone());
        rig.names = Arc::new(Names::new(server, cache, clock, "here", licence));
        let nobody = Arc::new(Nobody);
        let watcher: Weak<Nobody> = Arc::downgrade(&nobody);
        rig.names.watch(watcher);
        rig.server.set_excludes(true);
        let (other, top) = (rig.server.another_client(), rig.top().await);
        rig.be_seen().await;
        let leased = Leased { rig, other, top, _nobody: nobody };
        leased.rig.server.recall(&leased.top).await;
        leased.rig.server.reset_calls();
        leased
    }

    /// The names that the other client sees in a directory, which it has recalled.
    async fn seen(&self, dir: &Handle) -> Vec<String> {
        self.rig.server.recall(dir).await;
        names_in(&self.other, dir).await
    }

    /// What the other client finds under a name.
    async fn found(&self, dir: &Handle, name: &str) -> Handle {
        let found = self.other.lookup(&user(), dir, name.as_ref()).await.unwrap().found;
        found.unwrap().handle
    }

    async fn made(&self, dir: &Handle, name: &str) -> Handle {
        self.rig.made(dir, name, New::FileExclusive).await.unwrap().handle
    }

    async fn makes_there(&self, dir: &Handle, name: &str, new: New) -> Result<Handle> {
        self.rig.server.recall(dir).await;
        let made = self.other.make(&user(), dir, name.as_ref(), new, mode(0o755)).await;
        made.map(|made| made.found.handle)
    }

    /// The server's handle of what it has under a name.
    async fn at_server(&self, dir: &Handle, name: &str) -> Option<Handle> {
        let found = self.other.lookup(&user(), dir, name.as_ref()).await.unwrap().found;
        found.map(|found| found.handle)
    }
}

async fn names_in(remote: &dyn Remote, dir: &Handle) -> Vec<String> {
    let listed = remote.readdir(&user(), dir, Cookie::default(), 1 << 20).await.unwrap();
    assert!(listed.eof);
    let mut names: Vec<String> =
        listed.entries.iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    names
}

/// Under a lease that is asked for once, changes cost no call; who looks into the directory sees
/// all of them. If nobody has changed it, its names are known when the lease is there again.
#[tokio::test]
async fn whoever_looks_into_a_directory_sees_what_was_made_here() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    leased.made(top, "first").await;
    assert_eq!(rig.server.calls("exclude"), 1);
    rig.server.reset_calls();
    for name in ["a", "b", "c"] {
        leased.made(top, name).await;
    }
    rig.remove(top, "b", Removal::File).await.unwrap();
    let (from, to) = (OsStr::new("c"), OsStr::new("d"));
    rig.remote().rename(&user(), (top, from), (top, to)).await.unwrap();
    assert_eq!(rig.server.calls_total(), 0);
    assert_eq!(names_in(&leased.other, top).await.len(), 0);
    assert_eq!(leased.seen(top).await, ["a", "d", "first"]);
    assert!(!rig.server.is_excluding(top));
    rig.server.reset_calls();
    leased.made(top, "e").await;
    assert_eq!((rig.server.calls("exclude"), rig.server.calls("readdir")), (1, 0));
    assert_eq!(rig.server.calls("make") + rig.server.calls("lookup"), 0);
    assert_eq!(leased.seen(top).await, ["a", "d", "e", "first"]);
}

/// What another client made after it had recalled the lease is found before a name is made here.
#[tokio::test]
async fn what_another_client_made_meanwhile_is_known() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    leased.made(top, "a").await;
    leased.makes_there(top, "x", New::FileExclusive).await.unwrap();
    assert!(rig.find(top, "x").await.is_some(), "without a lease the server is asked");
    let again = rig.made(top, "x", New::FileExclusive).await.map(drop);
    assert_eq!(again, Err(Error::Exists));
    assert_eq!(leased.makes_there(top, "a", New::FileExclusive).await, Err(Error::Exists));
    leased.made(top, "b").await;
    assert!(rig.server.is_excluding(top));
    assert_eq!(rig.remove(top, "x", Removal::File).await, Ok(()));
    assert!(rig.find(top, "x").await.is_none());
    assert_eq!(leased.seen(top).await, ["a", "b"]);
}

/// A server that gives no lease gets each change at once.
#[tokio::test]
async fn without_a_lease_names_are_made_at_the_server() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    rig.server.set_excludes(false);
    leased.made(top, "a").await;
    assert_eq!(names_in(&leased.other, top).await, ["a"]);
    rig.remove(top, "a", Removal::File).await.unwrap();
    assert_eq!(names_in(&leased.other, top).await.len(), 0);
    rig.is_quiet("all of it is there");
}

/// Between the recall and its end changes are made at the server: the other client, which waits for
/// that end, sees them.
#[tokio::test]
async fn while_a_lease_is_returned_changes_go_to_the_server() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    leased.made(top, "a").await;
    rig.server.hold(Some("make"));
    let mut recall = Box::pin(rig.server.recall(top));
    assert!(futures_poll(&mut recall).await.is_none(), "it waits for the server");
    let mut making = Box::pin(rig.made(top, "b", New::FileExclusive));
    assert!(futures_poll(&mut making).await.is_none(), "so does this");
    rig.server.hold(None);
    let (made, ()) = tokio::join!(making, recall);
    made.unwrap();
    assert_eq!(names_in(&leased.other, top).await, ["a", "b"]);
    rig.is_quiet("all of it is there");
    leased.made(top, "c").await;
    assert!(rig.server.is_excluding(top), "the next change asks again");
}

/// The mount takes its server for silent, since a call waits long for another client: what waits is
/// made there nevertheless before a lease is returned.
#[tokio::test]
async fn a_lease_is_not_returned_early_by_a_mount_that_waits_for_its_server() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    leased.made(top, "a").await;
    rig.server.cut_off();
    let mut recall = Box::pin(rig.server.recall(top));
    assert!(futures_poll(&mut recall).await.is_none(), "it waits for the server");
    rig.server.reconnect();
    recall.await;
    assert_eq!(names_in(&leased.other, top).await, ["a"]);
}

/// What waits when the session is lost is made at the server. A name that somebody has made there
/// meanwhile is kept, and ours beside it.
#[tokio::test]
async fn what_waits_when_the_session_is_lost_is_made_at_the_server() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    leased.made(top, "a").await;
    leased.made(top, "b").await;
    let (cred, name) = (user(), OsStr::new("a"));
    let theirs = leased.other.make(&cred, top, name, New::FileExclusive, mode(0o700));
    let theirs = theirs.await.unwrap().found.handle;
    rig.server.lose_exclusion().await;
    assert_eq!(leased.at_server(top, "a").await, Some(theirs));
    let names = names_in(&leased.other, top).await;
    assert!(names.len() == 3 && names[1].starts_with("a.conflict-here-"), "{names:?}");
    leased.made(top, "c").await;
    assert!(rig.server.is_excluding(top));
}

/// A directory that is made at the server while something waits in it is leased before its name is
/// there to be found.
#[tokio::test]
async fn a_directory_in_which_something_waits_is_leased_when_it_is_made() {
    for gives in [true, false] {
        let leased = Leased::new().await;
        let (rig, top) = (&leased.rig, &leased.top);
        let dir = rig.made(top, "dir", New::Directory).await.unwrap().handle;
        let inner = rig.made(&dir, "inner", New::Directory).await.unwrap().handle;
        leased.made(&inner, "file").await;
        rig.made(&dir, "empty", New::Directory).await.unwrap();
        rig.server.set_excludes(gives);
        assert_eq!(leased.seen(top).await, ["dir"]);
        let there = leased.at_server(top, "dir").await.unwrap();
        assert_eq!(rig.server.is_excluding(&there), gives);
        let expected: &[&str] = if gives { &[] } else { &["empty", "inner"] };
        assert_eq!(names_in(&leased.other, &there).await, expected);
        assert_eq!(leased.seen(&there).await, ["empty", "inner"]);
        let empty = leased.at_server(&there, "empty").await.unwrap();
        assert!(!rig.server.is_excluding(&empty), "there is nothing to hide");
        let inner = leased.at_server(&there, "inner").await.unwrap();
        assert_eq!(leased.seen(&inner).await, ["file"]);
        assert_eq!(names_in(rig.remote(), &dir).await, ["empty", "inner"]);
    }
}

/// A directory is removed here, or replaced, under its own lease: another client that knows it
/// makes nothing in it any more.
#[tokio::test]
async fn nothing_is_made_elsewhere_in_a_directory_that_was_removed_here() {
    for is_replaced in [false, true] {
        let leased = Leased::new().await;
        let (rig, top) = (&leased.rig, &leased.top);
        let dir = leased.makes_there(top, "dir", New::Directory).await.unwrap();
        rig.server.reset_calls();
        if is_replaced {
            rig.made(top, "new", New::Directory).await.unwrap();
            let (from, to) = (OsStr::new("new"), OsStr::new("dir"));
            rig.remote().rename(&user(), (top, from), (top, to)).await.unwrap();
        } else {
            rig.remove(top, "dir", Removal::Directory).await.unwrap();
        }
        assert_eq!(rig.server.calls("remove") + rig.server.calls("rename"), 0, "it waits");
        let made = leased.makes_there(&dir, "file", New::FileExclusive).await;
        assert_eq!(made, Err(Error::Stale), "{is_replaced}");
        assert!(leased.at_server(top, "dir").await.is_none());
        assert_eq!(leased.seen(top).await, if is_replaced { vec!["dir"] } else { vec![] });
    }
}

/// What another client has made in a directory, or makes there under its own lease, is not removed.
#[tokio::test]
async fn a_directory_in_which_another_client_works_is_removed_by_the_server_alone() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    let dir = leased.makes_there(top, "dir", New::Directory).await.unwrap();
    leased.made(top, "mine").await;
    rig.server.hold(Some("exclude"));
    let mut removing = Box::pin(rig.remove(top, "dir", Removal::Directory));
    assert!(futures_poll(&mut removing).await.is_none(), "it asks for the directory's lease");
    leased.makes_there(&dir, "theirs", New::FileExclusive).await.unwrap();
    rig.server.hold(None);
    assert_eq!(removing.await, Err(Error::NotEmpty));
    assert_eq!(leased.seen(top).await, ["dir", "mine"]);
}

/// Another client moves a directory that was made here, and makes another one in its place. When
/// that is removed by this client, the first one stays what it is, and gets what waits in it.
#[tokio::test]
async fn a_directory_that_another_client_moved_is_not_forgotten_with_the_next_of_its_name() {
    for is_replaced in [false, true] {
        let leased = Leased::new().await;
        let (rig, top, cred) = (&leased.rig, &leased.top, user());
        let dir = rig.made(top, "p", New::Directory).await.unwrap().handle;
        let file = leased.made(top, "file").await;
        assert_eq!(leased.seen(top).await, ["file", "p"]);
        let (p, q, empty) = (OsStr::new("p"), OsStr::new("q"), OsStr::new("empty"));
        leased.other.rename(&cred, (top, p), (top, q)).await.unwrap();
        for name in ["p", "empty"] {
            leased.makes_there(top, name, New::Directory).await.unwrap();
        }
        rig.remote().link(&cred, &file, &dir, "linked".as_ref()).await.unwrap();
        let moved = (&dir, OsStr::new("moved"));
        rig.remote().rename(&cred, (top, "file".as_ref()), moved).await.unwrap();
        if is_replaced {
            rig.names.rename(&cred, (top, empty), (top, p)).await.unwrap();
        } else {
            rig.names.remove(&cred, top, p, Removal::Directory).await.unwrap();
        }
        assert!(rig.find(&dir, "moved").await.is_some(), "{is_replaced}");
        rig.deferring().replay(None).await.unwrap();
        let there = leased.at_server(top, "q").await.unwrap();
        assert_eq!(leased.seen(&there).await, ["linked", "moved"], "{is_replaced}");
    }
}

/// A file gets another name here, in a directory that nobody recalls, and another client removes
/// the one name that the server has of it: the file stays, whoever made it, and whether the
/// directory of its new name was made here.
#[tokio::test]
async fn a_file_that_got_a_name_here_does_not_go_with_the_one_at_the_server() {
    for (is_made_here, is_dir_made_here) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let what = format!("file made here: {is_made_here}, directory: {is_dir_made_here}");
        let leased = Leased::new().await;
        let (rig, top, cred) = (&leased.rig, &leased.top, user());
        let above = leased.makes_there(top, "above", New::Directory).await.unwrap();
        let dir = match is_dir_made_here {
            true => rig.made(&above, "dir", New::Directory).await.unwrap().handle,
            false => leased.makes_there(&above, "dir", New::Directory).await.unwrap(),
        };
        let file = match is_made_here {
            true => leased.made(top, "file").await,
            false => leased.makes_there(top, "file", New::FileExclusive).await.unwrap(),
        };
        rig.remote().link(&cred, &file, &dir, "linked".as_ref()).await.unwrap();
        assert_eq!(leased.seen(top).await, ["above", "file"], "{what}");
        leased.other.remove(&cred, top, "file".as_ref(), Removal::File).await.unwrap();
        rig.deferring().replay(None).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let there = leased.at_server(&above, "dir").await.unwrap();
        assert_eq!(leased.seen(&there).await, ["linked"], "{what}");
    }
}

/// The file is renamed after it got the other name: that is at the server before anybody may remove
/// the one at the new place.
#[tokio::test]
async fn a_file_that_got_a_name_here_and_was_moved_does_not_go_with_the_one_at_the_server() {
    let leased = Leased::new().await;
    let (rig, top, cred) = (&leased.rig, &leased.top, user());
    let [linked, moved] = ["linked", "moved"];
    let dirs = [linked, moved].map(|name| leased.makes_there(top, name, New::Directory));
    let [one, two] = dirs;
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let file = leased.made(top, "file").await;
    rig.remote().link(&cred, &file, &one, "a".as_ref()).await.unwrap();
    let (from, to) = ((top, OsStr::new("file")), (&two, OsStr::new("b")));
    rig.remote().rename(&cred, from, to).await.unwrap();
    assert_eq!(leased.seen(top).await, ["linked", "moved"]);
    assert_eq!(leased.seen(&two).await, ["b"]);
    leased.other.remove(&cred, &two, "b".as_ref(), Removal::File).await.unwrap();
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(leased.seen(&one).await, ["a"]);
}

/// What depends on a directory that is gone holds up nothing else in a directory whose lease is
/// returned: it is kept beside that one, in whatever was made there.
#[tokio::test]
async fn what_cannot_be_made_holds_up_nothing_else_in_its_directory() {
    let leased = Leased::new().await;
    let (rig, top, cred) = (&leased.rig, &leased.top, user());
    let gone = leased.makes_there(top, "gone", New::Directory).await.unwrap();
    leased.makes_there(top, "file", New::FileExclusive).await.unwrap();
    let sub = rig.made(&gone, "sub", New::Directory).await.unwrap().handle;
    let (file, moved) = ((top, OsStr::new("file")), (&sub, OsStr::new("moved")));
    rig.remote().rename(&cred, file, moved).await.unwrap();
    leased.made(top, "a").await;
    // Another client has removed the directory without its lease.
    leased.other.remove(&cred, top, "gone".as_ref(), Removal::Directory).await.unwrap();
    // Nobody here knows where it was: no client is behind this.
    let beside = "unknown.conflict-here-0";
    assert_eq!(leased.seen(top).await, ["a", beside]);
    let sub = leased.found(top, beside).await;
    assert_eq!(leased.seen(&sub).await, ["sub"]);
    let moved = leased.found(&sub, "sub").await;
    assert_eq!(leased.seen(&moved).await, ["moved"]);
}

/// So many changes wait in a directory that they can be made at the server in time. More are made
/// there at once.
#[tokio::test]
async fn no_more_waits_in_a_directory_than_can_be_sent_in_time() {
    let leased = Leased::new().await;
    let (rig, top) = (&leased.rig, &leased.top);
    for count in 0..WAITING_IN_DIR_MAX {
        leased.made(top, &count.to_string()).await;
    }
    assert_eq!(rig.server.calls("make"), 0);
    leased.made(top, "more").await;
    assert_eq!(names_in(&leased.other, top).await, ["more"]);
    assert_eq!(leased.seen(top).await.len(), WAITING_IN_DIR_MAX + 1);
}

/// Kinds and links by path, of all that is below the root.
async fn kinds(remote: &dyn Remote) -> BTreeMap<String, (Kind, String, u32)> {
    let all = tree(remote).await.into_iter();
    all.map(|(path, leaf)| (path, (leaf.kind, leaf.first, leaf.links))).collect()
}

/// Random changes by this machine and by another client in three directories, beside lost sessions,
/// a server that gives no leases for a while, and what is due: each gets the answer that one server
/// would give to both, and at each look of the other client all is as it is there.
#[tokio::test]
async fn two_clients_see_one_tree() {
    let (seed, rounds) = seed("two_clients_see_one_tree", 60);
    for round in 0..rounds {
        let mut random = Random(seed.wrapping_add(round));
        let leased = Leased::new().await;
        let reference = MemRemote::new();
        let (rig, root) = (&leased.rig, reference.root().await.unwrap().handle);
        let _ = reference.make(&user(), &root, "seen".as_ref(), New::Directory, mode(0o755)).await;
        let _ = reference.remove(&user(), &root, "seen".as_ref(), Removal::Directory).await;
        for step in 0..60 {
            let what = format!("LARDER_SEED={} step {step}", seed.wrapping_add(round));
            match random.below(20) {
                0 => rig.server.lose_exclusion().await,
                1 => rig.server.set_excludes(random.below(2) == 0),
                2 => rig.deferring().replay(None).await.unwrap(),
                choice => {
                    let is_here = choice < 14;
                    if !is_here {
                        recall_all(&leased).await;
                    }
                    let remote: &dyn Remote = if is_here { rig.remote() } else { &leased.other };
                    let mut again = Random(random.next());
                    let mut same = Random(again.0);
                    let done = change(remote, &mut again).await;
                    assert_eq!(done, change(&reference, &mut same).await, "{what} {is_here}");
                }
            }
            assert_eq!(kinds(rig.remote()).await, kinds(&reference).await, "{what}");
            if random.below(4) == 0 {
                recall_all(&leased).await;
                assert_eq!(kinds(&leased.other).await, kinds(&reference).await, "{what}");
            }
        }
    }
}

/// The other client is about to look into every directory, from the root down.
async fn recall_all(leased: &Leased) {
    let mut left = vec![leased.top.clone()];
    while let Some(dir) = left.pop() {
        leased.rig.server.recall(&dir).await;
        let listed = leased.other.readdir(&user(), &dir, Cookie::default(), 1 << 20).await.unwrap();
        for entry in listed.entries {
            let found = leased.other.lookup(&user(), &dir, &entry.name).await.unwrap().found;
            left.extend(
                found.filter(|found| found.attr.kind == Kind::Directory).map(|it| it.handle),
            );
        }
    }
}

/// A random change.
async fn change(remote: &dyn Remote, random: &mut Random) -> Result<()> {
    let cred = user();
    let mut dir = remote.root().await?.handle;
    if let Some(name) = [None, Some("p"), Some("q")][random.below(3) as usize] {
        let found = remote.lookup(&cred, &dir, OsStr::new(name)).await?.found;
        let found = found.filter(|found| found.attr.kind == Kind::Directory);
        dir = found.ok_or(Error::NotFound)?.handle;
    }
    let names = ["a", "b", "p", "q"];
    let [one, two] = [0, 1].map(|_| OsStr::new(names[random.below(4) as usize]));
    match random.below(8) {
        6 => {
            let found = remote.lookup(&cred, &dir, one).await?.found.ok_or(Error::NotFound)?;
            remote.link(&cred, &found.handle, &dir, two).await?;
        }
        7 => {
            let top = remote.root().await?.handle;
            let found = remote.lookup(&cred, &dir, one).await?.found.ok_or(Error::NotFound)?;
            remote.link(&cred, &found.handle, &top, two).await?;
        }
        0 | 1 => {
            remote.make(&cred, &dir, one, New::FileExclusive, mode(0o644)).await?;
        }
        2 => {
            remote.make(&cred, &dir, one, New::Directory, mode(0o755)).await?;
        }
        3 => {
            let what = [Removal::File, Removal::Directory][random.below(2) as usize];
            remote.remove(&cred, &dir, one, what).await?;
        }
        4 => {
            remote.rename(&cred, (&dir, one), (&dir, two)).await?;
        }
        _ => {
            let top = remote.root().await?.handle;
            remote.rename(&cred, (&dir, one), (&top, two)).await?;
        }
    }
    Ok(())
}
