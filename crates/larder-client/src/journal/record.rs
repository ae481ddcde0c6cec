//! Encodes what the cache's index keeps of a node, a name and a listing.
//!
//! Pure: bytes in, values out. A record that does not decode counts as missing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use larder_cache::codec::{Reader, Writer};
use larder_io::Monotonic;
use larder_vfs::{Attr, Device, Ino, Kind, Time, Validator};

use crate::node::have_same_bytes;

/// A kind of record. Each kind has a format number of its own, so that a change of one kind
/// invalidates no records of the others.
pub(crate) trait Record: Sized {
    /// Number of the format that is written: a record's first byte. A change that raises it must
    /// have [`Record::take`] still read the format before, so that caches, and files that are open
    /// during an upgrade, survive it.
    const FORMAT: u8;

    /// Writes what comes after the number.
    fn put(&self, out: &mut Writer);

    /// Reads what comes after the number `format`; `None` if the bytes are not such a record.
    fn take(format: u8, input: &mut Reader<'_>) -> Option<Self>;

    /// The record's bytes.
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(200);
        out.u8(Self::FORMAT);
        self.put(&mut out);
        let bytes = out.into_bytes();
        debug_assert!(Self::decode(&bytes).is_some(), "a record that is written can be read");
        bytes
    }

    /// Reads a record; `None` if it is damaged, or of an unknown format.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader::new(bytes);
        let format = input.u8()?;
        let record = Self::take(format, &mut input)?;
        input.end(record)
    }
}

/// What we know of a node beyond its handle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    /// Attributes as the server last reported them.
    pub(crate) attr: Attr,
    /// Which run of the client received them: the clock of another run means nothing.
    pub(crate) session: u64,
    /// When they were asked for.
    pub(crate) asked: Monotonic,
    /// How long they are trusted from then on.
    pub(crate) ttl: Duration,
    /// Directories: names recorded under another epoch are not valid (see [`Name::epoch`]).
    pub(crate) epoch: u64,
    /// Directories: how much of the listing is cached.
    pub(crate) listing: Option<ListingState>,
    /// Where the file was last seen, to find it again after its handle went stale.
    pub(crate) hint: Option<(Ino, OsString)>,
    /// Symbolic links: the target.
    pub(crate) target: Option<OsString>,
    /// Directories: the server's verifier for positions, with which a listing continues.
    pub(crate) cookie_verifier: u64,
    /// What is cached may lack a change by another client although its version is the server's.
    pub(crate) doubtful: bool,
    /// Files: how often the cached bytes were given up because they were doubtful.
    pub(crate) rereads: u64,
}

/// The version for which bytes of a file are cached: the server's version of it, and how often that
/// was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) validator: Validator,
    /// See [`Known::rereads`].
    pub(crate) rereads: u64,
}

impl Version {
    /// Whether bytes of the one are bytes of the other.
    pub(crate) fn same(&self, other: &Version) -> bool {
        self.rereads == other.rereads && self.validator.same_data(&other.validator)
    }

    /// Number of the format of [`Version::bytes`]. Data whose version has another format is read
    /// again.
    const FORMAT: u8 = 2;
    /// The same where the server reports in which version the data last changed.
    const FORMAT_OF_DATA: u8 = 3;

    /// As the cache keeps it beside data: opaque there, and compared.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(48);
        if let Some(data_change) = self.validator.data_change {
            out.u8(Version::FORMAT_OF_DATA);
            out.u64(data_change);
        } else {
            out.u8(Version::FORMAT);
            out.option(self.validator.change, Writer::u64);
            if self.validator.change.is_none() {
                out.u64(self.validator.size);
                put_time(&mut out, self.validator.mtime);
                put_time(&mut out, self.validator.ctime);
            }
        }
        if self.rereads > 0 {
            out.u64(self.rereads);
        }
        out.into_bytes()
    }

    /// Whether such [bytes](Version::bytes) name a version that has other bytes than the version
    /// `now`; of a server with change attributes that do not tell bytes from all else: whether it
    /// is another one. `false` if the two cannot be compared.
    pub(crate) fn has_other_bytes(held: &[u8], now: &Validator) -> bool {
        let differ = |held: Option<u64>, now: Option<u64>| {
            held.zip(now).is_some_and(|(held, now)| held != now)
        };
        let mut input = Reader::new(held);
        if input.u8() == Some(Version::FORMAT_OF_DATA) {
            return differ(input.u64(), now.data_change);
        }
        match (Version::times_in(held), now.change) {
            (Some(held), None) => !have_same_bytes(&held, now),
            (None, change) => differ(input.option(Reader::u64).flatten(), change),
            (Some(_), Some(_)) => false,
        }
    }

    /// The validator in such [bytes](Version::bytes), of a server that identifies versions by times
    /// alone.
    pub(crate) fn times_in(bytes: &[u8]) -> Option<Validator> {
        let mut input = Reader::new(bytes);
        if input.u8()? != Version::FORMAT || input.option(Reader::u64)?.is_some() {
            return None;
        }
        let (size, mtime, ctime) = (input.u64()?, time(&mut input)?, time(&mut input)?);
        Some(Validator { change: None, data_change: None, size, mtime, ctime })
    }
}

/// State of a cached listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingState {
    /// The directory's epoch when it was read.
    pub(crate) epoch: u64,
    /// Cached pages, from the beginning.
    pub(crate) pages: u32,
    /// Whether the last page ends the directory.
    pub(crate) complete: bool,
    /// Whether names were changed here since, which are on record as names: the pages are no
    /// answer to a reader any more, and with those names they still tell which names there are.
    pub(crate) is_changed: bool,
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
    /// What is known of a node that the server just described, in reply to a request sent at
    /// `asked`; trusted for `ttl`.
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
}

impl Record for Known {
    const FORMAT: u8 = 3;

    fn put(&self, out: &mut Writer) {
        put_attr(out, &self.attr);
        out.u64(self.session);
        out.u64(self.asked.as_nanos());
        out.u64(u64::try_from(self.ttl.as_nanos()).unwrap_or(u64::MAX));
        out.u64(self.epoch);
        out.option(self.listing, |out, head| {
            out.u64(head.epoch);
            out.u32(head.pages);
            out.u8(u8::from(head.complete) | u8::from(head.is_changed) << 1);
        });
        out.option(self.hint.as_ref(), |out, (parent, name)| {
            out.u64(parent.0);
            out.bytes(name.as_bytes());
        });
        out.option(self.target.as_ref(), |out, target| out.bytes(target.as_bytes()));
        out.u64(self.cookie_verifier);
        // Left out of most records, as it was of all before there was doubt.
        if self.doubtful || self.rereads > 0 {
            out.flag(self.doubtful);
            out.u64(self.rereads);
        }
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Known> {
        let mut known = Known {
            attr: attr(format, input)?,
            session: input.u64()?,
            asked: Monotonic::from_nanos(input.u64()?),
            ttl: Duration::from_nanos(input.u64()?),
            epoch: input.u64()?,
            listing: input.option(|input| {
                let (epoch, pages) = (input.u64()?, input.u32()?);
                let flags = input.u8().filter(|flags| *flags < 4)?;
                let (complete, is_changed) = (flags & 1 != 0, flags & 2 != 0);
                Some(ListingState { epoch, pages, complete, is_changed })
            })?,
            hint: input.option(|input| Some((Ino(input.u64()?), name(input)?)))?,
            target: input.option(name)?,
            cookie_verifier: input.u64()?,
            doubtful: false,
            rereads: 0,
        };
        if !input.is_at_end() {
            (known.doubtful, known.rereads) = (input.flag()?, input.u64()?);
        }
        Some(known)
    }
}

impl Record for Name {
    const FORMAT: u8 = 2;

    fn put(&self, out: &mut Writer) {
        out.u64(self.epoch);
        out.option(self.child, |out, child| out.u64(child.0));
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Name> {
        if format != Name::FORMAT {
            return None;
        }
        Some(Name { epoch: input.u64()?, child: input.option(ino)? })
    }
}

impl Record for Page {
    const FORMAT: u8 = 2;

    fn put(&self, out: &mut Writer) {
        out.u64(self.start);
        out.u64(self.verifier);
        out.flag(self.eof);
        out.u32(u32::try_from(self.entries.len()).expect("a reply has fewer entries"));
        for entry in &self.entries {
            out.bytes(entry.name.as_bytes());
            out.u64(entry.fileid);
            out.option(entry.kind, |out, kind| out.u8(kind_code(kind)));
            out.u64(entry.position);
            out.option(entry.child, |out, child| out.u64(child.0));
        }
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Page> {
        if format != Page::FORMAT {
            return None;
        }
        let (start, verifier, eof) = (input.u64()?, input.u64()?, input.flag()?);
        let mut page = Page { start, verifier, eof, entries: Vec::new() };
        for _ in 0..input.u32()? {
            page.entries.push(PageEntry {
                name: name(input)?,
                fileid: input.u64()?,
                kind: input.option(|input| kind_of(input.u8()?))?,
                position: input.u64()?,
                child: input.option(ino)?,
            });
        }
        Some(page)
    }
}

/// All of a validator, to be read again.
pub(crate) fn put_validator(out: &mut Writer, validator: &Validator) {
    out.option(validator.change, Writer::u64);
    out.option(validator.data_change, Writer::u64);
    out.u64(validator.size);
    put_time(out, validator.mtime);
    put_time(out, validator.ctime);
}

/// Reads one of a record of `format`.
pub(crate) fn validator(format: u8, input: &mut Reader<'_>) -> Option<Validator> {
    let (change, data_change) = (input.option(Reader::u64)?, data_change(format, input)?);
    let size = input.u64()?;
    Some(Validator { change, data_change, size, mtime: time(input)?, ctime: time(input)? })
}

/// In which version the data last changed: records of format 2 do not have it. `None` if the format
/// is not known.
fn data_change(format: u8, input: &mut Reader<'_>) -> Option<Option<u64>> {
    match format {
        2 => Some(None),
        3 => input.option(Reader::u64),
        _ => None,
    }
}

fn ino(input: &mut Reader<'_>) -> Option<Ino> {
    input.u64().map(Ino)
}

pub(crate) fn name(input: &mut Reader<'_>) -> Option<OsString> {
    Some(OsString::from_vec(input.bytes()?.to_vec()))
}

pub(super) fn put_time(out: &mut Writer, time: Time) {
    out.i64(time.sec);
    out.u32(time.nsec);
}

pub(super) fn time(input: &mut Reader<'_>) -> Option<Time> {
    Some(Time { sec: input.i64()?, nsec: input.u32()? })
}

fn put_attr(out: &mut Writer, attr: &Attr) {
    out.u8(kind_code(attr.kind));
    for value in [attr.mode, attr.nlink, attr.uid, attr.gid, attr.device.major, attr.device.minor] {
        out.u32(value);
    }
    for value in [attr.size, attr.used, attr.fsid, attr.fileid] {
        out.u64(value);
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        put_time(out, time);
    }
    out.option(attr.change, Writer::u64);
    out.option(attr.data_change, Writer::u64);
    out.option(attr.birth, put_time);
}

fn attr(format: u8, input: &mut Reader<'_>) -> Option<Attr> {
    Some(Attr {
        kind: kind_of(input.u8()?)?,
        mode: input.u32()?,
        nlink: input.u32()?,
        uid: input.u32()?,
        gid: input.u32()?,
        device: Device { major: input.u32()?, minor: input.u32()? },
        size: input.u64()?,
        used: input.u64()?,
        fsid: input.u64()?,
        fileid: input.u64()?,
        atime: time(input)?,
        mtime: time(input)?,
        ctime: time(input)?,
        change: input.option(Reader::u64)?,
        data_change: data_change(format, input)?,
        birth: input.option(time)?,
    })
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
            data_change: Some(12),
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
            listing: Some(ListingState { epoch: 4, pages: 2, complete: true, is_changed: true }),
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

    /// A record that was cut short or has bytes after its end is not a record, and never causes a
    /// panic.
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

    /// No two kinds share a format number, so a change of one kind invalidates no record of
    /// another.
    #[test]
    fn a_record_of_another_format_does_not_decode() {
        let mut later = Name { epoch: 3, child: None }.encode();
        later[0] = Name::FORMAT + 1;
        assert_eq!(Name::decode(&later), None);
        assert_eq!(Name::decode(&[]), None);
    }

    #[test]
    fn versions_differ_when_validators_do() {
        let base = Attr { change: None, data_change: None, ..attr() };
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
        let told = attr();
        let linked = Attr { change: Some(15), ctime: told.mtime, ..told };
        assert_eq!(bytes(&linked, 0), bytes(&told, 0), "the data is of version 12 in both");
        assert_ne!(bytes(&Attr { data_change: Some(15), ..linked }, 0), bytes(&told, 0));
        let by_change = Attr { change: Some(12), data_change: None, ..told };
        assert_ne!(bytes(&by_change, 0), bytes(&told, 0), "numbers of another kind");
    }

    /// Records from before servers reported when data last changed are still read.
    #[test]
    fn records_of_the_format_before_are_read() {
        let before = Known { attr: Attr { data_change: None, ..attr() }, ..known() };
        let mut bytes = before.encode();
        // After the format: kind, six u32, four u64, three times, and the change.
        let at = 1 + 1 + 6 * 4 + 4 * 8 + 3 * 12 + 9;
        assert_eq!(bytes.remove(at), 0, "that there is none");
        bytes[0] = 2;
        assert_eq!(Known::decode(&bytes), Some(before));
        bytes[0] = 4;
        assert_eq!(Known::decode(&bytes), None);
    }
}
