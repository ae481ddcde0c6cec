//! The metadata server over sockets and on real disks.

#![allow(clippy::disallowed_methods, reason = "tests wait for real sockets and processes")]
// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod client;
#[path = "../../src/tests/commits.rs"]
mod commits;
mod disks;
mod fuzz;
mod keys;
mod killed;
mod late;
mod postgres;
mod postgres_late;
mod postgres_tls;
mod served;
mod serving;
mod setups;
mod store;
mod trust;
