//! Objects of the server whose bytes or attributes it was asked to change, as long as it has not
//! answered: it may have done so, and then has a version that nobody here knows. Records and their
//! table, without I/O; [`crate::unanswered`] has the rest.

use std::collections::{BTreeMap, HashMap};

use larder_cache::codec::{Reader, Writer};
use larder_vfs::Handle;

use crate::object::{Maker, ObjectNo};
use crate::record::{handle, maker, put_maker};

/// The format of the record, and that of one whose requests may have taken the object's name.
const FORMAT: u8 = 19;
const FORMAT_OF_LOSS: u8 = 22;
/// Ends of requests are recorded as multiples of this, so that few requests need another record.
const END_GRANULE: u64 = 1 << 20;

/// An object that the server may have changed for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The server's handle.
    pub(crate) handle: Handle,
    /// The sizes that it may have, together with those from its earlier size to them.
    pub(crate) sizes: Sizes,
    /// Who asks the server what it has done.
    pub(crate) asker: Maker,
    /// The server was asked to take a name from it, and that may have been its last one.
    pub(crate) loses_name: bool,
}

/// A smallest and a largest size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Sizes {
    /// Of a request that keeps the size.
    pub(crate) const KEPT: Sizes = Sizes { least: u64::MAX, most: 0 };

    /// Of a request that writes up to `end`.
    pub(crate) fn written(end: u64) -> Sizes {
        Sizes { most: end.checked_next_multiple_of(END_GRANULE).unwrap_or(end), ..Sizes::KEPT }
    }

    /// Of a request that sets the size.
    pub(crate) fn set(size: Option<u64>) -> Sizes {
        size.map_or(Sizes::KEPT, |size| Sizes { least: size, most: size })
    }

    pub(crate) fn with(self, other: Sizes) -> Sizes {
        Sizes { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// Whether requests can have led from one size to another.
    pub(crate) fn lead(self, from: u64, to: u64) -> bool {
        (self.least.min(from)..=self.most.max(from)).contains(&to)
    }
}

impl Doubt {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(64);
        out.u8(if self.loses_name { FORMAT_OF_LOSS } else { FORMAT });
        out.bytes(self.handle.as_bytes());
        out.u64(self.sizes.least);
        out.u64(self.sizes.most);
        put_maker(&mut out, &self.asker);
        out.into_bytes()
    }

    /// Whether a record is one of these.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(FORMAT | FORMAT_OF_LOSS)))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Doubt> {
        let mut input = Reader::new(bytes);
        let loses_name = match input.u8()? {
            FORMAT => false,
            FORMAT_OF_LOSS => true,
            _ => return None,
        };
        let handle = handle(&mut input)?;
        let sizes = Sizes { least: input.u64()?, most: input.u64()? };
        let asker = maker(&mut input)?;
        input.end(Doubt { handle, sizes, asker, loses_name })
    }
}

/// All of them, in memory.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    all: BTreeMap<ObjectNo, Doubt>,
    by_handle: HashMap<Handle, ObjectNo>,
}

impl Doubts {
    /// Stores one under a number, replacing what had that number.
    pub(crate) fn put(&mut self, no: ObjectNo, doubt: Option<Doubt>) {
        if let Some(before) = self.all.remove(&no) {
            self.by_handle.remove(&before.handle);
        }
        if let Some(doubt) = doubt {
            self.by_handle.insert(doubt.handle.clone(), no);
            self.all.insert(no, doubt);
        }
    }

    pub(crate) fn of(&self, handle: &Handle) -> Option<(ObjectNo, &Doubt)> {
        let no = self.by_handle.get(handle)?;
        Some((*no, &self.all[no]))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (ObjectNo, &Doubt)> {
        self.all.iter().map(|(no, doubt)| (*no, doubt))
    }
}

/// Requests of this process about one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) in_flight: u32,
    /// One ended without an answer, in this process or an earlier one.
    pub(crate) is_unanswered: bool,
    /// One took a name from it, as the client is just told.
    pub(crate) is_told: bool,
}

impl Asking {
    /// Whether the version is not to be asked for: a request is out, or all is known.
    pub(crate) fn is_settling(&self) -> bool {
        self.in_flight > 0 || self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt() -> Doubt {
        let asker = Maker { uid: 1000, gid: 100, groups: [4].into() };
        Doubt { handle: Handle::new(b"file"), sizes: Sizes::written(7), asker, loses_name: false }
    }

    /// The bytes of `docs/formats/names.md`, and every prefix of them.
    #[test]
    fn a_doubt_is_the_documented_bytes() {
        is_documented(doubt());
        is_documented(Doubt { loses_name: true, ..doubt() });
    }

    fn is_documented(doubt: Doubt) {
        let bytes = doubt.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = include_str!("../../../docs/formats/names.md");
        assert!(text.contains(&hex), "not in the document: {hex}");
        assert!(Doubt::is_one(&bytes) && Doubt::decode(&bytes) == Some(doubt));
        for len in 0..bytes.len() {
            assert_eq!(Doubt::decode(&bytes[..len]), None);
        }
        assert_eq!(Doubt::decode(&[bytes, vec![0]].concat()), None);
    }

    /// Over all sequences of up to three requests, each of which the server may have carried out.
    #[test]
    fn requests_lead_to_the_sizes_that_they_can_have_led_to() {
        const END: u64 = END_GRANULE;
        let requests = [None, Some((false, END)), Some((false, 2 * END)), Some((true, 0))];
        for sequence in 0..4_usize.pow(3) {
            let sequence = [sequence % 4, sequence / 4 % 4, sequence / 16].map(|at| requests[at]);
            for (from, done) in [0, END / 2, 3 * END]
                .into_iter()
                .flat_map(|from| (0..8).map(move |done| (from, done)))
            {
                let (mut size, mut sizes) = (from, Sizes::KEPT);
                for (at, (sets, end)) in
                    sequence.iter().enumerate().filter_map(|(at, one)| Some((at, (*one)?)))
                {
                    let one = if sets { Sizes::set(Some(end)) } else { Sizes::written(end) };
                    sizes = sizes.with(one);
                    if done >> at & 1 == 1 {
                        size = if sets { end } else { size.max(end) };
                    }
                }
                assert!(sizes.lead(from, size), "{sequence:?} {from} {done}");
                assert!(!sizes.lead(from, 4 * END), "{sequence:?} {from}");
            }
        }
    }
}
