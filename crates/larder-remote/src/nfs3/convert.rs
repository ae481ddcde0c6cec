//! Converts between RFC 1813 and the types of `larder-vfs`. No other module knows nfsstat3.

use bytes::Bytes;
use larder_rpc::RpcError;
use larder_vfs::{
    Access, Attr, Before, Change, Device, Error, Handle, Kind, Listed, Listing, Result, SetAttr,
    SetTime, Stability, StatFs, Time,
};
use larder_wire::nfs3::{
    FSSTAT3resok, PATH_BYTES_MAX, diropargs3, entry3, entryplus3, fattr3, filename3, ftype3,
    nfs_fh3, nfspath3, nfsstat3, nfstime3, post_op_attr, sattr3, set_time, specdata3, stable_how,
    wcc_data,
};
use larder_wire::rpc::Outcome;
use larder_wire::xdr::{Opaque, XdrError};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What a failed procedure means to the caller.
pub(super) fn error(status: nfsstat3) -> Error {
    match status {
        nfsstat3::NFS3ERR_PERM => Error::NotPermitted,
        nfsstat3::NFS3ERR_NOENT => Error::NotFound,
        nfsstat3::NFS3ERR_ACCES => Error::AccessDenied,
        nfsstat3::NFS3ERR_EXIST => Error::Exists,
        nfsstat3::NFS3ERR_XDEV => Error::CrossDevice,
        nfsstat3::NFS3ERR_NXIO | nfsstat3::NFS3ERR_NODEV => Error::NoDevice,
        nfsstat3::NFS3ERR_NOTDIR => Error::NotDirectory,
        nfsstat3::NFS3ERR_ISDIR => Error::IsDirectory,
        nfsstat3::NFS3ERR_INVAL | nfsstat3::NFS3ERR_BADTYPE => Error::InvalidArgument,
        nfsstat3::NFS3ERR_FBIG => Error::FileTooLarge,
        nfsstat3::NFS3ERR_NOSPC => Error::NoSpace,
        nfsstat3::NFS3ERR_ROFS => Error::ReadOnly,
        nfsstat3::NFS3ERR_MLINK => Error::TooManyLinks,
        nfsstat3::NFS3ERR_NAMETOOLONG => Error::NameTooLong,
        nfsstat3::NFS3ERR_NOTEMPTY => Error::NotEmpty,
        nfsstat3::NFS3ERR_DQUOT => Error::QuotaExceeded,
        nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_BADHANDLE => Error::Stale,
        nfsstat3::NFS3ERR_NOT_SYNC | nfsstat3::NFS3ERR_JUKEBOX => Error::TryAgain,
        nfsstat3::NFS3ERR_BAD_COOKIE => Error::BadCookie,
        nfsstat3::NFS3ERR_NOTSUPP => Error::NotSupported,
        _ => Error::Io,
    }
}

/// What a call without results means to the caller.
pub(super) fn rpc_error(error: RpcError) -> Error {
    match error {
        RpcError::TimedOut { .. } | RpcError::Unreachable => Error::TimedOut,
        RpcError::Shutdown => Error::Shutdown,
        RpcError::Refused(Outcome::AuthError(_)) => Error::AccessDenied,
        RpcError::Refused(Outcome::ProcUnavail) => Error::NotSupported,
        RpcError::Refused(_) | RpcError::Garbled(_) | RpcError::TooLong { .. } => Error::Io,
    }
}

/// The handle to send.
pub(super) fn file(handle: &Handle) -> Result<nfs_fh3> {
    nfs_fh3::new(handle.as_bytes()).ok_or(Error::Stale)
}

/// The handle that came.
pub(super) fn handle(file: &nfs_fh3) -> Handle {
    Handle::new(file.as_bytes())
}

/// A name in a directory.
pub(super) fn entry(dir: &Handle, name: &OsStr) -> Result<diropargs3> {
    let name = filename3::new(Bytes::copy_from_slice(name.as_bytes()));
    let name = name.map_err(|cause| match cause {
        XdrError::TooLong { .. } => Error::NameTooLong,
        _ => Error::InvalidArgument,
    })?;
    Ok(diropargs3 { dir: file(dir)?, name })
}

/// The target of a symbolic link.
pub(super) fn path(target: &OsStr) -> Result<nfspath3> {
    if target.len() > PATH_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    Ok(Opaque::copy_from_slice(target.as_bytes()))
}

fn kind(kind: ftype3) -> Kind {
    match kind {
        ftype3::NF3REG => Kind::File,
        ftype3::NF3DIR => Kind::Directory,
        ftype3::NF3BLK => Kind::BlockDevice,
        ftype3::NF3CHR => Kind::CharDevice,
        ftype3::NF3LNK => Kind::Symlink,
        ftype3::NF3SOCK => Kind::Socket,
        ftype3::NF3FIFO => Kind::Fifo,
    }
}

fn time(time: nfstime3) -> Time {
    Time { sec: time.seconds.into(), nsec: time.nseconds.min(999_999_999) }
}

/// A time to send. The protocol knows 1970 to 2106.
pub(super) fn nfstime(time: Time) -> Result<nfstime3> {
    let seconds = u32::try_from(time.sec).map_err(|_| Error::InvalidArgument)?;
    Ok(nfstime3 { seconds, nseconds: time.nsec })
}

pub(super) fn attr(attributes: &fattr3) -> Attr {
    Attr {
        kind: kind(attributes.r#type),
        mode: attributes.mode & 0o7777,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        device: Device { major: attributes.rdev.specdata1, minor: attributes.rdev.specdata2 },
        size: attributes.size,
        used: attributes.used,
        fsid: attributes.fsid,
        fileid: attributes.fileid,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        change: None,
        data_change: None,
        birth: None,
    }
}

pub(super) fn post_op(attributes: post_op_attr) -> Option<Attr> {
    attributes.as_ref().map(attr)
}

pub(super) fn change(wcc: &wcc_data) -> Change {
    let before = wcc.before.map(|before| Before {
        size: before.size,
        mtime: time(before.mtime),
        ctime: time(before.ctime),
        change: None,
        data_change: None,
    });
    Change { before, after: post_op(wcc.after) }
}

/// Attributes to set.
pub(super) fn sattr(set: &SetAttr) -> Result<sattr3> {
    let time = |time| match time {
        None => Ok(set_time::DONT_CHANGE),
        Some(SetTime::ServerNow) => Ok(set_time::SET_TO_SERVER_TIME),
        Some(SetTime::To(time)) => nfstime(time).map(set_time::SET_TO_CLIENT_TIME),
    };
    Ok(sattr3 {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime)?,
        mtime: time(set.mtime)?,
    })
}

pub(super) fn specdata(device: Device) -> specdata3 {
    specdata3 { specdata1: device.major, specdata2: device.minor }
}

/// The bits are the same ones.
pub(super) fn access(bits: u32) -> Access {
    Access(u8::try_from(bits & u32::from(Access::ALL.0)).unwrap_or(0))
}

pub(super) fn stable_how(stability: Stability) -> stable_how {
    match stability {
        Stability::Unstable => stable_how::UNSTABLE,
        Stability::DataSync => stable_how::DATA_SYNC,
        Stability::Shared(_) | Stability::FileSync => stable_how::FILE_SYNC,
    }
}

pub(super) fn stability(how: stable_how) -> Stability {
    match how {
        stable_how::UNSTABLE => Stability::Unstable,
        stable_how::DATA_SYNC => Stability::DataSync,
        stable_how::FILE_SYNC => Stability::FileSync,
    }
}

/// The one that promises less.
pub(super) fn weaker(a: Stability, b: Stability) -> Stability {
    if (stable_how(a) as u32) < stable_how(b) as u32 { a } else { b }
}

pub(super) fn statfs(answer: &FSSTAT3resok, name_max: u32) -> StatFs {
    StatFs {
        bytes: answer.tbytes,
        bytes_free: answer.fbytes,
        bytes_available: answer.abytes,
        files: answer.tfiles,
        files_free: answer.ffiles,
        files_available: answer.afiles,
        name_max,
    }
}

/// An entry of READDIR as one of READDIRPLUS without attributes and handle.
pub(super) fn bare_entry(entry: entry3) -> entryplus3 {
    let entry3 { fileid, name, cookie } = entry;
    entryplus3 { fileid, name, cookie, name_attributes: None, name_handle: None }
}

/// A reply to either kind of listing.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) dir: Option<Attr>,
    pub(super) verifier: u64,
    pub(super) entries: Vec<entryplus3>,
    pub(super) eof: bool,
}

impl Page {
    /// Whether the reply ends the listing, or continues it from `position`: each of its cookies
    /// must be a new one, so that no reader comes to the same position twice.
    pub(super) fn leads_on(&self, position: u64) -> bool {
        let mut seen = HashSet::from([position]);
        let moves = self.entries.iter().all(|entry| seen.insert(entry.cookie));
        moves && (self.eof || !self.entries.is_empty())
    }
}

/// The entries of a reply, without `.` and `..`. Names are copied, so that keeping one does not
/// keep the whole reply.
pub(super) fn listing(page: Page) -> Listing {
    let shown = page.entries.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b".."));
    let entries = shown.map(|entry| Listed {
        name: OsString::from_vec(entry.name.to_vec()),
        fileid: entry.fileid,
        position: entry.cookie,
        tells_links: true,
        attr: post_op(entry.name_attributes),
        handle: entry.name_handle.as_ref().map(handle),
    });
    Listing { entries: entries.collect(), eof: page.eof, verifier: page.verifier, dir: page.dir }
}
