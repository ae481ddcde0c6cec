//! The server without threads and sockets: the committer, driven by hand.

// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod blocks;
mod data;
mod enrolment;
mod in_place;
mod leases;
mod locks;
mod mirrors;
mod model;
mod names;
mod on_way;
mod once;
pub(crate) mod rig;
mod sessions;
mod several;
