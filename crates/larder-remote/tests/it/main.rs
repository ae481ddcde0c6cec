//! The remotes against real servers. Needs root, nfs-ganesha, rpcbind, samba and smbclient.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

mod fuzz;
mod native;
mod nfs3;
mod smb;
