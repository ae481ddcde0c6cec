//! Names: looking them up, listing them, changing them.
//!
//! - [`lookup`]: looking names up; [`held`]: what the index says of them.
//! - [`change`]: making, removing, renaming and linking; [`entries`]: the requests for that;
//!   [`retried`]: those that are asked for once more.
//! - [`hidden`]: the names of files that are removed while they are open; [`hiding`]: what is known
//!   of them.
//! - [`deferring`]: which changes may be answered here.
//! - [`listing`]: what is held of directories' listings; [`listed`] and [`walk`]: what is
//!   remembered of their readers.
//! - [`recover`]: finds a file again whose handle the server refuses; [`paths`]: where files were
//!   last seen.

mod change;
mod changing;
mod deferring;
mod entries;
mod held;
mod hidden;
mod hiding;
mod listed;
mod listing;
mod lookup;
mod paths;
mod recover;
mod retried;
mod walk;

pub(crate) use changing::Changing;
pub(crate) use hiding::Hidden;
pub(crate) use listed::Listed;
pub use paths::{last_path, parent_in_record};
pub(crate) use recover::on_handle;
