//! Writes, and unsent data.
//!
//! - [`take`]: takes writes into the cache; [`upload`]: carries them to the server; [`setattr`]:
//!   sets attributes and size; [`space`]: gives ranges room, and has them read as zeros.
//! - [`send`]: the requests of one write-back.
//! - [`unsent`]: how the unsent data of a file stands, as a state machine; [`schedule`]: when it
//!   goes; [`engine`] carries both out, by its [`queue`]; [`events`] are told here.
//! - [`sync`]: what is unsent, for status and `sync`.

mod engine;
mod events;
mod keep;
mod queue;
mod schedule;
mod send;
mod setattr;
mod space;
mod sync;
mod take;
mod unsent;
mod upload;

pub(crate) use engine::start as start_engine;
pub(crate) use queue::Queue;
pub use schedule::Due;
pub(crate) use schedule::RETRY_AFTER;
pub use sync::{Unsaved, UnsentTotal};
pub(crate) use unsent::{Event, LocalEnd, Unsent};
pub(crate) use upload::set_aside;
