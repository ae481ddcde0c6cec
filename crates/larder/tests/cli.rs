//! The command line as users and other tools see it: the real binary, real sockets, real mounts.
//!
//! Tests that mount need root and `/dev/fuse`; they say so when they fail.

#[path = "cli/ground.rs"]
mod ground;
#[path = "cli/mounts.rs"]
mod mounts;
#[path = "cli/usage.rs"]
mod usage;
