//! The state of the table after calls that were answered, not answered, or refused.

use std::ops::Range;

use super::*;
use LockMode::{Exclusive, Shared};

const FILE: FileId = FileId(7);

fn change(range: Range<u64>, mode: Option<LockMode>) -> LockChange {
    LockChange { range, mode }
}

fn held(locks: &Locks) -> Vec<(Range<u64>, LockMode)> {
    locks.lock().get(&FILE).map(|file| file.held.iter().collect()).unwrap_or_default()
}

/// The changes to send, in the types of `larder-vfs`.
fn begin(turn: &Turn<'_>, changes: &[LockChange]) -> Vec<LockChange> {
    let sent = turn.begin(changes).unwrap();
    let told = |change: &words::LockChange| LockChange {
        range: change.range.lockable().unwrap(),
        mode: change.mode.map(mode),
    };
    sent.0.iter().map(told).collect()
}

#[tokio::test]
async fn what_is_locked_stands_here_until_it_is_unlocked() {
    let locks = Locks::default();
    let reset = change(0..LOCK_END, None);
    let (one, two) = (change(0..10, Some(Exclusive)), change(5..20, Some(Shared)));
    let turn = locks.turn(FILE).await;
    let sent = begin(&turn, std::slice::from_ref(&one));
    assert_eq!(sent, [reset.clone(), one], "whatever an earlier process has left goes");
    turn.end(Outcome::Done);
    assert_eq!(begin(&turn, std::slice::from_ref(&two)), [two]);
    turn.end(Outcome::Done);
    assert_eq!(held(&locks), [(0..5, Exclusive), (5..20, Shared)]);
    begin(&turn, &[change(0..30, Some(Exclusive))]);
    turn.end(Outcome::Refused);
    assert_eq!(held(&locks), [(0..5, Exclusive), (5..20, Shared)]);
    assert!(locks.doubtful().is_empty());
    begin(&turn, &[reset]);
    turn.end(Outcome::Done);
    drop(turn);
    assert!(locks.lock().is_empty());
}

#[tokio::test]
async fn an_unknown_outcome_is_sent_again() {
    let locks = Locks::default();
    let reset = change(0..LOCK_END, None);
    let turn = locks.turn(FILE).await;
    begin(&turn, &[change(0..10, Some(Exclusive))]);
    turn.end(Outcome::Done);
    begin(&turn, &[change(0..5, Some(Shared)), change(8..20, Some(Exclusive))]);
    turn.end(Outcome::Unknown);
    let known = [(0..5, Shared), (5..10, Exclusive)];
    assert_eq!(held(&locks), known, "what was held before and would be after");
    assert!(turn.is_doubtful());
    drop(turn);
    assert_eq!(locks.doubtful(), [FILE]);
    let turn = locks.turn(FILE).await;
    let again = known.map(|(range, mode)| change(range, Some(mode)));
    assert_eq!(begin(&turn, &[]), [&[reset.clone()][..], &again].concat());
    // The session ends while the call is in flight.
    locks.doubt_all();
    turn.end(Outcome::Done);
    assert!(turn.is_doubtful());
    begin(&turn, &[]);
    turn.end(Outcome::Refused);
    turn.lose();
    assert!(!turn.is_doubtful() && held(&locks).is_empty());
    // An unlock whose outcome is unknown.
    begin(&turn, &[change(0..10, Some(Shared))]);
    turn.end(Outcome::Done);
    begin(&turn, std::slice::from_ref(&reset));
    turn.end(Outcome::Unknown);
    drop(turn);
    assert!(held(&locks).is_empty());
    assert_eq!(locks.doubtful(), [FILE], "the server may have it still");
    let turn = locks.turn(FILE).await;
    assert_eq!(begin(&turn, &[]), [reset]);
    turn.end(Outcome::Done);
    drop(turn);
    assert!(locks.lock().is_empty());
}

/// A holder whose first lock is refused leaves nothing behind, and the server need not be told.
#[tokio::test]
async fn a_holder_of_nothing_is_not_in_the_table() {
    let locks = Locks::default();
    let turn = locks.turn(FILE).await;
    begin(&turn, &[change(0..1, Some(Shared))]);
    turn.end(Outcome::Refused);
    drop(turn);
    assert!(locks.lock().is_empty());
    drop(locks.turn(FILE).await);
    locks.doubt_all();
    assert!(locks.doubtful().is_empty() && locks.lock().is_empty());
}
