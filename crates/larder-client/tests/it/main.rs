//! The client over a server in memory and a cache on a simulated disk, on a clock moved by hand.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod appends;
mod attributes;
mod beside;
mod both_away;
mod breaks;
mod callers;
mod classes;
mod coarse;
mod coherence;
mod copies;
mod damaged;
mod exclusive;
mod faults;
mod fill;
mod foreign;
mod gone;
mod hiding;
mod identity;
mod journal_disk;
mod keep_soon;
mod kept;
mod killed;
mod leases;
mod limited;
mod links;
mod listings;
mod local_disk;
mod locks;
mod log;
mod model;
mod offline;
mod opens;
mod options;
mod pages;
mod parallel;
mod passthrough;
mod privileges;
mod raising;
mod retained;
mod retried;
mod rig;
mod space;
mod takeover;
mod troubled;
mod uncached;
mod unsent;
mod writer;
mod xattrs;
