//! How files are named: [`Ino`] at the front door, [`Handle`] at the server.

use std::fmt;
use std::sync::Arc;

/// Number of a file at the front door: FUSE's node id.
///
/// A number is assigned once and never reused while the file system's state lives, even over
/// restarts if the state is persistent. It is not the server's inode number (that is
/// [`crate::Attr::fileid`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of every file system.
    pub const ROOT: Ino = Ino(1);
}

/// A server's name for a file: opaque bytes that stay valid when the file is renamed.
///
/// An NFSv3 handle has at most 64 bytes (RFC 1813, 2.4), NFSv4 128.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(Arc<[u8]>);

impl Handle {
    /// Longest handle that larder accepts from a server, in bytes.
    pub const LEN_MAX: usize = 128;

    /// Wraps the bytes that a server sent.
    ///
    /// # Panics
    /// If there are more than [`Handle::LEN_MAX`]: codecs refuse such a handle earlier.
    pub fn new(bytes: &[u8]) -> Handle {
        assert!(bytes.len() <= Handle::LEN_MAX, "handle of {} bytes", bytes.len());
        Handle(bytes.into())
    }

    /// The opaque bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(")?;
        for byte in self.0.iter() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}
