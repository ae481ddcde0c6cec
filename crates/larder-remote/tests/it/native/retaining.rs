//! Bytes that only their creator has: what the server is told of them, and what that costs.

use std::sync::Weak;

use larder_vfs::{LeaseHandled, Volatile, Watcher};

use super::bare::{EARLIER, PRESENT, serve};
use super::*;

const SCRATCH: SetAttr = SetAttr {
    mode: Some(0o644),
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    in_memory: Some(Volatile { copies: 1, due: None }),
    retained: true,
};

/// Holds leases, and sends nothing when they are recalled.
struct Idle;

impl Watcher for Idle {
    fn distrust<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }
}

/// Two mounts of a volume without disks; the first one has leases for as long as `idle` lives.
async fn mounts(procedures: u32, idle: &Arc<Idle>) -> [Native; 2] {
    let address = serve(procedures).await;
    let port = address.port();
    let options = MountOptions { port, ..MountOptions::new(&address.ip().to_string()) };
    let first = Native::mount(&options).await.unwrap();
    let watcher: Weak<Idle> = Arc::downgrade(idle);
    first.watch(watcher);
    [first, Native::mount(&options).await.unwrap()]
}

/// Makes a file and closes it.
async fn made(native: &Native, set: SetAttr) -> Handle {
    let (root, top) = (Cred::root(), native.root().await.unwrap().handle);
    let made = native.make(&root, &top, "file".as_ref(), New::File, set).await.unwrap();
    native.close(&root, made.token.unwrap()).await.unwrap();
    made.found.handle
}

/// A new file that is to be retained has its lease with the answer: to make, retain and remove it
/// costs one call more than its name, and one more only if it has other bytes at a later close.
/// Another file is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_retained_without_asking_for_its_lease() {
    let idle = Arc::new(Idle);
    for retained in [true, false] {
        let [native, _other] = mounts(PRESENT, &idle).await;
        let root = Cred::root();
        let file = made(&native, SetAttr { retained, ..SCRATCH }).await;
        assert_eq!(native.is_excluding(&file), retained);
        let before = calls(&native, "LOOK");
        assert!(native.exclude(&root, &file).await.unwrap().is_some());
        assert!(native.retain(&root, &file, 5).await.unwrap() && native.retains(&file));
        // Closed again, it has the same bytes.
        assert!(native.retain(&root, &file, 5).await.unwrap());
        assert_eq!(calls(&native, "RETAIN"), 1);
        assert!(native.retain(&root, &file, 6).await.unwrap());
        assert_eq!(calls(&native, "LOOK") - before, u64::from(!retained));
        let top = native.root().await.unwrap().handle;
        let removed = native.remove(&root, &top, "file".as_ref(), larder_vfs::Removal::File);
        removed.await.unwrap();
        assert!(!native.retains(&file));
        assert_eq!((calls(&native, "RETAIN"), calls(&native, "OPEN")), (2, 1));
    }
}

/// Who has a file moved to disks that another client retains is not told that it is there before
/// that client has sent it, or has lost it. (This one has nobody who sends.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_retains_is_not_taken_for_durable() {
    let idle = Arc::new(Idle);
    let [native, other] = mounts(PRESENT, &idle).await;
    let root = Cred::root();
    let file = made(&native, SCRATCH).await;
    assert!(native.retain(&root, &file, 5).await.unwrap());
    let left = other.leave_memory(&root, &file, Duration::ZERO).await;
    assert_eq!(left.unwrap_err(), larder_vfs::Error::Lost);
    assert!(!native.retains(&file));
}

/// A server of an earlier version is asked once: what is closed must be sent to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_an_earlier_version_has_nothing_retained() {
    let idle = Arc::new(Idle);
    let [native, _other] = mounts(EARLIER, &idle).await;
    let root = Cred::root();
    let file = made(&native, SCRATCH).await;
    for _ in 0..2 {
        assert!(!native.retain(&root, &file, 5).await.unwrap());
        assert!(!native.retains(&file));
        native.release(&root, &file, true).await.unwrap();
    }
    assert_eq!(calls(&native, "RETAIN"), 1);
}
