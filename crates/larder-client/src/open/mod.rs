//! Open files.
//!
//! - [`file`]: opening and closing, freshness and rights.
//! - [`table`]: the open files of a node, counted by mode; [`mode`]: which way an open file's data takes, as
//!   a pure function.
//! - [`older`]: local files of older versions that open files still read.

mod file;
mod mode;
mod older;
mod table;

pub(crate) use file::OpenFile;
pub(crate) use mode::Mode;
pub(crate) use table::Opens;
