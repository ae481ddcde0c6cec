//! Makes the connections of a mount, and routes their unsolicited messages.
//!
//! Each has a session and a use of the share of its own: the library cannot bind several to one
//! session, and an open belongs to a session (MS-SMB2, 3.3.1.10). Each has a ClientGuid of its own,
//! too, so to the server they are several clients, with leases that the others cannot use
//! (3.3.5.9.8): with one for all, Samba would serve them in one process. So they are not the
//! channels of one session that MS-SMB2 knows as multichannel.

use super::channel::Channel;
use super::frames::{ConnectionEvent, EventSink};
use super::link::{Accounts, Link};
use super::mount::{MountError, MountOptions};
use larder_rpc::stats::Procedures;
use smb2::types::SessionId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::task::JoinSet;

/// Receives the unsolicited messages of connections: the connection's generation, and the message.
type Listener = Box<dyn Fn(u64, ConnectionEvent) + Send + Sync>;

/// The parameters of new connections.
#[derive(Default)]
pub(super) struct Connector {
    listener: OnceLock<Listener>,
    /// Number of connections begun.
    begun: AtomicU64,
}

impl Connector {
    /// Sets the receiver of unsolicited messages. Earlier ones are lost. Called once.
    pub(super) fn tell(&self, listener: impl Fn(u64, ConnectionEvent) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Where a connection reports unsolicited messages.
    fn events(self: &Arc<Connector>, generation: u64) -> EventSink {
        let connector = Arc::clone(self);
        Arc::new(move |event| {
            if let Some(listener) = connector.listener.get() {
                listener(generation, event);
            }
        })
    }
}

/// Connects. The server ends the session `previous`.
pub(super) async fn connect(
    options: &MountOptions,
    connector: &Arc<Connector>,
    previous: SessionId,
    accounts: Accounts,
) -> Result<Arc<Link>, MountError> {
    let generation = connector.begun.fetch_add(1, Ordering::Relaxed) + 1;
    Link::establish(options, (generation, previous), connector.events(generation), accounts).await
}

/// The channels beside the first: as many as are wanted, or as the server accepts.
pub(super) async fn further(
    options: &MountOptions,
    connector: &Arc<Connector>,
    commands: &Arc<Procedures>,
) -> Vec<Channel> {
    let mut connecting = JoinSet::new();
    for _ in 1..options.connections {
        let (options, connector, accounts) =
            (options.clone(), Arc::clone(connector), Accounts::new(commands, &options.clock));
        connecting
            .spawn(async move { connect(&options, &connector, SessionId::NONE, accounts).await });
    }
    let (mut channels, mut refused) = (Vec::new(), None);
    while let Some(done) = connecting.join_next().await {
        match done {
            Ok(Ok(link)) => channels.push(Channel::new(link, options)),
            Ok(Err(cause)) => refused = Some(cause),
            Err(_) => (),
        }
    }
    if let Some(cause) = refused {
        let (wanted, connections) = (options.connections, 1 + channels.len());
        tracing::warn!(wanted, connections, %cause, "the SMB server takes no more connections");
    }
    channels
}
