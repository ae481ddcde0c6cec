//! Every event in every reachable state, against a model byte by byte.

use super::*;

const FILE: FileId = FileId(7);
const BYTES: usize = 3;
const MODES: [Option<LockMode>; 3] = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];

/// How each byte is locked, by session.
type Model = [[Option<LockMode>; BYTES]; 2];

#[derive(Clone, Debug)]
enum Event {
    Change(usize, Range<usize>, Option<LockMode>),
    End(usize),
    Forget,
}

const PATIENCE: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(20);

fn locks() -> Locks {
    Locks::new(PATIENCE, LEASE)
}

fn asked(session: SessionId, file: FileId) -> Asked {
    Asked { session, file, claim: false }
}

fn session(number: usize) -> SessionId {
    SessionId([number as u8; 16])
}

fn change(range: Range<u64>, mode: Option<LockMode>) -> Change {
    Change { range, mode }
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::End(0), Event::End(1), Event::Forget];
    for (who, start) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        for end in start + 1..=BYTES {
            events.extend(MODES.map(|mode| Event::Change(who, start..end, mode)));
        }
    }
    events
}

fn carry_out(locks: &mut Locks, model: &mut Model, event: &Event, now: Instant) {
    match event {
        Event::End(who) => {
            locks.end(session(*who), now);
            model[*who] = [None; BYTES];
        }
        Event::Forget => {
            locks.forget(FILE);
            *model = Model::default();
        }
        Event::Change(who, range, mode) => {
            let others = model[1 - who][range.clone()].iter().flatten();
            let stands = |held: &&LockMode| mode.is_some_and(|mode| !goes_with(**held, mode));
            let refused = others.filter(stands).max().copied();
            let bytes = range.start as u64..range.end as u64;
            let found = mode.and_then(|mode| locks.conflict(session(*who), FILE, &bytes, mode));
            assert_eq!(found.map(|found| found.mode), refused, "{event:?} after {model:?}");
            let changed = locks.change(asked(session(*who), FILE), &[change(bytes, *mode)], now);
            assert_eq!(changed.is_ok(), refused.is_none());
            if refused.is_none() {
                model[*who][range.clone()].fill(*mode);
            }
        }
    }
}

/// The ranges that the table must have for a session to agree with the model.
fn ranges(bytes: &[Option<LockMode>; BYTES]) -> Vec<(Range<u64>, LockMode)> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < BYTES {
        let alike = bytes[start..].iter().take_while(|mode| **mode == bytes[start]).count();
        if let Some(mode) = bytes[start] {
            ranges.push((start as u64..(start + alike) as u64, mode));
        }
        start += alike;
    }
    ranges
}

/// Every event in every reachable state, so sequences of any length.
#[test]
fn every_sequence_of_changes_locks_the_bytes_that_it_should() {
    let (events, now) = (events(), Instant::now());
    let mut states = vec![(locks(), Model::default())];
    let mut next = 0;
    while let Some((locks, model)) = states.get(next).cloned() {
        next += 1;
        for event in &events {
            let (mut locks, mut then) = (locks.clone(), model);
            carry_out(&mut locks, &mut then, event, now);
            for (who, bytes) in then.iter().enumerate() {
                let held =
                    locks.files.get(&FILE).and_then(|there| there.holders.get(&session(who)));
                let held = held.map(|held| held.overlapping(&(0..LOCK_END)).collect::<Vec<_>>());
                let wanted = Some(ranges(bytes)).filter(|ranges| !ranges.is_empty());
                assert_eq!(held, wanted, "{event:?} after {model:?}");
                let counted = locks.sessions.get(&session(who)).map(|own| own.ranges);
                assert_eq!(counted, wanted.map(|ranges| ranges.len()), "{event:?} after {model:?}");
            }
            let nobody = then.iter().flatten().all(Option::is_none);
            assert_eq!(locks.files.is_empty(), nobody, "nothing is left over");
            if states.iter().all(|(_, known)| *known != then) {
                states.push((locks, then));
            }
        }
    }
    // Each byte is free, or shared by one or both, or one's alone: 6 ways.
    assert_eq!(states.len(), 6_usize.pow(BYTES as u32));
}

#[test]
fn of_several_ranges_all_are_locked_or_none() {
    let (mut locks, now) = (locks(), Instant::now());
    let (mine, theirs) = (session(0), session(1));
    let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
    locks.change(asked(theirs, FILE), &[change(20..30, shared)], now).unwrap();
    let both = [change(0..10, shared), change(25..40, exclusive)];
    assert_eq!(locks.change(asked(mine, FILE), &both, now), Err(Status::Locked));
    assert_eq!(locks.conflict(theirs, FILE, &(0..10), LockMode::Exclusive), None);
    locks.end(theirs, now);
    locks.change(asked(mine, FILE), &both, now).unwrap();
    let found = locks.conflict(theirs, FILE, &(0..26), LockMode::Shared);
    assert_eq!(found, Some(LockFound { range: (25..40).into(), mode: LockMode::Exclusive }));
    // In order: the later change counts.
    let twice = [change(0..LOCK_END, None), change(5..6, shared)];
    locks.change(asked(mine, FILE), &twice, now).unwrap();
    let found = locks.conflict(theirs, FILE, &(0..LOCK_END), LockMode::Exclusive);
    assert_eq!(found, Some(LockFound { range: (5..6).into(), mode: LockMode::Shared }));
}

#[test]
fn a_session_has_so_many_ranges_and_no_more() {
    let (mut locks, now) = (locks(), Instant::now());
    let own = session(0);
    let one = |at: usize| change(2 * at as u64..2 * at as u64 + 1, Some(LockMode::Shared));
    let half: Vec<_> = (0..RANGES_MAX / 2).map(one).collect();
    locks.change(asked(own, FILE), &half, now).unwrap();
    locks.change(asked(own, FileId(8)), &half, now).unwrap();
    let more = [one(RANGES_MAX)];
    assert_eq!(locks.change(asked(own, FILE), &more, now), Err(Status::NoSpace));
    assert!(locks.change(asked(session(1), FILE), &more, now).is_ok(), "each has its own");
    // A change that needs no room is not refused: two ranges become one.
    locks.change(asked(own, FILE), &[change(1..2, Some(LockMode::Shared))], now).unwrap();
    locks.change(asked(own, FILE), &more, now).unwrap();
    locks.change(asked(own, FILE), &[change(0..LOCK_END, None)], now).unwrap();
    locks.end(own, now);
    assert!(locks.sessions.keys().eq([&session(1)]));
}

/// Three sessions and one byte, for which one caller of each may wait.
mod waiting {
    use super::*;

    const SESSIONS: usize = 3;

    /// What each session has, the waiters in order with what they wait for, and for which it is
    /// reserved.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    struct Seen {
        held: [Option<LockMode>; SESSIONS],
        line: Vec<(usize, LockMode, bool)>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Lock(usize, Option<LockMode>),
        Wait(usize, LockMode),
        Forgo(usize),
        End(usize),
        Late,
        Forget,
    }

    fn events() -> Vec<Event> {
        let mut events = vec![Event::Late, Event::Forget];
        for who in 0..SESSIONS {
            events.extend(MODES.map(|mode| Event::Lock(who, mode)));
            events.extend(MODES.into_iter().flatten().map(|mode| Event::Wait(who, mode)));
            events.extend([Event::Forgo(who), Event::End(who)]);
        }
        events
    }

    fn seen(locks: &Locks) -> Seen {
        let mut seen = Seen::default();
        let Some(there) = locks.files.get(&FILE) else { return seen };
        for (holder, held) in &there.holders {
            let (_, mode) = held.overlapping(&(0..1)).next().expect("no holder has nothing");
            seen.held[usize::from(holder.0[0])] = Some(mode);
        }
        for waiter in &there.waiters {
            let mode = waiter.changes[0].mode.unwrap();
            let is_reserved = waiter.reserved_since.is_some();
            seen.line.push((usize::from(waiter.session.0[0]), mode, is_reserved));
        }
        seen
    }

    /// Whether a session could have the byte in this mode, considering what others have and what is
    /// reserved for the others in `line`.
    fn is_free(seen: &Seen, line: &[(usize, LockMode, bool)], who: usize, mode: LockMode) -> bool {
        let held = seen.held.iter().enumerate().filter_map(|(of, held)| Some((of, (*held)?)));
        let kept =
            line.iter().filter(|(.., is_reserved)| *is_reserved).map(|(of, mode, _)| (*of, *mode));
        let mut others = held.chain(kept).filter(|(of, _)| *of != who);
        others.all(|(_, held)| goes_with(held, mode))
    }

    fn check(before: &Seen, event: Event, after: &Seen, told: &[usize]) {
        let what = format!("{event:?}: {before:?} -> {after:?}, told {told:?}");
        for (at, (who, mode, is_reserved)) in after.line.iter().enumerate() {
            let others = [&after.line[..at], &after.line[at + 1..]].concat();
            assert_eq!(is_free(after, &others, *who, *mode), *is_reserved, "{what}");
        }
        for (who, mode) in after.held.iter().enumerate() {
            assert!(mode.is_none_or(|mode| is_free(after, &[], who, mode)), "{what}");
        }
        // No waiter is served before an earlier one that could have been served instead.
        let is_new = |one: &(usize, LockMode, bool)| {
            one.2 && !before.line.iter().any(|old| old.0 == one.0 && old.2)
        };
        for (at, one) in after.line.iter().enumerate().filter(|(_, one)| is_new(one)) {
            for (who, mode, _) in after.line[..at].iter().filter(|one| !one.2) {
                let without: Vec<_> =
                    after.line.iter().filter(|other| other.0 != one.0).copied().collect();
                assert!(!is_free(after, &without, *who, *mode), "{what}");
            }
        }
    }

    fn carry_out(locks: &mut Locks, event: Event, now: Instant) {
        let number = |who: usize| WaiterNumber(who as u64);
        let before = seen(locks);
        match event {
            Event::Lock(who, mode) => {
                let done = locks.change(asked(session(who), FILE), &[change(0..1, mode)], now);
                let may = mode.is_none_or(|mode| is_free(&before, &before.line, who, mode));
                assert_eq!(done.is_ok(), may, "{event:?} {before:?}");
                assert!(done.is_ok() || seen(locks) == before);
            }
            Event::Wait(who, mode) => {
                let changes = vec![change(0..1, Some(mode))];
                let kept = locks.wait(session(who), FILE, number(who), changes, now).unwrap();
                let stands = seen(locks).line.iter().any(|one| one.0 == who && one.2 == kept);
                assert!(stands, "{event:?} {before:?}");
            }
            Event::Forgo(who) => locks.forgo(session(who), FILE, number(who), now),
            Event::End(who) => locks.end(session(who), now),
            Event::Late => locks.ticked(now),
            Event::Forget => locks.forget(FILE),
        }
        let after = seen(locks);
        let told = locks.take_free();
        let told: Vec<usize> = told.iter().map(|free| usize::from(free.session.0[0])).collect();
        check(&before, event, &after, &told);
        for (who, _, is_reserved) in &after.line {
            let was_kept = before.line.iter().any(|one| one.0 == *who && one.2);
            let by_reply = matches!(event, Event::Wait(by, _) if by == *who);
            let is_told = told.contains(who);
            match event {
                // A waiter that was late is notified again if the lock is reserved for it again.
                Event::Late => assert_eq!(is_told, *is_reserved),
                _ => {
                    assert_eq!(
                        is_told,
                        *is_reserved && !was_kept && !by_reply,
                        "{event:?} {before:?}"
                    );
                }
            }
        }
        let has_some = !after.line.is_empty() || after.held.iter().any(Option::is_some);
        assert_eq!(locks.files.is_empty(), !has_some);
        let waits = |who| after.line.iter().any(|one| one.0 == who);
        let there = (0..SESSIONS).filter(|who| after.held[*who].is_some() || waits(*who));
        assert!(locks.sessions.keys().copied().eq(there.map(session)));
        let waiters: usize = locks.sessions.values().map(|own| own.waiters).sum();
        assert_eq!(waiters, after.line.len());
    }

    /// Every event in every state that events lead to.
    #[test]
    fn waiters_are_served_in_turn_and_told() {
        let (events, now) = (events(), Instant::now());
        let mut known = std::collections::HashSet::from([Seen::default()]);
        let mut states = vec![locks()];
        let mut next = 0;
        while let Some(there) = states.get(next).cloned() {
            next += 1;
            for event in &events {
                let mut locks = there.clone();
                // A reservation expires each time that this much time passes.
                let at = if matches!(event, Event::Late) { now + PATIENCE } else { now };
                carry_out(&mut locks, *event, at);
                for waiter in locks.files.values_mut().flat_map(|there| &mut there.waiters) {
                    waiter.reserved_since = waiter.reserved_since.map(|_| now);
                }
                if known.insert(seen(&locks)) {
                    states.push(locks);
                }
            }
        }
        assert!(states.len() > 100, "{}", states.len());
    }
}

/// Claims, and what other sessions get before they are made.
mod grace {
    use super::*;

    const EXCLUSIVE: [(Range<u64>, Option<LockMode>); 1] = [(0..10, Some(LockMode::Exclusive))];

    fn wanted() -> Vec<Change> {
        EXCLUSIVE.map(|(range, mode)| change(range, mode)).to_vec()
    }

    fn claim(session: SessionId) -> Asked {
        Asked { session, file: FILE, claim: true }
    }

    #[test]
    fn no_lock_is_granted_before_those_from_before_the_restart_are_claimed() {
        let (mut locks, now) = (locks(), Instant::now());
        let (one, two, new) = (session(1), session(2), session(3));
        locks.expect_claims(one);
        locks.expect_claims(two);
        for who in [one, new] {
            assert_eq!(locks.change(asked(who, FILE), &wanted(), now), Err(Status::Later));
            let waits = locks.wait(who, FILE, WaiterNumber(1), wanted(), now);
            assert_eq!(waits, Err(Status::Later));
            locks.change(asked(who, FILE), &[change(0..LOCK_END, None)], now).unwrap();
        }
        assert_eq!(locks.change(claim(new), &wanted(), now), Err(Status::Locked));
        locks.change(claim(one), &wanted(), now).unwrap();
        assert_eq!(locks.change(claim(two), &wanted(), now), Err(Status::Locked), "one has it");
        locks.claimed(one);
        assert_eq!(locks.change(claim(one), &wanted(), now), Err(Status::Locked), "it said so");
        assert_eq!(locks.need_no_grace(), Err(Status::Later));
        locks.end(two, now);
        assert_eq!(locks.need_no_grace(), Ok(()));
        assert_eq!(locks.change(asked(new, FILE), &wanted(), now), Err(Status::Locked));
        locks.end(one, now);
        locks.change(asked(new, FILE), &wanted(), now).unwrap();
    }

    #[test]
    fn a_client_that_comes_too_late_claims_nothing() {
        let (mut locks, now) = (locks(), Instant::now());
        locks.expect_claims(session(1));
        locks.end_grace();
        assert_eq!(locks.change(claim(session(1)), &wanted(), now), Err(Status::Locked));
        locks.change(asked(session(1), FILE), &wanted(), now).unwrap();
    }

    /// A client that continues in another process has the locks that it had, whichever other
    /// clients wait, as far as it requests them.
    #[test]
    fn the_next_life_of_a_client_takes_its_locks_over() {
        let (mut locks, now) = (locks(), Instant::now());
        let (before, after, other) = (session(1), session(2), session(3));
        for file in [FILE, FileId(8)] {
            locks.change(asked(before, file), &wanted(), now).unwrap();
            assert_eq!(locks.wait(other, file, WaiterNumber(file.0), wanted(), now), Ok(false));
        }
        locks.take_over(before, after, now);
        locks.end(before, now);
        assert!(locks.take_free().is_empty());
        locks.ticked(now + LEASE / 2);
        let again = [change(0..LOCK_END, None), change(3..5, Some(LockMode::Exclusive))];
        locks.change(asked(after, FILE), &again, now).unwrap();
        locks.ticked(now + LEASE);
        let told = LockFree { session: other, file: FileId(8), number: WaiterNumber(8) };
        assert_eq!(locks.take_free(), [told], "nobody asked for it");
        let found = locks.conflict(other, FILE, &(0..10), LockMode::Shared);
        assert_eq!(found.map(|found| found.range), Some((3..5).into()));
        locks.end(after, now);
        locks.end(other, now);
        assert!(locks.files.is_empty() && locks.sessions.is_empty() && locks.taken_over.is_empty());
    }
}
