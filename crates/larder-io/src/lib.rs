//! The machine larder runs on: a clock and a disk, real ones and simulated ones.
//!
//! Code above this crate takes an `Arc<dyn Clock>` and an `Arc<dyn Disk>`, so a test controls the
//! time, what a crash leaves on the disk and which operation fails:
//!
//! | interface | real | for tests |
//! |---|---|---|
//! | [`Clock`] | [`RealClock`] | [`SimClock`], moved by hand |
//! | [`Disk`] | [`RealDisk`] (a directory), [`MemDisk`] (anonymous memory files), [`SlowDisk`] (with slow syncs) | [`SimDisk`] (crash images, torn writes, faults) |
//!
//! Everything here may block. Nothing here knows about remote file systems, caches or servers.
//! System calls go through `rustix`; unsafe code is in [`class_hint`], [`confined`], [`handle`],
//! [`lease`], [`pages`] and [`watched`], for calls that it lacks, and behind [`Tail`] and
//! [`DiskFile::sync_range`], which map files into memory.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod alarm;
pub mod allocator;
mod available;
mod background;
mod backoff;
mod boot;
pub mod class_hint;
mod clock;
pub mod confined;
pub mod descriptors;
mod disk;
pub mod handle;
pub mod inherited;
pub mod lease;
mod mem;
pub mod memory;
pub mod mountinfo;
pub mod pages;
mod program;
mod rate;
mod real;
mod resident;
pub mod secret;
mod sim;
mod slow;
pub mod sockets;
mod tail;
pub mod watched;

pub use alarm::Alarm;
pub use available::{AvailableMemory, Headroom, available_memory, headroom};
pub use background::behind_others;
pub use backoff::Backoff;
pub use boot::BootId;
pub use clock::{Clock, Elapsed, Monotonic, RealClock, SimClock, Sleep, WallTime};
pub use disk::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp, Writers};
pub use mem::MemDisk;
pub use program::program_of;
pub use rate::{REQUEST_BYTES, Rate};
pub use real::RealDisk;
pub use resident::{resident_bytes, resident_words};
pub use sim::{CrashPoint, CrashPoints, Fault, Image, SimDisk, many_histories};
pub use slow::{Arm, SlowDisk};
pub use tail::Tail;
