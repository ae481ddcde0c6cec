//! systemd, if it started us: larder tells it when the mount is usable, and gives it the mount's
//! descriptors to keep (`FileDescriptorStoreMax=`, sd_notify(3)), so that another supervisor can
//! take over from one that dies.
//!
//! Without systemd (no `NOTIFY_SOCKET`, no `LISTEN_FDS`) all of this does nothing.

use larder_fuse::Session;
use larder_io::inherited;
use sd_notify::NotifyState;

/// The names under which systemd keeps descriptors begin with this; their position follows.
const NAME: &str = "larder-";

/// The mount that systemd kept for us, if it did. To be called once, and before there is a log:
/// errors are printed on standard error.
pub(crate) fn from_fd_store() -> Option<Session> {
    let mut stored: Vec<_> = inherited::descriptors()
        .into_iter()
        .filter_map(|(fd, name)| Some((name.strip_prefix(NAME)?.parse::<usize>().ok()?, fd)))
        .collect();
    if stored.is_empty() {
        return None;
    }
    stored.sort_by_key(|(place, _)| *place);
    let count = stored.len();
    let in_order = stored.iter().map(|(place, _)| *place).eq(0..count);
    let descriptors = stored.into_iter().map(|(_, fd)| fd).collect();
    let session = match Session::from_descriptors(descriptors) {
        Ok(session) if in_order => session,
        Ok(_) => return refuse(count, "a part of what systemd kept of a mount is missing"),
        Err(error) => return refuse(count, &format!("what systemd kept is no mount: {error}")),
    };
    if !session.is_mounted() {
        let shown = session.mountpoint().display();
        return refuse(count, &format!("the mount on {shown} that systemd kept is gone"));
    }
    Some(session)
}

/// Has systemd drop it, so that the next start does not find it again.
fn refuse(count: usize, why: &str) -> Option<Session> {
    eprintln!("larder: {why}");
    forget_all(count);
    None
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

/// The mount is gone: systemd has nothing to keep any more.
pub(super) fn forget(session: &Session) {
    forget_all(session.descriptors().count());
}

fn forget_all(count: usize) {
    for place in 0..count {
        let name = format!("{NAME}{place}");
        tell(sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]));
    }
}

fn tell(told: std::io::Result<()>) {
    if let Err(error) = told {
        tracing::warn!(%error, "systemd is not told");
    }
}
