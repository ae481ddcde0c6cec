//! Files that get a name, or lose it once more, while they are hidden: calls of an export, whose
//! callers no kernel keeps apart.

use std::ffi::OsStr;

use larder_client::{Options, Start};
use larder_vfs::{Cred, Error, FileSystem, Ino, New, Removal, RenameFlags, Result, SetAttr};

use crate::rig::{READ, Rig, root};

/// What is held up at the server.
#[derive(Clone, Copy, Debug)]
enum Held {
    Call(&'static str),
    Answer(&'static str),
}

impl Held {
    fn method(self) -> &'static str {
        let (Held::Call(method) | Held::Answer(method)) = self;
        method
    }
}

/// Makes the second call while the server holds up the first one.
async fn crossed<T, U>(
    rig: &Rig,
    held: Held,
    first: impl Future<Output = T>,
    second: impl Future<Output = U>,
) -> (T, U) {
    match held {
        Held::Call(method) => rig.server.hold(Some(method)),
        Held::Answer(method) => rig.server.hold_answers(Some(method)),
    }
    rig.server.reset_calls();
    let release = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        rig.server.hold(None);
        rig.server.hold_answers(None);
    };
    let second = async {
        while rig.server.calls(held.method()) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::join!(second, release).0
    };
    rig.in_vain(async { tokio::join!(first, second) }).await
}

async fn link(rig: &Rig, ino: Ino, name: &str) -> Result<()> {
    rig.client.link(&root(), ino, Ino::ROOT, OsStr::new(name)).wait().await.map(drop)
}

/// A file that has no name gets none, whether it is open still, is being hidden, or loses its
/// hidden name. One that has another name gets further ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_file_gets_no_name_again() {
    let none = [Err(Error::NotFound), Err(Error::Stale)];
    for held in [Held::Answer("rename"), Held::Call("rename")] {
        let rig = Rig::ticking(Options::default()).await;
        let open = rig.create("file").await;
        open.flush().await.unwrap();
        let linking = link(&rig, open.ino, "file");
        let (removed, linked) = crossed(&rig, held, rig.remove("file"), linking).await;
        removed.unwrap();
        assert_eq!(linked, Err(Error::NotFound), "{held:?}");
        assert_eq!(link(&rig, open.ino, "file").await, Err(Error::NotFound));
        let ino = open.ino;
        for held in [Held::Call("remove"), Held::Answer("remove")] {
            let open = rig.create("closed").await;
            rig.in_vain(rig.remove("closed")).await.unwrap();
            let linking = link(&rig, open.ino, "closed");
            let (closed, linked) = crossed(&rig, held, open.close(), linking).await;
            closed.unwrap();
            assert!(none.contains(&linked), "{held:?}: {linked:?}");
        }
        open.close().await.unwrap();
        assert!(none.contains(&link(&rig, ino, "file").await));
        assert!(rig.foreigner().await.names().await.is_empty(), "{held:?}");
    }
}

/// A name that is being given while the earlier one is removed stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_that_gets_a_name_while_it_loses_one_keeps_it() {
    for held in [Held::Call("link"), Held::Answer("link")] {
        let rig = Rig::ticking(Options::default()).await;
        let open = rig.create("file").await;
        open.flush().await.unwrap();
        let linking = link(&rig, open.ino, "other");
        let (linked, removed) = crossed(&rig, held, linking, rig.remove("file")).await;
        assert_eq!((linked, removed), (Ok(()), Ok(())), "{held:?}");
        link(&rig, open.ino, "third").await.unwrap();
        open.close().await.unwrap();
        assert_eq!(rig.foreigner().await.names().await, ["other", "third"], "{held:?}");
    }
}

/// One of two callers who remove an open file does, and its hidden name goes with its last release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_removed_once() {
    for held in [Held::Call("rename"), Held::Answer("rename")] {
        let rig = Rig::ticking(Options::default()).await;
        let open = rig.create("file").await;
        open.flush().await.unwrap();
        let both = crossed(&rig, held, rig.remove("file"), rig.remove("file")).await;
        assert_eq!(both, (Ok(()), Err(Error::NotFound)), "{held:?}");
        open.close().await.unwrap();
        assert!(rig.foreigner().await.names().await.is_empty(), "{held:?}");
    }
}

/// A process opens a file while another one takes its last name, by a removal or by another file:
/// whatever the server is asked first, the open has the file and keeps it, or the kernel is to look
/// the name up again. What was hidden for it alone goes when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_beside_the_removal_of_the_last_name_has_the_file_or_is_refused() {
    let nobody = Cred { uid: 1000, gid: 1000, ..root() };
    for (is_replaced, is_denied) in [(false, false), (true, false), (false, true), (true, true)] {
        for opens_first in [true, false] {
            let case = format!("replaced {is_replaced} denied {is_denied} first {opens_first}");
            let rig = Rig::ticking(Options::default()).await;
            let other = rig.foreigner().await;
            for name in ["file", "new"] {
                other.put(name, name.as_bytes()).await;
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                other.set(name, set).await;
            }
            let ino = rig.find("file").await.unwrap();
            rig.advance(60);
            let cred = if is_denied { &nobody } else { &root() };
            let open = rig.client.open(cred, ino, READ).wait();
            let take = async {
                match is_replaced {
                    true => rig.rename("new", "file").await,
                    false => rig.remove("file").await,
                }
            };
            let (opened, taken) = match opens_first {
                true => crossed(&rig, Held::Call("access"), open, take).await,
                false => {
                    let method = if is_replaced { "rename" } else { "remove" };
                    let (taken, opened) = crossed(&rig, Held::Call(method), take, open).await;
                    (opened, taken)
                }
            };
            assert_eq!(taken, Ok(()), "{case}");
            match opened {
                Ok(opened) => {
                    assert!(opens_first && !is_denied, "{case}");
                    let read = rig.client.read(&root(), ino, Some(opened.id), 0, 10).wait().await;
                    assert_eq!(read.as_deref(), Ok(&b"file"[..]), "{case}");
                    rig.client.release(ino, opened.id).wait().await.unwrap();
                }
                Err(Error::AccessDenied) => assert!(is_denied && opens_first, "{case}"),
                Err(error) => assert!(error == Error::Stale && !opens_first, "{case}: {error}"),
            }
            let left = other.names().await;
            assert_eq!(left, if is_replaced { vec!["file"] } else { vec!["new"] }, "{case}");
        }
    }
}

async fn mkdir(rig: &Rig, dir: Ino, name: &str) -> Ino {
    let made = rig.client.make(&root(), dir, OsStr::new(name), New::Directory, SetAttr::default());
    made.wait().await.unwrap().ino
}

async fn rmdir(rig: &Rig, dir: Ino, name: &str) -> Result<()> {
    rig.client.remove(&root(), dir, OsStr::new(name), Removal::Directory).wait().await
}

/// Files that were removed and stay open do not show in listings, and their directories can be
/// removed and replaced, one after the other, also by another process of the mount. Other clients
/// see one hidden name for each, which goes with its last release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_is_removed_while_removed_files_of_it_are_open() {
    for is_killed in [false, true] {
        let mut rig = Rig::ticking(Options::default()).await;
        let outer = mkdir(&rig, Ino::ROOT, "outer").await;
        let inner = mkdir(&rig, outer, "inner").await;
        let mut open = Vec::new();
        for number in 0..40 {
            let (dir, name) =
                (if number % 2 == 0 { inner } else { outer }, format!("file{number}"));
            let file = rig.create_in(dir, &name).await;
            file.write(0, name.as_bytes()).await.unwrap();
            open.push((file.names(), name.clone()));
            rig.client.remove(&root(), dir, OsStr::new(&name), Removal::File).wait().await.unwrap();
        }
        assert_eq!(rig.names_in(inner).await, [""; 0]);
        assert_eq!(rig.names_in(outer).await, ["inner"]);
        assert_eq!(rmdir(&rig, Ino::ROOT, "outer").await, Err(Error::NotEmpty));
        rmdir(&rig, outer, "inner").await.unwrap();
        assert_eq!(rig.names_in(outer).await, [""; 0]);
        if is_killed {
            rig = rig.kill(Start::Resume).await;
        }
        let other = mkdir(&rig, Ino::ROOT, "other").await;
        let file = rig.create_in(other, "file").await;
        let moved = rig.client.rename(
            &root(),
            (Ino::ROOT, OsStr::new("other")),
            (Ino::ROOT, OsStr::new("outer")),
            RenameFlags::default(),
        );
        moved.wait().await.unwrap();
        file.close().await.unwrap();
        assert_eq!(rig.names().await, ["outer"]);
        assert_eq!(rig.foreigner().await.names().await.len(), 41);
        for (names, content) in &open {
            let file = rig.again(*names);
            assert_eq!(file.read(0, 100).await.unwrap(), content.as_bytes());
            file.write(0, b"still").await.unwrap();
            // Nor does it show between the last close and its removal.
            let (closed, listed) =
                crossed(&rig, Held::Call("remove"), file.close(), rig.names()).await;
            closed.unwrap();
            assert_eq!(listed, ["outer"]);
        }
        assert_eq!(rig.foreigner().await.names().await, ["outer"]);
        assert_eq!(rig.names_in(other).await, ["file"]);
    }
}

/// The process dies while a hidden name is being moved, before or after the server has done so: the
/// next mount removes the file wherever it is, and so does the next process at its last release. It
/// can remove the directory, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_name_that_was_being_moved_goes_wherever_it_is() {
    for held in [Held::Call("rename"), Held::Answer("rename")] {
        for start in [Start::NewMount, Start::Resume] {
            let rig = Rig::new(Options::default()).await;
            let dir = mkdir(&rig, Ino::ROOT, "dir").await;
            let open = rig.create_in(dir, "file").await;
            let file = OsStr::new("file");
            rig.client.remove(&root(), dir, file, Removal::File).wait().await.unwrap();
            match held {
                Held::Call(method) => rig.server.hold(Some(method)),
                Held::Answer(method) => rig.server.hold_answers(Some(method)),
            }
            rig.server.reset_calls();
            let begun = async {
                while rig.server.calls("rename") == 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                removed = rmdir(&rig, Ino::ROOT, "dir") => panic!("{removed:?}"),
                () = begun => {}
            }
            let names = open.names();
            let rig = rig.kill(start).await;
            if start == Start::Resume {
                rmdir(&rig, Ino::ROOT, "dir").await.unwrap();
                rig.again(names).close().await.unwrap();
            } else {
                rig.sent().await;
                while rmdir(&rig, Ino::ROOT, "dir").await.is_err() {
                    tokio::task::yield_now().await;
                }
            }
            let other = rig.foreigner().await;
            while !other.names().await.is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }
}
