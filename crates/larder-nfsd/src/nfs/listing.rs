//! READDIR and READDIRPLUS (RFC 1813, 3.3.16 and 3.3.17).
//!
//! The file system leaves out `.` and `..`, which clients expect, so they are put in front, with
//! cookies 1 and 2; the file system's own positions follow, shifted by two. The file system keeps
//! its positions valid, so the cookie verifier is always zero.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;

use larder_vfs::{DirEntry, Ino, Lookup};
use larder_wire::nfs3::{
    READDIR3args, READDIR3res, READDIR3resok, READDIRPLUS3args, READDIRPLUS3res, READDIRPLUS3resok,
    cookieverf3, dirlist3, dirlistplus3, entry3, entryplus3, filename3, nfsstat3,
};
use larder_wire::xdr::{self, List};

use super::{Caller, Nfs, ask, fail, with};
use crate::words;

/// Cookies of `.` and `..`; the file system's positions are shifted by this number.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Bytes of READDIR3resok and READDIRPLUS3resok without the entries: attributes with their mark,
/// the verifier, the end of the list and `eof`.
const FRAME_BYTES: usize = 4 + larder_wire::nfs3::FATTR3_BYTES + 8 + 4 + 4;
const VERIFIER: cookieverf3 = [0; 8];

/// The room that is left in a reply.
struct Room {
    /// Bytes of the whole result (`count`, `maxcount`).
    result_bytes: usize,
    /// Bytes of names, ids and cookies (`dircount`); a hint, so the first entry may exceed it.
    directory_bytes: usize,
    is_empty: bool,
}

impl Nfs {
    pub(crate) async fn readdir(&self, caller: &Caller, args: READDIR3args) -> READDIR3res {
        let dir = self.resolve(&args.dir).await.map_err(|status| fail(status, None))?;
        let done = async {
            let mut room = Room::new(caller, args.count, u32::MAX)?;
            let (entries, eof) =
                self.list(caller, dir, args.cookie, args.cookieverf, &room, false).await?;
            let total = entries.len();
            let plain = entries.into_iter().map(|entry| entry3 {
                fileid: entry.fileid,
                name: entry.name,
                cookie: entry.cookie,
            });
            let fitting: Vec<entry3> =
                plain.take_while(|entry| room.take(entry.encoded_bytes(), 0)).collect();
            room.check(total)?;
            let eof = eof && fitting.len() == total;
            Ok(dirlist3 { entries: List(fitting), eof })
        };
        let done = done.await;
        let dir_attributes = self.post_op(caller, dir).await;
        with(done, dir_attributes, |reply| READDIR3resok {
            dir_attributes,
            cookieverf: VERIFIER,
            reply,
        })
    }

    pub(crate) async fn readdirplus(
        &self,
        caller: &Caller,
        args: READDIRPLUS3args,
    ) -> READDIRPLUS3res {
        let dir = self.resolve(&args.dir).await.map_err(|status| fail(status, None))?;
        let done = async {
            let mut room = Room::new(caller, args.maxcount, args.dircount)?;
            let (entries, eof) =
                self.list(caller, dir, args.cookie, args.cookieverf, &room, true).await?;
            let total = entries.len();
            let directory_bytes = |entry: &entryplus3| 8 + xdr::opaque_len(entry.name.len()) + 8;
            let fitting: Vec<entryplus3> = entries
                .into_iter()
                .take_while(|entry| room.take(entry.encoded_bytes(), directory_bytes(entry)))
                .collect();
            room.check(total)?;
            let eof = eof && fitting.len() == total;
            Ok(dirlistplus3 { entries: List(fitting), eof })
        };
        let done = done.await;
        let dir_attributes = self.post_op(caller, dir).await;
        with(done, dir_attributes, |reply| READDIRPLUS3resok {
            dir_attributes,
            cookieverf: VERIFIER,
            reply,
        })
    }

    /// Entries after `cookie`, about as many as fit, and whether the end of the directory is
    /// reached.
    async fn list(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: u64,
        verifier: cookieverf3,
        room: &Room,
        plus: bool,
    ) -> Result<(Vec<entryplus3>, bool), nfsstat3> {
        self.is_directory(caller, dir).await?;
        if verifier != VERIFIER {
            return Err(nfsstat3::NFS3ERR_BAD_COOKIE);
        }
        // This protocol opens no directories, and a cached listing is given to whoever may open it.
        ask(self.fs.opendir(&caller.cred, dir)).await?;
        let mut entries = Vec::new();
        if cookie < DOT {
            entries.push(self.dot(caller, dir, ".", DOT, plus).await?);
        }
        if cookie < DOT_DOT {
            entries.push(self.dot(caller, dir, "..", DOT_DOT, plus).await?);
        }
        // Asks until the reply is full or the file system reports the end. If that were left to the
        // client, each directory would cost one more message.
        let mut offset = cookie.saturating_sub(DOT_DOT);
        let mut used_bytes = 0;
        while used_bytes < room.result_bytes {
            let left = u32::try_from(room.result_bytes - used_bytes).unwrap_or(u32::MAX);
            let listed = ask(self.fs.readdir(&caller.cred, dir, offset, left, plus)).await?;
            let Some(last) = listed.last() else { return Ok((entries, true)) };
            offset = last.offset;
            for entry in listed {
                let Some(entry) = self.entry(entry).await else { continue };
                used_bytes += entry.encoded_bytes();
                entries.push(entry);
            }
        }
        Ok((entries, false))
    }

    /// The entry to list, unless the protocol cannot express its name.
    async fn entry(&self, listed: DirEntry) -> Option<entryplus3> {
        let (mut name_attributes, mut name_handle) = (None, None);
        if let Some(entry) = &listed.entry {
            name_attributes = Some(words::fattr(&entry.fresh.attr));
            name_handle = self.take_handle(entry).await.ok();
        }
        Some(entryplus3 {
            fileid: listed.fileid,
            name: filename3::new(listed.name.into_vec().into()).ok()?,
            cookie: listed.offset.wrapping_add(DOT_DOT),
            name_attributes,
            name_handle,
        })
    }

    /// `.` or `..`. A caller that may not search the directory learns only the name of `..`.
    async fn dot(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &'static str,
        cookie: u64,
        plus: bool,
    ) -> Result<entryplus3, nfsstat3> {
        let here = self.attr(caller, dir).await?;
        let (mut attr, mut handle) = (Some(here), None);
        if name == "." {
            handle = self.handle(dir).await.ok();
        } else {
            let above = self.fs.lookup(&caller.cred, dir, OsStr::new(name)).wait().await;
            attr = None;
            if let Ok(Lookup::Found(entry)) = above {
                attr = Some(entry.fresh.attr);
                handle = self.take_handle(&entry).await.ok();
            }
        }
        Ok(entryplus3 {
            fileid: attr.map_or(here.fileid, |attr| attr.fileid),
            name: filename3::new(name.into()).expect("a dot or two are a name"),
            cookie,
            name_attributes: attr.filter(|_| plus).map(|attr| words::fattr(&attr)),
            name_handle: handle.filter(|_| plus),
        })
    }
}

impl Room {
    /// # Errors
    /// [`nfsstat3::NFS3ERR_TOOSMALL`] if not even an empty result fits.
    fn new(caller: &Caller, result_bytes: u32, directory_bytes: u32) -> Result<Room, nfsstat3> {
        let result_bytes = result_bytes.min(caller.transfer_bytes_max) as usize;
        let result_bytes =
            result_bytes.checked_sub(FRAME_BYTES).ok_or(nfsstat3::NFS3ERR_TOOSMALL)?;
        Ok(Room { result_bytes, directory_bytes: directory_bytes as usize, is_empty: true })
    }

    /// Takes room for an entry; `false` if there is none.
    fn take(&mut self, entry_bytes: usize, directory_bytes: usize) -> bool {
        let fits = entry_bytes <= self.result_bytes
            && (self.is_empty || directory_bytes <= self.directory_bytes);
        if fits {
            self.result_bytes -= entry_bytes;
            self.directory_bytes = self.directory_bytes.saturating_sub(directory_bytes);
            self.is_empty = false;
        }
        fits
    }

    /// # Errors
    /// [`nfsstat3::NFS3ERR_TOOSMALL`] if there were entries and none of them fits.
    fn check(&self, entries: usize) -> Result<(), nfsstat3> {
        match self.is_empty && entries > 0 {
            true => Err(nfsstat3::NFS3ERR_TOOSMALL),
            false => Ok(()),
        }
    }
}
