//! End-to-end tests: the `larder` binary, real mounts, real servers.
//!
//! Each test starts its own server and mounts it in its own directories; all must run as root with
//! `/dev/fuse`. [`harness`] has the shared parts.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
#![allow(clippy::unwrap_used, reason = "clippy knows tests by their attribute, not their helpers")]

mod accounts;
mod archive;
mod automounter;
mod away;
mod basics;
mod bench;
mod budget;
mod bwlimit;
mod classes;
mod cli;
mod coarse;
mod coherence;
mod copies;
mod crash;
mod dead_server;
mod detached;
mod device;
mod disk;
mod exclusive;
mod explained;
mod fdstore;
mod groups;
mod harness;
mod hoard;
mod kernel_memory;
mod keys;
mod kills;
mod leaving;
mod limits;
mod locks;
mod logs;
mod memory;
mod memory_disks;
mod memory_pressure;
mod messages;
mod mirrors;
mod offline;
mod outages;
mod ports;
mod posix;
mod posix_cases;
mod postgres;
mod rebuild;
mod reexport;
mod repair;
mod reread;
mod retained;
mod rootless;
mod rounds;
mod server;
mod setups;
mod several_disks;
mod share_appends;
mod share_programs;
mod shell;
mod small_disk;
mod smb;
mod space;
mod stores;
mod survive;
mod trust;
mod two_mounts;
mod unmounts;
mod unsent;
mod usage;
mod users;
mod volume;
mod volume_nfs;
mod volume_tls;
mod waits;
mod writers;
mod xattrs;
