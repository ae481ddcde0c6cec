//! Which bytes of a file are here.
//!
//! Invariants:
//! - Dirty bytes are known, and known bytes are within the file.
//! - A chunk has a checksum only if all its bytes up to the end of file are known, and then the
//!   checksum is that of the bytes last filled, written or found.
//! - `charged` is the number of chunks that known bytes touch, except between a loss of bytes and
//!   the [`Presence::recharge`] that follows.
//! - Every chunk whose bytes or sum changed is *touched* until a save takes it.

use std::io;
use std::ops::Range;

use super::dirty::{Dirty, Note};
use crate::CHUNK_BYTES;
use crate::ranges::RangeSet;
use crate::sums::{Group, Sums, chunk_range, chunks_of};

/// Larger files are not cached; see [`crate::sums::group_of`].
pub(crate) const SIZE_MAX: u64 = 1 << 55;
/// Zeros of an extension that are held; a larger hole is left to the caller's zero point, because
/// what is held is charged, and a hole of a terabyte costs the disk nothing.
pub(crate) const ZEROS_MAX: u64 = 1 << 20;

/// The bytes of one local file.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    size: u64,
    /// Clean and dirty bytes.
    known: RangeSet,
    dirty: Dirty,
    sums: Sums,
    charged: u64,
    /// Chunks changed since the last save.
    touched: RangeSet,
    /// See [`Presence::data`].
    data: RangeSet,
}

impl Presence {
    /// Nothing of a file of `size` bytes.
    pub(crate) fn nothing(size: u64) -> Presence {
        Presence { size, ..Presence::default() }
    }

    /// From the checksums in an index.
    pub(crate) fn saved(size: u64, groups: impl IntoIterator<Item = (u32, Group)>) -> Presence {
        let mut found = Presence::nothing(size);
        for (number, group) in groups {
            found.sums.insert_group(number, group);
        }
        for chunk in found.sums.chunks() {
            found.known.insert(chunk_range(chunk, size));
        }
        found.charged = found.charged_now();
        found
    }

    /// What an earlier run changed, in a file of at least `size` bytes. As many chunks are charged
    /// as before, until [`Presence::recharge`].
    pub(crate) fn changed(size: u64, dirty: &[Range<u64>], charged: u64) -> Presence {
        let mut found = Presence { charged, ..Presence::nothing(size) };
        for range in dirty {
            found.size = found.size.max(range.end);
            found.dirty.restore(range.clone());
            found.known.insert(range.clone());
        }
        found
    }

    /// End of file, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Clean and dirty bytes.
    pub(crate) fn known(&self) -> &RangeSet {
        &self.known
    }

    /// Bytes that no server has.
    pub(crate) fn dirty(&self) -> &RangeSet {
        self.dirty.ranges()
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Of a local file in a bypass: outside of this it was a hole, or had its end, when it was
    /// compared last.
    pub(crate) fn data(&self) -> &RangeSet {
        &self.data
    }

    /// The sums alone.
    pub(crate) fn into_sums(self) -> Sums {
        self.sums
    }

    /// Chunks that the accounts have for this file.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether all bytes up to the end of file are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.known.contains(0..self.size)
    }

    /// Whether a chunk is held as a whole and clean.
    pub(crate) fn is_complete(&self, chunk: u64) -> bool {
        let range = chunk_range(chunk, self.size);
        !range.is_empty() && self.known.contains(range.clone()) && !self.dirty().intersects(range)
    }

    /// Chunks that these parts, which are in order, touch and nothing that is known does.
    pub(crate) fn uncharged(&self, parts: &[Range<u64>]) -> u64 {
        let (mut count, mut counted_to) = (0, 0);
        for part in parts {
            let chunks = chunks_of(part);
            let chunks = chunks.start.max(counted_to).min(chunks.end)..chunks.end;
            counted_to = chunks.end;
            let is_new = |chunk: &u64| !self.known.intersects(chunk_range(*chunk, self.size));
            count += chunks.filter(is_new).count() as u64;
        }
        count
    }

    /// Clean bytes came, and sums of chunks that came whole. Answers how many chunks are charged
    /// for them.
    pub(crate) fn fill(&mut self, parts: &[Range<u64>], sums: Vec<(u64, u32)>) -> u64 {
        debug_assert!(parts.iter().all(|part| !self.known.intersects(part.clone())));
        let more = self.uncharged(parts);
        self.charged += more;
        for part in parts {
            self.touched.insert(chunks_of(part));
            self.known.insert(part.clone());
        }
        for (chunk, sum) in sums {
            self.sums.set_verified(chunk, sum);
        }
        more
    }

    /// Bytes were changed here. Extends the file.
    pub(crate) fn write(&mut self, range: Range<u64>) {
        self.set_size(self.size.max(range.end));
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range.clone());
        self.touch(chunks_of(&range));
        self.dirty.insert(range);
    }

    /// Bytes within the file, none of them dirty, are others now, and known.
    pub(crate) fn take_copied(&mut self, range: Range<u64>) {
        debug_assert!(range.end <= self.size && !self.dirty().intersects(range.clone()));
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range.clone());
        self.touch(chunks_of(&range));
    }

    /// These bytes, which were not known, are zeros.
    pub(crate) fn hold_zeros(&mut self, range: Range<u64>) {
        self.charged += self.uncharged(std::slice::from_ref(&range));
        self.known.insert(range);
    }

    /// The bytes of a range are zeros now. They are as known as before, but that of more than
    /// [`ZEROS_MAX`] the clean ones are not held: they would be charged.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        if range.end - range.start > ZEROS_MAX {
            self.forget_clean(range);
        } else {
            self.touch(chunks_of(&range));
        }
    }

    /// Moves the end of file to where it is now; new bytes are not known yet. Answers whether it
    /// moved.
    pub(crate) fn set_size(&mut self, size: u64) -> bool {
        if size == self.size {
            return false;
        }
        // The last chunk before either end covers other bytes from now on.
        let edge = size.min(self.size);
        self.known.remove(size..u64::MAX);
        self.dirty.remove(size..u64::MAX);
        self.data.remove(size..u64::MAX);
        let last = size.max(self.size).div_ceil(CHUNK_BYTES);
        self.touch(edge / CHUNK_BYTES..last);
        self.size = size;
        true
    }

    /// Follows the local file in a bypass. All of it is known except holes larger than
    /// [`ZEROS_MAX`]: to checksum, send and charge their zeros would take as long as they are
    /// large. The server has the same zeros there, because the whole file was held when the bypass
    /// began. Returns whether the end moved.
    pub(crate) fn follow_local(&mut self, data: Vec<Range<u64>>, len: u64) -> io::Result<bool> {
        if len > SIZE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let has_moved = self.set_size(len);
        let mut end = 0;
        // The end counts as data of no length, so that the hole before it is judged like the
        // others.
        for range in data.into_iter().chain(std::iter::once(len..len)) {
            let start = if range.start - end <= ZEROS_MAX { end } else { range.start };
            self.known.insert(start..range.end);
            end = range.end;
        }
        let known: Vec<_> = self.known.iter().collect();
        for chunks in known.iter().map(chunks_of) {
            let (start, end) = (chunks.start * CHUNK_BYTES, chunks.end * CHUNK_BYTES);
            self.known.insert(start..end.min(len));
        }
        Ok(has_moved)
    }

    /// The local file may have data everywhere, as far as is known.
    pub(crate) fn all_is_data(&mut self) {
        self.data = RangeSet::default();
        self.data.insert(0..self.size);
    }

    /// The local file has data here.
    pub(crate) fn note_data(&mut self, data: &RangeSet) {
        data.iter().for_each(|range| self.data.insert(range));
    }

    /// All bytes are known, because they were verified.
    pub(crate) fn know_all(&mut self) {
        self.known.insert(0..self.size);
    }

    /// Forgets the clean bytes of a range.
    pub(crate) fn forget_clean(&mut self, range: Range<u64>) {
        for gap in self.dirty().gaps(range.clone()) {
            self.known.remove(gap);
        }
        self.touch(chunks_of(&range));
    }

    /// A chunk that is known was read or written, and has this sum.
    pub(crate) fn set_sum(&mut self, chunk: u64, sum: u32) {
        self.sums.set_verified(chunk, sum);
    }

    /// A known chunk has another checksum than before: it must be saved again.
    pub(crate) fn change_sum(&mut self, chunk: u64, sum: u32) {
        self.sums.set_verified(chunk, sum);
        self.touched.insert(chunk..chunk + 1);
    }

    /// Bytes that are known are dirty.
    pub(crate) fn set_dirty(&mut self, range: Range<u64>) {
        self.dirty.insert(range);
    }

    /// See [`Dirty::begin_sending`].
    pub(crate) fn begin_sending(&mut self) -> Vec<Range<u64>> {
        self.dirty.begin_sending()
    }

    /// The server has these bytes, except those written since [`Presence::begin_sending`].
    pub(crate) fn set_sent(&mut self, range: Range<u64>) {
        self.dirty.sent(range).into_iter().for_each(|part| self.dirty.remove(part));
    }

    /// See [`Dirty::take_unnoted`].
    pub(crate) fn take_unnoted(&mut self) -> Vec<Note> {
        self.dirty.take_unnoted()
    }

    /// Brings `charged` in line with what is known; answers what it was and what it is.
    pub(crate) fn recharge(&mut self) -> (u64, u64) {
        let now = self.charged_now();
        (std::mem::replace(&mut self.charged, now), now)
    }

    /// Chunks that changed since the last save, which are saved now.
    pub(crate) fn take_touched(&mut self) -> RangeSet {
        std::mem::take(&mut self.touched)
    }

    /// Chunks that were not saved after all.
    pub(crate) fn touch_again(&mut self, chunks: &RangeSet) {
        chunks.iter().for_each(|chunks| self.touched.insert(chunks));
    }

    /// All chunks are to be saved.
    pub(crate) fn touch_all(&mut self) {
        self.touched.insert(0..self.size.div_ceil(CHUNK_BYTES));
    }

    /// Whether chunks changed since the last save.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Checks the invariants that are cheap to check.
    pub(crate) fn check(&self) {
        debug_assert!(self.known.end() <= self.size);
        debug_assert!(self.dirty().iter().all(|range| self.known.contains(range)));
        debug_assert_eq!(self.charged, self.charged_now());
    }

    /// Bytes in these chunks change: their sums go.
    fn touch(&mut self, chunks: Range<u64>) {
        self.sums.clear(chunks.clone());
        self.touched.insert(chunks);
    }

    /// Chunks that `known` touches, recounted.
    fn charged_now(&self) -> u64 {
        let mut count = 0;
        let mut counted_to = 0;
        for range in self.known.iter() {
            let chunks = chunks_of(&range);
            count += chunks.end - chunks.start.max(counted_to).min(chunks.end);
            counted_to = chunks.end;
        }
        count
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges often has one")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Bytes are looked at in units of a quarter of a chunk.
    const UNIT: u64 = CHUNK_BYTES / 4;
    const UNITS: u64 = 14;

    /// What the file is, unit by unit. A file ends between two units.
    #[derive(Debug, Default)]
    struct Model {
        size: u64,
        known: BTreeSet<u64>,
        dirty: BTreeSet<u64>,
        /// Chunks that must have a sum, and which.
        sums: std::collections::BTreeMap<u64, u32>,
        touched: BTreeSet<u64>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// The parts of a range that are not known come from the server.
        Fill(Range<u64>),
        Write(Range<u64>),
        Extend(u64),
        SetSize(u64),
        Forget(Range<u64>),
        Zero(Range<u64>),
        Copied(Range<u64>),
        Found(u64, u32),
        BeginSending,
        Sent(Range<u64>),
        Save,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..UNITS, 1..UNITS).prop_map(|(at, len)| at..(at + len).min(UNITS));
        prop_oneof![
            4 => range().prop_map(Step::Fill),
            4 => range().prop_map(Step::Write),
            1 => (0..UNITS).prop_map(Step::Extend),
            2 => (0..UNITS).prop_map(Step::SetSize),
            2 => range().prop_map(Step::Forget),
            1 => range().prop_map(Step::Zero),
            1 => range().prop_map(Step::Copied),
            2 => (0..UNITS.div_ceil(4), any::<u32>()).prop_map(|(at, sum)| Step::Found(at, sum)),
            1 => Just(Step::BeginSending),
            3 => range().prop_map(Step::Sent),
            1 => Just(Step::Save),
        ]
    }

    fn units(range: &Range<u64>) -> Range<u64> {
        range.start / UNIT..range.end / UNIT
    }

    fn bytes(units: &Range<u64>) -> Range<u64> {
        units.start * UNIT..units.end * UNIT
    }

    fn chunks(units: &Range<u64>) -> Range<u64> {
        chunks_of(&bytes(units))
    }

    impl Model {
        fn units_of(&self, chunk: u64) -> Range<u64> {
            units(&chunk_range(chunk, self.size * UNIT))
        }

        fn is_known(&self, chunk: u64) -> bool {
            let mut units = self.units_of(chunk);
            !units.is_empty() && units.all(|unit| self.known.contains(&unit))
        }

        fn touch(&mut self, chunks: Range<u64>) {
            self.sums.retain(|chunk, _| !chunks.contains(chunk));
            self.touched.extend(chunks);
        }

        fn set_size(&mut self, size: u64) {
            if size == self.size {
                return;
            }
            let edge = size.min(self.size);
            self.known.retain(|unit| *unit < size);
            self.dirty.retain(|unit| *unit < size);
            self.touch(edge / 4..size.max(self.size).div_ceil(4));
            self.size = size;
        }

        fn charged(&self) -> u64 {
            self.known.iter().map(|unit| unit / 4).collect::<BTreeSet<_>>().len() as u64
        }
    }

    fn fill(model: &mut Model, found: &mut Presence, range: &Range<u64>) {
        let range = range.start.min(model.size)..range.end.min(model.size);
        let parts = found.known().gaps(bytes(&range));
        let whole = |chunk: &u64| {
            let bytes = chunk_range(*chunk, found.size());
            parts.iter().any(|part| part.start <= bytes.start && bytes.end <= part.end)
        };
        let sums: Vec<_> = parts.iter().flat_map(chunks_of).filter(whole).map(|c| (c, 7)).collect();
        let before = model.charged();
        for part in &parts {
            model.known.extend(units(part));
            model.touched.extend(chunks_of(part));
        }
        model.sums.extend(sums.iter().copied());
        assert_eq!(found.fill(&parts, sums), model.charged() - before);
    }

    fn apply(model: &mut Model, found: &mut Presence, rewritten: &mut BTreeSet<u64>, step: Step) {
        match step {
            Step::Fill(range) => fill(model, found, &range),
            Step::Write(range) => {
                model.set_size(model.size.max(range.end));
                model.known.extend(range.clone());
                model.dirty.extend(range.clone());
                rewritten.extend(range.clone());
                model.touch(chunks(&range));
                found.write(bytes(&range));
            }
            Step::Extend(size) if size > model.size => {
                let old = model.size;
                model.set_size(size);
                model.known.extend(old..size);
                assert!(found.set_size(size * UNIT));
                found.hold_zeros(old * UNIT..size * UNIT);
            }
            Step::SetSize(size) | Step::Extend(size) => {
                let moves = size != model.size;
                model.set_size(size);
                assert_eq!(found.set_size(size * UNIT), moves);
            }
            Step::Forget(range) => {
                let dirty = model.dirty.clone();
                model.known.retain(|unit| !range.contains(unit) || dirty.contains(unit));
                model.touch(chunks(&range));
                found.forget_clean(bytes(&range));
            }
            Step::Zero(range) => {
                model.touch(chunks(&range));
                found.zero(bytes(&range));
            }
            Step::Copied(range) => {
                let range = range.start.min(model.size)..range.end.min(model.size);
                for clean in found.dirty().gaps(bytes(&range)) {
                    model.known.extend(units(&clean));
                    model.touch(chunks_of(&clean));
                    found.take_copied(clean);
                }
            }
            Step::Found(chunk, sum) if model.is_known(chunk) => {
                model.sums.insert(chunk, sum);
                model.touched.insert(chunk);
                model.dirty.extend(model.units_of(chunk));
                rewritten.extend(model.units_of(chunk));
                found.change_sum(chunk, sum);
                found.set_dirty(chunk_range(chunk, found.size()));
            }
            Step::Found(..) => (),
            Step::BeginSending => {
                rewritten.clear();
                let told: Vec<u64> = found.begin_sending().iter().flat_map(units).collect();
                assert!(told.iter().eq(&model.dirty));
            }
            Step::Sent(range) => {
                model.dirty.retain(|unit| !range.contains(unit) || rewritten.contains(unit));
                found.set_sent(bytes(&range));
            }
            Step::Save => {
                let taken: BTreeSet<u64> = found.take_touched().iter().flatten().collect();
                assert_eq!(taken, std::mem::take(&mut model.touched));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Whatever comes in whatever order: the same bytes are known, dirty and charged, and the
        /// same chunks have sums and are to be saved, as in sets of units.
        #[test]
        fn agrees_with_sets_of_units(steps in proptest::collection::vec(step(), 1..30)) {
            let (mut model, mut found) = (Model::default(), Presence::default());
            let mut rewritten = BTreeSet::new();
            // Before anybody sends, all that is sent is clean.
            found.begin_sending();
            for step in steps {
                apply(&mut model, &mut found, &mut rewritten, step);
                found.recharge();
                found.check();
                prop_assert_eq!(found.size(), model.size * UNIT);
                let known: Vec<u64> = found.known().iter().flat_map(|range| units(&range)).collect();
                prop_assert!(known.iter().eq(&model.known), "{known:?} {:?}", model.known);
                let dirty: Vec<u64> = found.dirty().iter().flat_map(|range| units(&range)).collect();
                prop_assert!(dirty.iter().eq(&model.dirty), "{dirty:?} {:?}", model.dirty);
                prop_assert_eq!(found.charged(), model.charged());
                prop_assert_eq!(found.is_touched(), !model.touched.is_empty());
                for chunk in 0..UNITS.div_ceil(4) {
                    prop_assert_eq!(found.sums().get(chunk), model.sums.get(&chunk).copied());
                    prop_assert!(found.sums().get(chunk).is_none() || model.is_known(chunk));
                    let is_dirty = model.units_of(chunk).any(|unit| model.dirty.contains(&unit));
                    prop_assert_eq!(found.is_complete(chunk), model.is_known(chunk) && !is_dirty);
                }
                let is_whole = (0..model.size).all(|unit| model.known.contains(&unit));
                prop_assert_eq!(found.is_whole(), is_whole);
            }
        }
    }

    #[test]
    fn what_was_saved_or_changed_comes_back_without_being_told_again() {
        let mut group = Group::default();
        group.set(0, 1, false);
        group.set(2, 3, false);
        let mut saved = Presence::saved(2 * CHUNK_BYTES + 5, [(0, group)]);
        saved.check();
        let known: Vec<_> = saved.known().iter().collect();
        assert_eq!(known, [0..CHUNK_BYTES, 2 * CHUNK_BYTES..2 * CHUNK_BYTES + 5]);
        assert!(!saved.sums().is_verified(0) && saved.charged() == 2 && !saved.is_touched());
        assert_eq!(saved.take_unnoted(), []);

        let mut changed = Presence::changed(10, &[2..4, 8..12], 5);
        assert_eq!((changed.size(), changed.recharge(), changed.is_whole()), (12, (5, 1), false));
        changed.check();
        assert_eq!(changed.take_unnoted(), []);
        changed.know_all();
        assert!(
            changed.is_whole()
                && changed.dirty().contains(8..12)
                && !changed.dirty().intersects(4..8)
        );
    }

    /// (length, data, what is known): holes up to [`ZEROS_MAX`] are zeros, larger ones are not
    /// known, and chunks are known whole.
    #[test]
    fn a_bypassed_file_is_known_but_for_its_large_holes() {
        const LARGE: u64 = ZEROS_MAX + CHUNK_BYTES;
        let data = |start: u64| start..start + 1;
        for (len, parts, known) in [
            (0, vec![], vec![]),
            (5, vec![], vec![0..5]),
            (ZEROS_MAX, vec![], vec![0..ZEROS_MAX]),
            (LARGE, vec![], vec![]),
            (LARGE + 1, vec![data(LARGE)], vec![LARGE..LARGE + 1]),
            (LARGE + 1, vec![data(0)], vec![0..CHUNK_BYTES]),
            (2 * LARGE, vec![data(LARGE + 7)], vec![LARGE..LARGE + CHUNK_BYTES]),
            (LARGE + ZEROS_MAX, vec![data(LARGE + 7)], vec![LARGE..LARGE + ZEROS_MAX]),
        ] {
            let mut found = Presence::nothing(3);
            assert_eq!(found.follow_local(parts.clone(), len).unwrap(), len != 3);
            found.recharge();
            found.check();
            assert_eq!(found.known().iter().collect::<Vec<_>>(), known, "{len} {parts:?}");
        }
        let mut found = Presence::nothing(3);
        assert!(found.follow_local(Vec::new(), SIZE_MAX + 1).is_err() && found.size() == 3);
    }
}
