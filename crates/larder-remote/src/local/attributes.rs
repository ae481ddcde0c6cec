//! Attributes of local files: reads, checks, sets them.

use std::sync::Arc;

use larder_io::handle::access_of;
use larder_vfs::{
    Access, Attr, Changed, Cred, Error, Handle, Kind, Result, SetAttr, SetTime, StatFs, Time,
};
use rustix::fs::{
    Access as Mask, AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chmod,
    chownat, fstatvfs, ftruncate, utimensat,
};
use rustix::io::Errno;

use super::descriptors::{OpenFile, Purpose};
use super::errors::error;
use super::export::{Export, change};
use super::identity::Identity;
use super::stat::MODE_BITS;

impl Export {
    /// # Errors
    /// [`Error::Stale`] also for a file that has no name any more and exists only because a process
    /// has it open.
    pub(super) fn getattr(&self, handle: &Handle) -> Result<Attr> {
        let file = self.file(handle)?;
        let attr = self.attr(&*file)?;
        if attr.nlink == 0 {
            self.descriptors().forget(handle);
            return Err(Error::Stale);
        }
        Ok(attr)
    }

    pub(super) fn setattr(
        &self,
        cred: &Cred,
        handle: &Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Result<Changed> {
        self.writable()?;
        let who = self.identity(cred);
        let file = self.file(handle)?;
        let data = self.data_to_set(handle, &file, set)?;
        let work = |before: &Attr| {
            if guard.is_some_and(|ctime| ctime != before.ctime) {
                return Err(Error::TryAgain);
            }
            self.set(&who, &file, data.as_deref(), before, set)
        };
        let change = match file.kind {
            Kind::File => self.change_file(handle, &file, data.as_deref(), work)?,
            _ => {
                let _locked = self.lock(handle);
                let before = self.attr(&*file)?;
                work(&before)?;
                change(&before, self.attr(&*file)?)
            }
        };
        self.sync_attributes(handle, &file)?;
        Ok(change)
    }

    /// The descriptor for writing with which a size is set, and which shows whether another process
    /// has the file open.
    ///
    /// # Errors
    /// Only if it is needed.
    pub(super) fn data_to_set(
        &self,
        handle: &Handle,
        file: &OpenFile,
        set: SetAttr,
    ) -> Result<Option<Arc<OpenFile>>> {
        match (self.data(handle, Purpose::Write), set.size) {
            (data, Some(_)) => data.map(Some),
            (data, None) if file.kind == Kind::File => Ok(data.ok()),
            _ => Ok(None),
        }
    }

    /// Sets attributes of a file that is `attr` now, as `who`; its size through `data`.
    ///
    /// The owner is set first and the mode after it and after the size, because setting either
    /// clears the set-uid bit. Steps before a failed one stay done.
    pub(super) fn set(
        &self,
        who: &Identity,
        file: &OpenFile,
        data: Option<&OpenFile>,
        attr: &Attr,
        set: SetAttr,
    ) -> Result<()> {
        let data = match set.size {
            Some(size) => data.zip(Some(check_size(size)?)),
            None => None,
        };
        let _acting = self.act_as(who)?;
        if data.is_some() {
            may_write(who, file, attr)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) =
                (set.uid.map(valid_id).transpose()?, set.gid.map(valid_id).transpose()?);
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(error)?;
        }
        if let Some((data, size)) = data {
            ftruncate(data, size).map_err(error)?;
        }
        // A symbolic link has no mode to set.
        if let Some(mode) = set.mode.filter(|_| file.kind != Kind::Symlink) {
            let mode = Mode::from_raw_mode(mode & MODE_BITS);
            chmod(file.proc_path(), mode).map_err(error)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times =
                Timestamps { last_access: time(set.atime)?, last_modification: time(set.mtime)? };
            utimensat(file, c"", &times, AtFlags::EMPTY_PATH).map_err(error)?;
        }
        Ok(())
    }

    /// Makes attributes durable. Symbolic links and special files cannot be opened for that: their
    /// changes reach the disk with the file system's next journal commit.
    pub(super) fn sync_attributes(&self, handle: &Handle, file: &OpenFile) -> Result<()> {
        match file.kind {
            Kind::File | Kind::Directory if self.options().durable_names => self.sync(handle),
            _ => Ok(()),
        }
    }

    pub(super) fn access(
        &self,
        cred: &Cred,
        handle: &Handle,
        wanted: Access,
    ) -> Result<(Access, Attr)> {
        let who = self.identity(cred);
        let file = self.file(handle)?;
        let attr = self.attr(&*file)?;
        let (read, write, execute) = match attr.kind {
            Kind::Directory => {
                let write = Access::MODIFY | Access::EXTEND | Access::DELETE;
                (Access::READ, write, Access::LOOKUP)
            }
            _ => (Access::READ, Access::MODIFY | Access::EXTEND, Access::EXECUTE),
        };
        // Changing entries also takes the right to search.
        let write_mask = match attr.kind {
            Kind::Directory => Mask::WRITE_OK | Mask::EXEC_OK,
            _ => Mask::WRITE_OK,
        };
        let mut granted = Access::NONE;
        let _acting = self.act_as(&who)?;
        for (rights, mask) in [(read, Mask::READ_OK), (write, write_mask), (execute, Mask::EXEC_OK)]
        {
            let refused = rights == write && self.options().read_only;
            if wanted & rights != Access::NONE && !refused && has(&file, mask)? {
                granted = granted | (wanted & rights);
            }
        }
        Ok((granted, attr))
    }

    pub(super) fn statfs(&self, handle: &Handle) -> Result<StatFs> {
        // The handle must be good, although all files are on one file system.
        let file = self.file(handle)?;
        let space = fstatvfs(&*file).map_err(error)?;
        Ok(StatFs {
            bytes: space.f_blocks.saturating_mul(space.f_frsize),
            bytes_free: space.f_bfree.saturating_mul(space.f_frsize),
            bytes_available: space.f_bavail.saturating_mul(space.f_frsize),
            files: space.f_files,
            files_free: space.f_ffree,
            files_available: space.f_favail,
            name_max: u32::try_from(space.f_namemax).unwrap_or(u32::MAX),
        })
    }
}

/// Whether the kernel grants the calling thread the right. Symbolic links grant all.
fn has(file: &OpenFile, mask: Mask) -> Result<bool> {
    if file.kind == Kind::Symlink {
        return Ok(true);
    }
    match access_of(file, mask) {
        Ok(()) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(false),
        Err(other) => Err(error(other)),
    }
}

/// Whether the calling thread, acting as `who`, may read the data. See the invariants of
/// [`super`] for the two exceptions.
pub(super) fn may_read(who: &Identity, file: &OpenFile, attr: &Attr) -> Result<()> {
    let granted = owns(who, attr) || has(file, Mask::READ_OK)? || has(file, Mask::EXEC_OK)?;
    if granted { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether the calling thread, acting as `who`, may write the data.
pub(super) fn may_write(who: &Identity, file: &OpenFile, attr: &Attr) -> Result<()> {
    let granted = owns(who, attr) || has(file, Mask::WRITE_OK)?;
    if granted { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Whether no right need be asked for.
pub(super) fn owns(who: &Identity, attr: &Attr) -> bool {
    who.is_superuser() || who.uid == attr.uid
}

/// All ones would mean "leave it as it is".
fn valid_id(id: u32) -> Result<u32> {
    if id == u32::MAX { Err(Error::InvalidArgument) } else { Ok(id) }
}

/// The kernel's sizes are signed.
fn check_size(size: u64) -> Result<u64> {
    if i64::try_from(size).is_ok() { Ok(size) } else { Err(Error::FileTooLarge) }
}

fn time(set: Option<SetTime>) -> Result<Timespec> {
    Ok(match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::ServerNow) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        // The kernel's two special values lie past this limit.
        Some(SetTime::To(time)) if time.nsec >= 1_000_000_000 => {
            return Err(Error::InvalidArgument);
        }
        Some(SetTime::To(time)) => Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) },
    })
}
