//! Locks that are passed on: this client and another one are two holders at a server.

use std::ops::Range;
use std::time::Duration;

use larder_client::{Options, Start};
use larder_vfs::LockMode::{Exclusive, Shared};
use larder_vfs::{
    Error, FileSystem, GivenUp, LOCK_END, Lock, LockKind, LockMode, LockOwner, Result, SetAttr,
};

use crate::rig::{Open, READ, Rig, WRITE, root};

const ALL: Range<u64> = 0..LOCK_END;

fn process(id: u64) -> LockOwner {
    LockOwner { kind: LockKind::Range, id }
}

/// One of flock(2).
fn whole(id: u64) -> LockOwner {
    LockOwner { kind: LockKind::Whole, id }
}

fn lock(owner: LockOwner, range: Range<u64>, mode: LockMode) -> Lock {
    Lock { owner, pid: 7, range, mode }
}

/// A waiter waits until it has the lock.
fn for_ever() -> Option<GivenUp> {
    Some(Box::pin(std::future::pending()))
}

async fn try_lock(rig: &Rig, open: &Open<'_>, wanted: Lock) -> Result<()> {
    rig.client.lock(open.ino, open.id, wanted, None).wait().await
}

async fn unlock(rig: &Rig, open: &Open<'_>, owner: LockOwner, range: Range<u64>) {
    rig.client.unlock(open.ino, open.id, owner, range).wait().await.unwrap();
}

async fn test(rig: &Rig, open: &Open<'_>, wanted: Lock) -> Option<Lock> {
    rig.client.test_lock(open.ino, open.id, wanted).wait().await.unwrap()
}

/// A client that passes locks on, and another one.
async fn two() -> (Rig, Rig) {
    let here = Rig::new(Options { pass_locks: true, ..Options::default() }).await;
    let there = here.foreigner().await;
    here.put("file", b"0123456789").await;
    (here, there)
}

#[tokio::test]
async fn what_one_of_this_client_has_costs_no_request_and_another_client_is_refused() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    let asked = || here.server.calls("lock");
    let shared = |id| lock(process(id), 0..10, Shared);
    try_lock(&here, &mine, shared(1)).await.unwrap();
    assert_eq!(asked(), 1);
    try_lock(&here, &mine, shared(2)).await.unwrap();
    let refused = try_lock(&here, &mine, lock(process(3), 5..6, Exclusive)).await;
    assert_eq!(refused, Err(Error::Locked));
    let holder = test(&here, &mine, lock(process(3), 5..6, Exclusive)).await.unwrap();
    assert!([process(1), process(2)].contains(&holder.owner) && holder.range == (0..10));
    assert_eq!((asked(), here.server.calls("test_lock")), (1, 0));

    let refused = try_lock(&there, &theirs, lock(process(1), 9..20, Exclusive)).await;
    assert_eq!(refused, Err(Error::Locked));
    let wanted = lock(process(1), 9..20, Exclusive);
    let found = test(&there, &theirs, wanted.clone()).await;
    assert_eq!(found, Some(Lock { pid: 0, mode: Shared, ..wanted.clone() }));
    // The server has it until the last one has let go.
    unlock(&here, &mine, process(1), ALL).await;
    assert_eq!(asked(), 1);
    assert_eq!(try_lock(&there, &theirs, wanted.clone()).await, Err(Error::Locked));
    unlock(&here, &mine, process(2), ALL).await;
    try_lock(&there, &theirs, wanted).await.unwrap();
}

/// As on a local file, fcntl(2) and flock(2) locks ignore each other within a machine.
#[tokio::test]
async fn the_two_kinds_exclude_each_other_between_clients_only() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    try_lock(&here, &mine, lock(whole(1), ALL, Exclusive)).await.unwrap();
    try_lock(&here, &mine, lock(process(2), 0..1, Exclusive)).await.unwrap();
    let refused = try_lock(&there, &theirs, lock(process(1), 5..6, Shared)).await;
    assert_eq!(refused, Err(Error::Locked));
    unlock(&here, &mine, whole(1), ALL).await;
    try_lock(&there, &theirs, lock(process(1), 5..6, Shared)).await.unwrap();
    let refused = try_lock(&there, &theirs, lock(whole(1), ALL, Shared)).await;
    assert_eq!(refused, Err(Error::Locked), "of the range of process 2");
}

#[tokio::test]
async fn what_was_written_under_a_lock_is_at_the_server_before_anybody_else_gets_it() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    assert_eq!(theirs.read(0, 99).await.unwrap(), b"0123456789");
    for round in 0..3_u8 {
        try_lock(&here, &mine, lock(process(1), 0..3, Exclusive)).await.unwrap();
        assert_eq!(mine.read(3, 1).await.unwrap(), [b'3' + round]);
        mine.write(0, &[b'a' + round; 3]).await.unwrap();
        unlock(&here, &mine, process(1), 0..3).await;
        try_lock(&there, &theirs, lock(process(1), 0..3, Exclusive)).await.unwrap();
        let read = theirs.read(0, 3).await.unwrap();
        assert_eq!(read, [b'a' + round; 3]);
        theirs.write(3, &[b'4' + round]).await.unwrap();
        unlock(&there, &theirs, process(1), 0..3).await;
    }
}

/// A change of ours is in flight when a lock is granted, or was answered since the lock was asked
/// for: its answer tells nothing of what another client has written after it, and may take long.
#[tokio::test]
async fn a_holder_sees_what_was_written_elsewhere_after_a_change_of_ours() {
    for (is_answered_first, seconds) in [(true, 0), (false, 0), (false, 100)] {
        let (here, there) = two().await;
        let mine = here.open(&root(), "file", READ).await.unwrap();
        assert_eq!(mine.read(0, 99).await.unwrap(), b"0123456789");
        here.server.reset_calls();
        here.server.hold_answers(Some("setattr"));
        here.server.hold(is_answered_first.then_some("lock"));
        let set = here.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() });
        let writing = async {
            while here.server.calls("setattr") == 0 {
                tokio::task::yield_now().await;
            }
            there.put("file", b"0123theirs").await;
            here.clock.advance(Duration::from_millis(1));
            try_lock(&here, &mine, lock(process(1), 4..10, Shared)).await.unwrap();
            assert_eq!(mine.read(4, 6).await.unwrap(), b"theirs", "{is_answered_first}");
        };
        let answering = async {
            while here.server.calls("lock") == 0 {
                tokio::task::yield_now().await;
            }
            // A reader that does not wait for it is done by then.
            for _ in 0..=seconds {
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                here.clock.advance(Duration::from_millis(1 + 1000 * u64::from(seconds > 0)));
            }
            here.server.hold_answers(None);
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            here.server.hold(None);
        };
        tokio::join!(set, writing, answering);
    }
}

/// This mount has unsent bytes of the file, over another client's: what the cache has beside them
/// is older.
#[tokio::test]
async fn a_holder_sees_what_was_written_elsewhere_beside_unsent_bytes() {
    for is_seen_before in [false, true] {
        let (here, there) = two().await;
        let mine = here.open(&root(), "file", WRITE).await.unwrap();
        assert_eq!(mine.read(0, 99).await.unwrap(), b"0123456789");
        there.put("file", b"0123theirs").await;
        mine.write(0, b"a").await.unwrap();
        if is_seen_before {
            here.clock.advance(Duration::from_secs(100));
            here.stat("file").await;
        }
        try_lock(&here, &mine, lock(process(1), 4..10, Shared)).await.unwrap();
        assert_eq!(mine.read(0, 10).await.unwrap(), b"a123theirs", "{is_seen_before}");
        mine.close().await.unwrap();
        assert_eq!(there.cat("file").await, b"a123theirs");
    }
}

/// The same if these cannot be sent, or a process of this mount writes on meanwhile.
#[tokio::test]
async fn a_holder_sees_what_was_written_elsewhere_beside_bytes_that_stay_unsent() {
    for is_full in [true, false] {
        let (here, there) = two().await;
        let mine = here.open(&root(), "file", WRITE).await.unwrap();
        assert_eq!(mine.read(0, 99).await.unwrap(), b"0123456789");
        there.put("file", b"0123theirs").await;
        mine.write(0, b"ab").await.unwrap();
        here.server.reset_calls();
        here.server.set_full(is_full);
        here.server.hold((!is_full).then_some("write"));
        let locking = try_lock(&here, &mine, lock(process(1), 4..10, Shared));
        let writing = async {
            // A lock that sends nothing is done by then.
            for _ in (0..1000).take_while(|_| here.server.calls("write") == 0) {
                tokio::task::yield_now().await;
            }
            mine.write(1, b"c").await.unwrap();
            here.server.hold(None);
        };
        let (locked, ()) = tokio::join!(locking, writing);
        locked.unwrap();
        assert_eq!(mine.read(0, 10).await.unwrap(), b"ac23theirs", "{is_full}");
        here.server.set_full(false);
        mine.close().await.unwrap();
        assert_eq!(there.cat("file").await, b"ac23theirs");
    }
}

/// No other call would report it before the close.
#[tokio::test]
async fn an_unlock_tells_that_what_was_written_could_not_be_sent() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    for error in [Error::NoSpace, Error::TimedOut] {
        try_lock(&here, &mine, lock(process(1), 0..3, Exclusive)).await.unwrap();
        mine.write(0, b"new").await.unwrap();
        here.server.fail_next(1, error);
        let unlocked = here.client.unlock(mine.ino, mine.id, process(1), ALL).wait().await;
        assert_eq!(unlocked, Err(error));
        try_lock(&there, &theirs, lock(process(1), 0..3, Exclusive)).await.unwrap();
        assert_eq!(theirs.read(0, 3).await.unwrap(), b"012", "it is not there");
        unlock(&there, &theirs, process(1), ALL).await;
    }
    here.client.fsync(&root(), mine.ino, None).wait().await.unwrap();
    try_lock(&there, &theirs, lock(process(1), 0..3, Shared)).await.unwrap();
    assert_eq!(theirs.read(0, 3).await.unwrap(), b"new", "it was kept");
}

#[tokio::test]
async fn bytes_that_another_lock_keeps_back_are_no_failure_of_an_unlock() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    try_lock(&here, &mine, lock(process(1), 0..3, Exclusive)).await.unwrap();
    mine.write(0, b"new").await.unwrap();
    here.server.fail_next(1, Error::Locked);
    assert_eq!(here.client.unlock(mine.ino, mine.id, process(1), ALL).wait().await, Ok(()));
    here.client.fsync(&root(), mine.ino, None).wait().await.unwrap();
    try_lock(&there, &theirs, lock(process(1), 0..3, Shared)).await.unwrap();
    assert_eq!(theirs.read(0, 3).await.unwrap(), b"new", "it was kept");
}

#[tokio::test]
async fn a_process_that_waits_for_another_client_gets_the_lock_or_gives_up() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    try_lock(&there, &theirs, lock(process(1), 0..5, Exclusive)).await.unwrap();
    let wanted = lock(process(1), 0..10, Exclusive);
    let (give_up, told) = tokio::sync::oneshot::channel::<()>();
    let given_up: GivenUp = Box::pin(async move { told.await.unwrap() });
    let waits = here.client.lock(mine.ino, mine.id, wanted.clone(), Some(given_up));
    let waits = tokio::spawn(waits.wait());
    let asked = async {
        while here.server.calls("lock") < 5 {
            tokio::task::yield_now().await;
        }
    };
    here.in_vain(asked).await;
    give_up.send(()).unwrap();
    assert_eq!(waits.await.unwrap(), Err(Error::Interrupted));
    unlock(&there, &theirs, process(1), ALL).await;
    try_lock(&there, &theirs, wanted.clone()).await.unwrap();

    let waits = here.client.lock(mine.ino, mine.id, wanted, for_ever());
    let asked = here.server.calls("lock");
    let waits = tokio::spawn(waits.wait());
    let unlocked = async {
        while here.server.calls("lock") < asked + 3 {
            tokio::task::yield_now().await;
        }
        unlock(&there, &theirs, process(1), ALL).await;
        waits.await.unwrap()
    };
    here.in_vain(unlocked).await.unwrap();
}

#[tokio::test]
async fn a_circle_of_waiters_is_refused() {
    let (here, _there) = two().await;
    let open = here.open(&root(), "file", WRITE).await.unwrap();
    try_lock(&here, &open, lock(process(1), 0..1, Exclusive)).await.unwrap();
    try_lock(&here, &open, lock(process(2), 1..2, Exclusive)).await.unwrap();
    let first = lock(process(1), 1..2, Shared);
    let mut waits = Box::pin(here.client.lock(open.ino, open.id, first, for_ever()).wait());
    let pending = std::future::poll_fn(|context| {
        std::task::Poll::Ready(waits.as_mut().poll(context).is_pending())
    });
    assert!(pending.await);
    let waits = tokio::spawn(waits);
    let second = lock(process(2), 0..1, Shared);
    let refused = async {
        loop {
            // Once the first one waits.
            let tried = here.client.lock(open.ino, open.id, second.clone(), for_ever()).wait();
            if let Ok(tried) =
                tokio::time::timeout(std::time::Duration::from_millis(20), tried).await
            {
                return tried;
            }
        }
    };
    assert_eq!(refused.await, Err(Error::Deadlock));
    unlock(&here, &open, process(2), ALL).await;
    assert_eq!(waits.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_close_ends_the_locks_of_its_process_and_asks_no_server_if_it_has_none() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", READ).await.unwrap();
    let again = here.open(&root(), "file", READ).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    let wanted = lock(process(1), 0..5, Exclusive);
    try_lock(&here, &mine, lock(process(1), ALL, Shared)).await.unwrap();
    try_lock(&here, &mine, lock(whole(9), ALL, Shared)).await.unwrap();
    let close = |open: &Open<'_>, id| {
        here.client.flush(&root(), open.ino, open.id, Some(process(id))).wait()
    };
    let asked = here.server.calls_total();
    close(&again, 2).await.unwrap();
    assert_eq!(here.server.calls_total(), asked, "process 2 has none");
    assert_eq!(try_lock(&there, &theirs, wanted.clone()).await, Err(Error::Locked));
    close(&again, 1).await.unwrap();
    assert_eq!(try_lock(&there, &theirs, wanted.clone()).await, Err(Error::Locked));
    // flock(2) ends with the open file.
    here.client.release(mine.ino, mine.id).wait().await.unwrap();
    try_lock(&there, &theirs, wanted).await.unwrap();
}

#[tokio::test]
async fn a_holder_that_lost_its_locks_is_told_until_it_unlocks() {
    let (here, there) = two().await;
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    let other = here.open(&root(), "file", WRITE).await.unwrap();
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    let wanted = |id| lock(process(id), 0..5, Exclusive);
    try_lock(&here, &mine, wanted(1)).await.unwrap();
    here.server.lose_locks();
    try_lock(&there, &theirs, wanted(1)).await.unwrap();
    assert_eq!(mine.read(0, 1).await, Err(Error::Io));
    assert_eq!(mine.write(0, b"x").await, Err(Error::Io));
    assert_eq!(try_lock(&here, &mine, wanted(1)).await, Err(Error::Io));
    assert_eq!(other.read(0, 1).await.unwrap(), b"0", "nothing was locked by it");
    unlock(&here, &mine, process(1), ALL).await;
    assert_eq!(mine.read(0, 1).await.unwrap(), b"0");
    assert_eq!(try_lock(&here, &mine, wanted(1)).await, Err(Error::Locked));
    unlock(&there, &theirs, process(1), ALL).await;
    try_lock(&here, &mine, wanted(1)).await.unwrap();
}

#[tokio::test]
async fn the_next_process_has_the_locks_of_the_one_before_it() {
    let (here, there) = two().await;
    let theirs = there.open(&root(), "file", WRITE).await.unwrap();
    let mine = here.open(&root(), "file", WRITE).await.unwrap();
    try_lock(&here, &mine, lock(process(1), 0..5, Exclusive)).await.unwrap();
    try_lock(&here, &mine, lock(process(1), 3..5, Shared)).await.unwrap();
    let names = mine.names();
    let here = here.kill(Start::Resume).await;
    let mine = here.again(names);
    while here.server.calls("lock") == 0 {
        tokio::task::yield_now().await;
    }
    let wanted = |mode| lock(process(1), 3..10, mode);
    assert_eq!(try_lock(&there, &theirs, wanted(Exclusive)).await, Err(Error::Locked));
    try_lock(&there, &theirs, wanted(Shared)).await.unwrap();
    let holder = test(&here, &mine, lock(process(2), 0..1, Shared)).await.unwrap();
    assert_eq!((holder.owner, holder.range), (process(1), 0..3));
    unlock(&there, &theirs, process(1), ALL).await;
    here.client.flush(&root(), mine.ino, mine.id, Some(process(1))).wait().await.unwrap();
    try_lock(&there, &theirs, lock(process(1), ALL, Exclusive)).await.unwrap();
}
