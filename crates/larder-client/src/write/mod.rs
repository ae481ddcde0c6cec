//! Writes, and unsent data.
//!
//! - [`take`]: accepts writes into the cache; [`upload`]: sends them to the server; [`setattr`]:
//!   sets attributes and size; [`space`]: gives room to ranges, and makes them read as zeros;
//!   [`copy`]: makes the server copy.
//! - [`send`]: the requests of one write-back; [`before_stat`]: sends a file before its time is
//!   told.
//! - [`unsent`]: the state of a file's unsent data, as a state machine; [`local_end`]: end and time
//!   of a file that has some; [`schedule`]: when it is sent; [`engine`] carries both out, by its
//!   [`queue`]; [`events`] reports events to them.
//! - [`keep`]: unsent data on this machine's disk; [`keep_soon`] keeps closed files a moment later,
//!   by the list [`entered`].
//! - [`recovered`]: asks the server before what an earlier process left is sent; [`compared`]:
//!   whether it has that already.
//! - [`beside`]: has the server make files of what another client's changes were in the way of;
//!   [`placing`]: whose turn that is.
//! - [`retain`]: unsent data in this machine's memory, of files that other clients see.
//! - [`sync`]: what is unsent, for status and `sync`.

mod before_stat;
mod beside;
mod compared;
mod copy;
mod engine;
mod entered;
mod events;
mod keep;
mod keep_soon;
mod local_end;
mod placing;
mod queue;
mod recovered;
mod retain;
mod schedule;
mod send;
mod setattr;
mod space;
mod sync;
mod take;
mod unsent;
mod upload;

pub(crate) use beside::start as start_placing;
pub(crate) use engine::start as start_engine;
pub(crate) use entered::KeepSoon;
pub(crate) use keep_soon::start as start_keeping;
pub(crate) use local_end::{LocalEnd, time_of};
pub(crate) use placing::Placing;
pub(crate) use queue::Queue;
pub use schedule::Due;
pub(crate) use schedule::{RETRY_AFTER, UNLIMITED};
pub use sync::{Unsaved, UnsentTotal};
pub(crate) use unsent::{Event, Unsent};
pub(crate) use upload::set_aside;
