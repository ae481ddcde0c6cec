//! Converts between the metadata program and the types of `larder-vfs`. No other module knows its
//! statuses.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::Bytes;
use larder_rpc::RpcError;
use larder_vfs::{
    Access, Attr, Before, Change, Device, Error, Handle, Kind, Listed, Listing, Result, SetAttr,
    SetTime, StatFs, Time,
};
use larder_wire::meta::calls::{Entries, Space};
use larder_wire::meta::words::{
    self, Attributes, Changed, Dentry, FileId, Name, SetAttributes, VolumeId,
};
use larder_wire::meta::{NAME_BYTES_MAX, Status};
use larder_wire::rpc::Outcome;
use larder_wire::xdr::XdrError;

/// What a failed procedure means to the caller.
pub(super) fn error(status: Status) -> Error {
    match status {
        Status::NotPermitted => Error::NotPermitted,
        Status::Locked => Error::Locked,
        Status::NotFound => Error::NotFound,
        Status::AccessDenied => Error::AccessDenied,
        Status::Exists => Error::Exists,
        Status::NotDirectory => Error::NotDirectory,
        Status::IsDirectory => Error::IsDirectory,
        Status::Invalid => Error::InvalidArgument,
        Status::FileTooLarge => Error::FileTooLarge,
        Status::NoSpace => Error::NoSpace,
        Status::TooManyLinks => Error::TooManyLinks,
        Status::NameTooLong => Error::NameTooLong,
        Status::NotEmpty => Error::NotEmpty,
        Status::NoAttribute => Error::NoAttribute,
        Status::NotSupported => Error::NotSupported,
        Status::Lost => Error::Lost,
        Status::Stale | Status::BadOpen => Error::Stale,
        Status::Changed | Status::Later | Status::NotWritten => Error::TryAgain,
        Status::Success
        | Status::Io
        | Status::NotAllocated
        | Status::BadSession
        | Status::Restarted
        | Status::BadSequence => Error::Io,
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

/// The handle of a file: its volume and its number there, so that no file of another volume is
/// mistaken for it.
pub(super) fn handle(volume: VolumeId, file: FileId) -> Handle {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&volume.0);
    bytes[16..].copy_from_slice(&file.0.to_be_bytes());
    Handle::new(&bytes)
}

/// The file that a handle of `volume` means.
pub(super) fn file(volume: VolumeId, handle: &Handle) -> Result<FileId> {
    let bytes: &[u8; 24] = handle.as_bytes().try_into().map_err(|_| Error::Stale)?;
    let (of, number) = bytes.split_at(16);
    if of != volume.0 {
        return Err(Error::Stale);
    }
    Ok(FileId(u64::from_be_bytes(number.try_into().map_err(|_| Error::Stale)?)))
}

/// A name in a directory.
pub(super) fn dentry(dir: FileId, name: &OsStr) -> Result<Dentry> {
    Ok(Dentry { dir, name: self::name(name.as_bytes())? })
}

/// A name of an object, or of an extended attribute.
pub(super) fn name(name: &[u8]) -> Result<Name> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    Name::new(Bytes::copy_from_slice(name)).map_err(|cause| match cause {
        XdrError::TooLong { .. } => Error::NameTooLong,
        _ => Error::InvalidArgument,
    })
}

fn kind(kind: words::Kind) -> Kind {
    match kind {
        words::Kind::File => Kind::File,
        words::Kind::Directory => Kind::Directory,
        words::Kind::BlockDevice => Kind::BlockDevice,
        words::Kind::CharacterDevice => Kind::CharDevice,
        words::Kind::Symlink => Kind::Symlink,
        words::Kind::Socket => Kind::Socket,
        words::Kind::Fifo => Kind::Fifo,
    }
}

/// A kind of node that is made with a device number.
pub(super) fn node_kind(kind: Kind) -> Result<words::Kind> {
    match kind {
        Kind::BlockDevice => Ok(words::Kind::BlockDevice),
        Kind::CharDevice => Ok(words::Kind::CharacterDevice),
        Kind::Socket => Ok(words::Kind::Socket),
        Kind::Fifo => Ok(words::Kind::Fifo),
        Kind::File | Kind::Directory | Kind::Symlink => Err(Error::InvalidArgument),
    }
}

fn time(time: words::Time) -> Time {
    Time { sec: time.seconds, nsec: time.nanoseconds.min(999_999_999) }
}

/// A time to send.
pub(super) fn sent_time(time: Time) -> words::Time {
    words::Time { seconds: time.sec, nanoseconds: time.nsec }
}

pub(super) fn attr(volume: VolumeId, attributes: &Attributes) -> Attr {
    let (fsid, _) = volume.0.split_at(8);
    Attr {
        kind: kind(attributes.kind),
        mode: attributes.mode & 0o7777,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: Device { major: attributes.device.major, minor: attributes.device.minor },
        size: attributes.size,
        used: attributes.used,
        fsid: u64::from_be_bytes(fsid.try_into().expect("half of a volume's name")),
        fileid: attributes.file.0,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        change: Some(attributes.change.0),
        data_change: Some(attributes.data_change.0),
        birth: Some(time(attributes.birth)),
    }
}

/// How an object changed. The version just before is exact, so no other field of `before` matters.
pub(super) fn change(volume: VolumeId, changed: &Changed) -> Change {
    let after = attr(volume, &changed.after);
    let before = Before {
        size: after.size,
        mtime: after.mtime,
        ctime: after.ctime,
        change: Some(changed.before.change.0),
        data_change: Some(changed.before.data_change.0),
    };
    Change { before: Some(before), after: Some(after) }
}

/// Attributes to set.
pub(super) fn set(set: &SetAttr) -> SetAttributes {
    let time = |time| match time {
        None => words::SetTime::Keep,
        Some(SetTime::ServerNow) => words::SetTime::Now,
        Some(SetTime::To(time)) => words::SetTime::To(sent_time(time)),
    };
    SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
    }
}

pub(super) fn device(device: Device) -> words::Device {
    words::Device { major: device.major, minor: device.minor }
}

/// The bits are the same ones.
pub(super) fn access(bits: u32) -> Access {
    Access(u8::try_from(bits & u32::from(Access::ALL.0)).unwrap_or(0))
}

pub(super) fn statfs(space: &Space) -> StatFs {
    StatFs {
        bytes: space.bytes,
        bytes_free: space.bytes_free,
        bytes_available: space.bytes_free,
        files: space.files,
        files_free: space.files_free,
        files_available: space.files_free,
        name_max: u32::try_from(NAME_BYTES_MAX).expect("a small number"),
    }
}

/// The entries of a reply. Names are copied, so that keeping one does not keep the whole reply.
pub(super) fn listing(volume: VolumeId, reply: &Entries) -> Listing {
    let entries = reply.entries.0.iter().map(|entry| Listed {
        name: OsString::from_vec(entry.name.to_vec()),
        fileid: entry.file.0,
        position: entry.cookie,
        tells_links: true,
        attr: entry.attributes.as_ref().map(|attributes| attr(volume, attributes)),
        handle: Some(handle(volume, entry.file)),
    });
    Listing {
        entries: entries.collect(),
        eof: reply.end,
        // Cookies stay good as long as the directory.
        verifier: 0,
        dir: Some(attr(volume, &reply.dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_means_its_file_in_its_volume_alone() {
        let (ours, theirs) = (VolumeId([1; 16]), VolumeId([2; 16]));
        let made = handle(ours, FileId(7));
        assert_eq!(file(ours, &made), Ok(FileId(7)));
        assert_eq!(file(theirs, &made), Err(Error::Stale));
        for foreign in [&[][..], &[1; 23], &[1; 25]] {
            assert_eq!(file(ours, &Handle::new(foreign)), Err(Error::Stale));
        }
    }

    #[test]
    fn names_that_name_nothing_are_not_sent() {
        let of = |name: &[u8]| dentry(FileId::ROOT, OsStr::from_bytes(name)).map(drop);
        assert_eq!(of(b"name"), Ok(()));
        assert_eq!(of(&[b'x'; 255]), Ok(()));
        assert_eq!(of(&[b'x'; 256]), Err(Error::NameTooLong));
        for name in [&b""[..], b"a/b", b"a\0"] {
            assert_eq!(of(name), Err(Error::InvalidArgument));
        }
    }
}
