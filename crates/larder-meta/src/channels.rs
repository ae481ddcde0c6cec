//! The backchannels: on which connection the client of each session can be called.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_rpc::server::Backchannel;
use larder_wire::meta::recall::{LockFree, Recall};
use larder_wire::meta::words::SessionId;

/// Longest wait for a client to acknowledge a call. What it does then takes its own time.
const HEARD_MAX: Duration = Duration::from_secs(10);

/// Calls clients back.
pub(crate) trait Recaller: Send + Sync {
    /// Whether a session's client can be called.
    fn reaches(&self, session: SessionId) -> bool;

    /// Recalls a lease from a client, if it can be called. Does not wait.
    fn recall(&self, recall: Recall);

    /// Notifies a client that a lock is reserved for it, if it can be called. Does not wait.
    fn tell_free(&self, free: LockFree);

    /// A session is over.
    fn forget(&self, session: SessionId);
}

/// The connections by which clients have called.
pub(crate) struct Channels {
    channels: Mutex<HashMap<SessionId, Backchannel>>,
    runtime: tokio::runtime::Handle,
}

impl Channels {
    /// None yet. Calls are made on `runtime`.
    pub(crate) fn new(runtime: tokio::runtime::Handle) -> Channels {
        Channels { channels: Mutex::default(), runtime }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Backchannel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has called over a connection. Returns whether that is its first one, or replaces
    /// one that ended: earlier calls to the client may have been lost. (A session may have leases
    /// from the beginning, on what its client retains.)
    pub(crate) fn note(&self, session: SessionId, channel: &Backchannel) -> bool {
        let mut channels = self.lock();
        match channels.get(&session) {
            Some(there) if !there.is_closed() => false,
            _ => {
                channels.insert(session, channel.clone());
                true
            }
        }
    }
}

impl Recaller for Channels {
    fn reaches(&self, session: SessionId) -> bool {
        self.lock().get(&session).is_some_and(|channel| !channel.is_closed())
    }

    fn recall(&self, recall: Recall) {
        let Some(channel) = self.lock().get(&recall.session).cloned() else { return };
        self.runtime.spawn(async move {
            // Whether the client got the call shows in what it returns.
            if let Err(error) = channel.call(&recall, HEARD_MAX).await {
                tracing::debug!(file = recall.file.0, %error, "a client does not hear a recall");
            }
        });
    }

    fn tell_free(&self, free: LockFree) {
        let Some(channel) = self.lock().get(&free.session).cloned() else { return };
        self.runtime.spawn(async move {
            // Whether the client got the call shows in what it requests.
            if let Err(error) = channel.call(&free, HEARD_MAX).await {
                tracing::debug!(file = free.file.0, %error, "a client does not hear of a lock");
            }
        });
    }

    fn forget(&self, session: SessionId) {
        self.lock().remove(&session);
    }
}
