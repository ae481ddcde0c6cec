//! State that survives the process.
//!
//! - [`record`]: the records of the index, and the format of each kind.
//! - [`session`]: the records of the session log, which the next process reads; [`notes`] writes
//!   them.
//! - [`place`]: what a file is to be like that the server gets in place of what was set aside.
//! - [`resume`]: how the next process resumes from them.

mod notes;
mod place;
mod record;
mod resume;
mod session;

pub(crate) use place::Place;
pub(crate) use record::{Known, ListingState, Name, Page, PageEntry, Record, Version, name_bytes};
pub(crate) use session::{Carried, LockRecord, OPEN_BLOCK, OpenRecord, Unfinished};
