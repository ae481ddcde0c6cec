//! [`Direct`]: a [`Remote`] as a [`FileSystem`], with nothing cached.
//!
//! Every operation is one or a few calls to the remote. It is the baseline that a cache is measured
//! against, and serves the export of a local directory.
//!
//! Invariants:
//! - An [`Ino`] stands for the same handle as long as the front door refers to it, and is never
//!   given to another. Numbers without references are kept for front doors that name files only by
//!   handle, at most [`UNREFERENCED_MAX`] of them; beyond that the one that was found longest ago
//!   is dropped.
//! - A file that is removed through this `Direct` while it is open is renamed to a hidden name and
//!   removed at its last release (*silly rename*), because remotes know no open files.
//!
//! Limits: a rename that replaces an open file does not hide it; [`RenameFlags::no_replace`] checks
//! before it renames, and another client may create the name in between; nothing is written behind,
//! so there is nothing to flush.

mod table;

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::{
    Access, Answer, Attr, Change, Cookie, CopyEnd, Cred, DataPath, DirEntry, Entry, Error,
    FileSystem, Found, Fresh, Handle, Ino, Listed, LockOwner, Lookup, New, OpenFlags, OpenId,
    OpenOffset, Opened, Remote, RemoteWritten, Removal, RenameFlags, Result, Seek, SetAttr,
    SpaceChange, Stability, StatFs, Verifier, Written,
};
use table::{Hidden, Table, UNREFERENCED_MAX};

/// How many hidden names are tried until one is free.
const HIDDEN_TRIES_MAX: u32 = 16;

/// A remote without a cache.
pub struct Direct<R: Remote + ?Sized> {
    shared: Arc<Shared<R>>,
}

/// State that operations hold while they run.
struct Shared<R: Remote + ?Sized> {
    remote: Arc<R>,
    ttl: Duration,
    next_open: AtomicU64,
    /// Never locked over an `await`.
    table: Mutex<Table>,
}

impl<R: Remote + ?Sized> Direct<R> {
    /// Asks the remote for its root. Answers are to be trusted for no time at all.
    ///
    /// # Errors
    /// Those of [`Remote::root`].
    pub async fn new(remote: Arc<R>) -> Result<Direct<R>> {
        Direct::with_ttl(remote, Duration::ZERO).await
    }

    /// As [`Direct::new`], but the front door may trust names and attributes for `ttl`.
    ///
    /// # Errors
    /// Those of [`Remote::root`].
    pub async fn with_ttl(remote: Arc<R>, ttl: Duration) -> Result<Direct<R>> {
        let root = remote.root().await?;
        let table = Mutex::new(Table::new(root.handle, UNREFERENCED_MAX));
        Ok(Direct { shared: Arc::new(Shared { remote, ttl, next_open: AtomicU64::new(1), table }) })
    }

    /// Runs `work` on the handle of `ino`.
    fn on<T, F>(
        &self,
        ino: Ino,
        work: impl FnOnce(Arc<Shared<R>>, Handle) -> F + Send + 'static,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.shared.table().handle(ino) {
            Ok(handle) => Answer::later(work(Arc::clone(&self.shared), handle)),
            Err(error) => Answer::fail(error),
        }
    }
}

impl<R: Remote + ?Sized> Shared<R> {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, attr: Attr) -> Fresh {
        Fresh { attr, ttl: self.ttl }
    }

    /// Gives the front door a reference to what was found.
    fn entry(&self, found: &Found) -> Entry {
        let ino = self.table().refer(&found.handle);
        Entry { ino, fresh: self.fresh(found.attr), ttl: self.ttl }
    }

    fn opened(&self, ino: Ino) -> Opened {
        self.table().opened(ino);
        let id = OpenId(self.next_open.fetch_add(1, Relaxed));
        Opened { id, path: DataPath::Cached { keep: false } }
    }

    /// Checks the rights that `flags` ask for, and truncates the file if they say so.
    async fn open(&self, cred: &Cred, handle: &Handle, flags: OpenFlags) -> Result<()> {
        let (mut wanted, mut enough) = (Access::NONE, Access::NONE);
        if flags.read {
            (wanted, enough) = (Access::READ, Access::READ);
        }
        if flags.execute {
            // A server lets a user who may execute a file read it (RFC 1813, 4.4).
            (wanted, enough) = (wanted | Access::EXECUTE, Access::EXECUTE);
        }
        if flags.write || flags.truncate {
            (wanted, enough) = (wanted | Access::MODIFY, enough | Access::MODIFY);
        }
        let granted = self.remote.access(cred, handle, wanted).await?.granted;
        if !granted.contains(enough) {
            return Err(Error::AccessDenied);
        }
        if flags.truncate {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            self.remote.setattr(cred, handle, empty, None).await?;
        }
        Ok(())
    }

    /// If `name` is an open file, renames it to a hidden name, to be removed at its last release.
    /// Returns whether it did. Asks the remote only while any file is open.
    async fn hide_if_open(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Result<bool> {
        if !self.table().any_open() {
            return Ok(false);
        }
        let Some(found) = self.remote.lookup(cred, dir, name).await?.found else {
            return Ok(false);
        };
        if !self.table().is_open(&found.handle) {
            return Ok(false);
        }
        for attempt in 0..HIDDEN_TRIES_MAX {
            let hidden = OsString::from(format!(".nfs{:016x}{attempt:04x}", found.attr.fileid));
            if self.remote.lookup(cred, dir, &hidden).await?.found.is_some() {
                continue;
            }
            self.remote.rename(cred, (dir, name), (dir, &hidden)).await?;
            let entry = Hidden { cred: cred.clone(), dir: dir.clone(), name: hidden };
            let too_late = self.table().hide(&found.handle, entry);
            if let Some(entry) = too_late {
                self.remote.remove(&entry.cred, &entry.dir, &entry.name, Removal::File).await?;
            }
            return Ok(true);
        }
        Err(Error::Busy)
    }

    /// The entries of a listing in the form that the front door needs.
    fn dir_entries(&self, listed: Vec<Listed>, plus: bool) -> Vec<DirEntry> {
        let of = |listed: Listed| {
            let found = listed.attr.zip(listed.handle).map(|(attr, handle)| Found { handle, attr });
            DirEntry {
                name: listed.name,
                fileid: listed.fileid,
                kind: listed.attr.map(|attr| attr.kind),
                offset: listed.position,
                entry: found.filter(|_| plus).map(|found| self.entry(&found)),
                is_elsewhere: false,
            }
        };
        listed.into_iter().map(of).collect()
    }
}

impl<R: Remote + ?Sized> FileSystem for Direct<R> {
    fn lookup(&self, cred: &Cred, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        let (cred, name) = (cred.clone(), name.to_owned());
        self.on(parent, |shared, dir| async move {
            let answer = shared.remote.lookup(&cred, &dir, &name).await?;
            Ok(match answer.found {
                Some(found) => Lookup::Found(shared.entry(&found)),
                None => Lookup::Absent { ttl: shared.ttl },
            })
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.shared.table().forget(ino, count);
    }

    fn getattr(&self, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        let cred = cred.clone();
        self.on(ino, |shared, file| async move {
            let attr = shared.remote.getattr(&cred, &file).await?;
            Ok(shared.fresh(attr))
        })
    }

    fn setattr(
        &self,
        cred: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        set: SetAttr,
    ) -> Answer<(Fresh, Change)> {
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            let change = shared.remote.setattr(&cred, &file, set, None).await?;
            let attr = match change.after {
                Some(attr) => attr,
                None => shared.remote.getattr(&cred, &file).await?,
            };
            Ok((shared.fresh(attr), change))
        })
    }

    fn access(&self, cred: &Cred, ino: Ino, wanted: Access) -> Answer<Access> {
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            let granted = shared.remote.access(&cred, &file, wanted).await?.granted;
            Ok(granted)
        })
    }

    fn readlink(&self, cred: &Cred, ino: Ino) -> Answer<OsString> {
        let cred = cred.clone();
        self.on(ino, |shared, file| async move {
            let (target, _) = shared.remote.readlink(&cred, &file).await?;
            Ok(target)
        })
    }

    fn make(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Answer<Entry> {
        let (cred, name) = (cred.clone(), name.to_owned());
        self.on(parent, move |shared, dir| async move {
            let made = shared.remote.make(&cred, &dir, &name, new, set).await?;
            Ok(shared.entry(&made.found))
        })
    }

    fn remove(&self, cred: &Cred, parent: Ino, name: &OsStr, what: Removal) -> Answer<()> {
        let (cred, name) = (cred.clone(), name.to_owned());
        self.on(parent, move |shared, dir| async move {
            if what == Removal::File && shared.hide_if_open(&cred, &dir, &name).await? {
                return Ok(());
            }
            shared.remote.remove(&cred, &dir, &name, what).await.map(drop)
        })
    }

    fn rename(
        &self,
        cred: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        if flags.exchange {
            return Answer::fail(Error::NotSupported);
        }
        let to_dir = match self.shared.table().handle(to.0) {
            Ok(handle) => handle,
            Err(error) => return Answer::fail(error),
        };
        let (cred, from_name, to_name) = (cred.clone(), from.1.to_owned(), to.1.to_owned());
        self.on(from.0, move |shared, from_dir| async move {
            let remote = &shared.remote;
            if flags.no_replace && remote.lookup(&cred, &to_dir, &to_name).await?.found.is_some() {
                return Err(Error::Exists);
            }
            let (from, to) = ((&from_dir, &*from_name), (&to_dir, &*to_name));
            remote.rename(&cred, from, to).await.map(drop)
        })
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Entry> {
        let dir = match self.shared.table().handle(parent) {
            Ok(handle) => handle,
            Err(error) => return Answer::fail(error),
        };
        let (cred, name) = (cred.clone(), name.to_owned());
        self.on(ino, move |shared, handle| async move {
            let attr = match shared.remote.link(&cred, &handle, &dir, &name).await? {
                (Some(attr), _) => attr,
                (None, _) => shared.remote.getattr(&cred, &handle).await?,
            };
            Ok(shared.entry(&Found { handle, attr }))
        })
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            shared.open(&cred, &file, flags).await?;
            Ok(shared.opened(ino))
        })
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        mut set: SetAttr,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        let new = if flags.exclusive { New::FileExclusive } else { New::File };
        if flags.truncate {
            set.size = Some(0);
        }
        let (cred, name) = (cred.clone(), name.to_owned());
        self.on(parent, move |shared, dir| async move {
            let made = shared.remote.make(&cred, &dir, &name, new, set).await?;
            let entry = shared.entry(&made.found);
            Ok((entry, shared.opened(entry.ino)))
        })
    }

    fn read(
        &self,
        cred: &Cred,
        ino: Ino,
        _open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes> {
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            let read = shared.remote.read(&cred, &file, None, offset, len).await?;
            Ok(read.data)
        })
    }

    fn write(
        &self,
        cred: &Cred,
        ino: Ino,
        _open: Option<OpenId>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written> {
        let (cred, data) = (cred.clone(), Bytes::copy_from_slice(data));
        self.on(ino, move |shared, file| async move {
            let len = u32::try_from(data.len()).map_err(|_| Error::InvalidArgument)?;
            let written = shared.remote.write(&cred, &file, None, offset, data, stability).await?;
            let RemoteWritten { stability, verifier, change } = written;
            Ok(Written { len, stability, verifier, change })
        })
    }

    fn flush(
        &self,
        _cred: &Cred,
        _ino: Ino,
        _open: OpenId,
        _owner: Option<LockOwner>,
    ) -> Answer<()> {
        Answer::ok(())
    }

    fn change_space(
        &self,
        cred: &Cred,
        ino: Ino,
        _open: OpenId,
        change: SpaceChange,
    ) -> Answer<()> {
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            shared.remote.change_space(&cred, &file, None, &change).await.map(drop)
        })
    }

    fn seek(&self, cred: &Cred, ino: Ino, _: OpenId, offset: u64, what: Seek) -> Answer<u64> {
        if !self.shared.remote.tells_holes() {
            return Answer::fail(Error::NotSupported);
        }
        let cred = cred.clone();
        self.on(ino, move |shared, file| async move {
            shared.remote.seek(&cred, &file, None, offset, what).await
        })
    }

    fn copies(&self) -> bool {
        self.shared.remote.copies()
    }

    fn copy_range(&self, cred: &Cred, from: OpenOffset, to: OpenOffset, len: u64) -> Answer<u64> {
        let target = match self.shared.table().handle(to.ino) {
            Ok(handle) => handle,
            Err(error) => return Answer::fail(error),
        };
        let cred = cred.clone();
        self.on(from.ino, move |shared, source| async move {
            let from = CopyEnd::unopened(&source, from.offset);
            let to = CopyEnd::unopened(&target, to.offset);
            Ok(shared.remote.copy_range(&cred, from, to, len).await?.len)
        })
    }

    fn fsync(&self, cred: &Cred, ino: Ino, _: Option<OpenId>) -> Answer<Verifier> {
        let cred = cred.clone();
        self.on(ino, |shared, file| async move {
            Ok(shared.remote.commit(&cred, &file, None, 0..0).await?.verifier)
        })
    }

    fn release(&self, ino: Ino, _open: OpenId) -> Answer<()> {
        let Some(hidden) = self.shared.table().released(ino) else {
            return Answer::ok(());
        };
        let shared = Arc::clone(&self.shared);
        Answer::later(async move {
            let Hidden { cred, dir, name } = hidden;
            shared.remote.remove(&cred, &dir, &name, Removal::File).await.map(drop)
        })
    }

    fn opendir(&self, cred: &Cred, ino: Ino) -> Answer<()> {
        let cred = cred.clone();
        self.on(ino, |shared, dir| async move {
            let granted = shared.remote.access(&cred, &dir, Access::READ).await?.granted;
            if granted.contains(Access::READ) { Ok(()) } else { Err(Error::AccessDenied) }
        })
    }

    fn readdir(
        &self,
        cred: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Answer<Vec<DirEntry>> {
        let cred = cred.clone();
        self.on(ino, move |shared, dir| async move {
            let verifier = if offset == 0 { 0 } else { shared.table().verifier(ino) };
            let mut cookie = Cookie { position: offset, verifier };
            loop {
                let listing = shared.remote.readdir(&cred, &dir, cookie, bytes_max).await?;
                shared.table().keep_verifier(ino, listing.verifier);
                // To the front door an empty answer is the end of the listing; from the server it
                // need not be.
                let more = listing.entries.is_empty() && !listing.eof;
                if !more || cookie.verifier == listing.verifier {
                    return Ok(shared.dir_entries(listing.entries, plus));
                }
                cookie.verifier = listing.verifier;
            }
        })
    }

    fn statfs(&self, cred: &Cred, ino: Ino) -> Answer<StatFs> {
        let cred = cred.clone();
        self.on(ino, |shared, file| async move { shared.remote.statfs(&cred, &file).await })
    }

    fn handle(&self, ino: Ino) -> Answer<Handle> {
        Answer::Now(self.shared.table().handle(ino))
    }

    fn resolve(&self, handle: &Handle) -> Answer<Ino> {
        if let Some(ino) = self.shared.table().known(handle) {
            return Answer::ok(ino);
        }
        let (shared, handle) = (Arc::clone(&self.shared), handle.clone());
        Answer::later(async move {
            // Whether the handle names anything does not depend on the caller.
            shared.remote.getattr(&Cred::root(), &handle).await?;
            let ino = shared.table().meet(&handle);
            Ok(ino)
        })
    }
}
