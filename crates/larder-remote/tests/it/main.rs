//! The remotes against real servers. Needs root, nfs-ganesha and rpcbind.

mod nfs3;
