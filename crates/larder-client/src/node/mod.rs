//! What is known of each file, and whether it still holds.
//!
//! - [`table`]: the nodes in memory, over the cache's index.
//! - [`state`]: what is known of one file, and how replies change it; [`changes`]: our own changes under
//!   way; [`server_times`]: how far a server's times tell versions apart.
//! - [`attributes`]: attributes, asked for when they are needed; [`lease`]: while nothing needs to be asked.
//! - [`rights`]: what the server lets whom do; [`privileges`]: set-uid and set-gid bits that writers drop.
//! - [`identity`]: which file a handle means.

mod attributes;
mod changes;
mod identity;
mod lease;
mod privileges;
pub(crate) mod rights;
mod server_times;
mod state;
mod table;

pub(crate) use changes::{Settled, have_same_bytes, replacing, unchanged};
pub(crate) use server_times::ServerTimes;
pub(crate) use state::{Seen, State};
pub(crate) use table::{Node, Table};
