//! The door to the kernel: `/dev/fuse` in front of any [`FileSystem`](larder_vfs::FileSystem).
//!
//! [`mount`] mounts, [`Mounted`] waits and unmounts. In between, each request of the kernel becomes
//! one call of the file system; a warm answer is given on the thread that read the request, one that
//! has to wait is driven by the tokio runtime. How many wait is bounded by the kernel: one for each
//! thread that is in a system call, and `max_background` more for readahead.
//!
//! Invariants:
//! - errno lives here (`errno`) and nowhere else, and `ENOSYS` comes from this crate alone: to
//!   the kernel it means "never ask again".
//! - No open fails because of the way that another open of the file takes (`passthrough`).
//! - Each lookup that the file system counted is one that the kernel counts, and will forget.
//! - A thread that serves requests never waits for the kernel: invalidations go through a queue
//!   (`notify`), since the kernel may hold the inode's lock for a request that waits for us.
//! - [`Mounted::unmount`] returns within [`UNMOUNT_LIMIT`], whatever the file system does.
//!
//! What is absent on purpose: knowledge of the client, of caches and of servers; locks (POSIX and BSD
//! locks are not announced, so that the kernel keeps them for this machine); extended attributes, ACLs,
//! `fallocate`, `copy_file_range` and `SEEK_HOLE` (refused once, then the kernel answers without us).
//!
//! The protocol is spoken by the `fuser` crate, of which nothing shows in this crate's interface. It
//! limits us: `st_ino` is our [`Ino`](larder_vfs::Ino) and not the server's inode number, entry and
//! attributes that come with a listing or a create share one time to live, and the signal that
//! interrupts a system call is not passed on.

mod convert;
mod door;
mod errno;
mod error;
mod groups;
mod listing;
mod mounted;
mod mountinfo;
mod mountpoint;
mod notify;
mod options;
mod passthrough;
mod reply;

pub use error::MountError;
pub use mounted::{Mounted, UNMOUNT_LIMIT, mount};
pub use options::MountOptions;
