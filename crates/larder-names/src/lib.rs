//! Names of a mount that is their only writer: made on this machine first, and at the server later.
//!
//! [`Names`] is a layer between a client and its server, itself a [`larder_vfs::Remote`]. Objects
//! that the client makes through [`larder_vfs::Deferring::names`] get a handle and an inode number
//! of their own, a record in the journal of names (in the cache's index), and a time by which the
//! server must have them. Until then they are looked up, listed, renamed, changed and removed here;
//! an object that is removed before the server has it costs no request at all. When the time comes,
//! when a caller asks for it, or when anything about the object needs the server (its first byte of
//! data above all), the object is *made at the server*, after the directories in which it is. Its
//! handle and its number stay.
//!
//! Invariants:
//! - A call that is not answered here goes to the server after everything that it depends on has
//!   been made there: this is always right, and is the fallback for every case that is not handled
//!   here.
//! - An object that the server may have been asked to make is not changed here before the answer is
//!   known. The attempt is recorded on the local disk before the request is sent.
//! - It is recorded on the local disk that the server has an object before anything else of the
//!   object goes there: data, entries, other names.
//! - Nothing that was acknowledged is dropped: an object that the server refuses stays waiting, and
//!   is reported.
//!
//! - [`object`], [`record`], [`journal`]: what was made here, as a pure state machine.
//! - [`licence`]: when this machine may answer.
//! - [`dir_lease`], [`leased`]: the server's leases on directories that license it.
//! - [`server_dir`]: what is known of the server's directories in which something was made.
//! - [`state`], [`shared`]: both together; translates handles and attributes between client and
//!   server.
//! - [`recording`]: from the journal to the cache's disk.
//! - [`met`]: what met another client's change, as it goes on record there.
//! - [`lookup`], [`listing`]: lookups and listings.
//! - [`changing`]: one change of names, here or there.
//! - [`crossing`], [`under_way`]: changes that decide what others answer.
//! - [`deferred`]: changes of names that are answered here.
//! - [`going`]: what loses its name by them.
//! - [`passed`]: changes of names that are made at the server at once.
//! - [`doubt`], [`unanswered`]: objects that the server may have changed for us without an answer.
//! - [`linked`], [`linking`]: other names of files, and making them at the server.
//! - [`steps`]: steps of the changes that are made there.
//! - [`which`], [`due_times`], [`due`], [`replay`]: makes waiting objects at the server.
//! - [`limited`]: the same for what nobody waits for, within a limit on bytes per second.
//! - [`returning`]: the same before a lease is returned.
//! - [`retake`], [`giving_way`]: removes and renames there what was taken away here.
//! - [`gone_dirs`]: what waits for a directory that is gone there.
//! - [`watching`]: ends of the server's leases.
//! - [`reports`]: reports on waiting objects for users.
//! - [`names`], [`answers`]: the [`larder_vfs::Remote`], and its [`larder_vfs::Deferring`].
//!
//! Left out on purpose: which names may be deferred (the client knows their classes), and data.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod altered;
mod answers;
mod asked;
mod changing;
mod claim;
mod crossing;
mod deferred;
mod dir_lease;
mod doubt;
mod due;
mod due_times;
mod for_callers;
mod giving_way;
mod going;
mod gone_dirs;
mod journal;
mod leased;
mod licence;
mod limited;
mod linked;
mod linking;
mod listing;
mod lookup;
mod making;
mod met;
mod names;
mod object;
mod overlay;
mod passed;
mod record;
mod recording;
mod replay;
mod reports;
mod retake;
mod returning;
mod server_dir;
mod setting;
mod shared;
mod state;
mod steps;
mod taken;
mod there;
mod unanswered;
mod under_way;
mod watching;
mod which;

pub use licence::Licence;
pub use names::Names;

#[cfg(test)]
mod tests;
