//! Waiting for a point in time, on a clock that a test may move.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use thiserror::Error;
use tokio::task::Unconstrained;

use super::Clock;

/// The time was over before the awaited event.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the time is over")]
pub struct Elapsed;

pin_project! {
    /// A wait for a point in time: [`Clock::sleep_until`]. On the real clock it must be polled on a
    /// tokio runtime, and is exact to a millisecond.
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Sleep {
        #[pin]
        kind: Kind,
    }
}

pin_project! {
    #[project = KindProjected]
    enum Kind {
        // The time is over also for a task that has used up its turn.
        Real { #[pin] sleep: Unconstrained<tokio::time::Sleep> },
        Simulated { sleep: SimSleep },
    }
}

impl Sleep {
    pub(super) fn real(until: Instant) -> Sleep {
        let sleep = tokio::time::sleep_until(until.into());
        Sleep { kind: Kind::Real { sleep: tokio::task::unconstrained(sleep) } }
    }

    pub(super) fn simulated(sleepers: &Arc<Sleepers>, until: Instant) -> Sleep {
        let sleep = SimSleep { sleepers: Arc::clone(sleepers), until, number: None };
        Sleep { kind: Kind::Simulated { sleep } }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.project().kind.project() {
            KindProjected::Real { sleep } => sleep.poll(context),
            KindProjected::Simulated { sleep } => sleep.poll(context),
        }
    }
}

impl dyn Clock + '_ {
    /// Resolves when `duration` is over.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.instant() + duration)
    }

    /// Blocks the thread until `duration` is over.
    pub fn block(&self, duration: Duration) {
        self.block_until(self.instant() + duration);
    }

    /// The result of `future`, if it is ready before `until`. Otherwise the future is dropped.
    ///
    /// # Errors
    /// [`Elapsed`]
    pub async fn timeout_at<F: Future>(
        &self,
        until: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let (mut future, mut sleep) = (pin!(future), pin!(self.sleep_until(until)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| Err(Elapsed)),
        })
        .await
    }

    /// The result of `future`, if it is ready within `limit`. Otherwise the future is dropped.
    ///
    /// # Errors
    /// [`Elapsed`]
    pub async fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        self.timeout_at(self.instant() + limit, future).await
    }
}

/// Blocks the thread until a simulated wait is over.
pub(super) fn block_on(sleep: Sleep) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut sleep = pin!(sleep);
    while sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        std::thread::park();
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The tasks that wait on a simulated clock.
#[derive(Debug)]
pub(super) struct Sleepers {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: Instant,
    /// By the time of their waking, and a number.
    waiting: BTreeMap<(Instant, u64), Waker>,
    next_number: u64,
    /// Tasks that wait until a number of others sleep.
    watching: Vec<Waker>,
}

impl Sleepers {
    pub(super) fn new(now: Instant) -> Sleepers {
        let (waiting, watching) = (BTreeMap::new(), Vec::new());
        Sleepers { state: Mutex::new(State { now, waiting, next_number: 0, watching }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is `now`, or later.
    pub(super) fn moved(&self, now: Instant) {
        let mut state = self.lock();
        state.now = state.now.max(now);
        let last_due = (state.now, u64::MAX);
        let later = state.waiting.split_off(&last_due);
        let due = std::mem::replace(&mut state.waiting, later);
        drop(state);
        due.into_values().for_each(Waker::wake);
    }

    /// When the next one wakes.
    pub(super) fn next(&self) -> Option<Instant> {
        self.lock().waiting.keys().next().map(|(until, _)| *until)
    }

    /// Resolves when at least `count` sleep at a time.
    pub(super) async fn asleep(&self, count: usize) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.waiting.len() >= count {
                return Poll::Ready(());
            }
            state.watching.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A wait on a simulated clock. It counts as asleep from its first poll on.
#[derive(Debug)]
struct SimSleep {
    sleepers: Arc<Sleepers>,
    until: Instant,
    /// Ours among those that wait.
    number: Option<u64>,
}

impl SimSleep {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.sleepers.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            state.next_number += 1;
            state.next_number
        });
        state.waiting.insert((self.until, number), context.waker().clone());
        let watching = std::mem::take(&mut state.watching);
        drop(state);
        watching.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.sleepers.lock().waiting.remove(&(self.until, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RealClock, SimClock};
    use super::*;
    use std::task::Wake;

    /// Counts how often it was woken.
    struct Woken(std::sync::atomic::AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn second() -> Duration {
        Duration::from_secs(1)
    }

    #[test]
    fn a_sleeper_wakes_when_the_clock_has_come_to_its_time_and_not_before() {
        let sim = SimClock::new();
        let clock: &dyn Clock = &sim;
        let woken = Arc::new(Woken(0.into()));
        let waker = Waker::from(Arc::clone(&woken));
        let count = || woken.0.load(std::sync::atomic::Ordering::SeqCst);
        let context = &mut Context::from_waker(&waker);
        let mut sleep = pin!(clock.sleep(2 * second()));
        let mut longer = pin!(clock.sleep(3 * second()));
        assert!(sleep.as_mut().poll(context).is_pending());
        assert!(longer.as_mut().poll(context).is_pending());
        assert_eq!(sim.next_wake(), Some(clock.instant() + 2 * second()));
        sim.advance(second());
        assert_eq!(count(), 0);
        assert!(sleep.as_mut().poll(context).is_pending());
        sim.advance(second());
        assert_eq!(count(), 1);
        assert!(sleep.as_mut().poll(context).is_ready());
        assert!(longer.as_mut().poll(context).is_pending());
        sim.advance(5 * second());
        assert_eq!(count(), 2);
        assert!(longer.as_mut().poll(context).is_ready());
        assert_eq!(sim.next_wake(), None);
    }

    #[test]
    fn a_sleeper_that_is_dropped_is_forgotten() {
        let sim = SimClock::new();
        let clock: &dyn Clock = &sim;
        let mut sleep = Box::pin(clock.sleep(second()));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(context).is_pending());
        assert!(sim.next_wake().is_some());
        drop(sleep);
        assert_eq!(sim.next_wake(), None);
    }

    #[tokio::test]
    async fn what_does_not_come_in_time_is_given_up() {
        let sim = Arc::new(SimClock::new());
        let clock: Arc<dyn Clock> = Arc::clone(&sim) as Arc<dyn Clock>;
        assert_eq!(clock.timeout(second(), async { 7 }).await, Ok(7));
        let never = clock.timeout(second(), std::future::pending::<()>());
        let moved = async {
            sim.asleep(1).await;
            sim.advance(second());
        };
        let (given_up, ()) = tokio::join!(never, moved);
        assert_eq!(given_up, Err(Elapsed));
        assert_eq!(clock.timeout(Duration::ZERO, async { 8 }).await, Ok(8), "what is there comes");
    }

    #[tokio::test]
    async fn on_the_real_clock_time_passes_by_itself() {
        let clock: &dyn Clock = &RealClock;
        let begun = clock.instant();
        clock.sleep(Duration::from_millis(5)).await;
        assert!(clock.instant() >= begun + Duration::from_millis(5));
    }
}
