//! Calls that lock and unlock: one after the other for each file, and each to its end, even if its
//! caller gives up.
//!
//! If the outcome of a call is unknown, or the session has ended, the server is first told again
//! what is held, before anything else is changed. If it refuses that, another client has got a
//! lock: the locks of the file are lost, and the watcher is notified.

use std::ops::Range;
use std::sync::Arc;

use larder_vfs::{Cred, Error, LockChange, LockMode, ReservedLock, Result};
use larder_wire::meta::recall::LockFree;
use larder_wire::meta::words::{Attributes, FileId, Sequence, WaiterNumber};
use larder_wire::meta::{Status, calls};

use super::convert;
use super::locks::{self, Outcome, Turn};
use super::session::{Begun, Failed, Session};

/// Changes the locks of a file: all of it or nothing.
pub(super) async fn change(
    session: &Arc<Session>,
    cred: &Cred,
    file: FileId,
    changes: &[LockChange],
) -> Result<Attributes> {
    let (session, cred, changes) = (Arc::clone(session), cred.clone(), changes.to_vec());
    // If the caller gives up, the call still ends before the next one is sent.
    let changed = tokio::spawn(async move {
        let turn = session.locks().turn(file).await;
        if turn.is_doubtful() {
            tell(&session, &turn, file).await?;
        }
        Ok(send(&session, &cred, &turn, file, &changes).await?)
    });
    changed.await.unwrap_or(Err(Error::Shutdown))
}

/// How another holder has some of a range that is wanted in this mode.
pub(super) async fn test(
    session: &Session,
    cred: &Cred,
    file: FileId,
    range: &Range<u64>,
    mode: LockMode,
) -> Result<Option<LockMode>> {
    let (range, mode) = (range.clone().into(), locks::sent_mode(mode));
    let args = |session| calls::TestLock { session, file, range, mode };
    let tested = session.ask(cred, args).await?;
    Ok(tested.found.map(|found| locks::mode(found.mode)))
}

/// Queues at the server for changes that were refused, until they are reserved for this mount.
pub(super) async fn wait(
    session: &Arc<Session>,
    cred: &Cred,
    file: FileId,
    changes: &[LockChange],
) -> Result<ReservedLock> {
    let sent = locks::all_sent(changes)?;
    let (number, told) = session.locks().wait();
    let (session, changes) = (Arc::clone(session), changes.to_vec());
    let queued = Queued { session, file, number, changes };
    let args = |session| calls::AwaitLock { session, file, number, changes: sent.clone() };
    if !queued.session.ask(cred, args).await?.is_free {
        told.notified().await;
    }
    Ok(Box::new(queued))
}

/// A place in the queue for a lock, and what the server then reserves for its waiter.
struct Queued {
    session: Arc<Session>,
    file: FileId,
    number: WaiterNumber,
    changes: Vec<LockChange>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        let locks = self.session.locks();
        locks.wait_no_more(self.number);
        // The server knows that a holder of the lock does not wait for it.
        if !locks.have(self.file, &self.changes) {
            forgo(&self.session, self.file, self.number);
        }
    }
}

/// Tells the server that a waiter gave up. Does not wait for the answer.
fn forgo(session: &Arc<Session>, file: FileId, number: WaiterNumber) {
    let session = Arc::clone(session);
    // Without a runtime the mount is at its end, and the line ends with it.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let args = |session| calls::ForgoLock { session, file, number };
        if let Err(error) = session.ask(&Cred::root(), args).await {
            tracing::debug!(file = file.0, ?error, "the server keeps a lock for nobody");
        }
    });
}

/// The server reports that a lock is reserved for a waiter of this mount.
pub(super) fn is_free(session: &Arc<Session>, free: LockFree) {
    let LockFree { file, number, .. } = free;
    if !session.locks().tell(number) {
        forgo(session, file, number);
    }
}

/// Tells the server again what is held, where that is in doubt. Does not wait for it.
pub(super) fn resolve_doubtful(session: &Arc<Session>) {
    for file in session.locks().doubtful() {
        let session = Arc::clone(session);
        tokio::spawn(async move {
            let turn = session.locks().turn(file).await;
            if turn.is_doubtful() {
                // If this fails, the next call repeats it.
                let _ = tell(&session, &turn, file).await;
            }
        });
    }
}

/// Makes the server hold exactly what is held here.
///
/// # Errors
/// [`Error::Io`] if that is lost.
async fn tell(session: &Session, turn: &Turn<'_>, file: FileId) -> Result<()> {
    match send(session, &Cred::root(), turn, file, &[]).await {
        Ok(_) => Ok(()),
        Err(Failed::Call(error)) => Err(error),
        Err(Failed::Status(status)) => {
            turn.lose();
            tell_lost(session, file, status);
            Err(Error::Io)
        }
    }
}

/// Tells the holders of locks on a file here that another client may have them.
fn tell_lost(session: &Session, file: FileId, status: Status) {
    tracing::warn!(file = file.0, %status, "locks are lost");
    if let Some(watcher) = session.leases().watcher() {
        watcher.locks_lost(&convert::handle(session.now().given.volume, file));
    }
}

/// Claims all that is held, at a server that was restarted and has given the session again as
/// `given`: before anything else is sent to it. What the server refuses is lost. Returns `false` if
/// the session must be resumed once more.
///
/// # Errors
/// Why the server could not be asked. What was not claimed is sent again later, and perhaps refused
/// then.
pub(super) async fn claim(session: &Session, given: &Begun) -> Result<bool> {
    let mut is_refused = false;
    'files: for (file, claims) in session.locks().claims() {
        for changes in claims {
            let args =
                |sequence| calls::Lock { sequence, file, changes: changes.clone(), claim: true };
            match session.send_aside(given, args).await? {
                Ok(_) => {}
                Err(Status::Restarted | Status::BadSession) => return Ok(false),
                Err(status) => {
                    if !std::mem::replace(&mut is_refused, true) {
                        session.note_lapse();
                    }
                    session.locks().lose(file);
                    tell_lost(session, file, status);
                    continue 'files;
                }
            }
        }
        session.locks().was_claimed(file);
        tracing::warn!(file = file.0, "locks were taken again after the connection was lost");
    }
    let args = |Sequence { session, .. }| calls::LocksClaimed { session };
    Ok(session.send_aside(given, args).await?.is_ok())
}

async fn send(
    session: &Session,
    cred: &Cred,
    turn: &Turn<'_>,
    file: FileId,
    changes: &[LockChange],
) -> std::result::Result<Attributes, Failed> {
    let changes = turn.begin(changes)?;
    let args = |sequence| calls::Lock { sequence, file, changes: changes.clone(), claim: false };
    let done = session.change(cred, args).await;
    turn.end(match &done {
        Ok(_) => Outcome::Done,
        Err(Failed::Status(_)) => Outcome::Refused,
        Err(Failed::Call(_)) => Outcome::Unknown,
    });
    done
}
