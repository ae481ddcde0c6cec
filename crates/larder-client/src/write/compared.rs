//! Comparing what is unsent with what the server has.

use std::sync::Arc;

use larder_vfs::{Cred, Error, Result};

use crate::core::Core;
use crate::names::on_handle;
use crate::node::Node;

impl Core {
    /// Whether the server's file has our bytes in every unsent range, and ends where ours does.
    pub(super) async fn is_sent_already(&self, node: &Arc<Node>, cred: &Cred) -> Result<bool> {
        let file = self.file(node);
        if node.state().known().attr.size != file.size() {
            return Ok(false);
        }
        for piece in self.pieces(&file.dirty(), false) {
            let len = u32::try_from(piece.end - piece.start).expect("a request is short");
            let there = on_handle!(self, cred, node, handle =>
                self.remote.read(cred, &handle, None, piece.start, len))?;
            let mut ours = vec![0; len as usize];
            file.read_dirty(piece.start, &mut ours).map_err(|_| Error::Io)?;
            if there.data[..] != ours[..] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the same may succeed later.
pub(super) fn is_late(error: Error) -> bool {
    matches!(
        error,
        Error::TimedOut | Error::Shutdown | Error::TryAgain | Error::Locked | Error::Interrupted
    )
}
