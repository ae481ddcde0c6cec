//! What was done here and met another client's change at the server, as it goes on record
//! ([`larder_cache::Conflict`]).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use larder_cache::{Cache, Conflict, ConflictKind};
use larder_vfs::Handle;

use crate::journal::Journal;
use crate::object::{Dentry, Dir};

/// A change of ours that met another client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Another client has the wanted name.
    Name { kind: ConflictKind, at: Dentry, wanted: OsString },
    /// An object that was to be removed stays.
    Stays { at: Dentry },
    /// Attributes are given up, of the object with this handle at the server.
    Attributes { of: Handle },
}

impl Met {
    /// As the cache records it.
    pub(crate) fn conflict(self, journal: &Journal, cache: &Cache) -> Conflict {
        let number = |dir: &Dir| cache.number_of(journal.client_handle(dir).as_bytes());
        let none = Conflict {
            kind: ConflictKind::Attributes,
            dir: None,
            file: None,
            name: Vec::new(),
            wanted: Vec::new(),
            aside: String::new(),
            reason: String::new(),
        };
        match self {
            Met::Name { kind, at, wanted } => Conflict {
                kind,
                dir: number(&at.dir),
                name: at.name.into_vec(),
                wanted: wanted.into_vec(),
                ..none
            },
            Met::Stays { at } => Conflict {
                kind: ConflictKind::Removed,
                dir: number(&at.dir),
                name: at.name.clone().into_vec(),
                wanted: at.name.into_vec(),
                ..none
            },
            Met::Attributes { of } => Conflict { file: number(&journal.dir(&of)), ..none },
        }
    }
}
