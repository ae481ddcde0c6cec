//! Setting attributes, size included: at the server, with what is unsent sent first.

use std::sync::Arc;

use larder_vfs::{Cred, Fresh, Ino, OpenId, Result, SetAttr};

use super::unsent::{Event, LocalEnd};
use crate::core::{Core, blocking};
use crate::names::on_handle;
use crate::node::Node;

impl Core {
    /// Sets attributes at the server. Unsent data goes first, so that a time that is set stays.
    pub(crate) async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Result<Fresh> {
        self.refuse_read_only()?;
        let node = self.node(ino)?;
        let deadline = cred.deadline;
        let opened_by = self.open_cred(open);
        if opened_by.is_none() {
            self.demand_path(&node, cred).await?;
        }
        let cred = opened_by.unwrap_or_else(|| cred.clone());
        let set = self.without_dropped(&node, &cred, set);
        if set == SetAttr::default() {
            return Ok(self.fresh(&node));
        }
        let transfer = node.transfer.begin(deadline).await?;
        if self.has_unsent(&node) {
            self.upload_locked(&node, &transfer, deadline).await?;
        }
        let cred = &cred.until(transfer.extend(deadline));
        self.begin_change(&node);
        let answer = on_handle!(self, cred, node, handle => self.server_of_attributes(cred, &node)
                .setattr(cred, &handle, set, None));
        let followed = match (&answer, set.size) {
            (Ok(_), Some(size)) => self.truncate_held(&node, size).await,
            _ => Ok(()),
        };
        // What is held may not be what the server has now, so it cannot go on under the new
        // version.
        let told = answer.as_ref().ok().filter(|_| followed.is_ok());
        self.end_change(&node, told.copied());
        let change = answer?;
        followed?;
        // To set a size that the file has may change nothing.
        if set.size.is_none() {
            self.times.see_step(&change);
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            node.state().mode_was_set();
        }
        drop(transfer);
        if node.state().fresh_for(self.session, self.now()).is_zero() {
            self.revalidate(&node, cred).await?;
        }
        Ok(self.fresh(&node))
    }

    /// The local file follows a truncation that the server has made. What was written meanwhile
    /// stays unsent.
    pub(crate) async fn truncate_held(&self, node: &Node, size: u64) -> Result<()> {
        let file = self.file(node);
        let version = node.state().version().bytes();
        // Who writes the local file by way of the kernel sees that one, whatever version the server
        // has.
        let held = file.version() == Some(version) || node.state().opens().bypassing();
        // What lies behind the end of another version is not known.
        if held || (size < file.size() && !file.dirty().is_empty()) {
            let cut = file.clone();
            let truncated = blocking(move || cut.truncate(size)).await?;
            if truncated.is_err() {
                tracing::warn!(ino = node.ino.0, "no room to truncate the cached copy");
            }
        }
        self.cut_older(node, &file, size);
        let mut state = node.state();
        let is_dirty = !file.dirty().is_empty();
        let end = is_dirty.then(|| LocalEnd { size: file.size(), mtime: self.wall() });
        self.unsent_event(node.ino, &mut state, Event::Cut(end));
        if held {
            let end = state.opens().local_end();
            state.opens_mut().set_collected(end);
        }
        Ok(())
    }
}
