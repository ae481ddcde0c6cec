//! Gives room to a range of a file, and zeros it (fallocate(2)): at the server, after sending what
//! is unsent. Cached bytes are changed in the same way, so that they stay valid under the new
//! version.

use std::sync::Arc;

use larder_vfs::{Ino, OpenId, Result, SpaceChange, SpaceKind};

use crate::core::{Core, blocking};
use crate::names::on_handle;
use crate::node::Node;

impl Core {
    /// See [`larder_vfs::FileSystem::change_space`].
    pub(crate) async fn change_space(
        self: &Arc<Self>,
        ino: Ino,
        open: OpenId,
        change: SpaceChange,
    ) -> Result<()> {
        self.refuse_read_only()?;
        self.refuse_lost(ino, Some(open))?;
        let (node, opened) = (self.node(ino)?, self.open_file(open)?);
        change.check(self.remote.limits().file_size_max)?;
        let deadline = self.deadline();
        let transfer = node.transfer.begin(deadline).await?;
        // This includes what the kernel wrote itself.
        self.upload_locked(&node, &transfer, deadline).await?;
        self.forget_kept(&node).await?;
        let cred = &opened.cred.until(transfer.extend(deadline));
        self.begin_change(&node);
        let token = self.open_files.token(ino, true);
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.change_space(cred, &handle, token.as_ref(), &change));
        let followed = match &answer {
            Ok(_) => self.follow_space(&node, &change).await,
            Err(_) => Ok(()),
        };
        // As after a truncation: what was cached without it belongs to no version.
        let told = answer.as_ref().ok().filter(|_| followed.is_ok());
        self.end_change(&node, told.copied());
        answer?;
        followed
    }

    /// Updates what is cached, and what the kernel shows of it, after the server made a change.
    async fn follow_space(&self, node: &Node, change: &SpaceChange) -> Result<()> {
        if change.kind != SpaceKind::Allocate {
            self.zero_held(node, change).await?;
        }
        let size = node.state().attr().size;
        let grown = change.size_after(size);
        node.state().opens_mut().raise_believed_end(grown);
        if grown > size { self.truncate_held(node, grown).await } else { Ok(()) }
    }

    async fn zero_held(&self, node: &Node, change: &SpaceChange) -> Result<()> {
        let (file, range) = (self.file(node), change.range.clone());
        let held = {
            let state = node.state();
            file.version() == Some(state.version().bytes()) || state.opens().bypassing()
        };
        if held {
            let (zeroed, range) = (file.clone(), range.clone());
            if blocking(move || zeroed.zero(range)).await?.is_err() {
                tracing::warn!(ino = node.ino.0, "no room to zero a range of the cached copy");
            }
        }
        self.zero_older(node, &file, range);
        if held {
            let mut state = node.state();
            let end = state.opens().local_end();
            state.opens_mut().set_collected(end);
        }
        Ok(())
    }
}
