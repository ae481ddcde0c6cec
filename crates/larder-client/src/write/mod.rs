//! Writes, and unsent data.
//!
//! - [`upload`]: takes writes into the cache, and carries them to the server.
//! - [`send`]: the requests of one write-back.
//! - [`schedule`]: when unsent data goes, as a state machine; [`engine`] carries that out.
//! - [`sync`]: what is unsent, for status and `sync`.

mod engine;
mod schedule;
mod send;
mod sync;
mod upload;

pub(crate) use engine::{Engine, start as start_engine};
pub(crate) use schedule::{RETRY_AFTER, Schedule};
pub use sync::UnsentTotal;
pub(crate) use upload::set_aside;
