//! The budget of descriptors: how many data files may be open, and for what.
//!
//! A descriptor of a data file is held either by the pool ([`crate::pool`]), which can reopen the
//! file, or by the kernel through a [`crate::BackingFile`], which cannot release it before the last
//! close. The rest is left to the process: index, session log, sockets.

/// Descriptors that are left to the rest of the process, unless the limit is too low: at least, and
/// at most.
const RESERVED_MIN: usize = 56;
const RESERVED_MAX: usize = 1024;
/// A larger pool has no benefit: opening a file again costs some microseconds.
const POOLED_MAX: usize = 512;
const POOLED_MIN: usize = 4;

/// How many descriptors of data files there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Kept open to be used again, at most.
    pub pooled_max: usize,
    /// At most this many are held by the kernel: further files are read and written through us.
    pub handed_out_max: usize,
}

impl Descriptors {
    /// A budget within a process's `limit` of descriptors.
    pub fn within(limit: usize) -> Descriptors {
        let reserved = (limit / 2).clamp(RESERVED_MIN, RESERVED_MAX);
        let ours = limit.saturating_sub(reserved);
        let pooled_max = (ours / 4).clamp(POOLED_MIN, POOLED_MAX);
        Descriptors { pooled_max, handed_out_max: ours.saturating_sub(pooled_max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (limit of the process, in the pool, in the kernel's hands)
    #[test]
    fn a_budget_leaves_descriptors_to_the_rest_of_the_process() {
        for (limit, pooled_max, handed_out_max) in [
            (0, 4, 0),
            (64, 4, 4),
            (256, 32, 96),
            (1024, 128, 384),
            (20_000, 512, 18_464),
            (1 << 20, 512, (1 << 20) - 1536),
        ] {
            let budget = Descriptors { pooled_max, handed_out_max };
            assert_eq!(Descriptors::within(limit), budget, "{limit}");
        }
    }
}
