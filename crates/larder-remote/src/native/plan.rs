//! From a layout to the requests for each disk: pure.

use std::ops::Range;

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{ByteRange, DiskId, Extent, Layout};

/// Some bytes of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where they begin in the file.
    pub(super) offset: u64,
    /// How many.
    pub(super) length: u64,
    /// Where they are, or nowhere: then they are zeros.
    pub(super) at: Option<Location>,
}

impl Piece {
    /// Whether a byte of the file is one of them.
    pub(super) fn holds(&self, at: u64) -> bool {
        (self.offset..self.offset + self.length).contains(&at)
    }

    /// The same bytes without those before `at`, which is one of them.
    pub(super) fn from(self, at: u64) -> Piece {
        let skipped = at - self.offset;
        let moved = |place: Location| Location { position: place.position + skipped, ..place };
        Piece { offset: at, length: self.length - skipped, at: self.at.map(moved) }
    }
}

/// A location on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) disk: DiskId,
    pub(super) position: u64,
}

/// Why a layout cannot be used: the server has sent nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Senseless;

/// Cuts `range`, as far as `layout` covers it from its start on, into pieces in their order, none
/// longer than `length_max`.
///
/// # Errors
/// [`Senseless`] if the layout does not cover the first byte, or its extents overlap, are not in
/// order, or end beyond the largest number.
pub(super) fn pieces(
    layout: &Layout,
    range: Range<u64>,
    length_max: u64,
) -> Result<Vec<Piece>, Senseless> {
    let covered = end_of(layout.covered)?;
    if !covered.contains(&range.start) {
        return Err(Senseless);
    }
    let end = range.end.min(covered.end);
    let (mut at, mut known, mut pieces) = (range.start, 0, Vec::new());
    for extent in &layout.extents.0 {
        let span = span_of(extent)?;
        if span.start < known {
            return Err(Senseless);
        }
        known = span.end;
        let wanted = span.start.max(at)..span.end.min(end);
        if wanted.is_empty() {
            continue;
        }
        push(&mut pieces, at..wanted.start, None, length_max);
        let position = extent.position + (wanted.start - span.start);
        let location = Location { disk: extent.disk, position };
        push(&mut pieces, wanted.clone(), Some(location), length_max);
        at = wanted.end;
    }
    push(&mut pieces, at..end, None, length_max);
    Ok(pieces)
}

/// Appends a range, cut where it is too long.
fn push(pieces: &mut Vec<Piece>, range: Range<u64>, at: Option<Location>, length_max: u64) {
    let mut offset = range.start;
    while offset < range.end {
        // A hole costs nothing, however long it is.
        let length = match at {
            Some(_) => (range.end - offset).min(length_max),
            None => range.end - offset,
        };
        let moved = |location: Location| Location {
            position: location.position + (offset - range.start),
            ..location
        };
        pieces.push(Piece { offset, length, at: at.map(moved) });
        offset += length;
    }
}

/// The extents of a layout that are not holes.
pub(super) fn spans(layout: &Layout) -> impl Iterator<Item = Range<u64>> {
    let end = |extent: &Extent| extent.offset.saturating_add(extent.length);
    layout.extents.0.iter().map(move |extent| extent.offset..end(extent))
}

/// Where the block of a byte begins.
pub(super) fn block_of(offset: u64) -> u64 {
    offset / BLOCK_BYTES * BLOCK_BYTES
}

/// A range of a file of `size` bytes, in which it begins: whole blocks, and the parts before and
/// after them, either of which may be empty. The last block of the file counts as whole, wherever
/// the file ends in it.
pub(super) fn parts(range: &Range<u64>, size: u64) -> (Range<u64>, [Range<u64>; 2]) {
    let end = range.end.min(size);
    let first = range.start.next_multiple_of(BLOCK_BYTES);
    let last = if end == size { size.next_multiple_of(BLOCK_BYTES) } else { block_of(end) };
    if first >= last {
        return (first..first, [range.start..end, end..end]);
    }
    (first..last, [range.start..first, last..end])
}

fn end_of(range: ByteRange) -> Result<Range<u64>, Senseless> {
    let end = range.offset.checked_add(range.length).ok_or(Senseless)?;
    Ok(range.offset..end)
}

/// The bytes of the file that an extent has.
fn span_of(extent: &Extent) -> Result<Range<u64>, Senseless> {
    extent.position.checked_add(extent.length).ok_or(Senseless)?;
    end_of(ByteRange { offset: extent.offset, length: extent.length })
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::ExtentState;
    use larder_wire::xdr::Array;

    use super::*;

    fn layout(covered: Range<u64>, extents: &[(Range<u64>, u32, u64)]) -> Layout {
        let extents = extents.iter().map(|(span, disk, position)| Extent {
            offset: span.start,
            length: span.end - span.start,
            disk: DiskId(*disk),
            position: *position,
            state: ExtentState::Committed,
        });
        Layout {
            covered: covered.into(),
            extents: Array(extents.collect()),
            grants: Array::default(),
        }
    }

    /// Where each byte is, asked of the layout without cutting anything.
    fn location_of(layout: &Layout, byte: u64) -> Option<(u32, u64)> {
        let extents = layout.extents.0.iter();
        let mut has = extents.filter(|one| (one.offset..one.offset + one.length).contains(&byte));
        has.next().map(|one| (one.disk.0, one.position + (byte - one.offset)))
    }

    /// All ranges in all layouts of up to two extents in eight bytes.
    #[test]
    fn pieces_are_what_each_byte_says() {
        let spans: Vec<_> = (0..8).flat_map(|a| (a + 1..=8).map(move |b| a..b)).collect();
        let mut count = 0;
        for first in &spans {
            for second in spans.iter().filter(|second| second.start >= first.end) {
                let layout = layout(0..8, &[(first.clone(), 1, 100), (second.clone(), 2, 50)]);
                for range in &spans {
                    for length_max in [1, 3, 8] {
                        let cut = pieces(&layout, range.clone(), length_max).unwrap();
                        let mut at = range.start;
                        for piece in cut {
                            assert_eq!(piece.offset, at);
                            assert!(piece.length > 0);
                            assert!(piece.at.is_none() || piece.length <= length_max);
                            for byte in 0..piece.length {
                                let there = piece
                                    .at
                                    .map(|location| (location.disk.0, location.position + byte));
                                assert_eq!(there, location_of(&layout, at + byte));
                            }
                            at += piece.length;
                        }
                        assert_eq!(at, range.end);
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 5_000, "{count}");
    }

    #[test]
    fn what_is_not_covered_is_left_for_another_time() {
        let layout = layout(4..10, &[(4..6, 1, 0), (20..22, 1, 2)]);
        let cut = pieces(&layout, 5..30, 8).unwrap();
        let lengths: Vec<_> = cut.iter().map(|piece| (piece.offset, piece.length)).collect();
        assert_eq!(lengths, [(5, 1), (6, 4)]);
        assert_eq!(pieces(&layout, 3..30, 8), Err(Senseless));
        assert_eq!(pieces(&layout, 10..30, 8), Err(Senseless));
    }

    #[test]
    fn nonsense_is_refused() {
        let overlap = layout(0..10, &[(0..4, 1, 0), (3..5, 1, 9)]);
        assert_eq!(pieces(&overlap, 0..10, 8), Err(Senseless));
        let disorder = layout(0..10, &[(5..6, 1, 0), (0..2, 1, 9)]);
        assert_eq!(pieces(&disorder, 0..10, 8), Err(Senseless));
        let far = layout(0..10, &[(0..4, 1, u64::MAX - 4)]);
        assert_eq!(pieces(&far, 0..10, 8).unwrap().len(), 2);
        let too_far = layout(0..10, &[(0..4, 1, u64::MAX - 3)]);
        assert_eq!(pieces(&too_far, 0..10, 8), Err(Senseless));
        let endless = Layout { covered: ByteRange { offset: 1, length: u64::MAX }, ..far };
        assert_eq!(pieces(&endless, 1..2, 8), Err(Senseless));
    }

    /// Ranges that begin and end around blocks' ends, in files that end there: every byte of the
    /// range that the file has is in a block or in an edge, and these contain no other byte.
    #[test]
    fn blocks_and_edges_are_the_range() {
        const B: u64 = BLOCK_BYTES;
        let offsets = [0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B];
        for size in offsets.into_iter().skip(1) {
            for start in offsets.into_iter().filter(|start| *start < size) {
                for end in offsets.into_iter().filter(|end| *end > start) {
                    let (blocks, edges) = parts(&(start..end), size);
                    let what = format!("{start}..{end} of {size}: {blocks:?} {edges:?}");
                    assert!(blocks.start % B == 0 && blocks.end % B == 0, "{what}");
                    for at in (0..4 * B).step_by(7).chain(offsets).chain([size - 1, end - 1]) {
                        let is_edge = edges.iter().filter(|edge| edge.contains(&at)).count();
                        let taken = is_edge + usize::from(blocks.contains(&at));
                        let wanted = usize::from((start..end).contains(&at) && at < size);
                        let is_behind = at >= size && blocks.contains(&at);
                        assert!(taken == wanted || is_behind, "{at} in {what}");
                    }
                    assert!(
                        edges.iter().all(|edge| edge.end.saturating_sub(edge.start) < 2 * B),
                        "{what}"
                    );
                }
            }
        }
    }
}
