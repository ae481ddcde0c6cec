//! Names: entries of directories, and making, finding and removing them.
//!
//! Each name has two records: by name, for lookups; and by cookie, for listings. Cookies of a
//! directory only rise, so a listing that continues after one neither skips names that stayed nor
//! repeats names.
//!
//! Invariants, checked by [`crate::check`]:
//! - both records of a name agree; `entries` counts them;
//! - a file's link count is the number of its names, a directory's is 2 plus the number of
//!   directories in it.

mod entries;
mod linking;
mod listing;
mod making;
mod removing;
mod renaming;

pub(crate) use entries::{is_dots, lookup, read_link};
pub(crate) use linking::link;
pub(crate) use listing::list;
pub(crate) use making::{Found, make, make_file};
pub(crate) use removing::{forget, remove, remove_directory};
pub(crate) use renaming::rename;
