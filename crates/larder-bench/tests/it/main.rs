//! The bench against real sockets, processes and file systems.

#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod link;
