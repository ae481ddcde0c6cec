//! Bytes that this machine alone has of files that are empty at the server.
//!
//! The metadata server is told of them before they are acknowledged, under a write lease on the
//! file. It lets nobody else see the file before it was told that they are at the disks (or that
//! they are lost), even if the lease is returned. So [`super::recalls`] has them sent first.

use larder_vfs::{Cred, Error, Result};
use larder_wire::meta::Status;
use larder_wire::meta::calls::{Retain, Retention};
use larder_wire::meta::words::FileId;

use super::Native;
use super::session::Failed;

impl Native {
    /// Tells the server that this machine alone has so many bytes of a file, from which others are
    /// excluded. Returns whether it has taken note.
    pub(super) async fn retain_bytes(&self, cred: &Cred, file: FileId, bytes: u64) -> Result<bool> {
        let retained = self.session.retained();
        // Who wants the lease back would not be told again.
        let is_alone = self.session.leases().excludes(file);
        if !is_alone || retained.is_unknown() {
            return Ok(false);
        }
        // A descriptor that was duplicated is closed again.
        if retained.has_bytes(file, bytes) {
            return Ok(true);
        }
        self.commit_pending(file).await?;
        let is_new = retained.note(file);
        let what = Retention::Retained(bytes);
        match self.session.change(cred, |sequence| Retain { sequence, file, what }).await {
            Ok(()) => {
                retained.noted(file, bytes);
                return Ok(true);
            }
            Err(Failed::Call(Error::NotSupported)) => {
                retained.note_unknown();
            }
            // It may have taken note.
            Err(Failed::Call(error)) => return Err(error),
            Err(Failed::Status(status)) => tracing::debug!(file = file.0, %status, "not retained"),
        }
        if is_new {
            retained.forget(file);
        }
        Ok(false)
    }

    /// Tells the server that it has the bytes of a file that was retained, by this process or, if
    /// that may be, by an earlier one; or that they are kept otherwise.
    pub(super) async fn release_bytes(
        &self,
        cred: &Cred,
        file: FileId,
        by_others: bool,
    ) -> Result<()> {
        let retained = self.session.retained();
        let may_be = retained.has(file) || by_others;
        if !may_be || retained.is_unknown() {
            return Ok(());
        }
        let what = Retention::Released;
        match self.session.change(cred, |sequence| Retain { sequence, file, what }).await {
            Ok(()) | Err(Failed::Status(Status::Stale)) => {}
            Err(Failed::Call(Error::NotSupported)) => {
                retained.note_unknown();
            }
            Err(failed) => return Err(failed.into()),
        }
        retained.forget(file);
        Ok(())
    }
}
