//! When to send again, and how much at once: pure state, no clock and no socket.
//!
//! - [`RoundTrip`] estimates how long a reply takes, for each [`TimerClass`] apart (Jacobson 1988;
//!   SunRPC's `rpc_rtt`).
//! - [`Window`] bounds how many calls are in flight: fixed on TCP, where the kernel controls
//!   congestion, and adapting to losses on UDP (SunRPC's `xprt_adjust_cwnd`), within what the
//!   socket can hold.
//! - [`Losses`] groups losses: a full buffer drops a windowful at once, and each of its calls times
//!   out.

use std::time::Duration;

/// Shortest time until a retransmission, whatever was measured. Below it the scheduling of a busy
/// server looks like loss.
const RETRANSMIT_MIN: Duration = Duration::from_millis(100);
/// Longest time until a retransmission.
const RETRANSMIT_MAX: Duration = Duration::from_secs(60);
/// By which part of itself the slowest recent round trip decreases with each sample.
const SLOWEST_SINKS_BY: u32 = 64;
/// Most doublings of the time until a retransmission; [`RETRANSMIT_MAX`] is reached earlier.
const DOUBLINGS_MAX: u32 = 10;

/// Which procedures share an estimate of the round trip: a class that their program chooses, since
/// a call that waits for a disk says nothing of one that is answered from memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerClass(u8);

impl TimerClass {
    /// How many classes there are.
    pub const COUNT: usize = 8;

    /// No estimate: the configured timeout. For procedures whose repetition the server may answer
    /// wrongly, such as those that change names, and for rare procedures.
    pub const FIXED: TimerClass = TimerClass(0);

    /// A class with an estimate of its own.
    ///
    /// # Panics
    /// If `class` is 0, or not below [`TimerClass::COUNT`].
    pub const fn estimated(class: u8) -> TimerClass {
        assert!(class > 0 && (class as usize) < TimerClass::COUNT, "there is such a class");
        TimerClass(class)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Estimate of the time until a reply (RFC 6298, 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Smoothed time and its deviation; none before the first sample.
    estimate: Option<(Duration, Duration)>,
    /// The slowest recent round trip; it decreases with each sample.
    slowest: Duration,
    initial: Duration,
    doublings: u32,
    losses: Losses,
}

/// Which calls that ran out of time were lost together.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    /// When the last loss was noticed, since the connection's birth.
    noticed: Option<Duration>,
}

impl Losses {
    /// A call that was sent at `sent` timed out at `now`. Returns whether that is a new loss: calls
    /// that were sent before the last loss was noticed were lost with it.
    fn is_new(&mut self, sent: Duration, now: Duration) -> bool {
        debug_assert!(sent <= now, "a call times out after it was sent");
        let is_new = self.noticed.is_none_or(|noticed| sent >= noticed);
        if is_new {
            self.noticed = Some(now);
        }
        is_new
    }
}

impl RoundTrip {
    /// Without a sample, the timeout is `initial`.
    pub(super) fn new(initial: Duration) -> RoundTrip {
        RoundTrip {
            estimate: None,
            slowest: Duration::ZERO,
            initial,
            doublings: 0,
            losses: Losses::default(),
        }
    }

    /// Learns from a call that was sent once. One that was sent twice is no sample, since its reply
    /// may be to either transmission (Karn's rule).
    pub(super) fn sample(&mut self, time: Duration) {
        self.doublings = 0;
        self.slowest = time.max(self.slowest - self.slowest / SLOWEST_SINKS_BY);
        self.estimate = Some(match self.estimate {
            None => (time, time / 2),
            Some((smoothed, deviation)) => {
                let error = time.abs_diff(smoothed);
                (smoothed * 7 / 8 + time / 8, deviation * 3 / 4 + error / 4)
            }
        });
    }

    /// A call that was sent at `sent` timed out at `now`: the timeout doubles until the next
    /// sample. Calls that were lost together double it once.
    pub(super) fn timed_out(&mut self, sent: Duration, now: Duration) {
        if self.losses.is_new(sent, now) {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// How long to wait for a reply before sending again: at least twice the slowest recent round
    /// trip, since a period of even replies says little about the next stall.
    pub(super) fn timeout(&self) -> Duration {
        let base = match self.estimate {
            None => self.initial,
            Some((smoothed, deviation)) => (smoothed + 4 * deviation).max(2 * self.slowest),
        };
        (base * (1 << self.doublings)).clamp(RETRANSMIT_MIN, RETRANSMIT_MAX)
    }
}

/// How many calls may be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// In 256ths of a call, as in SunRPC, so that it can grow by a part of a call.
    scaled: u32,
    max_scaled: u32,
    adapts: bool,
    losses: Losses,
}

impl Window {
    const SCALE: u32 = 256;

    /// Always `calls`.
    pub(super) fn fixed(calls: u32) -> Window {
        assert!(calls > 0, "a window has room for a call");
        let scaled = calls * Self::SCALE;
        Window { scaled, max_scaled: scaled, adapts: false, losses: Losses::default() }
    }

    /// Starts at two calls, as SunRPC does, and grows up to `max`.
    pub(super) fn congestion(max: u32) -> Window {
        let max_scaled = max.max(1) * Self::SCALE;
        let scaled = max_scaled.min(2 * Self::SCALE);
        Window { scaled, max_scaled, adapts: true, losses: Losses::default() }
    }

    /// From now on at most `max` calls, and at least one.
    pub(super) fn limit(&mut self, max: u32) {
        self.max_scaled = max.max(1) * Self::SCALE;
        self.scaled = self.scaled.min(self.max_scaled);
        debug_assert!(self.scaled >= Self::SCALE, "a call fits into every limit");
    }

    /// Calls that may be in flight now.
    pub(super) fn calls(&self) -> u32 {
        self.scaled / Self::SCALE
    }

    /// A reply came in time: one call more for each windowful of replies.
    pub(super) fn replied(&mut self) {
        if self.adapts {
            let step = (Self::SCALE * Self::SCALE + self.scaled / 2) / self.scaled;
            self.scaled = (self.scaled + step).min(self.max_scaled);
        }
        debug_assert!(self.scaled >= Self::SCALE, "a call always fits");
    }

    /// A call that was sent at `sent` timed out at `now`: the window halves, down to one call.
    /// Calls that were lost together halve it once.
    pub(super) fn timed_out(&mut self, sent: Duration, now: Duration) {
        if self.adapts && self.losses.is_new(sent, now) {
            self.scaled = (self.scaled / 2).max(Self::SCALE);
        }
        debug_assert!(
            (Self::SCALE..=self.max_scaled).contains(&self.scaled),
            "a window holds a call, and no more than its limit"
        );
    }
}

#[cfg(test)]
mod tests;
