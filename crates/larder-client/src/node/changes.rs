//! Our own changes, and whether the server's replies prove that no other client made one.
//!
//! A server that reports the attributes from before and after an operation (RFC 1813, 2.6)
//! describes a step from one version to another. If the steps of all our requests form one chain
//! from the version that we held to the newest one, in some order and each used once, another
//! client's change has no place in it: it would have made a version at which none of our steps
//! begins. One step that begins at the version that we held proves nothing about the others.

use larder_io::Monotonic;
use larder_vfs::{Attr, Before, Change, Lease, Time, Validator};

/// What a description of a file says about the version that we have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is older than the version that we have.
    Older,
    /// It is the version that we have.
    Same,
    /// It shows only our own rename or link: what is cached is valid under the new version.
    Moved { from: Validator },
    /// Another client changed the file, but none of its bytes, which stay valid. Both descriptions
    /// report in which version the data last changed.
    SameData { from: Validator },
    /// Another version: another client changed the file.
    Changed,
}

/// Orders descriptions by age: by change attribute, else by change time, else by modification time.
pub(crate) fn recency(attr: &Attr) -> (Option<u64>, Time, Time, u64) {
    (attr.change, attr.ctime, attr.mtime, attr.size)
}

/// Whether all `changes` of a directory form a chain that begins at `from`.
pub(crate) fn follow(from: Validator, changes: &[Change]) -> bool {
    let mut reached = vec![from];
    let mut left: Vec<&Change> = changes.iter().collect();
    while let Some(next) =
        left.iter().position(|change| reached.iter().any(|version| change.follows(version)))
    {
        reached.extend(left.swap_remove(next).after.map(|attr| attr.validator()));
    }
    left.is_empty()
}

/// What the replies to a group of our changes of one file prove about other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// No other client changed the file: it is in the version that these attributes describe.
    Ours(Attr),
    /// Another client has changed links, mode or owner at most, or set times back; these attributes
    /// describe the file.
    Moved(Attr),
    /// Another client may have changed it: the server does not report enough.
    Untold,
    /// Another client has changed it, or the server's reports contradict each other.
    Foreign,
}

/// Judges `changes` of a directory that was in the version `from`; the last of them left `newest`.
pub(crate) fn prove_names(from: Validator, changes: &[Change], newest: Option<Attr>) -> Proof {
    let ours = newest.filter(|_| follow(from, changes));
    ours.map_or(Proof::Foreign, Proof::Ours)
}

/// Judges `changes` of a file that was in the version `from`.
pub(crate) fn prove(from: Validator, changes: &[Change]) -> Proof {
    let newest = changes.iter().filter_map(|change| change.after).max_by_key(recency);
    // An empty file has no bytes that another client could have written.
    if let Some(empty) = newest.filter(|attr| attr.size == 0) {
        return Proof::Ours(empty);
    }
    let mut steps = Vec::new();
    for change in changes {
        match (change.before, change.after) {
            (Some(before), Some(after)) => steps.push((before.validator(), after)),
            _ => return Proof::Untold,
        }
    }
    if let Some(end) = one_way(from, &steps) {
        return Proof::Ours(end);
    }
    // A link, a rename or a new mode leaves the bytes as they are.
    let by_bytes: Vec<_> = steps.iter().map(|(b, a)| (bytes_of(*b), attr_of_bytes(*a))).collect();
    let tells_bytes = steps.iter().all(|(before, _)| tells_bytes(before)) && tells_bytes(&from);
    match newest {
        Some(end) if tells_bytes && one_way(bytes_of(from), &by_bytes).is_some() => {
            Proof::Moved(end)
        }
        _ => Proof::Foreign,
    }
}

/// Whether versions of this server say if their bytes are the same: a version with a change
/// attribute does if it also reports when the data last changed.
fn tells_bytes(version: &Validator) -> bool {
    version.change.is_none() || version.data_change.is_some()
}

/// The version reduced to what concerns its bytes: two versions that differ in the change time
/// alone become equal.
fn bytes_of(version: Validator) -> Validator {
    Validator { change: version.data_change, ctime: Time::default(), ..version }
}

fn attr_of_bytes(attr: Attr) -> Attr {
    Attr { change: attr.data_change, ctime: Time::default(), ..attr }
}

/// Whether the bytes of two versions are the same: links, mode or owner were changed at most. On a
/// server that reports only times, this is wrong for a client that sets times back.
pub(crate) fn have_same_bytes(one: &Validator, other: &Validator) -> bool {
    tells_bytes(one) && tells_bytes(other) && bytes_of(*one).same(&bytes_of(*other))
}

/// The same change, for a file that it replaced whole: the earlier version does not matter.
pub(crate) fn replacing(held: &Validator, change: Change) -> Change {
    Change { before: Some(as_before(held)), ..change }
}

/// What the reply to a request that changes nothing proves: the version after it is the version
/// before it. If the reply reports another version before, another client changed the file.
pub(crate) fn unchanged(change: Change) -> Option<Change> {
    let after = change.after?;
    Some(Change { before: Some(as_before(&after.validator())), after: Some(after) })
}

fn as_before(version: &Validator) -> Before {
    let Validator { change, data_change, size, mtime, ctime } = *version;
    Before { size, mtime, ctime, change, data_change }
}

/// The end of the path that begins at `from` and takes every step once, if there is one.
///
/// There is one if all steps are connected and lead from each version as often as to it, except for
/// one more from the first and one more to the last (Euler).
fn one_way(from: Validator, steps: &[(Validator, Attr)]) -> Option<Attr> {
    let mut versions = vec![from];
    let mut number = |version: &Validator| {
        let known = versions.iter().position(|other| other.same(version));
        known.unwrap_or_else(|| {
            versions.push(*version);
            versions.len() - 1
        })
    };
    let steps: Vec<(usize, usize, &Attr)> = steps
        .iter()
        .map(|(before, after)| (number(before), number(&after.validator()), after))
        .collect();
    let mut excess = vec![0_i64; versions.len()];
    let mut reached = vec![false; versions.len()];
    for (before, after, _) in &steps {
        excess[*before] -= 1;
        excess[*after] += 1;
    }
    reached[0] = true;
    // Each round reaches a version more, or is the last one.
    while let Some((_, after, _)) =
        steps.iter().find(|(before, after, _)| reached[*before] && !reached[*after])
    {
        reached[*after] = true;
    }
    // One more step leads to the end than from it; if there is no such version, the path ends where
    // it began.
    let end = excess.iter().position(|excess| *excess > 0).unwrap_or(0);
    excess[0] += 1;
    excess[end] -= 1;
    let is_one_way = reached.iter().all(|reached| *reached) && excess.iter().all(|n| *n == 0);
    let last = steps.iter().map(|(_, after, attr)| (*after, *attr)).filter(|(at, _)| *at == end);
    last.map(|(_, attr)| *attr).max_by_key(recency).filter(|_| is_one_way)
}

/// How a group of our own changes ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// The version before the first one.
    pub(crate) from: Validator,
    /// Whether what is cached stays valid under the new version: no other client is known to have
    /// interfered.
    pub(crate) ours: bool,
}

/// Changes of our own that are in flight.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) in_flight: u32,
    pub(crate) replies: Vec<Change>,
    pub(crate) ended: Monotonic,
    /// The lease under which the first one began.
    pub(crate) lease: Option<Lease>,
    /// Up to here the server has bytes that we wrote and that its last description may not show: a
    /// reply need not describe the file. Zero if it shows all of them.
    pub(crate) written_end: u64,
    /// The server may have carried out one that no description which we have includes.
    pub(crate) is_untold: bool,
    /// Directories: the lease under which the last ones began and ended that no reply describes.
    /// While it holds, nobody else has changed the names.
    pub(crate) vouched: Option<Lease>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::file_of;

    fn attr(version: u32) -> Attr {
        file_of(Time { sec: 100, nsec: version })
    }

    fn step(before: u32, after: u32) -> Change {
        Change { before: Some(as_before(&attr(before).validator())), after: Some(attr(after)) }
    }

    /// All sequences of up to `len` numbers below `bound`.
    fn sequences(bound: u32, len: usize) -> Vec<Vec<u32>> {
        let mut all = vec![vec![]];
        let mut longest = all.clone();
        for _ in 0..len {
            longest = longest
                .iter()
                .flat_map(|start| (0..bound).map(move |next| [start.as_slice(), &[next]].concat()))
                .collect();
            all.extend(longest.clone());
        }
        all
    }

    /// The server carries out changes, ours and others', one after the other, and reports each
    /// exactly. For every history of up to six changes and every order in which four replies
    /// arrive, our changes are proven to be alone if and only if no other client's came before the
    /// last of ours.
    #[test]
    fn exact_servers_prove_every_history_right() {
        let mut judged = 0;
        for history in sequences(2, 6) {
            let is_ours = |at: usize| history[at] == 1;
            let ours: Vec<usize> = (0..history.len()).filter(|at| is_ours(*at)).collect();
            let Some(last) = ours.last().copied() else { continue };
            let alone = (0..last).all(is_ours);
            let number = |at: usize| u32::try_from(at).unwrap();
            let mut replies: Vec<Change> =
                ours.iter().map(|at| step(number(*at), number(*at) + 1)).collect();
            for turn in 0..replies.len() * replies.len() {
                let count = replies.len();
                replies.rotate_left(1);
                replies.swap(0, turn / count);
                let end = attr(number(last) + 1);
                let expected = if alone { Proof::Ours(end) } else { Proof::Foreign };
                assert_eq!(prove(attr(0).validator(), &replies), expected, "{history:?}");
                judged += 1;
            }
        }
        assert!(judged > 500, "{judged}");
    }

    /// Every set of up to three steps between four versions is compared with all orders in which
    /// they might have been taken.
    #[test]
    fn a_proof_is_an_order_in_which_it_happened() {
        fn taken(at: u32, left: &[(u32, u32)]) -> bool {
            left.is_empty()
                || (0..left.len()).any(|i| {
                    let mut rest = left.to_vec();
                    let (before, after) = rest.remove(i);
                    before == at && taken(after, &rest)
                })
        }
        for sequence in sequences(16, 3) {
            let steps: Vec<(u32, u32)> = sequence.iter().map(|n| (n / 4, n % 4)).collect();
            let changes: Vec<Change> = steps.iter().map(|(a, b)| step(*a, *b)).collect();
            let proven = matches!(prove(attr(0).validator(), &changes), Proof::Ours(_));
            assert_eq!(proven, !steps.is_empty() && taken(0, &steps), "{steps:?}");
        }
    }

    /// Another client moved the change time before or between our changes: the steps reduced to
    /// bytes still form one path.
    #[test]
    fn links_in_between_are_told_from_bytes() {
        let linked = |version| Attr { ctime: Time { sec: 101, nsec: 0 }, ..attr(version) };
        let after_link = |before, after| Change {
            before: Some(as_before(&linked(before).validator())),
            after: Some(attr(after)),
        };
        for (changes, proof) in [
            (vec![after_link(0, 1)], Proof::Moved(attr(1))),
            (vec![step(0, 1), after_link(1, 2)], Proof::Moved(attr(2))),
            (vec![after_link(1, 2)], Proof::Foreign),
            (vec![step(0, 1), after_link(2, 3)], Proof::Foreign),
        ] {
            assert_eq!(prove(attr(0).validator(), &changes), proof, "{changes:?}");
        }
        assert!(have_same_bytes(&attr(0).validator(), &linked(0).validator()));
        assert!(!have_same_bytes(&attr(0).validator(), &attr(1).validator()));
        let told = Attr { change: Some(1), ..attr(0) };
        assert!(!have_same_bytes(&told.validator(), &told.validator()), "of links it tells too");
    }

    /// A server with exact versions that reports in which one the data last changed. Every history
    /// of up to four changes, each one our write, our chmod, another client's write or its chmod:
    /// the bytes that we had, with what we wrote, are the file's if and only if the other client
    /// wrote nothing before the last of ours.
    #[test]
    fn a_version_of_the_data_tells_bytes_from_all_else() {
        let told = |change, data_change| Attr {
            change: Some(change),
            data_change: Some(data_change),
            ..attr(u32::try_from(change).unwrap())
        };
        for history in sequences(4, 4) {
            let (mut version, mut replies) = (told(0, 0), Vec::new());
            // Whether the other client has written nothing, up to the last of our changes and up to
            // now.
            let (from, mut alone, mut alone_now) = (version.validator(), true, true);
            for kind in &history {
                let (is_ours, writes) = (kind % 2 == 0, kind / 2 == 0);
                let before = Some(as_before(&version.validator()));
                let next = version.change.unwrap() + 1;
                let data_change = if writes { next } else { version.data_change.unwrap() };
                version = told(next, data_change);
                if is_ours {
                    replies.push(Change { before, after: Some(version) });
                    alone = alone_now;
                }
                alone_now &= is_ours || !writes;
            }
            if replies.is_empty() {
                continue;
            }
            let proof = prove(from, &replies);
            let is_proven = matches!(proof, Proof::Ours(_) | Proof::Moved(_));
            assert_eq!(is_proven, alone, "{history:?}: {proof:?}");
        }
        let (one, linked, written) = (told(3, 2), told(4, 2), told(5, 5));
        assert!(have_same_bytes(&one.validator(), &linked.validator()));
        assert!(!have_same_bytes(&one.validator(), &written.validator()));
    }

    #[test]
    fn what_is_not_told_proves_nothing() {
        let held = attr(0).validator();
        let untold = |after| Change { before: None, after: Some(attr(after)) };
        let lost = Change { before: step(0, 1).before, after: None };
        let empty = Change { before: None, after: Some(Attr { size: 0, ..attr(9) }) };
        for (changes, proof) in [
            (vec![untold(1)], Proof::Untold),
            (vec![step(0, 1), untold(2)], Proof::Untold),
            (vec![lost], Proof::Untold),
            (vec![replacing(&held, untold(1))], Proof::Ours(attr(1))),
            (vec![step(0, 1), unchanged(untold(1)).unwrap()], Proof::Ours(attr(1))),
            (vec![step(0, 1), unchanged(step(1, 2)).unwrap()], Proof::Foreign),
            (vec![empty], Proof::Ours(Attr { size: 0, ..attr(9) })),
        ] {
            assert_eq!(prove(held, &changes), proof, "{changes:?}");
        }
    }
}
