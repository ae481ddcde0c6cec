//! Names that our own changes affect, from before the server is asked until its answer was
//! processed.
//!
//! Two callers may change one name at the same time, and the answers may arrive in another order
//! than the one in which the server carried the changes out. And while a change is in flight, a
//! listing may already show its effect on the name. So during that time cached entries for the name
//! are not used; and after changes that were in flight together none are kept: the next lookup asks
//! the server.
//!
//! The lock of [`Changing`] is taken before that of a node's state.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_vfs::Result;

use super::hiding::{Dentry, Ending};
use super::whole::Left;
use crate::core::Core;
use crate::journal::name_bytes;
use crate::node::Node;

/// The changes in flight.
#[derive(Debug, Default)]
pub(crate) struct Changing(Mutex<Names>);

#[derive(Clone, Debug, Default)]
pub(super) struct Names(HashMap<Dentry, Changes>);

/// Those of one name.
#[derive(Clone, Debug, Default)]
struct Changes {
    count: u32,
    /// There were several at the same time since there was none.
    meet: bool,
}

impl Names {
    pub(super) fn begin(&mut self, dentry: Dentry) {
        let changes = self.0.entry(dentry).or_default();
        changes.count += 1;
        changes.meet |= changes.count > 1;
    }

    /// Answers whether it met another one.
    pub(super) fn end(&mut self, dentry: &Dentry) -> bool {
        let changes = self.0.get_mut(dentry).expect("what ends has begun");
        changes.count -= 1;
        let meet = changes.meet;
        if changes.count == 0 {
            self.0.remove(dentry);
        }
        meet
    }

    fn is_changing(&self, dentry: &Dentry) -> bool {
        self.0.contains_key(dentry)
    }
}

impl Changing {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a change of the name is in flight.
    pub(super) fn has(&self, dir: &Node, name: &OsStr) -> bool {
        let names = self.names();
        !names.0.is_empty() && names.is_changing(&(dir.ino, name.to_owned()))
    }
}

/// A change of a name in flight. Dropped once its answer was processed.
pub(super) struct NameChange<'a> {
    core: &'a Core,
    dir: &'a Node,
    dentry: Dentry,
    /// Of the directory, when it began.
    epoch: u64,
    left: Left,
}

impl NameChange<'_> {
    /// The server has answered.
    pub(super) fn answered<T>(&mut self, answer: &Result<T>) {
        if Ending::of(answer) != Ending::Unanswered {
            self.left = Left::Perhaps;
        }
    }

    /// The server has removed the name.
    pub(super) fn is_gone(&mut self) {
        debug_assert!(self.left != Left::Unknown, "only the server's answer says that it is gone");
        self.left = Left::Nothing;
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        let name = name_bytes(&self.dentry.1);
        let mut names = self.core.changing.names();
        let meet = names.end(&self.dentry);
        let mut state = self.dir.state();
        // What the answer says is from before another client's change, if there was one meanwhile.
        let is_late = state.known().epoch != self.epoch;
        state.whole_mut().end_change(name, self.left.unless(meet || is_late));
        drop(state);
        drop(names);
        if meet {
            self.core.forget_name(self.dir, &self.dentry.1);
        }
    }
}

impl Core {
    /// Before the server is asked to change what a name stands for, and after
    /// [`Core::begin_change`] of the directory: a listing that comes between the two would lack the
    /// name. Changes of one name are added to the directory's names, and removed from them, in the
    /// order in which they begin and end.
    pub(super) fn begin_name_change<'a>(&'a self, dir: &'a Node, name: &OsStr) -> NameChange<'a> {
        let dentry = (dir.ino, name.to_owned());
        let mut names = self.changing.names();
        names.begin(dentry.clone());
        let mut state = dir.state();
        state.whole_mut().add(name_bytes(name));
        let epoch = state.known().epoch;
        drop(state);
        drop(names);
        NameChange { core: self, dir, dentry, epoch, left: Left::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::Ino;

    use super::*;

    /// Over all sequences of eight starts and ends of three changes of one name, and one of another
    /// name: two changes are reported to overlap exactly if they do.
    #[test]
    fn changes_of_one_name_meet_if_they_overlap() {
        const LENGTH: u32 = 8;
        let dentry = |number: usize| (Ino(1), if number < 3 { "a" } else { "b" }.into());
        for sequence in 0..4_usize.pow(LENGTH) {
            let mut names = Names::default();
            // Which changes are in flight, and which of them have overlapped another one, perhaps
            // indirectly.
            let (mut under_way, mut met) = ([false; 4], [false; 4]);
            for step in 0..LENGTH {
                let number = sequence / 4_usize.pow(step) % 4;
                if under_way[number] {
                    under_way[number] = false;
                    assert_eq!(names.end(&dentry(number)), met[number], "{sequence}");
                } else {
                    under_way[number] = true;
                    names.begin(dentry(number));
                    let together = (0..4)
                        .filter(|other| under_way[*other] && dentry(*other) == dentry(number));
                    let together: Vec<_> = together.collect();
                    let meet = together.len() > 1;
                    together.into_iter().for_each(|one| met[one] = meet);
                }
                for number in 0..4 {
                    let is_changing =
                        (0..4).any(|other| under_way[other] && dentry(other) == dentry(number));
                    assert_eq!(names.is_changing(&dentry(number)), is_changing, "{sequence}");
                }
            }
        }
    }
}
