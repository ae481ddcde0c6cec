//! The server without threads and sockets: the tests drive the committer.

// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod alone;
mod archiving;
mod blocks;
mod commits;
mod data;
mod destaging;
mod enrolment;
mod freeing;
mod in_place;
mod late;
mod leases;
mod leaving;
mod locks;
mod memory;
mod mending;
mod mirrors;
mod model;
mod names;
mod near;
mod on_way;
mod once;
mod raising;
mod random;
mod records;
mod retaining;
pub(crate) mod rig;
mod sessions;
mod several;
mod stores;
mod turn;
mod yielding;
mod yielding_to_memory;
