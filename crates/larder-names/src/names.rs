//! [`Names`]: a server together with names that were made here, as one [`Remote`].

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_cache::Cache;
use larder_io::{Clock, Rate};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Deferring, Error, Found,
    Future, Handle, InArchive, Intent, Judged, Listing, LockChange, LockMode, LookedUp, Made, New,
    Remote, RemoteCopied, RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal,
    ReservedLock, Seek, SetAttr, SetXattr, SpaceChange, Stability, StatFs, StoredPart, Time, Token,
    Watcher,
};

use crate::doubt::Sizes;
use crate::due_times::WAITING_MAX;
use crate::licence::Licence;
use crate::object::Body;
use crate::shared::{Shared, Target};

/// See the crate.
pub struct Names {
    pub(crate) shared: Arc<Shared>,
    /// Changes of names are answered here where possible, as long as the licence permits.
    may_defer: bool,
    /// The same names, for callers that want changes to be answered here.
    deferring: Option<Box<Names>>,
}

impl Names {
    /// The names of `remote`, with the journal in `cache`. With a `licence`, more may be made here;
    /// otherwise the objects in the journal are made at the server, and keep their identities.
    /// Until [`Deferring::begin`], objects are made at the server only on request. `host` is this
    /// machine's name in names of conflicts. Reads the whole journal.
    pub fn new(
        remote: Arc<dyn Remote>,
        cache: Cache,
        clock: Arc<dyn Clock>,
        host: &str,
        licence: Licence,
    ) -> Names {
        Names::with_room(remote, cache, clock, host, licence, WAITING_MAX)
    }

    /// The same, and at most so many changes wait.
    pub(crate) fn with_room(
        remote: Arc<dyn Remote>,
        cache: Cache,
        clock: Arc<dyn Clock>,
        host: &str,
        licence: Licence,
        waiting_max: usize,
    ) -> Names {
        let host = host.to_owned();
        let shared = Arc::new(Shared::open(remote, cache, clock, host, licence, waiting_max));
        // Nobody has set it before.
        let _ = shared.this.set(Arc::downgrade(&shared));
        let deferring = Names { shared: shared.clone(), may_defer: true, deferring: None };
        Names { shared, may_defer: false, deferring: Some(Box::new(deferring)) }
    }

    /// The same names, of which `rate` limits what is made at the server without a caller that
    /// waits for it: each change counts as a request without data. To be called before the first
    /// call.
    #[must_use]
    pub fn limited_by(self, rate: Arc<Rate>) -> Names {
        // Nobody has set it before.
        let _ = self.shared.rate.set(rate);
        self
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn defers(&self) -> bool {
        self.may_defer && self.shared.licence.holds(self.remote())
    }

    /// Whether a cache has a journal with something in it.
    pub fn are_in(cache: &Cache) -> bool {
        cache.names().iter().any(|(no, _)| *no != 0)
    }

    pub(crate) fn remote(&self) -> &dyn Remote {
        &*self.shared.remote
    }
}

impl Remote for Names {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move { Ok(self.shared.show_found(self.remote().root().await?)) })
    }

    fn limits(&self) -> RemoteLimits {
        self.remote().limits()
    }

    fn deferring(&self) -> Option<&dyn Deferring> {
        self.deferring.as_deref().map(|names| names as &dyn Deferring)
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(self.shared.describe(cred, file))
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move {
            if let Target::Waiting(no) = self.shared.target(file)?
                && self.defers()
                && guard.is_none()
                && set.size.unwrap_or(0) == 0
                && let Some(answer) = self.shared.set_here(cred, no, &set, None)
            {
                return answer;
            }
            let server = self.shared.at_server(cred, file).await?;
            // The time that applications know may be another one than the server's.
            let guard = match guard {
                Some(time) => {
                    let attr = self.remote().getattr(cred, &server).await?;
                    let is_same = self.shared.show(file, attr).ctime == time;
                    Some(if is_same { attr.ctime } else { time })
                }
                None => None,
            };
            let sizes = Sizes::set(set.size);
            let asking = async {
                let change = self.remote().setattr(cred, &server, set, guard).await?;
                Ok(self.shared.show_change(file, change))
            };
            self.shared.on_record(cred, &server, sizes, asking).await
        })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Waiting(no) => self.shared.judge(cred, no, wanted),
                Target::Server(server) => {
                    self.shared.know_version(&server, cred.deadline).await?;
                    let judged = self.remote().access(cred, &server, wanted).await?;
                    let attr = judged.attr.map(|attr| self.shared.show(file, attr));
                    Ok(Judged { attr, ..judged })
                }
            }
        })
    }

    fn gives_leases(&self) -> bool {
        self.remote().gives_leases()
    }

    // What only this machine has, nobody else reads or writes. A caller that is to send bytes asks
    // the server itself, which then has the file.
    fn exclude<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Option<Attr>> {
        Box::pin(async move {
            if let Target::Waiting(no) = self.shared.target(file)?
                && self.defers()
            {
                return Ok(self.shared.state().attr(no));
            }
            let server = self.shared.at_server(cred, file).await?;
            let attr = self.remote().exclude(cred, &server).await?;
            Ok(attr.map(|attr| self.shared.show(file, attr)))
        })
    }

    fn is_excluding(&self, file: &Handle) -> bool {
        match self.shared.target(file) {
            Ok(Target::Waiting(_)) => true,
            Ok(Target::Server(server)) => self.remote().is_excluding(&server),
            Err(_) => false,
        }
    }

    fn still_excludes(&self, file: &Handle) -> bool {
        match self.shared.target(file) {
            Ok(Target::Waiting(_)) => true,
            Ok(Target::Server(server)) => self.remote().still_excludes(&server),
            Err(_) => false,
        }
    }

    fn retain<'a>(&'a self, cred: &'a Cred, file: &'a Handle, bytes: u64) -> Future<'a, bool> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().retain(cred, &server, bytes).await
        })
    }

    fn retains(&self, file: &Handle) -> bool {
        match self.shared.target(file) {
            Ok(Target::Server(server)) => self.remote().retains(&server),
            Ok(Target::Waiting(_)) | Err(_) => false,
        }
    }

    fn release<'a>(&'a self, cred: &'a Cred, file: &'a Handle, by_others: bool) -> Future<'a, ()> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Server(server) => self.remote().release(cred, &server, by_others).await,
                Target::Waiting(_) => Ok(()),
            }
        })
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        let _ = self.shared.watcher.set(watcher);
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        self.remote().watch(shared);
    }

    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Waiting(no) => {
                    let Judged { granted, attr, lease } =
                        self.shared.judge(cred, no, intent.rights)?;
                    Ok(RemoteOpened { granted, attr, lease, token: None })
                }
                Target::Server(server) => {
                    self.shared.know_version(&server, cred.deadline).await?;
                    let opened = self.remote().open(cred, &server, intent).await?;
                    let attr = opened.attr.map(|attr| self.shared.show(file, attr));
                    Ok(RemoteOpened { attr, ..opened })
                }
            }
        })
    }

    fn close<'a>(&'a self, cred: &'a Cred, token: Token) -> Future<'a, ()> {
        self.remote().close(cred, token)
    }

    fn lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            let attr = self.remote().lock(cred, &server, changes).await?;
            Ok(self.shared.show(file, attr))
        })
    }

    fn await_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Option<ReservedLock>> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().await_lock(cred, &server, changes).await
        })
    }

    fn test_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().test_lock(cred, &server, range, mode).await
        })
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().xattr(cred, &server, name).await
        })
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().xattrs(cred, &server).await
        })
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            let change = self.remote().set_xattr(cred, &server, set).await?;
            Ok(self.shared.show_change(file, change))
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(self.shared.look_up(cred, dir, name))
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let server = match self.shared.target(file)? {
                Target::Server(server) => server,
                Target::Waiting(no) => {
                    let state = self.shared.state();
                    let (_, waiting) = state.journal().waiting(no).ok_or(Error::Stale)?;
                    return match &waiting.body {
                        Body::Symlink(target) => Ok((target.clone(), state.attr(no))),
                        _ => Err(Error::InvalidArgument),
                    };
                }
            };
            let (target, attr) = self.remote().readlink(cred, &server).await?;
            Ok((target, attr.map(|attr| self.shared.show(file, attr))))
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
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            let read = self.remote().read(cred, &server, open, offset, len).await?;
            Ok(RemoteRead { attr: read.attr.map(|attr| self.shared.show(file, attr)), ..read })
        })
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
            let server = self.shared.at_server_for_bytes(cred, file).await?;
            let cred = &cred.until(self.shared.extend(cred.deadline));
            let sizes = Sizes::written(offset.saturating_add(data.len() as u64));
            let asking = async {
                let remote = self.remote();
                let written = remote.write(cred, &server, open, offset, data, stability).await?;
                let change = self.shared.show_change(file, written.change);
                Ok(RemoteWritten { change, ..written })
            };
            self.shared.on_record(cred, &server, sizes, asking).await
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            let cred = &cred.until(self.shared.extend(cred.deadline));
            let committed = self.remote().commit(cred, &server, open, range).await?;
            Ok(Committed { change: self.shared.show_change(file, committed.change), ..committed })
        })
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            let change = self.remote().change_space(cred, &server, open, change).await?;
            Ok(self.shared.show_change(file, change))
        })
    }

    fn tells_holes(&self) -> bool {
        self.remote().tells_holes()
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().seek(cred, &server, open, offset, what).await
        })
    }

    fn is_lost<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
    ) -> Future<'a, bool> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().is_lost(cred, &server, open).await
        })
    }

    fn leave_memory<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(self.shared.leave_memory(cred, file, within))
    }

    fn archive_within<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        within: Duration,
    ) -> Future<'a, ()> {
        Box::pin(async move {
            let server = self.shared.at_server(cred, file).await?;
            self.remote().archive_within(cred, &server, within).await
        })
    }

    fn in_archive<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        within: Option<Duration>,
    ) -> Future<'a, Option<InArchive>> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Server(server) => self.remote().in_archive(cred, &server, within).await,
                // The server has no byte of it.
                Target::Waiting(_) => Ok(None),
            }
        })
    }

    fn stored<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<StoredPart>> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Server(server) => self.remote().stored(cred, &server).await,
                Target::Waiting(_) => Ok(Vec::new()),
            }
        })
    }

    fn copies(&self) -> bool {
        self.remote().copies()
    }

    fn copy_range<'a>(
        &'a self,
        cred: &'a Cred,
        from: CopyEnd<'a>,
        to: CopyEnd<'a>,
        len: u64,
    ) -> Future<'a, RemoteCopied> {
        Box::pin(async move {
            let source = self.shared.at_server(cred, from.file).await?;
            let target = self.shared.at_server(cred, to.file).await?;
            let (from, shown) = (CopyEnd { file: &source, ..from }, to.file);
            let to = CopyEnd { file: &target, ..to };
            let copied = self.remote().copy_range(cred, from, to, len).await?;
            Ok(RemoteCopied { change: self.shared.show_change(shown, copied.change), ..copied })
        })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(self.make_name(cred, dir, name, new, set))
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(self.remove_name(cred, dir, name, what))
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(self.rename_name(cred, from, to))
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        Box::pin(self.link_name(cred, file, dir, name))
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(self.shared.list(cred, dir, cookie, bytes_max))
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            match self.shared.target(file)? {
                Target::Server(server) => self.remote().statfs(cred, &server).await,
                // One export is one file system.
                Target::Waiting(_) => {
                    let root = self.remote().root().await?;
                    self.remote().statfs(cred, &root.handle).await
                }
            }
        })
    }

    fn call_limit(&self) -> Option<Duration> {
        self.remote().call_limit()
    }

    fn reachable(&self) -> bool {
        self.remote().reachable()
    }

    fn shutdown(&self) {
        self.remote().shutdown();
    }
}
