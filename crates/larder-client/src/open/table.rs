//! Queries on the open files of a mount.

use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{Cred, Error, OpenId, Result};

use super::open_file::OpenFile;
use crate::core::Core;
use crate::node::{Node, verdicts::Who};

/// Longest wait for the release of a file that was closed: the additional time that an unlink may
/// take if the file's descriptor was duplicated and is still open.
const RELEASE_WAIT_MAX: Duration = Duration::from_millis(20);

impl Core {
    /// Waits briefly for the release of a file whose descriptors seem to be closed. close(2)
    /// returns when the file was flushed; the kernel sends the release afterwards, and a process
    /// that unlinks a file which it has just closed is often faster.
    pub(crate) async fn await_release(&self, node: &Node) {
        // The front door need not flush a file that was opened for reading.
        let is_open = |open: &OpenFile| open.flags.write && !open.is_flushed();
        if self.open_files.any_of(node.ino, is_open) {
            return;
        }
        let released = node.until(|state| state.opens().is_empty());
        // If the release does not come in time, the file is still open: it is hidden like any open
        // one.
        let _ = self.clock.timeout(RELEASE_WAIT_MAX, released).await;
    }

    /// Whether `cred` has the file open for writing.
    pub(crate) fn is_written_by(&self, node: &Node, cred: &Cred) -> bool {
        let who = Who::of(cred);
        self.open_files.any_of(node.ino, |open| open.flags.write && who.is(&open.cred))
    }

    /// Whether the file is open for writing.
    pub(crate) fn is_written(&self, node: &Node) -> bool {
        self.open_files.any_of(node.ino, |open| open.flags.write)
    }

    /// Whether the file is being executed.
    pub(crate) fn is_executed(&self, node: &Node) -> bool {
        self.open_files.any_of(node.ino, |open| open.flags.execute)
    }

    /// The open file with this number.
    pub(crate) fn open_file(&self, id: OpenId) -> Result<Arc<OpenFile>> {
        self.open_files.get(id).ok_or(Error::Stale)
    }

    /// The credentials with which an open file was opened: writes and ftruncate(2) through it use
    /// them.
    pub(crate) fn open_cred(&self, id: Option<OpenId>) -> Option<Cred> {
        Some(self.open_file(id?).ok()?.cred.clone())
    }
}
