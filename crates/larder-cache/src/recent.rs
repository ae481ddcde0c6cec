//! Bytes that were stored a moment ago and not read yet.
//!
//! Readahead fetches a megabyte before its reader asks for it. Storing it and then reading it back
//! from the local file costs a copy of every byte of a stream. So the last pieces that were filled
//! stay in memory until they are read, or until others take their place.
//!
//! Invariants:
//! - A piece equals the local file's bytes: it is kept while its file is filled, and exclusive
//!   access for a change drops it first ([`crate::file::CachedFile::alone`]).
//! - All pieces together have at most `bytes_max` bytes; the oldest leave first.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::{FileNo, lock};

/// Bytes of a local file.
#[derive(Debug)]
struct Piece {
    no: FileNo,
    serial: u64,
    start: u64,
    data: Bytes,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }

    fn has(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.end()
    }
}

/// Bytes that were stored a moment ago.
#[derive(Debug)]
pub(crate) struct Recent {
    /// The oldest first.
    pieces: Mutex<VecDeque<Piece>>,
    /// Bytes of all pieces. Changed with the lock of `pieces`.
    bytes: AtomicU64,
    bytes_max: u64,
    /// Shorter pieces are not kept. This also bounds how many there are to search.
    piece_bytes_min: u64,
}

impl Recent {
    /// An empty store for at most `bytes_max` bytes, without pieces shorter than `piece_bytes_min`.
    pub(crate) fn new(bytes_max: u64, piece_bytes_min: u64) -> Recent {
        Recent { pieces: Mutex::default(), bytes: AtomicU64::new(0), bytes_max, piece_bytes_min }
    }

    /// Keeps what a local file got at `start`.
    pub(crate) fn keep(&self, no: FileNo, serial: u64, start: u64, data: Bytes) {
        let len = data.len() as u64;
        if len < self.piece_bytes_min.max(1) || len > self.bytes_max {
            return;
        }
        let mut pieces = lock(&self.pieces);
        let mut bytes = self.bytes() + len;
        while bytes > self.bytes_max {
            let oldest = pieces.pop_front().expect("there are bytes, so there are pieces");
            bytes -= oldest.data.len() as u64;
        }
        pieces.push_back(Piece { no, serial, start, data });
        self.bytes.store(bytes, Ordering::Release);
    }

    /// The bytes of a range of a local file, if one piece has all of them. A piece that is read to
    /// its end is dropped: its reader has had it.
    pub(crate) fn take(&self, no: FileNo, serial: u64, range: &Range<u64>) -> Option<Bytes> {
        if self.bytes() == 0 {
            return None;
        }
        let mut pieces = lock(&self.pieces);
        let is_of = |piece: &Piece| piece.no == no && piece.serial == serial && piece.has(range);
        let at = pieces.iter().position(is_of)?;
        let piece = &pieces[at];
        let from = |offset: u64| usize::try_from(offset - piece.start).expect("within a piece");
        let found = piece.data.slice(from(range.start)..from(range.end));
        if range.end == piece.end() {
            self.bytes.fetch_sub(piece.data.len() as u64, Ordering::Release);
            pieces.remove(at);
        }
        Some(found)
    }

    /// The file is about to change, or is no longer open.
    pub(crate) fn forget(&self, no: FileNo) {
        if self.bytes() == 0 {
            return;
        }
        let mut pieces = lock(&self.pieces);
        pieces.retain(|piece| piece.no != no);
        let bytes = pieces.iter().map(|piece| piece.data.len() as u64).sum();
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Whether nothing is kept of a file.
    pub(crate) fn has_none_of(&self, no: FileNo) -> bool {
        lock(&self.pieces).iter().all(|piece| piece.no != no)
    }

    /// Bytes of all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = 4096;
    const MAX: u64 = 6 * UNIT;

    /// One byte for each unit, so that pieces differ.
    fn data(seed: u8, units: u64) -> Bytes {
        let units = (0..units).map(|unit| seed.wrapping_add(u8::try_from(unit).unwrap()));
        units.flat_map(|byte| std::iter::repeat_n(byte, UNIT as usize)).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Keep { no: u64, serial: u64, start: u64, units: u64, seed: u8 },
        Take { no: u64, serial: u64, start: u64, units: u64 },
        Forget { no: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = (0..3_u64, 0..2_u64, 0..6_u64);
        prop_oneof![
            (place.clone(), 0..8_u64, any::<u8>()).prop_map(
                |((no, serial, start), units, seed)| {
                    Step::Keep { no, serial, start, units, seed }
                }
            ),
            (place, 1..4_u64).prop_map(|((no, serial, start), units)| {
                Step::Take { no, serial, start, units }
            }),
            (0..3_u64).prop_map(|no| Step::Forget { no }),
        ]
    }

    /// What it should hold: number, serial, first unit, seed and length of each piece.
    type Model = VecDeque<(u64, u64, u64, u8, u64)>;

    fn keep(model: &mut Model, piece: (u64, u64, u64, u8, u64)) {
        if piece.4 == 0 || piece.4 * UNIT > MAX {
            return;
        }
        model.push_back(piece);
        while model.iter().map(|piece| piece.4).sum::<u64>() * UNIT > MAX {
            model.pop_front();
        }
    }

    fn take(model: &mut Model, no: u64, serial: u64, units: Range<u64>) -> Option<Bytes> {
        let at = model.iter().position(|piece| {
            (piece.0, piece.1) == (no, serial)
                && piece.2 <= units.start
                && units.end <= piece.2 + piece.4
        })?;
        let (_, _, start, seed, len) = model[at];
        if units.end == start + len {
            model.remove(at);
        }
        let skipped = u8::try_from(units.start - start).unwrap();
        Some(data(seed.wrapping_add(skipped), units.end - units.start))
    }

    proptest! {
        /// Pieces are added and dropped as in a list of them, and never exceed their bound.
        #[test]
        fn recent_bytes_agree_with_a_model(steps in prop::collection::vec(step(), 1..60)) {
            let recent = Recent::new(MAX, UNIT);
            let mut model = Model::new();
            for step in steps {
                match step {
                    Step::Keep { no, serial, start, units, seed } => {
                        recent.keep(FileNo(no), serial, start * UNIT, data(seed, units));
                        keep(&mut model, (no, serial, start, seed, units));
                    }
                    Step::Take { no, serial, start, units } => {
                        let range = start * UNIT..(start + units) * UNIT;
                        let found = recent.take(FileNo(no), serial, &range);
                        prop_assert_eq!(found, take(&mut model, no, serial, start..start + units));
                    }
                    Step::Forget { no } => {
                        recent.forget(FileNo(no));
                        model.retain(|piece| piece.0 != no);
                    }
                }
                let bytes = model.iter().map(|piece| piece.4).sum::<u64>() * UNIT;
                prop_assert_eq!(recent.bytes(), bytes);
                prop_assert!(bytes <= MAX);
            }
        }
    }

    #[test]
    fn short_pieces_are_not_kept() {
        let recent = Recent::new(MAX, UNIT);
        recent.keep(FileNo(1), 1, 0, Bytes::from(vec![1; UNIT as usize - 1]));
        assert_eq!(recent.bytes(), 0);
    }
}
