//! The archive on a real S3 server.

#![allow(clippy::disallowed_methods, reason = "servers of others have no other clock")]
// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod faults;
mod tls;
mod versions;
mod world;
