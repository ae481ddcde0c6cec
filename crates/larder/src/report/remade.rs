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

/// A file of a mount that could not be made again when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StaysLost {
    pub(crate) path: String,
    pub(crate) why: String,
}
