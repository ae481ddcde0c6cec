//! Converts the types of `larder-vfs` to those of RFC 1813, and back. nfsstat3 lives here and
//! nowhere else.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use larder_vfs::{
    Access, Attr, Before, Device, Error, Handle, Kind, SetAttr, SetTime, Stability, Time,
};
use larder_wire::nfs3::{
    fattr3, filename3, ftype3, nfs_fh3, nfsstat3, nfstime3, sattr3, set_time, specdata3,
    stable_how, wcc_attr,
};

/// The status for a failed operation.
pub(crate) fn status(error: Error) -> nfsstat3 {
    match error {
        Error::NotFound => nfsstat3::NFS3ERR_NOENT,
        Error::Exists => nfsstat3::NFS3ERR_EXIST,
        Error::NotDirectory => nfsstat3::NFS3ERR_NOTDIR,
        Error::IsDirectory => nfsstat3::NFS3ERR_ISDIR,
        Error::NotEmpty => nfsstat3::NFS3ERR_NOTEMPTY,
        Error::AccessDenied => nfsstat3::NFS3ERR_ACCES,
        Error::NotPermitted => nfsstat3::NFS3ERR_PERM,
        Error::NoSpace => nfsstat3::NFS3ERR_NOSPC,
        Error::QuotaExceeded => nfsstat3::NFS3ERR_DQUOT,
        Error::ReadOnly => nfsstat3::NFS3ERR_ROFS,
        Error::NameTooLong => nfsstat3::NFS3ERR_NAMETOOLONG,
        Error::FileTooLarge => nfsstat3::NFS3ERR_FBIG,
        Error::Stale => nfsstat3::NFS3ERR_STALE,
        Error::CrossDevice => nfsstat3::NFS3ERR_XDEV,
        Error::TooManyLinks => nfsstat3::NFS3ERR_MLINK,
        Error::InvalidArgument => nfsstat3::NFS3ERR_INVAL,
        Error::NotSupported => nfsstat3::NFS3ERR_NOTSUPP,
        Error::NoDevice => nfsstat3::NFS3ERR_NODEV,
        Error::NoData => nfsstat3::NFS3ERR_NXIO,
        Error::NoAttribute => nfsstat3::NFS3ERR_NOENT,
        Error::TooLarge => nfsstat3::NFS3ERR_FBIG,
        Error::BadCookie => nfsstat3::NFS3ERR_BAD_COOKIE,
        // The server behind us does not answer, or asks us to wait: we ask the client to wait (RFC
        // 1813, 2.6).
        Error::TryAgain
        | Error::Locked
        | Error::Deadlock
        | Error::Interrupted
        | Error::TimedOut
        | Error::Shutdown => nfsstat3::NFS3ERR_JUKEBOX,
        Error::Busy | Error::Executed | Error::Changed | Error::Lost | Error::Io => {
            nfsstat3::NFS3ERR_IO
        }
    }
}

/// The status for a handle that does not resolve.
pub(crate) fn handle_status(error: Error) -> nfsstat3 {
    match error {
        Error::InvalidArgument => nfsstat3::NFS3ERR_BADHANDLE,
        Error::NotFound => nfsstat3::NFS3ERR_STALE,
        other => status(other),
    }
}

/// Attributes as NFS encodes them. Times outside its range become the nearest time within it.
pub(crate) fn fattr(attr: &Attr) -> fattr3 {
    fattr3 {
        r#type: file_type(attr.kind),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.used,
        rdev: specdata3 { specdata1: attr.device.major, specdata2: attr.device.minor },
        fsid: attr.fsid,
        fileid: attr.fileid,
        atime: nfs_time(attr.atime),
        mtime: nfs_time(attr.mtime),
        ctime: nfs_time(attr.ctime),
    }
}

/// The attributes that distinguish versions of a file.
pub(crate) fn wcc(attr: &Attr) -> wcc_attr {
    wcc_attr { size: attr.size, mtime: nfs_time(attr.mtime), ctime: nfs_time(attr.ctime) }
}

/// The same attributes, from just before a change.
pub(crate) fn before(before: &Before) -> wcc_attr {
    let Before { size, mtime, ctime, .. } = *before;
    wcc_attr { size, mtime: nfs_time(mtime), ctime: nfs_time(ctime) }
}

/// A time as NFS encodes it (RFC 1813, 2.5.2).
pub(crate) fn nfs_time(time: Time) -> nfstime3 {
    let seconds = time.sec.clamp(0, i64::from(u32::MAX));
    nfstime3 { seconds: u32::try_from(seconds).unwrap_or(u32::MAX), nseconds: time.nsec }
}

fn file_type(kind: Kind) -> ftype3 {
    match kind {
        Kind::File => ftype3::NF3REG,
        Kind::Directory => ftype3::NF3DIR,
        Kind::Symlink => ftype3::NF3LNK,
        Kind::Fifo => ftype3::NF3FIFO,
        Kind::Socket => ftype3::NF3SOCK,
        Kind::CharDevice => ftype3::NF3CHR,
        Kind::BlockDevice => ftype3::NF3BLK,
    }
}

/// Attributes to set.
pub(crate) fn set_attr(set: &sattr3) -> SetAttr {
    let time = |set: set_time| match set {
        set_time::DONT_CHANGE => None,
        set_time::SET_TO_SERVER_TIME => Some(SetTime::ServerNow),
        set_time::SET_TO_CLIENT_TIME(time) => Some(SetTime::To(vfs_time(time))),
    };
    SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
        in_memory: None,
        retained: false,
    }
}

/// A time as `larder-vfs` has it.
pub(crate) fn vfs_time(time: nfstime3) -> Time {
    Time { sec: i64::from(time.seconds), nsec: time.nseconds }
}

pub(crate) fn device(spec: specdata3) -> Device {
    Device { major: spec.specdata1, minor: spec.specdata2 }
}

pub(crate) fn stability(how: stable_how) -> Stability {
    match how {
        stable_how::UNSTABLE => Stability::Unstable,
        stable_how::DATA_SYNC => Stability::DataSync,
        stable_how::FILE_SYNC => Stability::FileSync,
    }
}

pub(crate) fn stable(stability: Stability) -> stable_how {
    match stability {
        Stability::Unstable | Stability::Shared(_) => stable_how::UNSTABLE,
        Stability::DataSync => stable_how::DATA_SYNC,
        Stability::FileSync => stable_how::FILE_SYNC,
    }
}

/// Access rights: the bits are those of RFC 1813, 3.3.4.
pub(crate) fn access(bits: u32) -> Access {
    let known = bits & u32::from(Access::ALL.0);
    Access(u8::try_from(known).expect("masked with eight bits"))
}

/// A handle as NFS encodes it.
///
/// # Errors
/// [`nfsstat3::NFS3ERR_SERVERFAULT`] for a handle longer than NFSv3 allows: file systems promise
/// not to make such handles.
pub(crate) fn file_handle(handle: &Handle) -> Result<nfs_fh3, nfsstat3> {
    nfs_fh3::new(handle.as_bytes()).ok_or(nfsstat3::NFS3ERR_SERVERFAULT)
}

/// The name of an entry, as the codec decoded it.
pub(crate) fn name(name: &filename3) -> &OsStr {
    OsStr::from_bytes(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_range_become_the_nearest() {
        let of = |sec| nfs_time(Time { sec, nsec: 5 }).seconds;
        assert_eq!([of(-1), of(0), of(7), of(1 << 40)], [0, 0, 7, u32::MAX]);
    }

    #[test]
    fn rights_keep_the_bits_of_the_rfc() {
        use larder_wire::nfs3::access3;
        for (ours, theirs) in [
            (Access::READ, access3::READ),
            (Access::LOOKUP, access3::LOOKUP),
            (Access::MODIFY, access3::MODIFY),
            (Access::EXTEND, access3::EXTEND),
            (Access::DELETE, access3::DELETE),
            (Access::EXECUTE, access3::EXECUTE),
        ] {
            assert_eq!(access(theirs), ours);
            assert_eq!(u32::from(ours.0), theirs);
        }
        assert_eq!(access(u32::MAX), Access::ALL);
    }
}
