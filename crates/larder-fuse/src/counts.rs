//! How many requests of each kind the kernel has sent, and how many references it was given.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Opcode;

/// Opcodes are below this.
const NUMBERS: usize = 64;

/// Counters.
pub(crate) struct Counts {
    by_opcode: [AtomicU64; NUMBERS],
    given: AtomicU64,
    returned: AtomicU64,
}

/// References of the kernel to inodes, since our process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Those that it was given.
    pub given: u64,
    /// Those that it gave back.
    pub returned: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Counts {
            by_opcode: std::array::from_fn(|_| AtomicU64::new(0)),
            given: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// A request came.
    pub(crate) fn add(&self, opcode: u32) {
        if let Some(counter) = self.by_opcode.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The kernel gets a reference to an inode.
    pub(crate) fn give(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel gives references back.
    pub(crate) fn take_back(&self, count: u64) {
        self.returned.fetch_add(count, Ordering::Relaxed);
    }

    /// References that it was given and returned.
    pub(crate) fn references(&self) -> References {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        References { given: read(&self.given), returned: read(&self.returned) }
    }

    /// Those that came at all, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<(Opcode, u64)> {
        let count =
            |opcode: &Opcode| (*opcode, self.by_opcode[*opcode as usize].load(Ordering::Relaxed));
        Opcode::ALL.iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}
