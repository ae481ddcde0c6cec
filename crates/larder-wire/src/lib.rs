//! Sans-IO codecs: XDR, ONC RPC, NFSv3, MOUNT and portmap; larder's own programs of metadata and of
//! disks, with the capabilities and seals that these use.
//!
//! Client and server share this crate, so every argument and every result can be both encoded and
//! decoded. Nothing here knows a socket, a clock or a file system.
//!
//! Invariants:
//! - Hostile bytes end here. Every length is checked against a limit and against what is really
//!   there before memory is taken for it; decoding returns an error and never panics.
//! - Payloads are not copied. Decoding slices the [`bytes::Bytes`] it reads from; encoding keeps a
//!   large payload as a segment of its own ([`xdr::Segments`]), ready for one vectored write.
//!
//! The types carry the names that the RFCs give them, so that code and RFC can be laid side by
//! side: RFC 4506 (XDR), RFC 5531 (RPC), RFC 1833 (portmap), RFC 1813 (NFSv3 and MOUNT). Programs
//! of our own are described in `docs/formats`. Absent on purpose: RPCSEC_GSS, NLM, NSM, rpcbind
//! versions 3 and 4.

#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod capability;
pub mod disk;
pub mod meta;
pub mod mount3;
pub mod nfs3;
pub mod portmap;
pub mod record;
pub mod rpc;
pub mod seal;
pub mod xdr;

#[cfg(test)]
mod sample;

/// A remote procedure, identified by the type of its arguments.
///
/// Implemented by the argument types, so that a call cannot be paired with the wrong number or the
/// wrong result.
pub trait Procedure: xdr::Encode + xdr::Decode {
    /// The type of the server's answer.
    type Res: xdr::Encode + xdr::Decode;
    /// The program it belongs to.
    const PROGRAM: u32;
    /// The version of that program.
    const VERSION: u32;
    /// Its number in that program.
    const NUMBER: u32;
}
