//! What of a node, a name and a listing is kept in the cache's index, and in which bytes.
//!
//! Pure: bytes in, values out. A record that does not decode is a record that is not there, so the
//! format can change by changing [`VERSION`]. All numbers are little endian.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Attr, Device, Ino, Kind, Time, Validator};

/// First byte of every record.
pub(crate) const VERSION: u8 = 2;

/// What we know of a node beyond its handle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    /// Attributes as the server last told them.
    pub(crate) attr: Attr,
    /// Which run of the client took them: the clock of another run means nothing.
    pub(crate) session: u64,
    /// When they were asked for.
    pub(crate) asked: Monotonic,
    /// How long they are trusted from then on.
    pub(crate) ttl: Duration,
    /// Directories: names recorded under another epoch are not valid (see [`Name::epoch`]).
    pub(crate) epoch: u64,
    /// Directories: how much of the listing is held.
    pub(crate) listing: Option<ListingHead>,
    /// Where the file was last seen, to find it again after its handle went stale.
    pub(crate) hint: Option<(Ino, OsString)>,
    /// Symbolic links: the target.
    pub(crate) target: Option<OsString>,
    /// Directories: the server's verifier for positions, with which a listing goes on.
    pub(crate) cookie_verifier: u64,
    /// What is held may lack a change of somebody else although its version is the server's.
    pub(crate) doubtful: bool,
    /// Files: how often what was held was given up for being doubtful.
    pub(crate) rereads: u64,
}

/// What bytes of a file are held for: the server's version of it, and how often that was read afresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) validator: Validator,
    /// See [`Known::rereads`].
    pub(crate) rereads: u64,
}

impl Version {
    /// Whether bytes of the one are bytes of the other.
    pub(crate) fn same(&self, other: &Version) -> bool {
        self.rereads == other.rereads && self.validator.same(&other.validator)
    }

    /// As the cache keeps it beside data: opaque there.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_option(&mut out, self.validator.change, put_u64);
        if self.validator.change.is_none() {
            put_u64(&mut out, self.validator.size);
            put_time(&mut out, self.validator.mtime);
            put_time(&mut out, self.validator.ctime);
        }
        if self.rereads > 0 {
            put_u64(&mut out, self.rereads);
        }
        out
    }
}

/// State of a cached listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingHead {
    /// The directory's epoch when it was read.
    pub(crate) epoch: u64,
    /// Pages held, from the beginning.
    pub(crate) pages: u32,
    /// Whether the last page ends the directory.
    pub(crate) complete: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The directory's epoch under which this was true.
    pub(crate) epoch: u64,
    /// The file, or `None` if there was no such name.
    pub(crate) child: Option<Ino>,
}

/// A page of a directory listing: one reply of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    /// Position before the first entry.
    pub(crate) start: u64,
    /// The server's verifier for the positions.
    pub(crate) verifier: u64,
    /// Whether the directory ends here.
    pub(crate) eof: bool,
    /// The entries in the server's order.
    pub(crate) entries: Vec<PageEntry>,
}

/// An entry of a [`Page`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PageEntry {
    pub(crate) name: OsString,
    pub(crate) fileid: u64,
    pub(crate) kind: Option<Kind>,
    /// Position after this entry.
    pub(crate) position: u64,
    pub(crate) child: Option<Ino>,
}

impl Known {
    /// What is known of a node that was just described, at `asked`, and is trusted for `ttl`.
    pub(crate) fn described(attr: Attr, session: u64, asked: Monotonic, ttl: Duration) -> Known {
        Known {
            attr,
            session,
            asked,
            ttl,
            epoch: 0,
            listing: None,
            hint: None,
            target: None,
            cookie_verifier: 0,
            doubtful: false,
            rereads: 0,
        }
    }

    /// The record's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(200);
        out.push(VERSION);
        put_attr(&mut out, &self.attr);
        put_u64(&mut out, self.session);
        put_u64(&mut out, self.asked.as_nanos());
        put_u64(&mut out, u64::try_from(self.ttl.as_nanos()).unwrap_or(u64::MAX));
        put_u64(&mut out, self.epoch);
        put_option(&mut out, self.listing, |out, head| {
            put_u64(out, head.epoch);
            put_u32(out, head.pages);
            out.push(u8::from(head.complete));
        });
        put_option(&mut out, self.hint.as_ref(), |out, (parent, name)| {
            put_u64(out, parent.0);
            put_bytes(out, name.as_bytes());
        });
        put_option(&mut out, self.target.as_ref(), |out, t| put_bytes(out, t.as_bytes()));
        put_u64(&mut out, self.cookie_verifier);
        // Left out of most records, as it was of all before there was doubt.
        if self.doubtful || self.rereads > 0 {
            out.push(u8::from(self.doubtful));
            put_u64(&mut out, self.rereads);
        }
        out
    }

    /// Reads a record; `None` if it is not one of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Known> {
        let mut input = Input::of_version(bytes)?;
        let mut known = Known {
            attr: input.attr()?,
            session: input.u64()?,
            asked: Monotonic::from_nanos(input.u64()?),
            ttl: Duration::from_nanos(input.u64()?),
            epoch: input.u64()?,
            listing: input.option(|input| {
                Some(ListingHead {
                    epoch: input.u64()?,
                    pages: input.u32()?,
                    complete: input.u8()? != 0,
                })
            })?,
            hint: input.option(|input| Some((Ino(input.u64()?), input.name()?)))?,
            target: input.option(Input::name)?,
            cookie_verifier: input.u64()?,
            doubtful: false,
            rereads: 0,
        };
        if !input.0.is_empty() {
            (known.doubtful, known.rereads) = (input.u8()? != 0, input.u64()?);
        }
        input.0.is_empty().then_some(known)
    }
}

impl Name {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_u64(&mut out, self.epoch);
        put_option(&mut out, self.child, |out, child| put_u64(out, child.0));
        out
    }

    /// Reads a record; `None` if it is not one of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Name> {
        let mut input = Input::of_version(bytes)?;
        let epoch = input.u64()?;
        let child = input.option(|input| Some(Ino(input.u64()?)))?;
        input.0.is_empty().then_some(Name { epoch, child })
    }
}

impl Page {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_u64(&mut out, self.start);
        put_u64(&mut out, self.verifier);
        out.push(u8::from(self.eof));
        put_u32(&mut out, u32::try_from(self.entries.len()).expect("a reply has fewer entries"));
        for entry in &self.entries {
            put_bytes(&mut out, entry.name.as_bytes());
            put_u64(&mut out, entry.fileid);
            put_option(&mut out, entry.kind, |out, kind| out.push(kind_code(kind)));
            put_u64(&mut out, entry.position);
            put_option(&mut out, entry.child, |out, child| put_u64(out, child.0));
        }
        out
    }

    /// Reads a record; `None` if it is not one of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Page> {
        let mut input = Input::of_version(bytes)?;
        let mut page = Page {
            start: input.u64()?,
            verifier: input.u64()?,
            eof: input.u8()? != 0,
            entries: Vec::new(),
        };
        for _ in 0..input.u32()? {
            page.entries.push(PageEntry {
                name: input.name()?,
                fileid: input.u64()?,
                kind: input.option(|input| kind_of(input.u8()?))?,
                position: input.u64()?,
                child: input.option(|input| Some(Ino(input.u64()?)))?,
            });
        }
        input.0.is_empty().then_some(page)
    }
}

/// All of a validator, to be read again.
pub(crate) fn put_validator(out: &mut Vec<u8>, validator: &Validator) {
    put_option(out, validator.change, put_u64);
    put_u64(out, validator.size);
    put_time(out, validator.mtime);
    put_time(out, validator.ctime);
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).expect("names and targets are short"));
    out.extend_from_slice(bytes);
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend_from_slice(&time.sec.to_le_bytes());
    put_u32(out, time.nsec);
}

pub(crate) fn put_option<T>(
    out: &mut Vec<u8>,
    value: Option<T>,
    put: impl FnOnce(&mut Vec<u8>, T),
) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn put_attr(out: &mut Vec<u8>, attr: &Attr) {
    out.push(kind_code(attr.kind));
    for value in [attr.mode, attr.nlink, attr.uid, attr.gid, attr.device.major, attr.device.minor] {
        put_u32(out, value);
    }
    for value in [attr.size, attr.used, attr.fsid, attr.fileid] {
        put_u64(out, value);
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        put_time(out, time);
    }
    put_option(out, attr.change, put_u64);
    put_option(out, attr.birth, put_time);
}

const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Directory,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

fn kind_code(kind: Kind) -> u8 {
    let code = KINDS.iter().position(|k| *k == kind).expect("every kind is in the table");
    u8::try_from(code).expect("the table is short")
}

fn kind_of(code: u8) -> Option<Kind> {
    KINDS.get(usize::from(code)).copied()
}

/// What is left to read.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn of_version(bytes: &[u8]) -> Option<Input<'_>> {
        let mut input = Input(bytes);
        (input.u8()? == VERSION).then_some(input)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn name(&mut self) -> Option<OsString> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(OsString::from_vec(head.to_vec()))
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { sec: i64::from_le_bytes(self.array()?), nsec: self.u32()? })
    }

    /// A value that may be absent; the outer `None` is a decoding failure.
    #[allow(clippy::option_option)]
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => Some(Some(read(self)?)),
            _ => None,
        }
    }

    pub(crate) fn validator(&mut self) -> Option<Validator> {
        let (change, size) = (self.option(Self::u64)?, self.u64()?);
        Some(Validator { change, size, mtime: self.time()?, ctime: self.time()? })
    }

    fn attr(&mut self) -> Option<Attr> {
        Some(Attr {
            kind: kind_of(self.u8()?)?,
            mode: self.u32()?,
            nlink: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            device: Device { major: self.u32()?, minor: self.u32()? },
            size: self.u64()?,
            used: self.u64()?,
            fsid: self.u64()?,
            fileid: self.u64()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            change: self.option(Self::u64)?,
            birth: self.option(Self::time)?,
        })
    }
}

/// Bytes of a name, for tables keyed by it.
pub(crate) fn name_bytes(name: &OsStr) -> &[u8] {
    name.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        let time = |sec| Time { sec, nsec: 999_999_999 };
        Attr {
            kind: Kind::Directory,
            mode: 0o7755,
            nlink: 3,
            uid: 4,
            gid: 5,
            device: Device { major: 6, minor: 7 },
            size: 8,
            used: 9,
            fsid: 10,
            fileid: u64::MAX,
            atime: time(-1),
            mtime: time(12),
            ctime: time(13),
            change: Some(14),
            birth: Some(time(15)),
        }
    }

    fn known() -> Known {
        Known {
            attr: attr(),
            session: 1,
            asked: Monotonic::from_nanos(2),
            ttl: Duration::from_millis(3),
            epoch: 4,
            listing: Some(ListingHead { epoch: 4, pages: 2, complete: true }),
            hint: Some((Ino(1), OsString::from_vec(vec![0xff, b'x']))),
            target: Some("../t".into()),
            cookie_verifier: 77,
            doubtful: false,
            rereads: 0,
        }
    }

    fn page() -> Page {
        let entry = |name: &str, child| PageEntry {
            name: name.into(),
            fileid: 5,
            kind: Some(Kind::Fifo),
            position: 9,
            child,
        };
        let entries = vec![entry("a", Some(Ino(7))), entry("b", None)];
        Page { start: 3, verifier: 4, eof: true, entries }
    }

    #[test]
    fn records_survive_encoding() {
        for (doubtful, rereads) in [(false, 0), (true, 0), (false, 7)] {
            let known = Known { doubtful, rereads, ..known() };
            assert_eq!(Known::decode(&known.encode()), Some(known));
        }
        for child in [None, Some(Ino(9))] {
            let name = Name { epoch: 3, child };
            assert_eq!(Name::decode(&name.encode()), Some(name));
        }
        assert_eq!(Page::decode(&page().encode()), Some(page()));
    }

    /// A record cut short or with bytes behind it is no record, and never a panic.
    #[test]
    fn damaged_records_do_not_decode() {
        let (known, page) = (known().encode(), page().encode());
        for len in 0..known.len() {
            assert_eq!(Known::decode(&known[..len]), None);
        }
        for len in 0..page.len() {
            assert_eq!(Page::decode(&page[..len]), None);
        }
        assert_eq!(Known::decode(&[known, vec![0]].concat()), None);
    }

    #[test]
    fn versions_differ_when_validators_do() {
        let base = Attr { change: None, ..attr() };
        let bytes = |attr: &Attr, rereads| Version { validator: attr.validator(), rereads }.bytes();
        let with = |set: fn(&mut Attr)| {
            let mut changed = base;
            set(&mut changed);
            bytes(&changed, 0)
        };
        assert_eq!(with(|a| a.atime.sec += 1), bytes(&base, 0));
        assert_ne!(with(|a| a.mtime.nsec -= 1), bytes(&base, 0));
        assert_ne!(with(|a| a.ctime.sec += 1), bytes(&base, 0));
        assert_ne!(with(|a| a.size += 1), bytes(&base, 0));
        assert_ne!(bytes(&base, 1), bytes(&base, 0));
    }
}
