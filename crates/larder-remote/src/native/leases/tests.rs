//! Sequences of grants and recalls.

use larder_wire::meta::words::{ByteRange, ChangeId, Device, Kind, Time};
use larder_wire::xdr::Array;

use super::*;

const DIR: FileId = FileId(7);

fn seen(kind: LeaseKind, number: u64) -> Seen {
    let (version, time) = (ChangeId(1), Time { seconds: 1, nanoseconds: 0 });
    let attributes = Attributes {
        file: DIR,
        kind: Kind::Directory,
        mode: 0o755,
        links: 2,
        uid: 0,
        gid: 0,
        device: Device { major: 0, minor: 0 },
        size: 0,
        used: 0,
        atime: time,
        mtime: time,
        ctime: time,
        birth: time,
        change: version,
        data_change: version,
    };
    let layout = Layout {
        covered: ByteRange { offset: 0, length: 0 },
        extents: Array::default(),
        grants: Array::default(),
    };
    let lease = Some(LeaseGiven { kind, number: LeaseNumber(number) });
    Seen { attributes, granted: 0, lease, layout }
}

/// What the test knows of the lease with the number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Held(LeaseKind),
    /// One of its recalls returns it, and something waits under it still, or does not.
    Returning(LeaseKind, bool),
    Gone,
}

/// Over all sequences of six steps: of all recalls of one lease one returns it, and others that
/// come before it is returned do not; until all is sent under a write lease it excludes others.
#[test]
fn one_recall_of_several_returns_a_lease() {
    const STEPS: u32 = 6;
    let number = LeaseNumber(1);
    for kind in [LeaseKind::Read, LeaseKind::Write] {
        for sequence in 0..3_u32.pow(STEPS) {
            let leases = Leases::default();
            leases.begin().take(&Cred::root(), &seen(kind, 1));
            let mut known = Known::Held(kind);
            for step in 0..STEPS {
                match sequence / 3_u32.pow(step) % 3 {
                    0 => {
                        let wanted = match known {
                            Known::Held(kind) => Recalled::Held(kind),
                            Known::Returning(..) => Recalled::Returning,
                            Known::Gone => Recalled::Unknown,
                        };
                        assert_eq!(leases.recalled(DIR, number), wanted, "{sequence} {step}");
                        if let Known::Held(kind) = known {
                            known = Known::Returning(kind, true);
                        }
                    }
                    1 => {
                        leases.excludes_no_more(DIR, number);
                        if let Known::Returning(kind, _) = known {
                            known = Known::Returning(kind, false);
                        }
                    }
                    _ => {
                        leases.returned(DIR, number);
                        if let Known::Returning(..) = known {
                            known = Known::Gone;
                        }
                    }
                }
                let excludes = matches!(known, Known::Returning(LeaseKind::Write, true));
                assert_eq!(leases.is_returning(DIR), excludes, "{sequence} {step}");
                let held = known == Known::Held(LeaseKind::Write);
                assert_eq!(leases.excludes(DIR), held, "{sequence} {step}");
            }
        }
    }
}

/// The end of a recall of an earlier lease says nothing of the next one on the same file.
#[test]
fn the_end_of_an_earlier_recall_leaves_a_later_one_alone() {
    let leases = Leases::default();
    let root = Cred::root();
    leases.begin().take(&root, &seen(LeaseKind::Write, 1));
    assert_eq!(leases.recalled(DIR, LeaseNumber(1)), Recalled::Held(LeaseKind::Write));
    leases.begin().take(&root, &seen(LeaseKind::Write, 2));
    assert_eq!(leases.recalled(DIR, LeaseNumber(2)), Recalled::Held(LeaseKind::Write));
    leases.excludes_no_more(DIR, LeaseNumber(1));
    leases.returned(DIR, LeaseNumber(1));
    assert!(leases.is_returning(DIR));
    assert_eq!(leases.recalled(DIR, LeaseNumber(2)), Recalled::Returning);
}

/// Answers about one lease come in another order than the server gave them: it is the write lease
/// that the server has on its books, and what waits under it is sent before it is returned.
#[test]
fn an_older_answer_does_not_weaken_a_lease() {
    let leases = Leases::default();
    let root = Cred::root();
    let (older, newer) = (leases.begin(), leases.begin());
    newer.take(&root, &seen(LeaseKind::Write, 1));
    older.take(&root, &seen(LeaseKind::Read, 1));
    assert!(leases.excludes(DIR));
    assert_eq!(leases.recalled(DIR, LeaseNumber(1)), Recalled::Held(LeaseKind::Write));
}

/// A mount that has read many files keeps the locations of those that it read last, and none of
/// them takes the place of all others.
#[test]
fn the_layouts_that_came_last_are_kept() {
    let leases = Leases::default();
    let more = 100;
    let file = |number: usize| FileId(1000 + number as u64);
    let of = |number: usize| {
        let mut seen = seen(LeaseKind::Read, 1 + number as u64);
        (seen.attributes.file, seen.attributes.size) = (file(number), 4096);
        seen.layout.covered = ByteRange { offset: 0, length: 4096 };
        seen
    };
    for number in 0..LAYOUTS_MAX + more {
        leases.begin().take(&Cred::root(), &of(number));
        assert!(leases.layout(file(number), 0, 4096).is_some(), "{number}");
    }
    let kept = (0..LAYOUTS_MAX + more).filter(|it| leases.layout(file(*it), 0, 4096).is_some());
    assert_eq!(kept.collect::<Vec<_>>(), (more..LAYOUTS_MAX + more).collect::<Vec<_>>());
    // One that loses its layout and gets it again.
    let last = LAYOUTS_MAX + more - 1;
    for _ in 0..3 * LAYOUTS_MAX {
        leases.forget_layout(file(last));
        let seen = of(last);
        leases.begin().take_layout(&seen.attributes, &seen.layout);
        assert!(leases.layout(file(last), 0, 4096).is_some());
    }
    let state = leases.lock();
    assert!(state.got_layout.len() <= 2 * LAYOUTS_MAX, "{}", state.got_layout.len());
    let has = |held: &Held| held.known.as_ref().is_some_and(|known| known.layout.is_some());
    assert_eq!(state.layouts, state.held.values().filter(|held| has(held)).count());
    assert!(state.layouts <= LAYOUTS_MAX);
}
