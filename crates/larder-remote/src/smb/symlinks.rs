//! Symbolic links as files whose content says what they are ([`super::symlink_files`]), which
//! `mount.cifs` (`mfsymlinks`) and macOS make and follow, too.
//!
//! The server describes such a file as any other one; only its content shows what it is. So a file
//! of that size is read once in each of its versions, before its attributes are returned. What the
//! calls on open files return is left as it is: nobody opens a link.
//!
//! Absent on purpose: links in the form of Windows (reparse points), which Samba does not make.

use super::channel::{attempt, call};
use super::elsewhere::upon;
use super::hidden;
use super::link::{Link, Reply};
use super::share::Share;
use super::status::Failure;
use super::symlink_files::{self, BYTES};
use super::wire::{self, Opening, PREVIOUS};
use larder_vfs::{Attr, Cred, Deadline, Error, Handle, Kind, Listed, Result};
use smb2::msg::create::CreateDisposition;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use tokio::task::JoinSet;

impl Share {
    /// Makes the server's description of a file that of a link, if it is one.
    ///
    /// # Errors
    /// Those of reading it, but that the login may not, or that another client does not let it be
    /// read: then it counts as an ordinary file.
    pub(super) async fn tell_link(
        self: &Arc<Share>,
        deadline: Option<Deadline>,
        file: &Handle,
        attr: &mut Attr,
    ) -> Result<()> {
        if let Some(target) = self.target(deadline, file, attr).await? {
            show_link(attr, &target);
        }
        Ok(())
    }

    /// The same for the entries of a listing. Of one that cannot be read, the attributes are left
    /// out.
    pub(super) async fn tell_links(
        self: &Arc<Share>,
        deadline: Option<Deadline>,
        entries: &mut [Listed],
    ) {
        let mut told = JoinSet::new();
        for (at, entry) in entries.iter().enumerate() {
            let (Some(mut attr), Some(file)) = (entry.attr, entry.handle.clone()) else { continue };
            if !self.may_be_link(&attr) {
                continue;
            }
            let share = Arc::clone(self);
            told.spawn(async move {
                let is_told = share.tell_link(deadline, &file, &mut attr).await.is_ok();
                (at, is_told.then_some(attr))
            });
        }
        while let Some(one) = told.join_next().await {
            let Ok((at, attr)) = one else { continue };
            entries[at].attr = attr;
            if attr.is_none() {
                entries[at].handle = None;
            }
        }
    }

    /// The target of a link that the server describes so; `None` if the file is not a link.
    ///
    /// # Errors
    /// As [`Share::tell_link`].
    pub(super) async fn target(
        self: &Arc<Share>,
        deadline: Option<Deadline>,
        file: &Handle,
        attr: &Attr,
    ) -> Result<Option<OsString>> {
        if !self.may_be_link(attr) {
            return Ok(None);
        }
        if let Some(known) = self.symlinks.known(file, attr) {
            return Ok(known);
        }
        // Everybody may follow a link. One byte more than it has shows that it is one.
        let (share, cred) = (self, &Cred::root().until(deadline));
        let all = (0, BYTES as u32 + 1);
        let read =
            upon!(share, cred, file, |link, _again| share.read(&link, cred, file, None, all));
        let read = match read {
            Ok(read) => read,
            Err(Error::AccessDenied | Error::Busy | Error::Locked) => return Ok(None),
            Err(error) => return Err(error),
        };
        let target = symlink_files::target(&read.data);
        if let Some(attr) = &read.attr {
            self.symlinks.learn(file, attr, target.clone());
        }
        Ok(target)
    }

    fn may_be_link(&self, attr: &Attr) -> bool {
        self.limits.symlinks && attr.kind == Kind::File && attr.size == BYTES as u64
    }
}

/// Makes the server's description of a link that of one.
pub(super) fn show_link(attr: &mut Attr, target: &OsStr) {
    attr.kind = Kind::Symlink;
    attr.mode = 0o777;
    attr.size = target.len() as u64;
}

/// Makes a link at a path, durably, in one message: nobody can open it before it is whole.
pub(super) async fn make(link: &Arc<Link>, path: String, target: &OsStr) -> Result<(), Failure> {
    let content = symlink_files::content(target)?;
    let options = wire::NON_DIRECTORY_FILE | wire::OPEN_REPARSE_POINT;
    let disposition = CreateDisposition::FileCreate;
    let existing = Opening::existing(path, wire::WRITE);
    let new = Opening { disposition, options, alone: true, ..existing };
    let ops = vec![
        new.op(),
        wire::write(PREVIOUS, 0, content),
        wire::flush(PREVIOUS),
        wire::close(PREVIOUS),
    ];
    let replies = link.chain(ops).await?;
    let (made, rest) = replies.split_first().ok_or(Failure::Lost)?;
    made.check()?;
    let written = rest.iter().try_for_each(Reply::check);
    if written.is_err() {
        // The disk is full, say: nothing half-made stays.
        hidden::delete_new(link, new.path).await?;
    }
    written
}
