//! How often the disk refused requests, by reason, and how many orders it got. An attack shows as
//! refusals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_wire::disk::PROCEDURE_NAMES;
use larder_wire::disk::words::{Head, Refusal, RefusalCount, RevokeHead};

/// Refusals since the start, by reason, and orders of the metadata server.
#[derive(Debug)]
pub struct Counts {
    refusals: [AtomicU64; Refusal::ALL.len()],
    orders: [AtomicU64; PROCEDURE_NAMES.len()],
}

impl Default for Counts {
    fn default() -> Counts {
        let refusals = std::array::from_fn(|_| AtomicU64::new(0));
        Counts { refusals, orders: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Counts {
    /// Something was refused.
    pub fn refused(&self, refusal: Refusal) {
        self.of(refusal).fetch_add(1, Relaxed);
    }

    /// How often something was refused for this reason.
    pub fn get(&self, refusal: Refusal) -> u64 {
        self.of(refusal).load(Relaxed)
    }

    /// The metadata server gave an order.
    pub(crate) fn ordered<H: Head>(&self) {
        if let Some(count) = self.orders.get(H::NUMBER as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How many orders of a kind the metadata server gave: round trips.
    pub fn orders<H: Head>(&self) -> u64 {
        self.orders.get(H::NUMBER as usize).map_or(0, |count| count.load(Relaxed))
    }

    /// How often the metadata server told the disk to revoke capabilities: round trips, each of any
    /// number of capabilities of one group.
    pub fn revocations(&self) -> u64 {
        self.orders::<RevokeHead>()
    }

    /// All refusals that are not zero.
    pub fn all(&self) -> Vec<RefusalCount> {
        let count = |refusal| RefusalCount { refusal, count: self.get(refusal) };
        Refusal::ALL.map(count).into_iter().filter(|counted| counted.count > 0).collect()
    }

    fn of(&self, refusal: Refusal) -> &AtomicU64 {
        let at = Refusal::ALL.iter().position(|one| *one == refusal);
        &self.refusals[at.expect("all of them are there")]
    }
}
