//! Opens at a server: what a file is opened for, the result, and the token that stands for the
//! open.
//!
//! A server with opens checks rights, describes, leases and opens a file in one round trip
//! ([`crate::Remote::open`]). Reads and writes under the [`Token`] need no open of their own. A
//! server without opens answers the same question without a token.

use std::any::Any;
use std::sync::Arc;

use crate::{Access, Attr, Lease};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Rights of the caller to check; if there are none, the answer need not contain attributes.
    pub rights: Access,
    /// Its bytes are to be read.
    pub read: bool,
    /// Its bytes are to be written.
    pub write: bool,
}

impl Intent {
    /// Only attributes, rights and a lease: for directories too.
    pub const LOOK: Intent = Intent { rights: Access::ALL, read: false, write: false };
    /// To read.
    pub const READ: Intent = Intent { read: true, ..Intent::LOOK };
    /// To write, by a caller whose rights are already known: nothing is asked.
    pub const WRITE: Intent = Intent { rights: Access::NONE, read: false, write: true };
    /// To read and write.
    pub const READ_WRITE: Intent = Intent { write: true, ..Intent::READ };
}

/// Identifies an open at a server. Its content is private to its [`crate::Remote`].
///
/// Clones identify the same open. It is closed by [`crate::Remote::close`], or, at some later time
/// and without notice, when the last clone is dropped, which does not block.
#[derive(Clone)]
pub struct Token(Arc<dyn Any + Send + Sync>);

impl Token {
    /// Stands for `open`, which is closed when it is dropped.
    pub fn new<T: Any + Send + Sync>(open: T) -> Token {
        Token(Arc::new(open))
    }

    /// The open, for the implementation that made the token; `None` if another one made it.
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
    /// Those of the requested rights that the caller has.
    pub granted: Access,
    /// Attributes, if the reply has them.
    pub attr: Option<Attr>,
    /// A lease on the file, under which `attr` is true. Only together with `attr`. It may outlive
    /// the open.
    pub lease: Option<Lease>,
    /// The open; `None` if the server has no opens, if the caller has none of the rights that it
    /// would need, or if too many files are open. The file can be used all the same, without it.
    pub token: Option<Token>,
}

impl RemoteOpened {
    /// The answer of a server that has no opens and is asked for no rights.
    pub fn unknown() -> RemoteOpened {
        RemoteOpened { granted: Access::NONE, attr: None, lease: None, token: None }
    }
}
