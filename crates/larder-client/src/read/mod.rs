//! Reads: cached bytes from the cache, the rest from the server.
//!
//! - [`plan`]: which parts of a read come from where, as a pure function; [`fetch`] carries it out,
//!   by [`flights`].
//! - [`unversioned`]: reads a file that changes too fast to be read in one version.
//! - [`file_end`]: reports the end of a file to the kernel.
//! - [`storing`]: stores fetched bytes in the cache, file by file in order.
//! - [`stream`]: state of the reads of one open file.
//! - [`holes`]: where a file has holes, as the server knows it.
//! - [`fill`]: completes partly cached files when the link is quiet, by its [`fill_queue`].

mod fetch;
mod file_end;
mod fill;
mod fill_queue;
mod flights;
mod holes;
mod plan;
mod storing;
mod stream;
mod unversioned;

pub(crate) use fill::start as start_filling;
pub use fill_queue::Fill;
pub(crate) use fill_queue::FillQueue;
pub(crate) use flights::Flights;
pub(crate) use storing::{Storing, StoringBudget};
pub(crate) use stream::{Shown, Stream};
