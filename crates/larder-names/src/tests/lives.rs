//! Single lives of names.

use std::time::Duration;

use larder_vfs::*;

use super::*;

async fn calls_of_changes(rig: &Rig) -> u64 {
    ["make", "remove", "rename", "setattr", "lookup", "readdir", "access", "write"]
        .iter()
        .map(|method| rig.server.calls(method))
        .sum()
}

/// The first object in a directory causes requests for the right to make it, and for the entries;
/// later ones cause none.
#[tokio::test]
async fn what_is_removed_before_its_time_costs_no_request() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "first", New::File).await.unwrap();
    rig.server.reset_calls();
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(rig.find(&dir.handle, name).await.map(drop), None);
        let file = rig.made(&dir.handle, name, New::FileExclusive).await.unwrap();
        let set = SetAttr { mtime: Some(SetTime::To(Time { sec: 9, nsec: 7 })), ..mode(0o600) };
        rig.remote().setattr(&user(), &file.handle, set, None).await.unwrap();
        let found = rig.find(&dir.handle, name).await.unwrap();
        assert_eq!((found.attr.mode, found.attr.mtime.sec), (0o600, 9));
    }
    let (from, to) = (OsStr::new("a"), OsStr::new("b"));
    rig.remote().rename(&user(), (&dir.handle, from), (&dir.handle, to)).await.unwrap();
    assert_eq!(tree(rig.remote()).await.len(), 3, "with what is there already");
    rig.server.reset_calls();
    assert_eq!(rig.remove(&top, "dir", Removal::Directory).await, Err(Error::NotEmpty));
    assert_eq!(rig.remove(&dir.handle, "b", Removal::Directory).await, Err(Error::NotDirectory));
    rig.remove(&dir.handle, "b", Removal::File).await.unwrap();
    rig.remove(&top, "dir", Removal::Directory).await.unwrap();
    assert_eq!(rig.find(&top, "dir").await.map(drop), None);
    assert_eq!(rig.server.calls_total(), 0);
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(calls_of_changes(&rig).await, 1, "the first one is made");
    let rig = rig.crash(Some(Image::Written));
    let left = tree(&*rig.server).await;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["/first"]);
}

/// A file that waits is renamed again and again, within a directory and into another one, over an
/// object that waits too, and is removed: nothing of that costs a request.
#[tokio::test]
async fn a_chain_of_renames_and_a_removal_cost_no_request() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "first", New::File).await.unwrap();
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap().handle;
    rig.made(&dir, "over", New::File).await.unwrap();
    let file = rig.made(&top, "0", New::FileExclusive).await.unwrap();
    rig.server.reset_calls();
    let chain = [(&top, "0"), (&top, "1"), (&dir, "2"), (&dir, "over"), (&top, "4"), (&top, "5")];
    for pair in chain.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(|(dir, name)| (dir, OsStr::new(name)));
        rig.remote().rename(&user(), from, to).await.unwrap();
        assert_eq!(rig.find(pair[0].0, pair[0].1).await.map(drop), None, "{pair:?}");
        let found = rig.find(pair[1].0, pair[1].1).await.unwrap();
        assert_eq!((found.handle, found.attr.fileid), (file.handle.clone(), file.attr.fileid));
    }
    rig.remove(&top, "5", Removal::File).await.unwrap();
    rig.remove(&top, "dir", Removal::Directory).await.unwrap();
    assert_eq!(rig.server.calls_total(), 0);
    // Nothing of the chain comes back with a crash.
    rig.deferring().keep().await.unwrap();
    let rig = rig.crash(Some(Image::Synced));
    rig.server.reset_calls();
    rig.deferring().replay(None).await.unwrap();
    let calls = ["make", "remove", "rename"].map(|method| rig.server.calls(method));
    assert_eq!(calls, [1, 0, 0], "the first one is made, and nothing else");
    for remote in [rig.remote(), &*rig.server] {
        assert_eq!(tree(remote).await.into_keys().collect::<Vec<_>>(), ["/first"]);
    }
}

/// Owner, mode and times of waiting objects are set without a request, survive a crash of the
/// machine once they are kept, and are sent to the server with the object.
#[tokio::test]
async fn attributes_of_what_waits_are_set_here() {
    let (rig, root) = (Rig::new().await, Cred::root());
    let top = rig.top().await;
    let make = async |name: &str, new| {
        let made = rig.remote().make(&root, &top, name.as_ref(), new, mode(0o644)).await;
        made.unwrap().found
    };
    make("seen", New::File).await;
    let file = make("file", New::File).await;
    let link = make("link", New::Symlink("to".into())).await;
    let calls = rig.server.calls_total();
    let time = |sec| Some(SetTime::To(Time { sec, nsec: 7 }));
    let owner = SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() };
    let set = async |file: &Found, set| rig.remote().setattr(&root, &file.handle, set, None).await;
    for set_one in [owner, mode(0o640), SetAttr { mtime: time(9), atime: time(8), ..mode(0o600) }] {
        set(&file, set_one).await.unwrap();
    }
    set(&link, owner).await.unwrap();
    // Other users may not, and their requests are sent to the server.
    let other = Cred::new(2000, 2000, &[]);
    let refused = rig.remote().setattr(&other, &link.handle, owner, None).await;
    assert_eq!(refused.map(drop), Err(Error::NotPermitted));
    let asked = rig.server.calls_total() - calls;
    assert!(asked <= 3, "to make the link and to be refused: {asked}");
    rig.deferring().keep().await.unwrap();
    let rig = rig.crash(Some(Image::Synced));
    let seen = async |remote: &dyn Remote, name: &str| {
        let found = remote.lookup(&Cred::root(), &top, name.as_ref()).await.unwrap().found;
        let Attr { mode, uid, gid, mtime, .. } = found.unwrap().attr;
        (mode, uid, gid, if name == "link" { Time::default() } else { mtime })
    };
    let file = (0o600, 1000, 100, Time { sec: 9, nsec: 7 });
    assert_eq!(seen(rig.remote(), "file").await, file);
    rig.deferring().replay(None).await.unwrap();
    for remote in [rig.remote(), &*rig.server] {
        assert_eq!(seen(remote, "file").await, file);
        let (_, uid, gid, _) = seen(remote, "link").await;
        assert_eq!((uid, gid), (1000, 100));
    }
}

/// A time that was set over bytes counts until they are written again, in the next boot too.
#[tokio::test]
async fn a_time_that_was_given_over_bytes_is_on_record() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let file = rig.made(&top, "file", New::File).await.unwrap().handle;
    let time = Time { sec: 5, nsec: 6 };
    assert_eq!(rig.deferring().given_time(&file, 10), None);
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    rig.deferring().set_here(&user(), &file, &set, Some(10)).unwrap().unwrap();
    // Setting no time leaves it unchanged.
    rig.deferring().set_here(&user(), &file, &mode(0o600), Some(20)).unwrap().unwrap();
    rig.deferring().keep().await.unwrap();
    let given = |rig: &Rig| [9, 10, 11].map(|written| rig.deferring().given_time(&file, written));
    assert_eq!(given(&rig), [Some(time), Some(time), None]);
    let rig = rig.crash(Some(Image::Synced));
    assert_eq!(given(&rig), [Some(time), Some(time), None]);
    // Also when the server has the file, and not its bytes.
    rig.deferring().replay(None).await.unwrap();
    let rig = rig.crash(Some(Image::Synced));
    assert_eq!(given(&rig), [Some(time), Some(time), None]);
}

/// Whatever attributes are set, the data version of a waiting object stays the same until the
/// server has bytes of it.
#[tokio::test]
async fn attributes_change_no_bytes() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let made = rig.made(&top, "file", New::File).await.unwrap();
    let same = async |rig: &Rig| {
        let attr = rig.remote().getattr(&user(), &made.handle).await.unwrap();
        attr.validator().same_data(&made.attr.validator())
    };
    let set = SetAttr { mtime: Some(SetTime::To(Time { sec: 9, nsec: 7 })), ..mode(0o600) };
    rig.remote().setattr(&user(), &made.handle, set, None).await.unwrap();
    assert!(same(&rig).await);
    rig.deferring().replay(None).await.unwrap();
    assert!(same(&rig).await);
    let text = "text".into();
    let stable = Stability::FileSync;
    rig.remote().write(&user(), &made.handle, None, 0, text, stable).await.unwrap();
    assert!(!same(&rig).await);
}

/// A listing that has begun returns each name once, even if the objects are made at the server in
/// the meantime.
#[tokio::test]
async fn a_listing_goes_on_while_what_it_tells_is_made_at_the_server() {
    for is_in_new_directory in [false, true] {
        let rig = Rig::new().await;
        let top = &rig.top().await;
        rig.made(top, "theirs", New::File).await.unwrap();
        rig.deferring().replay(None).await.unwrap();
        let new = rig.made(top, "new", New::Directory).await.unwrap().handle;
        let (dir, told) = if is_in_new_directory { (&new, "a") } else { (top, "theirs") };
        for name in ["a", "b", "c", "d"] {
            rig.made(dir, name, New::File).await.unwrap();
        }
        let user = user();
        let list = async |cookie| rig.remote().readdir(&user, dir, cookie, 1 << 16).await.unwrap();
        let page = list(Cookie::default()).await;
        let mut names: Vec<_> = page.entries.iter().map(|listed| listed.name.clone()).collect();
        assert_eq!(names[0], told);
        // Somebody has taken them up to the first b.
        let at = names.iter().position(|name| name == "b").unwrap();
        names.truncate(at + 1);
        let cookie = Cookie { position: page.entries[at].position, verifier: page.verifier };
        rig.remove(dir, "c", Removal::File).await.unwrap();
        rig.deferring().replay(None).await.unwrap();
        let rest = list(cookie).await;
        assert!(rest.eof);
        assert_eq!(rest.entries.iter().map(|listed| &listed.name).collect::<Vec<_>>(), ["d"]);
        // From the beginning it is the server's.
        let again = list(Cookie::default()).await.entries;
        assert_eq!(again.len(), names.len() + 1);
    }
}

/// The same for a reader that is among the server's entries: the server may put new ones before the
/// reader's position, so they keep the positions that they had.
#[tokio::test]
async fn a_name_keeps_its_position_in_a_listing_when_it_is_made_at_the_server() {
    let rig = Rig::new().await;
    let top = &rig.top().await;
    for name in ["m", "z"] {
        rig.made(top, name, New::File).await.unwrap();
    }
    rig.deferring().replay(None).await.unwrap();
    for name in ["a", "n"] {
        rig.made(top, name, New::File).await.unwrap();
    }
    let user = user();
    let list = async |cookie| rig.remote().readdir(&user, top, cookie, 1 << 16).await.unwrap();
    let first = list(Cookie::default()).await;
    let positions = |listing: &Listing| -> Vec<_> {
        listing.entries.iter().map(|entry| (entry.name.clone(), entry.position)).collect()
    };
    let told = positions(&first);
    assert_eq!(told.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["m", "z", "a", "n"]);
    rig.deferring().replay(None).await.unwrap();
    let again = list(Cookie::default()).await;
    assert_eq!(positions(&again), told);
    assert!(again.entries.iter().all(|entry| entry.attr.is_some() && entry.handle.is_some()));
    for at in 0..told.len() {
        let cookie = Cookie { position: told[at].1, verifier: first.verifier };
        assert_eq!(positions(&list(cookie).await), told[at + 1..]);
    }
    // The server has them all before this.
    let behind = Cookie { position: 1 << 20, verifier: first.verifier };
    assert_eq!(positions(&list(behind).await), told[2..]);
    rig.remove(top, "n", Removal::File).await.unwrap();
    assert_eq!(positions(&list(Cookie::default()).await), told[..3]);
}

/// Handles, inode numbers, attributes and versions are the same before and after.
#[tokio::test]
async fn nothing_shows_that_the_server_has_an_object_now() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap();
    let file = rig.made(&dir.handle, "file", New::File).await.unwrap();
    let link = rig.made(&dir.handle, "link", New::Symlink("to".into())).await.unwrap();
    let described = async |rig: &Rig| {
        let mut all = Vec::new();
        for found in [&dir, &file, &link] {
            let attr = rig.remote().getattr(&user(), &found.handle).await.unwrap();
            all.push((attr.fileid, attr.validator().mtime, attr.validator().ctime, attr.nlink));
        }
        all
    };
    let (before, shown) = (described(&rig).await, tree(rig.remote()).await);
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(rig.server.calls("make"), 3);
    assert_eq!((described(&rig).await, tree(rig.remote()).await), (before.clone(), shown.clone()));
    rig.is_quiet("all of it is there");
    // Another process, another boot: only directories' times differ, which are the server's then.
    let rig = rig.crash(None);
    assert_eq!(described(&rig).await[1..], before[1..]);
    let rig = rig.crash(Some(Image::Synced));
    assert_eq!((&described(&rig).await[1..], tree(rig.remote()).await), (&before[1..], shown));
    let at_server = tree(&*rig.server).await;
    assert_eq!(at_server.keys().collect::<Vec<_>>(), ["/dir", "/dir/file", "/dir/link"]);
}

/// Writing data makes the file at the server, with the directories in which it is, and nothing
/// else.
#[tokio::test]
async fn what_is_written_is_made_at_the_server_first() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap();
    let inner = rig.made(&dir.handle, "inner", New::Directory).await.unwrap();
    rig.made(&dir.handle, "other", New::File).await.unwrap();
    let file = rig.made(&inner.handle, "file", New::File).await.unwrap();
    let written = rig
        .remote()
        .write(&user(), &file.handle, None, 0, "text".into(), Stability::FileSync)
        .await
        .unwrap();
    assert!(written.change.follows(&file.attr.validator()), "nobody else changed it");
    let at_server = tree(&*rig.server).await;
    assert_eq!(at_server.keys().collect::<Vec<_>>(), ["/dir", "/dir/inner", "/dir/inner/file"]);
    // A crash loses none of that, so nothing is made twice.
    let rig = rig.crash(Some(Image::Synced));
    rig.deferring().replay(None).await.unwrap();
    let read = rig.remote().read(&user(), &file.handle, None, 0, 9).await.unwrap();
    assert_eq!(&read.data[..], b"text");
    assert_eq!(tree(rig.remote()).await.len(), 4);
}

/// The answer does not arrive; the machine dies or not; the next attempt finds what the first one
/// made.
#[tokio::test]
async fn an_answer_that_is_lost_makes_nothing_twice() {
    for new in [New::File, New::Directory, New::Symlink("to".into())] {
        for image in [None, Some(None), Some(Some(Image::Synced)), Some(Some(Image::Torn(7)))] {
            let mut rig = Rig::new().await;
            let top = rig.top().await;
            let made = rig.made(&top, "name", new.clone()).await.unwrap();
            rig.server.trouble_after(0, Trouble::Unanswered);
            assert_eq!(rig.deferring().replay(None).await, Err(Error::TimedOut));
            assert!(!rig.server.is_trouble_to_come());
            if let Some(image) = image {
                rig = rig.crash(image);
            }
            rig.deferring().replay(None).await.unwrap();
            assert_eq!(tree(&*rig.server).await.keys().collect::<Vec<_>>(), ["/name"]);
            let found = rig.find(&top, "name").await.unwrap();
            assert_eq!((found.handle, found.attr.fileid), (made.handle, made.attr.fileid));
            rig.is_quiet("all of it is there");
        }
    }
}

/// An object that the server may have is not treated as a name that was never there.
#[tokio::test]
async fn what_was_attempted_is_removed_at_the_server_too() {
    let mut rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "name", New::File).await.unwrap();
    rig.server.trouble_after(0, Trouble::Unanswered);
    assert_eq!(rig.deferring().replay(None).await, Err(Error::TimedOut));
    rig = rig.crash(Some(Image::Synced));
    rig.remove(&top, "name", Removal::File).await.unwrap();
    assert_eq!((tree(&*rig.server).await.len(), tree(rig.remote()).await.len()), (0, 0));
}

#[tokio::test]
async fn of_a_name_that_another_client_also_made_both_are_kept() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.clock.advance(Duration::from_secs(77));
    let ours = rig.made(&top, "name", New::File).await.unwrap();
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap();
    rig.made(&dir.handle, "ours", New::File).await.unwrap();
    let other = rig.server.another_client();
    for (name, new) in [("name", New::File), ("dir", New::Directory)] {
        other.make(&Cred::root(), &top, name.as_ref(), new, mode(0o644)).await.unwrap();
    }
    let theirs = other.lookup(&Cred::root(), &top, "dir".as_ref()).await.unwrap().found.unwrap();
    let set = mode(0o644);
    other.make(&Cred::root(), &theirs.handle, "theirs".as_ref(), New::File, set).await.unwrap();
    other.setattr(&Cred::root(), &theirs.handle, mode(0o777), None).await.unwrap();
    // As the client does.
    let number = rig.cache.assign(top.as_bytes());
    rig.deferring().replay(None).await.unwrap();
    let kept = "name.conflict-here-77";
    let found = rig.find(&top, kept).await.unwrap();
    assert_eq!(found.handle, ours.handle);
    assert_ne!(rig.find(&top, "name").await.unwrap().handle, ours.handle);
    let all = tree(&*rig.server).await;
    let kept = format!("/{kept}");
    assert_eq!(
        all.keys().collect::<Vec<_>>(),
        ["/dir", "/dir/ours", "/dir/theirs", "/name", &kept]
    );
    let told = vec![(ConflictKind::Made, "name".to_owned(), kept[1..].to_owned())];
    assert_eq!((rig.conflicts(), rig.deferring().deferred().len()), (told.clone(), 0));
    // It is told until a user clears it, whatever becomes of the name.
    let (from, to) = (OsStr::new(&kept[1..]), OsStr::new("mine"));
    rig.remote().rename(&user(), (&top, from), (&top, to)).await.unwrap();
    rig.deferring().replay(None).await.unwrap();
    let rig = rig.crash(None);
    assert_eq!(rig.conflicts(), told);
    let found = rig.cache.conflicts(0, 9).remove(0);
    assert_eq!((found.number, found.found_sec), (1, 77));
    assert_eq!(found.conflict.dir, Some(number));
    assert!(tree(&*rig.server).await.contains_key("/mine"));
}

/// An object that the server refuses is reported, is tried again, and can be removed.
#[tokio::test]
async fn what_the_server_refuses_waits_on() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let file = rig.made(&top, "name", New::File).await.unwrap();
    rig.made(&top, "other", New::File).await.unwrap();
    rig.server.set_full(true);
    assert_eq!(rig.deferring().replay(None).await, Err(Error::NoSpace));
    let failures: Vec<_> = rig.deferring().deferred().iter().map(|told| told.failure).collect();
    assert_eq!(failures, [Some(Error::NoSpace); 2]);
    assert_eq!(rig.deferring().replay(Some(&file.handle)).await, Err(Error::TimedOut));
    let text = "text".into();
    let user = user();
    let written = rig.remote().write(&user, &file.handle, None, 0, text, Stability::Unstable);
    assert_eq!(written.await.map(drop), Err(Error::TimedOut));
    rig.remove(&top, "other", Removal::File).await.unwrap();
    rig.deferring().keep().await.unwrap();
    rig.server.set_full(false);
    let rig = rig.crash(Some(Image::Synced));
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(tree(&*rig.server).await.keys().collect::<Vec<_>>(), ["/name"]);
}

/// A user who may not make an object at the server cannot make it here.
#[tokio::test]
async fn rights_are_judged_before_a_name_is_made() {
    let rig = Rig::new().await;
    let (top, root) = (rig.top().await, Cred::root());
    let made = rig.remote().make(&root, &top, "private".as_ref(), New::Directory, mode(0o700));
    let private = made.await.unwrap().found.handle;
    assert_eq!(rig.made(&private, "a", New::File).await.map(drop), Err(Error::AccessDenied));
    let here = rig.made(&top, "here", New::Directory).await.unwrap().handle;
    let other = Cred::new(2000, 2000, &[]);
    let made = rig.remote().make(&other, &here, "a".as_ref(), New::File, mode(0o644)).await;
    assert_eq!(made.map(drop), Err(Error::AccessDenied));
    let set = rig.remote().setattr(&other, &here, mode(0o777), None).await;
    assert_eq!(set.map(drop), Err(Error::NotPermitted));
}

/// Only the server knows to which user it maps each user, so it makes the first object of each.
#[tokio::test]
async fn the_first_object_of_everybody_is_made_at_the_server() {
    let rig = Rig::new().await;
    let (top, other) = (rig.top().await, Cred::new(2000, 2000, &[]));
    for name in ["a", "b", "c"] {
        let made = rig.remote().make(&other, &top, name.as_ref(), New::File, mode(0o644)).await;
        assert_eq!(made.unwrap().found.attr.uid, 2000);
    }
    assert_eq!(tree(&*rig.server).await.keys().collect::<Vec<_>>(), ["/a"]);
}

/// Waits until all tasks of a runtime wait whose time is paused: it advances only then.
async fn nothing_is_left_to_do() {
    let nothing = std::future::pending::<()>();
    assert!(tokio::time::timeout(Duration::from_millis(20), nothing).await.is_err());
}

/// What is due is made without a request, and what may be made later is not.
#[tokio::test(start_paused = true)]
async fn what_waits_goes_when_it_is_due() {
    let rig = Rig::new().await;
    rig.deferring().begin();
    let top = rig.top().await;
    rig.made(&top, "soon", New::File).await.unwrap();
    let late = rig.made(&top, "late", New::File).await.unwrap();
    rig.deferring().promise(&late.handle, Duration::from_secs(600));
    let there = async || tree(&*rig.server).await.into_keys().collect::<Vec<_>>();
    let pass = async |seconds| {
        for second in 0..=seconds {
            nothing_is_left_to_do().await;
            let is_last = second == seconds;
            rig.clock.advance(Duration::from_secs(u64::from(!is_last)));
        }
    };
    pass(25).await;
    assert_eq!(there().await, Vec::<String>::new());
    pass(10).await;
    assert_eq!(there().await, ["/soon"]);
    pass(540).await;
    assert_eq!(there().await, ["/soon"]);
    pass(60).await;
    assert_eq!(there().await, ["/late", "/soon"]);
}

/// Of the objects that may wait, one after the other takes its room. The next one is made at the
/// server before the call returns, with the directory in which it is; the others wait on, and one
/// that goes leaves its room to another. (65,536 may wait; here four.)
#[tokio::test]
async fn a_name_beyond_those_that_may_wait_is_made_at_the_server_at_once() {
    let rig = Rig::with_room_for(4).await;
    let top = rig.top().await;
    let there = async || tree(&*rig.server).await.into_keys().collect::<Vec<_>>();
    let dir = rig.made(&top, "dir", New::Directory).await.unwrap().handle;
    let other = rig.made(&top, "other", New::Directory).await.unwrap().handle;
    for name in ["a", "b"] {
        rig.made(&dir, name, New::File).await.unwrap();
    }
    assert_eq!(there().await, Vec::<String>::new(), "four wait");
    let beyond = rig.made(&other, "c", New::File).await.unwrap();
    assert_eq!(there().await, ["/other", "/other/c"], "it does not wait");
    let found = rig.server.getattr(&user(), &beyond.handle).await.unwrap();
    assert_eq!(found.fileid, beyond.attr.fileid, "it has the server's identity");
    assert_eq!(tree(rig.remote()).await.len(), 5);
    // The directory above it waits no more, so one has room again, and the one after it has not.
    for name in ["d", "e"] {
        rig.made(&dir, name, New::File).await.unwrap();
    }
    let seen = ["/dir", "/dir/e", "/other", "/other/c"];
    assert_eq!(there().await, seen, "the directory of the last one is made");
    rig.remove(&dir, "a", Removal::File).await.unwrap();
    rig.made(&dir, "f", New::File).await.unwrap();
    assert_eq!(there().await, seen);
    let shown = tree(rig.remote()).await;
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(there().await, shown.into_keys().collect::<Vec<_>>());
    rig.is_quiet("all of it is there");
}

/// What an earlier process left is made at the server only when the client has taken up its bytes:
/// other clients would find files whose bytes nobody sends.
#[tokio::test(start_paused = true)]
async fn what_a_dead_process_left_goes_when_its_client_is_back() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made(&top, "left", New::File).await.unwrap();
    let rig = rig.crash(None);
    let seen_later = async || {
        nothing_is_left_to_do().await;
        tree(&*rig.server).await.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(seen_later().await, Vec::<String>::new());
    rig.deferring().begin();
    assert_eq!(seen_later().await, ["/left"]);
}
