//! A mount's lost files are made again as soon as the metadata server has noticed that they are
//! lost (`-o rebuild=now`).
//!
//! The server is asked every few seconds whether there was another loss, and then which files have
//! lost bytes. Those that name a rule are made ([`AtAccess::make_soon`]): the files of this user,
//! or, if the daemon is root's, of all. Several mounts may want the same file: the lock on its rule
//! lets one of them make it, and the others find it there.

use std::sync::Arc;
use std::time::Duration;

use larder_client::Client;
use larder_io::Clock;
use larder_remote::later::Later;
use larder_remote::native::{LostFile, Native};
use larder_vfs::Error;
use tokio::task::AbortHandle;

use super::AtAccess;
use super::inside;

/// How often the server is asked.
const EVERY: Duration = Duration::from_secs(5);

/// Has the files made, until it is dropped.
pub(crate) struct AtOnce {
    task: AbortHandle,
}

impl AtOnce {
    /// Begins to ask. Must be called within the runtime.
    pub(crate) fn begin(
        making: Arc<AtAccess>,
        volume: Later<Native>,
        client: Client,
        clock: Arc<dyn Clock>,
    ) -> AtOnce {
        let asking = Asking { making, volume, client };
        let task = tokio::spawn(async move {
            let mut known = 0;
            loop {
                match asking.ask(known).await {
                    Ok(last) => known = last,
                    Err(error) => tracing::debug!(%error, "what is lost is not known"),
                }
                clock.sleep(EVERY).await;
            }
        });
        AtOnce { task: task.abort_handle() }
    }

    /// Asks nothing any more.
    pub(crate) fn end(&self) {
        self.task.abort();
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        self.end();
    }
}

struct Asking {
    making: Arc<AtAccess>,
    volume: Later<Native>,
    client: Client,
}

impl Asking {
    /// Has the files made that were lost after the loss with this number. Returns the number of the
    /// last loss.
    ///
    /// # Errors
    /// If the server does not tell.
    async fn ask(&self, known: u64) -> Result<u64, Error> {
        let Some(volume) = self.volume.get() else { return Ok(known) };
        let told = volume.lost_files(false, known).await?;
        let user = rustix::process::geteuid();
        for LostFile { path, uid } in told.files {
            let is_ours = user.is_root() || uid == user.as_raw();
            if is_ours && inside::has(&self.client, &path, inside::RULE).await? {
                self.making.make_soon(path);
            }
        }
        Ok(told.number)
    }
}
