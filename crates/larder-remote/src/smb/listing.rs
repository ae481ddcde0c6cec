//! Listings: a directory is read whole, kept for a while as a snapshot, and told page by page.
//!
//! A position says which snapshot, and where in it: whoever goes on after a directory was read anew
//! finds the snapshot that he began with, and no position of one means something in another. Of one
//! that is gone, only the beginning is good.

use super::attr::Info;
use super::link::{Link, Reply, garbled};
use super::names;
use super::share::Share;
use super::status::Failure;
use super::wire::{self, Opening, PREVIOUS};
use larder_vfs::{Access, Attr, Cookie, Cred, Error, Handle, Listed, Listing, Result};
use smb2::msg::create::CreateResponse;
use smb2::msg::directory_info::parse_entries;
use smb2::msg::query_directory::{FileInformationClass, QueryDirectoryResponse};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::status::NtStatus;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};

/// Most snapshots kept, and most entries in all of them together.
const SNAPSHOTS_MAX: usize = 64;
const ENTRIES_MAX: usize = 1 << 20;
/// A position is the number of a snapshot above so many bits, and below them how many entries come
/// before. Numbers come again after [`NUMBERS`] snapshots; a position is less than 2^62.
const INDEX_BITS: u32 = 32;
const NUMBERS: u64 = 1 << 30;
/// What an entry takes of a reply's size beside its name, in bytes.
const ENTRY_BYTES: usize = 104;

/// A directory as it was.
struct Snapshot {
    dir: Handle,
    number: u64,
    attr: Attr,
    entries: Vec<Listed>,
}

/// The last snapshots, the newest at the back.
pub(super) struct Snapshots {
    kept: VecDeque<Arc<Snapshot>>,
    made: u64,
}

impl Snapshots {
    /// None yet. They are numbered from a random number on, since readers may come with positions
    /// of an earlier process.
    pub(super) fn new(random: u64) -> Snapshots {
        Snapshots { kept: VecDeque::new(), made: random % NUMBERS }
    }

    fn keep(&mut self, dir: Handle, attr: Attr, mut entries: Vec<Listed>) -> Arc<Snapshot> {
        self.made += 1;
        let number = self.made % NUMBERS;
        for (entry, before) in entries.iter_mut().zip(1..) {
            entry.position = number << INDEX_BITS | before;
        }
        let snapshot = Arc::new(Snapshot { dir, number, attr, entries });
        self.kept.push_back(Arc::clone(&snapshot));
        let total = |kept: &VecDeque<Arc<Snapshot>>| -> usize {
            kept.iter().map(|one| one.entries.len()).sum()
        };
        while self.kept.len() > 1
            && (self.kept.len() > SNAPSHOTS_MAX || total(&self.kept) > ENTRIES_MAX)
        {
            self.kept.pop_front();
        }
        snapshot
    }

    /// Whether the directory was not read again since.
    fn is_newest(&self, snapshot: &Arc<Snapshot>) -> bool {
        let newest = self.kept.iter().rev().find(|one| one.dir == snapshot.dir);
        newest.is_some_and(|newest| Arc::ptr_eq(newest, snapshot))
    }

    /// The one that a position is of.
    fn get(&self, dir: &Handle, position: u64) -> Option<Arc<Snapshot>> {
        let number = position >> INDEX_BITS;
        self.kept.iter().find(|one| one.number == number && one.dir == *dir).cloned()
    }
}

impl Snapshot {
    /// What follows `position`, about `bytes_max` of it but at least one entry.
    fn page(&self, position: u64, bytes_max: u32) -> Listing {
        let before = position & ((1 << INDEX_BITS) - 1);
        let start = usize::try_from(before).unwrap_or(usize::MAX).min(self.entries.len());
        let rest = &self.entries[start..];
        let mut bytes = 0;
        let fit = rest.iter().take_while(|entry| {
            bytes += entry.name.len() + ENTRY_BYTES;
            bytes <= bytes_max as usize
        });
        let count = fit.count().max(1).min(rest.len());
        Listing {
            entries: rest[..count].to_vec(),
            eof: count == rest.len(),
            verifier: self.number,
            dir: (position == 0).then_some(self.attr),
        }
    }
}

impl Share {
    pub(super) async fn list(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        dir: &Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing, Failure> {
        self.shape.may_in_directory(cred, Access::READ)?;
        if cookie.position > 0 {
            let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
            let snapshot = snapshots.get(dir, cookie.position).ok_or(Error::BadCookie)?;
            let mut page = snapshot.page(cookie.position, bytes_max);
            if !snapshots.is_newest(&snapshot) {
                // What it says of them was said before what is known of them by now.
                page.entries.iter_mut().for_each(|entry| (entry.attr, entry.handle) = (None, None));
            }
            return Ok(page);
        }
        let (info, entries) = self.read_directory(link, dir).await?;
        let attr = info.attr(&self.shape);
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = snapshots.keep(dir.clone(), attr, entries);
        drop(snapshots);
        Ok(snapshot.page(0, bytes_max))
    }

    /// Reads a directory from start to end.
    async fn read_directory(
        &self,
        link: &Arc<Link>,
        dir: &Handle,
    ) -> Result<(Info, Vec<Listed>), Failure> {
        let options = wire::DIRECTORY_FILE;
        let opening = Opening { options, ..Opening::existing(self.path(dir)?, wire::READ) };
        // Most directories fit into one reply, and the second says so.
        let ops = vec![
            opening.op(),
            wire::query(PREVIOUS),
            wire::list(PREVIOUS, wire::ANSWER_BYTES),
            wire::list(PREVIOUS, wire::ANSWER_BYTES),
        ];
        let mut replies = link.chain(ops).await?.into_iter();
        let mut next = || replies.next().ok_or(Failure::Lost);
        let opened = match next()?.read::<CreateResponse>() {
            Err(Failure::Status(NtStatus::NOT_A_DIRECTORY)) => {
                return Err(Failure::Is(Error::NotDirectory));
            }
            opened => opened.map_err(|failure| self.gone(dir, failure))?,
        };
        let open = super::files::ServerOpen::new(Arc::clone(link), opened.file_id, wire::READ);
        let seen = next()?.read::<QueryInfoResponse>()?;
        let info = Info::parse(&seen.output_buffer).map_err(garbled)?;
        self.verify(dir, &info)?;
        let mut entries = Vec::new();
        let mut more = self.take(dir, &next()?, &mut entries)?;
        more = more && self.take(dir, &next()?, &mut entries)?;
        while more {
            let reply = link.ask(wire::list(open.id, link.answer_max())).await?;
            more = self.take(dir, &reply, &mut entries)?;
        }
        Ok((info, entries))
    }

    /// Takes the entries of a reply. Answers whether there may be more.
    fn take(
        &self,
        dir: &Handle,
        reply: &Reply,
        entries: &mut Vec<Listed>,
    ) -> Result<bool, Failure> {
        if matches!(reply.status, NtStatus::NO_MORE_FILES | NtStatus::NO_SUCH_FILE) {
            return Ok(false);
        }
        let reply = reply.read::<QueryDirectoryResponse>()?;
        let class = FileInformationClass::FileIdBothDirectoryInformation;
        let parsed = parse_entries(class, &reply.output_buffer).map_err(garbled)?;
        for entry in parsed {
            let name = names::name(&entry.file_name);
            let bytes = name.as_bytes();
            // Nothing that a server sends may lead out of the directory.
            if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|byte| b"/\0".contains(byte))
            {
                continue;
            }
            let found = self.found(dir, &entry.file_name, &Info::of_entry(&entry));
            entries.push(Listed {
                name,
                fileid: found.attr.fileid,
                // Until it is part of a snapshot.
                position: 0,
                attr: Some(found.attr),
                tells_links: false,
                handle: Some(found.handle),
            });
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::attr::Shape;

    fn dir(number: u8) -> Handle {
        Handle::new(&[number])
    }

    fn attr() -> Attr {
        let shape = Shape { uid: 0, gid: 0, file_mode: 0, dir_mode: 0, fsid: 0 };
        Info::parse(&[0; 96]).unwrap().attr(&shape)
    }

    fn entries(count: u64) -> Vec<Listed> {
        let entry = |position: u64| Listed {
            name: position.to_string().into(),
            fileid: position,
            position: 0,
            tells_links: false,
            attr: None,
            handle: None,
        };
        (1..=count).map(entry).collect()
    }

    #[test]
    fn pages_follow_each_other() {
        let mut snapshots = Snapshots::new(7);
        let snapshot = snapshots.keep(dir(1), attr(), entries(50));
        for bytes_max in [0, 1, 110, 500, 1 << 20] {
            let mut position = 0;
            let mut numbers = Vec::new();
            loop {
                let page = snapshot.page(position, bytes_max);
                numbers.extend(page.entries.iter().map(|entry| entry.fileid));
                position = page.entries.last().unwrap().position;
                if page.eof {
                    break;
                }
            }
            assert!(numbers.into_iter().eq(1..=50), "{bytes_max}");
        }
        let end = snapshot.entries.last().unwrap().position;
        assert!(snapshot.page(u64::MAX, 1).eof && snapshot.page(end, 1).entries.is_empty());
    }

    /// Also when the numbers begin anew.
    #[test]
    fn a_position_means_something_in_its_own_snapshot_only() {
        for random in [0, 5, NUMBERS - 1, u64::MAX] {
            let mut snapshots = Snapshots::new(random);
            let [old, new] = [(); 2].map(|()| snapshots.keep(dir(1), attr(), entries(3)));
            for (one, other) in [(&old, &new), (&new, &old)] {
                for entry in &one.entries {
                    let found = snapshots.get(&dir(1), entry.position).unwrap();
                    assert!(Arc::ptr_eq(&found, one) && entry.position > 0);
                    assert_eq!(snapshots.is_newest(&found), Arc::ptr_eq(&found, &new));
                    assert!(other.entries.iter().all(|far| far.position != entry.position));
                }
            }
        }
    }

    #[test]
    fn snapshots_are_bounded_and_belong_to_their_directory() {
        let mut snapshots = Snapshots::new(7);
        let first = snapshots.keep(dir(1), attr(), entries(1)).entries[0].position;
        assert!(snapshots.get(&dir(1), first).is_some() && snapshots.get(&dir(2), first).is_none());
        for _ in 0..2 * SNAPSHOTS_MAX {
            snapshots.keep(dir(1), attr(), entries(1));
            assert!(snapshots.kept.len() <= SNAPSHOTS_MAX);
        }
        assert!(snapshots.get(&dir(1), first).is_none());
    }
}
