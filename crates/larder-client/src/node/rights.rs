//! Rights: the server's verdict where we have it, mode bits where we do not.
//!
//! A verdict is the server's decision about one user and one file. It is valid as long as the
//! attributes that came with it: for their timeout, or while a lease holds. An access control list,
//! or a server that begins to squash root, changes neither the mode nor the owner, so nothing else
//! would end it.
//!
//! The kernel walks paths by names that it holds, and checks mode bits itself. It lets callers pass
//! that the server would refuse: because of an access control list, or because the caller is user 0
//! and squashed. So a caller that reaches a file is checked for the directories above it that it
//! can have walked through.

use larder_vfs::{Access, Cred, Error, Ino, Result};

use super::table::Node;
use super::valid_verdicts::Walk;
use crate::core::Core;

/// Directories above a file that are checked; more than the kernel's longest path has.
const DEPTH_MAX: usize = 4096;

impl Core {
    /// Fails if the server bars the caller from a directory above that it can have walked through.
    /// Above means where the file was last seen. Asks for what is not known, which is nothing if
    /// the caller has recently looked up names along the path.
    pub(crate) async fn demand_path(&self, node: &Node, cred: &Cred) -> Result<()> {
        let parent = |of: &Node| of.state().known().hint.as_ref().map(|(parent, _)| *parent);
        let mut above = parent(node);
        for _ in 0..DEPTH_MAX {
            let Some(dir) = above.and_then(|ino: Ino| self.table.get(ino)) else { return Ok(()) };
            let walk = dir.state().walk(cred, self.session, self.now());
            match walk {
                Walk::Impossible => return Ok(()),
                Walk::Granted => {}
                Walk::Unknown => match self.demand(&dir, cred, Access::LOOKUP, false).await {
                    Ok(()) => {}
                    // It is no longer where it was.
                    Err(Error::Stale | Error::NotFound) => return Ok(()),
                    Err(error) => return Err(error),
                },
            }
            above = parent(&dir).filter(|_| dir.ino != Ino::ROOT);
        }
        Ok(())
    }
}
