//! Changes that cross: one is under way at the server, or asks it something, when the other one is
//! to be answered here. No kernel makes two changes of a directory at once; an export does.

use std::pin::Pin;

use larder_vfs::Error;

use super::*;

type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Calls of which the server holds up the first one's `method` while the second one is made.
async fn crossed<T, U>(
    rig: &Rig,
    method: &'static str,
    mut first: Call<'_, T>,
    mut second: Call<'_, U>,
) -> (Result<T>, Result<U>) {
    rig.server.hold(Some(method));
    assert!(futures_poll(&mut first).await.is_none(), "it waits for the server");
    let early = futures_poll(&mut second).await;
    rig.server.hold(None);
    match early {
        Some(second) => (first.await, second),
        None => tokio::join!(first, second),
    }
}

impl Rig {
    /// Something that the server has.
    async fn made_there(&self, dir: &Handle, name: &str, new: New) -> Result<Handle> {
        let made = self.names.make(&user(), dir, name.as_ref(), new, mode(0o755)).await;
        made.map(|made| made.found.handle)
    }

    /// What applications see is what the server has, once that has all.
    async fn agrees(&self) {
        self.deferring().replay(None).await.unwrap();
        assert!(self.deferring().deferred().is_empty(), "{:?}", self.deferring().deferred());
        let (here, there) = (tree(self.remote()).await, tree(&*self.server).await);
        let paths = |tree: Tree| tree.into_keys().collect::<Vec<_>>();
        assert_eq!(paths(here), paths(there));
    }
}

/// One caller is told that it made the name, whichever comes first.
#[tokio::test]
async fn a_name_is_made_once_by_callers_that_cross() {
    for kind in [New::FileExclusive, New::Directory] {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let there = Box::pin(rig.made_there(&top, "name", kind.clone()));
        let here = Box::pin(rig.made(&top, "name", kind.clone()));
        let (there, here) = crossed(&rig, "make", there, here).await;
        let made = [there.map(drop), here.map(drop)];
        assert!(made.contains(&Ok(())) && made.contains(&Err(Error::Exists)), "{made:?}");
        rig.agrees().await;
    }
}

/// Nothing is made in a directory that is removed, here or at the server.
#[tokio::test]
async fn a_directory_is_not_removed_while_something_is_made_in_it() {
    // Whether the removal is answered here, the call that is held up, and whether something waits
    // elsewhere: if nothing does, it is not known which directory is removed.
    for (is_here, method, waits) in
        [(true, "readdir", true), (false, "remove", true), (false, "remove", false)]
    {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let dir = rig.made_there(&top, "dir", New::Directory).await.unwrap();
        // The names in it are known.
        rig.made(&dir, "known", New::FileExclusive).await.unwrap();
        rig.remove(&dir, "known", Removal::File).await.unwrap();
        if waits {
            rig.made(&top, "waits", New::FileExclusive).await.unwrap();
        }
        let names = if is_here { rig.remote() } else { &*rig.names };
        let removing: Call<'_, _> = Box::pin(async {
            names.remove(&user(), &top, "dir".as_ref(), Removal::Directory).await
        });
        let making = Box::pin(rig.made(&dir, "new", New::FileExclusive));
        let (removed, made) = crossed(&rig, method, removing, making).await;
        assert_ne!(removed.is_ok(), made.is_ok(), "{method} {waits}: {removed:?} {made:?}");
        rig.agrees().await;
        let is_there = tree(rig.remote()).await.contains_key("/dir/new");
        assert_eq!(is_there, made.is_ok(), "{method} {waits}");
    }
}

/// A file that gets another name while it loses its only one is there under it.
#[tokio::test]
async fn a_file_that_gets_a_name_while_it_loses_one_keeps_it() {
    for method in ["link", "remove"] {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let file = rig.made_there(&top, "one", New::FileExclusive).await.unwrap();
        let (links, removes) = match method {
            "link" => (&*rig.names as &dyn Remote, rig.remote()),
            _ => (rig.remote(), &*rig.names as &dyn Remote),
        };
        let (cred, one) = (user(), OsStr::new("one"));
        let linking: Call<'_, _> =
            Box::pin(async { links.link(&cred, &file, &top, "other".as_ref()).await.map(drop) });
        let removing: Call<'_, _> =
            Box::pin(async { removes.remove(&cred, &top, one, Removal::File).await.map(drop) });
        let (first, second) = match method {
            "link" => crossed(&rig, method, linking, removing).await,
            _ => crossed(&rig, method, removing, linking).await,
        };
        let linked = if method == "link" { first } else { second };
        let found = rig.find(&top, "other").await;
        assert_eq!(found.is_some(), linked.is_ok(), "{method}");
        if found.is_some() {
            rig.remote().getattr(&user(), &file).await.unwrap();
        }
        rig.agrees().await;
    }
}

/// What is made in a directory while its names are asked for is found, although the answer is from
/// before.
#[tokio::test]
async fn names_that_were_asked_for_before_a_change_are_not_believed_after_it() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    let dir = rig.made_there(&top, "dir", New::Directory).await.unwrap();
    rig.server.hold_answers(Some("readdir"));
    let mut removing = Box::pin(rig.remove(&dir, "none", Removal::File));
    assert!(futures_poll(&mut removing).await.is_none(), "it asks for the names");
    rig.made_there(&dir, "new", New::FileExclusive).await.unwrap();
    rig.server.hold_answers(None);
    assert_eq!(removing.await, Err(Error::NotFound));
    assert!(rig.find(&dir, "new").await.is_some());
}

/// A listing does not show what was removed here before it began, although the server says that it
/// has that, and only then loses it.
#[tokio::test]
async fn what_was_removed_before_a_listing_is_not_listed_when_the_server_loses_it() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    rig.made_there(&top, "gone", New::FileExclusive).await.unwrap();
    rig.made_there(&top, "stays", New::FileExclusive).await.unwrap();
    rig.remove(&top, "gone", Removal::File).await.unwrap();
    rig.server.hold_answers(Some("readdir"));
    let cred = user();
    let mut listing = rig.remote().readdir(&cred, &top, Cookie::default(), 1 << 16);
    assert!(futures_poll(&mut listing).await.is_none());
    rig.deferring().replay(None).await.unwrap();
    rig.server.hold_answers(None);
    let listed = listing.await.unwrap().entries;
    let names: Vec<_> = listed.iter().map(|entry| entry.name.to_str().unwrap()).collect();
    assert_eq!(names, ["stays"]);
}
