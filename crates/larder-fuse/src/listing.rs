//! Directory listings: where the kernel is in them, and what it gets.
//!
//! The kernel always lists with READDIRPLUS (see `door`), because one message that brings the
//! attributes along saves a lookup for each name.
//!
//! **Offsets.** The server's position after an entry (its cookie) is any 64-bit number; the kernel's is
//! signed, seekdir(3) refuses negative ones, and `.` and `..`, which our file systems leave out, need
//! places too. So
//! - 0 is before `.`, 1 after it, 2 after `..`, which is the server's beginning;
//! - a cookie below [`FAR`] - 2 is moved up by 2. This needs no memory, so such offsets are good as
//!   long as the server's cookies are;
//! - a larger one is written down with the open directory, and its offset is its number from [`FAR`]
//!   on. It is good while that directory is open, which is all that telldir(3) promises.
//!
//! **Counting.** Each entry with a node id that the kernel takes counts as a lookup there. What the file
//! system counted and the kernel did not get is forgotten at once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{INodeNo, ReplyDirectoryPlus};
use larder_vfs::{Answer, Cred, DirEntry, Entry, Error, FileSystem, Ino, Lookup, Result};

use crate::convert::{GENERATION, blank_attr, file_attr};
use crate::errno::errno;

/// Offsets from here on stand for cookies that were written down.
const FAR: u64 = i64::MAX as u64 - FAR_LEN_MAX;

/// Most cookies that are written down for one open directory, at about 40 bytes each.
const FAR_LEN_MAX: u64 = 1 << 24;

const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// Number of an inode that is not known (libfuse's `FUSE_UNKNOWN_INO`). The kernel makes nothing of it.
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// Bytes of a reply: the least and the most that a listing is asked for at once. Newer kernels offer the
/// caller's whole buffer (32 KiB with glibc), older ones a page.
const REPLY_BYTES: std::ops::RangeInclusive<u32> = 4096..=131_072;

/// Where a listing goes on.
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
    /// How many bytes the last replies took: fuser does not tell how many the kernel wants.
    reply_bytes: AtomicU32,
}

#[derive(Default)]
struct FarCookies {
    cookies: Vec<u64>,
    numbers: HashMap<u64, u64>,
}

impl Default for Listings {
    fn default() -> Self {
        Listings {
            next_dir: AtomicU64::new(1),
            far: Mutex::default(),
            reply_bytes: AtomicU32::new(32_768),
        }
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

    /// What the kernel's `offset` stands for.
    ///
    /// # Errors
    /// [`Error::BadCookie`] if it was not given out for this open directory.
    pub(crate) fn position(&self, dir: u64, offset: u64) -> Result<Position> {
        match offset {
            0 => Ok(Position::Dot),
            AFTER_DOT => Ok(Position::DotDot),
            AFTER_DOT_DOT..FAR => Ok(Position::After(offset - AFTER_DOT_DOT)),
            FAR.. => {
                let far = self.lock();
                let number = usize::try_from(offset - FAR).map_err(|_| Error::BadCookie)?;
                let cookie = far.get(&dir).and_then(|far| far.cookies.get(number));
                cookie.map(|cookie| Position::After(*cookie)).ok_or(Error::BadCookie)
            }
        }
    }

    /// The kernel's offset for the server's `cookie`; `None` if too many had to be written down.
    fn offset(&self, dir: u64, cookie: u64) -> Option<u64> {
        if cookie < FAR - AFTER_DOT_DOT {
            return Some(cookie + AFTER_DOT_DOT);
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

    /// Learns from a reply of `taken` bytes.
    fn learn(&self, taken: u32, full: bool) {
        let asked = self.reply_bytes.load(Ordering::Relaxed);
        let next = match full {
            true => taken,
            false if taken > asked / 4 * 3 => asked * 2,
            false => return,
        };
        let next = next.clamp(*REPLY_BYTES.start(), *REPLY_BYTES.end());
        self.reply_bytes.store(next, Ordering::Relaxed);
    }
}

/// A request for a part of a listing.
pub(crate) struct Request {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) cred: Cred,
    pub(crate) ino: Ino,
    pub(crate) dir: u64,
    pub(crate) position: Position,
}

/// An entry that can be given to the kernel.
struct Named {
    name: OsString,
    cookie: u64,
    entry: Entry,
}

impl Request {
    /// Asks the file system.
    pub(crate) fn ask(&self) -> Answer<Vec<DirEntry>> {
        match self.position {
            Position::Dot | Position::DotDot => self.ask_after(0),
            Position::After(cookie) => self.ask_after(cookie),
        }
    }

    fn ask_after(&self, cookie: u64) -> Answer<Vec<DirEntry>> {
        let bytes_max = self.listings.reply_bytes.load(Ordering::Relaxed);
        self.fs.readdir(&self.cred, self.ino, cookie, bytes_max, true)
    }

    /// Whether [`Request::finish`] would have to ask for more than is there.
    pub(crate) fn is_complete(listed: &Result<Vec<DirEntry>>) -> bool {
        listed.as_ref().map_or(true, |entries| entries.iter().all(|entry| entry.entry.is_some()))
    }

    /// Answers with entries that are complete.
    pub(crate) fn reply(&self, listed: Result<Vec<DirEntry>>, reply: ReplyDirectoryPlus) {
        let named = |listed: DirEntry| {
            let entry = listed.entry?;
            Some(Named { name: listed.name, cookie: listed.offset, entry })
        };
        match listed {
            Ok(entries) => self.fill(entries.into_iter().filter_map(named).collect(), reply),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Waits for the listing, looks up what came without attributes, and answers.
    pub(crate) async fn finish(self, answer: Answer<Vec<DirEntry>>, reply: ReplyDirectoryPlus) {
        match self.complete(answer).await {
            Ok(entries) => self.fill(entries, reply),
            Err(error) => reply.error(errno(error)),
        }
    }

    async fn complete(&self, mut answer: Answer<Vec<DirEntry>>) -> Result<Vec<Named>> {
        loop {
            let listed = answer.wait().await?;
            let Some(last) = listed.last() else { return Ok(Vec::new()) };
            let cookie = last.offset;
            let named = self.look_up_missing(listed).await?;
            if !named.is_empty() {
                return Ok(named);
            }
            // All of them were removed meanwhile, but an empty answer would mean the end.
            answer = self.ask_after(cookie);
        }
    }

    /// A listing with READDIRPLUS has no place for a name without a node id: the C library skips
    /// entries whose number is 0. So what came without is looked up, one after the other; file systems
    /// that care bring it along. An error cuts the listing short, or is the answer if nothing is there.
    async fn look_up_missing(&self, listed: Vec<DirEntry>) -> Result<Vec<Named>> {
        let mut named = Vec::with_capacity(listed.len());
        let mut failed = None;
        for DirEntry { name, offset: cookie, entry, .. } in listed {
            match (entry, failed) {
                (Some(entry), None) => named.push(Named { name, cookie, entry }),
                (Some(entry), Some(_)) => self.fs.forget(entry.ino, 1),
                (None, Some(_)) => (),
                (None, None) => match self.fs.lookup(&self.cred, self.ino, &name).wait().await {
                    Ok(Lookup::Found(entry)) => named.push(Named { name, cookie, entry }),
                    Ok(Lookup::Absent { .. }) => (),
                    Err(error) => failed = Some(error),
                },
            }
        }
        match failed {
            Some(error) if named.is_empty() => Err(error),
            _ => Ok(named),
        }
    }

    /// Sends as many as fit, and forgets the others.
    fn fill(&self, entries: Vec<Named>, mut reply: ReplyDirectoryPlus) {
        let mut taken = self.fill_dots(&mut reply);
        let mut full = false;
        for named in entries {
            full = full || !self.add(&named, &mut reply);
            if full {
                self.fs.forget(named.entry.ino, 1);
            } else {
                taken += entry_bytes(&named.name);
            }
        }
        self.listings.learn(taken, full);
        reply.ok();
    }

    /// Both fit into any reply. They carry no attributes and count as no lookup.
    fn fill_dots(&self, reply: &mut ReplyDirectoryPlus) -> u32 {
        let parent = if self.ino == Ino::ROOT { Ino::ROOT.0 } else { UNKNOWN_INO };
        let dots = [(self.ino.0, AFTER_DOT, "."), (parent, AFTER_DOT_DOT, "..")];
        let wanted = match self.position {
            Position::Dot => &dots[..],
            Position::DotDot => &dots[1..],
            Position::After(_) => &[],
        };
        let mut taken = 0;
        for (ino, offset, name) in wanted {
            let attr = blank_attr(*ino);
            reply.add(INodeNo(*ino), *offset, name, &Duration::ZERO, &attr, GENERATION);
            taken += entry_bytes(OsStr::new(name));
        }
        taken
    }

    /// Adds an entry if it fits.
    fn add(&self, named: &Named, reply: &mut ReplyDirectoryPlus) -> bool {
        let Some(offset) = self.listings.offset(self.dir, named.cookie) else { return false };
        let Entry { ino, fresh, ttl } = named.entry;
        let attr = file_attr(ino, &fresh.attr);
        let ttl = ttl.min(fresh.ttl);
        !reply.add(INodeNo(ino.0), offset, &named.name, &ttl, &attr, GENERATION)
    }
}

/// Size of `struct fuse_direntplus` with its name.
fn entry_bytes(name: &OsStr) -> u32 {
    (152 + name.len() as u32).next_multiple_of(8)
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

    #[test]
    fn the_size_of_replies_is_learnt() {
        let listings = Listings::default();
        let asked = || listings.reply_bytes.load(Ordering::Relaxed);
        listings.learn(100, false);
        assert_eq!(asked(), 32_768);
        listings.learn(4000, true);
        assert_eq!(asked(), 4096);
        listings.learn(4000, false);
        assert_eq!(asked(), 8192);
    }
}
