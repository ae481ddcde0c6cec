<<<<<<< HEAD
//! The bench against real sockets, processes and file systems.

#![allow(clippy::unwrap_used, reason = "clippy sees tests only in functions marked as such")]

mod link;
=======
//! Integration tests: what users of this crate see.

#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

mod made_up;
mod report;
>>>>>>> c6d260a (larder-bench: a report of runs as one HTML page, as Markdown and as CSV)
