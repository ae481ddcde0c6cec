//! [`MemRemote`]: a server in memory.
/// A server in memory.
pub struct MemRemote;
