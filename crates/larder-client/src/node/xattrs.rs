//! Extended attributes: read and set at the server each time, by the caller's rights. None of them
//! are cached, except those that report classes ([`crate::class`]).

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{Cred, Error, Ino, Result, SetXattr};

use crate::core::Core;
use crate::names::on_handle;

/// The extended attribute (without `user.`) of a file whose bytes are lost; no listing has it.
const LOST: &str = "larder.lost";

impl Core {
    /// See [`larder_vfs::FileSystem::xattr`].
    pub(crate) async fn xattr(&self, cred: &Cred, ino: Ino, name: &OsStr) -> Result<Option<Bytes>> {
        let node = self.node(ino)?;
        self.demand_path(&node, cred).await?;
        if let Some(own) = self.own_xattr(&node, name).await {
            return Ok(own);
        }
        if name == LOST {
            let lost = on_handle!(self, cred, node, handle =>
                self.remote.is_lost(cred, &handle, None));
            return lost.map(|is_lost| is_lost.then_some(Bytes::from_static(b"1")));
        }
        on_handle!(self, cred, node, handle => self.remote.xattr(cred, &handle, name))
    }

    /// See [`larder_vfs::FileSystem::xattrs`].
    pub(crate) async fn xattrs(&self, cred: &Cred, ino: Ino) -> Result<Vec<OsString>> {
        let node = self.node(ino)?;
        self.demand_path(&node, cred).await?;
        let own = self.own_xattrs(&node);
        let there = on_handle!(self, cred, node, handle => self.remote.xattrs(cred, &handle));
        let mut all = match there {
            // It has none; we may.
            Err(Error::NotSupported) => Vec::new(),
            there => there?,
        };
        all.retain(|name| Some(name) != own.as_ref());
        all.extend(own);
        Ok(all)
    }

    /// See [`larder_vfs::FileSystem::set_xattr`].
    pub(crate) async fn set_xattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        set: SetXattr,
    ) -> Result<()> {
        self.refuse_read_only()?;
        if let Some(done) = self.set_own_xattr(cred, ino, &set).await {
            return done;
        }
        let node = self.node(ino)?;
        self.demand_path(&node, cred).await?;
        self.begin_change(&node);
        let answer = on_handle!(self, cred, node, handle =>
            self.remote.set_xattr(cred, &handle, set.clone()));
        self.end_change(&node, answer.as_ref().ok().copied());
        match answer {
            Err(Error::Exists | Error::NoAttribute) if cred.retried => {
                // An earlier process may have received the answer to its first attempt before it
                // died; this attempt then fails although the first succeeded.
                let held = self.xattr(cred, ino, &set.name).await?;
                if set.is_done(held.as_ref()) { Ok(()) } else { answer.map(drop) }
            }
            answer => answer.map(drop),
        }
    }
}
