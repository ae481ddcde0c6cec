//! What `larder status` shows of pinned trees that are kept whole and fresh.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::options::Bytes;

/// A tree, as the last round found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HoardedTree {
    /// Where it was last seen below the mountpoint, if that is known.
    pub(crate) path: Option<String>,
    /// The tree with the larger one gets room first.
    pub(crate) priority: u16,
    /// Regular files in it, but for those that a more important tree has.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Of these, the files that were found whole, or are whole by now.
    pub(crate) whole_files: u64,
    /// Their bytes.
    pub(crate) whole_bytes: u64,
    /// Files for which the cache has no room.
    pub(crate) left_out_files: u64,
    /// Their bytes.
    pub(crate) left_out_bytes: u64,
    /// Files and directories that could not be read.
    pub(crate) failed: u64,
    /// Age of the last round, in seconds; none if there was no round yet.
    pub(crate) age_s: Option<u64>,
    /// For how many seconds all of it has been compared with its checksums; none if it was not
    /// yet.
    #[serde(default)]
    pub(crate) verified_age_s: Option<u64>,
    /// Chunks of it that were wrong, and are fetched anew, since the worker began.
    #[serde(default)]
    pub(crate) wrong_chunks: u64,
}

impl fmt::Display for HoardedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.as_deref().unwrap_or("a tree whose path is not known");
        write!(f, "/{path} ({}): ", self.priority)?;
        let Some(age_s) = self.age_s else { return write!(f, "not looked after yet") };
        let (whole, bytes) = (Bytes(self.whole_bytes), Bytes(self.bytes));
        write!(f, "{} of {} files, {whole} of {bytes}", self.whole_files, self.files)?;
        if self.left_out_files > 0 {
            write!(f, "; {} files have no room", self.left_out_files)?;
        }
        if self.failed > 0 {
            write!(f, "; {} cannot be read", self.failed)?;
        }
        if self.wrong_chunks > 0 {
            write!(f, "; {} chunks were damaged here", self.wrong_chunks)?;
        }
        write!(f, "; {age_s} s ago")?;
        match self.verified_age_s {
            Some(age_s) => write!(f, "; checksums compared {age_s} s ago"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_one_line() {
        let tree = HoardedTree {
            path: Some("tools".to_owned()),
            priority: 9,
            files: 5,
            bytes: 5 << 20,
            whole_files: 3,
            whole_bytes: 3 << 20,
            left_out_files: 1,
            left_out_bytes: 1 << 20,
            failed: 1,
            age_s: Some(2),
            verified_age_s: None,
            wrong_chunks: 0,
        };
        assert_eq!(
            tree.to_string(),
            "/tools (9): 3 of 5 files, 3.00 MiB of 5.00 MiB; 1 files have no room; 1 cannot be read; 2 s ago"
        );
        let compared = HoardedTree { verified_age_s: Some(9), wrong_chunks: 3, ..tree.clone() };
        let told = compared.to_string();
        let end = "; 3 chunks were damaged here; 2 s ago; checksums compared 9 s ago";
        assert!(told.ends_with(end), "{told}");
        let new = HoardedTree { age_s: None, ..tree };
        assert_eq!(new.to_string(), "/tools (9): not looked after yet");
    }
}
