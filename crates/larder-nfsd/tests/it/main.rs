//! The server over loopback, driven by raw messages: each procedure, each refusal, lost replies,
//! restarts and hostile bytes. What it serves is a local directory, so most tests need the
//! superuser and say so where they are skipped.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod conformance;
mod direct;
mod duplicates;
mod fuzz;
mod harness;
mod hostile;
mod listing;
mod mount;
mod procedures;
mod rights;
mod transport;
