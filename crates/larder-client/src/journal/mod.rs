//! What outlives the process.
//!
//! - [`record`]: the records of the index, and the format of each kind.
//! - [`session`]: the records of the session log, which the next process reads; [`notes`] puts them
//!   there.
//! - [`resume`]: how the next process goes on from there.

mod notes;
mod record;
mod resume;
mod session;

pub(crate) use record::{Known, ListingHead, Name, Page, PageEntry, Record, Version, name_bytes};
pub(crate) use session::{Carried, LockRecord, OPEN_BLOCK, OpenRecord, Unfinished};
