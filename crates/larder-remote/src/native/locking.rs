//! Calls that lock and unlock: one after the other for each file, and each to its end, even if its
//! caller gives up.
//!
//! If the outcome of a call is unknown, or the session has ended, the server is first told again
//! what is held, before anything else is changed. If it refuses that, another client has got a
//! lock: the locks of the file are lost, and the watcher is notified.

use std::ops::Range;
use std::sync::Arc;

use larder_vfs::{Cred, Error, KeptLock, LockChange, LockMode, Result};
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
    // A caller who gives up leaves no call behind that might be overtaken by the next one.
    let changed = tokio::spawn(async move {
        let turn = session.locks().turn(file).await;
        if turn.is_doubtful() {
            tell(&session, &turn, file).await?;
        }
        Ok(send(&session, &cred, &turn, file, &changes).await?)
    });
    changed.await.unwrap_or(Err(Error::Shutdown))
}

/// How somebody else has locked some of a range that is wanted in this mode.
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

/// Stands in line for changes that were refused, until they are kept for this mount.
pub(super) async fn wait(
    session: &Arc<Session>,
    cred: &Cred,
    file: FileId,
    changes: &[LockChange],
) -> Result<KeptLock> {
    let sent = locks::all_sent(changes)?;
    let (number, told) = session.locks().wait();
    let (session, changes) = (Arc::clone(session), changes.to_vec());
    let place = Place { session, file, number, changes };
    let args = |session| calls::AwaitLock { session, file, number, changes: sent.clone() };
    if !place.session.ask(cred, args).await?.is_free {
        told.notified().await;
    }
    Ok(Box::new(place))
}

/// Somebody's place in the line for a lock, and what is kept for him then.
struct Place {
    session: Arc<Session>,
    file: FileId,
    number: WaiterNumber,
    changes: Vec<LockChange>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let locks = self.session.locks();
        locks.wait_no_more(self.number);
        // The server knows that who has it does not wait for it.
        if !locks.have(self.file, &self.changes) {
            forgo(&self.session, self.file, self.number);
        }
    }
}

/// The server is told that somebody does not wait. Does not wait for it.
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

/// The server says that a lock is kept for somebody of us.
pub(super) fn is_free(session: &Arc<Session>, free: LockFree) {
    let LockFree { file, number, .. } = free;
    if !session.locks().tell(number) {
        forgo(session, file, number);
    }
}

/// Tells the server again what is held, where that is in doubt. Does not wait for it.
pub(super) fn settle(session: &Arc<Session>) {
    for file in session.locks().doubtful() {
        let session = Arc::clone(session);
        tokio::spawn(async move {
            let turn = session.locks().turn(file).await;
            if turn.is_doubtful() {
                // What cannot be told now is told the next time.
                let _ = tell(&session, &turn, file).await;
            }
        });
    }
}

/// Has the server hold exactly what is held here.
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

/// Who holds locks of a file here learns that somebody else may have them.
fn tell_lost(session: &Session, file: FileId, status: Status) {
    tracing::warn!(file = file.0, %status, "locks are lost");
    if let Some(watcher) = session.leases().watcher() {
        watcher.locks_lost(&convert::handle(session.now().given.volume, file));
    }
}

/// Claims all that is held, at a server that was started anew and has given the session again as
/// `given`: before anything else is sent to it. What the server refuses is lost. Answers `false` if
/// the session is to be taken up once more.
///
/// # Errors
/// What kept the server from being asked. What was not claimed is told again later, and perhaps
/// refused then.
pub(super) async fn claim(session: &Session, given: &Begun) -> Result<bool> {
    'files: for (file, claims) in session.locks().claims() {
        for changes in claims {
            let args =
                |sequence| calls::Lock { sequence, file, changes: changes.clone(), claim: true };
            match session.send_aside(given, args).await? {
                Ok(_) => {}
                Err(Status::Restarted | Status::BadSession) => return Ok(false),
                Err(status) => {
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
