//! Why something is not done with a volume.

use std::time::Duration;

use larder_wire::meta::{COPIES_MAX, Status};
use thiserror::Error;

use crate::engine::EngineError;

/// Why a volume is not made, or not taken.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The store.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store has a volume already.
    #[error("the store has a volume already")]
    Exists,
    /// The store has no volume.
    #[error("the store has no volume: make one first")]
    None,
    /// The store contains something that this version cannot read; the log says what.
    #[error("the store holds what this version cannot read")]
    Unreadable,
    /// Another process has it.
    #[error(
        "another process has the volume: end that, or wait for {:.1} s if it was killed",
        .0.as_secs_f32()
    )]
    Owned(Duration),
    /// An invalid disk: too small, one too many, or an address that is too long.
    #[error("{0}")]
    Disk(&'static str),
    /// More copies than there may be, or none.
    #[error("{0} copies: use 1 to {COPIES_MAX}")]
    Copies(u32),
    /// The server has ended, or could not commit it.
    #[error("the metadata server could not do it; its log says why")]
    Ended,
    /// A disk that is to be replaced does not exist, or no other has its blocks; or the disk beside
    /// which another one is to be put does not exist.
    #[error("{0}")]
    Replaced(String),
    /// A disk that is to be removed or kept does not exist, is needed, or is as it is wanted.
    #[error("{0}")]
    Removed(String),
}

/// The error of a read that failed; the log says what it was.
pub(super) fn unreadable(logged: Status) -> VolumeError {
    match logged {
        Status::Later => EngineError::Away("it went away while it was read".to_owned()).into(),
        _ => VolumeError::Unreadable,
    }
}
