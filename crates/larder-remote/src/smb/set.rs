//! Setting attributes.
//!
//! The server knows sizes, times and one bit of the mode: read-only. So that archives can be
//! unpacked, `chmod` of other permission bits succeeds and does nothing, as with `mount.cifs`; but
//! set-uid, set-gid and sticky bits, and owners other than the mount's, are refused, since somebody
//! may rely on them.

use super::attr::{self, Info};
use super::link::Link;
use super::share::Share;
use super::status::Failure;
use super::wire;
use larder_vfs::{Access, Change, Cred, Error, Handle, Result, SetAttr, SetTime, Time};
use smb2::types::flags::{FileAccessMask, FileAttributes};
use std::sync::Arc;
use std::time::SystemTime;

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
        let (access, options) = match set.size {
            Some(_) => (wire::SET | FileAccessMask::FILE_WRITE_DATA, wire::NON_DIRECTORY_FILE),
            None => (wire::SET, 0),
        };
        let opened = self.open_file(link, file, access, options).await?;
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
    /// If the caller may not set that, or nobody can.
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

    /// The times and attributes to set, if there are any.
    fn basic(&self, info: &Info, set: &SetAttr) -> Result<Option<Vec<u8>>> {
        let time = |time| match time {
            None => Ok(0),
            Some(SetTime::To(time)) => attr::filetime(time),
            // The protocol cannot say "now".
            Some(SetTime::ServerNow) => attr::filetime(now()),
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

    /// Lets a file be written and removed again, which a read-only one cannot. Names are for who may
    /// change the directory in POSIX, whatever the file's mode.
    pub(super) async fn clear_readonly(
        &self,
        link: &Arc<Link>,
        path: String,
        info: &Info,
    ) -> Result<(), Failure> {
        let opening = wire::Opening::existing(path, wire::SET);
        let opened = super::share::open(link, opening).await?;
        if opened.info.identity() != info.identity() {
            return Err(Failure::Is(Error::TryAgain));
        }
        let basic = wire::basic(0, 0, with_readonly(info.attributes, false));
        let done = link.ask(wire::set(opened.open.id, wire::BASIC_INFORMATION, basic)).await?;
        opened.open.close().await;
        done.check()
    }
}

/// The attributes, with or without that one. No attribute at all is written as "normal".
fn with_readonly(attributes: u32, readonly: bool) -> u32 {
    let others = attributes & FileAttributes::SETTABLE & !FileAttributes::READONLY;
    match (readonly, others) {
        (true, _) => others | FileAttributes::READONLY,
        (false, 0) => FileAttributes::NORMAL,
        (false, others) => others,
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { sec: i64::try_from(since.as_secs()).unwrap_or(0), nsec: since.subsec_nanos() }
}
