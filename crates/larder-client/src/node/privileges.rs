//! Set-uid and set-gid bits, which are dropped when a file is written or truncated.
//!
//! The kernel asks for that on behalf of the writer (`fuse_setattr`; we have not negotiated
//! `HANDLE_KILLPRIV`), and a server refuses it to all except the owner. But the server drops the
//! bits itself when it gets the writer's bytes, or the truncation. So the client does not ask, and
//! does not show the bits until the file is no longer open: by then the bytes are sent. A process
//! that sets a mode without being the owner does not get here: the kernel refuses that.

use larder_vfs::{Cred, SetAttr};

use super::dropped::dropped;
use super::table::Node;
use crate::core::Core;
use crate::open::Mode;

impl Core {
    /// What is to be requested from the server, of what the kernel wants to set on behalf of
    /// `cred`.
    pub(crate) fn without_dropped(&self, node: &Node, cred: &Cred, set: SetAttr) -> SetAttr {
        let bits = {
            let state = node.state();
            let attr = &state.known().attr;
            let is_owner = cred.uid == 0 || cred.uid == attr.uid;
            dropped(attr.mode, &set).filter(|_| !is_owner)
        };
        let Some(bits) = bits else { return set };
        if self.is_written_by(node, cred) {
            node.state().dropped_mut().add(bits);
        } else if set.size.is_none() {
            return set;
        }
        SetAttr { mode: None, ..set }
    }

    /// Whether a write of `cred` drops bits without a report from the kernel: one that bypasses the
    /// page cache.
    pub(crate) fn drops_unsaid(&self, node: &Node, mode: Mode, cred: &Cred) -> bool {
        if mode != Mode::Direct || cred.uid == 0 {
            return false;
        }
        let state = node.state();
        state.dropped().is_next(state.known().attr.mode)
    }

    /// Tells the kernel which mode the file has after such a write, which holds no pages. A caller
    /// that waits while it holds pages could wait for itself, if pages are to be dropped too.
    pub(crate) async fn drop_by_write(&self, node: &Node) {
        {
            let mut state = node.state();
            let mode = state.known().attr.mode;
            if !state.dropped_mut().by_write(mode) {
                return;
            }
            self.outdate_attributes(node.ino, &mut state);
        }
        self.told(node).await;
    }
}
