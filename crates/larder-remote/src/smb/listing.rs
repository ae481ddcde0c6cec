//! Listings: a directory is read whole, kept for a while as a snapshot ([`super::snapshots`]), and
//! returned page by page.

use super::attr::Info;
use super::link::{Link, Reply, garbled};
use super::names;
use super::share::{self, Opened, Share};
use super::status::Failure;
use super::wire::{self, Opening, PREVIOUS};
use larder_vfs::{Access, Cookie, Cred, Error, Handle, Listed, Listing, Result};
use smb2::msg::directory_info::parse_entries;
use smb2::msg::query_directory::{FileInformationClass, QueryDirectoryResponse};
use smb2::types::status::NtStatus;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};

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
                // The server's reply is older than what is known of these files by now.
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
        // Most directories fit into one reply, and the second reply reports the end.
        let pages = || [(); 2].map(|()| wire::list(PREVIOUS, wire::ANSWER_BYTES)).into();
        let (Opened { open, info, .. }, replies) = match share::open_and(link, opening, pages).await
        {
            Err(Failure::Status(NtStatus::NOT_A_DIRECTORY)) => {
                return Err(Failure::Is(Error::NotDirectory));
            }
            opened => opened.map_err(|failure| self.gone(dir, failure))?,
        };
        self.verify(dir, &info)?;
        let mut replies = replies.into_iter();
        let mut next = || replies.next().ok_or(Failure::Lost);
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
