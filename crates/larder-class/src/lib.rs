//! Durability classes: how durable a file must be, and by when.
//!
//! The nouns:
//! - A [`Level`] is where bytes are safe: this machine's memory, its disk, the memory of other
//!   machines, the server's disk, an archive.
//! - A [`Specification`] says for each level when bytes must be there, and what close and fsync
//!   wait for. A [`Class`] is a name for one.
//! - An [`Offer`] is what one mount can provide. A class is *fitted* to it when it is loaded: a
//!   level that the mount lacks is raised to the next stronger one, with one line that says so, or
//!   the class is refused. It is never weakened.
//! - A [`Rule`] chooses a class for files by path, uid, size or program. The [`Classes`] of a mount
//!   are its classes, rules and default; [`Classes::choose`] says which class a file has and why.
//! - A [`Lifetime`] is how long a copy at a level lasts on average: an assumption by which larder
//!   estimates when a file would be lost.
//!
//! Everything is a function of its input, except [`load`], which reads the files. Absent on
//! purpose: files that have classes, and keeping their promises (`larder-client`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read and write files of their own")
)]
#![forbid(unsafe_code)]

mod choose;
mod lifetime;
mod load;
mod offer;
mod rule;
mod specification;
mod written;

pub use choose::{Choice, Class, Classes, Subject, Why};
pub use lifetime::{LIFETIME_MAX, Lifetime, Lifetimes, first_loss};
pub use load::{LoadError, RuleFile, Sources, load};
pub use offer::{Offer, OwnDisk, Refused};
pub use rule::Rule;
pub use specification::{Deadline, Level, OnError, Specification, Step};
