//! What [`crate::Remote::readdir`] answers.

use std::ffi::OsString;

use crate::{Attr, Handle};

/// Where a listing continues. The default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie {
    /// The server's position.
    pub position: u64,
    /// Says which state of the directory the position belongs to.
    pub verifier: u64,
}

/// Answer of [`crate::Remote::readdir`].
#[derive(Clone, Debug)]
pub struct Listing {
    /// Entries in the server's order.
    pub entries: Vec<Listed>,
    /// Whether these were the last ones.
    pub eof: bool,
    /// Verifier to continue with.
    pub verifier: u64,
    /// Attributes of the directory, if the reply has them.
    pub dir: Option<Attr>,
}

/// An entry of a [`Listing`].
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: OsString,
    /// The server's inode number.
    pub fileid: u64,
    /// Position after this entry.
    pub position: u64,
    /// Attributes, if the reply has them.
    pub attr: Option<Attr>,
    /// Whether the link count is among them; otherwise it is 1 there.
    pub tells_links: bool,
    /// Handle, if the reply has it.
    pub handle: Option<Handle>,
}
