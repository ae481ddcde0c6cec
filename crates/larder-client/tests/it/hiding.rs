//! Files that get a name, or lose it once more, while they are hidden: calls of an export, whose
//! callers no kernel keeps apart.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Ino, Result};

use crate::rig::{Rig, root};

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
