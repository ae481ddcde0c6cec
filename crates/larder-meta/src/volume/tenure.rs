//! Whether a disk stays in its volume: a pure state machine.
//!
//! A disk *leaves* from when somebody wants it removed until nothing on it is in use: it gets no
//! new blocks, and the server moves what files have there to other disks ([`crate::leaving`]). Then
//! it is gone, by the same transaction that finds it empty. Until then it can be kept after all.
//! The store has the state in the disk's record, and nothing else says it.

use thiserror::Error;

/// Whether a disk stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// It gets new blocks.
    Stays,
    /// What is on it goes to others.
    Leaves,
    /// It does not belong to the volume any more.
    Gone,
}

/// What happens to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Somebody wants it removed.
    Remove {
        /// Its bytes that are not free.
        used: u64,
        /// Those of them that files have.
        to_move: u64,
        /// Free bytes of the disks that stay.
        room: u64,
    },
    /// Somebody wants it kept.
    Keep,
    /// All of its bytes are free.
    Emptied,
}

/// Why nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error(
        "it has {to_move} bytes of files, and the disks that stay have {room} free bytes: add a disk, or remove files"
    )]
    NoRoom { to_move: u64, room: u64 },
    #[error("it is not leaving")]
    Stays,
    #[error("it does not belong to the volume")]
    Gone,
}

impl Tenure {
    /// The state after an event.
    ///
    /// # Errors
    /// [`Refused`]; then it is as it was.
    pub(crate) fn apply(self, event: Event) -> Result<Tenure, Refused> {
        match (self, event) {
            (Tenure::Gone, _) => Err(Refused::Gone),
            (_, Event::Remove { used: 0, .. }) => Ok(Tenure::Gone),
            (Tenure::Stays, Event::Remove { to_move, room, .. }) if to_move > room => {
                Err(Refused::NoRoom { to_move, room })
            }
            // A disk that leaves already goes on to: others may have taken the room since.
            (_, Event::Remove { .. }) => Ok(Tenure::Leaves),
            (Tenure::Leaves, Event::Keep) => Ok(Tenure::Stays),
            (Tenure::Stays, Event::Keep) => Err(Refused::Stays),
            (Tenure::Leaves, Event::Emptied) => Ok(Tenure::Gone),
            // It was kept, and happens to be empty.
            (Tenure::Stays, Event::Emptied) => Ok(Tenure::Stays),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 6] = [
        Event::Remove { used: 0, to_move: 0, room: 0 },
        Event::Remove { used: 3, to_move: 2, room: 2 },
        Event::Remove { used: 3, to_move: 2, room: 1 },
        Event::Remove { used: 1, to_move: 0, room: 0 },
        Event::Keep,
        Event::Emptied,
    ];

    /// All sequences of five events, against what was wanted last: a disk is gone only if it was
    /// empty when somebody wanted that last, and it never comes back; what is refused changes
    /// nothing.
    #[test]
    fn a_disk_goes_when_it_is_empty_and_somebody_wants_that() {
        let length = 5;
        for code in 0..EVENTS.len().pow(length) {
            let events = (0..length).map(|at| EVENTS[code / EVENTS.len().pow(at) % EVENTS.len()]);
            let (mut tenure, mut is_wanted) = (Tenure::Stays, true);
            let mut is_gone = false;
            for event in events {
                let is_empty = matches!(event, Event::Emptied | Event::Remove { used: 0, .. });
                let is_asked = matches!(event, Event::Remove { .. });
                let lacks_room = matches!(event, Event::Remove { room: 1, .. }) && is_wanted;
                let before = tenure;
                let expected = match (is_gone, event) {
                    (true, _) => Err(Refused::Gone),
                    (false, _) if lacks_room => Err(Refused::NoRoom { to_move: 2, room: 1 }),
                    (false, Event::Keep) if is_wanted => Err(Refused::Stays),
                    _ => Ok(()),
                };
                let after = tenure.apply(event);
                assert_eq!(after.map(drop), expected, "{before:?} {event:?}");
                let Ok(after) = after else { continue };
                tenure = after;
                is_wanted = (is_wanted && !is_asked) || event == Event::Keep;
                is_gone = is_empty && !is_wanted;
                let wanted = match (is_gone, is_wanted) {
                    (true, _) => Tenure::Gone,
                    (false, true) => Tenure::Stays,
                    (false, false) => Tenure::Leaves,
                };
                assert_eq!(tenure, wanted, "{before:?} {event:?}");
            }
        }
    }
}
