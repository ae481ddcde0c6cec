//! Operations on bytes of disks that the metadata server performs as a client: it copies them from
//! one disk to another, because disks do not talk to each other, and makes them durable.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use larder_disk_client::{DISK_PROGRAM, DiskClient, DiskError};
use larder_io::Clock;
use larder_rpc::{CallOptions, Config, ConnectError, RpcClient, Transport};
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::disk::session::Granted;
use tokio::sync::OnceCell;

/// How long a disk may take for a request.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The way to a disk's bytes, which is made when it is used first.
#[derive(Debug)]
pub(super) struct Data {
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    client: OnceCell<DiskClient>,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDone {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Data {
    pub(super) fn new(address: SocketAddr, clock: &Arc<dyn Clock>) -> Data {
        Data { address, clock: Arc::clone(clock), client: OnceCell::new() }
    }

    async fn client(&self) -> Result<&DiskClient, ConnectError> {
        let connect = async || {
            let mut config = Config::new(self.address, Transport::Tcp, DISK_PROGRAM);
            (config.connections, config.timeout) = (1, ANSWER_MAX);
            config.retransmissions = 0;
            config.clock = Arc::clone(&self.clock);
            RpcClient::connect(config).await.map(DiskClient::new)
        };
        self.client.get_or_try_init(connect).await
    }
}

/// Makes durable what was written to a disk before.
///
/// # Errors
/// [`NotDone`]
pub(super) async fn flush(disk: &Data, granted: &Granted) -> Result<(), NotDone> {
    disk.client().await?.flush(granted, CallOptions::default()).await?;
    Ok(())
}

/// Copies bytes to the same place of another disk, durably.
///
/// # Errors
/// [`NotDone`]; then any part of them may have been written.
pub(super) async fn copy(
    (from, read): (&Data, &Granted),
    (to, write): (&Data, &Granted),
    bytes: Range<u64>,
) -> Result<(), NotDone> {
    for at in bytes.clone().step_by(DATA_BYTES_MAX) {
        // It fits: the largest request does.
        let length = (bytes.end - at).min(DATA_BYTES_MAX as u64) as u32;
        let options = CallOptions::default();
        let data = from.client().await?.read(read, at, length, options).await?;
        to.client().await?.write(write, at, data, true, options).await?;
    }
    Ok(())
}
