//! The remotes against real servers. Needs root, nfs-ganesha and rpcbind.

#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

mod nfs3;
