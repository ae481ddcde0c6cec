//! How many requests of each kind the kernel has sent.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Opcode;

/// Opcodes are below this.
const NUMBERS: usize = 64;

/// Counters, by opcode.
pub(crate) struct Counts([AtomicU64; NUMBERS]);

impl Default for Counts {
    fn default() -> Self {
        Counts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counts {
    /// A request came.
    pub(crate) fn add(&self, opcode: u32) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that came at all, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<(Opcode, u64)> {
        let count = |opcode: &Opcode| (*opcode, self.0[*opcode as usize].load(Ordering::Relaxed));
        Opcode::ALL.iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}
