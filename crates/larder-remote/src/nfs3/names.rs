//! Names: makes, moves, removes and lists them.

use super::convert::Page;
use super::timer;
use super::{Nfs3, convert, replay};
use larder_rpc::TimerClass;
use larder_vfs::{
    Attr, Change, Changed, Cookie, Cred, Error, Found, Kind, Listing, Made, New, Removal, Result,
    SetAttr, SetTime, Time,
};
use larder_wire::Procedure;
use larder_wire::nfs3::{
    CREATE3args, LINK3args, MKDIR3args, MKNOD3args, READDIR3args, READDIRPLUS3args, REMOVE3args,
    RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, createhow3, devicedata3, diropargs3,
    mknoddata3, nfs_fh3, nfsstat3, symlinkdata3,
};
use std::sync::atomic::Ordering::Relaxed;

/// Smallest directory reply that is requested, in bytes: it has room for an entry with the longest
/// name.
const READDIR_BYTES_MIN: u32 = 4096;
/// Most replies with nothing but `.` and `..` in them.
const DOTS_PAGES_MAX: u32 = 2;

impl Nfs3 {
    pub(super) async fn make_object(
        &self,
        cred: &Cred,
        place: diropargs3,
        new: New,
        set: SetAttr,
    ) -> Result<Made> {
        let attributes = convert::sattr(&set)?;
        let r#where = place.clone();
        match new {
            New::File => {
                let how = createhow3::UNCHECKED(attributes);
                self.create(cred, place, &CREATE3args { r#where, how }, None).await
            }
            New::FileExclusive => self.create_exclusive(cred, place, set).await,
            New::Directory => {
                let mine = Some(replay::Mine::Fresh(Kind::Directory));
                self.create(cred, place, &MKDIR3args { r#where, attributes }, mine).await
            }
            New::Symlink(target) => {
                let symlink = symlinkdata3 {
                    symlink_attributes: attributes,
                    symlink_data: convert::path(&target)?,
                };
                let mine = Some(replay::Mine::Symlink(target));
                self.create(cred, place, &SYMLINK3args { r#where, symlink }, mine).await
            }
            New::Node(Kind::File, _) => {
                let how = createhow3::GUARDED(attributes);
                let mine = Some(replay::Mine::AskedAgain);
                self.create(cred, place, &CREATE3args { r#where, how }, mine).await
            }
            New::Node(kind, device) => {
                let device =
                    devicedata3 { dev_attributes: attributes, spec: convert::specdata(device) };
                let what = match kind {
                    Kind::BlockDevice => mknoddata3::NF3BLK(device),
                    Kind::CharDevice => mknoddata3::NF3CHR(device),
                    Kind::Socket => mknoddata3::NF3SOCK(attributes),
                    Kind::Fifo => mknoddata3::NF3FIFO(attributes),
                    Kind::File | Kind::Directory | Kind::Symlink => {
                        return Err(Error::InvalidArgument);
                    }
                };
                let mine = Some(replay::Mine::Fresh(kind));
                self.create(cred, place, &MKNOD3args { r#where, what }, mine).await
            }
        }
    }

    /// Makes an object. `mine` says how to recognise it if a repeated call finds it there.
    async fn create<P>(
        &self,
        cred: &Cred,
        place: diropargs3,
        args: &P,
        mine: Option<replay::Mine>,
    ) -> Result<Made>
    where
        P: Procedure<Res = larder_wire::nfs3::CREATE3res>,
    {
        let reply = self.call(cred, args, TimerClass::FIXED).await?;
        let answer = match (reply.results, mine) {
            (Ok(answer), _) => answer,
            (Err(fail), Some(mine))
                if fail.status == nfsstat3::NFS3ERR_EXIST && reply.transmissions > 1 =>
            {
                return self.made_before(cred, place, mine, convert::change(&fail.detail)).await;
            }
            (Err(fail), _) => return Err(convert::error(fail.status)),
        };
        let dir = convert::change(&answer.dir_wcc);
        let Some(object) = answer.obj else {
            // The server need not return the handle.
            let found = self.look_up(cred, place).await?.found.ok_or(Error::Stale)?;
            return Ok(Made { found, dir, created: false, token: None });
        };
        let attr = self.complete(cred, object, convert::post_op(answer.obj_attributes)).await?;
        let found = Found { handle: convert::handle(&object), attr };
        Ok(Made { found, dir, created: false, token: None })
    }

    /// Creates a file that must not exist. The verifier makes that safe to repeat.
    async fn create_exclusive(
        &self,
        cred: &Cred,
        place: diropargs3,
        mut set: SetAttr,
    ) -> Result<Made> {
        let verifier = self.creations.fetch_add(1, Relaxed).to_be_bytes();
        let how = createhow3::EXCLUSIVE(verifier);
        let args = CREATE3args { r#where: place.clone(), how };
        let mut made = match self.create(cred, place.clone(), &args, None).await {
            Err(Error::NotSupported) => {
                let how = createhow3::GUARDED(convert::sattr(&set)?);
                let args = CREATE3args { r#where: place.clone(), how };
                let mine = Some(replay::Mine::Fresh(Kind::File));
                return self.create(cred, place, &args, mine).await;
            }
            made => made?,
        };
        // The times were used to store the verifier, so these are set in any case.
        set.atime = set.atime.or(Some(SetTime::ServerNow));
        set.mtime = set.mtime.or(Some(SetTime::ServerNow));
        let object = convert::file(&made.found.handle)?;
        let changed = self.set_attributes(cred, object, &set, None).await?;
        made.found.attr = self.complete(cred, object, changed.after).await?;
        Ok(made)
    }

    pub(super) async fn set_attributes(
        &self,
        cred: &Cred,
        object: nfs_fh3,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> Result<Changed> {
        let guard = guard.map(convert::nfstime).transpose()?;
        let args = SETATTR3args { object, new_attributes: convert::sattr(set)?, guard };
        let answer = self.answer(cred, &args, TimerClass::FIXED).await?;
        Ok(convert::change(&answer.obj_wcc))
    }

    pub(super) async fn remove_entry(
        &self,
        cred: &Cred,
        object: diropargs3,
        what: Removal,
    ) -> Result<Change> {
        let reply = match what {
            Removal::File => self.call(cred, &REMOVE3args { object }, TimerClass::FIXED).await?,
            Removal::Directory => {
                self.call(cred, &RMDIR3args { object }, TimerClass::FIXED).await?
            }
        };
        match reply.results {
            Ok(answer) => Ok(convert::change(&answer.dir_wcc)),
            Err(fail) if replay::may_be_done(fail.status, reply.transmissions) => {
                Ok(convert::change(&fail.detail))
            }
            Err(fail) => Err(convert::error(fail.status)),
        }
    }

    pub(super) async fn rename_entry(
        &self,
        cred: &Cred,
        from: diropargs3,
        to: diropargs3,
    ) -> Result<(Change, Change)> {
        let args = RENAME3args { from: from.clone(), to: to.clone() };
        let reply = self.call(cred, &args, TimerClass::FIXED).await?;
        let wcc = match reply.results {
            Ok(wcc) => wcc,
            Err(fail)
                if replay::may_be_done(fail.status, reply.transmissions)
                    && self.renamed_before(cred, from, to).await? =>
            {
                fail.detail
            }
            Err(fail) => return Err(convert::error(fail.status)),
        };
        Ok((convert::change(&wcc.fromdir_wcc), convert::change(&wcc.todir_wcc)))
    }

    pub(super) async fn link_entry(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        link: diropargs3,
    ) -> Result<(Option<Attr>, Change)> {
        let args = LINK3args { file, link: link.clone() };
        let reply = self.call(cred, &args, TimerClass::FIXED).await?;
        let wcc = match reply.results {
            Ok(wcc) => wcc,
            Err(fail)
                if fail.status == nfsstat3::NFS3ERR_EXIST
                    && reply.transmissions > 1
                    && self.linked_before(cred, file, link).await? =>
            {
                fail.detail
            }
            Err(fail) => return Err(convert::error(fail.status)),
        };
        Ok((convert::post_op(wcc.file_attributes), convert::change(&wcc.linkdir_wcc)))
    }

    /// Lists until there is an entry to return or the end.
    ///
    /// # Errors
    /// [`Error::Io`] also for a reply without progress: without an entry, or with a cookie that was
    /// there before. Continuing with it would never end.
    pub(super) async fn list(
        &self,
        cred: &Cred,
        dir: nfs_fh3,
        mut cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let mut count =
            bytes_max.clamp(READDIR_BYTES_MIN, self.limits.read_max.max(READDIR_BYTES_MIN));
        let mut pages_of_dots = 0;
        loop {
            let page = match self.list_page(cred, dir, cookie, count).await {
                Err(nfsstat3::NFS3ERR_TOOSMALL) if count < self.limits.read_max => {
                    count = (count * 2).min(self.limits.read_max);
                    continue;
                }
                Err(status) => return Err(convert::error(status)),
                Ok(page) => page?,
            };
            if !page.leads_on(cookie.position) {
                tracing::warn!(server = %self.client.config().server, ?dir, cookie = cookie.position,
                    "a listing leads nowhere");
                return Err(Error::Io);
            }
            let last = page.entries.last().map_or(cookie.position, |entry| entry.cookie);
            let listing = convert::listing(page);
            if listing.eof || !listing.entries.is_empty() {
                return Ok(listing);
            }
            // Only `.` and `..` so far, each in a reply of its own at worst.
            pages_of_dots += 1;
            if pages_of_dots > DOTS_PAGES_MAX {
                return Err(Error::Io);
            }
            cookie = Cookie { position: last, verifier: listing.verifier };
        }
    }

    /// One reply of READDIRPLUS, or of READDIR where there is no such thing.
    async fn list_page(
        &self,
        cred: &Cred,
        dir: nfs_fh3,
        cookie: Cookie,
        count: u32,
    ) -> Result<Result<Page>, nfsstat3> {
        let (position, verifier) = (cookie.position, cookie.verifier.to_be_bytes());
        if !self.no_plus.load(Relaxed) {
            let args = READDIRPLUS3args {
                dir,
                cookie: position,
                cookieverf: verifier,
                dircount: count,
                maxcount: count,
            };
            match self.call(cred, &args, timer::READ).await.map(|reply| reply.results) {
                Err(error) => return Ok(Err(error)),
                Ok(Ok(answer)) => {
                    return Ok(Ok(Page {
                        dir: convert::post_op(answer.dir_attributes),
                        verifier: u64::from_be_bytes(answer.cookieverf),
                        entries: answer.reply.entries.0,
                        eof: answer.reply.eof,
                    }));
                }
                Ok(Err(fail)) if fail.status != nfsstat3::NFS3ERR_NOTSUPP => {
                    return Err(fail.status);
                }
                Ok(Err(_)) => self.no_plus.store(true, Relaxed),
            }
        }
        let args = READDIR3args { dir, cookie: position, cookieverf: verifier, count };
        match self.call(cred, &args, timer::READ).await.map(|reply| reply.results) {
            Err(error) => Ok(Err(error)),
            Ok(Err(fail)) => Err(fail.status),
            Ok(Ok(answer)) => Ok(Ok(Page {
                dir: convert::post_op(answer.dir_attributes),
                verifier: u64::from_be_bytes(answer.cookieverf),
                entries: answer.reply.entries.0.into_iter().map(convert::bare_entry).collect(),
                eof: answer.reply.eof,
            })),
        }
    }
}
