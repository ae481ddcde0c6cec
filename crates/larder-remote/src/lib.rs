//! Servers as [`larder_vfs::Remote`].
//!
//! - [`later`] is a server that is not connected yet.
//! - [`local`] serves a local directory.
//! - [`native`] speaks to larder's own servers.
//! - [`nfs3`] speaks NFS version 3.
//! - [`smb`] speaks SMB 2.1 to 3.1.1.
//!
//! ONC RPC, and the rule for how long a call waits, are in `larder-rpc`.
//!
//! Absent on purpose: caching, and any knowledge of the caller. Numbers of protocols (nfsstat3,
//! NTSTATUS) stop here; the layers above use only the types of `larder-vfs`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

pub mod later;
pub mod local;
pub mod native;
pub mod nfs3;
pub mod smb;
pub mod switch;
