//! Listings: a directory is read whole, kept for a while as a snapshot, and told page by page.
//!
//! A position is an index into a snapshot, and the verifier says which one. Of one that is gone,
//! only the beginning is good.

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
/// What an entry takes of a reply's size beside its name, in bytes.
const ENTRY_BYTES: usize = 104;

/// A directory as it was.
struct Snapshot {
    dir: Handle,
    verifier: u64,
    attr: Attr,
    entries: Vec<Listed>,
}

/// The last snapshots, the newest at the back.
#[derive(Default)]
pub(super) struct Snapshots {
    kept: VecDeque<Arc<Snapshot>>,
    made: u64,
}

impl Snapshots {
    fn keep(&mut self, dir: Handle, attr: Attr, entries: Vec<Listed>) -> Arc<Snapshot> {
        self.made += 1;
        let snapshot = Arc::new(Snapshot { dir, verifier: self.made, attr, entries });
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

    fn get(&self, dir: &Handle, verifier: u64) -> Option<Arc<Snapshot>> {
        self.kept.iter().find(|one| one.verifier == verifier && one.dir == *dir).cloned()
    }
}

impl Snapshot {
    /// What follows `position`, about `bytes_max` of it but at least one entry.
    fn page(&self, position: u64, bytes_max: u32) -> Listing {
        let start = usize::try_from(position).unwrap_or(usize::MAX).min(self.entries.len());
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
            verifier: self.verifier,
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
            let snapshot = snapshots.get(dir, cookie.verifier).ok_or(Error::BadCookie)?;
            return Ok(snapshot.page(cookie.position, bytes_max));
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
        let open = super::files::ServerOpen::new(Arc::clone(link), opened.file_id);
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
                position: entries.len() as u64 + 1,
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
            position,
            tells_links: false,
            attr: None,
            handle: None,
        };
        (1..=count).map(entry).collect()
    }

    #[test]
    fn pages_follow_each_other() {
        let mut snapshots = Snapshots::default();
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
        assert!(snapshot.page(u64::MAX, 1).eof && snapshot.page(50, 1).entries.is_empty());
    }

    #[test]
    fn snapshots_are_bounded_and_belong_to_their_directory() {
        let mut snapshots = Snapshots::default();
        let first = snapshots.keep(dir(1), attr(), entries(1)).verifier;
        assert!(snapshots.get(&dir(1), first).is_some() && snapshots.get(&dir(2), first).is_none());
        for _ in 0..2 * SNAPSHOTS_MAX {
            snapshots.keep(dir(1), attr(), entries(1));
            assert!(snapshots.kept.len() <= SNAPSHOTS_MAX);
        }
        assert!(snapshots.get(&dir(1), first).is_none());
    }
}
