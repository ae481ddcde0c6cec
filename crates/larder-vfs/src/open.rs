//! Opens at a server: what a file is opened for, what comes of it, and the token that stands for
//! it.
//!
//! A server that knows opens judges, describes, leases and opens a file in one round trip
//! ([`crate::Remote::open`]). What is read and written under the [`Token`] needs no open of its
//! own. A server that knows none answers the same question without one.

use std::any::Any;
use std::sync::Arc;

use crate::{Access, Attr, Lease};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Rights of the caller that are to be judged; if none are, the answer need not describe the
    /// file.
    pub rights: Access,
    /// Its bytes are to be read.
    pub read: bool,
    /// Its bytes are to be written.
    pub write: bool,
}

impl Intent {
    /// Nothing but attributes, rights and a lease: for directories too.
    pub const LOOK: Intent = Intent { rights: Access::ALL, read: false, write: false };
    /// To read.
    pub const READ: Intent = Intent { read: true, ..Intent::LOOK };
    /// To write, by who knows already what may be done: nothing is asked.
    pub const WRITE: Intent = Intent { rights: Access::NONE, read: false, write: true };
    /// To read and write.
    pub const READ_WRITE: Intent = Intent { write: true, ..Intent::READ };
}

/// Stands for an open at a server. What it holds is its [`crate::Remote`]'s affair.
///
/// Clones stand for the same open. It is closed by [`crate::Remote::close`], or, at some later time
/// and without a word, when the last clone is dropped, which does not block.
#[derive(Clone)]
pub struct Token(Arc<dyn Any + Send + Sync>);

impl Token {
    /// Stands for `open`, which is closed when it is dropped.
    pub fn new<T: Any + Send + Sync>(open: T) -> Token {
        Token(Arc::new(open))
    }

    /// The open, for the implementation that has given the token; `None` if it was another one.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        (*self.0).downcast_ref()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Answer of [`crate::Remote::open`].
#[derive(Clone, Debug)]
pub struct RemoteOpened {
    /// What of the rights asked for the caller has.
    pub granted: Access,
    /// Attributes, if they came along.
    pub attr: Option<Attr>,
    /// A lease on the file, under which `attr` is true. Only together with `attr`. It may outlive
    /// the open.
    pub lease: Option<Lease>,
    /// The open; `None` if the server knows none, if the caller has none of the rights that it
    /// would need, or if too many files are open. The file can be used all the same, without it.
    pub token: Option<Token>,
}

impl RemoteOpened {
    /// What a server says that knows no opens and is asked for no rights.
    pub fn unknown() -> RemoteOpened {
        RemoteOpened { granted: Access::NONE, attr: None, lease: None, token: None }
    }
}
