//! Waits within a call's deadline: for a file's turn, and for room among the requests in flight.
//!
//! A slow link is not a silent server: a call that waits for others that move data waits for as
//! long as they do, and its limit starts again when data last moved ([`Movement`]). Ending a wait
//! leaves nothing behind: the work that it waited for belongs to others, which continue. Requests
//! are not cut off here; each ends by the deadline that it carries.
//!
//! What nobody waits for goes to the server within the mount's limit on bytes per second
//! ([`Transferring::pass`]). As soon as a caller waits for the turn of a file, the limit does not
//! hold for that file: a caller waits for the server, and never for the limit.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use larder_io::{Clock, Rate};
use larder_vfs::{Cred, Deadline, Error, Progress, Result};
use tokio::sync::{MutexGuard, Notify, Semaphore, SemaphorePermit};

/// When data last moved.
struct Movement {
    clock: Arc<dyn Clock>,
    progress: Progress,
}

impl Movement {
    fn new(clock: Arc<dyn Clock>) -> Movement {
        Movement { clock, progress: Progress::default() }
    }

    fn note(&self) {
        self.progress.note(self.clock.instant());
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
            let extended = self.progress.extend(until);
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
    movement: Movement,
    /// How many callers wait for the turn.
    callers: AtomicU32,
    /// One of them has come.
    came: Notify,
}

/// The turn to move a file's data. Ends when dropped.
pub(crate) struct Transferring<'a> {
    transfer: &'a Transfer,
    /// No caller waits for what it does, unless one waits for the turn.
    is_limited: bool,
    _turn: MutexGuard<'a, ()>,
}

/// A caller that waits for the turn.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transfer {
    /// No data moves yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Transfer {
        let (turn, movement) = (tokio::sync::Mutex::default(), Movement::new(clock));
        Transfer { turn, movement, callers: AtomicU32::new(0), came: Notify::new() }
    }

    /// Waits for the turn on behalf of a caller, until `deadline`, or for as long as the operation
    /// that has it moves data. Meanwhile that operation has no limit on bytes per second.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn begin(&self, deadline: Option<Deadline>) -> Result<Transferring<'_>> {
        if let Some(turn) = self.try_begin() {
            return Ok(turn);
        }
        self.callers.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.callers);
        self.came.notify_waiters();
        let turn = self.movement.wait(deadline, self.turn.lock()).await?;
        Ok(Transferring { transfer: self, is_limited: false, _turn: turn })
    }

    /// The same for an operation for which no caller waits: it keeps to the limit on bytes per
    /// second, and so does the operation for which it waits.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn begin_limited(
        &self,
        deadline: Option<Deadline>,
    ) -> Result<Transferring<'_>> {
        let turn = self.movement.wait(deadline, self.turn.lock()).await?;
        Ok(Transferring { transfer: self, is_limited: true, _turn: turn })
    }

    /// Whether some operation has the turn, for assertions of code that needs it.
    pub(crate) fn is_taken(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    /// The turn, if it is free.
    pub(crate) fn try_begin(&self) -> Option<Transferring<'_>> {
        let turn = self.turn.try_lock().ok()?;
        Some(Transferring { transfer: self, is_limited: false, _turn: turn })
    }

    /// Resolves when a caller waits for the turn.
    async fn wanted(&self) {
        loop {
            let mut came = std::pin::pin!(self.came.notified());
            came.as_mut().enable();
            if self.callers.load(Ordering::Relaxed) > 0 {
                return;
            }
            came.await;
        }
    }
}

impl Transferring<'_> {
    /// Whether this is the turn of the file with this `transfer`.
    pub(crate) fn is_of(&self, transfer: &Transfer) -> bool {
        std::ptr::eq(self.transfer, transfer)
    }

    /// Whether it keeps to the limit on bytes per second.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Waits until this many bytes may go to the server, if there is a limit and no caller waits
    /// for the turn. The wait is no silence of the server.
    pub(crate) async fn pass(&self, rate: &Rate, bytes: u64) {
        if !self.is_limited || rate.get().is_none() {
            return;
        }
        tokio::select! {
            // What goes for a caller does not count.
            biased;
            () = self.transfer.wanted() => {}
            () = rate.pass(&*self.transfer.movement.clock, bytes) => {}
        }
        self.progress();
    }

    /// The server has taken some of the data just now.
    pub(crate) fn progress(&self) {
        self.transfer.movement.note();
    }

    /// `deadline`, counted again from when data last moved.
    pub(crate) fn extend(&self, deadline: Option<Deadline>) -> Option<Deadline> {
        deadline.map(|deadline| self.transfer.movement.progress.extend(deadline))
    }
}

/// Limits how many KiB of all files are in flight between server and cache.
pub(crate) struct Budget {
    room: Semaphore,
    movement: Movement,
}

/// Room for some bytes in flight. Free again when dropped.
pub(crate) struct Room<'a> {
    movement: &'a Movement,
    _permit: SemaphorePermit<'a>,
}

impl Budget {
    /// Room for so many KiB.
    pub(crate) fn new(kib: usize, clock: Arc<dyn Clock>) -> Budget {
        Budget { room: Semaphore::new(kib), movement: Movement::new(clock) }
    }

    /// Waits for room for `kib`, until the caller's deadline, or for as long as other operations
    /// move data. Returns the caller with what is left of its deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn take(&self, kib: u32, caller: &Cred) -> Result<(Room<'_>, Cred)> {
        debug_assert!(kib > 0, "what moves takes room");
        let permit = self.movement.wait(caller.deadline, self.room.acquire_many(kib)).await?;
        let permit = permit.map_err(|_| Error::Shutdown)?;
        let deadline = caller.deadline.map(|deadline| self.movement.progress.extend(deadline));
        Ok((Room { movement: &self.movement, _permit: permit }, caller.until(deadline)))
    }
}

impl Room<'_> {
    /// The bytes have arrived.
    pub(crate) fn progress(&self) {
        self.movement.note();
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

    /// A caller that waits for the turn ends the limit for who has it, and what goes then does not
    /// count; one that nobody waits for does not end it.
    #[tokio::test]
    async fn a_caller_ends_the_limit_of_a_file() {
        let (clock, _) = begin();
        let (transfer, rate) = (Transfer::new(clock.clone()), Rate::new(Some(1000)));
        let limited = transfer.begin_limited(None).await.unwrap();
        let again = transfer.begin_limited(None);
        let mut again = std::pin::pin!(again);
        {
            let mut pass = std::pin::pin!(limited.pass(&rate, 1000));
            let is_over = |poll: std::task::Poll<()>| poll.is_ready();
            let look = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(!is_over(pass.as_mut().poll(look)));
            assert!(again.as_mut().poll(look).is_pending());
            assert!(!is_over(pass.as_mut().poll(look)), "nobody waits for that");
            let mut caller = Box::pin(transfer.begin(None));
            assert!(caller.as_mut().poll(look).is_pending());
            assert!(is_over(pass.as_mut().poll(look)));
            let mut more = std::pin::pin!(limited.pass(&rate, 1_000_000));
            assert!(is_over(more.as_mut().poll(look)));
            drop(caller);
            let mut next = std::pin::pin!(limited.pass(&rate, 1000));
            assert!(!is_over(next.as_mut().poll(look)), "the caller is gone");
            assert_eq!(clock.next_wake(), Some(clock.instant() + Duration::from_secs(2)));
        }
        drop(limited);
        let turn = again.await.unwrap();
        assert!(turn.is_limited());
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
