//! The state that the connections of a client share: its configuration, whether the server answers,
//! and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use larder_wire::rpc::{MACHINE_NAME_BYTES_MAX, Xid};
use larder_wire::xdr::Opaque;
use tokio::sync::watch;

use super::config::{Config, Recovery};
use super::endpoints::Endpoints;
use super::pool::Pool;
use crate::patience::gives_up;
use crate::stats;

/// Whether the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It did, the last time it was asked.
    Reachable,
    /// It does not.
    Unreachable {
        /// Since when it has been asked in vain.
        since: Instant,
    },
}

impl ServerState {
    /// Since when the server has not answered, if it does not.
    fn silent_since(self) -> Option<Instant> {
        match self {
            ServerState::Reachable => None,
            ServerState::Unreachable { since } => Some(since),
        }
    }
}

/// The state that the connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) procedures: stats::Procedures,
    pub(super) state: watch::Sender<ServerState>,
    /// Set to true once, at shutdown.
    pub(super) shutdown: watch::Sender<bool>,
    pub(super) pool: Arc<Pool>,
    pub(super) machine_name: Opaque<MACHINE_NAME_BYTES_MAX>,
    pub(super) xid: AtomicU32,
    pub(super) endpoints: Endpoints,
}

impl Shared {
    pub(super) fn now(&self) -> Instant {
        self.config.clock.instant()
    }

    /// A message came from the server.
    pub(super) fn heard(&self) {
        if matches!(*self.state.borrow(), ServerState::Reachable) {
            return;
        }
        let was = self.state.send_replace(ServerState::Reachable);
        if let ServerState::Unreachable { since } = was {
            let seconds = (self.now() - since).as_secs_f32();
            tracing::info!("server {} OK again after {seconds:.1} s", self.config.server);
        }
    }

    /// The server does not answer, and has not since `since`.
    pub(super) fn lost(&self, since: Instant) {
        let mut was_reachable = false;
        self.state.send_if_modified(|state| {
            was_reachable = *state == ServerState::Reachable;
            // A call may have waited longer than it took to reconnect.
            let earlier = |known: Instant| known.min(since);
            let since = state.silent_since().map_or(since, earlier);
            let before = std::mem::replace(state, ServerState::Unreachable { since });
            before != *state
        });
        if was_reachable && !*self.shutdown.borrow() {
            tracing::warn!("server {} not responding, still trying", self.config.server);
        }
    }

    /// Since when the server has been asked in vain, if it has.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        self.state.borrow().silent_since()
    }

    /// When a call that was `offered` at this time fails, unless it waits for the server.
    pub(super) fn until(
        &self,
        offered: Instant,
        caller: Option<Instant>,
        silent: Option<Instant>,
    ) -> Option<Instant> {
        let is_soft = self.config.recovery == Recovery::Soft;
        is_soft.then(|| gives_up(offered, self.config.limit(), caller, silent))
    }

    pub(super) fn next_xid(&self) -> Xid {
        Xid(self.xid.fetch_add(1, Relaxed))
    }

    /// Resolves when the client is shut down.
    pub(super) async fn until_shutdown(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.shutdown.subscribe().wait_for(|shutdown| *shutdown).await;
    }
}
