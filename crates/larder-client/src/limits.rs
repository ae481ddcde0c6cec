//! Waits within a call's deadline: for a file's turn, and for room among the requests in flight.
//!
//! A slow link is not a silent server: a call that waits for others that move data waits for as
//! long as they do, and its limit starts again when data last moved ([`Progress`]). Ending a wait
//! leaves nothing behind: the work that it waited for belongs to others, which continue. Requests
//! are not cut off here; each ends by the deadline that it carries.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use larder_io::Clock;
use larder_vfs::{Cred, Deadline, Error, Result};
use tokio::sync::{MutexGuard, Semaphore, SemaphorePermit};

/// When data last moved.
struct Progress {
    clock: Arc<dyn Clock>,
    moved: Mutex<Option<Instant>>,
}

impl Progress {
    fn new(clock: Arc<dyn Clock>) -> Progress {
        Progress { clock, moved: Mutex::new(None) }
    }

    fn note(&self) {
        let now = self.clock.instant();
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// `deadline`, counted again from when data last moved.
    fn extend(&self, deadline: Deadline) -> Deadline {
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.map_or(deadline, |when| deadline.moved(when))
    }

    /// Waits for others, until `deadline`, or for as long as they move data.
    async fn wait<T>(
        &self,
        deadline: Option<Deadline>,
        others: impl Future<Output = T>,
    ) -> Result<T> {
        let Some(mut until) = deadline else { return Ok(others.await) };
        tokio::pin!(others);
        loop {
            if let Ok(done) = self.clock.timeout_at(until.at(), &mut others).await {
                return Ok(done);
            }
            let extended = self.extend(until);
            if extended == until {
                return Err(Error::TimedOut);
            }
            until = extended;
        }
    }
}

/// The turn to move data or size of one file between cache and server: one operation at a time.
pub(crate) struct Transfer {
    turn: tokio::sync::Mutex<()>,
    progress: Progress,
}

/// The turn to move a file's data. Ends when dropped.
pub(crate) struct Transferring<'a> {
    progress: &'a Progress,
    _turn: MutexGuard<'a, ()>,
}

impl Transfer {
    /// No data moves yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Transfer {
        Transfer { turn: tokio::sync::Mutex::default(), progress: Progress::new(clock) }
    }

    /// Waits for the turn, until `deadline`, or for as long as the operation that has it moves
    /// data.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn begin(&self, deadline: Option<Deadline>) -> Result<Transferring<'_>> {
        let turn = self.progress.wait(deadline, self.turn.lock()).await?;
        Ok(Transferring { progress: &self.progress, _turn: turn })
    }

    /// Whether some operation has the turn, for assertions of code that needs it.
    pub(crate) fn is_taken(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    /// The turn, if it is free.
    pub(crate) fn try_begin(&self) -> Option<Transferring<'_>> {
        Some(Transferring { progress: &self.progress, _turn: self.turn.try_lock().ok()? })
    }
}

impl Transferring<'_> {
    /// Whether this is the turn of the file with this `transfer`.
    pub(crate) fn is_of(&self, transfer: &Transfer) -> bool {
        std::ptr::eq(self.progress, &raw const transfer.progress)
    }

    /// The server has taken some of the data just now.
    pub(crate) fn progress(&self) {
        self.progress.note();
    }

    /// `deadline`, counted again from when data last moved.
    pub(crate) fn extend(&self, deadline: Option<Deadline>) -> Option<Deadline> {
        deadline.map(|deadline| self.progress.extend(deadline))
    }
}

/// Limits how many KiB of all files are in flight between server and cache.
pub(crate) struct Budget {
    room: Semaphore,
    progress: Progress,
}

/// Room for some bytes in flight. Free again when dropped.
pub(crate) struct Room<'a> {
    progress: &'a Progress,
    _permit: SemaphorePermit<'a>,
}

impl Budget {
    /// Room for so many KiB.
    pub(crate) fn new(kib: usize, clock: Arc<dyn Clock>) -> Budget {
        Budget { room: Semaphore::new(kib), progress: Progress::new(clock) }
    }

    /// Waits for room for `kib`, until the caller's deadline, or for as long as other operations
    /// move data. Returns the caller with what is left of its deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn take(&self, kib: u32, caller: &Cred) -> Result<(Room<'_>, Cred)> {
        debug_assert!(kib > 0, "what moves takes room");
        let permit = self.progress.wait(caller.deadline, self.room.acquire_many(kib)).await?;
        let permit = permit.map_err(|_| Error::Shutdown)?;
        let deadline = caller.deadline.map(|deadline| self.progress.extend(deadline));
        Ok((Room { progress: &self.progress, _permit: permit }, caller.until(deadline)))
    }
}

impl Room<'_> {
    /// The bytes have arrived.
    pub(crate) fn progress(&self) {
        self.progress.note();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_io::SimClock;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A clock that stands still, and the deadline of a call that is made now.
    fn begin() -> (Arc<SimClock>, Option<Deadline>) {
        let clock = Arc::new(SimClock::new());
        let deadline = Deadline::new(clock.instant(), LIMIT);
        (clock, Some(deadline))
    }

    /// The result of a wait once the clock has moved by `time`.
    async fn after<T>(clock: &SimClock, time: Duration, wait: impl Future<Output = T>) -> T {
        let moved = async {
            clock.asleep(1).await;
            clock.advance(time);
        };
        tokio::join!(wait, moved).0
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_turn_gives_up_at_the_deadline() {
        let (clock, deadline) = begin();
        let transfer = Transfer::new(clock.clone());
        let first = transfer.begin(None).await.unwrap();
        let second = after(&clock, LIMIT, transfer.begin(deadline)).await;
        assert_eq!(second.err(), Some(Error::TimedOut));
        drop(first);
        let (_, deadline) = begin();
        assert!(transfer.begin(deadline).await.is_ok(), "the turn was not lost to who gave up");
    }

    /// A link may be slow: as long as data moves, no wait times out.
    #[tokio::test]
    async fn a_call_that_waits_for_data_in_motion_waits_on() {
        let (clock, deadline) = begin();
        let transfer = Transfer::new(clock.clone());
        let first = transfer.begin(None).await.unwrap();
        let moving = async {
            clock.asleep(1).await;
            clock.advance(LIMIT / 2);
            first.progress();
            clock.advance(LIMIT / 2);
            // It sleeps again, until the limit after data last moved.
            clock.asleep(1).await;
            assert_eq!(clock.next_wake(), Some(clock.instant() + LIMIT / 2));
            drop(first);
        };
        let ((), turn) = tokio::join!(moving, transfer.begin(deadline));
        let extended = turn.unwrap().extend(deadline).unwrap();
        assert_eq!(extended.at(), deadline.unwrap().at() + LIMIT / 2);
    }

    /// A caller that got room has at least the limit left, counted from when other operations last
    /// moved data.
    #[tokio::test]
    async fn room_that_is_not_there_in_time_is_not_waited_for() {
        let (clock, deadline) = begin();
        let budget = Budget::new(8, clock.clone());
        let caller = Cred::root().until(deadline);
        let (room, _) = budget.take(8, &caller).await.unwrap();
        let refused = after(&clock, LIMIT, budget.take(1, &caller)).await;
        assert_eq!(refused.err(), Some(Error::TimedOut));
        room.progress();
        drop(room);
        let (_room, extended) = budget.take(8, &caller).await.unwrap();
        assert_eq!(extended.deadline.unwrap().at(), deadline.unwrap().at() + LIMIT);
    }
}
