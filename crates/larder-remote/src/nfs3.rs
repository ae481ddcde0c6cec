//! NFS version 3 as [`Remote`] (RFC 1813).
//!
//! Each method is one procedure where the protocol allows; the cases where it is not are named here:
//! - READ and WRITE beyond the negotiated size, or answered short, are continued.
//! - NFS3ERR_JUKEBOX is asked again with pauses, up to [`JUKEBOX_MAX`].
//! - An exclusive CREATE is followed by SETATTR, since the verifier lies where attributes belong
//!   (RFC 1813, 3.3.8).
//! - A reply without attributes that the caller needs is completed by GETATTR.
//! - READDIRPLUS falls back to READDIR for good where the server lacks it.
//! - A call that changes names and was sent more than once may report the trace of its own first
//!   try ("exists", "not found") if the server has no duplicate request cache or lost it in a
//!   reboot: [`replay`] weighs that.
//!
//! nfsstat3 ends in [`convert`]; above are the words of `larder-vfs` only.

mod convert;
mod mount;
mod replay;

pub use mount::{MountError, MountOptions};

use crate::rpc::{CallOptions, Reply, RpcClient, TimerClass};
use bytes::{Bytes, BytesMut};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, Cred, Error, Found, Future, Handle, Kind,
    Listing, LookedUp, Made, New, Remote, RemoteLimits, RemoteRead, RemoteWritten, Removal, Result,
    SetAttr, SetTime, Stability, StatFs, Time, Verifier,
};
use larder_wire::Procedure;
use larder_wire::nfs3::{
    ACCESS3args, COMMIT3args, CREATE3args, FSSTAT3args, GETATTR3args, LINK3args, LOOKUP3args,
    MKDIR3args, MKNOD3args, READ3args, READDIR3args, READDIRPLUS3args, READLINK3args, REMOVE3args,
    RENAME3args, RMDIR3args, Res3, SETATTR3args, SYMLINK3args, WRITE3args, createhow3, devicedata3,
    diropargs3, entryplus3, mknoddata3, nfs_fh3, nfsstat3, symlinkdata3,
};
use mount::MountPoint;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long NFS3ERR_JUKEBOX is taken for "later": robots that fetch tapes are slow, but somebody
/// waits.
pub const JUKEBOX_MAX: Duration = Duration::from_secs(60);
/// First and longest pause before asking again after NFS3ERR_JUKEBOX.
const JUKEBOX_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often data is sent again because the server rebooted between the pieces of one write.
const REWRITES_MAX: u32 = 4;
/// Smallest directory reply that is asked for, in bytes: holds an entry with the longest name.
const READDIR_BYTES_MIN: u32 = 4096;

/// A mounted export of an NFSv3 server.
#[derive(Debug)]
pub struct Nfs3 {
    client: RpcClient,
    mount_point: MountPoint,
    root: nfs_fh3,
    limits: RemoteLimits,
    fail_fast: bool,
    /// The server has no READDIRPLUS.
    no_plus: AtomicBool,
    /// For verifiers of exclusive creates.
    creations: AtomicU64,
}

impl Nfs3 {
    /// Mounts an export, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`MountError`], each with what to do about it. Takes no longer than the waits of the port
    /// mapper, MOUNT and three calls.
    pub async fn mount(options: &MountOptions) -> Result<Nfs3, MountError> {
        mount::mount(options).await
    }

    /// The transport below: its accounts, and whether the server answers.
    pub fn rpc(&self) -> &RpcClient {
        &self.client
    }

    /// Tells the server that the export is no longer used. Nothing depends on it; gives up early.
    pub async fn unmount(&self) {
        self.mount_point.leave().await;
    }

    /// Calls a procedure. NFS3ERR_JUKEBOX is waited out.
    async fn call<P, T, E>(
        &self,
        cred: &Cred,
        args: &P,
        class: TimerClass,
    ) -> Result<Reply<Res3<T, E>>>
    where
        P: Procedure<Res = Res3<T, E>>,
    {
        let credential = self.client.credential(cred);
        let options = CallOptions { class, fail_fast: self.fail_fast };
        let mut waited = Duration::ZERO;
        let mut pause = JUKEBOX_PAUSES.0;
        loop {
            let reply = self.client.call(&credential, args, options).await;
            let reply = reply.map_err(|cause| {
                let server = &self.client.config().server;
                tracing::debug!(%server, procedure = P::NUMBER, %cause, "call failed");
                convert::rpc_error(cause)
            })?;
            match &reply.results {
                Err(fail) if fail.status == nfsstat3::NFS3ERR_JUKEBOX => {
                    if waited + pause > JUKEBOX_MAX {
                        return Err(Error::TryAgain);
                    }
                }
                _ => return Ok(reply),
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(JUKEBOX_PAUSES.1);
        }
    }

    /// Calls a procedure and takes its answer, whatever else a failure tells.
    async fn answer<P, T, E>(&self, cred: &Cred, args: &P, class: TimerClass) -> Result<T>
    where
        P: Procedure<Res = Res3<T, E>>,
    {
        let reply = self.call(cred, args, class).await?;
        reply.results.map_err(|fail| convert::error(fail.status))
    }

    async fn attributes(&self, cred: &Cred, object: nfs_fh3) -> Result<Attr> {
        let args = GETATTR3args { object };
        let answer = self.answer(cred, &args, TimerClass::Attributes).await?;
        Ok(convert::attr(&answer.obj_attributes))
    }

    /// Attributes that a reply should have carried.
    async fn complete(&self, cred: &Cred, object: nfs_fh3, attr: Option<Attr>) -> Result<Attr> {
        match attr {
            Some(attr) => Ok(attr),
            None => self.attributes(cred, object).await,
        }
    }

    async fn look_up(&self, cred: &Cred, what: diropargs3) -> Result<LookedUp> {
        let reply = self.call(cred, &LOOKUP3args { what }, TimerClass::Lookup).await?;
        match reply.results {
            Ok(answer) => {
                let attr = convert::post_op(answer.obj_attributes);
                let attr = self.complete(cred, answer.object, attr).await?;
                let found = Some(Found { handle: convert::handle(&answer.object), attr });
                Ok(LookedUp { found, dir: convert::post_op(answer.dir_attributes) })
            }
            Err(fail) if fail.status == nfsstat3::NFS3ERR_NOENT => {
                Ok(LookedUp { found: None, dir: convert::post_op(fail.detail) })
            }
            Err(fail) => Err(convert::error(fail.status)),
        }
    }
}

/// Data.
impl Nfs3 {
    async fn read_all(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        let first = self.read_once(cred, file, offset, len).await?;
        if first.eof || first.data.len() == len as usize {
            return Ok(first);
        }
        let mut whole = BytesMut::with_capacity(len as usize);
        let mut last = first;
        loop {
            whole.extend_from_slice(&last.data);
            let got = u32::try_from(whole.len()).unwrap_or(len);
            if last.eof || got >= len {
                return Ok(RemoteRead { data: whole.freeze(), ..last });
            }
            last = self.read_once(cred, file, offset + u64::from(got), len - got).await?;
        }
    }

    /// Reads what one request gives.
    async fn read_once(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        let count = len.min(self.limits.read_max);
        let answer =
            self.answer(cred, &READ3args { file, offset, count }, TimerClass::Read).await?;
        // A server that gives nothing before the end would be asked for ever.
        let stuck = count > 0 && answer.data.is_empty() && !answer.eof;
        if stuck || answer.data.len() > count as usize {
            tracing::warn!(server = %self.client.config().server, ?file, offset, "senseless READ");
            return Err(Error::Io);
        }
        let attr = convert::post_op(answer.file_attributes);
        Ok(RemoteRead { data: answer.data.0, eof: answer.eof, attr })
    }

    async fn write_all(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<RemoteWritten> {
        for _ in 0..REWRITES_MAX {
            if let Some(written) = self.write_pass(cred, file, offset, &data, stability).await? {
                return Ok(written);
            }
        }
        Err(Error::Io)
    }

    /// Writes once from start to end. Answers nothing if the server may have lost a part meanwhile.
    async fn write_pass(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<Option<RemoteWritten>> {
        let mut written = self.write_once(cred, file, offset, data, stability).await?;
        let mut done = written.1;
        while done < data.len() {
            let (at, rest) = (offset + done as u64, data.slice(done..));
            let (next, count) = self.write_once(cred, file, at, &rest, stability).await?;
            done += count;
            let same_boot = next.verifier == written.0.verifier;
            let durable = written.0.stability == Stability::FileSync;
            if !same_boot && !durable {
                return Ok(None);
            }
            let change = Change { before: written.0.change.before, after: next.change.after };
            let stability = convert::weaker(written.0.stability, next.stability);
            written.0 = RemoteWritten { stability, verifier: next.verifier, change };
        }
        let mut written = written.0;
        if convert::weaker(written.stability, stability) != stability {
            // The server promised less than was asked, which it must not (RFC 1813, 3.3.7).
            let range = offset..offset + data.len() as u64;
            let committed = self.commit_range(cred, file, range).await?;
            if committed.verifier != written.verifier {
                return Ok(None);
            }
            written.stability = Stability::FileSync;
            written.change.after = committed.change.after;
        }
        Ok(Some(written))
    }

    /// Writes what one request takes, and says how much that was.
    async fn write_once(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<(RemoteWritten, usize)> {
        let wanted = data.len().min(self.limits.write_max as usize);
        let args = WRITE3args {
            file,
            offset,
            count: u32::try_from(wanted).expect("bounded by write_max"),
            stable: convert::stable_how(stability),
            data: data.slice(..wanted).into(),
        };
        let answer = self.answer(cred, &args, TimerClass::Write).await?;
        let count = answer.count as usize;
        if count > wanted || (count == 0 && wanted > 0) {
            tracing::warn!(server = %self.client.config().server, ?file, offset, "senseless WRITE");
            return Err(Error::Io);
        }
        let written = RemoteWritten {
            stability: convert::stability(answer.committed),
            verifier: Verifier(u64::from_be_bytes(answer.verf)),
            change: convert::change(&answer.file_wcc),
        };
        Ok((written, count))
    }

    async fn commit_range(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        range: Range<u64>,
    ) -> Result<Committed> {
        let (offset, count) = match u32::try_from(range.end.saturating_sub(range.start)) {
            Ok(0) => (0, 0),
            Ok(count) => (range.start, count),
            // 0 means up to the end.
            Err(_) => (range.start, 0),
        };
        let args = COMMIT3args { file, offset, count };
        let answer = self.answer(cred, &args, TimerClass::Commit).await?;
        Ok(Committed {
            verifier: Verifier(u64::from_be_bytes(answer.verf)),
            change: convert::change(&answer.file_wcc),
        })
    }
}

/// Names.
impl Nfs3 {
    async fn make_object(
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
                let mine = Some(replay::Mine::Fresh(Kind::File));
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

    /// Makes an object. `mine` tells how to recognise it if a replay finds it there.
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
        let reply = self.call(cred, args, TimerClass::Fixed).await?;
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
            // The server need not tell the handle.
            let found = self.look_up(cred, place).await?.found.ok_or(Error::Stale)?;
            return Ok(Made { found, dir });
        };
        let attr = self.complete(cred, object, convert::post_op(answer.obj_attributes)).await?;
        Ok(Made { found: Found { handle: convert::handle(&object), attr }, dir })
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
        // The verifier was kept in the times, so these are set in any case.
        set.atime = set.atime.or(Some(SetTime::ServerNow));
        set.mtime = set.mtime.or(Some(SetTime::ServerNow));
        let object = convert::file(&made.found.handle)?;
        let changed = self.set_attributes(cred, object, &set, None).await?;
        made.found.attr = self.complete(cred, object, changed.after).await?;
        Ok(made)
    }

    async fn set_attributes(
        &self,
        cred: &Cred,
        object: nfs_fh3,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> Result<Changed> {
        let guard = guard.map(convert::nfstime).transpose()?;
        let args = SETATTR3args { object, new_attributes: convert::sattr(set)?, guard };
        let answer = self.answer(cred, &args, TimerClass::Fixed).await?;
        Ok(convert::change(&answer.obj_wcc))
    }

    async fn remove_entry(&self, cred: &Cred, object: diropargs3, what: Removal) -> Result<Change> {
        let reply = match what {
            Removal::File => self.call(cred, &REMOVE3args { object }, TimerClass::Fixed).await?,
            Removal::Directory => {
                self.call(cred, &RMDIR3args { object }, TimerClass::Fixed).await?
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

    async fn rename_entry(
        &self,
        cred: &Cred,
        from: diropargs3,
        to: diropargs3,
    ) -> Result<(Change, Change)> {
        let args = RENAME3args { from: from.clone(), to: to.clone() };
        let reply = self.call(cred, &args, TimerClass::Fixed).await?;
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

    async fn link_entry(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        link: diropargs3,
    ) -> Result<(Option<Attr>, Change)> {
        let args = LINK3args { file, link: link.clone() };
        let reply = self.call(cred, &args, TimerClass::Fixed).await?;
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

    /// Lists until there is an entry to show or the end.
    async fn list(
        &self,
        cred: &Cred,
        dir: nfs_fh3,
        mut cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let mut count =
            bytes_max.clamp(READDIR_BYTES_MIN, self.limits.read_max.max(READDIR_BYTES_MIN));
        loop {
            let page = match self.list_page(cred, dir, cookie, count).await {
                Err(nfsstat3::NFS3ERR_TOOSMALL) if count < self.limits.read_max => {
                    count = (count * 2).min(self.limits.read_max);
                    continue;
                }
                Err(status) => return Err(convert::error(status)),
                Ok(page) => page?,
            };
            if page.entries.is_empty() && !page.eof {
                // Nothing comes of asking again for what a server gave nothing of.
                return Err(Error::Io);
            }
            let last = page.entries.last().map_or(cookie.position, |entry| entry.cookie);
            let listing = convert::listing(page);
            if listing.eof || !listing.entries.is_empty() {
                return Ok(listing);
            }
            // Only `.` and `..` so far.
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
            match self.call(cred, &args, TimerClass::Read).await.map(|reply| reply.results) {
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
        match self.call(cred, &args, TimerClass::Read).await.map(|reply| reply.results) {
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

/// A reply to either kind of listing.
#[derive(Debug)]
struct Page {
    dir: Option<Attr>,
    verifier: u64,
    entries: Vec<entryplus3>,
    eof: bool,
}

impl Remote for Nfs3 {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move {
            let attr = self.attributes(&Cred::root(), self.root).await?;
            Ok(Found { handle: convert::handle(&self.root), attr })
        })
    }

    fn limits(&self) -> RemoteLimits {
        self.limits
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(async move { self.attributes(cred, convert::file(file)?).await })
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move { self.set_attributes(cred, convert::file(file)?, &set, guard).await })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, (Access, Option<Attr>)> {
        Box::pin(async move {
            let args = ACCESS3args { object: convert::file(file)?, access: wanted.0.into() };
            let answer = self.answer(cred, &args, TimerClass::Attributes).await?;
            Ok((convert::access(answer.access) & wanted, convert::post_op(answer.obj_attributes)))
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move { self.look_up(cred, convert::entry(dir, name)?).await })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let args = READLINK3args { symlink: convert::file(file)? };
            let answer = self.answer(cred, &args, TimerClass::Read).await?;
            let target = OsString::from_vec(answer.data.to_vec());
            Ok((target, convert::post_op(answer.symlink_attributes)))
        })
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(async move { self.read_all(cred, convert::file(file)?, offset, len).await })
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            self.write_all(cred, convert::file(file)?, offset, data, stability).await
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move { self.commit_range(cred, convert::file(file)?, range).await })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move { self.make_object(cred, convert::entry(dir, name)?, new, set).await })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.remove_entry(cred, convert::entry(dir, name)?, what).await })
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let from = convert::entry(from.0, from.1)?;
            self.rename_entry(cred, from, convert::entry(to.0, to.1)?).await
        })
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        Box::pin(async move {
            self.link_entry(cred, convert::file(file)?, convert::entry(dir, name)?).await
        })
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move { self.list(cred, convert::file(dir)?, cookie, bytes_max).await })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            let args = FSSTAT3args { fsroot: convert::file(file)? };
            let answer = self.answer(cred, &args, TimerClass::Attributes).await?;
            Ok(convert::statfs(&answer, self.limits.name_max))
        })
    }

    fn reachable(&self) -> bool {
        self.client.reachable()
    }

    fn shutdown(&self) {
        self.client.shutdown();
    }
}
