//! Names: directories with files and directories in them, one call at a time.
//!
//! The server's number identifies a file. If a file's maker got no answer, the number is unknown:
//! the file has a number of its own here until a call reports it.
//!
//! A client that makes names on its machine first shows its objects under numbers of its own, then
//! and later. Other clients show the server's. So an object may have two numbers; that they are of
//! one object is learned when a call meets the other one.

use std::collections::{BTreeMap, BTreeSet};

use super::Timed;
use super::linear::{self, Model, Verdict};

/// The number of a file or directory at the server.
pub type Node = u64;

/// Numbers from here on stand for objects whose maker did not learn their number.
const UNHEARD: Node = 1 << 63;

/// Numbers from here on, below [`UNHEARD`], are given by clients.
const MADE_HERE: Node = 1 << 62;

/// Bits of the numbers that one client gives.
const NUMBER_BITS: u32 = 40;

/// The number under which a client shows an object that was made on its machine first.
///
/// # Panics
/// If it has made too many.
pub fn made_here(client: usize, number: u64) -> Node {
    assert!(number < 1 << NUMBER_BITS, "{number} objects");
    MADE_HERE + ((client as u64) << NUMBER_BITS) + number
}

/// Whether a client shows an object of its own under this number.
pub fn is_made_here(node: Node) -> bool {
    (MADE_HERE..UNHEARD).contains(&node)
}

/// Stands for an object whose maker did not learn its number; `number` must be unique.
pub fn unheard(number: u64) -> Node {
    UNHEARD + number
}

/// A name in a directory.
pub type Dentry = (Node, &'static str);

/// What kind of object is made or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name exists.
    Exists,
    /// The name does not exist.
    Absent,
    /// The directory has entries.
    NotEmpty,
    /// The directory, or the file that was to get a name, no longer exists.
    Gone,
}

/// A call about names, and its answer.
#[derive(Clone, Debug)]
pub enum Call {
    /// Makes an object under a name that must not exist.
    Make {
        /// The name.
        at: Dentry,
        /// The kind of object.
        kind: Kind,
        /// The number of the new object.
        answer: Result<Node, Refusal>,
    },
    /// Looks a name up, or searches a listing for it.
    Look {
        /// The name.
        at: Dentry,
        /// The object that it names.
        answer: Result<Option<Node>, Refusal>,
    },
    /// Removes a name.
    Remove {
        /// The name.
        at: Dentry,
        /// The kind of object that is removed.
        kind: Kind,
        /// Whether it was removed.
        answer: Result<(), Refusal>,
    },
    /// Renames. An object under the new name is replaced, unless it is a directory with entries.
    Rename {
        /// The old name.
        from: Dentry,
        /// The new one.
        to: Dentry,
        /// Whether it was renamed.
        answer: Result<(), Refusal>,
    },
    /// Gives a file another name. One that has lost its last name gets none again (link(2)).
    Link {
        /// Which file.
        file: Node,
        /// The new name.
        to: Dentry,
        /// Whether it got the name.
        answer: Result<(), Refusal>,
    },
}

/// The state of the directory tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    entries: BTreeMap<Dentry, Node>,
    directories: BTreeSet<Node>,
    /// All objects that ever existed: no number is used twice.
    ever: BTreeSet<Node>,
    /// The server's number of each object that was met under it and under its maker's.
    at_server: BTreeMap<Node, Node>,
}

/// A directory that is never removed, empty at first.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Its number.
    pub root: Node,
}

impl Names {
    /// Whether one order explains all calls; see [`linear::explain`].
    pub fn explain(&self, calls: &[Timed<Call>], states_max: usize) -> Verdict {
        linear::explain(self, calls, states_max)
    }

    fn is_there(&self, tree: &Tree, dir: Node) -> bool {
        let is_named = || tree.entries.values().any(|node| *node == dir);
        dir == self.root || tree.directories.contains(&dir) && is_named()
    }

    fn refuses(&self, tree: &Tree, call: &Call, refusal: Refusal) -> bool {
        let lacks = |at: &Dentry| !tree.entries.contains_key(at);
        let is_gone = |at: &Dentry| !self.is_there(tree, at.0);
        let is_full = |at: &Dentry| tree.entries.get(at).is_some_and(|dir| tree.has_entries(*dir));
        match (call, refusal) {
            (Call::Make { at, .. } | Call::Link { to: at, .. }, Refusal::Exists) => !lacks(at),
            (Call::Link { file, to, .. }, Refusal::Gone | Refusal::Absent) => {
                is_gone(to) || !tree.entries.values().any(|node| node == file)
            }
            (Call::Make { at, .. }, Refusal::Gone | Refusal::Absent) => is_gone(at),
            (Call::Look { at, .. } | Call::Remove { at, .. }, Refusal::Gone) => is_gone(at),
            (Call::Look { at, .. } | Call::Remove { at, .. }, Refusal::Absent) => lacks(at),
            (Call::Remove { at, kind, .. }, Refusal::NotEmpty) => {
                *kind == Kind::Directory && is_full(at)
            }
            (Call::Rename { from, to, .. }, Refusal::Gone) => is_gone(from) || is_gone(to),
            (Call::Rename { from, to, .. }, Refusal::Absent) => lacks(from) || is_gone(to),
            (Call::Rename { to, .. }, Refusal::NotEmpty | Refusal::Exists) => is_full(to),
            _ => false,
        }
    }
}

impl Tree {
    fn has_entries(&self, dir: Node) -> bool {
        self.entries.keys().any(|(in_dir, _)| *in_dir == dir)
    }

    /// Assigns this number to an object that is there under another one: its maker did not learn
    /// it, or gave it a number of its own. `None` if the number is in use, or if both are of one
    /// giver.
    fn met(&self, there: Node, seen: Node) -> Option<Tree> {
        if self.ever.contains(&seen) || is_made_here(there) && is_made_here(seen) {
            return None;
        }
        if is_made_here(seen) && there < UNHEARD {
            let mut next = self.clone();
            next.ever.insert(seen);
            next.at_server.insert(seen, there);
            return Some(next);
        }
        if there < MADE_HERE {
            return None;
        }
        let is = |one: Node| if one == there { seen } else { one };
        let entries = self.entries.iter().map(|((dir, name), node)| ((is(*dir), *name), is(*node)));
        let mut next = Tree {
            entries: entries.collect(),
            directories: self.directories.iter().map(|one| is(*one)).collect(),
            ever: self.ever.iter().map(|one| is(*one)).collect(),
            at_server: self.at_server.clone(),
        };
        if is_made_here(there) {
            next.ever.insert(there);
            next.at_server.insert(there, seen);
        }
        Some(next)
    }

    /// The number under which an object is in the tree.
    fn known(&self, node: Node) -> Node {
        self.at_server.get(&node).copied().unwrap_or(node)
    }

    /// The same call with the numbers of the tree.
    fn translated(&self, call: &Call) -> Call {
        let known = |at: &Dentry| (self.known(at.0), at.1);
        match call {
            Call::Make { at, kind, answer } => {
                Call::Make { at: known(at), kind: *kind, answer: *answer }
            }
            Call::Look { at, answer } => {
                let answer = answer.map(|seen| seen.map(|seen| self.known(seen)));
                Call::Look { at: known(at), answer }
            }
            Call::Remove { at, kind, answer } => {
                Call::Remove { at: known(at), kind: *kind, answer: *answer }
            }
            Call::Rename { from, to, answer } => {
                Call::Rename { from: known(from), to: known(to), answer: *answer }
            }
            Call::Link { file, to, answer } => {
                Call::Link { file: self.known(*file), to: known(to), answer: *answer }
            }
        }
    }
}

impl Model for Names {
    type Call = Call;
    type State = Tree;

    fn first(&self) -> Tree {
        let root = BTreeSet::from([self.root]);
        Tree {
            entries: BTreeMap::new(),
            directories: root.clone(),
            ever: root,
            at_server: BTreeMap::new(),
        }
    }

    fn after(&self, tree: &Tree, call: &Call) -> Option<Tree> {
        let call = &tree.translated(call);
        let refusal = match call {
            Call::Make { answer, .. } => answer.err(),
            Call::Look { answer, .. } => answer.err(),
            Call::Remove { answer, .. }
            | Call::Rename { answer, .. }
            | Call::Link { answer, .. } => answer.err(),
        };
        if let Some(refusal) = refusal {
            return self.refuses(tree, call, refusal).then(|| tree.clone());
        }
        let mut next = tree.clone();
        match call {
            Call::Make { at, kind, answer } => {
                let node = answer.ok()?;
                let may = self.is_there(tree, at.0) && !tree.entries.contains_key(at);
                if !may || !next.ever.insert(node) {
                    return None;
                }
                next.entries.insert(*at, node);
                if *kind == Kind::Directory {
                    next.directories.insert(node);
                }
            }
            Call::Look { at, answer } => match (answer.ok()?, tree.entries.get(at)) {
                (seen, there) if seen.as_ref() == there => {}
                (Some(seen), Some(there)) => return tree.met(*there, seen),
                _ => return None,
            },
            Call::Remove { at, kind, .. } => {
                let node = next.entries.remove(at)?;
                let is_directory = tree.directories.contains(&node);
                if is_directory != (*kind == Kind::Directory) || tree.has_entries(node) {
                    return None;
                }
            }
            Call::Rename { from, to, .. } => {
                let moved = next.entries.remove(from)?;
                let replaced = tree.entries.get(to);
                if replaced == Some(&moved) {
                    // Both are names of the same file: rename(2) does nothing.
                    return Some(tree.clone());
                }
                if !self.is_there(tree, to.0) || replaced.is_some_and(|dir| tree.has_entries(*dir))
                {
                    return None;
                }
                next.entries.insert(*to, moved);
            }
            Call::Link { file, to, .. } => {
                // A file that has lost its last name gets none again.
                let is_named = tree.entries.values().any(|node| node == file);
                let is_file = is_named && !tree.directories.contains(file);
                let may = is_file && self.is_there(tree, to.0);
                if !may || next.entries.insert(*to, *file).is_some() {
                    return None;
                }
            }
        }
        Some(next)
    }
}

/// The calls without those that found no file of a name while a rename to it was in progress: an
/// open file that is replaced is hidden first, so for a moment the name has no file.
pub fn without_hidden(calls: &[Timed<Call>]) -> Vec<Timed<Call>> {
    let is_during = |one: &Timed<Call>, other: &Timed<Call>| {
        let begins_before_end = |a: &Timed<Call>, b: &Timed<Call>| {
            b.span.answered.is_none_or(|answered| a.span.made < answered)
        };
        begins_before_end(one, other) && begins_before_end(other, one)
    };
    let is_hidden = |call: &Timed<Call>| {
        let (Call::Look { at, answer: Ok(None) }
        | Call::Remove { at, answer: Err(Refusal::Absent), .. }) = &call.call
        else {
            return false;
        };
        calls.iter().any(|other| {
            let replaces =
                matches!(&other.call, Call::Rename { from, to, .. } if to == at && from != to);
            replaces && is_during(call, other)
        })
    };
    calls.iter().filter(|call| !is_hidden(call)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;

    const ROOT: Node = 1;
    const A: Dentry = (ROOT, "a");
    const B: Dentry = (ROOT, "b");
    const DIR: Dentry = (ROOT, "dir");

    fn make(at: Dentry, answer: Result<Node, Refusal>) -> Call {
        Call::Make { at, kind: Kind::File, answer }
    }

    fn look(at: Dentry, found: Option<Node>) -> Call {
        Call::Look { at, answer: Ok(found) }
    }

    fn remove(at: Dentry, answer: Result<(), Refusal>) -> Call {
        Call::Remove { at, kind: Kind::File, answer }
    }

    fn rename(from: Dentry, to: Dentry) -> Call {
        Call::Rename { from, to, answer: Ok(()) }
    }

    /// Whether these calls can be explained. An end of 0 stands for a call without an answer.
    fn is_explained(calls: &[(u64, u64, Call)]) -> bool {
        let calls = calls.iter().map(|(made, end, call)| {
            let answered = (*end > 0).then_some(*end);
            Timed { span: Span { made: *made, answered }, call: call.clone() }
        });
        let calls: Vec<_> = calls.collect();
        Names { root: ROOT }.explain(&calls, 10_000) == Verdict::Explained
    }

    /// Whether these calls can be explained if each begins after the one before has ended.
    fn in_turn(calls: &[Call]) -> bool {
        let timed = calls.iter().zip(0..).map(|(call, at)| (at * 2 + 1, at * 2 + 2, call.clone()));
        is_explained(&timed.collect::<Vec<_>>())
    }

    #[test]
    fn what_a_file_system_answers_is_explained() {
        let link = Call::Link { file: 7, to: B, answer: Ok(()) };
        let dir = |answer| Call::Make { at: DIR, kind: Kind::Directory, answer };
        let rmdir = |answer| Call::Remove { at: DIR, kind: Kind::Directory, answer };
        assert!(in_turn(&[
            look(A, None),
            make(A, Ok(7)),
            make(A, Err(Refusal::Exists)),
            link,
            look(B, Some(7)),
            rename(A, B),
            look(A, Some(7)),
            remove(A, Ok(())),
            remove(A, Err(Refusal::Absent)),
            dir(Ok(8)),
            rename(B, (8, "a")),
            rmdir(Err(Refusal::NotEmpty)),
            remove((8, "a"), Ok(())),
            rmdir(Ok(())),
            make((8, "a"), Err(Refusal::Gone)),
            dir(Ok(9)),
        ]));
    }

    #[test]
    fn what_no_file_system_answers_is_refused() {
        let link = Call::Link { file: 7, to: B, answer: Ok(()) };
        let wrong: [&[Call]; 11] = [
            &[make(A, Ok(7)), remove(A, Ok(())), link],
            &[make(A, Ok(7)), look(A, None)],
            &[make(A, Ok(7)), make(A, Ok(8))],
            &[make(A, Ok(7)), remove(A, Ok(())), look(A, Some(7))],
            &[make(A, Ok(7)), remove(A, Ok(())), make(B, Ok(7))],
            &[make(A, Ok(7)), rename(A, B), look(A, Some(7))],
            &[make(A, Ok(7)), rename(A, B), look(B, None)],
            &[make(A, Err(Refusal::Exists))],
            &[make(A, Ok(7)), remove(A, Err(Refusal::Absent))],
            &[make(A, Ok(7)), Call::Look { at: A, answer: Err(Refusal::Gone) }],
            &[
                Call::Make { at: DIR, kind: Kind::Directory, answer: Ok(8) },
                make((8, "a"), Ok(9)),
                Call::Remove { at: DIR, kind: Kind::Directory, answer: Ok(()) },
            ],
        ];
        for calls in wrong {
            assert!(!in_turn(calls), "{calls:?}");
        }
    }

    /// Of two calls that make the same name at the same time, one succeeds.
    #[test]
    fn calls_at_the_same_time_have_an_order() {
        let both = |one, two| is_explained(&[(1, 10, make(A, one)), (2, 9, make(A, two))]);
        assert!(both(Ok(7), Err(Refusal::Exists)) && both(Err(Refusal::Exists), Ok(7)));
        assert!(!both(Ok(7), Ok(8)) && !both(Err(Refusal::Exists), Err(Refusal::Exists)));
        // A rename shows both of its sides at once.
        let seen = |a, b| {
            is_explained(&[
                (1, 2, make(A, Ok(7))),
                (3, 20, rename(A, B)),
                (4, 5, look(B, b)),
                (6, 7, look(A, a)),
            ])
        };
        assert!(seen(None, Some(7)) && seen(None, None) && seen(Some(7), None));
        assert!(!seen(Some(7), Some(7)));
    }

    #[test]
    fn a_file_of_which_its_maker_did_not_hear_is_one_file() {
        let lost = (1, 0, make(A, Ok(unheard(1))));
        let looks = |first, second| {
            is_explained(&[lost.clone(), (2, 3, look(A, first)), (4, 5, look(A, second))])
        };
        assert!(looks(None, None) && looks(None, Some(7)) && looks(Some(7), Some(7)));
        assert!(!looks(Some(7), Some(8)) && !looks(Some(7), None));
        let other = (6, 7, make(B, Ok(7)));
        assert!(!is_explained(&[lost.clone(), (2, 3, look(A, Some(7))), other]));
        let once = [lost.clone(), (2, 3, remove(A, Ok(()))), (4, 5, look(A, Some(7)))];
        assert!(!is_explained(&once), "it is not made twice");
    }

    /// Client 0 makes a directory and a file in it on its machine.
    #[test]
    fn an_object_has_the_number_of_its_maker_and_the_servers() {
        let (own_dir, own, others) = (made_here(0, 1), made_here(0, 2), made_here(1, 2));
        let dir = Call::Make { at: DIR, kind: Kind::Directory, answer: Ok(own_dir) };
        let begun = [dir, make((own_dir, "a"), Ok(own))];
        let then = |calls: &[Call]| in_turn(&[&begun, calls].concat());
        assert!(then(&[
            look(DIR, Some(own_dir)),
            look(DIR, Some(8)),
            look((8, "a"), Some(9)),
            look((own_dir, "a"), Some(own)),
            rename((8, "a"), B),
            look(B, Some(own)),
            look(B, Some(9)),
            Call::Link { file: own, to: A, answer: Ok(()) },
            look(A, Some(9)),
            remove(A, Ok(())),
            remove(B, Ok(())),
            make(B, Ok(others)),
            look(B, Some(10)),
        ]));
        for wrong in [
            &[look(DIR, Some(8)), look(DIR, Some(9))][..],
            &[look(DIR, Some(8)), look((8, "a"), Some(8))],
            &[look((own_dir, "a"), Some(others))],
            &[look((own_dir, "a"), Some(own_dir))],
            &[look(DIR, Some(8)), make(B, Ok(8))],
            &[make(B, Ok(own))],
            &[look(DIR, Some(8)), look((8, "a"), Some(9)), look((own_dir, "a"), None)],
        ] {
            assert!(!then(wrong), "{wrong:?}");
        }
        // Its maker did not hear of it, and made it on its machine.
        let lost = (1, 0, make(A, Ok(unheard(1))));
        let looks = |first, second| {
            is_explained(&[lost.clone(), (2, 3, look(A, first)), (4, 5, look(A, second))])
        };
        assert!(looks(Some(own), Some(9)) && looks(Some(9), Some(own)));
        assert!(!looks(Some(own), Some(others)) && !looks(Some(9), Some(10)));
    }

    #[test]
    fn a_name_may_be_hidden_while_a_rename_replaces_its_file_and_at_no_other_time() {
        let timed =
            |made, answered, call| Timed { span: Span { made, answered: Some(answered) }, call };
        let history = |look_from, look_until, name: Dentry| {
            vec![
                timed(1, 2, make(A, Ok(7))),
                timed(3, 4, make(B, Ok(8))),
                timed(10, 20, rename(A, B)),
                timed(look_from, look_until, look(name, None)),
            ]
        };
        let is_left = |from, until, name| without_hidden(&history(from, until, name)).len() == 4;
        assert!(!is_left(12, 14, B) && !is_left(5, 11, B) && !is_left(19, 30, B));
        assert!(is_left(12, 14, A) && is_left(5, 9, B) && is_left(21, 22, B));
    }
}
