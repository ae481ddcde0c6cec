//! The machine larder runs on: a clock and a disk, real ones and simulated ones.
//!
//! Code above this crate takes an `Arc<dyn Clock>` and an `Arc<dyn Disk>`, so a test decides what
//! time it is, what a crash leaves on the disk and which operation fails:
//!
//! | seam | real | for tests |
//! |---|---|---|
//! | [`Clock`] | [`RealClock`] | [`SimClock`], moved by hand |
//! | [`Disk`] | [`RealDisk`] (a directory), [`MemDisk`] (anonymous memory files) | [`SimDisk`] (crash images, torn writes, faults) |
//!
//! Everything here blocks. Nothing here knows about file systems, caches or servers, and nothing
//! here is unsafe: system calls go through `rustix`.

mod clock;
mod disk;
pub mod handle;
mod mem;
mod real;
mod sim;

pub use clock::{Clock, Monotonic, RealClock, SimClock, WallTime};
pub use disk::{Disk, DiskFile, FsKind, OpenMode, Space, Stamp};
pub use mem::MemDisk;
pub use real::RealDisk;
pub use sim::{CrashPoint, CrashPoints, Fault, Image, SimDisk};
