//! What a caller needs at the server is made there on its behalf, while it waits: one object, after
//! what it depends on, and after what is due in its directory before it.

use std::sync::Arc;

use larder_vfs::{Cred, Deadline, Error, Handle, Result};

use crate::making::SETTLED_MAX;
use crate::object::ObjectNo;
use crate::shared::{Shared, Target};

impl Shared {
    /// The server's handle of the object that the client knows by `handle`, which is made there
    /// first if necessary. That is then durable on this machine.
    pub(crate) async fn at_server(
        self: &Arc<Self>,
        cred: &Cred,
        handle: &Handle,
    ) -> Result<Handle> {
        loop {
            match self.target(handle)? {
                Target::Server(server) => {
                    self.know_version(&server, self.extend(cred.deadline)).await?;
                    if let Some(no) = self.altered_of(&server) {
                        self.replay_one(no, cred.deadline).await?;
                        continue;
                    }
                    if self.is_unkept(handle) {
                        self.keep().await?;
                    }
                    return Ok(server);
                }
                Target::Waiting(no) => self.make_one(no, cred.deadline).await?,
            }
        }
    }

    /// The server's handle of a file that is to be written there. Bytes that follow an emptying do
    /// not follow it over another client's change.
    ///
    /// # Errors
    /// [`Error::Changed`] if that is given up now; as [`Shared::at_server`].
    pub(crate) async fn at_server_for_bytes(
        self: &Arc<Self>,
        cred: &Cred,
        file: &Handle,
    ) -> Result<Handle> {
        let emptying = {
            let state = self.state();
            let journal = state.journal();
            let altered = journal.server_handle(file).and_then(|server| journal.altered(server));
            altered.filter(|(_, one)| !one.is_done && one.set.size.is_some()).map(|(no, _)| no)
        };
        let server = self.at_server(cred, file).await?;
        match emptying.filter(|no| self.state().journal().get_altered(*no).is_none()) {
            Some(_) => Err(Error::Changed),
            None => Ok(server),
        }
    }

    /// Makes one object at the server, after the directories in which it is.
    ///
    /// # Errors
    /// [`Error::TimedOut`] whatever the server's error was: the object continues to wait, and so
    /// does everything that needs it.
    pub(crate) async fn replay_one(&self, no: ObjectNo, deadline: Option<Deadline>) -> Result<()> {
        self.reach(deadline).await?;
        let Some(_turn) = self.turn_for(no, deadline).await? else { return Ok(()) };
        let deadline = self.extend(deadline);
        self.resolve_asked(deadline).await?;
        for _ in 0..SETTLED_MAX {
            let replayed = self.replay_change(no, deadline, &mut Vec::new()).await;
            if replayed.is_ok() || !self.settle_gone(deadline).await {
                replayed?;
                break;
            }
        }
        self.keep().await
    }

    /// Makes one object at the server for a caller that needs it there under any name: its bytes
    /// are sent next, and it replaces another one only after them. The caller holds the file
    /// meanwhile, so nothing here may wait for its bytes.
    ///
    /// # Errors
    /// As [`Shared::replay_one`].
    async fn make_one(self: &Arc<Self>, no: ObjectNo, deadline: Option<Deadline>) -> Result<()> {
        self.reach(deadline).await?;
        let Some(_turn) = self.turn_for(no, deadline).await? else { return Ok(()) };
        let deadline = self.extend(deadline);
        self.resolve_asked(deadline).await?;
        for _ in 0..SETTLED_MAX {
            let made = self.make_with_due(no, deadline).await;
            if made.is_ok() || !self.settle_gone(deadline).await {
                made?;
                break;
            }
        }
        self.keep().await
    }

    async fn make_with_due(
        self: &Arc<Self>,
        no: ObjectNo,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        self.make_due_before(no, deadline).await?;
        self.make_after_above(no, deadline, &mut Vec::new()).await.map(drop)
    }

    /// The turn to make a change at the server; `None` if another task has made it in the meantime.
    /// The task that has the turn may wait for this caller: for bytes of the object that it has
    /// just made. The caller waits until its deadline, or for as long as that task makes changes.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    async fn turn_for(
        &self,
        no: ObjectNo,
        deadline: Option<Deadline>,
    ) -> Result<Option<tokio::sync::MutexGuard<'_, ()>>> {
        let turn = async {
            let mut locking = std::pin::pin!(self.turn.lock());
            loop {
                let mut replayed = std::pin::pin!(self.replayed.notified());
                replayed.as_mut().enable();
                if !self.is_pending(no) {
                    return None;
                }
                tokio::select! {
                    turn = &mut locking => return Some(turn),
                    () = replayed => {}
                }
            }
        };
        let Some(mut until) = deadline else { return Ok(turn.await) };
        let mut turn = std::pin::pin!(turn);
        loop {
            if let Ok(turn) = self.clock.timeout_at(until.at(), &mut turn).await {
                return Ok(turn);
            }
            match self.extend(Some(until)) {
                Some(extended) if extended != until => until = extended,
                _ => return Err(Error::TimedOut),
            }
        }
    }

    /// Whether the server has yet to hear of a change.
    fn is_pending(&self, no: ObjectNo) -> bool {
        let state = self.state();
        let journal = state.journal();
        journal.waiting(no).is_some()
            || journal.taken().get(no).is_some()
            || journal.links().get(no).is_some()
            || journal.get_altered(no).is_some_and(|altered| !altered.is_done)
    }
}
