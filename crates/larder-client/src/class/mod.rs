//! Which class a file has: the classes of the mount ([`larder_class::Classes`]), and those that
//! were set for single files and directories.
//!
//! A class is chosen when a file is opened, and belongs to the open file. [`offer`] is what the
//! client can provide.
//!
//! - [`table`]: the classes that were set, in memory and as records of the cache.
//! - [`choose`]: chooses the class of a file when it is opened.
//! - [`set`]: sets a class; the extended attributes that report classes.

mod choose;
mod set;
mod table;

use larder_class::{Level, Offer};

pub use choose::Durability;
pub(crate) use table::SetClasses;

/// What this client can keep for a mount. `whose` names that for people, as in "an NFS mount": the
/// server's disk holds one copy. If it `keeps` what is unsent (a cache on disk, and a server that
/// tells versions apart), close and fsync wait for this machine's disk at least, else for the
/// server's.
pub fn offer(whose: &str, keeps: bool) -> Offer {
    let levels = [Level::Memory, Level::Durable].into_iter().chain(keeps.then_some(Level::Local));
    let waits_for = if keeps { Level::Local } else { Level::Durable };
    let copies = levels.map(|level| (level, 1)).collect();
    Offer { whose: whose.to_owned(), copies, waits_for: Some(waits_for) }
}
