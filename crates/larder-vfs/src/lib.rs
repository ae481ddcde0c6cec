//! The shared vocabulary of larder and its two interfaces.
//!
//! A *front door* (the kernel through FUSE, an NFS client through our server) makes requests to a
//! [`FileSystem`]; larder's client makes requests to a server through [`Remote`]. Both interfaces
//! use the same types: [`Ino`] and [`Handle`] name a file, [`Attr`] describes it, a [`Validator`]
//! distinguishes versions of its bytes, [`Cred`] says on whose behalf a call is made, and [`Error`]
//! says what went wrong in the vocabulary of POSIX, without any protocol's numbers.
//!
//! Absent on purpose: a clock, sockets, a disk, an async runtime. A future returned here does
//! nothing by itself; the caller drives it.
//!
//! - [`Direct`] turns a `Remote` into a `FileSystem` without caching anything: the baseline, and
//!   what `larder export` serves.
//! - [`MemRemote`] is a server in memory: the model that other servers are compared with.
//! - [`conformance`] is the suite that every `Remote` must pass.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

mod attr;
mod change;
pub mod conformance;
mod copy;
mod cred;
mod deadline;
mod deferring;
mod direct;
mod error;
mod fs;
mod id;
mod lease;
mod listing;
mod lock;
mod making;
mod mem;
mod open;
mod remote;
mod space;
mod stored;
mod xattr;

pub use attr::{Access, Attr, Device, Kind, SetAttr, SetTime, StatFs, Time, Validator, Volatile};
pub use change::{Before, Change};
pub use copy::{CopyEnd, RemoteCopied};
pub use cred::Cred;
pub use deadline::{Deadline, Progress};
pub use deferring::{Deferred, Deferring, Held};
pub use direct::Direct;
pub use error::{Error, Result};
pub use fs::{
    Answer, DataPath, DirEntry, Entry, FileSystem, Fresh, Hold, Kernel, LocalFile, Lookup,
    OpenFlags, OpenId, OpenOffset, Opened, RenameFlags, Told, Written,
};
pub use id::{Handle, Ino};
pub use lease::{Lease, LeaseHandled, Watcher};
pub use listing::{Cookie, Listed, Listing};
pub use lock::{
    GivenUp, LOCK_END, Lock, LockChange, LockKind, LockMap, LockMode, LockOwner, ReservedLock,
};
pub use making::{Made, New, Removal};
pub use mem::{MemRemote, Trouble};
pub use open::{Intent, RemoteOpened, Token};
pub use remote::{
    Changed, Committed, Found, Future, Judged, LookedUp, Remote, RemoteLimits, RemoteRead,
    RemoteWritten, Stability, Verifier,
};
pub use space::{Seek, SpaceChange, SpaceKind};
pub use stored::{InArchive, Medium, StoredPart};
pub use xattr::{SetXattr, XATTR_NAME_BYTES_MAX, XATTR_PREFIX, XATTR_VALUE_BYTES_MAX, XattrOnly};
