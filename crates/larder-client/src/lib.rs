//! The core of larder: a [`larder_vfs::FileSystem`] over a [`larder_vfs::Remote`] and a cache.
//!
//! The nouns:
//! - A *node* is what we know of one file: attributes, names, rights, open files. All nodes are
//!   records of the cache's index; the busy ones are in memory.
//! - A *version* of a file is named by its [`larder_vfs::Validator`]. Bytes are held for one
//!   version and never used for another.
//! - Names belong to an *epoch* of their directory: when another client changes the directory, a
//!   new epoch begins and no old name is trusted.
//! - A *flight* is a range being fetched from the server; readers of the same range share it.
//! - *Write-back* sends dirty bytes to the server and keeps them as clean bytes of the version that
//!   they made.
//!
//! Coherence is NFSv3's, close-to-open and attribute timeouts, and stronger under a *lease*, if the
//! server grants one: while it holds, the server is asked nothing (see `docs/semantics.md`). A
//! server out of reach is asked at most once per call; meanwhile the client serves what is cached.
//!
//! Absent on purpose: protocols, sockets, FUSE.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

mod class;
mod client;
mod core;
#[cfg(test)]
mod fixtures;
mod fs;
mod journal;
mod limits;
mod locks;
mod names;
mod node;
mod open;
mod options;
mod patience;
mod read;
mod write;

pub use class::{Durability, Here, offer, shared_offer};
pub use client::{Client, Status};
pub use names::{last_path, parent_in_record};
pub use open::Remaker;
pub use options::{Keeps, LookupCache, Options, Start};
pub use read::Fill;
pub use write::{Due, Unsaved, UnsentTotal};
