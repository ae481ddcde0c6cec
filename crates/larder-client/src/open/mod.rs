//! Open files.
//!
//! - [`file`]: opening and closing; [`arriving`]: opens beside calls that take a name away;
//!   [`fresh`]: close-to-open; [`open_file`]: one open file; [`open_files`]: all of them, with the
//!   queries of [`table`].
//! - [`opens`]: the open files of a node, counted by mode; [`mode`]: the I/O mode of an open file,
//!   as a pure function; [`choose`]: gives a new open file its mode and its local file;
//!   [`believed_end`]: where the kernel believes a file to end.
//! - [`lost`]: files that are made again before they are read; [`remaker`]: the interface of the
//!   service that makes them.
//! - [`older`]: local files of older versions that open files still read.

mod arriving;
mod believed_end;
mod choose;
mod file;
mod fresh;
mod lost;
mod mode;
mod older;
mod open_file;
mod open_files;
mod opens;
mod remaker;
mod table;

pub(crate) use arriving::NameLeaving;
pub(crate) use mode::Mode;
pub(crate) use open_file::OpenFile;
pub(crate) use open_files::OpenFiles;
pub(crate) use opens::Opens;
pub use remaker::Remaker;
pub(crate) use remaker::Replaced;
