//! systemd, if it started us: it is told when the mount is usable, and keeps the mount's descriptors
//! (`FileDescriptorStoreMax=`, sd_notify(3)), so that a supervisor that dies is followed by one that goes on.
//!
//! Without systemd (no `NOTIFY_SOCKET`, no `LISTEN_FDS`) all of this does nothing.

use std::path::Path;

use larder_fuse::Session;
use larder_io::inherited;
use sd_notify::NotifyState;

/// The names under which systemd keeps descriptors begin so; then comes their place.
const NAME: &str = "larder-";

/// The session that systemd kept for us, if it did, and it is that of `mountpoint`.
pub(super) fn adopted(mountpoint: &Path) -> Option<Session> {
    let mut kept: Vec<_> = inherited::descriptors()
        .into_iter()
        .filter_map(|(fd, name)| Some((name.strip_prefix(NAME)?.parse::<usize>().ok()?, fd)))
        .collect();
    if kept.is_empty() {
        return None;
    }
    kept.sort_by_key(|(place, _)| *place);
    match Session::from_descriptors(kept.into_iter().map(|(_, fd)| fd).collect()) {
        Ok(session) if session.mountpoint() == mountpoint => {
            tracing::info!("going on with the mount that systemd kept");
            Some(session)
        }
        Ok(session) => {
            tracing::error!(kept = %session.mountpoint().display(), "systemd kept another mount");
            None
        }
        Err(error) => {
            tracing::error!(%error, "what systemd kept is no mount");
            None
        }
    }
}

/// Gives the descriptors of a session to systemd.
pub(super) fn store(session: &Session) {
    for (place, fd) in session.descriptors().enumerate() {
        let name = format!("{NAME}{place}");
        let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
        tell(sd_notify::notify_with_fds(&state, &[fd]));
    }
}

/// The mount is usable.
pub(super) fn ready() {
    tell(sd_notify::notify(&[NotifyState::Ready]));
}

/// The mount is gone: there is nothing to keep any more.
pub(super) fn forget(session: &Session) {
    for (place, _) in session.descriptors().enumerate() {
        let name = format!("{NAME}{place}");
        tell(sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]));
    }
}

fn tell(told: std::io::Result<()>) {
    if let Err(error) = told {
        tracing::warn!(%error, "systemd is not told");
    }
}
