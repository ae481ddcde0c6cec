//! What outlives the process.
//!
//! - [`record`]: the codec of the index's records.
//! - [`session`]: the session log: what is recorded while it happens, so that the next process knows it.
//! - [`resume`]: how the next process goes on from there.

mod record;
mod resume;
mod session;

pub(crate) use record::{Known, ListingHead, Name, Page, PageEntry, Version, name_bytes};
pub use resume::Start;
pub(crate) use session::{Carried, OPEN_BLOCK, OpenRecord, Unfinished};
