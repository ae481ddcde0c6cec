//! Tests of [`super`]: random changes against a set of bytes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Bytes are modelled in units of a quarter of a chunk.
const UNIT: u64 = CHUNK_BYTES / 4;
const UNITS: u64 = 14;

/// What the file is, unit by unit. A file ends between two units.
#[derive(Debug, Default)]
struct Model {
    size: u64,
    known: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
    /// Chunks that must have a sum, and the sum.
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
    /// Over all steps in any order: the same bytes are known, dirty and charged, and the same
    /// chunks have sums and are to be saved, as in sets of units.
    #[test]
    fn agrees_with_sets_of_units(steps in proptest::collection::vec(step(), 1..30)) {
        let (mut model, mut found) = (Model::default(), Presence::default());
        let mut rewritten = BTreeSet::new();
        // Before sending begins, all that is marked as sent is clean.
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
        changed.is_whole() && changed.dirty().contains(8..12) && !changed.dirty().intersects(4..8)
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
