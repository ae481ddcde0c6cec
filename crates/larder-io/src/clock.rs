//! Time: a monotonic clock to measure with and to wait on, and a wall clock for recorded times.
//!
//! Invariant: [`Clock::now`] and [`Clock::instant`] never go back; [`Clock::wall`] may.

#![allow(clippy::disallowed_methods, reason = "this is the clock")]

mod sleep;

pub use sleep::{Elapsed, Sleep};

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A point on the monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

impl Monotonic {
    /// The point `nanos` nanoseconds after the clock's start.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Monotonic {
    type Output = Monotonic;

    fn add(self, wait: Duration) -> Monotonic {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// A point on the wall clock, since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// Seconds since the epoch; negative before it.
    pub sec: i64,
    /// Nanoseconds past `sec`, below 1,000,000,000.
    pub nsec: u32,
}

/// Reads the time, and waits for a time.
pub trait Clock: Debug + Send + Sync {
    /// The monotonic clock.
    fn now(&self) -> Monotonic;

    /// The wall clock.
    fn wall(&self) -> WallTime;

    /// The monotonic clock in the type of the standard library, in which deadlines cross crates.
    fn instant(&self) -> Instant;

    /// Resolves once [`instant`](Self::instant) has come to `until`.
    fn sleep_until(&self, until: Instant) -> Sleep;

    /// Blocks the thread until [`instant`](Self::instant) has reached `until`. For threads that
    /// drive no runtime.
    fn block_until(&self, until: Instant);
}

/// The machine's clocks: `CLOCK_MONOTONIC` and `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Monotonic {
        let time = clock_gettime(ClockId::Monotonic);
        Monotonic(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
    }

    fn wall(&self) -> WallTime {
        let time = clock_gettime(ClockId::Realtime);
        WallTime { sec: time.tv_sec, nsec: u32::try_from(time.tv_nsec).unwrap_or(0) }
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, until: Instant) -> Sleep {
        Sleep::real(until)
    }

    fn block_until(&self, until: Instant) {
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// A clock that stands still until it is moved by hand, or that advances at each reading.
///
/// The wall clock starts at the epoch and moves together with the monotonic one. A sleeper wakes
/// when the clock is moved by hand, not when a reading advances it.
#[derive(Debug)]
pub struct SimClock {
    /// Its start, for the standard library.
    start: Instant,
    nanos: AtomicU64,
    /// The difference between the wall clock and the monotonic one, in seconds.
    wall_offset_sec: AtomicI64,
    /// How far each reading advances it.
    tick_nanos: u64,
    sleepers: Arc<sleep::Sleepers>,
}

impl Default for SimClock {
    fn default() -> SimClock {
        let start = Instant::now();
        let sleepers = Arc::new(sleep::Sleepers::new(start));
        let (nanos, wall_offset_sec) = (AtomicU64::new(0), AtomicI64::new(0));
        SimClock { start, nanos, wall_offset_sec, tick_nanos: 0, sleepers }
    }
}

impl SimClock {
    /// A clock at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock whose every reading is a different time, as with a real clock, for calls that
    /// overlap.
    pub fn ticking() -> Self {
        SimClock { tick_nanos: 1, ..SimClock::default() }
    }

    /// Moves both clocks forward, and wakes whose time has come.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let before = self.nanos.fetch_add(nanos, Ordering::SeqCst);
        self.sleepers.moved(self.start + Duration::from_nanos(before.saturating_add(nanos)));
    }

    /// Sets the wall clock alone, forward or back, as an administrator or a time server does.
    pub fn set_wall_by(&self, seconds: i64) {
        self.wall_offset_sec.fetch_add(seconds, Ordering::SeqCst);
    }

    /// When the next sleeper wakes, if there is a sleeper.
    pub fn next_wake(&self) -> Option<Instant> {
        self.sleepers.next()
    }

    /// Resolves when at least `count` sleep at the same time.
    pub async fn asleep(&self, count: usize) {
        self.sleepers.asleep(count).await;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Monotonic {
        Monotonic(self.nanos.fetch_add(self.tick_nanos, Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        let nanos = self.nanos.load(Ordering::SeqCst);
        let sec = i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX);
        let sec = sec.saturating_add(self.wall_offset_sec.load(Ordering::SeqCst));
        let nsec = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
        WallTime { sec, nsec }
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.now().0)
    }

    fn sleep_until(&self, until: Instant) -> Sleep {
        Sleep::simulated(&self.sleepers, until)
    }

    fn block_until(&self, until: Instant) {
        sleep::block_on(self.sleep_until(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_clock_does_not_go_back() {
        let first = RealClock.now();
        assert!(RealClock.now() >= first);
        assert!(RealClock.wall().sec > 1_600_000_000);
    }

    #[test]
    fn simulated_clock_moves_by_hand_only() {
        let clock = SimClock::new();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().since(start), Duration::from_millis(1500));
        assert_eq!(start.since(clock.now()), Duration::ZERO);
        assert_eq!(clock.wall(), WallTime { sec: 1, nsec: 500_000_000 });
    }

    #[test]
    fn a_blocked_thread_goes_on_when_the_time_has_come() {
        let real: &dyn Clock = &RealClock;
        let begin = real.instant();
        real.block(Duration::from_millis(2));
        assert!(real.instant() >= begin + Duration::from_millis(2));
        real.block_until(begin);

        let clock = Arc::new(SimClock::new());
        let blocked = {
            let clock: Arc<dyn Clock> = clock.clone();
            std::thread::spawn(move || clock.block(Duration::from_secs(10)))
        };
        while clock.next_wake().is_none() {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(9));
        assert!(clock.next_wake().is_some(), "a second is left");
        clock.advance(Duration::from_secs(1));
        blocked.join().unwrap();
        let over = clock.instant();
        clock.block_until(over);
    }
}
