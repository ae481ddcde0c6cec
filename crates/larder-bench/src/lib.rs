//! The bench: published workloads on plain directories, measured with the same code for every
//! target.
//!
//! A *suite* is a list of tests; a test does file work in a directory and takes time. A *target* is
//! a directory with a name: a mount of ours, a rival's, or the local disk; nothing here knows which
//! file system it is. The runner interleaves targets, so that drift of the machine affects all
//! targets equally, and writes a [`record::Run`]: every sample, with the state of cache, link and
//! RPCs. The `report` is made from records alone.
//!
//! ```text
//! suite ── tests ──┐
//!                  ├─ runner ── record::Run ── report (HTML, Markdown, CSV)
//! targets ─ RPCs ──┘
//! ```
//!
//! [`stand`] makes and mounts targets, by the binary's own commands as a user would; [`link`] makes
//! their server seem distant; [`rivals`] starts other file systems beside it. *Absent:* every crate
//! of ours except `larder-io`, so that nothing measured can influence its own measurement.

#![allow(clippy::disallowed_methods, reason = "it measures by the clock of the machine")]

pub mod budget;
pub mod data;
pub mod link;
pub mod machine;
pub mod memory;
mod process;
pub mod progress;
pub mod published;
pub mod record;
pub mod report;
pub mod rivals;
pub mod rpc;
pub mod runner;
pub mod stand;
pub mod stats;
pub mod suite;
pub mod target;
