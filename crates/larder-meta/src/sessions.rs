//! Sessions: which clients exist, and whether they are alive.
//!
//! Each call renews its session. A session that was not renewed for [`Sessions::lease`] expires,
//! and the committer ends it.

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
    pub(crate) standing: Standing,
}

/// What a session may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Call.
    Good,
    /// It is from before the server's start, which its client must be told first.
    FromBefore,
    /// It does not return a recalled lease, and ends when it expires.
    Condemned,
}

/// All sessions. Shared by all code that carries out calls.
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

    /// A session has called. Returns it.
    ///
    /// # Errors
    /// [`Status::BadSession`], [`Status::Restarted`]
    pub(crate) fn renew(&self, id: SessionId, now: Instant) -> Result<Session, Status> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(&id).ok_or(Status::BadSession)?;
        match session.standing {
            Standing::Good => session.renewed = session.renewed.max(now),
            Standing::FromBefore => return Err(Status::Restarted),
            Standing::Condemned => return Err(Status::BadSession),
        }
        Ok(*session)
    }

    /// A session may call from now on, and has.
    pub(crate) fn resume(&self, id: SessionId, now: Instant) {
        if let Some(session) = self.lock().get_mut(&id) {
            session.standing = Standing::Good;
            session.renewed = session.renewed.max(now);
        }
    }

    /// A session is not renewed any more.
    pub(crate) fn condemn(&self, id: SessionId) {
        if let Some(session) = self.lock().get_mut(&id) {
            session.standing = Standing::Condemned;
        }
    }

    /// Sessions from before the server's start.
    pub(crate) fn left_over(&self) -> Vec<SessionId> {
        let sessions = self.lock();
        let is_old = |session: &Session| session.standing == Standing::FromBefore;
        sessions.iter().filter(|(_, session)| is_old(session)).map(|(id, _)| *id).collect()
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

    /// The session with a number.
    pub(crate) fn get(&self, id: SessionId) -> Option<Session> {
        self.lock().get(&id).copied()
    }

    /// Whose session this is: nobody's, if it does not exist.
    pub(crate) fn client(&self, id: SessionId) -> [u8; 16] {
        self.lock().get(&id).map_or([0; 16], |session| session.client)
    }

    pub(crate) fn is_there(&self, id: SessionId) -> bool {
        self.lock().contains_key(&id)
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
        let standing = Standing::Good;
        sessions.add(id, Session { client: [2; 16], boot: 3, slots: 4, renewed: start, standing });
        assert_eq!(sessions.over(start + 10 * second), []);
        assert_eq!(sessions.over(start + 11 * second), [id]);
        assert_eq!(sessions.renew(id, start + 5 * second).unwrap().slots, 4);
        assert_eq!(sessions.over(start + 15 * second), []);
        assert_eq!(sessions.of_client([2; 16]).unwrap().0, id);
        sessions.remove(id);
        assert_eq!(sessions.renew(id, start).unwrap_err(), Status::BadSession);
    }

    #[test]
    fn one_that_is_condemned_ends_however_often_its_client_calls() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let sessions = Sessions::new(10 * second);
        let (id, standing) = (SessionId([1; 16]), Standing::FromBefore);
        sessions.add(id, Session { client: [2; 16], boot: 3, slots: 4, renewed: start, standing });
        assert_eq!(sessions.renew(id, start + second).unwrap_err(), Status::Restarted);
        assert_eq!(sessions.left_over(), [id]);
        sessions.resume(id, start + second);
        assert!(sessions.renew(id, start + 2 * second).is_ok() && sessions.left_over().is_empty());
        sessions.condemn(id);
        assert_eq!(sessions.renew(id, start + 5 * second).unwrap_err(), Status::BadSession);
        assert_eq!(sessions.over(start + 12 * second), []);
        assert_eq!(sessions.over(start + 13 * second), [id]);
    }
}
