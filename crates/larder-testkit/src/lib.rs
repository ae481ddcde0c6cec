//! For tests: real third-party servers, our own volumes, and checkers of what several clients saw.
//!
//! Each third-party server runs in namespaces of its own (network, mounts, processes), so tests run
//! side by side and leave nothing behind: its first process is a shell that reads commands from us,
//! and when that pipe closes, by drop or because the test died, the kernel ends all the others with
//! it.
//!
//! Needs root and Linux, and the server's package; what is missing is named in the error. Not for
//! programs: nothing here is robust against hostile input.

#![allow(clippy::disallowed_methods, reason = "servers of others have no other clock")]
#![forbid(unsafe_code)]

mod ganesha;
pub mod history;
mod kdc;
mod postgres;
mod relay;
mod samba;
mod sandbox;
mod versioned;
mod versitygw;
mod volume;

pub use ganesha::{Ganesha, Network, Options, Squash};
pub use kdc::KdcOptions;
pub use postgres::PostgresServer;
pub use relay::Relay;
pub use samba::{Samba, SambaOptions};
pub use sandbox::StartError;
pub use versioned::Versioned;
pub use versitygw::Versitygw;
pub use volume::Volume;
