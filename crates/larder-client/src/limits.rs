//! Waits within a call's deadline: for the turn of a file, and for room among what is on its way.
//!
//! A slow link is no silent server: who waits for others that move data waits for as long as they do, and has the
//! limit anew from when data last moved ([`Progress`]). A wait that ends leaves nothing behind: what is waited for
//! belongs to others, who go on. Requests are not cut off here; each ends by the deadline that it carries.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use larder_vfs::{Cred, Deadline, Error, Result};
use tokio::sync::{MutexGuard, Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// When data last moved.
#[derive(Default)]
struct Progress(Mutex<Option<Instant>>);

impl Progress {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// `deadline`, counted anew from when data last moved.
    fn extend(&self, deadline: Deadline) -> Deadline {
        let moved = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moved.map_or(deadline, |when| deadline.moved(when.into_std()))
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
            if let Ok(done) = tokio::time::timeout_at(until.at().into(), &mut others).await {
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

/// Whoever moves data or size of one file between cache and server: one at a time.
#[derive(Default)]
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
    /// Waits for the turn, until `deadline`, or for as long as whoever has it moves data.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn begin(&self, deadline: Option<Deadline>) -> Result<Transferring<'_>> {
        let turn = self.progress.wait(deadline, self.turn.lock()).await?;
        Ok(Transferring { progress: &self.progress, _turn: turn })
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_begin(&self) -> Option<Transferring<'_>> {
        Some(Transferring { progress: &self.progress, _turn: self.turn.try_lock().ok()? })
    }
}

impl Transferring<'_> {
    /// The server has taken some of the data just now.
    pub(crate) fn progress(&self) {
        self.progress.note();
    }

    /// `deadline`, counted anew from when data last moved.
    pub(crate) fn extend(&self, deadline: Option<Deadline>) -> Option<Deadline> {
        deadline.map(|deadline| self.progress.extend(deadline))
    }
}

/// Room for bytes of all files on their way between server and cache, in KiB.
pub(crate) struct Budget {
    room: Semaphore,
    progress: Progress,
}

/// Room for some bytes on their way. Free again when dropped.
pub(crate) struct Room<'a> {
    progress: &'a Progress,
    _permit: SemaphorePermit<'a>,
}

impl Budget {
    /// Room for so many KiB.
    pub(crate) fn new(kib: usize) -> Budget {
        Budget { room: Semaphore::new(kib), progress: Progress::default() }
    }

    /// Waits for room for `kib`, until the caller's deadline, or for as long as others move data. Answers the caller
    /// with what is left to it.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(crate) async fn take(&self, kib: u32, caller: &Cred) -> Result<(Room<'_>, Cred)> {
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
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(60);

    fn in_ms(milliseconds: u64) -> Option<Deadline> {
        let limit = Duration::from_millis(milliseconds);
        Some(Deadline::new(Instant::now().into_std(), limit))
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_gives_up_at_the_deadline() {
        let transfer = Transfer::default();
        let first = transfer.begin(None).await.unwrap();
        let begun = Instant::now();
        assert_eq!(transfer.begin(in_ms(50)).await.err(), Some(Error::TimedOut));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(first);
        assert!(transfer.begin(in_ms(50)).await.is_ok(), "the turn was not lost to who gave up");
    }

    /// A link may be slow: as long as data moves, nobody gives up.
    #[tokio::test]
    async fn who_waits_for_data_that_moves_waits_on() {
        let transfer = Transfer::default();
        let first = transfer.begin(None).await.unwrap();
        let made = Instant::now().into_std();
        let deadline = Deadline::new(made, LIMIT);
        let past = Deadline::new(made - LIMIT, LIMIT);
        let (_, turn) = tokio::join!(
            async {
                first.progress();
                tokio::task::yield_now().await;
                drop(first);
            },
            transfer.begin(Some(past)),
        );
        let turn = turn.unwrap();
        assert!(turn.extend(Some(deadline)).unwrap().at() >= deadline.at());
        assert!(turn.extend(Some(past)).unwrap().at() > past.at());
    }

    /// What is left to a caller who got room is told, and is not less than a limit after others moved data.
    #[tokio::test]
    async fn room_that_is_not_there_in_time_is_not_waited_for() {
        let budget = Budget::new(8);
        let caller = Cred::root().until(in_ms(50));
        let (room, _) = budget.take(8, &caller).await.unwrap();
        assert_eq!(budget.take(1, &caller).await.err(), Some(Error::TimedOut));
        room.progress();
        drop(room);
        let (_room, extended) = budget.take(8, &caller).await.unwrap();
        assert!(extended.deadline.unwrap().at() > caller.deadline.unwrap().at());
    }
}
