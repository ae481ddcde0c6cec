//! Histories of replies, and what is known afterwards.

use super::*;
use crate::fixtures::file_of;
use crate::node::changes::recency;
use larder_vfs::{Before, Change, Lease, Time};

const TTL: TtlRange = TtlRange { min: Duration::from_secs(5), max: Duration::from_secs(20) };
const SESSION: u64 = 7;

fn attr(version: u32) -> Attr {
    let file = file_of(Time { sec: 100, nsec: version });
    Attr { kind: Kind::Directory, mode: 0o755, nlink: 2, size: 4096, used: 4096, ..file }
}

fn state() -> State {
    let known = Known::described(attr(0), SESSION, at(10), TTL.min);
    State::new(Handle::new(b"h"), known)
}

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_nanos(seconds * 1_000_000_000)
}

fn change(before: u32, after: u32) -> Change {
    let seen = attr(before);
    let (size, mtime, ctime) = (seen.size, seen.mtime, seen.ctime);
    let before = Before { size, mtime, ctime, change: None, data_change: None };
    Change { before: Some(before), after: Some(attr(after)) }
}

#[test]
fn attributes_are_fresh_for_their_timeout_in_this_session_only() {
    let state = state();
    assert_eq!(state.fresh_for(SESSION, at(12)), Duration::from_secs(3));
    assert_eq!(state.fresh_for(SESSION, at(15)), Duration::ZERO);
    assert_eq!(state.fresh_for(SESSION + 1, at(12)), Duration::ZERO);
}

/// A lease on a directory vouches for its names when a change of ours has moved its times, of which
/// the reply says nothing, until it ends.
#[test]
fn under_a_lease_own_changes_leave_the_names_and_make_times_old() {
    let lease = Lease::new();
    let changed = || {
        let mut state = state();
        state.leasing_mut().take(lease.clone());
        for second in [20, 21] {
            state.begin_change();
            state.end_change([Change::default()], SESSION, at(second), TTL, false);
        }
        assert!(!state.known.doubtful && state.ctime_is_old());
        assert_eq!(state.names_fresh_for(SESSION, at(50)), TTL.min);
        assert_eq!(state.fresh_for(SESSION, at(50)), Duration::ZERO);
        state
    };
    let mut told = changed();
    let seen = told.observe(attr(1), SESSION, at(30), TTL, Age::Young);
    assert_eq!((seen, told.known.epoch), (Seen::Moved { from: attr(0).validator() }, 0));
    assert!(!told.ctime_is_old());
    assert_eq!(told.observe(attr(1), SESSION, at(40), TTL, Age::Old), Seen::Same);
    assert_eq!(told.known.epoch, 0, "the names are vouched for, however young it was");
    assert_eq!(told.observe(attr(2), SESSION, at(41), TTL, Age::Old), Seen::Changed);
    // One change was not the only one, or another lease has come since.
    let mut alone = changed();
    alone.begin_change();
    lease.end();
    alone.end_change([Change::default()], SESSION, at(22), TTL, false);
    assert_eq!(alone.known.epoch, 1);
    let mut ended = state();
    let first = Lease::new();
    ended.leasing_mut().take(first.clone());
    ended.begin_change();
    ended.end_change([Change::default()], SESSION, at(20), TTL, false);
    first.end();
    assert_eq!(ended.names_fresh_for(SESSION, at(50)), Duration::ZERO);
    ended.leasing_mut().take(Lease::new());
    assert_eq!(ended.observe(attr(1), SESSION, at(30), TTL, Age::Old), Seen::Changed);
    assert_eq!(ended.known.epoch, 1);
}

/// A search for a file that began before it was removed may end after that, and find another file.
#[test]
fn a_file_that_was_removed_for_good_is_not_found_again() {
    let (mut state, found) = (state(), Handle::new(b"found"));
    state.found_again(found.clone()).unwrap();
    assert_eq!(state.handle(), Ok(found));
    state.go();
    assert_eq!(state.found_again(Handle::new(b"another")), Err(Error::Stale));
    assert!(state.is_gone());
}

#[test]
fn timeout_doubles_while_nothing_changes() {
    let mut state = state();
    for (asked, seconds) in [(20, 10), (30, 20), (40, 20)] {
        assert_eq!(state.observe(attr(0), SESSION, at(asked), TTL, Age::Old), Seen::Same);
        assert_eq!(state.known.ttl, Duration::from_secs(seconds));
    }
    assert_eq!(state.observe(attr(1), SESSION, at(50), TTL, Age::Old), Seen::Changed);
    assert_eq!(state.known.ttl, TTL.min);
    assert_eq!(state.known.epoch, 1);
}

#[test]
fn an_older_answer_does_not_turn_time_back() {
    let mut state = state();
    assert_eq!(state.observe(attr(2), SESSION, at(20), TTL, Age::Old), Seen::Changed);
    assert_eq!(state.observe(attr(1), SESSION, at(19), TTL, Age::Old), Seen::Older);
    assert_eq!(state.known.attr, attr(2));
}

#[test]
fn answers_asked_for_before_our_change_ended_do_not_count() {
    let mut state = state();
    state.begin_change();
    assert_eq!(state.observe(attr(1), SESSION, at(20), TTL, Age::Old), Seen::Older);
    let ended = state.end_change([change(0, 1)], SESSION, at(30), TTL, false).unwrap();
    assert!(ended.ours);
    assert_eq!(state.observe(attr(0), SESSION, at(25), TTL, Age::Old), Seen::Older);
    assert_eq!((state.known.attr, state.known.epoch), (attr(1), 0));
}

#[test]
fn a_reply_is_vouched_for_by_one_lease_from_its_request_on_and_if_nothing_of_ours_came_between() {
    let mut state = state();
    let lease = Lease::new();
    assert!(!state.vouched_since(&lease, at(20)), "it is not held");
    state.leasing_mut().take(lease.clone());
    assert!(state.vouched_since(&lease, at(20)));
    state.begin_change();
    assert!(!state.vouched_since(&lease, at(20)));
    state.end_change([change(0, 1)], SESSION, at(30), TTL, false);
    assert!(!state.vouched_since(&lease, at(20)) && state.vouched_since(&lease, at(30)));
    lease.set_ends_late(true);
    assert!(!state.vouched_since(&lease, at(30)), "another client may have changed it");
    lease.set_ends_late(false);
    lease.end();
    assert!(!state.vouched_since(&lease, at(30)));
    state.leasing_mut().take(Lease::new());
    assert!(!state.vouched_since(&lease, at(30)), "another one is held");
}

#[test]
fn a_change_of_ours_overlaps_what_was_asked_before_it_ended() {
    let mut state = state();
    assert!(!state.changed_since(at(10)));
    state.begin_change();
    assert!(state.changed_since(at(10)) && state.changed_since(at(25)), "it is under way");
    state.end_change([change(0, 1)], SESSION, at(30), TTL, false);
    assert!(state.changed_since(at(25)));
    assert!(!state.changed_since(at(30)));
}

/// (changes in the order of their replies, whether they are ours)
#[test]
fn changes_are_ours_if_they_follow_on_each_other() {
    for (changes, ours) in [
        (vec![change(0, 1)], true),
        (vec![change(1, 2), change(0, 1)], true),
        (vec![change(0, 2), change(0, 2)], true),
        (vec![change(5, 6)], false),
        (vec![change(0, 1), change(5, 6)], false),
        (vec![Change { before: None, ..change(0, 1) }], false),
    ] {
        let mut state = state();
        changes.iter().for_each(|_| state.begin_change());
        let mut ends = changes.iter().map(|c| state.end_change([*c], SESSION, at(20), TTL, false));
        let ended = ends.by_ref().find_map(|end| end).unwrap();
        assert_eq!(ended.ours, ours, "{changes:?}");
        drop(ends);
        assert_eq!(state.known.epoch, u64::from(!ours));
        let newest = changes.iter().filter_map(|c| c.after).max_by_key(recency);
        assert_eq!(Some(state.known.attr), newest);
    }
}

/// (kind of file, whether what is cached stays valid, whether it is doubtful then)
#[test]
fn what_the_server_does_not_tell_of_a_change_leaves_doubt() {
    for (kind, ours, doubtful) in [(Kind::File, true, true), (Kind::Directory, false, false)] {
        let mut state = state();
        state.known.attr.kind = kind;
        state.begin_change();
        let untold = Change { before: None, after: Some(Attr { kind, ..attr(1) }) };
        let ended = state.end_change([untold], SESSION, at(20), TTL, false).unwrap();
        assert_eq!((ended.ours, state.known.doubtful), (ours, doubtful), "{kind:?}");
        assert_eq!(state.start_over(), doubtful);
        assert!(!state.start_over());
        assert_eq!(state.version().rereads, u64::from(doubtful));
    }
}

/// (when it is described again, how old it is then, whether names stay valid, whether they
/// are doubtful then)
#[test]
fn names_of_a_young_directory_go_when_they_or_it_have_aged() {
    for (asked, age, go_on, doubtful) in [
        (21, Age::Young, true, true),
        (21, Age::OfTheFuture, true, true),
        (21, Age::Old, false, false),
        (26, Age::Young, false, true),
        (26, Age::Old, false, false),
    ] {
        let mut state = state();
        state.observe(attr(1), SESSION, at(20), TTL, Age::Young);
        let epoch = state.known.epoch;
        assert_eq!(state.observe(attr(1), SESSION, at(asked), TTL, age), Seen::Same);
        assert_eq!(state.known.epoch == epoch, go_on, "{asked} {age:?}");
        assert_eq!(state.known.doubtful, doubtful, "{asked} {age:?}");
    }
}

/// (what kind of file, its size afterwards, whether it is doubtful)
#[test]
fn a_change_of_ours_on_a_coarse_clock_leaves_doubt() {
    for (kind, size, doubtful) in
        [(Kind::File, 4096, true), (Kind::File, 0, false), (Kind::Directory, 0, true)]
    {
        let mut state = state();
        state.known.attr.kind = kind;
        state.begin_change();
        let after = Some(Attr { kind, size, ..attr(1) });
        state.end_change([Change { after, ..change(0, 1) }], SESSION, at(20), TTL, true);
        assert_eq!(state.known.doubtful, doubtful, "{kind:?} {size}");
    }
}

#[test]
fn bytes_do_not_come_back_with_their_version() {
    for doubtful in [true, false] {
        let mut state = state();
        state.known.attr.kind = Kind::File;
        state.known.doubtful = doubtful;
        let held = state.version();
        for (version, asked) in [(1, 20), (0, 21)] {
            let attr = Attr { kind: Kind::File, ..attr(version) };
            assert_eq!(state.observe(attr, SESSION, at(asked), TTL, Age::Old), Seen::Changed);
        }
        assert!(!state.version().same(&held) && !state.known.doubtful);
    }
}

#[test]
fn foreign_change_under_local_changes_makes_a_mixture() {
    let mut state = state();
    state.known.attr.kind = Kind::File;
    state.unsent = Unsent::of_size(1);
    state.observe(Attr { kind: Kind::File, ..attr(1) }, SESSION, at(20), TTL, Age::Old);
    assert!(state.unsent.is_mixed());
}

/// A server that reports when data last changed: a link made by another client makes a new version
/// of the file and does not affect its bytes, including unsent ones. The contents of a directory
/// are given up.
#[test]
fn links_and_modes_of_others_leave_data_where_the_server_tells_them_apart() {
    for kind in [Kind::File, Kind::Directory] {
        let told = |change, data_change| Attr {
            kind,
            change: Some(change),
            data_change: Some(data_change),
            ..attr(u32::try_from(change).unwrap())
        };
        let mut state = state();
        state.known.attr = told(4, 2);
        state.unsent = Unsent::of_size(1);
        let (from, held) = (state.known.attr.validator(), state.version());
        let seen = state.observe(told(5, 2), SESSION, at(20), TTL, Age::Old);
        let is_file = kind == Kind::File;
        assert_eq!(seen, if is_file { Seen::SameData { from } } else { Seen::Changed });
        assert_eq!(state.unsent.is_mixed(), !is_file);
        assert_eq!(state.known.epoch, u64::from(!is_file));
        assert!(state.version().same(&held) && state.version().bytes() == held.bytes());
        assert_eq!(state.observe(told(6, 6), SESSION, at(30), TTL, Age::Old), Seen::Changed);
        assert!(!state.version().same(&held));
    }
}

#[test]
fn a_failed_change_changes_nothing() {
    let mut state = state();
    state.begin_change();
    assert!(state.end_change([], SESSION, at(20), TTL, false).is_none());
    assert_eq!((state.known.attr, state.known.epoch), (attr(0), 0));
}

#[test]
fn our_rename_moves_ctime_only() {
    let mut state = state();
    let moved = Attr { ctime: Time { sec: 200, nsec: 0 }, ..attr(0) };
    state.ctime_may_move = true;
    let from = attr(0).validator();
    assert_eq!(state.observe(moved, SESSION, at(20), TTL, Age::Old), Seen::Moved { from });
    let again = Attr { ctime: Time { sec: 300, nsec: 0 }, ..attr(0) };
    assert_eq!(state.observe(again, SESSION, at(30), TTL, Age::Old), Seen::Changed);
}
