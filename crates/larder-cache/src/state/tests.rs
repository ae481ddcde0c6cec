//! Tests of the state as a whole: how its parts work together.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges often has one")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A record without sums.
fn found(record: FileRecord) -> Found {
    Found { record, numbers: BTreeSet::new(), groups: Vec::new() }
}

/// In bytes: ranges are in chunks of their own, or cross from one to the next.
const STEP: u64 = crate::CHUNK_BYTES / 2;
const STEPS: u64 = 8;

#[derive(Clone, Debug)]
enum Step {
    Write(Range<u64>),
    Resize(u64),
    BeginSending,
    Acknowledge(Range<u64>),
    /// If nothing is dirty.
    Vouch(u8),
    Sync,
    BeginBypass,
    /// The kernel has written a chunk.
    FindChange(u64),
    EndBypass,
    Note,
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..STEPS, 1..3_u64).prop_map(|(at, len)| at * STEP..(at + len) * STEP);
    prop_oneof![
        4 => range().prop_map(Step::Write),
        1 => (0..STEPS).prop_map(|steps| Step::Resize(steps * STEP)),
        1 => Just(Step::BeginSending),
        3 => range().prop_map(Step::Acknowledge),
        1 => any::<u8>().prop_map(Step::Vouch),
        1 => Just(Step::Sync),
        1 => Just(Step::BeginBypass),
        2 => (0..STEPS / 2).prop_map(Step::FindChange),
        1 => Just(Step::EndBypass),
        3 => Just(Step::Note),
    ]
}

fn apply(state: &mut State, index: &mut Index, step: Step) {
    match step {
        Step::Write(range) => {
            state.begin_change(Monotonic::default());
            let len = usize::try_from(range.end - range.start).unwrap();
            state.write(range.start, &vec![1; len]);
        }
        Step::Resize(size) => {
            state.begin_change(Monotonic::default());
            state.set_size(size);
            state.recharge();
        }
        Step::BeginSending => drop(state.begin_sending()),
        Step::Acknowledge(range) if state.dirty().intersects(range.clone()) => {
            state.acknowledge(range);
        }
        Step::Vouch(version) if state.dirty().is_empty() => drop(state.vouch(&[version])),
        Step::Sync => state.set_synced(),
        Step::BeginBypass => {
            state.begin_change(Monotonic::default());
            state.know_all();
            state.recharge();
            state.begin_bypass(Some(Stamp::default()));
        }
        Step::FindChange(chunk) if state.is_bypassed() && chunk * 2 * STEP < state.size() => {
            let range = crate::sums::chunk_range(chunk, state.size());
            if state.known().contains(range.clone()) {
                state.find_change(chunk, 1, vec![range]);
            }
        }
        Step::EndBypass if state.is_bypassed() => state.end_bypass(),
        Step::Note => index.take(state),
        _ => (),
    }
}

/// The index, as far as it has notes of local changes.
#[derive(Debug, Default)]
struct Index {
    record: Option<LocalRecord>,
    ranges: BTreeMap<u64, u64>,
}

impl Index {
    fn take(&mut self, state: &mut State) {
        let notes = state.take_notes();
        if let Some(record) = notes.record {
            self.record = record;
        }
        for (start, end) in notes.ranges {
            match end {
                Some(end) => self.ranges.insert(start, end),
                None => self.ranges.remove(&start),
            };
        }
    }
}

proptest! {
    /// The process may die after each record: what the next one restores was the state then.
    #[test]
    fn another_run_takes_up_what_was_noted(steps in proptest::collection::vec(step(), 1..40)) {
        let (mut state, mut index) = (State::default(), Index::default());
        state.load(0, None);
        state.drop_content();
        state.start(Some(b"v"), 0);
        state.create_local(7);
        for step in steps {
            apply(&mut state, &mut index, step);
            state.check();
        }
        index.take(&mut state);
        let again = state.take_notes();
        prop_assert!(again.record.is_none() && again.ranges.is_empty(), "nothing is told twice");
        let ranges: Vec<_> = index.ranges.iter().map(|(start, end)| *start..*end).collect();
        prop_assert_eq!(&ranges, &state.dirty().iter().collect::<Vec<_>>());
        let Some(record) = index.record else {
            prop_assert!(state.is_clean());
            return Ok(());
        };
        let mut next = State::default();
        next.load(0, None);
        next.take_up(record, &ranges, false);
        next.recharge();
        next.check();
        prop_assert_eq!(next.size(), state.size());
        prop_assert_eq!(next.serial(), 7);
        prop_assert_eq!(next.version(), state.version());
        prop_assert_eq!(next.dirty(), state.dirty());
        prop_assert_eq!(next.known(), state.dirty(), "clean bytes are fetched again");
        prop_assert_eq!(next.bypasses().may_go_on(), state.is_bypassed());
        prop_assert_eq!(next.changes().is_acknowledged(), state.changes().is_acknowledged());
        prop_assert_eq!(next.changes().is_synced(), state.changes().is_synced());
        prop_assert!(!next.is_clean() || next.dirty().is_empty());
        let again = next.take_notes();
        prop_assert!(again.record.is_none() && again.ranges.is_empty(), "it is noted already");
    }
}

#[test]
fn a_save_leaves_the_list_only_if_nothing_came_in_between() {
    let mut state = State::default();
    state.load(0, None);
    state.drop_content();
    state.start(Some(b"v"), crate::CHUNK_BYTES);
    state.create_local(7);
    state.fill(&[0..crate::CHUNK_BYTES], vec![(0, 1)]);
    state.queue();
    assert!(state.begin_save().contains(0..1));
    state.end_save(Some(FileRecord { held_bytes: 1, ..FileRecord::default() }), [(0, true)]);
    assert!(state.leave_queue() && !state.recorded().is_queued());

    state.pin(true);
    state.queue();
    let touched = state.begin_save();
    state.forget_clean(0..1);
    assert!(!state.leave_queue(), "a chunk was lost meanwhile");
    state.put_back(&touched);
    assert!(!state.leave_queue() && state.recorded().is_queued());
    assert!(state.begin_save().contains(0..1));
}

/// Uses are saved from time to time, and only for a file that has a record.
#[test]
fn a_use_is_news_once_in_a_while() {
    let mut state = State::default();
    state.load(5, None);
    assert!(!state.touch(5 + LAST_USE_STEP_SEC), "it has no record");
    let record = FileRecord { last_use_sec: 5, pinned: true, ..FileRecord::default() };
    state.load(9, Some(found(record)));
    assert!(!state.touch(4 + LAST_USE_STEP_SEC) && state.touch(5 + LAST_USE_STEP_SEC));
    assert_eq!(state.last_use_sec(), 5 + LAST_USE_STEP_SEC);
    assert!(!state.pin(true) && state.pin(false) && !state.pin(false));
}

/// (recorded, trusted, news)
#[test]
fn a_verified_file_is_saved_if_its_record_is_not_trusted() {
    for (is_recorded, trusts, is_news) in
        [(false, false, false), (false, true, false), (true, true, false), (true, false, true)]
    {
        let mut state = State::default();
        let record = FileRecord { serial: 3, ..FileRecord::default() };
        state.load(0, is_recorded.then(|| found(record)));
        assert_eq!(state.local().is_stamped(), !is_recorded);
        assert_eq!(state.set_verified(trusts), is_news);
        assert!(state.local().is_stamped());
    }
}
