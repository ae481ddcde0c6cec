//! Accounting: what every call cost.
//!
//! Always on, so it is atomics only: a call adds to some ten counters, without a lock and without
//! an allocation. Readers take a [`Snapshot`]; its numbers are each exact and together nearly of
//! one moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sub-buckets for each power of two are `1 << SUB_BITS`: values are off by at most 1/16.
const SUB_BITS: u32 = 3;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Powers of two that are counted separately: up to 2^36 us, 19 hours. Longer times are counted
/// with the last.
const OCTAVES: usize = 34;
const BUCKETS: usize = OCTAVES * SUB_BUCKETS;

/// A histogram of durations in microseconds with log-linear buckets.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64; BUCKETS]>,
    max_us: AtomicU64,
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
            max_us: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
        }
    }
}

fn bucket(us: u64) -> usize {
    if us < SUB_BUCKETS as u64 {
        return usize::try_from(us).unwrap_or(BUCKETS - 1);
    }
    let octave = us.ilog2() - SUB_BITS;
    let sub = (us >> octave) as usize - SUB_BUCKETS;
    ((octave as usize + 1) * SUB_BUCKETS + sub).min(BUCKETS - 1)
}

/// The middle of a bucket, in microseconds.
fn middle_us(bucket: usize) -> u64 {
    if bucket < 2 * SUB_BUCKETS {
        return bucket as u64;
    }
    let octave = bucket / SUB_BUCKETS - 1;
    let low = ((SUB_BUCKETS + bucket % SUB_BUCKETS) as u64) << octave;
    low + (1 << octave) / 2
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
        if us > self.max_us.load(Relaxed) {
            self.max_us.fetch_max(us, Relaxed);
        }
    }

    /// Its percentiles.
    pub fn snapshot(&self) -> Latency {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max_us = self.max_us.load(Relaxed);
        let percentile = |percent: u64| {
            let wanted = (count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            found.map_or(0, |bucket| middle_us(bucket).min(max_us))
        };
        Latency {
            count,
            sum_us: self.sum_us.load(Relaxed),
            p50_us: percentile(50),
            p90_us: percentile(90),
            p99_us: percentile(99),
            max_us,
        }
    }
}

/// A summary of durations. Percentiles are off by at most 1/16, the maximum is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Their sum, in microseconds.
    pub sum_us: u64,
    /// Half took at most this, in microseconds.
    pub p50_us: u64,
    /// 90 % took at most this, in microseconds.
    pub p90_us: u64,
    /// 99 % took at most this, in microseconds.
    pub p99_us: u64,
    /// None took more, in microseconds.
    pub max_us: u64,
}

/// Counters of one procedure.
#[derive(Debug, Default)]
pub struct ProcedureStats {
    /// Calls that ended, well or not.
    pub calls: AtomicU64,
    /// Calls that the transport failed.
    pub errors: AtomicU64,
    /// Calls that the server answered with a status other than success.
    pub refused: AtomicU64,
    /// Sendings beyond the first.
    pub retransmits: AtomicU64,
    /// Waits for a reply that ran out.
    pub timeouts: AtomicU64,
    /// Bytes of first sendings, with headers.
    pub bytes_sent: AtomicU64,
    /// Bytes of replies, with headers.
    pub bytes_received: AtomicU64,
    /// From the offer until the reply: what the caller waits.
    pub latency: Histogram,
    /// From the last sending until the reply: network and server.
    pub round_trip: Histogram,
}

/// Counters of one connection, beside those that its lock guards.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    pub(crate) reconnects: AtomicU64,
    /// Replies to calls that are no longer awaited, and messages that are not replies.
    pub(crate) orphans: AtomicU64,
}

/// What one procedure cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureSnapshot {
    /// Its number.
    pub number: u32,
    /// Its name, or `""` if it has none.
    pub name: &'static str,
    /// Calls that ended, well or not.
    pub calls: u64,
    /// Calls that the RPC layer failed: timed out, refused, unreadable. What the procedure itself
    /// reports, as "no such file", is no error here.
    pub errors: u64,
    /// Calls that the server answered with a status other than success. None of them is an error.
    pub refused: u64,
    /// Sendings beyond the first.
    pub retransmits: u64,
    /// Waits for a reply that ran out.
    pub timeouts: u64,
    /// Bytes of first sendings, with RPC headers.
    pub bytes_sent: u64,
    /// Bytes of replies, with RPC headers.
    pub bytes_received: u64,
    /// From the offer until the reply: what the caller waits.
    pub latency: Latency,
    /// From the last sending until the reply: network and server.
    pub round_trip: Latency,
}

/// What one connection did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionSnapshot {
    /// Whether it is connected now.
    pub connected: bool,
    /// Calls that were given to it.
    pub offered: u64,
    /// Calls that were answered.
    pub completed: u64,
    /// Calls that wait for a reply now.
    pub in_flight: u64,
    /// Calls that wait for the window now.
    pub backlog: u64,
    /// Calls that may be in flight.
    pub window: u64,
    /// Sendings beyond the first of a call.
    pub retransmits: u64,
    /// Waits for a reply that ran out.
    pub timeouts: u64,
    /// Times that it was connected again.
    pub reconnects: u64,
    /// Replies to calls that are no longer awaited, and messages that are not replies.
    pub orphans: u64,
    /// What the kernel has reserved for replies that wait to be received, in bytes; datagrams
    /// only.
    pub receive_buffer_bytes: Option<u64>,
}

/// All accounts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Of each procedure that was called at all, by number.
    pub procedures: Vec<ProcedureSnapshot>,
    /// Of each connection.
    pub connections: Vec<ConnectionSnapshot>,
}

impl Snapshot {
    /// These accounts and those of another client, as if one had made the calls of both: procedures
    /// of one name are one. Of percentiles of two procedures, those of the one that was called more
    /// often stand for both.
    #[must_use]
    pub fn with(self, other: Snapshot) -> Snapshot {
        let same = |name: &str| other.procedures.iter().find(|one| one.name == name);
        let is_ours = |name: &str| self.procedures.iter().any(|one| one.name == name);
        let added = |one: &ProcedureSnapshot| same(one.name).map_or(*one, |other| one.with(other));
        let ours = self.procedures.iter().map(added);
        let theirs = other.procedures.iter().filter(|one| !is_ours(one.name)).copied();
        let connections = self.connections.iter().chain(&other.connections).copied();
        Snapshot { procedures: ours.chain(theirs).collect(), connections: connections.collect() }
    }
}

impl ProcedureSnapshot {
    fn with(&self, other: &ProcedureSnapshot) -> ProcedureSnapshot {
        ProcedureSnapshot {
            calls: self.calls + other.calls,
            errors: self.errors + other.errors,
            refused: self.refused + other.refused,
            retransmits: self.retransmits + other.retransmits,
            timeouts: self.timeouts + other.timeouts,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            latency: self.latency.with(other.latency),
            round_trip: self.round_trip.with(other.round_trip),
            ..*self
        }
    }
}

impl Latency {
    fn with(self, other: Latency) -> Latency {
        let more = if other.count > self.count { other } else { self };
        Latency {
            count: self.count + other.count,
            sum_us: self.sum_us + other.sum_us,
            max_us: self.max_us.max(other.max_us),
            ..more
        }
    }
}

/// Procedures that are counted separately, more than any program of ours has; higher numbers share
/// the last account.
const PROCEDURES_MAX: usize = 48;

/// The accounts of a client, by procedure.
#[derive(Debug)]
pub struct Procedures {
    accounts: Box<[ProcedureStats; PROCEDURES_MAX]>,
    names: &'static [&'static str],
}

impl Procedures {
    /// Accounts at zero; `names` are those of the procedures, by number.
    pub fn new(names: &'static [&'static str]) -> Procedures {
        let accounts = Box::new(std::array::from_fn(|_| ProcedureStats::default()));
        Procedures { accounts, names }
    }

    /// The account of a procedure.
    pub fn of(&self, procedure: u32) -> &ProcedureStats {
        &self.accounts[(procedure as usize).min(PROCEDURES_MAX - 1)]
    }

    /// What each procedure that was called at all cost so far.
    pub fn snapshot(&self) -> Vec<ProcedureSnapshot> {
        let known = |one: &ProcedureStats| one.calls.load(Relaxed) + one.timeouts.load(Relaxed) > 0;
        let used = (0..).zip(self.accounts.iter()).filter(|(_, one)| known(one));
        used.map(|(number, one)| ProcedureSnapshot {
            number,
            name: self.names.get(number as usize).copied().unwrap_or(""),
            calls: one.calls.load(Relaxed),
            errors: one.errors.load(Relaxed),
            refused: one.refused.load(Relaxed),
            retransmits: one.retransmits.load(Relaxed),
            timeouts: one.timeouts.load(Relaxed),
            bytes_sent: one.bytes_sent.load(Relaxed),
            bytes_received: one.bytes_received.load(Relaxed),
            latency: one.latency.snapshot(),
            round_trip: one.round_trip.snapshot(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
