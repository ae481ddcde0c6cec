//! Calls from the metadata server: it recalls leases, or keeps a lock for a waiter.
//!
//! A lease is returned in this order: it ends here; nothing that depended on it is trusted any
//! more, here or in the kernel; open files are opened at the server; then the lease is returned.
//! Unsent data is sent after that. Before returning it, the client waits for nothing that may wait
//! for the server: another client may wait for this lease, and we for one of its leases.
//!
//! Of a write lease that is not so, as it is the only lease on its file: unsent data is sent before
//! it is returned, and so the other client finds it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use larder_io::Clock;
use larder_rpc::Program;
use larder_rpc::server::{Answer, Call, Service};
use larder_vfs::Cred;
use larder_wire::meta::calls::ReturnLease;
use larder_wire::meta::recall::{LockFree, PROCEDURE_NAMES, PROGRAM, Recall, VERSION};
use larder_wire::meta::words::{LeaseKind, Returned, SessionId};
use larder_wire::rpc::{CallHeader, Outcome};
use larder_wire::xdr::Array;

use super::leases::Recalled;
use super::session::Session;
use super::{convert, locking};

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
    /// Whose leases are meant, once there is a session.
    session: Arc<OnceLock<Weak<Session>>>,
    clock: Arc<dyn Clock>,
}

impl Recalls {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Recalls {
        Recalls { session: Arc::default(), clock }
    }

    /// From now on recalls are for this session.
    pub(super) fn begin(&self, session: &Arc<Session>) {
        // Set once: a mount has one session object.
        let _ = self.session.set(Arc::downgrade(session));
    }

    /// Our session, if the server means it.
    fn of(&self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.session.get().and_then(Weak::upgrade);
        session.filter(|one| one.now().given.session == id)
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
                    if let Some(session) = self.of(recall.session) {
                        tokio::spawn(give_back(session, Arc::clone(&self.clock), recall));
                    }
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
