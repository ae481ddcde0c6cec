//! What is known of each file, and whether it still holds.
//!
//! - [`table`]: the nodes in memory, over the cache's index.
//! - [`coherence`]: takes in what replies tell, and has the kernel drop what is no longer true.
//! - [`state`]: what is known of one file, and how replies change it; [`changes`]: our own changes
//!   under way; [`server_times`]: how far a server's times tell versions apart.
//! - [`attributes`]: attributes, asked for when they are needed; [`lease`]: while nothing needs to
//!   be asked; [`leasing`]: what is known of one lease.
//! - [`rights`]: what the server lets whom do, by its [`verdicts`] of which some still count
//!   ([`judged`]), and [`squash`]es root or not; [`privileges`] and [`dropped`]: set-uid and
//!   set-gid bits that writers drop.
//! - [`identity`]: which file a handle means.

mod attributes;
mod changes;
mod coherence;
mod dropped;
mod identity;
mod judged;
mod lease;
mod leasing;
mod privileges;
mod rights;
mod server_times;
mod squash;
mod state;
mod table;
pub(crate) mod verdicts;
mod xattrs;

pub(crate) use changes::{have_same_bytes, replacing, unchanged};
pub(crate) use server_times::ServerTimes;
pub(crate) use squash::{RootSquash, Squash};
pub(crate) use state::State;
pub(crate) use table::{Node, Table};
