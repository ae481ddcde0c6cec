//! The procedures of NFS version 3 (RFC 1813, 3.3), each a method from its arguments to its result.
//!
//! A procedure resolves handles, asks the file system, and reports the attributes that the RFC
//! allows it to report. The file system checks rights. Every reference that a lookup gains is
//! returned at once: NFS names files by handle, so it needs no references.

mod data;
mod listing;
mod names;

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{Answer, Attr, Cred, Entry, FileSystem, Handle, Ino, Kind};
use larder_wire::nfs3::{
    ACCESS3args, ACCESS3res, ACCESS3resok, FSINFO3args, FSINFO3res, FSINFO3resok, FSSTAT3args,
    FSSTAT3res, FSSTAT3resok, Fail, GETATTR3args, GETATTR3res, GETATTR3resok, PATHCONF3args,
    PATHCONF3res, PATHCONF3resok, READLINK3args, READLINK3res, READLINK3resok, Res3, SETATTR3args,
    SETATTR3res, SETATTR3resok, fsf3, nfs_fh3, nfsstat3, nfstime3, post_op_attr, wcc_attr,
    wcc_data,
};

use crate::overlaps::{Mark, Overlaps};
use crate::words;

/// Most bytes of a READ or WRITE over TCP.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Most bytes of a READ or WRITE over UDP: what fits a datagram of 64 KiB with its headers, as a
/// power of two.
pub(crate) const DATAGRAM_TRANSFER_BYTES_MAX: u32 = 32 << 10;
/// Preferred size of a READDIR reply, in bytes.
const LISTING_BYTES_PREFERRED: u32 = 64 << 10;
/// Largest file, in bytes: every client kernel has signed offsets.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The highest number of links to a file that we announce: ext4's limit, the lowest of the common
/// file systems.
const LINKS_MAX: u32 = 65_000;

/// The caller, and how much data its reply may carry.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) cred: Cred,
    /// Most bytes of data in one message of the transport.
    pub(crate) transfer_bytes_max: u32,
}

/// The NFS program.
pub(crate) struct Nfs {
    fs: Arc<dyn FileSystem>,
    /// Whether attributes from before a change of a directory may be reported.
    sole_front_door: bool,
    overlaps: Overlaps,
}

/// A change of a directory in progress, with the attributes from before.
struct Change<'a> {
    ino: Ino,
    mark: Option<Mark<'a>>,
    before: Option<wcc_attr>,
}

impl Nfs {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, sole_front_door: bool) -> Nfs {
        Nfs { fs, sole_front_door, overlaps: Overlaps::new() }
    }

    pub(crate) async fn getattr(&self, caller: &Caller, args: GETATTR3args) -> GETATTR3res {
        let ino = self.resolve(&args.object).await.map_err(|status| fail(status, ()))?;
        let attr = self.attr(caller, ino).await.map_err(|status| fail(status, ()))?;
        Ok(GETATTR3resok { obj_attributes: words::fattr(&attr) })
    }

    /// The guard is compared before the attributes are set, not atomically with it: `FileSystem`
    /// has no guarded setattr.
    pub(crate) async fn setattr(&self, caller: &Caller, args: SETATTR3args) -> SETATTR3res {
        let none = wcc_data::default();
        let ino = self.resolve(&args.object).await.map_err(|status| fail(status, none))?;
        let set = words::set_attr(&args.new_attributes);
        let done = async {
            if let Some(guard) = args.guard {
                let attr = self.attr(caller, ino).await?;
                if words::nfs_time(attr.ctime) != guard {
                    return Err(nfsstat3::NFS3ERR_NOT_SYNC);
                }
            }
            if set.size.is_some_and(|size| size > FILE_BYTES_MAX) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            ask(self.fs.setattr(&caller.cred, ino, None, set)).await
        };
        let done = done.await;
        let change = done.as_ref().map(|(_, change)| *change).unwrap_or_default();
        let obj_wcc = self.file_changed(caller, ino, change).await;
        with(done, obj_wcc, |_| SETATTR3resok { obj_wcc })
    }

    pub(crate) async fn access(&self, caller: &Caller, args: ACCESS3args) -> ACCESS3res {
        let ino = self.resolve(&args.object).await.map_err(|status| fail(status, None))?;
        let wanted = words::access(args.access);
        let granted = ask(self.fs.access(&caller.cred, ino, wanted)).await;
        let obj_attributes = self.post_op(caller, ino).await;
        with(granted, obj_attributes, |granted| ACCESS3resok {
            obj_attributes,
            access: u32::from((granted & wanted).0),
        })
    }

    pub(crate) async fn readlink(&self, caller: &Caller, args: READLINK3args) -> READLINK3res {
        let ino = self.resolve(&args.symlink).await.map_err(|status| fail(status, None))?;
        let target = ask(self.fs.readlink(&caller.cred, ino)).await;
        let symlink_attributes = self.post_op(caller, ino).await;
        with(target, symlink_attributes, |target| READLINK3resok {
            symlink_attributes,
            data: Bytes::from(target.into_vec()).into(),
        })
    }

    pub(crate) async fn fsstat(&self, caller: &Caller, args: FSSTAT3args) -> FSSTAT3res {
        let ino = self.resolve(&args.fsroot).await.map_err(|status| fail(status, None))?;
        let space = ask(self.fs.statfs(&caller.cred, ino)).await;
        let obj_attributes = self.post_op(caller, ino).await;
        with(space, obj_attributes, |space| FSSTAT3resok {
            obj_attributes,
            tbytes: space.bytes,
            fbytes: space.bytes_free,
            abytes: space.bytes_available,
            tfiles: space.files,
            ffiles: space.files_free,
            afiles: space.files_available,
            invarsec: 0,
        })
    }

    pub(crate) async fn fsinfo(&self, caller: &Caller, args: FSINFO3args) -> FSINFO3res {
        let ino = self.resolve(&args.fsroot).await.map_err(|status| fail(status, None))?;
        let transfer = caller.transfer_bytes_max;
        // In other replies attributes are optional; here they show whether the file still exists.
        let attr = self.attr(caller, ino).await.map_err(|status| fail(status, None))?;
        Ok(FSINFO3resok {
            obj_attributes: Some(words::fattr(&attr)),
            rtmax: transfer,
            rtpref: transfer,
            rtmult: 4096,
            wtmax: transfer,
            wtpref: transfer,
            wtmult: 4096,
            dtpref: LISTING_BYTES_PREFERRED.min(transfer),
            maxfilesize: FILE_BYTES_MAX,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: fsf3::LINK | fsf3::SYMLINK | fsf3::HOMOGENEOUS | fsf3::CANSETTIME,
        })
    }

    pub(crate) async fn pathconf(&self, caller: &Caller, args: PATHCONF3args) -> PATHCONF3res {
        let ino = self.resolve(&args.object).await.map_err(|status| fail(status, None))?;
        let space = ask(self.fs.statfs(&caller.cred, ino)).await;
        let obj_attributes = self.post_op(caller, ino).await;
        with(space, obj_attributes, |space| PATHCONF3resok {
            obj_attributes,
            linkmax: LINKS_MAX,
            name_max: space.name_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }

    /// The file that a handle names.
    async fn resolve(&self, handle: &nfs_fh3) -> Result<Ino, nfsstat3> {
        if handle.as_bytes().is_empty() {
            return Err(nfsstat3::NFS3ERR_BADHANDLE);
        }
        let handle = Handle::new(handle.as_bytes());
        self.fs.resolve(&handle).wait().await.map_err(words::handle_status)
    }

    /// The handle of a file.
    async fn handle(&self, ino: Ino) -> Result<nfs_fh3, nfsstat3> {
        words::file_handle(&ask(self.fs.handle(ino)).await?)
    }

    /// The handle of a new entry; drops the reference to it.
    async fn take_handle(&self, entry: &Entry) -> Result<nfs_fh3, nfsstat3> {
        let handle = self.handle(entry.ino).await;
        self.fs.forget(entry.ino, 1);
        handle
    }

    async fn attr(&self, caller: &Caller, ino: Ino) -> Result<Attr, nfsstat3> {
        Ok(ask(self.fs.getattr(&caller.cred, ino)).await?.attr)
    }

    /// Attributes to send with a reply; if they cannot be had, the call still succeeds.
    async fn post_op(&self, caller: &Caller, ino: Ino) -> post_op_attr {
        self.attr(caller, ino).await.ok().map(|attr| words::fattr(&attr))
    }

    /// The entries of a directory are about to change.
    async fn change_directory(&self, caller: &Caller, ino: Ino) -> Change<'_> {
        let mark = self.sole_front_door.then(|| self.overlaps.begin(ino));
        let before = match mark {
            Some(_) => self.attr(caller, ino).await.ok().map(|attr| words::wcc(&attr)),
            None => None,
        };
        Change { ino, mark, before }
    }

    /// A file's data or attributes have changed if the file system reports it.
    async fn file_changed(
        &self,
        caller: &Caller,
        ino: Ino,
        change: larder_vfs::Change,
    ) -> wcc_data {
        match change.after {
            Some(after) => wcc_data {
                before: change.before.as_ref().map(words::before),
                after: Some(words::fattr(&after)),
            },
            None => wcc_data { before: None, after: self.post_op(caller, ino).await },
        }
    }

    /// The change of a directory has ended, with success or failure.
    async fn changed(&self, caller: &Caller, change: Change<'_>) -> wcc_data {
        let after = self.post_op(caller, change.ino).await;
        let alone = change.mark.is_some_and(|mark| mark.alone());
        wcc_data { before: change.before.filter(|_| alone), after }
    }

    async fn is_directory(&self, caller: &Caller, ino: Ino) -> Result<(), nfsstat3> {
        match self.attr(caller, ino).await?.kind {
            Kind::Directory => Ok(()),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }
}

/// Waits for the answer of the file system.
async fn ask<T>(answer: Answer<T>) -> Result<T, nfsstat3> {
    answer.wait().await.map_err(words::status)
}

/// A failure with the attributes that go with it.
fn fail<E>(status: nfsstat3, detail: E) -> Fail<E> {
    Fail { status, detail }
}

/// The result of a procedure whose operation ended with `done`; failures carry `detail`.
fn with<T, A, E>(done: Result<T, nfsstat3>, detail: E, answer: impl FnOnce(T) -> A) -> Res3<A, E> {
    match done {
        Ok(value) => Ok(answer(value)),
        Err(status) => Err(fail(status, detail)),
    }
}
