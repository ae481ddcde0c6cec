//! What programs ask about the classes of a mount and of its files.

use std::time::Duration;

use larder_class::{Choice, Classes};
use larder_vfs::{Cred, Error, InArchive, Ino, Kind, Result, StoredPart};

use super::Durability;
use crate::client::Client;
use crate::names::on_handle;

impl Client {
    /// The classes of the mount.
    pub fn classes(&self) -> &Classes {
        &self.core.options.classes
    }

    /// The class that a file has for its owner, and why. For a directory, the class of the files in
    /// it for which nothing more specific is set.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such file.
    pub fn class(&self, ino: Ino) -> Result<Choice> {
        Ok(self.core.class_for_owner(&*self.core.node(ino)?))
    }

    /// How durable a file is now. Sends no request.
    ///
    /// # Errors
    /// As [`Client::class`].
    pub fn durability(&self, ino: Ino) -> Result<Durability> {
        Ok(self.core.durability(&*self.core.node(ino)?))
    }

    /// The size of a regular file, as far as is known here; `None` for other objects. Makes no
    /// request.
    ///
    /// # Errors
    /// As [`Client::class`].
    pub fn size(&self, ino: Ino) -> Result<Option<u64>> {
        let node = self.core.node(ino)?;
        let state = node.state();
        Ok((state.known().attr.kind == Kind::File).then(|| state.attr().size))
    }

    /// Where the server has the bytes of a file. Asks the server, and waits for it at most this
    /// long.
    ///
    /// # Errors
    /// As [`Client::class`]; [`Error::NotSupported`] if the server does not tell;
    /// [`Error::TimedOut`]; what else it answers.
    pub async fn stored(
        &self,
        cred: &Cred,
        ino: Ino,
        patience: Duration,
    ) -> Result<Vec<StoredPart>> {
        let (core, cred) = (&self.core, &self.core.caller(cred));
        let node = core.node(ino)?;
        let asked =
            async { on_handle!(core, cred, node, handle => core.remote.stored(cred, &handle)) };
        core.clock.timeout(patience, asked).await.unwrap_or(Err(Error::TimedOut))
    }

    /// Whether the archive has the present version of a file, or when that is due there; `None` if
    /// it need not be there. Waits at most this long.
    ///
    /// # Errors
    /// As [`Client::stored`]
    pub async fn in_archive(
        &self,
        cred: &Cred,
        ino: Ino,
        patience: Duration,
    ) -> Result<Option<InArchive>> {
        let (core, cred) = (&self.core, &self.core.caller(cred));
        let node = core.node(ino)?;
        if node.state().known().attr.kind != Kind::File {
            return Ok(None);
        }
        let asked = async {
            on_handle!(core, cred, node, handle => core.remote.in_archive(cred, &handle, None))
        };
        core.clock.timeout(patience, asked).await.unwrap_or(Err(Error::TimedOut))
    }
}
