//! The front door for the kernel: serves any [`FileSystem`](larder_vfs::FileSystem) by `/dev/fuse`.
//!
//! [`mount`] mounts, [`Mounted`] waits and unmounts. In between, each request of the kernel becomes
//! one call of the file system; the thread that read the request gives an answer that is ready at
//! once, and the tokio runtime drives an answer that has to wait. The kernel bounds how many wait:
//! one for each thread that is in a system call, and `max_background` more for readahead.
//!
//! Invariants:
//! - errno lives here (`errno`) and nowhere else, and `ENOSYS` comes from this crate alone: to the
//!   kernel it means "never ask again".
//! - No open fails because of the I/O mode of another open of the file (`passthrough`).
//! - Each lookup that the file system counted is one that the kernel counts, and will forget.
//! - A thread that serves requests never waits for the kernel: invalidations go through a queue
//!   (`notify`), since the kernel may hold the inode's lock for a request that waits for us.
//! - [`Mounted::unmount`] returns within [`UNMOUNT_LIMIT`], whatever the file system does.
//!
//! Locks (`locks`), extended attributes (`xattrs`), allocation, holes (`space`) and copies (`copy`)
//! are passed on to file systems that have them. On a mount without locks, POSIX and BSD locks are
//! not announced, so that the kernel keeps them for this machine. An operation that a file system
//! does not have is refused once with `ENOSYS`; then the kernel answers it without us.
//!
//! Absent on purpose: knowledge of the client, of caches and of servers; access control lists, and
//! all extended attributes except those of users.
//!
//! The layers, from the kernel inwards: [`abi`] (the protocol as data), [`request`] (decoding,
//! without I/O), two transports (`reader`: `/dev/fuse`; `ring`: io_uring), `dispatcher` (each
//! request as a call of the file system, each answer as an `output`). A transport knows nothing of
//! the requests that it carries.
//!
//! A limit: `st_ino` is our [`Ino`](larder_vfs::Ino) and not the server's inode number.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

pub mod abi;
mod agree;
mod backing;
mod bare;
mod convert;
mod copy;
mod counts;
mod device;
mod dispatcher;
mod errno;
mod error;
mod groups;
mod helper;
mod hint;
mod late;
mod ledger;
mod listing;
mod locks;
mod mounted;
mod mountpoint;
mod notify;
mod options;
mod output;
mod passthrough;
mod reader;
pub mod request;
mod ring;
mod session;
mod space;
mod waits;
mod xattrs;

pub use bare::Bare;
pub use counts::References;
pub use error::MountError;
pub use mounted::{Begin, Mounted, UNMOUNT_LIMIT, mount, serve};
pub use mountpoint::KIND;
pub use options::{MountOptions, Transport};
pub use session::Session;
