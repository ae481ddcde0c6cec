//! The results of making lost files again.

use serde::{Deserialize, Serialize};

/// What `larder rebuild` did with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remade {
    pub(crate) path: String,
    /// `made`, or why it stays lost, in one word.
    pub(crate) outcome: String,
    /// Why it stays lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// What a mount makes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rebuild {
    /// How often files were made.
    pub(crate) made: u64,
    /// Files that are being made.
    pub(crate) running: u64,
    /// Files that will be.
    pub(crate) waiting: u64,
}

/// A file of a mount that could not be made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StaysLost {
    pub(crate) path: String,
    pub(crate) why: String,
}
