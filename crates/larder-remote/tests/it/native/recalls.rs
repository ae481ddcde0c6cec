//! Recalls of one lease by several other clients.

use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use larder_vfs::{LeaseHandled, Watcher};
use tokio::sync::Semaphore;

use super::*;

/// Round trips after which what a client was told before has begun there.
const ROUND_TRIPS: u32 = 20;

/// A client with something that waits for the server until the test lets it go there.
struct Late {
    distrusted: Semaphore,
    may_send: Semaphore,
    sent: AtomicU32,
}

impl Watcher for Late {
    fn distrust<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        self.distrusted.add_permits(1);
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(async {
            self.may_send.acquire().await.unwrap().forget();
            self.sent.fetch_add(1, SeqCst);
        })
    }
}

/// One client looks for a name in a directory in which another one works, and a third one makes a
/// name there, which asks for more of the lease: both go on when all is at the server that waited
/// under the lease, although it is recalled twice. Its holder has a clock by which no time passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_recalled_twice_is_returned_when_all_is_sent() {
    let volume = Volume::new(Setup::Secure);
    let (host, port) = (volume.address().ip().to_string(), volume.address().port());
    let clock = Arc::new(SimClock::new());
    let options = MountOptions { port, clock, ..MountOptions::new(&host) };
    let holder = Native::mount(&options).await.unwrap();
    let (looks, makes) = (Arc::new(mount(&volume).await), Arc::new(mount(&volume).await));
    let root = Cred::root();
    let dir = holder.root().await.unwrap().handle;
    let made = makes.make(&root, &dir, "dir".as_ref(), New::Directory, SetAttr::default());
    let made = made.await.unwrap().found.handle;
    let (distrusted, may_send) = (Semaphore::new(0), Semaphore::new(0));
    let late = Arc::new(Late { distrusted, may_send, sent: AtomicU32::new(0) });
    let watcher: Weak<Late> = Arc::downgrade(&late);
    holder.watch(watcher);
    assert!(holder.exclude(&root, &dir).await.unwrap().is_some(), "it works alone there");

    let (at, seen) = (dir.clone(), Arc::clone(&late));
    let looking = tokio::spawn(async move {
        looks.lookup(&Cred::root(), &at, "new".as_ref()).await.unwrap();
        seen.sent.load(SeqCst)
    });
    late.distrusted.acquire().await.unwrap().forget();
    let own = makes.make(&root, &made, "own".as_ref(), New::Directory, SetAttr::default());
    let own = own.await.unwrap().found.handle;
    let before = offered(&makes);
    let (at, seen, maker) = (dir.clone(), Arc::clone(&late), Arc::clone(&makes));
    let making = tokio::spawn(async move {
        let (root, new) = (Cred::root(), New::Directory);
        maker.make(&root, &at, "new".as_ref(), new, SetAttr::default()).await.unwrap();
        seen.sent.load(SeqCst)
    });
    while offered(&makes) == before {
        tokio::task::yield_now().await;
    }
    for mode in 0..ROUND_TRIPS {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        makes.setattr(&root, &own, set, None).await.unwrap();
        holder.statfs(&root, &dir).await.unwrap();
    }
    // Before the lease is returned, and once more after that.
    late.may_send.add_permits(2);
    let sent = [looking.await.unwrap(), making.await.unwrap()];
    assert!(!sent.contains(&0), "sent before each goes on: {sent:?}");
}
