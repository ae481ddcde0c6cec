//! Locks of two mounts of a volume, over the ends of sessions and of servers.

use std::ops::Range;
use std::sync::Weak;

use larder_vfs::LockMode::{Exclusive, Shared};
use larder_vfs::{
    Error, LOCK_END, LeaseHandled, LockChange, LockMode, ReservedLock, Result, Watcher,
};

use super::*;

const ALL: Range<u64> = 0..LOCK_END;

/// How long a session lasts without a call, where a test waits for that. Not shorter: the mounts
/// that live on must renew theirs within that time on a busy machine, too.
pub(super) const SHORT: Options = Options {
    lease: Duration::from_secs(12),
    resilver_rate: 1 << 30,
    archive: None,
    is_archive_durable: false,
};

async fn lock(
    native: &Native,
    file: &Handle,
    range: Range<u64>,
    mode: Option<LockMode>,
) -> Result<()> {
    let changes = [LockChange { range, mode }];
    native.lock(&Cred::root(), file, &changes).await.map(drop)
}

async fn tested(native: &Native, file: &Handle, mode: LockMode) -> Option<LockMode> {
    native.test_lock(&Cred::root(), file, ALL, mode).await.unwrap()
}

/// An orderly end releases locks at once, a mount that is gone when its session expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_end_with_the_session_that_has_them() {
    let volume = Volume::with_options(Setup::Secure, SHORT);
    let mine = mount(&volume).await;
    let file = make(&mine, "file").await;
    let theirs = mount(&volume).await;
    lock(&theirs, &file, 0..10, Some(Exclusive)).await.unwrap();
    lock(&mine, &file, 10..20, Some(Shared)).await.unwrap();
    assert_eq!(lock(&mine, &file, 5..6, Some(Shared)).await, Err(Error::Locked));
    assert_eq!(tested(&mine, &file, Shared).await, Some(Exclusive));
    theirs.leave().await;
    lock(&mine, &file, 5..6, Some(Exclusive)).await.unwrap();
    lock(&mine, &file, ALL, None).await.unwrap();

    let theirs = mount(&volume).await;
    lock(&theirs, &file, ALL, Some(Exclusive)).await.unwrap();
    theirs.shutdown();
    drop(theirs);
    assert_eq!(lock(&mine, &file, 5..6, Some(Exclusive)).await, Err(Error::Locked));
    let _kept = waits(&mine, &file, Exclusive).await;
    lock(&mine, &file, 5..6, Some(Exclusive)).await.unwrap();
}

async fn waits(native: &Native, file: &Handle, mode: LockMode) -> ReservedLock {
    let changes = [LockChange { range: ALL, mode: Some(mode) }];
    let root = Cred::root();
    let waited = native.await_lock(&root, file, &changes);
    let kept = tokio::time::timeout(Duration::from_secs(60), waited).await.expect("nobody tells");
    kept.unwrap().expect("the server tells")
}

fn calls(native: &Native, name: &str) -> u64 {
    let stats = native.stats();
    stats.procedures.iter().find(|one| one.name == name).map_or(0, |one| one.calls)
}

/// First come, first served; a waiter sends no requests while it waits, and a dead holder's session
/// expires like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_called_when_its_turn_comes() {
    let volume = Volume::with_options(Setup::Secure, SHORT);
    let (one, two) = (Arc::new(mount(&volume).await), Arc::new(mount(&volume).await));
    let file = make(&one, "file").await;
    let dead = mount(&volume).await;
    lock(&dead, &file, 0..1, Some(Exclusive)).await.unwrap();
    dead.shutdown();
    drop(dead);
    let kept = waits(&one, &file, Exclusive).await;
    assert_eq!(lock(&two, &file, 0..1, Some(Shared)).await, Err(Error::Locked), "it is kept");
    lock(&one, &file, ALL, Some(Exclusive)).await.unwrap();
    drop(kept);

    let (other, of) = (Arc::clone(&two), file.clone());
    let waiter = tokio::spawn(async move {
        let kept = waits(&other, &of, Exclusive).await;
        lock(&other, &of, ALL, Some(Exclusive)).await.unwrap();
        drop(kept);
    });
    eventually("he stands in line", async || calls(&two, "AWAIT_LOCK") == 1).await;
    // The server has it in its line when it has answered the next call.
    tested(&two, &file, Shared).await;
    lock(&one, &file, ALL, None).await.unwrap();
    waiter.await.unwrap();
    assert_eq!(lock(&one, &file, ALL, Some(Shared)).await, Err(Error::Locked));
    assert_eq!(
        (calls(&two, "LOCK"), calls(&two, "AWAIT_LOCK")),
        (2, 1),
        "nothing is asked in vain"
    );
    assert_eq!((calls(&one, "FORGO_LOCK"), calls(&two, "FORGO_LOCK")), (0, 0));
}

/// A waiter that gives up, while it waits or when its turn comes, blocks no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_blocks_no_other() {
    let volume = Volume::new(Setup::Secure);
    let (one, two, three) = (mount(&volume).await, mount(&volume).await, mount(&volume).await);
    let file = make(&one, "file").await;
    lock(&one, &file, ALL, Some(Exclusive)).await.unwrap();
    let changes = [LockChange { range: ALL, mode: Some(Exclusive) }];
    {
        let root = Cred::root();
        let waited = two.await_lock(&root, &file, &changes);
        let given_up = eventually("he stands in line", async || calls(&two, "AWAIT_LOCK") == 1);
        tokio::select! {
            _ = waited => panic!("somebody else has it"),
            () = given_up => (),
        }
    }
    eventually("the server is told", async || calls(&two, "FORGO_LOCK") == 1).await;
    tested(&two, &file, Shared).await;
    lock(&one, &file, ALL, None).await.unwrap();
    lock(&three, &file, ALL, Some(Exclusive)).await.unwrap();
    let (kept, ()) = tokio::join!(waits(&two, &file, Exclusive), async {
        lock(&three, &file, ALL, None).await.unwrap();
    });
    drop(kept);
    let _kept = waits(&one, &file, Exclusive).await;
    lock(&one, &file, ALL, Some(Exclusive)).await.unwrap();
}

/// No client gets a lock that another client had before the server was restarted, however early it
/// asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_claimed_after_the_metadata_server_was_started_anew() {
    let mut volume = Volume::new(Setup::Secure);
    let (one, two) = (mount(&volume).await, Arc::new(mount(&volume).await));
    let file = make(&one, "file").await;
    lock(&one, &file, 0..10, Some(Exclusive)).await.unwrap();
    lock(&one, &file, 10..20, Some(Shared)).await.unwrap();
    lock(&two, &file, 30..40, Some(Exclusive)).await.unwrap();
    let (waiting, of) = (Arc::clone(&two), file.clone());
    let waiter = tokio::spawn(async move {
        // A client that waited during the restart asks again.
        let mut kept = None;
        while lock(&waiting, &of, 0..5, Some(Exclusive)).await == Err(Error::Locked) {
            kept = Some(waits(&waiting, &of, Exclusive).await);
        }
        drop(kept);
    });
    eventually("he stands in line", async || calls(&two, "AWAIT_LOCK") == 1).await;
    volume.kill();
    volume.start();
    let new = mount(&volume).await;
    assert_eq!(lock(&new, &file, 5..6, Some(Shared)).await, Err(Error::Locked));
    assert_eq!(lock(&new, &file, 10..11, Some(Exclusive)).await, Err(Error::Locked));
    assert_eq!(lock(&new, &file, 39..41, Some(Shared)).await, Err(Error::Locked));
    lock(&new, &file, 10..30, Some(Shared)).await.unwrap();
    lock(&new, &file, ALL, None).await.unwrap();
    assert_eq!(lock(&one, &file, 30..31, Some(Shared)).await, Err(Error::Locked));
    lock(&one, &file, ALL, None).await.unwrap();
    waiter.await.unwrap();
    assert_eq!(tested(&new, &file, Shared).await, Some(Exclusive));
    assert_eq!(one.lapses(), 0, "no other client can have had its locks");
}

/// Notes that locks were lost.
#[derive(Default)]
struct Loss(tokio::sync::Notify);

impl Watcher for Loss {
    fn distrust<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }

    fn locks_lost(&self, _: &Handle) {
        self.0.notify_one();
    }
}

/// A mount that does not call for too long: by its clock no time passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_lost_its_locks_with_its_session_is_told() {
    let volume = Volume::with_options(Setup::Secure, SHORT);
    let two = mount(&volume).await;
    let (kept, lost) = (make(&two, "kept").await, make(&two, "lost").await);
    let clock = Arc::new(larder_io::SimClock::new());
    let (host, port) = (volume.address().ip().to_string(), volume.address().port());
    let options = MountOptions { port, clock, ..MountOptions::new(&host) };
    let one = Native::mount(&options).await.unwrap();
    let loss = Arc::new(Loss::default());
    let watcher: Weak<Loss> = Arc::downgrade(&loss);
    one.watch(watcher);
    for file in [&kept, &lost] {
        lock(&one, file, 0..10, Some(Exclusive)).await.unwrap();
    }
    let turn = waits(&two, &lost, Exclusive).await;
    lock(&two, &lost, 5..6, Some(Shared)).await.unwrap();
    drop(turn);
    one.statfs(&Cred::root(), &kept).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(60), loss.0.notified()).await;
    told.expect("who lost his locks is told");
    assert!(one.lapses() > 0);
    // A lock that no other client wanted is taken again.
    lock(&one, &kept, 20..21, Some(Exclusive)).await.unwrap();
    assert_eq!(lock(&two, &kept, 5..6, Some(Shared)).await, Err(Error::Locked));
    assert_eq!(lock(&one, &lost, 5..6, Some(Exclusive)).await, Err(Error::Locked));
    lock(&two, &lost, 6..10, Some(Exclusive)).await.unwrap();
}
