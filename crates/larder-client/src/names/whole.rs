//! Which names a directory has, where all of them are known: any other name is absent, and the
//! server need not be asked.
//!
//! All names are known of a directory that this mount has just made, and of one that was listed
//! from its first entry to its last. The set may hold more names than the directory has, and never
//! fewer:
//! - a name is added before the server is asked to make it;
//! - a page of the listing counts only if one lease held from the request to the reply, and no
//!   change of ours was under way (`vouched_since` of the node's state);
//! - a name is removed only if nothing else was under way with it;
//! - a request without an answer ends the set, and since the server may still carry it out, the
//!   directory's names are not learned again in this epoch;
//! - the end of the directory's epoch ends the set.
//!
//! Pure. The names of all directories of a mount share a limit ([`Room`]).

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of names that are held for all directories of a mount.
const ROOM_BYTES: usize = 16 << 20;
/// What a name costs besides its bytes.
const NAME_BYTES: usize = 64;

/// The room for names that all directories of a mount share.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room::of(ROOM_BYTES)
    }
}

impl Room {
    fn of(bytes: usize) -> Room {
        Room(Arc::new(Semaphore::new(bytes)))
    }

    /// Room for one name, if there is any left. It is given back when it is dropped.
    fn take(&self, name: &[u8]) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(name.len() + NAME_BYTES).ok()?;
        self.0.clone().try_acquire_many_owned(bytes).ok()
    }
}

/// What is known of the names of one directory.
#[derive(Debug, Default)]
pub(crate) enum Whole {
    /// Not all of them.
    #[default]
    Unknown,
    /// Not all of them, and the server may be about to make one.
    Unanswered,
    /// Those up to a position of the listing, which has this verifier.
    Until { next: u64, verifier: u64, names: Names },
    /// All of them.
    Known(Names),
}

/// A set of names within its room.
#[derive(Debug)]
pub(crate) struct Names {
    names: HashSet<Box<[u8]>>,
    room: Room,
    taken: Option<OwnedSemaphorePermit>,
}

impl Names {
    fn none(room: &Room) -> Names {
        Names { names: HashSet::new(), room: room.clone(), taken: None }
    }

    /// Answers whether there was room for it.
    fn add(&mut self, name: &[u8]) -> bool {
        if self.names.contains(name) {
            return true;
        }
        let Some(more) = self.room.take(name) else { return false };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            none => *none = Some(more),
        }
        self.names.insert(name.into())
    }

    fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name)
            && let Some(taken) = &mut self.taken
        {
            let given_back = taken.split(name.len() + NAME_BYTES);
            debug_assert!(given_back.is_some(), "each name in the set has its room");
        }
    }
}

/// A page of a listing, as far as it tells names.
pub(crate) struct NamesOfPage<'a, N> {
    /// The position after which it begins.
    pub(crate) start: u64,
    pub(crate) verifier: u64,
    pub(crate) names: N,
    /// Where the next one begins; `None` if this is the last one.
    pub(crate) next: Option<u64>,
    pub(crate) room: &'a Room,
}

/// What the server's answer to a change leaves under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Left {
    /// There was no answer: the server may make the name at any time.
    Unknown,
    /// Perhaps a file.
    Perhaps,
    /// No file.
    Nothing,
}

impl Left {
    /// The same, unless something else may have made the name meanwhile.
    pub(crate) fn unless(self, may_be_made: bool) -> Left {
        if self == Left::Nothing && may_be_made { Left::Perhaps } else { self }
    }
}

impl Whole {
    /// The directory was made just now.
    pub(crate) fn set_empty(&mut self, room: &Room) {
        if matches!(self, Whole::Unknown) {
            *self = Whole::Known(Names::none(room));
        }
    }

    /// The directory's epoch has ended.
    pub(crate) fn end(&mut self) {
        *self = Whole::Unknown;
    }

    /// Takes in a page that is true now.
    pub(crate) fn take<'a>(&mut self, page: NamesOfPage<'_, impl Iterator<Item = &'a [u8]>>) {
        let mut names = match std::mem::take(self) {
            Whole::Unknown | Whole::Until { .. } if page.start == 0 => Names::none(page.room),
            Whole::Until { next, verifier, names }
                if (next, verifier) == (page.start, page.verifier) =>
            {
                names
            }
            other => {
                *self = other;
                return;
            }
        };
        for name in page.names {
            if !names.add(name) {
                return;
            }
        }
        *self = match page.next {
            Some(next) => Whole::Until { next, verifier: page.verifier, names },
            None => Whole::Known(names),
        };
    }

    /// The server is about to be asked to make the name, or to change what it stands for.
    pub(crate) fn add(&mut self, name: &[u8]) {
        if let Whole::Until { names, .. } | Whole::Known(names) = self
            && !names.add(name)
        {
            *self = Whole::Unknown;
        }
    }

    /// The change of a name has ended.
    pub(crate) fn end_change(&mut self, name: &[u8], left: Left) {
        match (left, &mut *self) {
            (Left::Unknown, _) => *self = Whole::Unanswered,
            (Left::Nothing, Whole::Until { names, .. } | Whole::Known(names)) => names.remove(name),
            (Left::Nothing | Left::Perhaps, _) => {}
        }
    }

    /// Whether the directory has no such name.
    pub(crate) fn lacks(&self, name: &[u8]) -> bool {
        matches!(self, Whole::Known(names) if !names.names.contains(name))
    }
}

#[cfg(test)]
mod tests;
