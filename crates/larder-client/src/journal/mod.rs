//! What outlives the process.
//!
//! - [`record`]: the codec of the index's records.
//! - [`session`]: the records of the session log, which the next process reads; [`notes`] puts them there.
//! - [`resume`]: how the next process goes on from there.

mod notes;
mod record;
mod resume;
mod session;

pub(crate) use record::{Known, ListingHead, Name, Page, PageEntry, Version, name_bytes};
pub(crate) use session::{Carried, OPEN_BLOCK, OpenRecord, Unfinished};
