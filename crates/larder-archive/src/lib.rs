//! The archive: versions of files as objects of an S3-compatible store.
//!
//! A [`Version`] is a file's bytes at one data version. It never changes, so its key is made of the
//! volume, the inode and the data version: a renamed file keeps its objects. [`Archive::put`]
//! answers a [`Receipt`], which the caller keeps; nothing is read back without it.
//!
//! Bytes are cut into *sections* with a checksum each. The receipt is the checksum of those
//! checksums, so a section that is read is proven to be the one that was put: an object that was
//! altered, cut short or exchanged is refused ([`Error::Altered`]), and none of its bytes is given
//! to the caller.
//!
//! | object | contents |
//! |---|---|
//! | `PREFIX/VOLUME/INODE/DATAVERSION/00000000` and on | the bytes, some thousand sections in each |
//! | `PREFIX/VOLUME/INODE/DATAVERSION/sums` | SHA-256 of each section, if there are several |
//!
//! Absent on purpose: which files are archived and when, and where receipts are kept (the metadata
//! server); retries, signatures and the protocol (`object_store`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read and write files of their own")
)]
#![forbid(unsafe_code)]

mod credentials;
mod error;
mod key;
mod place;
mod receipt;
mod send;
mod store;

pub use credentials::{Credentials, CredentialsError};
pub use error::{Error, Refusal};
pub use key::Version;
pub use place::{Place, PlaceError};
pub use receipt::{Receipt, Shape};
pub use send::Source;
pub use store::{Archive, Held};
