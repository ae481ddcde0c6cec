//! larder's own servers as [`Remote`]: names from the metadata server, bytes from the disks.
//!
//! A call about names is one call of the metadata program. Data never passes through the metadata
//! server: it says where bytes are and grants capabilities, with which this client reads ([`read`])
//! and writes ([`write`]) the disks.
//!
//! Under [leases] of the metadata server, the client asks nothing that the server has already said;
//! the server [recalls] a lease before another client changes its object.
//!
//! Every object has an exact version, so a call's reply shows exactly what it changed, and nothing
//! has to be inferred: a changing call is carried out once, whatever happens to its connection
//! ([`session`]).

mod anew;
mod archived;
mod beside;
mod closing;
mod commit;
mod convert;
mod copying;
mod disks;
mod leases;
mod locking;
mod locks;
mod look;
mod losses;
mod mount;
mod names;
mod opens;
mod plan;
mod read;
mod recalls;
mod retained;
mod retaining;
mod session;
mod space;
mod stored;
mod uncommitted;
mod write;
mod xattrs;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_rpc::{Recovery, RpcClient, Snapshot};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Found, Future, Handle,
    InArchive, Intent, Judged, Listing, LockChange, LockMode, LookedUp, Made, New, Remote,
    RemoteCopied, RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal, ReservedLock,
    Result, Seek, SetAttr, SetXattr, SpaceChange, Stability, StatFs, StoredPart, Time, Token,
    Watcher,
};
use larder_wire::meta::calls;
use larder_wire::meta::words::{self, Attributes, FileId, Mode, OpenId, VolumeId};

use archived::Archived;
use disks::Disks;
pub use losses::{LostFile, LostFiles};
pub use mount::{MountError, MountOptions};
use opens::{Held, Open};
use session::Session;
use uncommitted::UncommittedFiles;

/// Longest wait for the server at the end.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// A mounted volume.
#[derive(Debug)]
pub struct Native {
    session: Arc<Session>,
    disks: Arc<Disks>,
    volume: VolumeId,
    root: FileId,
    limits: RemoteLimits,
    uncommitted: UncommittedFiles,
    archived: Archived,
    /// Whether the metadata server knows no objects without bytes that it may lose.
    lacks_make: AtomicBool,
    /// Whether the metadata server does not take notice of where new blocks should be.
    lacks_near: AtomicBool,
    /// How often written bytes were lost before they were committed, counted from a random number.
    losses: AtomicU64,
    /// The number of the last loss of the volume that is known here.
    loss_known: AtomicU64,
}

impl Native {
    /// Whether the metadata server puts versions of files into an archive.
    pub fn has_archive(&self) -> bool {
        self.session.now().given.has_archive
    }

    /// The transport to the metadata server: its accounts, and whether the server answers.
    pub fn rpc(&self) -> &RpcClient {
        self.session.rpc()
    }

    /// The accounts of all requests to the metadata server and the disks.
    pub fn stats(&self) -> Snapshot {
        self.disks.stats().into_iter().fold(self.rpc().stats(), Snapshot::with)
    }

    /// How many answers of disks were refused: they were forged, altered, or swapped.
    pub fn forged(&self) -> u64 {
        self.disks.forged()
    }

    /// How often the session ended, or the server refused after a restart what was locked here:
    /// another client may have had these locks since, even if it has released them again.
    pub fn lapses(&self) -> u64 {
        self.session.lapses()
    }

    /// How often a lease was returned before all that depended on it was done, since that took too
    /// long: other clients may have looked before it was at the server.
    pub fn late_returns(&self) -> u64 {
        self.session.leases().late()
    }

    fn file(&self, handle: &Handle) -> Result<FileId> {
        convert::file(self.volume, handle)
    }

    fn attr(&self, attributes: &Attributes) -> Attr {
        convert::attr(self.volume, attributes)
    }

    /// Ends the session, so that no other client waits for what this mount held; the mount cannot
    /// be used any more. Waits for an answer for a second. If this machine alone has bytes of
    /// files, the session is left to the next process, as long as it lasts.
    pub async fn leave(&self) {
        if self.reachable() {
            let clock = Arc::clone(&self.rpc().config().clock);
            let session = &self.session;
            let _ = match session.retained().has_any() {
                true => clock.timeout(LEAVE_MAX, session.opens().closing().flush(session)).await,
                false => clock.timeout(LEAVE_MAX, session.end()).await,
            };
        }
    }

    /// Records what a change of ours made of files, or that this is not known.
    fn note_changes<T>(
        &self,
        done: std::result::Result<T, session::Failed>,
        files: impl FnOnce(&T) -> Vec<words::Changed>,
    ) -> std::result::Result<T, session::Failed> {
        match &done {
            Ok(done) => {
                for changed in files(done) {
                    self.session.leases().changed(&changed);
                    if changed.after.links == 0 {
                        self.session.retained().forget(changed.after.file);
                    }
                }
            }
            Err(session::Failed::Call(_)) => self.session.leases().changed_somehow(),
            // Nothing was done.
            Err(session::Failed::Status(_)) => {}
        }
        done
    }
}

impl Remote for Native {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move {
            let attr = self.attributes(&Cred::root(), self.root).await?;
            Ok(Found { handle: convert::handle(self.volume, self.root), attr })
        })
    }

    fn limits(&self) -> RemoteLimits {
        self.limits
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(async move { self.attributes(cred, self.file(file)?).await })
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move {
            let file = self.file(file)?;
            self.commit_pending(file).await?;
            let done = self.session.change(cred, |sequence| calls::SetAttr {
                sequence,
                file,
                open: OpenId::NONE,
                set: convert::set(&set),
                guard: guard.map(convert::sent_time),
            });
            let done = self.note_changes(done.await, |changed| vec![changed.file])?;
            Ok(convert::change(self.volume, &done.file))
        })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        Box::pin(async move {
            let (attributes, granted, lease) = self.look_at(cred, self.file(file)?).await?;
            let granted = convert::access(granted) & wanted;
            Ok(Judged { granted, attr: Some(self.attr(&attributes)), lease: Some(lease) })
        })
    }

    fn exclude<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Option<Attr>> {
        Box::pin(async move { self.exclude_others(cred, self.file(file)?).await })
    }

    fn is_excluding(&self, file: &Handle) -> bool {
        self.file(file).is_ok_and(|file| self.session.leases().excludes(file))
    }

    fn retain<'a>(&'a self, cred: &'a Cred, file: &'a Handle, bytes: u64) -> Future<'a, bool> {
        Box::pin(async move { self.retain_bytes(cred, self.file(file)?, bytes).await })
    }

    fn retains(&self, file: &Handle) -> bool {
        self.file(file).is_ok_and(|file| self.session.retained().has(file))
    }

    fn release<'a>(&'a self, cred: &'a Cred, file: &'a Handle, by_others: bool) -> Future<'a, ()> {
        Box::pin(async move { self.release_bytes(cred, self.file(file)?, by_others).await })
    }

    fn still_excludes(&self, file: &Handle) -> bool {
        let leases = self.session.leases();
        self.file(file).is_ok_and(|file| leases.excludes(file) || leases.is_returning(file))
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        Box::pin(async move { self.xattr_of(cred, self.file(file)?, name).await })
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        Box::pin(async move { self.xattrs_of(cred, self.file(file)?).await })
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.change_xattr(cred, self.file(file)?, set).await })
    }

    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        Box::pin(async move {
            if intent.rights == Access::NONE {
                return Ok(RemoteOpened::unknown());
            }
            let file = self.file(file)?;
            let mode = match (intent.read, intent.write) {
                (true, true) => Mode::ReadWrite,
                (false, true) => Mode::Write,
                _ => Mode::Read,
            };
            // First: if the lease is recalled from now on, the server is told of the open before.
            let held = self.session.opens().begin(&self.session, file, mode);
            let (attributes, granted, lease) = self.look_at(cred, file).await?;
            let is_open = (intent.read || intent.write) && attributes.kind == words::Kind::File;
            if is_open && !lease.holds() {
                held.0.keep(cred).await;
            }
            Ok(RemoteOpened {
                granted: convert::access(granted) & intent.rights,
                attr: Some(self.attr(&attributes)),
                lease: Some(lease),
                token: is_open.then(|| Token::new(held)),
            })
        })
    }

    /// What was written and not committed is committed first: it may be in blocks that are freed
    /// with the open.
    fn close<'a>(&'a self, _cred: &'a Cred, token: Token) -> Future<'a, ()> {
        Box::pin(async move {
            let Some(held) = token.get::<Held>() else { return Ok(()) };
            let committed = self.commit_pending(held.0.file()).await;
            held.0.close_and_wait().await;
            committed
        })
    }

    fn lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(async move {
            let file = self.file(file)?;
            let committed = self.commit_pending(file).await;
            if changes.iter().any(|change| change.mode.is_some()) {
                committed?;
            }
            let attributes = locking::change(&self.session, cred, file, changes).await?;
            Ok(self.attr(&attributes))
        })
    }

    fn await_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Option<ReservedLock>> {
        Box::pin(async move {
            let kept = locking::wait(&self.session, cred, self.file(file)?, changes).await?;
            Ok(Some(kept))
        })
    }

    fn test_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        Box::pin(
            async move { locking::test(&self.session, cred, self.file(file)?, &range, mode).await },
        )
    }

    fn gives_leases(&self) -> bool {
        true
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.session.leases().watch(watcher);
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move { self.look_up(cred, self.dentry(dir, name)?).await })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let file = self.file(file)?;
            let read = self.session.ask(cred, |session| calls::ReadLink { session, file }).await?;
            Ok((OsString::from_vec(read.target.to_vec()), Some(self.attr(&read.attributes))))
        })
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(
            async move { self.read_all(cred, (self.file(file)?, held(open)), offset, len).await },
        )
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            let of = (self.file(file)?, held(open));
            self.write_all(cred, of, offset, data, stability).await
        })
    }

    /// Commits everything of the file that is uncommitted: the range only says that something is.
    fn commit<'a>(
        &'a self,
        _cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        _range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move { self.commit_written(self.file(file)?).await })
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        Box::pin(
            async move { self.change_space_of(cred, (self.file(file)?, held(open)), change).await },
        )
    }

    fn tells_holes(&self) -> bool {
        true
    }

    fn copies(&self) -> bool {
        true
    }

    fn copy_range<'a>(
        &'a self,
        cred: &'a Cred,
        from: CopyEnd<'a>,
        to: CopyEnd<'a>,
        len: u64,
    ) -> Future<'a, RemoteCopied> {
        Box::pin(async move { self.copy_within(cred, (from, to), len).await })
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        Box::pin(
            async move { self.seek_in(cred, (self.file(file)?, held(open)), offset, what).await },
        )
    }

    fn is_lost<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
    ) -> Future<'a, bool> {
        Box::pin(async move { self.has_lost(cred, (self.file(file)?, held(open))).await })
    }

    fn leave_memory<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(async move { self.destage(cred, self.file(file)?, within).await })
    }

    fn archive_within<'a>(
        &'a self,
        _cred: &'a Cred,
        file: &'a Handle,
        within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(async move {
            self.archived.set(self.file(file)?, within);
            Ok(())
        })
    }

    fn in_archive<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        within: Option<Duration>,
    ) -> Future<'a, Option<InArchive>> {
        Box::pin(async move { self.archive_told(cred, self.file(file)?, within).await })
    }

    fn stored<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<StoredPart>> {
        Box::pin(async move { self.stored_parts(cred, self.file(file)?).await })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move { self.make_object(cred, self.dentry(dir, name)?, new, set).await })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.remove_entry(cred, self.dentry(dir, name)?, what).await })
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let from = self.dentry(from.0, from.1)?;
            self.rename_entry(cred, from, self.dentry(to.0, to.1)?).await
        })
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        Box::pin(
            async move { self.link_entry(cred, self.file(file)?, self.dentry(dir, name)?).await },
        )
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move {
            let dir = self.file(dir)?;
            let listed = self.session.ask(cred, |session| calls::ReadDir {
                session,
                dir,
                cookie: cookie.position,
                bytes_max,
                attributes: true,
            });
            Ok(convert::listing(self.volume, &listed.await?))
        })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, _file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            let space = self.session.ask(cred, |session| calls::FsStat { session }).await?;
            Ok(convert::statfs(&space))
        })
    }

    fn call_limit(&self) -> Option<Duration> {
        let config = self.rpc().config();
        (config.recovery == Recovery::Soft).then(|| config.limit())
    }

    fn reachable(&self) -> bool {
        self.rpc().reachable()
    }

    fn shutdown(&self) {
        self.rpc().shutdown();
        self.disks.shutdown();
    }
}

/// The open that a token stands for.
fn held(token: Option<&Token>) -> Option<&Open> {
    Some(&*token?.get::<Held>()?.0)
}
