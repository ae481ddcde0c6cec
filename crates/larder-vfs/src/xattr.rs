//! Extended attributes: small values with names, which a file carries beside its data. Only the
//! names that users may choose (xattr(7)), without their `user.` prefix.

use std::ffi::OsString;

use bytes::Bytes;

use crate::{Error, Result};

/// The prefix of the names in the kernel.
pub const XATTR_PREFIX: &str = "user.";

/// Longest name, in bytes, with [`XATTR_PREFIX`].
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Longest value, in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;

/// A change of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetXattr {
    /// Its name, without [`XATTR_PREFIX`].
    pub name: OsString,
    /// Its value from now on; `None` removes it.
    pub value: Option<Bytes>,
    /// Whether the attribute may or must exist.
    pub only: Option<XattrOnly>,
}

/// When an extended attribute is set only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrOnly {
    /// Only if it does not exist; otherwise [`Error::Exists`].
    New,
    /// Only if it exists; otherwise [`Error::NoAttribute`].
    Existing,
}

impl SetXattr {
    /// Whether this may be done if the value is `held`, or if there is none.
    ///
    /// # Errors
    /// As [`XattrOnly`] says.
    pub fn judge(&self, held: Option<&Bytes>) -> Result<()> {
        match (self.only, held) {
            (Some(XattrOnly::New), Some(_)) => Err(Error::Exists),
            (Some(XattrOnly::Existing), None) => Err(Error::NoAttribute),
            _ => Ok(()),
        }
    }

    /// Whether the attribute already is as requested: a first attempt, whose answer was lost, may
    /// have been carried out.
    pub fn is_done(&self, held: Option<&Bytes>) -> bool {
        self.value.as_ref() == held
    }

    /// # Errors
    /// [`Error::NameTooLong`] and [`Error::TooLarge`], if name or value is longer than any server
    /// accepts.
    pub fn check_lengths(&self) -> Result<()> {
        if XATTR_PREFIX.len() + self.name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        match &self.value {
            Some(value) if value.len() > XATTR_VALUE_BYTES_MAX => Err(Error::TooLarge),
            _ => Ok(()),
        }
    }
}
