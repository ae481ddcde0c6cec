//! Reads: from the cache what is held, from the server the rest.
//!
//! - [`plan`]: which parts of a read come from where, as a pure function; [`fetch`] carries it out.
//! - [`as_it_is`]: what the server has at this moment, of a file that holds no version long enough.
//! - [`stream`]: what is known of the reads of one open file.
//! - [`fill`]: completes partly cached files when the link is quiet.

mod as_it_is;
mod fetch;
mod fill;
mod plan;
mod stream;

pub(crate) use fetch::Flights;
pub use fill::Fill;
pub(crate) use fill::{FillQueue, start as start_filling};
pub(crate) use stream::{Shown, Stream};
