//! A network-attached disk, after Snapdragon (FAST 2003): ranges of bytes, read and written
//! directly by clients under capabilities, which the disk checks alone.
//!
//! The nouns, from the outside in:
//! - [`DiskService`] is the program of disks ([`larder_wire::disk`]) behind a server of
//!   `larder-rpc`.
//! - [`Device`] is the disk: it makes sessions and carries out requests, whoever brings them.
//! - [`Sessions`](sessions::Sessions) know which requests came before ([`window`]).
//! - [`Standing`](standing::Standing) is what the metadata server has told the disk (key epochs,
//!   [`groups`], until when it may be trusted) and judges capabilities by it.
//! - [`Store`](store::Store) has the bytes, and knows which blocks were written.
//!
//! A request of a client passes these, in this order, and is refused by the first that it does not
//! pass:
//! 1. its session is one of this boot;
//! 2. its capability is for this volume, disk and boot, and of a key epoch that is taken;
//! 3. its seal is right: who sent it has the secrets of session and capability, and nobody altered
//!    it;
//! 4. its sequence number was not used;
//! 5. the metadata server was heard of in time, and the capability's group is valid, the capability
//!    not revoked, not expired, of the right mode, and covers the bytes;
//! 6. the store can do it.
//!
//! Up to the fourth, nothing is remembered of it but that it was refused. Refusals up to there are
//! answered without a seal, since nobody is known to seal to, or the seal would need a number
//! twice.
//!
//! Invariants: what is revoked lets nothing in once the metadata server was answered, and nothing
//! that it let in before is still under way then; a disk that has just started, or has not heard of
//! the metadata server in time, refuses everything.
//!
//! Absent on purpose: names, files, users, clients, other disks; `larder-meta`. Data is copied
//! once, between the socket's buffer and the store.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod control;
pub mod counts;
mod device;
pub mod groups;
mod keys;
mod rate;
mod service;
pub mod sessions;
pub mod standing;
pub mod store;
mod underway;
pub mod window;

pub use device::{Config, Device, TRUST_MAX};
pub use service::DiskService;
pub use store::{Identity, OpenError, Store};
