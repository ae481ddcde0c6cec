//! Locks of processes, on mounts that pass them on: GETLK, SETLK, SETLKW, and the callers that wait
//! for one.
//!
//! The kernel identifies the holder of a lock by a number: for fcntl(2) it stands for a process'
//! table of descriptors, for open file description locks and flock(2) for the open file. It does
//! not send unlocks for locks that end implicitly: FLUSH, one for each descriptor that is closed,
//! carries the number of the process, whose locks on the file end with it; RELEASE ends those of
//! the open file.
//!
//! A caller that waits for a lock differs from one that waits for any other answer: any signal ends
//! the wait, not only one that kills, and a hand-over to another process does not wait for it (the
//! kernel sends the request again, to the next one).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_vfs::{Answer, GivenUp, LOCK_END, Lock, LockKind, LockMode, LockOwner, Result};
use tokio::sync::oneshot;

use crate::abi::{LK_FLOCK, LkIn, LkOut, UNIQUE_RESEND};
use crate::errno::errno;
use crate::output::Output;

/// Ends the waits for locks of callers that gave up, by the kernel's number of their requests.
#[derive(Default)]
pub(crate) struct LockWaits(Mutex<HashMap<u64, oneshot::Sender<()>>>);

impl LockWaits {
    fn waits(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.waits().len()
    }

    /// The caller of this request no longer waits, if it is one for a lock.
    pub(crate) fn give_up(&self, unique: u64) {
        if let Some(given_up) = self.waits().remove(&unique) {
            // Or the lock is there already.
            let _ = given_up.send(());
        }
    }

    /// Makes the file system wait for a lock, with `lock`, which gets the future that ends the
    /// wait.
    pub(crate) fn wait(
        self: &Arc<Self>,
        unique: u64,
        lock: impl FnOnce(GivenUp) -> Answer<()>,
    ) -> Answer<()> {
        let unique = unique & !UNIQUE_RESEND;
        let given_up = self.begin(unique);
        let waits = Waiting { waits: Arc::clone(self), unique };
        match lock(given_up) {
            Answer::Now(result) => Answer::Now(result),
            Answer::Later(locking) => Answer::later(async move {
                let result = locking.await;
                drop(waits);
                result
            }),
        }
    }

    fn begin(&self, unique: u64) -> GivenUp {
        let (sender, receiver) = oneshot::channel::<()>();
        self.waits().insert(unique, sender);
        Box::pin(async move {
            if receiver.await.is_err() {
                // The wait cannot be ended any more.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// A process, by the kernel's number for holders of fcntl(2) locks.
pub(crate) fn process(id: u64) -> LockOwner {
    LockOwner { kind: LockKind::Range, id }
}

/// The owner, the bytes, and the mode of a request; no mode means to unlock them.
pub(crate) fn wanted(lock: &LkIn) -> Option<(Lock, bool)> {
    let (start, end) = (lock.start, lock.end.checked_add(1)?);
    if start >= end || end > LOCK_END {
        return None;
    }
    let (mode, unlocks) = match i32::try_from(lock.kind).ok()? {
        libc::F_RDLCK => (LockMode::Shared, false),
        libc::F_WRLCK => (LockMode::Exclusive, false),
        libc::F_UNLCK => (LockMode::Shared, true),
        _ => return None,
    };
    let kind = if lock.lk_flags & LK_FLOCK != 0 { LockKind::Whole } else { LockKind::Range };
    let owner = LockOwner { kind, id: lock.owner };
    Some((Lock { owner, pid: lock.pid, range: start..end, mode }, unlocks))
}

/// The answer to GETLK.
pub(crate) fn found(result: Result<Option<Lock>>) -> Output {
    let none = libc::F_UNLCK as u32;
    match result {
        Ok(None) => Output::of(&LkOut { start: 0, end: 0, kind: none, pid: 0 }),
        Ok(Some(Lock { pid, range, mode, .. })) => {
            let kind = match mode {
                LockMode::Shared => libc::F_RDLCK,
                LockMode::Exclusive => libc::F_WRLCK,
            };
            let (start, end) = (range.start, range.end - 1);
            Output::of(&LkOut { start, end, kind: kind as u32, pid })
        }
        Err(error) => Output::error(errno(error)),
    }
}

/// A request that waits for a lock, as long as it does.
struct Waiting {
    waits: Arc<LockWaits>,
    unique: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.waits().remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(start: u64, end: u64, kind: i32, lk_flags: u32) -> Option<(Lock, bool)> {
        let kind = kind as u32;
        wanted(&LkIn { owner: 7, start, end, kind, pid: 9, lk_flags, ..LkIn::default() })
    }

    #[test]
    fn requests_are_locks_of_ranges_that_do_not_contain_their_end() {
        let whole = i64::MAX as u64;
        let (lock, unlocks) = asked(0, whole, libc::F_WRLCK, LK_FLOCK).unwrap();
        assert!(!unlocks);
        let owner = LockOwner { kind: LockKind::Whole, id: 7 };
        assert_eq!(lock, Lock { owner, pid: 9, range: 0..LOCK_END, mode: LockMode::Exclusive });
        let (lock, unlocks) = asked(5, 5, libc::F_UNLCK, 0).unwrap();
        assert!(unlocks && lock.owner == process(7) && lock.range == (5..6));
        for (start, end, kind) in
            [(5, 4, libc::F_RDLCK), (0, u64::MAX, 0), (0, LOCK_END, 0), (0, 1, 3), (0, 1, -1)]
        {
            assert_eq!(asked(start, end, kind, 0), None, "{start} {end} {kind}");
        }
    }

    #[tokio::test]
    async fn a_waiter_gives_up_when_told_and_only_then() {
        let waits = LockWaits::default();
        let (first, second) = (waits.begin(1), waits.begin(2));
        assert_eq!(waits.count(), 2);
        waits.give_up(3);
        waits.give_up(1);
        first.await;
        waits.waits().clear();
        let mut second = second;
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(second.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "the wait is over by itself");
    }
}
