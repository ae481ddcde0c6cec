//! A network-attached disk, after Snapdragon (FAST 2003): ranges of bytes, read and written
//! directly by clients under capabilities, which the disk checks on its own.
//!
//! The nouns, from the outside in:
//! - [`DiskService`] is the program of disks ([`larder_wire::disk`]) behind a server of
//!   `larder-rpc`.
//! - [`Device`] is the disk: it makes sessions and carries out requests, independent of the
//!   transport.
//! - [`Sessions`](sessions::Sessions) know which requests have already arrived ([`window`]).
//! - [`Standing`](standing::Standing) is what the metadata server has told the disk (key epochs,
//!   [`groups`], until when it may be trusted) and checks capabilities by it.
//! - [`Store`](store::Store) has the bytes, and knows which blocks were written.
//! - [`Limit`](limit::Limit) says how many bytes it may hold while its machine lacks memory.
//!
//! A client's request passes these checks, in this order, and is refused by the first that it
//! fails:
//! 1. its session is one of this boot;
//! 2. its capability is for this volume, disk and boot, and of a key epoch that is accepted;
//! 3. its seal is right: its sender has the secrets of session and capability, and it was not
//!    altered;
//! 4. its sequence number was not used;
//! 5. the disk has heard from the metadata server in time, and the capability's group is valid, the
//!    capability not revoked, not expired, of the right mode, and covers the bytes;
//! 6. the store can do it.
//!
//! If it fails one of the first four, the disk only counts the refusal. Such refusals are answered
//! without a seal, because the receiver is unknown, or the seal would need a number twice.
//!
//! Invariants: once a revocation is answered, a revoked capability admits nothing, and no request
//! that it admitted before is still in flight; a disk that has just started, or has not heard from
//! the metadata server in time, refuses everything.
//!
//! On an order of the metadata server a disk reads bytes of another one, as a client of that, and
//! writes them to its store (`device/fetch.rs`).
//!
//! Absent on purpose: names, files, users, clients; which other disks there are; `larder-meta`.
//! Data is copied once, between the socket's buffer and the store.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod control;
pub mod counts;
mod device;
pub mod groups;
pub mod limit;
mod service;
pub mod sessions;
pub mod standing;
pub mod store;
mod underway;
pub mod window;

pub use device::{Config, Device, TRUST_MAX};
pub use service::DiskService;
pub use store::{Identity, OpenError, Store};
