//! One direction of a link: when sent bytes arrive at the other end, and which datagrams never do.
//!
//! All senders share the wire. They take turns in the order in which they came, each with at most
//! one [`quantum_bytes`], so that bulk does not starve requests and connections get equal shares. A
//! turn lasts as long as the bytes take at the rate; the delay comes after it and makes no sender
//! wait, so any amount may be in transit.
//!
//! Invariant: in any interval of length `t` at most `rate * (t + BURST)` departs, plus what is late
//! because of a busy machine. Counted from the arrival of the first bytes, the latter is zero.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Shape;
use super::timer::Timer;

/// How far the wire may catch up after it was idle: the sender may have been late.
pub(super) const BURST: Duration = Duration::from_millis(4);
/// How far it may catch up if more was waiting when a turn ended: then only this program was late,
/// which must not cost rate.
const LATE_MAX: Duration = Duration::from_millis(100);

/// The least that is sent in one turn: a segment of TCP over Ethernet.
const QUANTUM_BYTES_MIN: u64 = 1448;
/// The most.
pub(super) const QUANTUM_BYTES_MAX: u64 = 64 << 10;
/// How much time a turn should take, within these.
const QUANTUM: Duration = Duration::from_millis(2);

/// What a connection may have in transit beyond the product of rate and delay: for late wake-ups,
/// and for a receiver that stalls.
const SLACK_BYTES: u64 = 256 << 10;
/// The same without a rate: as much as TCP's largest usual window.
const UNLIMITED_BYTES: u64 = 8 << 20;
/// Never more in transit than this: 1 Gbit/s over 256 ms.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;

/// What passed in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Payload that left, in bytes, over TCP and UDP.
    pub bytes: u64,
    /// Datagrams that left.
    pub datagrams: u64,
    /// Those of them that were lost by chance. Datagrams for which the kernel's queue was full
    /// never left.
    pub datagrams_lost: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Wire {
    shape: Mutex<Shape>,
    /// Held by the sender whose turn it is; the lock is first come, first served.
    pacer: tokio::sync::Mutex<Pacer>,
    timer: Arc<Timer>,
    dice: Mutex<Dice>,
    bytes: AtomicU64,
    datagrams: AtomicU64,
    datagrams_lost: AtomicU64,
}

impl Wire {
    /// A wire that nothing has passed yet. The same `seed` loses the same datagrams.
    pub(super) fn new(shape: Shape, seed: u64, timer: Arc<Timer>) -> Wire {
        Wire {
            shape: Mutex::new(shape),
            pacer: tokio::sync::Mutex::default(),
            timer,
            dice: Mutex::new(Dice(seed)),
            bytes: AtomicU64::new(0),
            datagrams: AtomicU64::new(0),
            datagrams_lost: AtomicU64::new(0),
        }
    }

    /// Its shape at present.
    pub(super) fn shape(&self) -> Shape {
        *self.shape.lock().expect("no holder panics")
    }

    /// Another shape, from the next turn on.
    pub(super) fn reshape(&self, shape: Shape) {
        *self.shape.lock().expect("no holder panics") = shape;
    }

    /// Waits for a turn, and until it has ended. Answers when that was.
    async fn take_turn(&self, since: Instant, bytes: usize) -> Instant {
        let mut pacer = self.pacer.lock().await;
        let Some(rate) = self.shape().rate_bits_per_s else {
            return Instant::now();
        };
        let departure = pacer.depart(since, bytes, rate);
        self.timer.until(departure).await;
        departure
    }

    /// A sender on this wire.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender { wire: self, ended: None }
    }

    /// What has passed so far. For each counted datagram it is known whether it was lost.
    pub(super) fn passed(&self) -> Passed {
        let datagrams = self.datagrams.load(Acquire);
        Passed {
            bytes: self.bytes.load(Relaxed),
            datagrams,
            datagrams_lost: self.datagrams_lost.load(Relaxed),
        }
    }
}

/// A sender that takes turns.
pub(super) struct Sender<'a> {
    wire: &'a Wire,
    /// When its last turn ended, by the pacer's time, which may be before it learnt of that.
    ended: Option<Instant>,
}

impl Sender<'_> {
    /// Shape of the wire at present.
    pub(super) fn shape(&self) -> Shape {
        self.wire.shape()
    }

    /// Waits for a turn and until `bytes` have left. Returns when they arrive. They are a `backlog`
    /// if they were ready when the sender asked for more after its last turn.
    pub(super) async fn pass(&mut self, bytes: usize, backlog: bool) -> Instant {
        let came = Instant::now();
        let ended = self.ended.filter(|_| backlog);
        let departure = match self.wire.shape().rate_bits_per_s {
            None => came,
            Some(_) => self.wire.take_turn(waiting_since(came, ended), bytes).await,
        };
        self.ended = Some(departure);
        self.wire.bytes.fetch_add(bytes as u64, Relaxed);
        departure.max(came) + self.wire.shape().delay
    }

    /// The same for a datagram; `None` if it gets lost, which takes its time, too.
    pub(super) async fn pass_datagram(&mut self, bytes: usize, backlog: bool) -> Option<Instant> {
        let loss = self.wire.shape().loss;
        // Before waiting, so that the order of arrival decides.
        let lost = self.wire.dice.lock().expect("no holder panics").next_share() < loss;
        let arrival = self.pass(bytes, backlog).await;
        if lost {
            self.wire.datagrams_lost.fetch_add(1, Relaxed);
        }
        self.wire.datagrams.fetch_add(1, Release);
        (!lost).then_some(arrival)
    }
}

/// Since when bytes that were seen at `came` may have waited for the wire, if the turn before them
/// `ended` then and they were a backlog.
fn waiting_since(came: Instant, ended: Option<Instant>) -> Instant {
    let before = |time| came.checked_sub(time).unwrap_or(came);
    let since = before(BURST);
    ended.map_or(since, |ended| since.min(ended.max(before(LATE_MAX))))
}

/// How much is sent in one turn, at most.
pub(super) fn quantum_bytes(shape: &Shape) -> usize {
    let bytes = shape.rate_bits_per_s.map_or(QUANTUM_BYTES_MAX, |rate| bytes_in(rate, QUANTUM));
    bytes.clamp(QUANTUM_BYTES_MIN, QUANTUM_BYTES_MAX) as usize
}

/// The most that one connection may have in transit in one direction.
pub(super) fn in_flight_bytes_max(shape: &Shape) -> usize {
    let bytes = match shape.rate_bits_per_s {
        Some(rate) => bytes_in(rate, shape.delay).saturating_add(SLACK_BYTES),
        None if shape.delay.is_zero() => SLACK_BYTES,
        None => UNLIMITED_BYTES,
    };
    bytes.min(IN_FLIGHT_BYTES_MAX) as usize
}

fn bytes_in(rate_bits_per_s: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate_bits_per_s) * time.as_nanos() / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Waits for something to send, or for room, and returns whether it was ready at once.
pub(super) async fn at_once<T>(next: impl Future<Output = T>) -> (T, bool) {
    let (mut next, mut at_once) = (pin!(next), true);
    let got = poll_fn(|context| {
        let polled = next.as_mut().poll(context);
        at_once &= polled.is_ready();
        polled
    });
    (got.await, at_once)
}

/// When bytes leave: a queue with one server, in virtual time.
#[derive(Debug, Default)]
struct Pacer {
    free_at: Option<Instant>,
}

impl Pacer {
    /// When `bytes` leave that have waited `since` then, after all earlier ones.
    fn depart(&mut self, since: Instant, bytes: usize, rate_bits_per_s: u64) -> Instant {
        let start = self.free_at.map_or(since, |free_at| free_at.max(since));
        let nanos = bytes as u128 * 8_000_000_000 / u128::from(rate_bits_per_s);
        let free_at = start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = Some(free_at);
        free_at
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to decide which datagrams are lost.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// From 0 to below 1, all alike.
    fn next_share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // As many bits as a f64 holds.
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn bytes_leave_one_after_the_other() {
        let (mut pacer, start) = (Pacer::default(), Instant::now());
        // 1250 bytes take 10 ms at 1 Mbit/s.
        for turn in 1..=20 {
            assert_eq!(pacer.depart(start, 1250, MEGABIT), start + ms(10 * turn));
        }
        assert_eq!(pacer.depart(start + ms(500), 1250, MEGABIT), start + ms(510));
    }

    #[test]
    fn a_wire_that_was_idle_catches_up_by_the_burst_unless_there_was_a_backlog() {
        let came = Instant::now() + ms(1000);
        for (ended_ms, since_ms) in [
            (None, 4),
            // Only this program was late.
            (Some(7), 7),
            (Some(99), 99),
            // Too late to be made up for.
            (Some(300), 100),
            // The last turn has ended just now.
            (Some(1), 4),
        ] {
            let ended = ended_ms.map(|ago| came - ms(ago));
            assert_eq!(waiting_since(came, ended), came - ms(since_ms), "{ended_ms:?}");
        }
    }

    #[test]
    fn waking_late_costs_no_rate() {
        let (mut pacer, start, mut dice) = (Pacer::default(), Instant::now(), Dice(3));
        let mut ended = pacer.depart(start, 1250, MEGABIT);
        for turn in 2..=100 {
            let woken = ended + Duration::from_micros((dice.next_share() * 90e3) as u64);
            ended = pacer.depart(waiting_since(woken, Some(ended)), 1250, MEGABIT);
            assert_eq!(ended, start + ms(10 * turn));
        }
    }

    #[test]
    fn no_interval_sees_more_than_rate_and_burst() {
        let (mut pacer, start, mut dice) = (Pacer::default(), Instant::now(), Dice(1));
        let (mut came, mut left) = (start, Vec::new());
        for _ in 0..300 {
            came += Duration::from_micros((dice.next_share() * 20e3) as u64);
            let bytes = (dice.next_share() * 2500.0) as usize;
            let departure = pacer.depart(waiting_since(came, None), bytes, MEGABIT);
            left.push((departure.max(came), bytes));
        }
        for from in 0..left.len() {
            let mut bits = 0.0;
            for (departure, bytes) in &left[from + 1..] {
                bits += (bytes * 8) as f64;
                let time = *departure - left[from].0 + BURST;
                assert!(bits <= time.as_secs_f64() * MEGABIT as f64 + 1.0);
            }
        }
    }

    #[test]
    fn what_is_ready_is_told_from_what_was_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(at_once(std::future::ready(7)).await, (7, true));
            assert_eq!(at_once(tokio::task::yield_now()).await, ((), false));
        });
    }

    #[test]
    fn turns_and_windows_follow_the_shape() {
        let shape = |rate, delay| Shape { rate_bits_per_s: rate, delay: ms(delay), loss: 0.0 };
        for (shape, quantum, in_flight) in [
            (shape(None, 0), 64 << 10, SLACK_BYTES),
            (shape(None, 1), 64 << 10, UNLIMITED_BYTES),
            (shape(Some(MEGABIT), 0), 1448, SLACK_BYTES),
            (shape(Some(10 * MEGABIT), 100), 2500, 125_000 + SLACK_BYTES),
            (shape(Some(10_000 * MEGABIT), 1000), 64 << 10, IN_FLIGHT_BYTES_MAX),
            (shape(Some(u64::MAX), 60_000), 64 << 10, IN_FLIGHT_BYTES_MAX),
        ] {
            assert_eq!(quantum_bytes(&shape), quantum, "{shape:?}");
            assert_eq!(in_flight_bytes_max(&shape) as u64, in_flight, "{shape:?}");
        }
    }

    #[test]
    fn dice_are_fair_and_repeatable() {
        let draw = |seed| {
            let mut dice = Dice(seed);
            (0..10_000).map(|_| dice.next_share()).collect::<Vec<_>>()
        };
        let shares = draw(7);
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        let below = shares.iter().filter(|share| **share < 0.1).count();
        assert!((900..1100).contains(&below), "{below}");
        assert_eq!(shares, draw(7));
        assert_ne!(shares, draw(8));
    }
}
