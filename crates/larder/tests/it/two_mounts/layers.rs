//! Which writes the bytes of a file may come from.
//!
//! Every write has a number, and its bytes follow from the number and their offset. So a byte that
//! was read identifies its write, except for one chance in 256.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of a write.
pub(crate) type WriteId = u32;

/// The number for bytes that were never written, and read as zero.
pub(crate) const HOLE: WriteId = 0;

/// The byte of a write at an offset of the file.
fn byte(id: WriteId, at: u64) -> u8 {
    if id == HOLE {
        return 0;
    }
    let mixed = (u64::from(id) << 40 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 29) ^ (mixed >> 51)) as u8
}

/// The bytes of a write.
pub(crate) fn content(id: WriteId, range: Range<u64>) -> Vec<u8> {
    range.map(|at| byte(id, at)).collect()
}

/// Candidates of each byte, by range. None: no version has such a byte.
#[derive(Clone, Debug)]
pub(crate) struct Layers(BTreeMap<u64, Vec<WriteId>>);

impl Layers {
    /// Of an empty file.
    pub(crate) fn empty() -> Layers {
        Layers(BTreeMap::from([(0, vec![])]))
    }

    fn cut(&mut self, at: u64) {
        let (_, before) = self.0.range(..=at).next_back().expect("there is a piece at 0");
        let before = before.clone();
        self.0.entry(at).or_insert(before);
    }

    /// Changes the candidates of a range.
    pub(crate) fn change(&mut self, range: Range<u64>, change: impl Fn(&mut Vec<WriteId>)) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        self.0.range_mut(range).for_each(|(_, candidates)| change(candidates));
        let mut last: Option<Vec<WriteId>> = None;
        self.0.retain(|_, candidates| {
            let is_new = last.as_ref() != Some(candidates);
            last = Some(candidates.clone());
            is_new
        });
    }

    /// Sets a range to one write.
    pub(crate) fn set(&mut self, range: Range<u64>, id: WriteId) {
        self.change(range, |candidates| *candidates = vec![id]);
    }

    /// Adds candidates to those of a range.
    pub(crate) fn add(&mut self, range: Range<u64>, ids: &[WriteId]) {
        self.change(range, |candidates| {
            for id in ids {
                if !candidates.contains(id) {
                    candidates.push(*id);
                }
            }
            candidates.sort_unstable();
        });
    }

    /// Adds all that another one has.
    pub(crate) fn merge(&mut self, other: &Layers) {
        other.pieces().into_iter().for_each(|(range, ids)| self.add(range, &ids));
    }

    /// There is nothing from here on.
    pub(crate) fn clear_from(&mut self, at: u64) {
        self.change(at..u64::MAX, Vec::clear);
    }

    /// All pieces that have candidates.
    pub(crate) fn pieces(&self) -> Vec<(Range<u64>, Vec<WriteId>)> {
        let ends = self.0.keys().skip(1).copied().chain([u64::MAX]);
        let pieces = self.0.iter().zip(ends).filter(|((_, ids), _)| !ids.is_empty());
        pieces.map(|((start, ids), end)| (*start..end, ids.clone())).collect()
    }

    /// Whether there is anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    /// Whether each byte that was read at `at` is one of its candidates; otherwise describes the
    /// first that is not.
    pub(crate) fn explain(&self, at: u64, read: &[u8]) -> Result<(), String> {
        let end = at + read.len() as u64;
        let mut reached = at;
        for (piece, ids) in self.pieces() {
            let common = piece.start.max(at)..piece.end.min(end);
            if common.is_empty() {
                continue;
            }
            if common.start > reached {
                break;
            }
            for place in common.clone() {
                let seen = read[usize::try_from(place - at).expect("a place in a buffer")];
                if !ids.iter().any(|id| byte(*id, place) == seen) {
                    return Err(format!(
                        "byte {place} is {seen:#x}, none of writes {ids:?} in {:?}",
                        self.pieces()
                    ));
                }
            }
            reached = common.end;
        }
        if reached == end { Ok(()) } else { Err(format!("byte {reached} should not be there")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_of_their_candidates() {
        let mut layers = Layers::empty();
        layers.set(0..100, 1);
        layers.set(50..150, 2);
        layers.add(60..70, &[3]);
        let mut read = content(1, 0..50);
        read.extend(content(2, 50..150));
        assert_eq!(layers.explain(0, &read), Ok(()));
        assert_eq!(layers.explain(60, &content(3, 60..70)), Ok(()));
        assert!(layers.explain(55, &content(3, 55..70)).is_err());
        assert!(layers.explain(140, &content(2, 140..151)).is_err());
        layers.clear_from(120);
        assert!(layers.explain(110, &content(2, 110..130)).is_err());
    }
}
