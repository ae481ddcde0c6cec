//! What the holder of a lock sees: what was public when the server granted it, or later.
//!
//! The description that comes with the lock says which version that is. Cached bytes of an older
//! one are dropped as usual, unless something of ours stands beside them:
//!
//! - a change of ours in flight: no description counts until it has ended. So the lock waits for
//!   that, and asks the server again;
//! - unsent bytes over another client's change: the clean bytes beside them are of the version
//!   before, and are kept for as long as there are unsent ones. So these are sent first.
//!
//! If that is not possible, or others write here meanwhile, the clean bytes are forgotten beside
//! those that are unsent: the reader gets the server's.

use std::sync::Arc;

use larder_io::Monotonic;
use larder_vfs::{Attr, Cred};

use crate::core::Core;
use crate::limits::Transferring;
use crate::names::on_handle;
use crate::node::{Node, Seen};
use crate::open::OpenFile;

/// How often a lock asks what the file has become, if new changes of ours begin meanwhile.
const TRIES_MAX: usize = 3;

impl Core {
    /// The server granted a lock: what other clients wrote before is visible from now on.
    pub(super) async fn see_locked(
        self: &Arc<Self>,
        opened: &OpenFile,
        attr: Attr,
        asked: Monotonic,
    ) {
        let (node, cred) = (&opened.node, &self.caller(&opened.cred));
        let before = node.state().version();
        self.see_changes(node, attr, asked);
        let is_seen = || node.state().version().validator.same(&attr.validator());
        if !is_seen() || is_mixed(node) {
            let is_shown = match node.transfer.begin(cred.deadline).await {
                Ok(turn) => self.bring_up_to_date(node, cred, &turn, is_seen()).await,
                Err(_) => false,
            };
            if !is_shown {
                self.forget_what_is_older(node);
            }
        }
        if !node.state().version().same(&before) {
            // Also drops pages that were read since an earlier change, through files that are open.
            self.drop_pages(node.ino, &mut node.state());
        }
        self.give_up_doubtful(node).await;
        // A sequential reader does not continue with a mixture of versions.
        opened.stream().shown = Some(node.state().shown());
        self.follow_older(node, cred).await;
        self.told(node).await;
    }

    /// Learns what the file is by now, and sends what is unsent over another client's change. The
    /// turn lets no change of bytes begin. Returns whether what is cached is the server's.
    async fn bring_up_to_date(
        &self,
        node: &Arc<Node>,
        cred: &Cred,
        turn: &Transferring<'_>,
        is_seen: bool,
    ) -> bool {
        if !is_seen && !self.see_after_own_changes(node, cred).await {
            return false;
        }
        if is_mixed(node)
            && let Err(error) = self.upload_locked(node, turn, cred.deadline).await
        {
            tracing::warn!(ino = node.ino.0, %error, "locked before what was written could be sent");
        }
        !is_mixed(node)
    }

    /// What the server reported with a lock does not count if a change of ours was in flight then,
    /// and the answer to that says nothing of another client's change after it. So the server is
    /// asked again when our changes have ended. Returns whether its answer counts.
    async fn see_after_own_changes(&self, node: &Node, cred: &Cred) -> bool {
        for _ in 0..TRIES_MAX {
            let ended = node.until(|state| !state.changing());
            match cred.deadline {
                Some(deadline) => drop(self.clock.timeout_at(deadline.at(), ended).await),
                None => ended.await,
            }
            let (core, asked) = (self, self.now());
            let attr = on_handle!(core, cred, node, handle => core.remote.getattr(cred, &handle));
            let Ok(attr) = attr else { return false };
            if self.see_changes(node, attr, asked) != Seen::Older {
                return true;
            }
        }
        false
    }

    /// What is cached may be older than what the server has, and no other client's change says so:
    /// of all bytes only the unsent ones stay. The kernel keeps a file that it writes itself.
    fn forget_what_is_older(&self, node: &Node) {
        let file = self.file(node);
        let mut state = node.state();
        if state.opens().is_bypassed() {
            return;
        }
        state.doubt_what_is_held();
        state.start_over();
        let (version, size) = (state.version().bytes(), state.server_end());
        if let Err(error) = file.keep_dirty_alone(&version, size) {
            tracing::warn!(ino = node.ino.0, %error, "a holder of a lock may see older bytes");
        }
        self.table.persist(node.ino, &mut state);
        self.outdate(node.ino, &mut state);
    }

    /// Processes what the server reported of a file when it was locked or unlocked. If the version
    /// is so young that a later change could have the same validator, what is cached of the file is
    /// doubtful.
    pub(super) fn see_changes(&self, node: &Node, attr: Attr, asked: Monotonic) -> Seen {
        let seen = self.observe(node, attr, asked);
        let version = node.state().version();
        self.observe_bytes(node, &version, attr, asked);
        seen
    }
}

/// Whether unsent bytes stand beside cached ones that may be of an older version. The kernel keeps
/// a file that it writes itself.
fn is_mixed(node: &Node) -> bool {
    let state = node.state();
    let is_doubtful = state.unsent().end().is_some() && state.known().doubtful;
    !state.opens().is_bypassed() && (state.unsent().is_mixed() || is_doubtful)
}
