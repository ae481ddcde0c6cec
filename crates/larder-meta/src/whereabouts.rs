//! Who has the bytes of a file, as a state machine. Absent on purpose: the store, and what follows
//! ([`crate::retained`]).

use bytes::Bytes;
use larder_wire::meta::{FILE_BYTES_MAX, Status};
use larder_wire::xdr::{Decode, Encode, Encoder, XdrError};

/// Names a client for good.
pub(crate) type Client = [u8; 16];

/// In the place of a client in the keys of lost files. No client that has this name retains a file.
pub(crate) const NOBODY: Client = [0; 16];

/// Who has the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Whereabouts {
    /// The disks, all of them.
    #[default]
    AtDisks,
    /// This client, so many; the disks have none.
    Retained { client: Client, bytes: u64 },
    /// This client, which has begun to write them to the disks.
    Moving { client: Client, bytes: u64 },
    /// Nobody: so many were lost with the client.
    Lost { bytes: u64 },
}

/// What may change that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A client is about to acknowledge bytes that only it has.
    Retained { client: Client, bytes: u64 },
    /// A client has put bytes of the file on disks, or gives it room there.
    Committed { client: Client },
    /// A client has put all that it retained elsewhere, or has dropped it.
    Released { client: Client },
    /// A client cannot put it anywhere, or its session is over.
    Ended { client: Client },
    /// The server's machine has crashed, and may have lost what clients told it last.
    Crashed,
    /// The file is empty, whatever was in it.
    Emptied,
}

impl Whereabouts {
    /// Who has the bytes after an event.
    ///
    /// # Errors
    /// [`Status::Lost`]: bytes cannot be added to what is lost. [`Status::Changed`]: another client
    /// retains the file, or the disks have a part of it.
    pub(crate) fn apply(self, event: Event) -> Result<Whereabouts, Status> {
        use Whereabouts::{AtDisks, Lost, Moving, Retained};
        let owner = self.client();
        Ok(match (self, event) {
            (_, Event::Emptied) => AtDisks,
            (Lost { .. }, Event::Retained { .. } | Event::Committed { .. }) => {
                return Err(Status::Lost);
            }
            (AtDisks, Event::Retained { client, bytes }) => Retained { client, bytes },
            (Retained { .. }, Event::Retained { client, bytes }) if owner == Some(client) => {
                Retained { client, bytes }
            }
            (Retained { bytes, .. } | Moving { bytes, .. }, Event::Committed { client })
                if owner == Some(client) =>
            {
                Moving { client, bytes }
            }
            (Retained { .. } | Moving { .. }, Event::Retained { .. } | Event::Committed { .. }) => {
                return Err(Status::Changed);
            }
            (Retained { .. } | Moving { .. }, Event::Released { client })
                if owner == Some(client) =>
            {
                AtDisks
            }
            (Retained { bytes, .. } | Moving { bytes, .. }, Event::Ended { client })
                if owner == Some(client) =>
            {
                Lost { bytes }
            }
            (Retained { bytes, .. } | Moving { bytes, .. }, Event::Crashed) => Lost { bytes },
            (
                AtDisks | Lost { .. } | Retained { .. } | Moving { .. },
                Event::Committed { .. }
                | Event::Released { .. }
                | Event::Ended { .. }
                | Event::Crashed,
            ) => self,
        })
    }

    /// The client that has bytes which the disks may lack.
    pub(crate) fn client(self) -> Option<Client> {
        match self {
            Whereabouts::Retained { client, .. } | Whereabouts::Moving { client, .. } => {
                Some(client)
            }
            Whereabouts::AtDisks | Whereabouts::Lost { .. } => None,
        }
    }

    /// Whether the bytes are lost.
    pub(crate) fn is_lost(self) -> bool {
        self.lost().is_some()
    }

    /// How many bytes are lost, if they are.
    pub(crate) fn lost(self) -> Option<u64> {
        match self {
            Whereabouts::Lost { bytes } => Some(bytes),
            Whereabouts::AtDisks | Whereabouts::Retained { .. } | Whereabouts::Moving { .. } => {
                None
            }
        }
    }

    /// Under which client the file is found; none while the disks have it.
    pub(crate) fn found_under(self) -> Option<Client> {
        if self.is_lost() { Some(NOBODY) } else { self.client() }
    }
}

impl Encode for Whereabouts {
    fn encode(&self, out: &mut Encoder) {
        let (number, client, bytes) = match *self {
            Whereabouts::AtDisks => (0_u32, NOBODY, 0),
            Whereabouts::Retained { client, bytes } => (1, client, bytes),
            Whereabouts::Moving { client, bytes } => (2, client, bytes),
            Whereabouts::Lost { bytes } => (3, NOBODY, bytes),
        };
        number.encode(out);
        client.encode(out);
        bytes.encode(out);
    }
}

impl Decode for Whereabouts {
    fn decode(input: &mut Bytes) -> Result<Whereabouts, XdrError> {
        let number = u32::decode(input)?;
        let (client, bytes) = (Client::decode(input)?, u64::decode(input)?);
        if bytes > FILE_BYTES_MAX {
            let [length, limit] = [bytes, FILE_BYTES_MAX].map(|one| one as usize);
            return Err(XdrError::TooLong { length, limit });
        }
        match number {
            0 => Ok(Whereabouts::AtDisks),
            1 => Ok(Whereabouts::Retained { client, bytes }),
            2 => Ok(Whereabouts::Moving { client, bytes }),
            3 => Ok(Whereabouts::Lost { bytes }),
            other => Err(XdrError::Discriminant(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Client = [1; 16];
    const OTHER: Client = [2; 16];

    /// What is true of a file, told without the states.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Truth {
        /// Who has acknowledged bytes that are not safe at the disks as a whole, and how many.
        only: Option<(Client, u64)>,
        /// The disks have some of them.
        is_begun: bool,
        lost: Option<u64>,
    }

    impl Truth {
        fn follow(&mut self, event: Event) {
            let is_owner = |client| self.only.is_some_and(|(of, _)| of == client);
            match event {
                Event::Emptied => *self = Truth::default(),
                Event::Retained { client, bytes } => self.only = Some((client, bytes)),
                Event::Committed { client } => self.is_begun |= is_owner(client),
                Event::Released { client } if is_owner(client) => *self = Truth::default(),
                Event::Ended { client } if !is_owner(client) => {}
                Event::Ended { .. } | Event::Crashed if self.only.is_some() => {
                    let lost = self.only.map(|(_, bytes)| bytes);
                    *self = Truth { lost, ..Truth::default() };
                }
                Event::Released { .. } | Event::Ended { .. } | Event::Crashed => {}
            }
        }

        fn shown(self) -> Whereabouts {
            match (self.lost, self.only) {
                (Some(bytes), _) => Whereabouts::Lost { bytes },
                (None, None) => Whereabouts::AtDisks,
                (None, Some((client, bytes))) if self.is_begun => {
                    Whereabouts::Moving { client, bytes }
                }
                (None, Some((client, bytes))) => Whereabouts::Retained { client, bytes },
            }
        }
    }

    /// Over all sequences of six events: acknowledged bytes are with their client, at the disks
    /// when that says so, or lost, and nothing is added to what is lost or another one's.
    #[test]
    fn acknowledged_bytes_are_with_their_client_at_the_disks_or_lost() {
        let of = |client| {
            [
                Event::Retained { client, bytes: 5 },
                Event::Committed { client },
                Event::Released { client },
                Event::Ended { client },
            ]
        };
        let more = [Event::Retained { client: ONE, bytes: 9 }, Event::Crashed, Event::Emptied];
        let events: Vec<Event> = of(ONE).into_iter().chain(of(OTHER)).chain(more).collect();
        let mut worlds = vec![(Whereabouts::AtDisks, Truth::default())];
        for _ in 0..6 {
            let mut next = Vec::new();
            for (state, truth) in worlds {
                for event in &events {
                    let mut after = truth;
                    let adds = match *event {
                        Event::Retained { client, .. } | Event::Committed { client } => {
                            Some(client)
                        }
                        _ => None,
                    };
                    let others = adds.is_some_and(|by| truth.only.is_some_and(|(of, _)| of != by));
                    let is_part = matches!(event, Event::Retained { .. }) && truth.is_begun;
                    let refused = match (adds, truth.lost) {
                        (Some(_), Some(_)) => Some(Status::Lost),
                        (Some(_), None) if others || is_part => Some(Status::Changed),
                        _ => None,
                    };
                    let applied = state.apply(*event);
                    assert_eq!(applied.err(), refused, "{event:?} of {state:?}");
                    if refused.is_none() {
                        after.follow(*event);
                    }
                    let state = applied.unwrap_or(state);
                    assert_eq!(state, after.shown(), "{event:?} {truth:?}");
                    if !next.contains(&(state, after)) {
                        next.push((state, after));
                    }
                }
            }
            worlds = next;
        }
        assert_eq!(
            worlds.len(),
            9,
            "nobody, two clients with and without, 5 and 9 bytes, and lost"
        );
    }

    #[test]
    fn whereabouts_survive() {
        for one in [
            Whereabouts::AtDisks,
            Whereabouts::Retained { client: ONE, bytes: 5 },
            Whereabouts::Moving { client: OTHER, bytes: 6 },
            Whereabouts::Lost { bytes: 7 },
        ] {
            let mut out = Encoder::default();
            one.encode(&mut out);
            let mut bytes = out.finish().to_bytes();
            assert_eq!(Whereabouts::decode(&mut bytes), Ok(one));
        }
    }
}
