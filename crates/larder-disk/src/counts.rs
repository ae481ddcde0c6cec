//! How often the disk refused requests, by reason. An attack shows as refusals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use larder_wire::disk::words::{Refusal, RefusalCount};

/// Refusals since the start, by reason.
#[derive(Debug)]
pub struct Counts([AtomicU64; Refusal::ALL.len()]);

impl Default for Counts {
    fn default() -> Counts {
        Counts(std::array::from_fn(|_| AtomicU64::new(0)))
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

    /// All that are not zero.
    pub fn all(&self) -> Vec<RefusalCount> {
        let count = |refusal| RefusalCount { refusal, count: self.get(refusal) };
        Refusal::ALL.map(count).into_iter().filter(|counted| counted.count > 0).collect()
    }

    fn of(&self, refusal: Refusal) -> &AtomicU64 {
        let at = Refusal::ALL.iter().position(|one| *one == refusal);
        &self.0[at.expect("all of them are there")]
    }
}
