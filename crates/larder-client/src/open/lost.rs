//! Files whose bytes are lost are made again before they are read, while the open or the read waits
//! ([`super::remaker`]).
//!
//! The file that is made is another one with the same name. So the open of the lost one fails with
//! [`Error::Stale`], and the kernel looks the name up again and opens what it finds: the program
//! sees a slow open. Where the loss shows later, an open file of the lost one reads the new one,
//! provided that it has the same length: the kernel knows that size. If the file cannot be made,
//! the read fails.
//!
//! The process that makes files must not wait for them: it learns what is lost from an attribute
//! ([`Core::xattr`]), without a read.

use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{Answer, Cred, Error, Ino, Lookup, OpenFlags, OpenId, Opened, Result};

use crate::core::Core;
use crate::names::on_handle;
use crate::node::Node;

impl Core {
    /// Opens a file; a lost one is made again first, if it is opened for reading.
    pub(crate) fn open_whole(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        flags: OpenFlags,
    ) -> Answer<Opened> {
        let answer = self.open(cred, ino, flags);
        if self.remaker.get().is_none() || !flags.read || flags.truncate {
            return answer;
        }
        let (core, cred) = (self.clone(), cred.clone());
        Answer::later(async move {
            let opened = answer.wait().await?;
            let node = core.node(ino)?;
            if !core.is_to_be_replaced(&node, &cred).await {
                return Ok(opened);
            }
            // First: a rename hides a file that is open, and for that moment nobody finds one of
            // its name. No caller is left to which an error could be reported.
            let _ = core.release(opened.id).await;
            if core.has_remade(&node).await {
                return Err(Error::Stale);
            }
            core.open(&cred, ino, flags).wait().await
        })
    }

    /// Reads; a lost range is read from the file that is made in its place.
    pub(crate) fn read_whole(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes> {
        let answer = self.read(cred, ino, open, offset, len);
        if self.remaker.get().is_none() || matches!(answer, Answer::Now(_)) {
            return answer;
        }
        let (core, cred) = (self.clone(), cred.clone());
        Answer::later(async move {
            match answer.wait().await {
                Err(Error::Lost) => core.read_replaced(&core.node(ino)?, &cred, offset, len).await,
                read => read,
            }
        })
    }

    /// Whether bytes of a file are lost, and its opener may wait until it is made again.
    async fn is_to_be_replaced(&self, node: &Node, cred: &Cred) -> bool {
        if self.holds_whole(node) {
            return false;
        }
        let token = self.open_files.token(node.ino, false);
        let asking = &self.caller(cred);
        let lost = on_handle!(self, asking, node, handle =>
            self.remote.is_lost(asking, &handle, token.as_ref()));
        // Any other error is reported by the read itself.
        lost == Ok(true) && self.remaker.get().is_some_and(|remaker| remaker.serves(cred.pid))
    }

    /// Has a lost file made again. Returns whether its name now leads to another file.
    async fn has_remade(&self, node: &Node) -> bool {
        match self.remaker.get() {
            Some(remaker) => remaker.remake(self.path_of(node.ino)).await,
            None => false,
        }
    }

    /// Reads a range whose bytes are lost from the file that is made in its place.
    ///
    /// # Errors
    /// [`Error::Lost`] if there is none; the error of reading that file.
    async fn read_replaced(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        let by = match self.replaced.by(node.ino) {
            Some(by) => by,
            None => self.replace(node, cred).await?,
        };
        let by = self.node(by)?;
        if by.state().attr().size != node.state().attr().size {
            return Err(Error::Lost);
        }
        // The call has waited for something other than its server.
        self.read_range(&by, &self.caller(cred), offset, len).await
    }

    /// Has a lost file made again. Returns the file to which its name leads then.
    async fn replace(self: &Arc<Self>, node: &Node, cred: &Cred) -> Result<Ino> {
        let remaker = self.remaker.get().filter(|remaker| remaker.serves(cred.pid));
        let remaker = remaker.ok_or(Error::Lost)?;
        let name = node.state().known().hint.clone();
        if !remaker.remake(self.path_of(node.ino)).await {
            return Err(Error::Lost);
        }
        let (dir, name) = name.ok_or(Error::Lost)?;
        let found = self.lookup_remote(&self.node(dir)?, &self.caller(cred), &name).await?;
        let Lookup::Found(entry) = found else { return Err(Error::Lost) };
        let by = entry.ino;
        self.replaced.insert(node.ino, by);
        Ok(by)
    }

    /// Whether the cache has all bytes of a file's present version.
    fn holds_whole(&self, node: &Node) -> bool {
        let size = node.state().attr().size;
        self.file(node).holds(0..size)
    }
}
