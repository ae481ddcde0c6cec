//! Registers local files for FUSE passthrough, for mounts without root: the program
//! `larder-helper`, and its client's half of the protocol.
//!
//! The kernel accepts a local file for passthrough (`BACKING_OPEN`) only from a process with
//! `CAP_SYS_ADMIN`. This program has that capability, set-uid root or by a file capability, and
//! does nothing except that call and its opposite (`BACKING_CLOSE`), on descriptors that its caller
//! hands over ([`protocol`]).
//!
//! # What a caller could try, and why it gains nothing
//!
//! The kernel keeps the file, and for each open of the FUSE file opens it again: with the mode of
//! *that* open, without checking permissions, with the credentials of the process that registered
//! it. From this follows:
//!
//! - *A file that the caller may only read* would become writable through the caller's mount. So
//!   the descriptor must be open for reading and writing, and the caller must own the file
//!   ([`check::own_file`]): then the caller could open it in every mode anyway. The exceptions are
//!   append-only and immutable files, which their owner may not reopen at will: these are refused.
//! - *Files that check the credentials of their opener*, as those in cgroup, proc or tracefs do:
//!   `cgroup.procs` may belong to a user, and trusts root. So the credentials are the caller's own
//!   ids and groups, plus `CAP_SYS_ADMIN` and no other capability ([`privilege`]), and the file
//!   must be on a file system for data ([`check`] has the list), where that capability opens
//!   nothing.
//! - *Another user's mount.* The owner of a descriptor of `/dev/fuse` cannot be determined. This is
//!   not necessary: the holder of the descriptor can answer every request of that mount, with any
//!   bytes. Answering with a file of its own gives the holder nothing, and gives the users of the
//!   mount nothing except that file, which the holder chose to give. Closing a registration makes
//!   later opens with it fail, as an error from the holder would.
//! - *A deputy.* The requests must come from the user who started the program: the other end of its
//!   standard input belongs to that user ([`protocol::is_link`]).
//! - *The process itself.* It reads no environment variable, no argument and no file, starts no
//!   program and no thread, cannot be traced or dumped, and gains no privilege by exec. It makes no
//!   allocation whose size a peer chooses.
//!
//! What it does not prevent: a registered file is held by the mount, not by a process, so it counts
//! against no limit of open files, and lsof(8) does not show it. It is released with the mount, at
//! the latest. Where that matters, let only a group execute the program (mode 4750).

pub mod backing;
pub mod check;
pub mod privilege;
pub mod protocol;
pub mod serve;
