//! How an operation of a server changed an object, as far as the server reports that.

use crate::{Attr, Time, Validator};

/// How an operation changed an object, as far as the server reports it (RFC 1813, `wcc_data`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// What the server saw just before: if that is what we had, no other client had changed it.
    pub before: Option<Before>,
    /// Attributes just after.
    pub after: Option<Attr>,
}

/// What a server reports of an object just before an operation (RFC 1813, `wcc_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Change attribute, where the protocol has one.
    pub change: Option<u64>,
    /// The version in which the data changed last, where the protocol has that.
    pub data_change: Option<u64>,
}

impl Before {
    /// The version that it was.
    pub fn validator(&self) -> Validator {
        let Before { size, mtime, ctime, change, data_change } = *self;
        Validator { change, data_change, size, mtime, ctime }
    }
}

impl Change {
    /// Whether the object was still in the version `held` just before the operation. Unknown counts
    /// as no.
    pub fn follows(&self, held: &Validator) -> bool {
        self.before.is_some_and(|before| held.same(&before.validator()))
    }
}
