//! Removals, and the hidden names of files that are removed while other clients use them.
//!
//! A name stays until the last open of the file is closed (MS-FSA, 2.1.5.4). So that it is free
//! when its removal returns, a file in use first gets a hidden name, which goes with that close.
//!
//! Samba serves each client by a process of its own, and tells the others of a new name by a
//! message. A process that closes the last open before it has read that message deletes nothing: it
//! looks for a removal of the name that it knows (4.17, `close_remove_share_mode`). So this client
//! looks after each hidden name for a while, and removes it again if it is there and nobody uses
//! it. It does so, too, if the caller gives up, or the connection is lost, before the server was
//! asked to remove it.
//!
//! Absent on purpose: the same for directories, which keep their names. Another client may have
//! made a new one of that name by then, and may have got the number of the former.

use super::attr::Info;
use super::channel::{attempt, call};
use super::handle::Identity;
use super::link::{Link, Op};
use super::names;
use super::share::{self, Share};
use super::status::Failure;
use super::wire::{self, Opening, PREVIOUS};
use larder_io::Backoff;
use larder_vfs::{Handle, Result};
use smb2::types::status::NtStatus;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// First and longest pause before a look at a hidden name. A server's processes read their messages
/// within moments, unless the machine is very busy.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// Looks at a hidden name: half a minute of them.
const LOOKS_MAX: u32 = 13;

/// A hidden name that was given, or is about to be.
#[derive(Clone)]
struct Hidden {
    dir: Handle,
    component: String,
    /// The file that it stands for.
    file: Identity,
    /// The server has said that it was given.
    is_given: bool,
}

/// What a look at a hidden name showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// There is no such file.
    Gone,
    /// The server removes it with the last close.
    Going,
    /// It would stay.
    Left,
}

/// Looks after a hidden name from when this is dropped, also by a caller that gives up.
struct LookAfter {
    share: Weak<Share>,
    runtime: tokio::runtime::Handle,
    /// Taken if the name is known to be gone.
    hidden: Option<Hidden>,
}

impl Drop for LookAfter {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            self.runtime.spawn(look_after(std::mem::take(&mut self.share), hidden));
        }
    }
}

/// Deletes the directory at a path. If another client uses it, it stays until that client closes
/// it.
pub(super) async fn delete_directory(link: &Arc<Link>, path: String) -> Result<(), Failure> {
    let options = wire::DIRECTORY_FILE | wire::OPEN_REPARSE_POINT;
    delete(link, &Opening { options, ..Opening::existing(path, wire::DELETE) }).await
}

/// Deletes a file that was just made at a path, and that nobody else has open.
pub(super) async fn delete_new(link: &Arc<Link>, path: String) -> Result<(), Failure> {
    delete_alone(link, &of_file(path)).await
}

impl Share {
    /// Deletes the file at a path in `dir`. A client that keeps it open under a lease is asked to
    /// close it, and waited for. If a client uses it, it gets a hidden name first, which exists
    /// until that client closes it.
    pub(super) async fn delete_file(
        self: &Arc<Share>,
        link: &Arc<Link>,
        dir: &Handle,
        path: String,
        what: &Info,
    ) -> Result<(), Failure> {
        let shared = of_file(path);
        match delete_alone(link, &shared).await {
            Err(Failure::Status(NtStatus::SHARING_VIOLATION)) => (),
            done => return done,
        }
        // When the server tells of its name, and of the hidden one, is up to whoever uses it.
        self.give_up(dir).await;
        tracing::debug!(path = shared.path, "somebody uses a file that is removed");
        let component = self.hidden_name(what);
        let above = shared.path.rsplit_once('\\').map_or("", |(above, _)| above);
        let path = names::join(above, &component);
        let (dir, file) = (dir.clone(), what.identity());
        let hidden = Some(Hidden { dir, component, file, is_given: false });
        let (share, runtime) = (Arc::downgrade(self), link.runtime().clone());
        let mut after = LookAfter { share, runtime, hidden };
        let target = wire::target(&path, false);
        let rename = wire::set(PREVIOUS, wire::RENAME_INFORMATION, target);
        match share::act(link, &shared, vec![rename]).await {
            Ok(()) => after.hidden.as_mut().expect("it may be there").is_given = true,
            Err(Failure::Status(status)) => {
                tracing::debug!(%status, "it cannot be hidden");
                after.hidden = None;
                return delete_shared(link, &shared).await;
            }
            Err(failure) => return Err(failure),
        }
        // Not in one message with the rename: the Samba process that serves the other client
        // learns of the new name a moment later. The other client may be about to close the file.
        let deleted = delete_alone(link, &of_file(path.clone())).await;
        if deleted.is_ok() {
            after.hidden = None;
        }
        match deleted {
            Err(Failure::Status(NtStatus::SHARING_VIOLATION)) => {
                delete_shared(link, &of_file(path)).await
            }
            deleted => deleted,
        }
    }

    /// An unused name, in the form in which NFS clients hide removed files.
    fn hidden_name(&self, what: &Info) -> String {
        let number = self.hidden.fetch_add(1, Ordering::Relaxed);
        format!(".nfs{:016x}{:04x}{number:08x}", what.file_id, self.mount_id & 0xffff)
    }

    /// Looks at a hidden name, and removes it if it would stay.
    async fn look_at_hidden(&self, link: &Arc<Link>, hidden: &Hidden) -> Result<Sight, Failure> {
        let path = names::join(&self.path(&hidden.dir)?, &hidden.component);
        let sight = match self.look(link, path.clone(), false).await {
            Ok(seen) if seen.info.identity() == hidden.file => Sight::Left,
            Err(Failure::Status(NtStatus::DELETE_PENDING)) => Sight::Going,
            Ok(_) => Sight::Gone,
            Err(failure) if failure.is_absence() || failure.is_pathless() => Sight::Gone,
            Err(failure) => return Err(failure),
        };
        if sight == Sight::Left {
            tracing::debug!(path, "a removed file is still there: it is removed again");
            delete(link, &of_file(path)).await?;
        }
        Ok(sight)
    }
}

/// Looks after a hidden name until it is gone, or a moment is over after which the server removes
/// it with its last close.
async fn look_after(share: Weak<Share>, mut hidden: Hidden) {
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1);
    for _ in 0..LOOKS_MAX {
        let Some(clock) = share.upgrade().map(|share| Arc::clone(&share.options.clock)) else {
            return;
        };
        clock.sleep(pauses.pause()).await;
        let Some(share) = share.upgrade() else { return };
        let looking = async {
            call!(None, share, [&hidden.dir], share.channel(&hidden.dir), |link, _again| share
                .look_at_hidden(&link, &hidden))
        };
        match looking.await {
            Ok(Sight::Gone) if hidden.is_given => return,
            Ok(Sight::Going | Sight::Left) => hidden.is_given = true,
            // The rename may still be on its way.
            Ok(Sight::Gone) | Err(_) => (),
        }
    }
}

/// The file at a path, to be removed or renamed.
fn of_file(path: String) -> Opening {
    let options = wire::NON_DIRECTORY_FILE | wire::OPEN_REPARSE_POINT;
    Opening { options, ..Opening::existing(path, wire::DELETE) }
}

/// Has a file deleted when it is closed.
fn disposition() -> Op {
    wire::set(PREVIOUS, wire::DISPOSITION_INFORMATION, vec![1])
}

/// Deletes what no other client has open, or what other clients are asked to close.
async fn delete_alone(link: &Arc<Link>, shared: &Opening) -> Result<(), Failure> {
    let alone = Opening { alone: true, ..shared.clone() };
    share::act(link, &alone, vec![disposition()]).await
}

/// Deletes what other clients may have open: it goes when they close it.
async fn delete_shared(link: &Arc<Link>, shared: &Opening) -> Result<(), Failure> {
    share::act(link, shared, vec![disposition()]).await
}

/// Deletes in the first of these ways that the server permits.
async fn delete(link: &Arc<Link>, shared: &Opening) -> Result<(), Failure> {
    match delete_alone(link, shared).await {
        Err(Failure::Status(NtStatus::SHARING_VIOLATION)) => delete_shared(link, shared).await,
        done => done,
    }
}
