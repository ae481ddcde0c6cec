//! Histories of several clients of a volume, against the checkers of [`larder_testkit::history`].

#![allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")]
#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

mod exclusive;
mod fetched;
mod histories;
mod kept;
mod kernel;
mod left;
mod locked;
mod player;
mod refusing;
mod retained;
mod world;
