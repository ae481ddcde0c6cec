//! Names: looking them up, listing them, changing them.
//!
//! - [`change`]: lookups, and changes of directories; [`retried`]: changes that are asked for once more.
//! - [`hidden`]: the names of files that are removed while they are open.
//! - [`listing`]: what is held of directories' listings.
//! - [`recover`]: finds a file again whose handle the server refuses; [`paths`]: where files were last seen.

mod change;
mod hidden;
mod listing;
mod paths;
mod recover;
mod retried;

pub(crate) use hidden::hidden_name_is_gone;
pub(crate) use listing::Listed;
pub use paths::{last_path, parent_in_record};
