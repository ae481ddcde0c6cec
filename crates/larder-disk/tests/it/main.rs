//! A disk as its clients and its metadata server see it.

#![allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")]
#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod attacks;
mod awaiting;
mod derivations;
mod fetching;
mod floods;
mod fuzz;
mod order;
mod stand;
mod tampering;
mod traffic;
