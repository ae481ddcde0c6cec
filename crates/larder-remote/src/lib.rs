//! Servers as [`larder_vfs::Remote`], and the transport that leads to them.
//!
//! - [`later`] is a server that is yet to be reached.
//! - [`local`] serves a local directory.
//! - [`nfs3`] speaks NFS version 3.
//! - [`smb`] speaks SMB 2.1 to 3.1.1.
//! - [`rpc`] carries ONC RPC calls over TCP and UDP, and accounts for each.
//!
//! Absent on purpose: caching, and any knowledge of who asks. Numbers of protocols (nfsstat3, NTSTATUS) end
//! here; above are only the words of `larder-vfs`.

#![forbid(unsafe_code)]

pub mod later;
pub mod local;
pub mod nfs3;
mod patience;
pub mod rpc;
pub mod smb;
