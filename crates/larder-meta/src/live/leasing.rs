//! Leases of sessions, as the committer asks for them: what the [state machine](crate::leases)
//! decides of its calls, and what calls that are answered beside it must know.

use std::sync::Arc;
use std::time::Instant;

use larder_wire::meta::words::SessionId;

use super::Live;
use crate::alone::Alone;
use crate::leases::{Action, CallNumber, Demand, Event};

impl Live {
    /// The write leases, for calls that are answered without this.
    pub(crate) fn alone(&self) -> Arc<Alone> {
        Arc::clone(&self.alone)
    }

    /// A call makes its demands. Returns whether it may be carried out now.
    pub(crate) fn demand(
        &mut self,
        call: CallNumber,
        session: SessionId,
        demands: Vec<Demand>,
        now: Instant,
    ) -> bool {
        let actions = self.leases.apply(Event::Demanded { call, session, demands, now });
        let goes = actions.contains(&Action::Go(call));
        self.actions.extend(actions.into_iter().filter(|action| *action != Action::Go(call)));
        goes
    }

    /// The actions for leases since the last call of this.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether another session may have a lease on anything.
    pub(crate) fn others_have_leases(&self, session: SessionId) -> bool {
        self.leases.others_have_some(session)
    }
}
