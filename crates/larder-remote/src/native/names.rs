//! Names: makes, moves and removes them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use larder_vfs::{
    Change, Cred, Error, Found, Handle, LookedUp, Made, New, Removal, Result, SetAttr, Token,
};
use larder_wire::meta::TARGET_BYTES_MAX;
use larder_wire::meta::calls::{
    self, Create, Link, LookAt, Make, MakeWhat, MkDir, MkNod, NameChanged, Open, OpenWhat, Remove,
    Rename, Renamed, RmDir, Special, Symlink,
};
use larder_wire::meta::words::{
    Attributes, ByteRange, Changed, Dentry, FileId, IfExists, LeaseKind, Medium, Mode, Seen,
    SetAttributes,
};
use larder_wire::xdr::Opaque;

use super::session::Failed;
use super::{Native, convert};

/// What a new file gets with the answer.
#[derive(Clone, Copy)]
struct Wanted {
    lease: LeaseKind,
    /// For how many bytes it gets blocks.
    ahead_bytes: u64,
}

/// A file whose bytes are sent when it is closed, or before.
const SENT: Wanted = Wanted { lease: LeaseKind::Read, ahead_bytes: 64 << 10 };
/// A file whose bytes stay here: others are excluded from the beginning, and do not see it without
/// its bytes.
const RETAINED: Wanted = Wanted { lease: LeaseKind::Write, ahead_bytes: 0 };

impl Native {
    pub(super) async fn look_up(&self, cred: &Cred, dentry: Dentry) -> Result<LookedUp> {
        let (answer, _) = self.look(cred, LookAt::Name(dentry), self.any_lease()).await?;
        let is_behind = |seen: &Seen| self.uncommitted.get(seen.attributes.file).is_some();
        let seen = match answer.found {
            Some(seen) if is_behind(&seen) => {
                let attr = self.attributes(cred, seen.attributes.file).await?;
                let handle = convert::handle(self.volume, seen.attributes.file);
                Some(Found { handle, attr })
            }
            found => found.map(|seen| self.found(&seen.attributes)),
        };
        Ok(LookedUp { found: seen, dir: answer.dir.as_ref().map(|dir| self.attr(dir)) })
    }

    pub(super) async fn make_object(
        &self,
        cred: &Cred,
        dentry: Dentry,
        new: New,
        set: SetAttr,
    ) -> Result<Made> {
        let medium = match set.in_memory {
            Some(volatile) => Medium::Memory(u32::from(volatile.copies)),
            None => Medium::Disk,
        };
        // Who looks for bytes that are sent later is to wait.
        let wanted = if set.retained { RETAINED } else { SENT };
        let set = convert::set(&set);
        let made = match new {
            New::File => {
                return self.create(cred, dentry, set, (IfExists::Open, wanted), medium).await;
            }
            New::FileExclusive => {
                return self.create(cred, dentry, set, (IfExists::Fail, wanted), medium).await;
            }
            New::Directory => {
                self.make_bare(cred, dentry, MakeWhat::Directory, (set, medium)).await
            }
            New::Symlink(target) => {
                let what = MakeWhat::Symlink(link_target(&target)?);
                self.make_bare(cred, dentry, what, (set, medium)).await
            }
            New::Node(larder_vfs::Kind::File, _) => {
                let how = (IfExists::Fail, Wanted { lease: LeaseKind::Write, ..SENT });
                return self.create(cred, dentry, set, how, medium).await;
            }
            New::Node(kind, device) => {
                let (kind, device) = (convert::node_kind(kind)?, convert::device(device));
                let what = MakeWhat::Special(Special { kind, device });
                self.make_bare(cred, dentry, what, (set, medium)).await
            }
        };
        let made = self.note_changes(made, |made| vec![made.dir])?;
        Ok(self.made(&made.made, true, &made.dir))
    }

    /// Makes an object that has no bytes, as durable as bytes on this medium.
    async fn make_bare(
        &self,
        cred: &Cred,
        dentry: Dentry,
        what: MakeWhat,
        (set, medium): (SetAttributes, Medium),
    ) -> Result<calls::Made, Failed> {
        let session = &self.session;
        let dentry = || dentry.clone();
        if medium != Medium::Disk && !self.lacks_make.load(Ordering::Relaxed) {
            let args =
                |sequence| Make { sequence, dentry: dentry(), what: what.clone(), set, medium };
            match session.change(cred, args).await {
                // The server is of a version that makes all of them durable.
                Err(Failed::Call(Error::NotSupported)) => {
                    self.lacks_make.store(true, Ordering::Relaxed);
                }
                made => return made,
            }
        }
        match what {
            MakeWhat::Directory => {
                session.change(cred, |sequence| MkDir { sequence, dentry: dentry(), set }).await
            }
            MakeWhat::Symlink(target) => {
                let target = || target.clone();
                let args = |sequence| Symlink { sequence, dentry: dentry(), target: target(), set };
                session.change(cred, args).await
            }
            MakeWhat::Special(Special { kind, device }) => {
                let args = |sequence| MkNod { sequence, dentry: dentry(), kind, device, set };
                session.change(cred, args).await
            }
        }
    }

    /// Makes a file, which is open at the server from then on, and gets blocks for its first bytes.
    async fn create(
        &self,
        cred: &Cred,
        dentry: Dentry,
        set: SetAttributes,
        (if_exists, Wanted { lease, ahead_bytes }): (IfExists, Wanted),
        medium: Medium,
    ) -> Result<Made> {
        let session = &self.session;
        let (asking, life) = (session.leases().begin(), session.life());
        let lease = lease.min(if session.leases().has_room() { lease } else { LeaseKind::None });
        let opened = session.change(cred, |sequence| Open {
            sequence,
            what: OpenWhat::Create(Create { dentry: dentry.clone(), set, if_exists }),
            mode: Mode::Write,
            lease,
            range: ByteRange { offset: 0, length: ahead_bytes },
            allocate: Some(medium),
        });
        let opened = self.note_changes(opened.await, |opened| {
            // No client knew anything of a new file.
            let found = (!opened.created).then_some(opened.file);
            opened.dir.into_iter().chain(found).collect()
        })?;
        let calls::Opened { open, created, file, dir, lease, layout } = opened;
        let attributes = file.after;
        asking.take_opened(&attributes, lease);
        // If the file existed, other clients may change what a layout says.
        let ahead = created.then_some(layout).filter(|layout| !layout.extents.0.is_empty());
        let held = session.opens().opened(session, attributes.file, (life, open), ahead);
        if life != session.life() {
            held.0.keep(cred).await;
        }
        let dir = dir.as_ref().ok_or(Error::Io)?;
        Ok(Made { token: Some(Token::new(held)), ..self.made(&attributes, created, dir) })
    }

    fn made(&self, made: &Attributes, created: bool, dir: &Changed) -> Made {
        let dir = convert::change(self.volume, dir);
        Made { found: self.found(made), created, dir, token: None }
    }

    fn found(&self, attributes: &Attributes) -> Found {
        let handle = convert::handle(self.volume, attributes.file);
        Found { handle, attr: self.attr(attributes) }
    }

    pub(super) async fn remove_entry(
        &self,
        cred: &Cred,
        dentry: Dentry,
        what: Removal,
    ) -> Result<Change> {
        let (opens, mut closed) = (self.session.opens(), 0);
        let removed = match what {
            Removal::File => {
                // The server need not keep a file that is closed here already.
                closed = opens.closing().hurry(&self.session);
                let args = |sequence| Remove { sequence, dentry: dentry.clone() };
                self.session.change(cred, args).await
            }
            Removal::Directory => {
                let args = |sequence| RmDir { sequence, dentry: dentry.clone() };
                self.session.change(cred, args).await
            }
        };
        let removed = self.note_changes(removed, |done| vec![done.dir, done.file])?;
        if removed.file.after.links == 0 && what == Removal::File {
            opens.without_names(&self.session, removed.file.after.file).await;
            opens.closing().settled(&self.session, closed).await;
        }
        Ok(convert::change(self.volume, &removed.dir))
    }

    pub(super) async fn rename_entry(
        &self,
        cred: &Cred,
        from: Dentry,
        to: Dentry,
    ) -> Result<(Change, Change)> {
        let renamed = self.session.change(cred, |sequence| Rename {
            sequence,
            from: from.clone(),
            to: to.clone(),
            keep: false,
        });
        let renamed = self.note_changes(renamed.await, |done| {
            let Renamed { from_dir, to_dir, moved, replaced } = *done;
            // If both are one directory, the reply describes it twice.
            let other = (to_dir.after.file != from_dir.after.file).then_some(to_dir);
            [from_dir, moved].into_iter().chain(other).chain(replaced).collect()
        });
        let Renamed { from_dir, to_dir, replaced, .. } = renamed?;
        if let Some(Changed { after, .. }) = replaced.filter(|file| file.after.links == 0) {
            self.session.opens().without_names(&self.session, after.file).await;
        }
        let change = |changed| convert::change(self.volume, changed);
        Ok((change(&from_dir), change(&to_dir)))
    }

    pub(super) async fn link_entry(
        &self,
        cred: &Cred,
        file: FileId,
        dentry: Dentry,
    ) -> Result<(Option<larder_vfs::Attr>, Change)> {
        let args = |sequence| Link { sequence, file, dentry: dentry.clone() };
        let done = self.session.change(cred, args).await;
        let NameChanged { file, dir } =
            self.note_changes(done, |done| vec![done.dir, done.file])?;
        Ok((Some(self.attr(&file.after)), convert::change(self.volume, &dir)))
    }

    /// A name in a directory, as it is sent.
    pub(super) fn dentry(&self, dir: &Handle, name: &OsStr) -> Result<Dentry> {
        convert::dentry(self.file(dir)?, name)
    }
}

fn link_target(target: &OsStr) -> Result<calls::Target> {
    if target.len() > TARGET_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    Ok(Opaque::copy_from_slice(target.as_bytes()))
}
