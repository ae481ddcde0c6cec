//! The plan of a read: which bytes come from where.
//!
//! A read is cut into slices and each slice has one source, as in the subrequests of Linux's netfs
//! library (Documentation/filesystems/netfs_library.rst). The plan is a pure function, so every
//! case is tested without a kernel, a server or a disk; [`crate::read::fetch`] carries it out.
//!
//! Invariants, checked by `plan_agrees_with_model`:
//! - the slices cover the wanted range up to the end of the file, once, in order;
//! - neighbours have different sources, so no request is cut without need.

use std::ops::Range;

/// Where the bytes of a slice come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The local disk, which holds them for the current version of the file.
    Cache,
    /// The server.
    Remote,
    /// None: they are past what the server has and were never written, so they are zeros.
    Zero,
}

/// A part of a read that has one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Offsets in the file, in bytes.
    pub(crate) range: Range<u64>,
    /// Where to take them from.
    pub(crate) source: Source,
}

/// The two ends that a file has while changes wait to reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileEnd {
    /// End of file as applications see it, in bytes.
    pub(crate) size: u64,
    /// Offset past which the server has nothing of this version, in bytes (Linux's `netfs_inode`
    /// has the same field).
    pub(crate) zero_point: u64,
}

/// Cuts `wanted` into slices.
///
/// `held` is what the cache has of the file's current version: sorted, disjoint, not empty ranges.
/// Bytes past `end.size` are left out, so a read at the end of the file is short, as read(2) has
/// it.
pub(crate) fn plan(wanted: Range<u64>, end: FileEnd, held: &[Range<u64>]) -> Vec<Slice> {
    debug_assert!(
        held.is_sorted_by(|a, b| a.start < a.end && a.end <= b.start),
        "what is held is sorted and disjoint"
    );

    let stop = wanted.end.min(end.size);
    let mut slices = Vec::new();
    let mut at = wanted.start;
    for hit in held {
        let hit = hit.start.max(at)..hit.end.min(stop);
        if hit.is_empty() {
            continue;
        }
        push_missing(&mut slices, at..hit.start, end.zero_point);
        at = hit.end;
        push(&mut slices, hit, Source::Cache);
    }
    push_missing(&mut slices, at..stop, end.zero_point);
    debug_assert!(
        slices.is_sorted_by(|a, b| a.range.end == b.range.start && a.source != b.source),
        "slices follow on each other, and neighbours have different sources"
    );
    debug_assert!(
        match (slices.first(), slices.last()) {
            (Some(first), Some(last)) =>
                first.range.start == wanted.start && last.range.end == stop,
            _ => wanted.start >= stop,
        },
        "the slices cover what is wanted, up to the end of the file"
    );
    debug_assert!(
        slices.iter().all(|slice| match slice.source {
            Source::Cache => true,
            Source::Remote => slice.range.end <= end.zero_point,
            Source::Zero => slice.range.start >= end.zero_point,
        }),
        "bytes are zeros exactly where the server has none"
    );
    slices
}

fn push_missing(slices: &mut Vec<Slice>, gap: Range<u64>, zero_point: u64) {
    push(slices, gap.start..gap.end.min(zero_point), Source::Remote);
    push(slices, gap.start.max(zero_point)..gap.end, Source::Zero);
}

fn push(slices: &mut Vec<Slice>, range: Range<u64>, source: Source) {
    match slices.last_mut() {
        _ if range.is_empty() => (),
        Some(last) if last.source == source => last.range.end = range.end,
        _ => slices.push(Slice { range, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 7;

    /// Every byte of every small case comes from where a per-byte model says.
    #[test]
    fn plan_agrees_with_model() {
        for held_mask in 0..1u32 << END {
            let held = ranges_of(held_mask);
            for size in 0..=END {
                for zero_point in 0..=END {
                    for start in 0..=END {
                        for stop in start..=END {
                            check(start..stop, FileEnd { size, zero_point }, held_mask, &held);
                        }
                    }
                }
            }
        }
    }

    #[allow(clippy::single_range_in_vec_init)]
    fn ranges_of(mask: u32) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for at in (0..END).filter(|at| mask >> at & 1 == 1) {
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
        ranges
    }

    fn check(wanted: Range<u64>, end: FileEnd, held_mask: u32, held: &[Range<u64>]) {
        let slices = plan(wanted.clone(), end, held);
        let mut at = wanted.start;
        for pair in slices.windows(2) {
            assert_ne!(pair[0].source, pair[1].source, "{wanted:?} {end:?} {held:?}");
        }
        for slice in &slices {
            assert_eq!(slice.range.start, at);
            assert!(!slice.range.is_empty());
            for byte in slice.range.clone() {
                let model = if held_mask >> byte & 1 == 1 {
                    Source::Cache
                } else if byte < end.zero_point {
                    Source::Remote
                } else {
                    Source::Zero
                };
                assert_eq!(slice.source, model, "byte {byte} of {wanted:?} {end:?} {held:?}");
            }
            at = slice.range.end;
        }
        assert_eq!(at, wanted.start.max(wanted.end.min(end.size)));
    }
}
