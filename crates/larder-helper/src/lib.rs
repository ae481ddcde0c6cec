//! Registers local files for FUSE passthrough, for mounts without root: the program
//! `larder-helper`, and its client's half of the protocol.
//!
//! The kernel takes a local file for passthrough (`BACKING_OPEN`) only from who has
//! `CAP_SYS_ADMIN`. So this program has it, set-uid root or by a file capability, and does nothing
//! but that call and its opposite (`BACKING_CLOSE`), on descriptors that its caller hands over
//! ([`protocol`]).
//!
//! # What a caller could want with it, and why he gets nothing that he has not
//!
//! The kernel keeps the file, and for each open of the FUSE file opens it anew: with the mode of
//! *that* open, without asking for permissions, with the credentials of who registered it. From
//! this follows:
//!
//! - *A file that he may only read* would become writable through his mount. So the descriptor must
//!   be open for reading and writing, and the file be his own ([`check::own_file`]): then he could
//!   open it in every mode himself. But for append-only and immutable files, which no owner may
//!   reopen at will: refused.
//! - *Files that look at the credentials of their opener*, as those in cgroup, proc or tracefs do:
//!   `cgroup.procs` may belong to a user, and believes root. So the credentials are the caller's
//!   own ids and groups, plus `CAP_SYS_ADMIN` and no other capability ([`privilege`]), and the file
//!   must lie on a file system for data ([`check`] has the list), where that capability opens
//!   nothing.
//! - *Somebody else's mount.* Whose a descriptor of `/dev/fuse` is cannot be asked. It need not be:
//!   who holds it can answer every request of that mount, with any bytes. That he answers with his
//!   own file gives him nothing, and the users of the mount nothing but that file, which he gives.
//!   Closing a registration makes later opens with it fail, as an error from him would.
//! - *A deputy.* The requests must come from the user who started the program: the other end of its
//!   standard input belongs to him ([`protocol::is_link`]).
//! - *The process itself.* It reads no environment variable, no argument and no file, starts no
//!   program and no thread, cannot be traced or dumped, and gains no privilege by exec. It
//!   allocates nothing on a peer's say-so.
//!
//! What it does not prevent: a registered file is held by the mount, not by a process, so it counts
//! for no limit of open files, and lsof(8) does not show it. It is let go with the mount, at the
//! latest. Where that matters, let a group only execute it (mode 4750).

pub mod backing;
pub mod check;
pub mod privilege;
pub mod protocol;
pub mod serve;
