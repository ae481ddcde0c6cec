//! Setting attributes.
//!
//! The server knows sizes, times and one bit of the mode: read-only. So that archives can be
//! unpacked, `chmod` of other permission bits succeeds and does nothing, as with `mount.cifs`; but
//! set-uid, set-gid and sticky bits, and owners other than the mount's, are refused, because a user
//! may rely on them.

use super::attr::{self, Info};
use super::link::Link;
use super::share::{self, Opened, Share};
use super::status::Failure;
use super::wire::{self, Opening};
use larder_io::WallTime;
use larder_vfs::{Access, Change, Cred, Error, Handle, Result, SetAttr, SetTime, Time};
use smb2::types::flags::{FileAccessMask, FileAttributes};
use smb2::types::status::NtStatus;
use std::sync::Arc;

impl Share {
    pub(super) async fn set(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> Result<Change, Failure> {
        self.may_set(cred, set)?;
        if set.size.is_some_and(|size| size > self.limits.file_size_max) {
            return Err(Failure::Is(Error::FileTooLarge));
        }
        let changing = self.files.changing(file);
        let opened = match set.size {
            Some(_) => {
                let access = wire::SET | FileAccessMask::FILE_WRITE_DATA;
                self.open_to_change(link, cred, file, access).await?
            }
            None => self.open_file(link, file, wire::SET, 0).await?,
        };
        let attr = opened.info.attr(&self.shape);
        if guard.is_some_and(|guard| guard != attr.ctime) {
            return Err(Failure::Is(Error::TryAgain));
        }
        let id = opened.open.id;
        let size = set.size.map(|size| size.to_le_bytes().to_vec());
        let size = size.map(|size| wire::set(id, wire::END_OF_FILE_INFORMATION, size));
        let basic = self.basic(&opened.info, set)?;
        let basic = basic.map(|basic| wire::set(id, wire::BASIC_INFORMATION, basic));
        let after = opened.open.finish(size.into_iter().chain(basic).collect()).await?;
        let was = changing.done(Some(after));
        Ok(self.change(was, Some(after)))
    }

    /// # Errors
    /// If the caller may not set that, or it cannot be set at all.
    fn may_set(&self, cred: &Cred, set: &SetAttr) -> Result<()> {
        let owner = self.shape.owned_by(cred);
        let explicit = |time| matches!(time, Some(SetTime::To(_)));
        let owners_only = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if !owner && (owners_only || explicit(set.atime) || explicit(set.mtime)) {
            return Err(Error::NotPermitted);
        }
        let shown = |asked: Option<u32>, shown| asked.is_none_or(|asked| asked == shown);
        let special = set.mode.is_some_and(|mode| mode & 0o7000 != 0);
        if special || !shown(set.uid, self.shape.uid) || !shown(set.gid, self.shape.gid) {
            return Err(Error::NotPermitted);
        }
        let touch = !owner && (set.atime.is_some() || set.mtime.is_some());
        match set.size.is_some() || touch {
            true => self.shape.may_with_file(cred, Access::MODIFY),
            false => Ok(()),
        }
    }

    fn now(&self) -> Time {
        let WallTime { sec, nsec } = self.options.clock.wall();
        Time { sec, nsec }
    }

    /// The times and attributes to set, if there are any.
    fn basic(&self, info: &Info, set: &SetAttr) -> Result<Option<Vec<u8>>> {
        let time = |time| match time {
            None => Ok(0),
            Some(SetTime::To(time)) => attr::filetime(time),
            // The protocol cannot say "now".
            Some(SetTime::ServerNow) => attr::filetime(self.now()),
        };
        let (accessed, written) = (time(set.atime)?, time(set.mtime)?);
        let readonly = set.mode.map(|mode| mode & 0o222 == 0 && self.shape.file_mode & 0o222 != 0);
        let attributes = match readonly {
            Some(wanted) if !info.is_directory() && wanted != info.is_readonly() => {
                with_readonly(info.attributes, wanted)
            }
            _ => 0,
        };
        let nothing = (accessed, written, attributes) == (0, 0, 0);
        Ok((!nothing).then(|| wire::basic(accessed, written, attributes)))
    }

    /// Opens a file to change its data; its owner may also change a read-only one. The writer
    /// opened it before it became read-only, but that open was not made at the server, or was lost
    /// with its connection; rights are checked when an application opens a file. NFS servers let
    /// owners write for the same reason.
    pub(super) async fn open_to_change(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        access: u32,
    ) -> Result<Opened, Failure> {
        match self.open_file(link, file, access, wire::NON_DIRECTORY_FILE).await {
            Err(Failure::Status(NtStatus::ACCESS_DENIED)) if self.shape.owned_by(cred) => {
                self.open_readonly(link, file, access).await
            }
            opened => opened,
        }
    }

    /// Opens a read-only file to change its data, which servers refuse: the file is made writable
    /// for two round trips. If the connection is lost in that moment, it stays writable.
    ///
    /// # Errors
    /// [`NtStatus::ACCESS_DENIED`] if the attribute was not the obstacle.
    async fn open_readonly(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        access: u32,
    ) -> Result<Opened, Failure> {
        let held = self.open_file(link, file, wire::SET, wire::NON_DIRECTORY_FILE).await?;
        if !held.info.is_readonly() {
            return Err(Failure::Status(NtStatus::ACCESS_DENIED));
        }
        let keyed = self.own_key(link, file, access);
        let opening = Opening {
            options: wire::NON_DIRECTORY_FILE,
            lease: keyed.as_ref().map(|keyed| keyed.request),
            ..Opening::existing(self.path(file)?, access)
        };
        // As a task: once begun, it ends even if its caller gives up.
        let opened = link.runtime().spawn(open_lifted(Arc::clone(link), held, opening)).await;
        let opened = opened.unwrap_or(Err(Failure::Lost))?;
        self.verify(file, &opened.info)?;
        if let Some(keyed) = keyed {
            keyed.opened(&opened);
        }
        Ok(opened)
    }

    /// Makes a read-only file writable, which servers require before a removal. In POSIX, the right
    /// to change names is that of the directory, whatever the file's mode.
    pub(super) async fn clear_readonly(
        &self,
        link: &Arc<Link>,
        path: String,
        info: &Info,
    ) -> Result<(), Failure> {
        let opening = Opening::existing(path, wire::SET);
        let opened = share::open(link, opening).await?;
        if opened.info.identity() != info.identity() {
            return Err(Failure::Is(Error::TryAgain));
        }
        let basic = wire::basic(0, 0, with_readonly(info.attributes, false));
        let done = link.ask(wire::set(opened.open.id, wire::BASIC_INFORMATION, basic)).await?;
        opened.open.close().await;
        done.check()
    }
}

/// Opens a file that is `held` open and read-only; its attribute is cleared for that time.
async fn open_lifted(link: Arc<Link>, held: Opened, opening: Opening) -> Result<Opened, Failure> {
    let set = |readonly| {
        let basic = wire::basic(0, 0, with_readonly(held.info.attributes, readonly));
        wire::set(held.open.id, wire::BASIC_INFORMATION, basic)
    };
    link.ask(set(false)).await?.check()?;
    let opened = share::open(&link, opening).await;
    let restored = held.open.finish(vec![set(true)]).await?;
    opened.map(|opened| Opened { info: restored, ..opened })
}

/// The attributes, with or without read-only. No attribute at all is encoded as "normal".
fn with_readonly(attributes: u32, readonly: bool) -> u32 {
    let others = attributes & FileAttributes::SETTABLE & !FileAttributes::READONLY;
    match (readonly, others) {
        (true, _) => others | FileAttributes::READONLY,
        (false, 0) => FileAttributes::NORMAL,
        (false, others) => others,
    }
}
