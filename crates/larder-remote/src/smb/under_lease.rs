//! What holds for a lease and for the watch that stands for one: the file is looked at through the
//! open that it came with, and the watcher hears of its end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_vfs::Handle;
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::status::NtStatus;

use super::attr::Info;
use super::files::{File, ServerOpen};
use super::link::{Link, garbled};
use super::share::Share;
use super::status::Failure;
use super::wire;

/// Longest wait for the watcher.
const GIVE_BACK_MAX: Duration = Duration::from_secs(30);

impl Share {
    /// Tells the watcher that a lease ended, and waits for it a while.
    pub(super) async fn tell(&self, file: &Handle) {
        let Some(watcher) = self.watcher.get().and_then(Weak::upgrade) else { return };
        if self.options.clock.timeout(GIVE_BACK_MAX, watcher.broken(file)).await.is_err() {
            tracing::warn!(?file, "what depended on a lease was not given up in time");
        }
    }

    /// Looks at a file through the open that its lease came with.
    pub(super) async fn ask_again(
        &self,
        link: &Arc<Link>,
        entry: &Arc<File>,
        open: &ServerOpen,
    ) -> Result<Option<Info>, Failure> {
        if !open.is_on(link) {
            return Ok(None);
        }
        let since = entry.moment();
        let reply = link.ask(wire::query(open.id)).await?;
        match reply.read::<QueryInfoResponse>() {
            Ok(seen) => {
                let info = Info::parse(&seen.output_buffer).map_err(garbled)?;
                entry.saw(since, info);
                Ok(Some(info))
            }
            Err(Failure::Status(NtStatus::FILE_CLOSED)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}
