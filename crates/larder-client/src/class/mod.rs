//! Which class a file has, here: the classes of the mount ([`larder_class::Classes`]), and those
//! that were set for single files and directories.
//!
//! A class is chosen when a file is opened, and belongs to the open file. The strongest that this
//! client can keep is [`offer`]: bytes are in this machine's memory, or on the server's disk.
//!
//! - [`table`]: what was set, in memory and as records of the cache.
//! - [`choose`]: the class of a file, for whoever opens it.
//! - [`set`]: setting one; the extended attributes that tell of classes.

mod choose;
mod set;
mod table;

use larder_class::{Level, Offer};

pub use choose::Durability;
pub(crate) use table::SetClasses;

/// What this client can keep for a mount. `whose` names that for people, as in "an NFS mount": the
/// server's disk holds one copy, and close and fsync wait for it, whatever the class.
pub fn offer(whose: &str) -> Offer {
    let copies = [(Level::Memory, 1), (Level::Durable, 1)].into();
    Offer { whose: whose.to_owned(), copies, waits_for: Some(Level::Durable) }
}
