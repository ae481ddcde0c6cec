//! Where the holes of a file are (lseek(2)): the server knows, once it has what is unsent. Ranges
//! that cannot be asked about or sent now count as data, which is never wrong.

use std::sync::Arc;

use larder_vfs::{Error, Ino, OpenId, Result, Seek};

use crate::core::Core;
use crate::names::on_handle;

impl Core {
    /// See [`larder_vfs::FileSystem::seek`].
    pub(crate) async fn seek(
        self: &Arc<Self>,
        ino: Ino,
        open: OpenId,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        let (node, opened) = (self.node(ino)?, self.open_file(open)?);
        let deadline = self.deadline();
        let is_sent = self.remote.reachable() && self.upload(&node, deadline).await.is_ok();
        if is_sent && !node.state().is_gone() {
            let cred = &opened.cred.until(deadline);
            let token = self.open_files.token(ino, false);
            let found = on_handle!(self, cred, node, handle =>
                self.remote.seek(cred, &handle, token.as_ref(), offset, what));
            match found {
                Ok(_) | Err(Error::NoData | Error::NotSupported) => return found,
                Err(error) => tracing::debug!(ino = ino.0, %error, "holes are not known"),
            }
        }
        let size = self.fresh(&node).attr.size;
        what.without_holes(offset, size)
    }
}
