//! Calls from the metadata server: it recalls leases, or keeps a lock for a waiter.
//!
//! A lease is returned in this order: it ends here; nothing that depended on it is trusted any
//! more, here or in the kernel; open files are opened at the server; then the lease is returned.
//! Unsent data is sent after that. Before returning it, the client waits for nothing that may wait
//! for the server: another client may wait for this lease, and we for one of its leases.
//!
//! Of a write lease that is not so, as it is the only lease on its file: unsent data is sent before
//! it is returned, and so the other client finds it. If the server knows that only this machine has
//! it, it takes the lease back when that is done, or when it counts as lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_io::Clock;
use larder_rpc::Program;
use larder_rpc::server::{Answer, Call, Service};
use larder_vfs::Cred;
use larder_wire::meta::calls::{Retain, Retention, ReturnLease};
use larder_wire::meta::recall::{LockFree, PROCEDURE_NAMES, PROGRAM, Recall, VERSION};
use larder_wire::meta::words::{FileId, LeaseKind, Returned, SessionId};
use larder_wire::rpc::{CallHeader, Outcome};
use larder_wire::xdr::Array;
use tokio::sync::watch;

use super::leases::Recalled;
use super::session::{Failed, Session};
use super::{convert, locking};

/// Longest wait of a recall for the session that it is about.
const BEGIN_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the watcher of leases, before the server is answered in any case.
const DISTRUST_MAX: Duration = Duration::from_secs(5);
/// Longest wait for unsent data to be sent under a write lease that is recalled: with the other
/// wait shorter than the time after which the server ends our session.
const WRITE_BACK_MAX: Duration = Duration::from_secs(8);

const PROGRAMS: [Program; 1] =
    [Program { number: PROGRAM, version: VERSION, procedures: PROCEDURE_NAMES }];

/// Answers the server's calls.
#[derive(Clone)]
pub(super) struct Recalls {
    /// Whose leases are meant, once there is a session. It may have leases from the beginning:
    /// what an earlier process retained.
    session: Arc<watch::Sender<Weak<Session>>>,
    clock: Arc<dyn Clock>,
}

impl Recalls {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Recalls {
        Recalls { session: Arc::new(watch::Sender::new(Weak::new())), clock }
    }

    /// From now on recalls are for this session.
    pub(super) fn begin(&self, session: &Arc<Session>) {
        self.session.send_replace(Arc::downgrade(session));
    }

    /// Our session, if the server means it.
    fn of(&self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.session.borrow().upgrade();
        session.filter(|one| one.now().given.session == id)
    }

    /// The same for a call that may come before the answer to that which began the session. It
    /// waits until then, or until the mount has failed.
    async fn of_begun(&self, id: SessionId) -> Option<Arc<Session>> {
        let mut session = self.session.subscribe();
        session.wait_for(|session| session.strong_count() > 0).await.ok()?;
        self.of(id)
    }
}

impl Service for Recalls {
    type Caller = ();

    fn programs(&self) -> &[Program] {
        &PROGRAMS
    }

    fn admit(&self, _header: &CallHeader) -> Result<(), Outcome> {
        Ok(())
    }

    fn is_repeatable(&self, _program: u32, _procedure: u32) -> bool {
        true
    }

    async fn call(&self, mut call: Call<()>) -> Answer {
        match call.header.procedure {
            0 => call.reply(&(), false),
            1 => match call.arguments::<Recall>() {
                Ok(recall) => {
                    let recalls = self.clone();
                    tokio::spawn(async move {
                        let begun = recalls.of_begun(recall.session);
                        let begun = recalls.clock.timeout(BEGIN_MAX, begun).await;
                        if let Ok(Some(session)) = begun {
                            give_back(session, recalls.clock, recall).await;
                        }
                    });
                    call.reply(&(), false)
                }
                Err(garbage) => garbage,
            },
            2 => match call.arguments::<LockFree>() {
                Ok(free) => {
                    if let Some(session) = self.of(free.session) {
                        locking::is_free(&session, free);
                    }
                    call.reply(&(), false)
                }
                Err(garbage) => garbage,
            },
            _ => call.refuse(Outcome::ProcUnavail),
        }
    }
}

async fn give_back(session: Arc<Session>, clock: Arc<dyn Clock>, recall: Recall) {
    let Recall { file, number, .. } = recall;
    let handle = convert::handle(session.now().given.volume, file);
    let had = match session.leases().recalled(file, number) {
        Recalled::Held(kind) => kind,
        // Another call wants more of it than the one before. Returned now, it would let both go on
        // before what depends on it is done.
        Recalled::Returning => return,
        Recalled::Unknown => LeaseKind::None,
    };
    let watcher = session.leases().watcher().filter(|_| had != LeaseKind::None);
    if let Some(watcher) = &watcher
        && clock.timeout(DISTRUST_MAX, watcher.distrust(&handle)).await.is_err()
    {
        session.leases().note_late();
        tracing::warn!(file = file.0, "what depended on a lease was not given up in time");
    }
    if had == LeaseKind::Write {
        if let Some(watcher) = &watcher
            && clock.timeout(WRITE_BACK_MAX, watcher.write_back(&handle)).await.is_err()
        {
            session.leases().note_late();
            tracing::warn!(file = file.0, "unsent data was not sent before another client goes on");
        }
        if session.retained().has(file) {
            give_up(&session, file).await;
        }
        session.leases().excludes_no_more(file, number);
    }
    session.opens().keep(file).await;
    session.leases().returned(file, number);
    let returned = Array(vec![Returned { file, number, keep: LeaseKind::None }]);
    let args = |sequence| ReturnLease { sequence, returned: returned.clone() };
    if let Err(error) = session.change(&Cred::root(), args).await {
        tracing::debug!(file = file.0, ?error, "a lease is not given back");
    }
    if let Some(watcher) = watcher {
        watcher.write_back(&handle).await;
    }
}

/// Tells the server that a file's bytes are lost: they could not be sent before another client goes
/// on. What is left of them here is refused by the server.
async fn give_up(session: &Session, file: FileId) {
    tracing::error!(
        file = file.0,
        "bytes that only this machine has cannot be sent: they are lost"
    );
    let what = Retention::GivenUp;
    match session.change(&Cred::root(), |sequence| Retain { sequence, file, what }).await {
        Ok(()) | Err(Failed::Status(_)) => session.retained().forget(file),
        // The server gives the session up, and finds the same.
        Err(Failed::Call(error)) => tracing::warn!(file = file.0, ?error, "it was not told that"),
    }
}
