//! The bench against real sockets, processes and file systems, and its report against a parser.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod link;
mod made_up;
mod report;
