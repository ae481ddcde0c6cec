//! Finding a file again after its handle went stale.
//!
//! A server that was restored, or re-exported elsewhere, may give the same files new handles
//! (pains of NFS: "Stale file handle" until every application restarts). We walk the path by which
//! the file was last seen. Only a file with the same inode number and type counts as the same file;
//! anything else under that name is another file, and the handle stays stale. A server that names
//! files by path (SMB) learns on the walk where the file is, and then knows the same handle again.

use std::ffi::OsStr;

use larder_vfs::{Attr, Cred, Deadline, Error, Handle, Ino, Result};

use crate::core::Core;
use crate::node::Node;

/// Deepest path that recovery walks.
const DEPTH_MAX: u32 = 64;

/// Makes a call that takes a handle, and repeats it with a new handle if the old one went stale and
/// the file could be found again, for a caller whose deadline `$cred` has.
macro_rules! on_handle {
    ($core:expr, $cred:expr, $node:expr, $handle:ident => $call:expr) => {{
        let mut recovered = false;
        let mut handle = $node.handle();
        loop {
            let $handle = match &handle {
                Ok(handle) => handle.clone(),
                Err(error) => break Err(*error),
            };
            match $call.await {
                Err(larder_vfs::Error::Stale) if !recovered => {
                    recovered = true;
                    handle = $core.recover($cred, &$node, &$handle).await;
                }
                answer => break answer,
            }
        }
    }};
}
pub(crate) use on_handle;

impl Core {
    /// A new handle for `node`, whose handle `stale` the server no longer knows, for a caller whose
    /// deadline `cred` has.
    ///
    /// # Errors
    /// [`Error::Stale`] if the file is gone, or what the server answers.
    pub(crate) async fn recover(&self, cred: &Cred, node: &Node, stale: &Handle) -> Result<Handle> {
        Box::pin(self.recover_at(cred.deadline, node, stale, 0)).await
    }

    async fn recover_at(
        &self,
        deadline: Option<Deadline>,
        node: &Node,
        stale: &Handle,
        depth: u32,
    ) -> Result<Handle> {
        let (handle, known) = {
            let state = node.state();
            (state.handle()?, state.known().clone())
        };
        if handle != *stale {
            return Ok(handle);
        }
        if depth == DEPTH_MAX {
            return Err(Error::Stale);
        }
        if node.ino == Ino::ROOT {
            let root = self.remote.root().await?;
            return self.renamed(node, stale, root.handle);
        }
        let (parent, name) = known.hint.ok_or(Error::Stale)?;
        let parent = self.node(parent)?;
        let cred = Cred::root().until(deadline);
        let mut dir = parent.handle()?;
        let mut answer = self.remote.lookup(&cred, &dir, &name).await;
        if matches!(answer, Err(Error::Stale)) {
            dir = Box::pin(self.recover_at(deadline, &parent, &dir, depth + 1)).await?;
            answer = self.remote.lookup(&cred, &dir, &name).await;
        }
        match answer?.found {
            Some(found) if found.handle == *stale || is_same(&found.attr, &known.attr) => {
                self.renamed(node, stale, found.handle)
            }
            _ => {
                self.forget_name(&parent, &name);
                // The kernel has to look up again the name by which it got the file, since that may
                // now be another file's.
                node.state().distrust();
                Err(Error::Stale)
            }
        }
    }

    /// The error of a change of names in a directory may mean that another client has changed these
    /// nodes: one is gone, or the server knows better than we whether there is such a name. Then
    /// the server is asked about them before cached knowledge of them is used: the kernel tries
    /// once more, and callers inspect what was in their way. An answer that is still in flight may
    /// be older than that, so the name is also forgotten.
    ///
    /// A change without an answer may have been made: then the server is also asked about the
    /// nodes, and the name is trusted only while the server is out of reach.
    pub(crate) fn distrust_if_refused<T>(
        &self,
        nodes: &[&Node],
        (dir, name): (&Node, &OsStr),
        answer: &Result<T>,
    ) {
        let holds =
            |exists| self.name(dir, name).is_some_and(|held| held.child.is_some() == exists);
        let is_wrong = match answer {
            Err(Error::Stale) => true,
            Err(Error::Exists) => holds(false),
            Err(Error::NotFound) => holds(true),
            _ => false,
        };
        if is_wrong {
            self.forget_name(dir, name);
        }
        if is_wrong || matches!(answer, Err(Error::TimedOut)) {
            nodes.iter().for_each(|node| node.state().distrust());
        }
    }

    fn renamed(&self, node: &Node, stale: &Handle, handle: Handle) -> Result<Handle> {
        if handle == *stale {
            return Ok(handle);
        }
        // First the journal: what waits there is looked for by the handle that this node has.
        if let Some(here) = self.remote.deferring() {
            here.found_again(stale, &handle);
        }
        let mut state = node.state();
        state.found_again(handle.clone())?;
        self.cache.rekey(node.no(), handle.as_bytes());
        drop(state);
        tracing::info!(ino = node.ino.0, "stale handle: found the file again by its path");
        Ok(handle)
    }
}

fn is_same(found: &Attr, known: &Attr) -> bool {
    (found.fileid, found.kind, found.size, found.mtime)
        == (known.fileid, known.kind, known.size, known.mtime)
}
