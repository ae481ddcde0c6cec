//! [`Rate`]: a limit on bytes per second that several tasks share.
//!
//! Bytes pass one after the other, as over a wire: those of one caller begin when those of all
//! earlier ones are through, and a caller is told when its own are. So in any time `t` no more than
//! `rate * t` bytes pass, and what was not used while nobody asked is not made up for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::Clock;

/// Parts of a byte in which progress is counted: what passes in a nanosecond at one byte a second.
const PARTS: u128 = 1_000_000_000;

/// What a request counts that carries no data, in bytes, with its headers: about what an NFS
/// request takes on the wire.
pub const REQUEST_BYTES: u64 = 512;

/// A limit on bytes per second, or none. It can be changed at any time, also for who waits.
#[derive(Debug, Default)]
pub struct Rate {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: no limit.
    bytes_per_second: Option<u64>,
    /// Parts of bytes of all callers so far.
    booked: u128,
    /// Of these, what was through at `seen`.
    passed: u128,
    seen: Option<Instant>,
}

impl Rate {
    /// At most this many bytes a second, and at least one; `None`: no limit.
    pub fn new(bytes_per_second: Option<u64>) -> Rate {
        let rate = Rate::default();
        rate.state().bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        rate
    }

    /// Changes the limit. What has not passed yet passes at the new one.
    pub fn set(&self, clock: &dyn Clock, bytes_per_second: Option<u64>) {
        {
            let mut state = self.state();
            state.go_on(clock.instant());
            state.bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        }
        self.changed.notify_waiters();
    }

    /// The limit, in bytes per second.
    pub fn get(&self) -> Option<u64> {
        self.state().bytes_per_second
    }

    /// Resolves when this many bytes have passed, after those of all earlier callers; at once if
    /// there is no limit. A caller that gives up has used its bytes all the same.
    pub async fn pass(&self, clock: &dyn Clock, bytes: u64) {
        let Some(end) = self.book(clock, bytes) else { return };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let Some(until) = self.state().end_of(end, clock.instant()) else { return };
            tokio::select! {
                () = clock.sleep_until(until) => {}
                () = changed => {}
            }
        }
    }

    /// Takes the place of these bytes behind all earlier ones, and returns their end.
    fn book(&self, clock: &dyn Clock, bytes: u64) -> Option<u128> {
        let mut state = self.state();
        state.bytes_per_second?;
        state.go_on(clock.instant());
        state.booked += u128::from(bytes) * PARTS;
        Some(state.booked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets pass what passes until `now`.
    fn go_on(&mut self, now: Instant) {
        let time = self.seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
        let passes =
            self.bytes_per_second.map_or(self.booked, |rate| u128::from(rate) * time.as_nanos());
        self.passed = self.booked.min(self.passed.saturating_add(passes));
        self.seen = Some(now);
    }

    /// When these bytes will be through at the present limit; `None`: they are.
    fn end_of(&mut self, end: u128, now: Instant) -> Option<Instant> {
        self.go_on(now);
        let rate = self.bytes_per_second?;
        let left = end.checked_sub(self.passed).filter(|left| *left > 0)?;
        let nanos = left.div_ceil(u128::from(rate));
        Some(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SimClock;

    /// Callers of one limit, on a clock that is moved by hand.
    #[derive(Default)]
    struct Rig {
        clock: Arc<SimClock>,
        rate: Arc<Rate>,
    }

    impl Rig {
        fn new(bytes_per_second: u64) -> Rig {
            Rig { rate: Arc::new(Rate::new(Some(bytes_per_second))), ..Rig::default() }
        }

        fn pass(&self, bytes: u64) -> tokio::task::JoinHandle<()> {
            let (rate, clock) = (self.rate.clone(), self.clock.clone());
            tokio::spawn(async move { rate.pass(&*clock, bytes).await })
        }

        fn advance(&self, millis: u64) {
            self.clock.advance(Duration::from_millis(millis));
        }
    }

    #[tokio::test]
    async fn bytes_pass_one_after_the_other() {
        let rig = Rig::new(1000);
        let first = rig.pass(500);
        rig.clock.asleep(1).await;
        let second = rig.pass(1000);
        rig.clock.asleep(2).await;
        rig.advance(500);
        first.await.unwrap();
        assert!(!second.is_finished());
        rig.advance(1000);
        second.await.unwrap();
    }

    /// Whatever their sizes are and whenever they come: in no interval more passes than the rate
    /// allows, and what waits passes at that rate.
    #[tokio::test]
    async fn in_no_time_more_passes_than_the_rate_allows() {
        const RATE: u64 = 7_000;
        let rig = Rig::new(RATE);
        let (begin, mut random) = (rig.clock.instant(), 1_u64);
        let mut draw = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let mut through: Vec<(u128, u64)> = Vec::new();
        for _ in 0..300 {
            rig.advance(draw(400));
            let bytes = draw(5_000);
            let pass = rig.pass(bytes);
            while !pass.is_finished() {
                if let Some(wake) = rig.clock.next_wake() {
                    rig.clock.advance(wake.saturating_duration_since(rig.clock.instant()));
                }
                tokio::task::yield_now().await;
            }
            through.push(((rig.clock.instant() - begin).as_nanos(), bytes));
        }
        for from in 0..through.len() {
            let mut sum = 0;
            for (at, bytes) in &through[from + 1..] {
                sum += u128::from(*bytes);
                let time = at - through[from].0;
                assert!(sum * PARTS <= u128::from(RATE) * time, "{sum} bytes in {time} ns");
            }
        }
    }

    #[tokio::test]
    async fn another_rate_counts_for_who_waits() {
        let rig = Rig::new(1000);
        let pass = rig.pass(10_000);
        rig.clock.asleep(1).await;
        rig.advance(1000);
        rig.rate.set(&*rig.clock, Some(9000));
        tokio::task::yield_now().await;
        rig.clock.asleep(1).await;
        assert_eq!(rig.clock.next_wake(), Some(rig.clock.instant() + Duration::from_secs(1)));
        rig.rate.set(&*rig.clock, None);
        pass.await.unwrap();
        rig.pass(u64::MAX).await.unwrap();
        rig.rate.set(&*rig.clock, Some(1));
        let slow = rig.pass(1);
        rig.clock.asleep(1).await;
        assert_eq!(rig.clock.next_wake(), Some(rig.clock.instant() + Duration::from_secs(1)));
        rig.advance(1000);
        slow.await.unwrap();
    }

    #[tokio::test]
    async fn who_gives_up_has_used_its_bytes() {
        let rig = Rig::new(1000);
        let gone = rig.pass(2000);
        rig.clock.asleep(1).await;
        gone.abort();
        assert!(gone.await.is_err());
        let next = rig.pass(1000);
        rig.clock.asleep(1).await;
        assert_eq!(rig.clock.next_wake(), Some(rig.clock.instant() + Duration::from_secs(3)));
        rig.advance(3000);
        next.await.unwrap();
    }
}
