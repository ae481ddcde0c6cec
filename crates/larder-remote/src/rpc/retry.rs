//! When to send again, and how much at once: pure state, no clock and no socket.
//!
//! - [`RoundTrip`] estimates how long a reply takes, for each class of procedures apart, since a
//!   WRITE to a disk says nothing of a LOOKUP in memory (Jacobson 1988; SunRPC's `rpc_rtt`).
//! - [`Window`] bounds how many calls are in flight: fixed on TCP, where the kernel does the rest,
//!   and following losses on UDP (SunRPC's `xprt_adjust_cwnd`).
//! - [`Backoff`] spaces the attempts to reach a server that is gone.

use std::time::Duration;

/// Shortest time until a retransmission. Below it the scheduling of a busy server looks like loss.
const RETRANSMIT_MIN: Duration = Duration::from_millis(100);
/// Longest time until a retransmission.
const RETRANSMIT_MAX: Duration = Duration::from_secs(60);
/// Most doublings of the time until a retransmission; the maximum is reached before.
const DOUBLINGS_MAX: u32 = 10;

/// Which procedures share an estimate of the round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimerClass {
    /// No estimate: the configured timeout. For procedures that change names, whose repetition the
    /// server may answer wrongly, and for rare ones.
    #[default]
    Fixed,
    /// Attributes and rights.
    Attributes,
    /// Names.
    Lookup,
    /// Data and directories to the client.
    Read,
    /// Data to the server.
    Write,
    /// Data to the server's disk.
    Commit,
}

impl TimerClass {
    /// How many classes there are.
    pub(super) const COUNT: usize = 6;
}

/// Estimate of the time until a reply (RFC 6298, 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Smoothed time and its deviation; none before the first sample.
    estimate: Option<(Duration, Duration)>,
    initial: Duration,
    doublings: u32,
}

impl RoundTrip {
    /// Without a sample, a reply is given `initial`.
    pub(super) fn new(initial: Duration) -> RoundTrip {
        RoundTrip { estimate: None, initial, doublings: 0 }
    }

    /// Learns from a call that was sent once. One that was sent twice teaches nothing, since its
    /// reply may be to either (Karn's rule).
    pub(super) fn sample(&mut self, time: Duration) {
        self.doublings = 0;
        self.estimate = Some(match self.estimate {
            None => (time, time / 2),
            Some((smoothed, deviation)) => {
                let error = time.abs_diff(smoothed);
                (smoothed * 7 / 8 + time / 8, deviation * 3 / 4 + error / 4)
            }
        });
    }

    /// A call timed out: the next ones are given twice the time, until a sample comes.
    pub(super) fn timed_out(&mut self) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// How long to wait for a reply before sending again.
    pub(super) fn timeout(&self) -> Duration {
        let base = match self.estimate {
            None => self.initial,
            Some((smoothed, deviation)) => smoothed + 4 * deviation,
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
}

impl Window {
    const SCALE: u32 = 256;

    /// Always `calls`.
    pub(super) fn fixed(calls: u32) -> Window {
        let scaled = calls * Self::SCALE;
        Window { scaled, max_scaled: scaled, adapts: false }
    }

    /// Starts at two calls, as SunRPC does, and grows up to `max`.
    pub(super) fn congestion(max: u32) -> Window {
        Window { scaled: 2 * Self::SCALE, max_scaled: max * Self::SCALE, adapts: true }
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
    }

    /// A call timed out: half as many, but one.
    pub(super) fn timed_out(&mut self) {
        if self.adapts {
            self.scaled = (self.scaled / 2).max(Self::SCALE);
        }
    }
}

/// Pauses between attempts, doubling up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses from `first` to `max`.
    pub(super) fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }
}

#[cfg(test)]
mod tests;
