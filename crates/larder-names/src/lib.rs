//! Names of a mount that is their only writer: made on this machine, at the server later.
//!
//! [`Names`] stands between a client and its server, as one more [`larder_vfs::Remote`]. Objects
//! that the client makes by way of [`larder_vfs::Deferring::names`] get a handle and an inode
//! number of their own, a record in the journal of names (in the cache's index), and a time by
//! which the server is to have them. Until then they are looked up, listed, renamed, changed and
//! removed here; what is removed before the server has it costs no request at all. When the time
//! comes, when somebody asks for it, or when anything about the object needs the server (its first
//! byte of data above all), the object is *made at the server*, after the directories that it is
//! in. Its handle and its number stay.
//!
//! Invariants:
//! - What is not answered here is made at the server first, with whatever it depends on: that is
//!   always right, and what is not answered here yet is done so.
//! - An object that the server may have been asked for is not changed here before its answer is
//!   known. That it is asked for is on the local disk before the request goes.
//! - That the server has an object is on the local disk before anything of it goes there: data,
//!   entries, other names.
//! - Nothing that was acknowledged is dropped: what the server refuses waits on, and is told.
//!
//! - [`object`], [`record`], [`journal`]: what was made here, as a pure machine.
//! - [`known`]: what is known of the server's directories in which something was made.
//! - [`state`], [`shared`]: both together, and handles and attributes between client and server.
//! - [`lookup`], [`listing`]: looking at names.
//! - [`deferred`]: changes of names that are answered here.
//! - [`passed`]: changes of names that are made at the server at once.
//! - [`replay`]: making at the server what waits.
//! - [`names`]: the [`larder_vfs::Remote`].
//!
//! Left out on purpose: which names may be deferred (the client knows their classes), and data.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod deferred;
mod journal;
mod known;
mod listing;
mod lookup;
mod names;
mod object;
mod passed;
mod record;
mod replay;
mod shared;
mod state;

pub use names::Names;

#[cfg(test)]
mod tests;
