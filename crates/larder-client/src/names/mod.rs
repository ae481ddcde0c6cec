//! Names: lookups, listings, changes.
//!
//! - [`lookup`]: looks names up; [`held`]: the cached names.
//! - [`change`]: making, removing, renaming and linking; [`entries`]: the requests for that;
//!   [`retried`]: requests that the kernel sends again.
//! - [`hidden`]: names of files that are removed while they are open; [`hiding`]: their state;
//!   [`linking`]: other names that such files get meanwhile.
//! - [`losing`]: what is thought to have lost a name.
//! - [`deferring`]: which changes may be answered here.
//! - [`listing`]: cached listings; [`pages`]: which page a reader is in; [`ahead`]: when a page is
//!   read in place of looking up one name; [`listed`] and [`walk`]: state of the readers.
//! - [`whole`]: the names of directories that are known whole.
//! - [`recover`]: finds a file again whose handle the server refuses; [`paths`]: where files were
//!   last seen.

mod ahead;
mod change;
mod changing;
mod deferring;
mod entries;
mod held;
mod hidden;
mod hiding;
mod linking;
mod listed;
mod listing;
mod lookup;
mod losing;
mod offline;
mod pages;
mod paths;
mod recover;
mod retried;
mod walk;
mod whole;

pub(crate) use changing::Changing;
pub(crate) use hiding::{Dentry, Hidden};
pub(crate) use listed::Listed;
pub use paths::{last_path, parent_in_record};
pub(crate) use recover::on_handle;
pub(crate) use whole::{Room, Whole};
