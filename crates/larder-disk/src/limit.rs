//! How many bytes a memory disk may hold while its machine has less memory than the disk is large.
//!
//! The limit is what the disk holds and what its machine can still give ([`Headroom`]); so it stays
//! as it is while the disk fills or gives memory back, and only others move it. It falls at once.
//! It rises by less than the machine could give, so that a process whose memory goes up and down a
//! little does not move it each time; and not while processes wait for memory.
//!
//! A pure state machine: the caller measures, and the store refuses what is above the limit.

use larder_io::Headroom;

/// This part of the disk's size stays free above a limit that rises, and no more than that.
const SLACK_PART: u64 = 16;
const SLACK_MAX: u64 = 64 << 20;
/// While processes wait for memory, each look takes this part of what the disk holds.
const STALLED_PART: u64 = 16;

/// How many bytes a disk may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As many as it has.
    Size,
    /// Fewer: its machine has no more memory.
    Bytes(u64),
}

/// The disk when its machine was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// How many bytes it has.
    pub size: u64,
    /// How many it holds.
    pub held: u64,
    /// What the machine can give, or wants back.
    pub headroom: Headroom,
}

impl Limit {
    /// The limit in bytes.
    pub fn bytes(self, size: u64) -> u64 {
        match self {
            Limit::Size => size,
            Limit::Bytes(bytes) => bytes.min(size),
        }
    }

    /// The limit after the machine was measured.
    #[must_use]
    pub fn apply(self, measured: Measured) -> Limit {
        let Measured { size, held, headroom } = measured;
        let possible = held.saturating_add_signed(headroom.bytes);
        let now = self.bytes(size);
        let slack = (size / SLACK_PART).min(SLACK_MAX);
        let next = match headroom.is_stalled {
            true => now.min(possible).min(held - held / STALLED_PART),
            false if possible < now => possible,
            // All that it has may be held without slack: it does not rise further.
            false if possible >= size.saturating_add(slack) => size,
            false => now.max(possible.saturating_sub(slack)),
        };
        if next >= size { Limit::Size } else { Limit::Bytes(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 256 * MIB;
    const SLACK: u64 = 16 * MIB;

    fn measured(held: u64, headroom_mib: i64, is_stalled: bool) -> Measured {
        let bytes = headroom_mib * MIB.cast_signed();
        Measured { size: SIZE, held, headroom: Headroom { bytes, is_stalled } }
    }

    /// All sequences of four looks, at a disk that holds little or much, of a machine with much
    /// memory, some, and none: the limit is never above what the machine can give, falls at once,
    /// rises when there is enough and with slack, and never rises while processes wait.
    #[test]
    fn the_limit_is_what_the_machine_can_give() {
        let mut looks = Vec::new();
        for held in [0, MIB, 200 * MIB, SIZE] {
            for headroom in [-300, -50, -1, 0, 1, 15, 16, 17, 72, 255, 256, 272, 600] {
                looks.extend([false, true].map(|stalled| measured(held, headroom, stalled)));
            }
        }
        let mut reached = vec![Limit::Size];
        for _ in 0..4 {
            let mut next = Vec::new();
            for (before, look) in
                reached.iter().flat_map(|limit| looks.iter().map(move |look| (*limit, *look)))
            {
                let after = before.apply(look);
                let (was, is) = (before.bytes(SIZE), after.bytes(SIZE));
                let possible = look.held.saturating_add_signed(look.headroom.bytes);
                assert!(is <= possible && is <= SIZE, "{before:?} {look:?} {after:?}");
                assert!(is <= was || is == SIZE || is + SLACK <= possible, "{before:?} {look:?}");
                assert!(is <= was || is < SIZE || possible >= SIZE + SLACK, "{before:?} {look:?}");
                if look.headroom.is_stalled {
                    assert!(is <= was && is <= look.held, "{before:?} {look:?} {after:?}");
                } else {
                    let can_be = possible.saturating_sub(SLACK).min(SIZE);
                    assert!(is >= can_be, "{before:?} {look:?} {after:?}");
                    assert!(is >= was.min(possible), "it does not fall without need: {look:?}");
                    assert_eq!(after.apply(look), after, "nothing else has changed: {look:?}");
                }
                assert_eq!(after == Limit::Size, is == SIZE);
                next.push(after);
            }
            next.sort_by_key(|limit| limit.bytes(SIZE));
            next.dedup();
            reached = next;
        }
        assert!(reached.len() > 10, "{reached:?}");
    }

    /// What the disk itself takes or gives back does not move the limit.
    #[test]
    fn only_others_move_the_limit() {
        let (machine, mut limit) = (30_i64, Limit::Size);
        for (held, expected) in [(0, 30), (10, 30), (30, 30), (20, 30), (0, 30)] {
            limit = limit.apply(measured(held * MIB, machine - held.cast_signed(), false));
            assert_eq!(limit, Limit::Bytes(expected * MIB), "{held}");
        }
        limit = limit.apply(measured(0, 45, false));
        assert_eq!(limit, Limit::Bytes(30 * MIB), "a little more does not move it");
        limit = limit.apply(measured(0, 60, false));
        assert_eq!(limit, Limit::Bytes(44 * MIB));
        limit = limit.apply(measured(0, 272, false));
        assert_eq!(limit, Limit::Size);
    }
}
