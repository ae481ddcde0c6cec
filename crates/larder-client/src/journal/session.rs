//! Records of the cache's session: state of a mount that must survive the process, but not a
//! reboot.
//!
//! - The [`Run`]: the number of the session, so that times of the monotonic clock stay valid, and a
//!   bound on the numbers of open files that may have been assigned.
//! - An [`OpenRecord`] for each open file.
//! - A [`LockRecord`] for each owner of locks on a file.
//! - An [`Unfinished`] for each file that needs more work than its dirty data shows.
//! - A mark that the latter say whether a request was made that changes the file.
//!
//! A record is written before its subject becomes visible outside: that of an open before the open
//! is answered, that of a hidden name before the server is asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use larder_cache::Cache;
use larder_cache::codec::{Reader, Writer};
use larder_vfs::{
    Cred, Error, Ino, LOCK_END, LockKind, LockMap, LockMode, LockOwner, OpenFlags, OpenId,
    Validator,
};

use super::record::{Record, name, put_validator, validator};
use crate::locks::Holder;
use crate::open::Mode;

pub(super) const RUN: &[u8] = b"r";
pub(super) const OPEN: u8 = b'o';
pub(super) const UNFINISHED: u8 = b'n';
pub(super) const LOCK: u8 = b'l';
pub(super) const REQUESTS: &[u8] = b"q";

/// Numbers of open files are recorded this many at a time.
pub(crate) const OPEN_BLOCK: u64 = 1024;

/// A run of the client, as the next one must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// See [`Core::session`].
    pub(crate) session: u64,
    /// From here on no number was given to an open file.
    pub(crate) next_open: u64,
}

/// An open file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenRecord {
    pub(crate) ino: Ino,
    /// The caller that asked for it, and by which request: a request that was not answered is sent
    /// again.
    pub(crate) cred: Cred,
    pub(crate) flags: OpenFlags,
    pub(crate) mode: Mode,
    /// The local file that the kernel got, by its number in the cache.
    pub(crate) local: u64,
    /// The version that was opened.
    pub(crate) version: Validator,
    /// The file's epoch then. `None` if an earlier version of larder opened it.
    pub(crate) epoch: Option<u64>,
    /// The class that it was opened with, if that is not the mount's.
    pub(crate) class: Option<String>,
}

/// What one owner has locked in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LockRecord {
    pub(crate) ino: Ino,
    pub(crate) holder: Holder,
}

/// The work that is left for a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unfinished {
    /// The hidden name that it has, or is about to get: one of these.
    pub(crate) hidden: Vec<(Ino, OsString)>,
    pub(crate) removed: bool,
    pub(crate) write_error: Option<Error>,
    /// On whose behalf its dirty data is written back.
    pub(crate) writer: Option<Cred>,
    /// The server may have a change of ours that is not in the version below that data.
    pub(crate) has_requests: bool,
}

/// Everything that an earlier run left.
#[derive(Default)]
pub(crate) struct Carried {
    pub(crate) run: Option<Run>,
    pub(crate) opens: BTreeMap<OpenId, OpenRecord>,
    pub(crate) unfinished: BTreeMap<Ino, Unfinished>,
    pub(crate) locks: Vec<LockRecord>,
    /// A file of which no record says that a request was made has none.
    pub(crate) tells_requests: bool,
}

impl Carried {
    /// Reads the records. Those that do not decode are not there.
    pub(crate) fn read(cache: &Cache) -> Carried {
        let mut carried = Carried::default();
        for (key, value) in cache.session_records() {
            let number = || Some(u64::from_be_bytes(key.get(1..)?.try_into().ok()?));
            match (key.first(), number()) {
                (Some(&OPEN), Some(id)) => {
                    carried.opens.extend(OpenRecord::decode(&value).map(|it| (OpenId(id), it)));
                }
                (Some(&UNFINISHED), Some(ino)) => {
                    carried.unfinished.extend(Unfinished::decode(&value).map(|it| (Ino(ino), it)));
                }
                (Some(&LOCK), _) => carried.locks.extend(LockRecord::decode(&value)),
                _ if key == RUN => carried.run = Run::decode(&value),
                _ if key == REQUESTS => carried.tells_requests = true,
                _ => {}
            }
        }
        carried
    }

    /// Whose work on a file is to be finished.
    pub(crate) fn cred_of(&self, ino: Ino) -> Cred {
        let opener = self.opens.values().find(|open| open.ino == ino).map(|open| &open.cred);
        let writer = self.unfinished.get(&ino).and_then(|left| left.writer.as_ref());
        writer.or(opener).cloned().unwrap_or_else(Cred::root)
    }
}

pub(super) fn key(tag: u8, number: u64) -> Vec<u8> {
    let mut key = vec![tag];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

impl Record for Run {
    const FORMAT: u8 = 2;

    fn put(&self, out: &mut Writer) {
        out.u64(self.session);
        out.u64(self.next_open);
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Run> {
        if format != Run::FORMAT {
            return None;
        }
        Some(Run { session: input.u64()?, next_open: input.u64()? })
    }
}

/// Format of an [`OpenRecord`] before it had an epoch.
const FORMAT_WITHOUT_EPOCH: u8 = 3;

impl Record for OpenRecord {
    const FORMAT: u8 = 4;

    fn put(&self, out: &mut Writer) {
        out.u64(self.ino.0);
        put_cred(out, &self.cred);
        out.u64(self.cred.request);
        out.u8(flags_code(&self.flags));
        out.u8(self.mode as u8);
        out.u64(self.local);
        put_validator(out, &self.version);
        out.option(self.epoch, Writer::u64);
        // Left out of most records, as it was of all before there were classes.
        if let Some(class) = &self.class {
            out.bytes(class.as_bytes());
        }
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<OpenRecord> {
        if format > OpenRecord::FORMAT {
            return None;
        }
        let (ino, cred) = (Ino(input.u64()?), cred(input)?);
        Some(OpenRecord {
            ino,
            cred: Cred { request: input.u64()?, ..cred },
            flags: flags_of(input.u8()?),
            mode: Mode::of(input.u8()?)?,
            local: input.u64()?,
            version: validator(format.min(FORMAT_WITHOUT_EPOCH), input)?,
            epoch: match format {
                OpenRecord::FORMAT => input.option(Reader::u64)?,
                _ => None,
            },
            class: match input.is_at_end() {
                true => None,
                false => Some(String::from_utf8(input.bytes()?.to_vec()).ok()?),
            },
        })
    }
}

impl Record for LockRecord {
    const FORMAT: u8 = 1;

    fn put(&self, out: &mut Writer) {
        let Holder { owner, pid, held, opens, lost } = &self.holder;
        out.u64(self.ino.0);
        out.u8(lock_kind_code(owner.kind));
        out.u64(owner.id);
        out.u32(*pid);
        out.flag(*lost);
        out.u64(opens.len() as u64);
        opens.iter().for_each(|open| out.u64(open.0));
        for (range, mode) in held.iter() {
            out.u64(range.start);
            out.u64(range.end);
            out.flag(mode == LockMode::Exclusive);
        }
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<LockRecord> {
        if format != LockRecord::FORMAT {
            return None;
        }
        let ino = Ino(input.u64()?);
        let kind = if input.u8()? == 0 { LockKind::Range } else { LockKind::Whole };
        let owner = LockOwner { kind, id: input.u64()? };
        let (pid, lost) = (input.u32()?, input.flag()?);
        let opens: Option<BTreeSet<OpenId>> =
            (0..input.u64()?).map(|_| input.u64().map(OpenId)).collect();
        let (opens, mut held) = (opens?, LockMap::default());
        while !input.is_at_end() {
            let range = input.u64()?..input.u64()?;
            let exclusive = input.flag()?;
            if range.is_empty() || range.end > LOCK_END {
                return None;
            }
            let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
            held.set(range, Some(mode));
        }
        let holder = Holder { owner, pid, held, opens, lost };
        (!holder.held.is_empty()).then_some(LockRecord { ino, holder })
    }
}

pub(super) fn lock_kind_code(kind: LockKind) -> u8 {
    match kind {
        LockKind::Range => 0,
        LockKind::Whole => 1,
    }
}

/// Format of an [`Unfinished`] before it said whether requests were made.
const FORMAT_WITHOUT_REQUESTS: u8 = 2;

impl Record for Unfinished {
    const FORMAT: u8 = 3;

    fn put(&self, out: &mut Writer) {
        out.u8(u8::try_from(self.hidden.len()).expect("there are two at most"));
        for (dir, name) in &self.hidden {
            out.u64(dir.0);
            out.bytes(name.as_bytes());
        }
        out.flag(self.removed);
        out.option(self.write_error, |out, error| out.u8(error_code(error)));
        out.option(self.writer.as_ref(), put_cred);
        out.flag(self.has_requests);
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Unfinished> {
        if !(FORMAT_WITHOUT_REQUESTS..=Unfinished::FORMAT).contains(&format) {
            return None;
        }
        let count = input.u8().filter(|count| *count <= 2)?;
        let hidden = (0..count).map(|_| Some((Ino(input.u64()?), name(input)?)));
        Some(Unfinished {
            hidden: hidden.collect::<Option<_>>()?,
            removed: input.flag()?,
            write_error: input.option(|input| Some(error_of(input.u8()?)))?,
            writer: input.option(cred)?,
            has_requests: format == FORMAT_WITHOUT_REQUESTS || input.flag()?,
        })
    }
}

pub(super) fn put_cred(out: &mut Writer, cred: &Cred) {
    for value in [cred.uid, cred.gid, cred.pid] {
        out.u32(value);
    }
    out.u32(u32::try_from(cred.groups.len()).expect("a process has few groups"));
    cred.groups.iter().for_each(|group| out.u32(*group));
}

pub(super) fn cred(input: &mut Reader<'_>) -> Option<Cred> {
    let (uid, gid, pid) = (input.u32()?, input.u32()?, input.u32()?);
    let groups: Option<Vec<u32>> = (0..input.u32()?).map(|_| input.u32()).collect();
    Some(Cred { pid, ..Cred::new(uid, gid, &groups?) })
}

fn flags_code(flags: &OpenFlags) -> u8 {
    let OpenFlags { read, write, truncate, append, direct, sync, exclusive, execute } = *flags;
    let bits = [read, write, truncate, append, direct, sync, exclusive, execute];
    bits.iter().enumerate().map(|(at, bit)| u8::from(*bit) << at).sum()
}

fn flags_of(code: u8) -> OpenFlags {
    let bit = |at: u8| code >> at & 1 != 0;
    OpenFlags {
        read: bit(0),
        write: bit(1),
        truncate: bit(2),
        append: bit(3),
        direct: bit(4),
        sync: bit(5),
        exclusive: bit(6),
        execute: bit(7),
    }
}

/// Errors of write-back to which callers react differently; the others are [`Error::Io`].
const ERRORS: [Error; 7] = [
    Error::NoSpace,
    Error::QuotaExceeded,
    Error::TimedOut,
    Error::AccessDenied,
    Error::Stale,
    Error::FileTooLarge,
    Error::ReadOnly,
];

fn error_code(error: Error) -> u8 {
    let code = ERRORS.iter().position(|known| *known == error).unwrap_or(ERRORS.len());
    u8::try_from(code).expect("the table is short")
}

fn error_of(code: u8) -> Error {
    ERRORS.get(usize::from(code)).copied().unwrap_or(Error::Io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_vfs::Time;

    fn cred() -> Cred {
        Cred { pid: 7, ..Cred::new(1, 2, &[3, 4]) }
    }

    #[test]
    fn records_survive_encoding() {
        let run = Run { session: 3, next_open: 4 };
        assert_eq!(Run::decode(&run.encode()), Some(run));
        let time = Time { sec: -1, nsec: 5 };
        for (code, mode) in
            (0..=255).zip([Mode::Passthrough, Mode::Bypass, Mode::Cached, Mode::Direct])
        {
            let version =
                Validator { change: None, data_change: None, size: 9, mtime: time, ctime: time };
            let flags = flags_of(0b1010_0101 + code);
            let (ino, local) = (Ino(8), 77);
            let class = (code > 0).then(|| "critical".to_owned());
            let (cred, epoch) = (cred(), (code > 1).then_some(5));
            let open = OpenRecord { ino, cred, flags, mode, local, version, epoch, class };
            assert_eq!(OpenRecord::decode(&open.encode()), Some(open));
        }
        for write_error in [None, Some(Error::NoSpace), Some(Error::Io)] {
            let names = [(Ino(1), OsString::from(".nfs1")), (Ino(2), ".nfs1".into())];
            for count in 0..=2 {
                let (hidden, has_requests) = (names[..count].to_vec(), count == 1);
                let writer = Some(cred());
                let left = Unfinished { hidden, removed: true, write_error, writer, has_requests };
                assert_eq!(Unfinished::decode(&left.encode()), Some(left));
            }
        }
    }

    #[test]
    fn records_of_opens_without_an_epoch_are_read() {
        let time = Time { sec: 7, nsec: 5 };
        let version =
            Validator { change: Some(3), data_change: Some(3), size: 9, mtime: time, ctime: time };
        let (ino, flags, mode, local) = (Ino(8), flags_of(3), Mode::Cached, 77);
        let (epoch, class) = (None, None);
        let open = OpenRecord { ino, cred: cred(), flags, mode, local, version, epoch, class };
        let mut earlier = open.encode();
        assert_eq!(earlier.pop(), Some(0));
        earlier[0] = FORMAT_WITHOUT_EPOCH;
        assert_eq!(OpenRecord::decode(&earlier), Some(open));
        earlier[0] = OpenRecord::FORMAT + 1;
        assert_eq!(OpenRecord::decode(&earlier), None);
    }

    /// What the process that wrote it had asked of the server is not known.
    #[test]
    fn records_of_unsent_data_without_its_requests_are_read() {
        let left = Unfinished { writer: Some(cred()), ..Unfinished::default() };
        let mut earlier = left.encode();
        assert_eq!(earlier.pop(), Some(0));
        earlier[0] = FORMAT_WITHOUT_REQUESTS;
        let read = Unfinished { has_requests: true, ..left };
        assert_eq!(Unfinished::decode(&earlier), Some(read));
        earlier[0] = Unfinished::FORMAT + 1;
        assert_eq!(Unfinished::decode(&earlier), None);
    }

    #[test]
    fn records_of_locks_survive_encoding_and_damaged_ones_do_not_decode() {
        for kind in [LockKind::Range, LockKind::Whole] {
            let mut held = LockMap::default();
            held.set(3..9, Some(LockMode::Shared));
            held.set(9..LOCK_END, Some(LockMode::Exclusive));
            let owner = LockOwner { kind, id: u64::MAX };
            let opens = BTreeSet::from([OpenId(1), OpenId(7)]);
            let holder = Holder { owner, pid: 4, held, opens, lost: true };
            let record = LockRecord { ino: Ino(8), holder };
            let bytes = record.encode();
            assert_eq!(LockRecord::decode(&bytes), Some(record));
            for len in 0..bytes.len() {
                let short = LockRecord::decode(&bytes[..len]);
                assert!(
                    short.is_none_or(|short| (bytes.len() - len).is_multiple_of(17)
                        && !short.holder.held.is_empty())
                );
            }
        }
    }

    /// A record with one flipped bit decodes to nothing, or to a record that encodes to the same
    /// bytes; and never causes a panic.
    fn survives_flips<R: Record + PartialEq + std::fmt::Debug>(record: &R) -> usize {
        let bytes = record.encode();
        let flips = (0..bytes.len() * 8).map(|bit| {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged
        });
        let decoded: Vec<R> = flips.filter_map(|damaged| R::decode(&damaged)).collect();
        for other in &decoded {
            assert_eq!(R::decode(&other.encode()).as_ref(), Some(other));
        }
        decoded.len()
    }

    #[test]
    fn a_flipped_bit_never_makes_a_record_that_cannot_be_written() {
        let time = Time { sec: 7, nsec: 5 };
        let version =
            Validator { change: Some(3), data_change: Some(3), size: 9, mtime: time, ctime: time };
        let (ino, flags, mode) = (Ino(8), flags_of(3), Mode::Cached);
        let class = Some("critical".to_owned());
        let (cred_of_open, epoch, local) = (cred(), Some(4), 77);
        let open =
            OpenRecord { ino, cred: cred_of_open, flags, mode, local, version, epoch, class };
        let hidden = vec![(Ino(1), ".nfs1".into()), (Ino(2), ".nfs1".into())];
        let (writer, write_error, has_requests) = (Some(cred()), None, true);
        let left = Unfinished { hidden, removed: true, write_error, writer, has_requests };
        let mut held = LockMap::default();
        held.set(3..9, Some(LockMode::Shared));
        let owner = LockOwner { kind: LockKind::Range, id: 5 };
        let holder =
            Holder { owner, pid: 4, held, opens: BTreeSet::from([OpenId(1)]), lost: false };
        let counts = [
            survives_flips(&Run { session: 3, next_open: 4 }),
            survives_flips(&open),
            survives_flips(&left),
            survives_flips(&LockRecord { ino, holder }),
        ];
        println!("{counts:?} damaged records decode");
    }

    /// What an earlier process recorded is read back as written, whatever other records are beside
    /// it.
    #[test]
    fn what_was_left_is_read_and_damaged_records_are_passed_over() {
        use std::sync::Arc;

        // Records of a session are valid until the machine reboots.
        let boot = Some(larder_io::BootId(1));
        let config = larder_cache::Config::new(b"volume");
        let config = larder_cache::Config { checkpoint_interval: None, boot, ..config };
        let (disk, clock) = (larder_io::SimDisk::new(), larder_io::SimClock::new());
        let cache = Cache::open(Arc::new(disk), Arc::new(clock), config).unwrap();
        let time = Time::default();
        let version =
            Validator { change: None, data_change: None, size: 9, mtime: time, ctime: time };
        let (flags, mode) = (flags_of(1), Mode::Direct);
        let (ino, cred_of_open, local, epoch, class) = (Ino(8), cred(), 0, None, None);
        let open =
            OpenRecord { ino, cred: cred_of_open, flags, mode, local, version, epoch, class };
        let writer = Cred { pid: 9, ..Cred::new(5, 6, &[]) };
        let left = Unfinished { writer: Some(writer.clone()), ..Unfinished::default() };
        let run = Run { session: 3, next_open: 4 };
        cache.put_session(RUN, &run.encode());
        cache.put_session(&key(OPEN, 1), &open.encode());
        cache.put_session(&key(UNFINISHED, 7), &left.encode());
        cache.put_session(&key(OPEN, 2), b"damaged");
        cache.put_session(&key(UNFINISHED, 9), &open.encode());
        cache.put_session(b"o", &open.encode());
        cache.put_session(b"?", b"of a later version");
        assert!(!Carried::read(&cache).tells_requests);
        cache.put_session(REQUESTS, &[1]);
        let carried = Carried::read(&cache);
        assert!(carried.tells_requests);
        assert_eq!(carried.run, Some(run));
        assert_eq!(carried.opens, BTreeMap::from([(OpenId(1), open)]));
        assert_eq!(carried.unfinished, BTreeMap::from([(Ino(7), left)]));
        assert_eq!(carried.cred_of(Ino(7)), writer, "who wrote");
        assert_eq!(carried.cred_of(Ino(8)), cred(), "or who has it open");
        assert_eq!(carried.cred_of(Ino(10)), Cred::root());
    }

    #[test]
    fn damaged_records_do_not_decode() {
        let left = Unfinished { writer: Some(cred()), ..Unfinished::default() }.encode();
        for len in 0..left.len() {
            assert_eq!(Unfinished::decode(&left[..len]), None);
        }
        assert_eq!(Unfinished::decode(&[left, vec![0]].concat()), None);
    }
}
