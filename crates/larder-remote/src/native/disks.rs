//! The disks of a volume, and requests to them under capabilities.
//!
//! A disk is connected when it is first needed. A refusal says what to do next: usually to ask the
//! metadata server for another capability.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_disk_client::{DISK_PROGRAM, DiskClient, DiskError};
use larder_rpc::{CallOptions, Config, Recovery, RpcClient, Snapshot, Transport};
use larder_vfs::{Error, Result};
use larder_wire::capability::{BootEpoch, Capability, Extent};
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::{Refusal, Remedy};
use larder_wire::meta::words::{DiskId, Grant};
use larder_wire::seal::Secret;
use larder_wire::xdr::Decode;
use tokio::task::JoinSet;

use super::convert;
use super::plan::Location;
use super::session::Session;

/// How long a disk is waited for while another one has the same.
const PATIENCE: Duration = Duration::from_secs(3);
/// For how long a disk that was waited for in vain is asked last.
const SILENCE: Duration = Duration::from_secs(10);
/// For how long nothing new is written to memory disks after one of them did not take it. By then
/// the metadata server knows why.
const MEMORY_AVOIDED: Duration = Duration::from_secs(5);
/// This many bytes are read from one disk of a set before the next disk's turn.
const SHARE_BYTES: u64 = 1 << 20;

/// The grants that open the disks of one layout, each with the set to which it belongs.
#[derive(Debug)]
pub(super) struct Grants(Vec<(DiskId, Arc<Granted>)>);

impl Grants {
    /// From the grants of the metadata server.
    ///
    /// # Errors
    /// [`Error::Io`] if a capability cannot be decoded.
    pub(super) fn new(grants: &[Grant]) -> Result<Grants> {
        let granted = |grant: &Grant| {
            let mut bytes = grant.capability.0.clone();
            let capability = Capability::decode(&mut bytes).map_err(|_| Error::Io)?;
            let granted = Granted { capability, secret: Secret::new(grant.secret) };
            Ok((grant.disk, Arc::new(granted)))
        };
        grants.iter().map(granted).collect::<Result<_>>().map(Grants)
    }

    /// The grants that cover `length` bytes at `location`, for writing or reading: one for each
    /// copy.
    pub(super) fn covering(
        &self,
        location: Location,
        length: u64,
        writes: bool,
    ) -> Vec<Arc<Granted>> {
        let Ok(wanted) = Extent::new(location.position, length) else { return Vec::new() };
        let mut found: Vec<Arc<Granted>> = Vec::new();
        for (set, one) in &self.0 {
            let Capability { disk, mode, extents, .. } = &one.capability;
            let suffices = if writes { mode.writes() } else { mode.reads() };
            let is_other = found.iter().all(|there| there.capability.disk != *disk);
            if *set == location.disk && suffices && is_other && extents.cover(wanted) {
                found.push(Arc::clone(one));
            }
        }
        found
    }

    /// The grants with which a disk can be written.
    pub(super) fn on(&self, disk: DiskId) -> impl Iterator<Item = &Arc<Granted>> {
        self.0
            .iter()
            .map(|(_, one)| one)
            .filter(move |one| one.capability.disk == disk && one.capability.mode.writes())
    }
}

/// Why a disk did not carry out a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The capability is not sufficient, or no longer valid: the metadata server has others.
    Refused,
    /// Anything else.
    Failed(Error),
}

/// Why a disk did not read something.
struct Unread {
    why: NotDone,
    /// The server has ended the capability, and with it those for the other copies: these disks
    /// would refuse it, too.
    is_of_all: bool,
}

impl From<Error> for Unread {
    fn from(error: Error) -> Unread {
        Unread { why: error.into(), is_of_all: false }
    }
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
    /// Where those are that have no host in their address.
    beside: IpAddr,
    connected: Mutex<HashMap<DiskId, Arc<Disk>>>,
    /// Disks that did not answer in time, and until when they are asked last.
    silent: Mutex<HashMap<DiskId, Instant>>,
    /// Until when memory disks get nothing new.
    avoids_memory: Mutex<Option<Instant>>,
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
    /// Disks without a host are at `beside`, the metadata server's machine.
    pub(super) fn new(session: Arc<Session>, beside: IpAddr) -> Disks {
        Disks {
            session,
            beside,
            connected: Mutex::default(),
            silent: Mutex::default(),
            avoids_memory: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// Reads `length` bytes at `location`, from any disk that has them.
    ///
    /// # Errors
    /// [`NotDone`], if none of them answers
    pub(super) async fn read(
        &self,
        grants: &Grants,
        location: Location,
        length: u64,
    ) -> Result<Bytes, NotDone> {
        let copies = grants.covering(location, length, false);
        match &copies[..] {
            [only] => self.read_from(only, location, length).await.map_err(|unread| unread.why),
            _ => Box::pin(self.read_any(copies, location, length)).await,
        }
    }

    /// The same, if no disk or several have them.
    async fn read_any(
        &self,
        mut copies: Vec<Arc<Granted>>,
        location: Location,
        length: u64,
    ) -> Result<Bytes, NotDone> {
        let count = copies.len().max(1);
        // All readers of these bytes begin with the same disk, which has them in memory.
        copies.rotate_left((location.position / SHARE_BYTES % count as u64) as usize % count);
        copies.sort_by_key(|one| self.is_silent(one.capability.disk));
        let config = self.session.rpc().config();
        let until = config.clock.instant() + config.limit();
        loop {
            let (mut is_refused, mut failed) = (false, None);
            for granted in &copies {
                match self.patiently(Box::pin(self.read_from(granted, location, length))).await {
                    Ok(Ok(data)) => return Ok(data),
                    Ok(Err(Unread { is_of_all: true, why })) => return Err(why),
                    Ok(Err(Unread { why: NotDone::Refused, .. })) => is_refused = true,
                    Ok(Err(Unread { why, .. })) => failed = Some(why),
                    Err(_) => self.note_silent(granted.capability.disk),
                }
            }
            // Another capability may do, or one for another disk.
            if is_refused || copies.is_empty() {
                return Err(NotDone::Refused);
            }
            let waits = config.recovery == Recovery::Hard || config.clock.instant() < until;
            match failed {
                Some(error) => return Err(error),
                None if waits => {}
                None => return Err(Error::TimedOut.into()),
            }
        }
    }

    async fn read_from(
        &self,
        granted: &Granted,
        location: Location,
        length: u64,
    ) -> Result<Bytes, Unread> {
        let length = u32::try_from(length).map_err(|_| Error::InvalidArgument)?;
        let disk = self.disk(granted.capability.disk).await?;
        let read = disk.client.read(granted, location.position, length, CallOptions::default());
        read.await.map_err(|cause| {
            let is_of_all = match cause {
                DiskError::Refused(why) | DiskError::Hearsay(why) => {
                    matches!(why, Refusal::Revoked | Refusal::OldKey)
                }
                DiskError::NotGenuine(_) | DiskError::Rpc(_) => false,
            };
            Unread { why: disk.not_done(cause), is_of_all }
        })
    }

    /// Writes `data` at `location`, to all disks that are to have it; if `is_stable`, it is durable
    /// on return. Returns which have it. A disk that is far behind another one has missed it.
    ///
    /// # Errors
    /// [`NotDone`], if a disk refuses the capability, or none has it; of memory disks, if one lacks
    /// it
    pub(super) async fn write(
        self: &Arc<Disks>,
        grants: &Grants,
        location: Location,
        data: Bytes,
        is_stable: bool,
    ) -> Result<Vec<Unflushed>, NotDone> {
        let mut copies = grants.covering(location, data.len() as u64, true);
        let is_silent = |one: &Arc<Granted>| self.is_silent(one.capability.disk);
        let is_in_memory = copies.len() > 1 && self.is_memory(location.disk);
        if let Some(silent) = copies.iter().find(|one| is_in_memory && is_silent(one)) {
            self.note_not_taken(silent.capability.disk);
            return Err(Error::NoSpace.into());
        }
        if !copies.iter().all(is_silent) {
            copies.retain(|one| !is_silent(one));
        }
        match &copies[..] {
            [] => return Err(NotDone::Refused),
            [only] => {
                return Ok(vec![self.write_to(only, location.position, data, is_stable).await?]);
            }
            _ => {}
        }
        let mut missing: BTreeSet<DiskId> = copies.iter().map(|one| one.capability.disk).collect();
        let mut writing = JoinSet::new();
        for granted in copies {
            let (disks, data, position) = (Arc::clone(self), data.clone(), location.position);
            writing.spawn(async move { disks.write_to(&granted, position, data, is_stable).await });
        }
        let (mut written, mut outcome, mut is_refused) = (Vec::new(), None, false);
        loop {
            let done = match written.is_empty() && !is_refused {
                true => writing.join_next().await,
                false => self.patiently(writing.join_next()).await.unwrap_or_default(),
            };
            match done {
                Some(done) => match done.map_err(|_| Error::Shutdown)? {
                    Ok(one) => {
                        missing.remove(&one.granted.capability.disk);
                        written.push(one);
                    }
                    // The others are waited for: a request that is given up ends its session.
                    Err(NotDone::Refused) => is_refused = true,
                    Err(failed) if self.avoids_memory() => return Err(failed),
                    Err(failed) => outcome = Some(failed),
                },
                None if is_refused => return Err(NotDone::Refused),
                None if written.is_empty() => return Err(outcome.unwrap_or(NotDone::Refused)),
                // A request to the others may still arrive: they count as having missed it all the
                // same.
                None => {
                    for disk in &missing {
                        self.note_silent(*disk);
                        self.note_not_taken(*disk);
                    }
                    return match missing.is_empty() || !is_in_memory {
                        true => Ok(written),
                        // Another disk is better than fewer memories than are wanted.
                        false => Err(Error::NoSpace.into()),
                    };
                }
            }
        }
    }

    /// Copies `length` bytes, not durably yet: by the disks that have them and are to have them, or
    /// else by reading and writing. Returns which have them.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`]
    pub(super) async fn copy(
        self: &Arc<Disks>,
        from: (&Grants, Location),
        to: (&Grants, Location),
        length: u64,
    ) -> Result<Vec<Unflushed>, NotDone> {
        if let Some(copied) = self.copy_there(from, to, length).await {
            return Ok(copied);
        }
        let data = Box::pin(self.read(from.0, from.1, length)).await?;
        self.write(to.0, to.1, data, false).await
    }

    /// Has each disk of a set copy `length` bytes that it has, not durably yet. `None` if one of
    /// them cannot do so: then they are to be read and written.
    async fn copy_there(
        &self,
        (sources, from): (&Grants, Location),
        (targets, to): (&Grants, Location),
        length: u64,
    ) -> Option<Vec<Unflushed>> {
        if from.disk != to.disk {
            return None;
        }
        let sources = sources.covering(from, length, false);
        let targets = targets.covering(to, length, true);
        let length = u32::try_from(length).ok()?;
        let mut copied = Vec::with_capacity(targets.len());
        for granted in &targets {
            let number = granted.capability.disk;
            let source = sources.iter().find(|one| one.capability.disk == number)?;
            let (options, to) = (CallOptions::default(), (&**granted, to.position));
            let copying = Box::pin(async {
                let disk = self.disk(number).await.ok()?;
                let from = (&**source, from.position);
                let done = disk.client.write_from(to, from, length, false, options).await;
                done.inspect_err(|cause| tracing::debug!(disk = number.0, %cause, "not copied"))
                    .ok()
            });
            let boot = match targets.len() {
                1 => copying.await?,
                _ => self.patiently(copying).await.ok()??,
            };
            copied.push(Unflushed { boot, granted: Arc::clone(granted) });
        }
        (!copied.is_empty()).then_some(copied)
    }

    /// The disks to which [`Self::write`] writes; none if one of them recently did not answer in
    /// time, or the grants do not cover these bytes.
    pub(super) fn to_be_written(
        &self,
        grants: &Grants,
        location: Location,
        length: u64,
    ) -> Option<Vec<DiskId>> {
        let copies = grants.covering(location, length, true);
        let disks: Vec<DiskId> = copies.iter().map(|one| one.capability.disk).collect();
        let are_there = !disks.is_empty() && !disks.iter().any(|disk| self.is_silent(*disk));
        are_there.then_some(disks)
    }

    async fn write_to(
        &self,
        granted: &Arc<Granted>,
        position: u64,
        data: Bytes,
        is_stable: bool,
    ) -> Result<Unflushed, NotDone> {
        let disk = self.disk(granted.capability.disk).await?;
        let options = CallOptions::default();
        let written = disk.client.write(granted, position, data, is_stable, options);
        let boot = written.await.map_err(|cause| {
            if matches!(cause, DiskError::Refused(Refusal::NoSpace)) {
                self.note_not_taken(granted.capability.disk);
            }
            disk.not_done(cause)
        })?;
        Ok(Unflushed { boot, granted: Arc::clone(granted) })
    }

    /// Waits for a disk for a time that is appropriate if another one has the same bytes.
    ///
    /// # Errors
    /// [`Error::TimedOut`]
    pub(super) async fn patiently<T>(&self, asked: impl Future<Output = T>) -> Result<T> {
        let clock = &self.session.rpc().config().clock;
        clock.timeout(PATIENCE, asked).await.map_err(|_| Error::TimedOut)
    }

    fn is_silent(&self, disk: DiskId) -> bool {
        let now = self.session.rpc().config().clock.instant();
        self.silent().get(&disk).is_some_and(|until| now < *until)
    }

    fn note_silent(&self, disk: DiskId) {
        let now = self.session.rpc().config().clock.instant();
        self.silent().insert(disk, now + SILENCE);
    }

    /// Whether memory disks are to get nothing new: one of them had no memory for it lately, or did
    /// not answer.
    pub(super) fn avoids_memory(&self) -> bool {
        let now = self.session.rpc().config().clock.instant();
        let until = self.avoids_memory.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now < until)
    }

    /// A disk did not take what was to be written.
    fn note_not_taken(&self, disk: DiskId) {
        if self.is_memory(disk) {
            tracing::debug!(disk = disk.0, "memory disks get nothing new for now");
            self.avoid_memory();
        }
    }

    /// From now on memory disks get nothing new, for some time.
    pub(super) fn avoid_memory(&self) {
        let now = self.session.rpc().config().clock.instant();
        let mut until = self.avoids_memory.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(now + MEMORY_AVOIDED);
    }

    fn silent(&self) -> std::sync::MutexGuard<'_, HashMap<DiskId, Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was written to a disk durable. Returns its boot: what was written in another boot
    /// may be lost.
    ///
    /// # Errors
    /// [`NotDone`]
    pub(super) async fn flush(&self, granted: &Granted) -> Result<BootEpoch, NotDone> {
        let disk = self.disk(granted.capability.disk).await?;
        let flushed = disk.client.flush(granted, CallOptions::default()).await;
        flushed.map_err(|cause| disk.not_done(cause))
    }

    /// Counts and times of the disks' procedures, and of the connections to them.
    pub(super) fn stats(&self) -> Vec<Snapshot> {
        self.connected().values().map(|disk| disk.rpc.stats()).collect()
    }

    /// How many answers were not from the disks, or not to their requests.
    pub(super) fn forged(&self) -> u64 {
        self.connected().values().map(|disk| disk.client.forged()).sum()
    }

    /// Ends all calls, now and later.
    pub(super) fn shutdown(&self) {
        self.connected().values().for_each(|disk| disk.rpc.shutdown());
    }

    /// The disk with this number, connected to.
    async fn disk(&self, number: DiskId) -> Result<Arc<Disk>> {
        match self.address(number).and_then(|address| self.connected_at(number, address)) {
            Some(disk) => Ok(disk),
            // Boxed: each read and write has room for it, and the first one makes it.
            None => Box::pin(self.connect(number)).await,
        }
    }

    /// A disk that is connected to, if it is still at this address.
    fn connected_at(&self, number: DiskId, address: SocketAddr) -> Option<Arc<Disk>> {
        let disk = self.connected().get(&number).cloned();
        disk.filter(|disk| disk.address == address)
    }

    /// Connects to a disk, unless another task has.
    async fn connect(&self, number: DiskId) -> Result<Arc<Disk>> {
        let address = match self.address(number) {
            Some(address) => address,
            None => {
                // It may have been enrolled just now.
                self.session.learn_disks().await?;
                self.address(number).ok_or_else(|| {
                    tracing::warn!(
                        disk = number.0,
                        "the metadata server does not say where a disk is"
                    );
                    Error::Io
                })?
            }
        };
        let _turn = self.connecting.lock().await;
        if let Some(disk) = self.connected_at(number, address) {
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

    /// Whether a disk is a memory disk, as the metadata server said last.
    pub(super) fn is_memory(&self, number: DiskId) -> bool {
        let begun = self.session.now();
        begun.given.disks.0.iter().any(|info| info.disk == number && info.is_memory)
    }

    /// Whether committed blocks are never overwritten: there are copies, memory disks, or a disk
    /// that leaves.
    pub(super) fn writes_anew(&self) -> bool {
        let given = &self.session.now().given;
        given.copies > 1 || given.disks.0.iter().any(|disk| disk.is_memory || disk.leaves)
    }

    /// Where a disk is, as the metadata server said last.
    fn address(&self, number: DiskId) -> Option<SocketAddr> {
        let begun = self.session.now();
        let info = begun.given.disks.0.iter().find(|info| info.disk == number)?;
        larder_wire::disk::address(&info.address, self.beside)
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

/// What a disk may lose: everything written to it in one boot.
#[derive(Clone, Debug)]
pub(super) struct Unflushed {
    /// The boot of the disk.
    pub(super) boot: BootEpoch,
    /// The grant under which it was written.
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
