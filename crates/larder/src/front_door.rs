//! The FUSE front door of a client; the end of the mount is reported as an event.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_client::Client;
use larder_fuse::{MountOptions, Mounted};
use tokio::sync::mpsc::UnboundedSender;

use crate::event::Event;
use crate::link::Hold;
use crate::plan::Plan;

/// An open front door. It stays open until [`FrontDoor::close`], or until the mount is unmounted.
pub(crate) struct FrontDoor(Arc<Mounted>);

/// Mounts `client`. [`Event::Gone`] later reports that the mount was removed, by any process.
///
/// # Errors
/// See [`larder_fuse::MountError`]; nothing is mounted then.
pub(crate) async fn open(
    plan: &Plan,
    client: Client,
    cache_on_disk: bool,
    hold: &Hold,
    events: &UnboundedSender<Event>,
) -> Result<FrontDoor> {
    let options = fuse_options(plan, cache_on_disk);
    let (mountpoint, runtime) = (plan.mountpoint.clone(), tokio::runtime::Handle::current());
    let (client, hold) = (Arc::new(client), hold.clone());
    let mount = move || match hold {
        Hold::Ours => Ok(larder_fuse::mount(client, &mountpoint, &options, &runtime)?),
        Hold::Supervised(link) => {
            let session = link.take_session()?;
            anyhow::Ok(larder_fuse::serve(session, client, &runtime, link.begin())?)
        }
    };
    let mounted = Arc::new(tokio::task::spawn_blocking(mount).await.context("mounting")??);
    let (waiting, events) = (mounted.clone(), events.clone());
    let wait = move || {
        let event = match waiting.wait() {
            Ok(()) => Event::Gone,
            Err(error) => {
                tracing::error!("{error}");
                Event::Broken(error.to_string())
            }
        };
        // No receiver is left if the daemon is ending already.
        let _ = events.send(event);
    };
    std::thread::Builder::new().name("larder-wait".to_owned()).spawn(wait)?;
    Ok(FrontDoor(mounted))
}

impl FrontDoor {
    /// Whether the mount is the topmost at its path.
    pub(crate) fn is_mounted(&self) -> bool {
        self.0.is_mounted()
    }

    /// How requests travel.
    pub(crate) fn transport(&self) -> larder_fuse::Transport {
        self.0.transport()
    }

    /// Requests of the kernel by their names.
    pub(crate) fn requests(&self) -> Vec<(String, u64)> {
        self.0.requests()
    }

    /// How many references the kernel holds.
    pub(crate) fn references(&self) -> larder_fuse::References {
        self.0.references()
    }

    /// Takes no more requests; see [`Mounted::leave`].
    pub(crate) fn leave(&self, wait_max: Duration) -> bool {
        self.0.leave(wait_max)
    }

    /// Unmounts if necessary, and fails requests in flight. Blocks for a bounded time
    /// ([`larder_fuse::UNMOUNT_LIMIT`]).
    pub(crate) fn close(&self) {
        if let Err(error) = self.0.unmount() {
            tracing::warn!("{error}");
        }
    }
}

/// The options with which the kernel mounts.
pub(crate) fn fuse_options(plan: &Plan, cache_on_disk: bool) -> MountOptions {
    let flags = plan.back.options.flags;
    let default = MountOptions::new(plan.back.source.to_string());
    MountOptions {
        read_only: flags.read_only,
        allow_other: flags.allow_other.unwrap_or(default.allow_other),
        no_suid: flags.no_suid,
        no_dev: flags.no_dev,
        no_exec: flags.no_exec,
        no_atime: flags.no_atime,
        transport: plan.back.options.front_door.transport,
        survive: plan.survives(),
        pass_locks: plan.back.passes_locks(),
        // Without a cache on disk there are no local files to pass to the kernel.
        probe_dir: plan
            .back
            .cache
            .clone()
            .filter(|_| cache_on_disk && plan.back.options.passthrough),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::classes::IfWrong;

    #[test]
    fn the_kernel_is_offered_local_files_unless_that_is_declined() {
        for (typed, cache_on_disk, offered) in
            [("rw", true, true), ("rw", false, false), ("nopassthrough", true, false)]
        {
            let typed_so = [typed.to_owned()];
            let back = Backend::find(
                "server:/export",
                Some("/cache".as_ref()),
                &typed_so,
                IfWrong::Refuse,
            );
            let plan = Plan { back: back.unwrap(), mountpoint: "/mnt".into() };
            let probed = fuse_options(&plan, cache_on_disk).probe_dir;
            assert_eq!(probed.is_some(), offered, "{typed}, {cache_on_disk}");
        }
    }
}
