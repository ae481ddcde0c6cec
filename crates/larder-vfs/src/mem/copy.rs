//! Copies within the model.

use crate::{CopyEnd, Cred, Error, RemoteCopied, Result};

use super::node::{Body, READ, SET_GID, SET_UID, WRITE};
use super::server::Server;

/// The most that the model copies at once, in bytes: a caller that wants more asks again.
const COPIED_BYTES_MAX: u64 = 1 << 20;

impl Server {
    pub(super) fn copy_range(
        &mut self,
        cred: &Cred,
        from: CopyEnd<'_>,
        to: CopyEnd<'_>,
        len: u64,
    ) -> Result<RemoteCopied> {
        let (source, target) = (self.resolve(from.file)?, self.resolve(to.file)?);
        self.data(cred, target, WRITE)?;
        let size = self.data(cred, source, READ)?.size();
        let len = from.check(&to, len, size, self.limits.file_size_max)?.min(COPIED_BYTES_MAX);
        if self.is_full() && len > 0 {
            return Err(Error::NoSpace);
        }
        let asked = u32::try_from(len).expect("what is copied at once is short");
        let bytes = self.data(cred, source, READ)?.read(from.offset, asked);
        let now = self.tick();
        let node = self.node_mut(target);
        let before = node.before();
        if len > 0 {
            let Body::File { data, durable } = &mut node.body else { panic!("looked before") };
            for pages in durable.iter_mut().chain([data]) {
                pages.write(to.offset, &bytes);
            }
            node.touched(now, true);
            if cred.uid != 0 {
                node.mode &= !(SET_UID | SET_GID);
            }
        }
        Ok(RemoteCopied { len, change: self.change(target, before) })
    }
}
