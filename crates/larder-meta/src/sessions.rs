//! Sessions: which clients there are, and whether they are alive.
//!
//! Each call renews its session. One that was not renewed for [`Sessions::lease`] is over, and the
//! committer ends it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_wire::meta::Status;
use larder_wire::meta::words::SessionId;

/// A session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// Names its client for good.
    pub(crate) client: [u8; 16],
    /// The client's present life.
    pub(crate) boot: u64,
    pub(crate) slots: u32,
    /// When it last called.
    pub(crate) renewed: Instant,
}

/// All sessions. Shared by those who carry out calls.
#[derive(Debug)]
pub(crate) struct Sessions {
    lease: Duration,
    sessions: Mutex<HashMap<SessionId, Session>>,
}

impl Sessions {
    /// None yet. A client has to call within each `lease`.
    pub(crate) fn new(lease: Duration) -> Sessions {
        Sessions { lease, sessions: Mutex::default() }
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has called. Answers it as it is.
    ///
    /// # Errors
    /// [`Status::BadSession`]
    pub(crate) fn renew(&self, id: SessionId, now: Instant) -> Result<Session, Status> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(&id).ok_or(Status::BadSession)?;
        session.renewed = session.renewed.max(now);
        Ok(*session)
    }

    /// The session of a client.
    pub(crate) fn of_client(&self, client: [u8; 16]) -> Option<(SessionId, Session)> {
        let sessions = self.lock();
        let found = sessions.iter().find(|(_, session)| session.client == client);
        found.map(|(id, session)| (*id, *session))
    }

    pub(crate) fn add(&self, id: SessionId, session: Session) {
        self.lock().insert(id, session);
    }

    pub(crate) fn remove(&self, id: SessionId) {
        self.lock().remove(&id);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Sessions whose clients have not called for too long.
    pub(crate) fn over(&self, now: Instant) -> Vec<SessionId> {
        let sessions = self.lock();
        let over = |session: &Session| now.saturating_duration_since(session.renewed) > self.lease;
        sessions.iter().filter(|(_, session)| over(session)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_while_its_client_calls() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let sessions = Sessions::new(10 * second);
        let id = SessionId([1; 16]);
        sessions.add(id, Session { client: [2; 16], boot: 3, slots: 4, renewed: start });
        assert_eq!(sessions.over(start + 10 * second), []);
        assert_eq!(sessions.over(start + 11 * second), [id]);
        assert_eq!(sessions.renew(id, start + 5 * second).unwrap().slots, 4);
        assert_eq!(sessions.over(start + 15 * second), []);
        assert_eq!(sessions.of_client([2; 16]).unwrap().0, id);
        sessions.remove(id);
        assert_eq!(sessions.renew(id, start).unwrap_err(), Status::BadSession);
    }
}
