//! Unsent data that an earlier process left: whether another client has changed its file.
//!
//! A close that its writer waits for is the last one, and wins. Nobody waits for what an earlier
//! process left: it is sent much later, and must not go over another client's work. So before its
//! first request larder asks the server once for the file's version. If that has other bytes than
//! the version below ours, ours are *set aside*, and become a file beside the other one
//! ([`super::beside`]).
//!
//! That version may be one of ours, if the earlier process died between a request and the record of
//! its answer. So each process records that there are requests before it makes the first one
//! ([`super::unsent`]'s `requests`). Where there may be some, nothing is asked: what was begun goes
//! on, as it does within a process. The same holds
//! - on shares, whose versions may change without a change by another client
//!   ([`crate::options::Keeps::Empty`]);
//! - on mounts with a journal of names, whose replay makes requests of its own, and which keep on
//!   this machine's disk what is written without the server;
//! - after an orderly end of the mount, which forgets the records of its session.
//!
//! What is kept on this machine's disk is compared by [`super::keep`], in every process.

use std::sync::Arc;

use larder_cache::{CachedFile, Keeping};
use larder_vfs::{Cred, Error, Result};

use super::compared::is_late;
use crate::core::Core;
use crate::journal::{Carried, Unfinished, Version};
use crate::names::on_handle;
use crate::node::Node;

impl Core {
    /// An earlier process left this data: whether the server is asked before it is sent.
    pub(crate) fn doubt_left(&self, node: &Node, carried: &Carried) {
        if !self.tells_requests() {
            return;
        }
        let has_requests = |left: &Unfinished| left.has_requests;
        let are_made = carried.unfinished.get(&node.ino).is_some_and(has_requests);
        let mut state = node.state();
        let requests = state.unsent_mut().requests_mut();
        // The next process must not take unknown ones for none.
        if are_made || !carried.tells_requests {
            requests.make();
        } else {
            requests.left_by_earlier();
        }
        self.note_unfinished(node.ino, &mut state);
    }

    /// Before data is sent that an earlier process left: asks the server for the file's version.
    /// Later attempts, once a request was made, do not ask again.
    ///
    /// # Errors
    /// [`Error::Changed`] if another client has changed the file. The server's error if it cannot
    /// be asked.
    pub(super) async fn ask_before_left(
        &self,
        node: &Arc<Node>,
        file: &Arc<CachedFile>,
        cred: &Cred,
    ) -> Result<()> {
        debug_assert!(node.transfer.is_taken(), "nobody else sends the file meanwhile");
        let asks = || node.state().unsent().requests().ask_first();
        if !asks() || file.keeping() != Keeping::Nothing {
            return Ok(());
        }
        let asked = self.now();
        let attr = on_handle!(self, cred, node, handle => self.remote.getattr(cred, &handle))?;
        self.observe(node, attr, asked);
        let now = attr.validator();
        let is_over_another =
            file.version().is_some_and(|below| Version::has_other_bytes(&below, &now));
        // A change of ours may have been made beside that question.
        if !is_over_another || !asks() {
            return Ok(());
        }
        match self.is_sent_already(node, cred).await {
            // Another client has written the same.
            Ok(true) => return Ok(()),
            Err(error) if is_late(error) => return Err(error),
            // A writer need not have the right to read.
            Ok(false) | Err(_) => {}
        }
        Err(Error::Changed)
    }
}
