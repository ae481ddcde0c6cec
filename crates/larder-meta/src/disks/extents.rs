//! Ranges of bytes as extents of a request to a disk.

use std::ops::Range;

use larder_wire::capability::{Extent, Extents};

use super::reach::Unreached;

/// The same bytes in order, each once, neighbours as one.
pub(super) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|bytes| bytes.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for bytes in ranges {
        match joined.last_mut() {
            Some(last) if bytes.start <= last.end => last.end = last.end.max(bytes.end),
            _ => joined.push(bytes),
        }
    }
    joined
}

/// As extents of a request.
///
/// # Errors
/// [`Unreached::Extents`]: there are none, or too many.
pub(super) fn extents(ranges: &[Range<u64>]) -> Result<Extents, Unreached> {
    let extent = |bytes: &Range<u64>| Extent::new(bytes.start, bytes.end - bytes.start);
    let extents = ranges.iter().map(extent).collect::<Result<Vec<_>, _>>();
    extents.and_then(Extents::new).map_err(Unreached::Extents)
}
