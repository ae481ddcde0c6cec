//! Extended attributes, on mounts that have them: GETXATTR, LISTXATTR, SETXATTR and REMOVEXATTR.
//!
//! The kernel asks for other names than those of users too: for `security.capability` before every
//! write(2), for access control lists when a program does. Those are refused here, without asking
//! the file system. The refusal is EOPNOTSUPP, and not ENOSYS, which the kernel would apply to all
//! names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use larder_vfs::{Result, SetXattr, XATTR_PREFIX, XATTR_VALUE_BYTES_MAX, XattrOnly};

use crate::abi::{GetxattrOut, SetxattrIn, XATTR_CREATE, XATTR_REPLACE};
use crate::errno::errno;
use crate::output::Output;

/// A name as the file system has it, if it has such names.
pub(crate) fn own(name: &OsStr) -> Option<&OsStr> {
    let own = name.as_bytes().strip_prefix(XATTR_PREFIX.as_bytes())?;
    (!own.is_empty()).then_some(OsStr::from_bytes(own))
}

/// The change that SETXATTR requests; or REMOVEXATTR, which has no value.
///
/// # Errors
/// The errno of a name that the file system does not have, or of flags without a meaning.
pub(crate) fn change(
    name: &OsStr,
    value: Option<(SetxattrIn, &[u8])>,
) -> std::result::Result<SetXattr, i32> {
    let name = own(name).ok_or(libc::EOPNOTSUPP)?.to_owned();
    let Some((set, value)) = value else {
        return Ok(SetXattr { name, value: None, only: Some(XattrOnly::Existing) });
    };
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(libc::E2BIG);
    }
    let only = match set.flags {
        0 => None,
        XATTR_CREATE => Some(XattrOnly::New),
        XATTR_REPLACE => Some(XattrOnly::Existing),
        _ => return Err(libc::EINVAL),
    };
    Ok(SetXattr { name, value: Some(Bytes::copy_from_slice(value)), only })
}

/// A value, for a caller with room for `size` bytes.
pub(crate) fn found(size: u32, value: Result<Option<Bytes>>) -> Output {
    match value {
        Ok(Some(value)) => sized(value, size),
        Ok(None) => Output::error(libc::ENODATA),
        Err(error) => Output::error(errno(error)),
    }
}

/// Names as listxattr(2) returns them, each with its prefix and ended by a NUL, for a caller with
/// room for `size` bytes.
pub(crate) fn listed(size: u32, names: Result<Vec<OsString>>) -> Output {
    match names {
        Ok(names) => sized(list(&names), size),
        Err(error) => Output::error(errno(error)),
    }
}

fn list(names: &[OsString]) -> Vec<u8> {
    let one = |name: &OsString| [XATTR_PREFIX.as_bytes(), name.as_bytes(), &[0]].concat();
    names.iter().flat_map(one).collect()
}

/// A caller with room for nothing asks how much there is.
fn sized(bytes: impl Into<Bytes>, size: u32) -> Output {
    let bytes = bytes.into();
    match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => Output::of(&GetxattrOut { size: len, padding: 0 }),
        Ok(len) if len <= size => Output::data(bytes),
        _ => Output::error(libc::ERANGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_users_are_ours() {
        assert_eq!(own("user.x".as_ref()), Some("x".as_ref()));
        for other in
            ["user.", "user", "security.capability", "trusted.x", "system.posix_acl_access"]
        {
            assert_eq!(own(other.as_ref()), None, "{other}");
            assert_eq!(change(other.as_ref(), None), Err(libc::EOPNOTSUPP), "{other}");
        }
        assert_eq!(list(&["a".into(), "b c".into()]), b"user.a\0user.b c\0");
    }

    #[test]
    fn what_callers_may_have_there_before() {
        let only = |flags| {
            let set = SetxattrIn { size: 1, flags };
            change("user.x".as_ref(), Some((set, b"1"))).map(|change| change.only)
        };
        assert_eq!(only(0), Ok(None));
        assert_eq!(only(XATTR_CREATE), Ok(Some(XattrOnly::New)));
        assert_eq!(only(XATTR_REPLACE), Ok(Some(XattrOnly::Existing)));
        assert_eq!(only(XATTR_CREATE | XATTR_REPLACE), Err(libc::EINVAL));
        let removed = change("user.x".as_ref(), None).unwrap();
        assert_eq!((removed.value, removed.only), (None, Some(XattrOnly::Existing)));
    }
}
