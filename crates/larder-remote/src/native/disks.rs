//! The disks of a volume, and requests to them under capabilities.
//!
//! A disk is connected to when it is first needed. A refusal says what helps: mostly another
//! capability, for which the metadata server must be asked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use larder_disk_client::{DISK_PROGRAM, DiskClient, DiskError};
use larder_rpc::{CallOptions, Config, RpcClient, Snapshot, Transport};
use larder_vfs::{Error, Result};
use larder_wire::capability::{BootEpoch, Capability, Extent};
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::{Refusal, Remedy};
use larder_wire::meta::words::{DiskId, Grant};
use larder_wire::seal::Secret;
use larder_wire::xdr::Decode;

use super::convert;
use super::plan::Place;
use super::session::Session;

/// What opens the disks of one layout.
#[derive(Debug)]
pub(super) struct Grants(Vec<Arc<Granted>>);

impl Grants {
    /// As the metadata server gave them.
    ///
    /// # Errors
    /// [`Error::Io`] if a capability cannot be read.
    pub(super) fn new(grants: &[Grant]) -> Result<Grants> {
        let granted = |grant: &Grant| {
            let mut bytes = grant.capability.0.clone();
            let capability = Capability::decode(&mut bytes).map_err(|_| Error::Io)?;
            Ok(Arc::new(Granted { capability, secret: Secret::new(grant.secret) }))
        };
        grants.iter().map(granted).collect::<Result<_>>().map(Grants)
    }

    /// What covers `length` bytes at `place`, for writing or reading.
    pub(super) fn covering(
        &self,
        place: Place,
        length: u64,
        writes: bool,
    ) -> Option<&Arc<Granted>> {
        let wanted = Extent::new(place.position, length).ok()?;
        self.on(place.disk, writes).find(|one| one.capability.extents.cover(wanted))
    }

    /// Those for a disk.
    pub(super) fn on(&self, disk: DiskId, writes: bool) -> impl Iterator<Item = &Arc<Granted>> {
        self.0.iter().filter(move |one| {
            let Capability { disk: of, mode, .. } = &one.capability;
            of.0 == disk.0 && if writes { mode.writes() } else { mode.reads() }
        })
    }
}

/// Why a disk did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The capability does not do, or not any more: the metadata server has others.
    Refused,
    /// Anything else.
    Failed(Error),
}

impl From<Error> for NotDone {
    fn from(error: Error) -> NotDone {
        NotDone::Failed(error)
    }
}

/// The disks of a volume.
#[derive(Debug)]
pub(super) struct Disks {
    /// Knows where they are.
    session: Arc<Session>,
    connected: Mutex<HashMap<DiskId, Arc<Disk>>>,
    /// Held while one is connected to.
    connecting: tokio::sync::Mutex<()>,
}

/// A disk that is connected to.
#[derive(Debug)]
struct Disk {
    address: SocketAddr,
    rpc: RpcClient,
    client: DiskClient,
}

impl Disks {
    pub(super) fn new(session: Arc<Session>) -> Disks {
        Disks { session, connected: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Reads `length` bytes at `place`.
    ///
    /// # Errors
    /// [`NotDone`]
    pub(super) async fn read(
        &self,
        grants: &Grants,
        place: Place,
        length: u64,
    ) -> Result<Bytes, NotDone> {
        let granted = grants.covering(place, length, false).ok_or(NotDone::Refused)?;
        let length = u32::try_from(length).map_err(|_| Error::InvalidArgument)?;
        let disk = self.disk(place.disk).await?;
        let read = disk.client.read(granted, place.position, length, CallOptions::default());
        read.await.map_err(|cause| disk.not_done(cause))
    }

    /// Writes `data` at `place`; if `is_stable`, it is durable on return. Answers the boot of the
    /// disk, and what lets it be flushed.
    ///
    /// # Errors
    /// [`NotDone`]
    pub(super) async fn write(
        &self,
        grants: &Grants,
        place: Place,
        data: Bytes,
        is_stable: bool,
    ) -> Result<Unflushed, NotDone> {
        let granted = grants.covering(place, data.len() as u64, true).ok_or(NotDone::Refused)?;
        let disk = self.disk(place.disk).await?;
        let options = CallOptions::default();
        let written = disk.client.write(granted, place.position, data, is_stable, options);
        let boot = written.await.map_err(|cause| disk.not_done(cause))?;
        Ok(Unflushed { boot, granted: Arc::clone(granted) })
    }

    /// Makes what was written to a disk durable. Answers its boot: what was written in another one
    /// may be lost.
    ///
    /// # Errors
    /// [`NotDone`]
    pub(super) async fn flush(&self, granted: &Granted) -> Result<BootEpoch, NotDone> {
        let disk = self.disk(granted.capability.disk).await?;
        let flushed = disk.client.flush(granted, CallOptions::default()).await;
        flushed.map_err(|cause| disk.not_done(cause))
    }

    /// What the procedures of disks and the connections to them did.
    pub(super) fn stats(&self) -> Vec<Snapshot> {
        self.connected().values().map(|disk| disk.rpc.stats()).collect()
    }

    /// Ends all calls, now and later.
    pub(super) fn shutdown(&self) {
        self.connected().values().for_each(|disk| disk.rpc.shutdown());
    }

    /// The disk with this number, connected to.
    async fn disk(&self, number: DiskId) -> Result<Arc<Disk>> {
        let address = self.address(number)?;
        let there = |known: &Disks| {
            let disk = known.connected().get(&number).cloned();
            disk.filter(|disk| disk.address == address)
        };
        if let Some(disk) = there(self) {
            return Ok(disk);
        }
        let _turn = self.connecting.lock().await;
        if let Some(disk) = there(self) {
            return Ok(disk);
        }
        let rpc = RpcClient::connect(self.config(address)).await.map_err(|cause| {
            tracing::warn!(disk = number.0, %cause, "cannot reach a disk");
            Error::TimedOut
        })?;
        let client = DiskClient::new(rpc.clone());
        let disk = Arc::new(Disk { address, rpc, client });
        self.connected().insert(number, Arc::clone(&disk));
        Ok(disk)
    }

    /// Where a disk is, as the metadata server says.
    fn address(&self, number: DiskId) -> Result<SocketAddr> {
        let begun = self.session.now();
        let info = begun.given.disks.0.iter().find(|info| info.disk == number);
        let address = info.and_then(|info| address(&info.address, self.session.server()));
        address.ok_or_else(|| {
            tracing::warn!(disk = number.0, "the metadata server does not say where a disk is");
            Error::Io
        })
    }

    /// As the metadata server is called.
    fn config(&self, address: SocketAddr) -> Config {
        let meta = self.session.rpc().config();
        Config {
            connections: meta.connections,
            timeout: meta.timeout,
            retransmissions: meta.retransmissions,
            recovery: meta.recovery,
            source_port: meta.source_port,
            clock: Arc::clone(&meta.clock),
            ..Config::new(address, Transport::Tcp, DISK_PROGRAM)
        }
    }

    fn connected(&self) -> std::sync::MutexGuard<'_, HashMap<DiskId, Arc<Disk>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a disk may lose: what was written to it in one boot.
#[derive(Clone, Debug)]
pub(super) struct Unflushed {
    /// The boot of the disk.
    pub(super) boot: BootEpoch,
    /// What it was written under.
    pub(super) granted: Arc<Granted>,
}

impl Disk {
    /// What an error of the disk means.
    fn not_done(&self, error: DiskError) -> NotDone {
        match (error, error.remedy()) {
            (DiskError::Rpc(cause), _) => NotDone::Failed(convert::rpc_error(cause)),
            (_, Remedy::Capability | Remedy::Handshake) => {
                tracing::debug!(disk = %self.address, %error, "a capability was refused");
                NotDone::Refused
            }
            (DiskError::Refused(Refusal::NoSpace), _) => NotDone::Failed(Error::NoSpace),
            (_, Remedy::None) => {
                tracing::warn!(disk = %self.address, %error, "a disk failed");
                NotDone::Failed(Error::Io)
            }
        }
    }
}

/// The address of a disk as `HOST:PORT`, or `:PORT` for the machine of the metadata server. A host
/// is an address: names would be looked up differently by each client.
fn address(text: &[u8], server: SocketAddr) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix(':') {
        Some(port) => Some(SocketAddr::new(server.ip(), port.parse().ok()?)),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_a_host_is_where_the_metadata_server_is() {
        let server = "192.0.2.1:2050".parse().unwrap();
        let of = |text: &str| address(text.as_bytes(), server).map(|one| one.to_string());
        assert_eq!(of(":2051").as_deref(), Some("192.0.2.1:2051"));
        assert_eq!(of("[::1]:2051").as_deref(), Some("[::1]:2051"));
        for nonsense in ["", ":", ":x", "host:1", "192.0.2.1"] {
            assert_eq!(of(nonsense), None, "{nonsense}");
        }
    }
}
