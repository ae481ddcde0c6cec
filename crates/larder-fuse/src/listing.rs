//! Directory listings: the kernel's position in them, and the entries that it gets.
//!
//! The kernel always lists with READDIRPLUS (see `dispatcher`), because one message that includes
//! the attributes saves a lookup for each name.
//!
//! **Offsets.** The server's position after an entry (its cookie) is any 64-bit number; the
//! kernel's is signed, seekdir(3) refuses negative ones, and `.` and `..`, which our file systems
//! leave out, need positions too. So
//! - 0 is before `.`, 1 after it, 2 after `..`, which is the server's beginning;
//! - a cookie below [`FAR`] - 2 is moved up by 2. This needs no memory, so such offsets are valid
//!   as long as the server's cookies are;
//! - the largest that is not negative stands for itself: with ext4 it ends a directory. So does the
//!   one that is larger by 2 where our own NFS server exports ext4: it stands for the offset
//!   before;
//! - any other large one is recorded with the open directory, and its offset is its number from
//!   [`FAR`] on. It is valid while that directory is open, which is all that telldir(3) promises,
//!   and this process lives, which is less.
//!
//! **Counting.** Each entry with a node id that the kernel takes counts as a lookup there. Lookups
//! that the file system counted for entries that the kernel did not get are forgotten at once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_vfs::{Answer, Cred, DirEntry, Entry, Error, Ino, Kind, Lookup, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{Dirent, EntryOut};
use crate::convert;
use crate::dispatcher::Dispatcher;
use crate::errno::errno;
use crate::late::Late;
use crate::output::{Output, Response};

/// Offsets from here on, below [`EXPORTED_TOP`], stand for cookies that were recorded.
const FAR: u64 = EXPORTED_TOP - FAR_LEN_MAX;

/// Stands for the cookie [`TOP`] + 2: an NFS server that gives `.` and `..` cookies of their own,
/// as ours does, moves those of its file system up by 2.
const EXPORTED_TOP: u64 = TOP - 1;

/// Stands for itself.
const TOP: u64 = i64::MAX as u64;

/// Most cookies that are recorded for one open directory, at about 40 bytes each.
const FAR_LEN_MAX: u64 = 1 << 24;

const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// Number of an inode that is not known (libfuse's `FUSE_UNKNOWN_INO`). The kernel gives it no
/// meaning.
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// Most bytes of a reply, whatever the kernel offers.
const REPLY_BYTES_MAX: u32 = 131_072;

/// Where a listing continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// With `.`.
    Dot,
    /// With `..`.
    DotDot,
    /// After the server's cookie; 0 is its beginning.
    After(u64),
}

/// The open directories.
pub(crate) struct Listings {
    next_dir: AtomicU64,
    /// Cookies written down, for those directories that have any.
    far: Mutex<HashMap<u64, FarCookies>>,
}

#[derive(Default)]
struct FarCookies {
    cookies: Vec<u64>,
    numbers: HashMap<u64, u64>,
}

impl Default for Listings {
    fn default() -> Self {
        // Numbers that a process before ours gave out must not come again.
        let first = u64::from(std::process::id()) << 32;
        Listings { next_dir: AtomicU64::new(first), far: Mutex::default() }
    }
}

impl Listings {
    /// Number of a directory that was just opened.
    pub(crate) fn open(&self) -> u64 {
        self.next_dir.fetch_add(1, Ordering::Relaxed)
    }

    /// The directory was closed: its offsets are over.
    pub(crate) fn close(&self, dir: u64) {
        self.lock().remove(&dir);
    }

    /// The position for which the kernel's `offset` stands.
    ///
    /// # Errors
    /// [`Error::BadCookie`] if it was not given out for this open directory.
    pub(crate) fn position(&self, dir: u64, offset: u64) -> Result<Position> {
        match offset {
            0 => Ok(Position::Dot),
            AFTER_DOT => Ok(Position::DotDot),
            AFTER_DOT_DOT..FAR => Ok(Position::After(offset - AFTER_DOT_DOT)),
            TOP => Ok(Position::After(TOP)),
            EXPORTED_TOP => Ok(Position::After(TOP + 2)),
            FAR.. => {
                let far = self.lock();
                let number = usize::try_from(offset - FAR).map_err(|_| Error::BadCookie)?;
                let cookie = far.get(&dir).and_then(|far| far.cookies.get(number));
                cookie.map(|cookie| Position::After(*cookie)).ok_or(Error::BadCookie)
            }
        }
    }

    /// The kernel's offset for the server's `cookie`; `None` if too many cookies would have to be
    /// recorded.
    fn offset(&self, dir: u64, cookie: u64) -> Option<u64> {
        if cookie < FAR - AFTER_DOT_DOT {
            return Some(cookie + AFTER_DOT_DOT);
        }
        match cookie {
            TOP => return Some(TOP),
            _ if cookie == TOP + 2 => return Some(EXPORTED_TOP),
            _ => {}
        }
        let mut far = self.lock();
        let far = far.entry(dir).or_default();
        if let Some(number) = far.numbers.get(&cookie) {
            return Some(FAR + number);
        }
        let number = far.cookies.len() as u64;
        if number >= FAR_LEN_MAX {
            return None;
        }
        far.cookies.push(cookie);
        far.numbers.insert(cookie, number);
        Some(FAR + number)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, FarCookies>> {
        self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a listing that the kernel asks for.
pub(crate) struct Part {
    pub(crate) cred: Cred,
    pub(crate) ino: Ino,
    pub(crate) dir: u64,
    pub(crate) position: Position,
    /// Room in the reply.
    pub(crate) bytes_max: u32,
}

/// An entry that can be given to the kernel.
struct Named {
    name: OsString,
    cookie: u64,
    stands_for: StandsFor,
}

/// The file that a name in a listing stands for.
enum StandsFor {
    Known(Entry),
    /// Unknown: the file system refused to look the name up, or would have to wait for another
    /// client. The kernel lists the name, and asks when a process uses it.
    Untold {
        fileid: u64,
        kind: Option<Kind>,
    },
}

impl Part {
    /// Asks the file system. A complete listing that is ready at once is answered at once.
    pub(crate) fn answer(self, dispatcher: &Arc<Dispatcher>) -> Response {
        match self.ask(dispatcher) {
            Answer::Now(Err(error)) => Response::error(errno(error)),
            Answer::Now(Ok(listed)) if listed.iter().all(is_complete) => {
                let named = |listed: DirEntry| {
                    let DirEntry { fileid, kind, .. } = listed;
                    let stands_for =
                        listed.entry.map_or(StandsFor::Untold { fileid, kind }, StandsFor::Known);
                    Named { name: listed.name, cookie: listed.offset, stands_for }
                };
                Response::Now(self.fill(dispatcher, listed.into_iter().map(named).collect()))
            }
            answer => {
                let dispatcher = Arc::clone(dispatcher);
                Late::begin(async move {
                    match self.complete(&dispatcher, answer).await {
                        Ok(entries) => self.fill(&dispatcher, entries),
                        Err(error) => Output::error(errno(error)),
                    }
                })
            }
        }
    }

    fn ask(&self, dispatcher: &Dispatcher) -> Answer<Vec<DirEntry>> {
        match self.position {
            Position::Dot | Position::DotDot => self.ask_after(dispatcher, 0),
            Position::After(cookie) => self.ask_after(dispatcher, cookie),
        }
    }

    fn ask_after(&self, dispatcher: &Dispatcher, cookie: u64) -> Answer<Vec<DirEntry>> {
        let bytes_max = self.bytes_max.min(REPLY_BYTES_MAX);
        dispatcher.fs.readdir(&self.cred, self.ino, cookie, bytes_max, true)
    }

    /// Waits for the listing, and looks up entries without attributes.
    async fn complete(
        &self,
        dispatcher: &Dispatcher,
        mut answer: Answer<Vec<DirEntry>>,
    ) -> Result<Vec<Named>> {
        loop {
            let listed = answer.wait().await?;
            let Some(last) = listed.last() else { return Ok(Vec::new()) };
            let cookie = last.offset;
            let named = self.look_up_missing(dispatcher, listed).await?;
            if !named.is_empty() {
                return Ok(named);
            }
            // All of them were removed in the meantime, but an empty answer would mean the end.
            answer = self.ask_after(dispatcher, cookie);
        }
    }

    /// Looks up entries without attributes, one after the other, so that `ls -l` asks for none of
    /// them; file systems that care include attributes. A name that the file system refuses to look
    /// up (a server's mount point, or a file that it cannot describe) is listed without attributes,
    /// and hides no other; so is one that another client alone knows. If the server is out of
    /// reach, the listing ends there, or with that error if it is empty: each further name
    /// would take as long.
    async fn look_up_missing(
        &self,
        dispatcher: &Dispatcher,
        listed: Vec<DirEntry>,
    ) -> Result<Vec<Named>> {
        let mut named = Vec::with_capacity(listed.len());
        let mut away = None;
        for DirEntry { name, offset: cookie, entry, fileid, kind, is_elsewhere } in listed {
            let stands_for = match (entry, away) {
                (None, None) if is_elsewhere => StandsFor::Untold { fileid, kind },
                (Some(entry), None) => StandsFor::Known(entry),
                (Some(entry), Some(_)) => {
                    dispatcher.fs.forget(entry.ino, 1);
                    continue;
                }
                (None, Some(_)) => continue,
                (None, None) => {
                    match dispatcher.fs.lookup(&self.cred, self.ino, &name).wait().await {
                        Ok(Lookup::Found(entry)) => StandsFor::Known(entry),
                        Ok(Lookup::Absent { .. }) => continue,
                        Err(error @ (Error::TimedOut | Error::Shutdown)) => {
                            away = Some(error);
                            continue;
                        }
                        Err(_) => StandsFor::Untold { fileid, kind },
                    }
                }
            };
            named.push(Named { name, cookie, stands_for });
        }
        match away {
            Some(error) if named.is_empty() => Err(error),
            _ => Ok(named),
        }
    }

    /// As many as fit; the others are forgotten.
    fn fill(&self, dispatcher: &Dispatcher, entries: Vec<Named>) -> Output {
        let room = self.bytes_max.min(REPLY_BYTES_MAX) as usize;
        let mut out = Vec::with_capacity(room.min(4096 + 176 * entries.len()));
        self.fill_dots(&mut out, room);
        let mut full = false;
        for named in entries {
            full = full || !self.add(dispatcher, &named, &mut out, room);
            if let (true, StandsFor::Known(entry)) = (full, &named.stands_for) {
                dispatcher.fs.forget(entry.ino, 1);
            }
        }
        Output::data(out)
    }

    /// Adds an entry if there is room.
    fn add(&self, dispatcher: &Dispatcher, named: &Named, out: &mut Vec<u8>, room: usize) -> bool {
        let Some(offset) = dispatcher.listings.offset(self.dir, named.cookie) else { return false };
        let (ino, kind, entry) = match &named.stands_for {
            StandsFor::Known(entry) => {
                (entry.ino.0, Some(entry.fresh.attr.kind), convert::entry(entry))
            }
            // The C library skips a name whose number is 0. Without a node id the kernel takes
            // neither attributes nor a reference.
            StandsFor::Untold { fileid: 0, kind } => (UNKNOWN_INO, *kind, EntryOut::default()),
            StandsFor::Untold { fileid, kind } => (*fileid, *kind, EntryOut::default()),
        };
        let dirent = dirent(ino, offset, named.name.len(), kind);
        let fits = put(out, room, &entry, &dirent, named.name.as_bytes());
        if fits && entry.nodeid != 0 {
            dispatcher.counts.give();
        }
        fits
    }

    /// They carry no node id, so the kernel takes neither attributes nor a reference.
    fn fill_dots(&self, out: &mut Vec<u8>, room: usize) {
        let parent = if self.ino == Ino::ROOT { Ino::ROOT.0 } else { UNKNOWN_INO };
        let dots: [(u64, u64, &[u8]); 2] =
            [(self.ino.0, AFTER_DOT, b"."), (parent, AFTER_DOT_DOT, b"..")];
        let wanted = match self.position {
            Position::Dot => &dots[..],
            Position::DotDot => &dots[1..],
            Position::After(_) => &[],
        };
        for (ino, offset, name) in wanted {
            let dirent = dirent(*ino, *offset, name.len(), Some(Kind::Directory));
            put(out, room, &EntryOut::default(), &dirent, name);
        }
    }
}

/// Whether nothing is to be looked up before the entry is listed.
fn is_complete(listed: &DirEntry) -> bool {
    listed.entry.is_some() || listed.is_elsewhere
}

fn dirent(ino: u64, off: u64, name_len: usize, kind: Option<Kind>) -> Dirent {
    // The type is that of `S_IFMT`, shifted (`DT_*` of dirent.h); 0 if it is not known.
    let kind = kind.map_or(0, |kind| convert::file_type(kind) >> 12);
    Dirent { ino, off, namelen: name_len as u32, kind }
}

/// Appends a `struct fuse_direntplus` if there is room.
fn put(out: &mut Vec<u8>, room: usize, entry: &EntryOut, dirent: &Dirent, name: &[u8]) -> bool {
    let len = entry_len(name.len());
    if out.len() + len > room {
        return false;
    }
    let end = out.len() + len;
    out.extend_from_slice(entry.as_bytes());
    out.extend_from_slice(dirent.as_bytes());
    out.extend_from_slice(name);
    out.resize(end, 0);
    true
}

/// The nodes that the kernel references because of an answer that [`Part::fill`] made.
pub(crate) fn nodes(mut answer: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let (entry, rest) = EntryOut::read_from_prefix(answer).ok()?;
        let (dirent, _) = Dirent::read_from_prefix(rest).ok()?;
        answer = answer.get(entry_len(dirent.namelen as usize)..)?;
        Some(entry.nodeid)
    })
}

/// Bytes of a `struct fuse_direntplus`.
fn entry_len(name_len: usize) -> usize {
    (size_of::<EntryOut>() + size_of::<Dirent>() + name_len).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cookie_has_an_offset_of_its_own() {
        let listings = Listings::default();
        let top = i64::MAX as u64;
        let cookies = [
            1,
            2,
            3,
            4,
            1 << 32,
            FAR - 4,
            FAR - 3,
            FAR - 2,
            FAR - 1,
            FAR,
            top - 2,
            top,
            top + 1,
            u64::MAX - 2,
            u64::MAX - 1,
            u64::MAX,
        ];
        let offsets: Vec<u64> =
            cookies.iter().map(|cookie| listings.offset(7, *cookie).unwrap()).collect();
        for (cookie, offset) in cookies.iter().zip(&offsets) {
            assert!((3..=top).contains(offset), "{cookie}: {offset}");
            assert_eq!(listings.position(7, *offset), Ok(Position::After(*cookie)));
            assert_eq!(listings.offset(7, *cookie), Some(*offset));
        }
        let mut distinct = offsets.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), cookies.len());
    }

    #[test]
    fn the_beginning() {
        let listings = Listings::default();
        assert_eq!(listings.position(1, 0), Ok(Position::Dot));
        assert_eq!(listings.position(1, 1), Ok(Position::DotDot));
        assert_eq!(listings.position(1, 2), Ok(Position::After(0)));
    }

    #[test]
    fn written_down_offsets_end_with_the_open_directory() {
        let listings = Listings::default();
        let (dir, other) = (listings.open(), listings.open());
        let offset = listings.offset(dir, u64::MAX).unwrap();
        assert_eq!(listings.position(other, offset), Err(Error::BadCookie));
        listings.close(dir);
        assert_eq!(listings.position(dir, offset), Err(Error::BadCookie));
        assert_eq!(listings.position(dir, u64::MAX), Err(Error::BadCookie));
    }

    /// The next process knows the offsets of small cookies, and of those that end a directory.
    #[test]
    fn the_end_of_a_directory_outlives_the_process() {
        for cookie in [1, FAR - 3, TOP, TOP + 2] {
            let offset = Listings::default().offset(7, cookie).unwrap();
            assert_eq!(Listings::default().position(7, offset), Ok(Position::After(cookie)));
        }
    }

    #[test]
    fn a_listing_takes_no_more_than_its_room() {
        let mut out = Vec::new();
        let (entry, dirent) = (EntryOut::default(), dirent(7, 1, 5, Some(Kind::File)));
        assert_eq!(dirent.kind, u32::from(libc::DT_REG));
        assert!(put(&mut out, 160, &entry, &dirent, b"names"));
        assert_eq!(out.len(), 160);
        assert!(!put(&mut out, 319, &entry, &dirent, b"names"));
        assert!(put(&mut out, 320, &entry, &dirent, b"names"));
    }

    #[test]
    fn nodes_of_an_answer_are_found() {
        let mut out = Vec::new();
        for (nodeid, name) in [(0, "."), (7, "a"), (8, "a longer name"), (9, "12345678")] {
            let entry = EntryOut { nodeid, ..EntryOut::default() };
            let dirent = dirent(1, 1, name.len(), Some(Kind::File));
            assert!(put(&mut out, 4096, &entry, &dirent, name.as_bytes()));
        }
        assert!(nodes(&out).eq([0, 7, 8, 9]));
        assert!(nodes(&[]).eq([]));
    }
}
