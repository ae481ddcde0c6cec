//! Listing a directory.
//!
//! Positions are the kernel's own (`d_off`), which a file system keeps valid over changes of the
//! directory and restarts; so the verifier is always zero. Each entry is opened to be described, so
//! that handle and attributes are of one object even while names change.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::PoisonError;

use larder_io::handle::access_of;
use larder_vfs::{Cookie, Cred, Error, Handle, Listed, Listing, Result};
use rustix::fs::{Access as Mask, RawDir, SeekFrom, seek};

use super::descriptors::{OpenFile, Purpose};
use super::errors::error;
use super::export::Export;

/// Room for one batch of entries from the kernel, in bytes.
const BATCH_BYTES: usize = 32 << 10;
/// The space that an entry takes in a reply besides its name and handle, in bytes: `entryplus3` of
/// RFC 1813 (3.3.17) with attributes.
const ENTRY_BYTES: usize = 128;
/// Most entries of one reply, however many bytes it may have: each takes several system calls.
const ENTRIES_MAX: usize = 4096;

impl Export {
    pub(super) fn readdir(
        &self,
        cred: &Cred,
        handle: &Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        if cookie.verifier != 0 {
            return Err(Error::BadCookie);
        }
        let dir = self.dir(handle)?;
        let search = self.may_list(cred, &dir)?;
        let reader = self.data(handle, Purpose::Read)?;
        let (mut entries, eof) = names(&reader, cookie.position, bytes_max)?;
        if search {
            entries.iter_mut().for_each(|entry| self.describe_entry(&dir, entry));
        }
        Ok(Listing { entries, eof, verifier: 0, dir: Some(self.attr(&*dir)?) })
    }

    /// Checks the right to read the directory; returns whether the caller may search it, too, and
    /// so may learn for what its names stand.
    fn may_list(&self, cred: &Cred, dir: &OpenFile) -> Result<bool> {
        let _acting = self.act_as(&self.identity(cred))?;
        access_of(dir, Mask::READ_OK).map_err(error)?;
        Ok(access_of(dir, Mask::EXEC_OK).is_ok())
    }

    /// Adds handle and attributes, unless the entry is gone or something is mounted over it.
    fn describe_entry(&self, dir: &OpenFile, entry: &mut Listed) {
        let described = self.open_entry(dir, &entry.name).and_then(|fd| self.describe(fd));
        if let Ok(found) = described {
            entry.attr = Some(found.attr);
            entry.fileid = found.attr.fileid;
            entry.handle = Some(found.handle);
        }
    }
}

/// Entries after `position` that fit `bytes_max`, at least one, and whether they are the last.
fn names(reader: &OpenFile, position: u64, bytes_max: u32) -> Result<(Vec<Listed>, bool)> {
    let mut entries = Vec::new();
    let mut room = bytes_max as usize;
    let mut buffer = [MaybeUninit::uninit(); BATCH_BYTES];

    let _alone = reader.alone.lock().unwrap_or_else(PoisonError::into_inner);
    // Seeks even to the beginning: the position is where another caller's listing left it.
    let start = i64::try_from(position).map_err(|_| Error::BadCookie)?;
    seek(reader, SeekFrom::Start(start.cast_unsigned())).map_err(|_| Error::BadCookie)?;
    let mut batches = RawDir::new(reader, &mut buffer);
    while let Some(entry) = batches.next() {
        let entry = entry.map_err(error)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let bytes = ENTRY_BYTES + name.len() + Handle::LEN_MAX / 2;
        if !entries.is_empty() && (bytes > room || entries.len() == ENTRIES_MAX) {
            return Ok((entries, false));
        }
        room = room.saturating_sub(bytes);
        entries.push(Listed {
            name: OsString::from(name),
            fileid: entry.ino(),
            position: entry.next_entry_cookie(),
            tells_links: true,
            attr: None,
            handle: None,
        });
    }
    Ok((entries, true))
}
