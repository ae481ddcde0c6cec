//! [`LocalDir`]: a local directory as a server.
//!
//! It is to larder what the kernel's NFS server is to the kernel: files are named by the kernel's
//! own handles, so they survive renames and restarts; each call is made with the caller's identity,
//! so the kernel checks every right (mode bits, ACLs, quotas, set-gid directories); names are
//! durable when a change is answered (RFC 1813, 3.3.8 and 4.8).
//!
//! Invariants:
//! - No answer concerns anything outside the exported directory, whatever handles a caller invents:
//!   only a handle that carries the export's seal is opened ([`HandleKey`]), and at each use a
//!   *directory* is checked to be inside, so that one which was moved out is stale from then on,
//!   and `..` never leads out. A *file* does not know its directory: one that was moved out stays
//!   usable by clients that have its handle, as with `no_subtree_check` of exports(5); rights are
//!   checked all the same.
//! - File systems mounted below the exported directory are not served: the name exists, and using
//!   it returns [`Error::AccessDenied`].
//! - [`Change`]'s two descriptions enclose the operation and nothing else that came through this
//!   `LocalDir`: they are taken under a lock on the object. For a file the first one is reported
//!   only if no other process can have changed it in between, as the kernel's leases show
//!   ([`LocalOptions::shared`]). Directories have no such leases: another process may make, rename
//!   or remove entries in between, in a window of microseconds.
//! - Owners may always read and write the data of their files, whatever the mode says, and users
//!   who may execute a file may read it: the rights were checked when it was opened, on the client
//!   (RFC 1813, 4.4).
//!
//! Operations that block long run on tokio's blocking threads: reads that are not in the page
//! cache, writes, and changes of names that wait for the disk. Everything else is answered on the
//! caller's thread, where it is done in less time than a thread switch takes.
//!
//! Absent on purpose: locks, extended attributes, a cache of anything except open descriptors.

mod attributes;
mod data;
mod descriptors;
mod errors;
mod export;
mod handle;
mod identity;
mod key;
mod listing;
mod names;
mod options;
mod stat;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Error, Found, Future, Handle,
    Judged, Listing, LookedUp, Made, New, Remote, RemoteCopied, RemoteLimits, RemoteRead,
    RemoteWritten, Removal, Result, Seek, SetAttr, SpaceChange, Stability, StatFs, Time, Token,
};

use data::ReadNow;
pub use errors::LocalError;
use export::Export;
pub use key::HandleKey;
pub use options::{LocalOptions, Squash};

/// Most bytes that one read or write should carry: the size that NFSv3 servers offer.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Size of a directory reply that takes little time compared with its round trip, in bytes.
const LISTING_BYTES_PREFERRED: u32 = 64 << 10;
/// Unstable writes up to this size are made on the caller's thread, in bytes: copying them costs
/// less than waking another.
const WRITE_HERE_BYTES_MAX: usize = 16 << 10;

/// A local directory as a server. Clones share everything.
///
/// Run by the superuser it acts as each caller; run by another user with CAP_DAC_READ_SEARCH it
/// acts as that user for every caller.
#[derive(Clone)]
pub struct LocalDir {
    export: Arc<Export>,
}

impl LocalDir {
    /// Exports the directory `path`, with handles under the seal of `key`. Blocks on the disk
    /// briefly.
    ///
    /// # Errors
    /// [`LocalError`]
    pub fn open(
        path: &Path,
        options: LocalOptions,
        key: &HandleKey,
    ) -> Result<LocalDir, LocalError> {
        let export = Arc::new(Export::open(path, options, key)?);
        export::start_sweeper(&export)?;
        Ok(LocalDir { export })
    }

    /// Answers on the caller's thread.
    fn here<'a, T: Send + 'a>(
        &'a self,
        work: impl FnOnce(&Export) -> Result<T> + Send + 'a,
    ) -> Future<'a, T> {
        Box::pin(async move { work(&self.export) })
    }

    /// Answers on a thread that may block.
    fn elsewhere<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Export) -> Result<T> + Send + 'static,
    ) -> Future<'a, T> {
        let export = Arc::clone(&self.export);
        Box::pin(on_blocking_thread(move || work(&export)))
    }

    /// Changes names or attributes: elsewhere if that waits for the disk.
    fn change<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Export) -> Result<T> + Send + 'static,
    ) -> Future<'a, T> {
        match self.export.options().durable_names {
            true => self.elsewhere(work),
            false => self.here(work),
        }
    }
}

/// Runs `work` on one of tokio's blocking threads.
///
/// # Panics
/// If `work` does: the thread's panic becomes the caller's.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down.
            Err(_) => Err(Error::Shutdown),
        },
    }
}

impl Remote for LocalDir {
    fn root(&self) -> Future<'_, Found> {
        self.here(Export::root)
    }

    fn limits(&self) -> RemoteLimits {
        RemoteLimits {
            read_max: TRANSFER_BYTES_MAX,
            write_max: TRANSFER_BYTES_MAX,
            readdir_preferred: LISTING_BYTES_PREFERRED,
            file_size_max: i64::MAX.cast_unsigned(),
            name_max: 255,
            time_delta_ns: 1,
            links: true,
            symlinks: true,
            case_insensitive: false,
            opens: false,
            by_name: false,
        }
    }

    fn getattr<'a>(&'a self, _cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        self.here(|export| export.getattr(file))
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        let (cred, file) = (cred.clone(), file.clone());
        self.change(move |export| export.setattr(&cred, &file, set, guard))
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        self.here(move |export| {
            let (granted, attr) = export.access(cred, file, wanted)?;
            Ok(Judged::new(granted, Some(attr)))
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        self.here(move |export| export.lookup(cred, dir, name))
    }

    fn readlink<'a>(
        &'a self,
        _cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        self.here(move |export| {
            let (target, attr) = export.readlink(file)?;
            Ok((target, Some(attr)))
        })
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(async move {
            match self.export.read_now(cred, file, offset, len)? {
                ReadNow::Done(read) => Ok(read),
                ReadNow::Cold(rest) => {
                    self.elsewhere(move |export| {
                        export.arm().operate();
                        rest.finish()
                    })
                    .await
                }
            }
        })
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        if stability == Stability::Unstable && data.len() <= WRITE_HERE_BYTES_MAX {
            return self.here(move |export| export.write(cred, file, offset, &data, stability));
        }
        let (cred, file) = (cred.clone(), file.clone());
        self.elsewhere(move |export| export.write(&cred, &file, offset, &data, stability))
    }

    /// Commits the whole file, whatever `range` is: the kernel offers no less.
    fn commit<'a>(
        &'a self,
        _cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        _range: Range<u64>,
    ) -> Future<'a, Committed> {
        let file = file.clone();
        self.elsewhere(move |export| export.commit(&file))
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        let (cred, file, change) = (cred.clone(), file.clone(), change.clone());
        self.elsewhere(move |export| export.change_space(&cred, &file, &change))
    }

    fn tells_holes(&self) -> bool {
        true
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        self.here(move |export| export.seek(cred, file, offset, what))
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
        let (cred, source, target) = (cred.clone(), from.file.clone(), to.file.clone());
        let (from, to) = (from.offset, to.offset);
        self.elsewhere(move |export| {
            let from = CopyEnd::unopened(&source, from);
            export.copy_range(&cred, &from, &CopyEnd::unopened(&target, to), len)
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
        let (cred, dir, name) = (cred.clone(), dir.clone(), name.to_owned());
        self.change(move |export| export.make(&cred, &dir, &name, &new, set))
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        let (cred, dir, name) = (cred.clone(), dir.clone(), name.to_owned());
        self.change(move |export| export.remove(&cred, &dir, &name, what))
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        let cred = cred.clone();
        let from = (from.0.clone(), from.1.to_owned());
        let to = (to.0.clone(), to.1.to_owned());
        self.change(move |export| export.rename(&cred, (&from.0, &from.1), (&to.0, &to.1)))
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        let (cred, file, dir) = (cred.clone(), file.clone(), dir.clone());
        let name = name.to_owned();
        self.change(move |export| {
            let (attr, change) = export.link(&cred, &file, &dir, &name)?;
            Ok((Some(attr), change))
        })
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        self.here(move |export| export.readdir(cred, dir, cookie, bytes_max))
    }

    fn statfs<'a>(&'a self, _cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        self.here(|export| export.statfs(file))
    }
}

#[cfg(test)]
mod tests;
