//! The program of disks: READ, WRITE and FLUSH under capabilities, and the metadata server's
//! control.
//!
//! Byte by byte it is in `docs/formats/disk-protocol.md`.
//!
//! - [`words`] has the procedures: each is a [`Head`], with the request and the type of its answer.
//! - [`sealed`] is the form in which heads and data travel: under the keys of a session.
//! - [`session`] is the client's half of a session, as pure functions: from the handshake to the
//!   opened reply.
//!
//! There are two kinds of sessions. In a client's, each request presents a capability; in the
//! metadata server's, none: making the session itself takes the disk's master key. Whatever the
//! setup of the volume, the metadata server's sessions are sealed, and an order that brings a
//! secret is encrypted ([`Head::HAS_SECRET`](words::Head::HAS_SECRET)).

pub mod key_file;
pub mod sealed;
pub mod session;
pub mod words;

use std::net::{IpAddr, SocketAddr};

/// The RPC program number, of the range that users define (RFC 5531, 8.3).
pub const PROGRAM: u32 = 0x206c_7264;
/// The version of the program.
pub const VERSION: u32 = 3;
/// The port that disks listen on, unless they are told another one.
pub const PORT: u16 = 2051;

/// Most data of one READ or WRITE, in bytes.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Longest head of a request or reply, in bytes.
pub const HEAD_BYTES_MAX: usize = 2560;
/// A disk records for blocks of this size whether they were written.
pub const BLOCK_BYTES: u64 = 4096;
/// Most capabilities that one REVOKE names.
pub const REVOKED_MAX: usize = 256;
/// Longest address of a disk in a request, in bytes, and longest reason why it gave nothing.
pub const TEXT_BYTES_MAX: usize = 128;
/// Most groups that a disk has at a time.
pub const GROUPS_MAX: usize = 64;
/// The first sequence number that is too high for a session: the client must begin a new session
/// before.
pub const SEQUENCE_END: u64 = 1 << 32;

/// Names of the procedures, by number.
pub const PROCEDURE_NAMES: &[&str] = &[
    "NULL",
    "HANDSHAKE",
    "READ",
    "WRITE",
    "FLUSH",
    "REFRESH",
    "REVOKE",
    "GROUP_REPLACE",
    "EPOCH",
    "COPY",
    "CLEAR",
    "STATUS",
    "AWAIT_WRITTEN",
    "WRITE_FROM",
    "FETCH",
];

/// The address of a disk as `HOST:PORT`, or `:PORT` for one on the metadata server's machine, which
/// is at `beside`. A host must be an address: each caller might resolve a name differently.
pub fn address(text: &[u8], beside: IpAddr) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix(':') {
        Some(port) => Some(SocketAddr::new(beside, port.parse().ok()?)),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
