//! What is made at a server, and removed.

use std::ffi::OsString;

#[cfg(doc)]
use crate::Remote;
use crate::{Change, Found, Kind, Token};

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// A regular file; an existing one is opened and gets the attributes (its size too).
    File,
    /// A regular file that must not exist yet (`O_EXCL`), even if the request is sent twice.
    FileExclusive,
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(OsString),
    /// A named pipe, socket or device; or a regular file that must not exist yet, with its
    /// attributes in one request.
    Node(Kind, crate::Device),
}

/// Answer of [`Remote::make`].
#[derive(Debug)]
pub struct Made {
    /// The new object.
    pub found: Found,
    /// This call made the object, so whatever had its handle before is gone. `false` if it
    /// existed, if the server does not report it, or if the server never reuses a handle.
    pub created: bool,
    /// How the directory changed.
    pub dir: Change,
    /// A file that was made is open at the server, for reading and writing, as by
    /// [`Remote::open`].
    pub token: Option<Token>,
}

/// What [`Remote::remove`] removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}
