//! Both roles together, with programs of the tests' own.

#![allow(clippy::disallowed_methods, reason = "tests wait for real sockets")]
#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod callbacks;
mod endpoints;
mod hostile;
mod tls;
mod toy;
