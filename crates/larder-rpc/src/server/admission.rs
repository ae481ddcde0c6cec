//! Decides which TCP connections are admitted: a pure state machine.
//!
//! A connection costs memory before it sends anything, and clients that only open connections must
//! not keep out those that work. So there are three kinds of connections:
//! - *Strangers*: callers whose calls will not be carried out, because of their port or their
//!   socket's owner. They only learn that the server is there; there are a few at a time, and the
//!   oldest gives way.
//! - *Unproven*: no good call has come from them yet. They give way, the oldest first, when there
//!   is no more room in total, or for their source.
//! - *Proven* ones stay until they end.
//!
//! Invariant: never more than the limit in total, for each source, or of strangers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most connections of strangers at a time.
const STRANGERS_MAX: usize = 16;

/// Where a connection comes from; connections of one source are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// This machine, whichever of its loopback addresses is used.
    Here,
    /// Another machine. For IPv6 it is the network of 64 bits, since a machine can use all
    /// addresses of one.
    Machine(IpAddr),
}

impl Source {
    /// The source of a caller at `address`.
    pub(crate) fn new(address: IpAddr) -> Source {
        match address.to_canonical() {
            address if address.is_loopback() => Source::Here,
            IpAddr::V6(address) => {
                Source::Machine(IpAddr::V6((address.to_bits() >> 64 << 64).into()))
            }
            address => Source::Machine(address),
        }
    }
}

/// How a new connection is counted.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    pub(crate) source: Source,
    /// Its calls are not executed.
    pub(crate) stranger: bool,
    /// Becomes true with the first good call.
    pub(crate) proven: Arc<AtomicBool>,
}

/// What happens to a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may stay.
    Admitted,
    /// It may stay; this other connection, which is no longer counted, must be closed.
    Instead(u64),
    /// It must be closed.
    Refused,
}

/// The counted connections, by number in order of arrival.
#[derive(Debug)]
pub(crate) struct Admission {
    connections: BTreeMap<u64, Newcomer>,
    all_max: usize,
    source_max: usize,
}

impl Admission {
    /// With limits on all connections and on those of one source.
    pub(crate) fn new(all_max: usize, source_max: usize) -> Admission {
        Admission { connections: BTreeMap::new(), all_max, source_max }
    }

    /// A connection arrived; its `number` is higher than all before.
    pub(crate) fn come(&mut self, number: u64, newcomer: Newcomer) -> Verdict {
        let is_latest = self.connections.keys().next_back().is_none_or(|last| *last < number);
        assert!(is_latest, "numbers are given in the order of coming");
        debug_assert!(self.connections.len() <= self.all_max, "no more are counted than may be");
        let of_its_kind: Vec<u64> = self.alike(&newcomer).collect();
        let kind_max = if newcomer.stranger { STRANGERS_MAX } else { self.source_max };
        let victim = if of_its_kind.len() >= kind_max {
            of_its_kind.into_iter().find(|number| self.gives_way(*number))
        } else if self.connections.len() >= self.all_max {
            self.connections.keys().copied().find(|number| self.gives_way(*number))
        } else {
            self.connections.insert(number, newcomer);
            return Verdict::Admitted;
        };
        let Some(victim) = victim else { return Verdict::Refused };
        let left = self.connections.remove(&victim);
        debug_assert!(
            left.is_some() && self.connections.len() < self.all_max,
            "one that is counted makes room"
        );
        self.connections.insert(number, newcomer);
        Verdict::Instead(victim)
    }

    /// A connection ended. One that was displaced is no longer counted.
    pub(crate) fn leave(&mut self, number: u64) {
        self.connections.remove(&number);
    }

    /// The connections that are counted together with `newcomer`, oldest first.
    fn alike(&self, newcomer: &Newcomer) -> impl Iterator<Item = u64> {
        let together = move |held: &Newcomer| match (held.stranger, newcomer.stranger) {
            (true, true) => true,
            (false, false) => held.source == newcomer.source,
            _ => false,
        };
        self.connections.iter().filter(move |(_, held)| together(held)).map(|(number, _)| *number)
    }

    fn gives_way(&self, number: u64) -> bool {
        self.connections
            .get(&number)
            .is_some_and(|held| held.stranger || !held.proven.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(source: Source, stranger: bool) -> Newcomer {
        Newcomer { source, stranger, proven: Arc::default() }
    }

    fn machine(last: u8) -> Source {
        Source::new(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn which_addresses_are_counted_together() {
        let of = |address: &str| Source::new(address.parse().unwrap());
        assert_eq!([of("127.0.0.9"), of("::1"), of("::ffff:127.0.0.1")], [Source::Here; 3]);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    #[test]
    fn strangers_push_out_strangers_only() {
        let mut admission = Admission::new(100, 10);
        let honest = from(machine(1), false);
        honest.proven.store(true, Relaxed);
        assert_eq!(admission.come(0, honest), Verdict::Admitted);
        for number in 1..500_u64 {
            let expected = match number.checked_sub(STRANGERS_MAX as u64) {
                None | Some(0) => Verdict::Admitted,
                Some(oldest) => Verdict::Instead(oldest),
            };
            assert_eq!(admission.come(number, from(Source::Here, true)), expected);
        }
    }

    #[test]
    fn the_unproven_give_way_and_the_proven_stay() {
        let mut admission = Admission::new(4, 2);
        let (first, second) = (from(machine(1), false), from(machine(1), false));
        second.proven.store(true, Relaxed);
        let first_proven = Arc::clone(&first.proven);
        assert_eq!(admission.come(0, first), Verdict::Admitted);
        assert_eq!(admission.come(1, second), Verdict::Admitted);
        assert_eq!(admission.come(2, from(machine(1), false)), Verdict::Instead(0));
        first_proven.store(true, Relaxed); // Too late.
        assert_eq!(admission.come(3, from(machine(2), false)), Verdict::Admitted);
        assert_eq!(admission.come(4, from(machine(3), false)), Verdict::Admitted);
        assert_eq!(admission.come(5, from(machine(4), false)), Verdict::Instead(2), "in all");
        admission.connections.values().for_each(|held| held.proven.store(true, Relaxed));
        assert_eq!(admission.come(6, from(machine(5), false)), Verdict::Refused);
        admission.leave(1);
        assert_eq!(admission.come(7, from(machine(5), false)), Verdict::Admitted);
    }

    /// The limits hold in every sequence of five events over two sources and a stranger.
    #[test]
    fn limits_hold_over_all_sequences() {
        const EVENTS: usize = 5;
        for sequence in 0..EVENTS.pow(7) {
            let mut admission = Admission::new(3, 2);
            let mut at = sequence;
            for number in 0..7 {
                match at % EVENTS {
                    kind @ 0..3 => {
                        let newcomer = from(machine(kind as u8), kind == 2);
                        admission.come(number, newcomer);
                    }
                    3 => {
                        let oldest = admission.connections.values().next();
                        oldest.inspect(|held| held.proven.store(true, Relaxed));
                    }
                    _ => {
                        let oldest = admission.connections.keys().next().copied();
                        oldest.inspect(|number| admission.leave(*number));
                    }
                }
                at /= EVENTS;
                let count = |kind| {
                    let held = admission.connections.values();
                    held.filter(|held| held.source == machine(kind)).count()
                };
                assert!(admission.connections.len() <= 3 && count(0) <= 2 && count(1) <= 2);
            }
        }
    }
}
