//! The metadata server: names, attributes and extents of a volume, and the capabilities with which
//! clients reach its disks. File data does not pass through it.
//!
//! A *volume* is a tree of files. Its state is records in an [`engine::Engine`], an ordered map
//! with durable transactions. A call that changes something is a function: from a view of the
//! records, the call and its caller to a batch of writes and a reply. One thread, the *committer*,
//! applies such calls in groups and commits each group before it answers; calls that only read are
//! answered at once from durable state. What a client holds belongs to its *session*: open files,
//! slots that remember replies, *provisional* blocks. Its *grants*, each a *capability* with its
//! secret, say what it may do at a disk; when a file's rights or blocks change, those are revoked
//! at the disks before the call is answered.
//!
//! - [`Metadata`] is the service to put behind a server of `larder-rpc`; the protocol is in
//!   `docs/formats/meta-protocol.md`.
//! - [`volume`] makes volumes and adds disks to them; [`check()`] finds faults of one, and
//!   [`repair`] mends them.
//! - [`disks::Disks`] is its interface to disks: it makes and revokes capabilities;
//!   [`disks::ControlledDisks`] does that over the network.
//! - [`engine`] keeps the records; their format is in `docs/formats/meta-store.md`.
//!
//! In the code: `rights` checks rights; `names`, `attributes`, `xattrs` and `data` are the
//! functions of calls, `store` the records; `slots`, `opens`, `issued`, `leases`, `locks` and
//! `sessions` are the server's state besides them; `alone` has what calls that only read must know
//! of it; `in_place` tracks sessions that may have uncommitted writes in place; `resilver` finds
//! what disks have missed; `destage` orders what is due on other disks than memory disks; `archive`
//! puts versions of files into an archive; `late` tells what may be durable after its answer;
//! `rotation` gives the disks other keys;
//! `live` combines calls and this state, `committer` gives calls their order, `server` their
//! threads.
//!
//! Absent on purpose: file data, a second server at a time.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

mod activity;
mod alone;
pub mod archive;
mod archiver;
mod attributes;
mod change;
mod channels;
mod check;
mod committer;
mod data;
mod destage;
mod destaging;
pub mod disks;
pub mod engine;
mod held;
mod in_place;
mod inode;
mod issued;
mod late;
mod leases;
mod leaving;
mod live;
mod loading;
mod locks;
mod names;
mod opens;
mod ownership;
mod reads;
mod request;
mod resilver;
mod resilvering;
mod retained;
mod rights;
mod rotation;
mod server;
mod sessions;
mod slots;
mod store;
mod stores;
mod turn;
pub mod volume;
mod whereabouts;
mod xattrs;

#[cfg(test)]
mod tests;

pub use activity::{Activity, ArchiveTrouble, Archiving, Destaging, Progress};
pub use check::{Fault, FaultKind, check, repair};
pub use rights::Caller;
pub use rotation::{ROTATED_EVERY, Rotated, rotate, rotate_regularly};
pub use server::{Metadata, Options, PROGRAM};
