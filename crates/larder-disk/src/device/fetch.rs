//! FETCH: the disk reads bytes of another disk, as a client of that, and writes them to its store.
//!
//! The metadata server gives it the capability to read, with its secret, and names the one to
//! write. The other disk checks the first. This disk checks the second one when it has the bytes: a
//! revocation waits for the writing alone, and never for another disk. Once it is answered, nothing
//! is written. That is so in each setup, since orders are sealed in each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_disk_client::{DISK_PROGRAM, DiskClient, DiskError};
use larder_io::Clock;
use larder_rpc::{CallOptions, Config, ConnectError, RpcClient, Transport};
use larder_wire::capability::{Capability, Extent};
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::{Elsewhere, FetchDone, FetchHead, Refusal, Res};
use larder_wire::disk::{TEXT_BYTES_MAX, address};
use larder_wire::seal::Secret;
use larder_wire::xdr::Opaque;
use tokio::sync::OnceCell;

use super::requests::piece;
use super::{Deed, Device};
use crate::control::{ControlHead, With};

/// How long another disk may take to be reached and to give the bytes of one order.
const READ_MAX: Duration = Duration::from_secs(10);
/// Most disks to which there are connections. A volume with more of them costs connections.
const SOURCES_MAX: usize = 64;

/// Connections to other disks, each made when it is first used.
#[derive(Debug, Default)]
pub(super) struct Sources(Mutex<BTreeMap<SocketAddr, Arc<OnceCell<DiskClient>>>>);

/// Why another disk did not give the bytes.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{0}: {1}")]
    Disk(SocketAddr, DiskError),
    #[error("{0} did not give the bytes within {limit} s", limit = READ_MAX.as_secs())]
    Late(SocketAddr),
}

impl Sources {
    /// The disk at an address, connected to or not.
    fn at(&self, address: SocketAddr) -> Arc<OnceCell<DiskClient>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SOURCES_MAX && !all.contains_key(&address) {
            all.clear();
        }
        Arc::clone(all.entry(address).or_default())
    }

    async fn read(
        &self,
        clock: &Arc<dyn Clock>,
        at: SocketAddr,
        granted: &Granted,
        offset: u64,
        length: u32,
    ) -> Result<Bytes, Unread> {
        let connect = async || {
            let mut config = Config::new(at, Transport::Tcp, DISK_PROGRAM);
            (config.connections, config.timeout) = (1, READ_MAX);
            config.retransmissions = 0;
            config.clock = Arc::clone(clock);
            RpcClient::connect(config).await.map(DiskClient::new)
        };
        let reading = async {
            let source = self.at(at);
            let client = source.get_or_try_init(connect).await?;
            let read = client.read(granted, offset, length, CallOptions::default()).await;
            read.map_err(|error| Unread::Disk(at, error))
        };
        clock.timeout(READ_MAX, reading).await.unwrap_or(Err(Unread::Late(at)))
    }
}

impl ControlHead for FetchHead {
    /// Nothing is written when the owner's capabilities are over.
    const IS_WAITED_FOR: bool = false;

    async fn carry_out(self, device: &Device, with: With) -> Res<FetchDone> {
        // Boxed: each call of the disk has room for what an order takes, and this is large.
        Box::pin(device.fetch(self, with)).await
    }
}

impl Device {
    async fn fetch(&self, head: FetchHead, with: With) -> Res<FetchDone> {
        let FetchHead { capability, offset, length, source } = head;
        let Elsewhere { capability: shown, offset: from, address: text } = source;
        let secret = with.data.as_ref().try_into().map_err(|_| Refusal::Malformed)?;
        let granted = Granted { capability: shown, secret: Secret::new(secret) };
        let at = address(&text, with.beside).ok_or(Refusal::Malformed)?;
        let range = piece(offset, length)?;
        // What cannot be written is not read.
        self.standing().check(&capability, Deed::Write(range), self.now_ms())?;
        let clock = &self.config.clock;
        match self.sources.read(clock, at, &granted, from, length).await {
            Ok(data) => {
                self.rate.pass(&**clock, length.into()).await;
                self.write_fetched(&capability, range, &data).await?;
                Ok(FetchDone { unread: None })
            }
            Err(why) => {
                let why = why.to_string();
                tracing::debug!("another disk was not read: {why}");
                let end = why.floor_char_boundary(TEXT_BYTES_MAX);
                let unread = Some(Opaque::copy_from_slice(&why.as_bytes()[..end]));
                Ok(FetchDone { unread })
            }
        }
    }

    /// Writes bytes of another disk, durably, if the capability still allows it.
    async fn write_fetched(&self, capability: &Capability, range: Extent, data: &[u8]) -> Res<()> {
        let entered = self.underway.enter();
        self.standing().check(capability, Deed::Write(range), self.now_ms())?;
        self.write(range, data)?;
        self.flush(entered).await.map(drop)
    }
}
