//! Names that our own changes affect, from before the server is asked until its answer was
//! processed.
//!
//! Two callers may change one name at the same time, and the answers may arrive in another order
//! than the one in which the server carried the changes out. And while a change is in flight, a
//! listing may already show its effect on the name. So during that time cached entries for the name
//! are not used; and after changes that were in flight together none are kept: the next lookup asks
//! the server.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_vfs::Ino;

use crate::core::Core;
use crate::journal::name_bytes;
use crate::node::Node;

/// A name in a directory.
type Place = (Ino, OsString);

/// The changes under way.
#[derive(Debug, Default)]
pub(crate) struct Changing(Mutex<Names>);

#[derive(Debug, Default)]
struct Names(HashMap<Place, Changes>);

/// Those of one name.
#[derive(Debug, Default)]
struct Changes {
    count: u32,
    /// There were several at the same time since there was none.
    meet: bool,
}

impl Names {
    fn begin(&mut self, place: Place) {
        let changes = self.0.entry(place).or_default();
        changes.count += 1;
        changes.meet |= changes.count > 1;
    }

    /// Answers whether it met another one.
    fn end(&mut self, place: &Place) -> bool {
        let changes = self.0.get_mut(place).expect("what ends has begun");
        changes.count -= 1;
        let meet = changes.meet;
        if changes.count == 0 {
            self.0.remove(place);
        }
        meet
    }

    fn is_changing(&self, place: &Place) -> bool {
        self.0.contains_key(place)
    }
}

impl Changing {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a change of the name is under way.
    pub(super) fn has(&self, dir: &Node, name: &OsStr) -> bool {
        let names = self.names();
        !names.0.is_empty() && names.is_changing(&(dir.ino, name.to_owned()))
    }
}

/// A change of a name under way. Dropped when its answer was taken in.
pub(super) struct NameChange<'a> {
    core: &'a Core,
    dir: &'a Node,
    place: Place,
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        let meet = self.core.changing.names().end(&self.place);
        if meet {
            self.core.cache.drop_name(self.dir.no(), name_bytes(&self.place.1));
        }
    }
}

impl Core {
    /// Before the server is asked to change what a name stands for.
    pub(super) fn begin_name_change<'a>(&'a self, dir: &'a Node, name: &OsStr) -> NameChange<'a> {
        let place = (dir.ino, name.to_owned());
        self.changing.names().begin(place.clone());
        NameChange { core: self, dir, place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all sequences of eight beginnings and ends of three changes of one name, and one of
    /// another name: whether a change met another one is what their spans say.
    #[test]
    fn changes_of_one_name_meet_if_they_overlap() {
        const LENGTH: u32 = 8;
        let place = |number: usize| (Ino(1), if number < 3 { "a" } else { "b" }.into());
        for sequence in 0..4_usize.pow(LENGTH) {
            let mut names = Names::default();
            // Which are under way, and which of them have met another one, perhaps by others.
            let (mut under_way, mut met) = ([false; 4], [false; 4]);
            for step in 0..LENGTH {
                let number = sequence / 4_usize.pow(step) % 4;
                if under_way[number] {
                    under_way[number] = false;
                    assert_eq!(names.end(&place(number)), met[number], "{sequence}");
                } else {
                    under_way[number] = true;
                    names.begin(place(number));
                    let together =
                        (0..4).filter(|other| under_way[*other] && place(*other) == place(number));
                    let together: Vec<_> = together.collect();
                    let meet = together.len() > 1;
                    together.into_iter().for_each(|one| met[one] = meet);
                }
                for number in 0..4 {
                    let is_changing =
                        (0..4).any(|other| under_way[other] && place(other) == place(number));
                    assert_eq!(names.is_changing(&place(number)), is_changing, "{sequence}");
                }
            }
        }
    }
}
