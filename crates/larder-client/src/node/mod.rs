//! State of each file, and whether it is still valid.
//!
//! - [`table`]: the nodes in memory, over the cache's index.
//! - [`coherence`]: processes replies, and makes the kernel drop what is no longer true.
//! - [`state`]: state of one file, and how replies change it; [`changes`]: our own changes in
//!   flight; [`server_times`]: how well a server's times distinguish versions.
//! - [`attributes`]: fetches attributes when they are needed; [`lease`]: while a lease makes that
//!   unnecessary; [`leasing`]: state of one lease.
//! - [`rights`]: what the server allows each user, by its [`verdicts`], the valid ones of which are
//!   [`valid_verdicts`], and whether it [`squash`]es root; [`privileges`] and [`dropped`]: set-uid
//!   and set-gid bits that writers drop.
//! - [`identity`]: which file a handle means.

mod attributes;
mod changes;
mod coherence;
mod dropped;
mod identity;
mod lease;
mod leasing;
mod privileges;
mod rights;
mod server_times;
mod squash;
mod state;
mod table;
mod valid_verdicts;
pub(crate) mod verdicts;
mod xattrs;

pub(crate) use changes::{Seen, have_same_bytes, replacing, unchanged};
#[cfg(test)]
pub(crate) use server_times::Age;
pub(crate) use server_times::ServerTimes;
pub(crate) use squash::{RootSquash, Squash};
pub(crate) use state::State;
pub(crate) use table::{Node, Table};
