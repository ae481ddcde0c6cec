//! The control sockets of servers of volumes: their answers, and how to find them.
//!
//! The address is the lock: the process that listens there over TCP owns the socket of that name. A
//! server also serves without a socket, if the runtime directory cannot be used.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use larder_disk::Device;
use larder_meta::Metadata;
use larder_meta::disks::{ControlledDisks, DiskAddress};
use larder_meta::engine::Engine;
use larder_meta::volume::{self, Loss, Tenure, VolumeError};
use larder_wire::capability::{DiskId, VolumeId};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::control::{
    self, CallError, Enrolled, KeyTold, KeysRotated, Nowhere, Removed, RemovedIs, Request,
    SILENCE_MAX, Wanted, call,
};
use crate::enrolment::{forget_key, prepare};
use crate::report::{
    ArchiveStatus, DiskServed, DiskStatus, LossTold, LostFile, ServerStatus, Standby, VolumeStatus,
};
use crate::runtime_dir::{Kind, RuntimeDir};
use crate::volume::StoredIn;

/// A server that answers commands; its socket is removed when this is dropped.
pub(crate) struct Answering(PathBuf);

impl Drop for Answering {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Has a server answer commands, if it can.
pub(crate) fn answering(begin: impl FnOnce(&RuntimeDir) -> Result<Answering>) -> Option<Answering> {
    let begun = RuntimeDir::open().and_then(|runtime| begin(&runtime));
    begun.inspect_err(|error| tracing::warn!("larder status cannot ask: {error:#}")).ok()
}

fn answer<F>(runtime_dir: &RuntimeDir, (kind, name): (Kind, &str), answer: F) -> Result<Answering>
where
    F: Fn(Request) -> Result<serde_json::Value> + Send + Sync + 'static,
{
    let socket = runtime_dir.socket_named(kind, name);
    // Between finding a dead server's socket and removing it, no living one may replace it.
    let locked = runtime_dir.lock()?;
    let server = control::Server::bind(&socket)?;
    drop(locked);
    server.serve(move |request, _| answer(request))?;
    Ok(Answering(socket))
}

/// What a metadata server needs to answer commands.
pub(crate) struct Asked {
    pub(crate) volume: VolumeId,
    pub(crate) address: SocketAddr,
    pub(crate) stored_in: StoredIn,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) disks: Arc<ControlledDisks>,
    pub(crate) metadata: Metadata,
    /// Held while a disk is added: the next one gets the next number.
    pub(crate) enrolling: Mutex<()>,
}

impl Asked {
    /// Answers commands from now on. To be called within the runtime that serves.
    ///
    /// # Errors
    /// If there can be no socket.
    pub(crate) fn answer(self, runtime_dir: &RuntimeDir) -> Result<Answering> {
        let (name, runtime) = (self.address.to_string(), Handle::current());
        answer(runtime_dir, (Kind::Volume, &name), move |request| match request {
            Request::Status => {
                let status = runtime.block_on(self.status())?;
                Ok(serde_json::to_value(ServerStatus::Volume(status))?)
            }
            Request::EnrolDisk(wanted) => Ok(serde_json::to_value(self.enrol(&runtime, &wanted)?)?),
            Request::RemoveDisk { disk, keep } => {
                let removed = self.remove(&runtime, DiskId(disk), keep)?;
                Ok(serde_json::to_value(removed)?)
            }
            Request::RotateKeys => Ok(serde_json::to_value(self.rotate_keys(&runtime)?)?),
            _ => bail!("a metadata server tells how it does, and changes its disks, and no more"),
        })
    }

    /// Adds a disk. Blocks, for half a minute if it replaces one that is away.
    fn enrol(&self, runtime: &Handle, wanted: &Wanted) -> Result<Enrolled> {
        let _one = self.enrolling.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.stored_in.keys.as_ref();
        let keys = keys.context("the volume is one of larder serve, whose disks are its own")?;
        let prepared = prepare(wanted, &*self.engine, keys)?;
        let (key, new) = (&prepared.key, &prepared.new);
        let disk = key.disk;
        runtime.block_on(async {
            // All that learn of the disk can use it.
            self.disks.add(DiskAddress {
                disk,
                bytes: new.bytes,
                address: wanted.address,
                public: new.address.clone(),
                is_memory: new.is_memory,
                master: key.master.clone(),
            });
            let added = self.metadata.enrol(new.clone(), prepared.joining).await;
            let gone = if added.is_ok() { prepared.joining.old() } else { Some(disk) };
            if let Some(gone) = gone {
                self.disks.retire(gone).await;
            }
            added
        })?;
        prepared.done(keys)?;
        tracing::info!(disk = disk.0, address = %wanted.address, "a disk was added");
        Ok(Enrolled { disk: disk.0, volume: self.volume.to_text(), key: key.to_text() })
    }

    /// Removes a disk, begins to, or keeps it.
    fn remove(&self, runtime: &Handle, disk: DiskId, keep: bool) -> Result<Removed> {
        let _one = self.enrolling.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.stored_in.keys.as_ref();
        let keys = keys.context("the volume is one of larder serve, whose disks are its own")?;
        let removal = runtime.block_on(async {
            let removal = match keep {
                true => self.metadata.keep_disk(disk).await?,
                false => self.metadata.remove_disk(disk).await?,
            };
            if removal.tenure == Tenure::Gone {
                self.disks.retire(disk).await;
            }
            Ok::<_, VolumeError>(removal)
        })?;
        let removed = Removed::of(disk, removal);
        match removed.state {
            RemovedIs::Stays => tracing::info!(disk = disk.0, "a disk that was leaving stays"),
            RemovedIs::Leaving => tracing::info!(disk = disk.0, "a disk leaves"),
            RemovedIs::Gone => {
                forget_key(keys, disk)?;
                tracing::info!(disk = disk.0, "a disk was removed");
            }
        }
        Ok(removed)
    }

    /// Gives the disks another key epoch.
    fn rotate_keys(&self, runtime: &Handle) -> Result<KeysRotated> {
        let rotated = runtime.block_on(larder_meta::rotate(&self.metadata, &self.disks))?;
        let told = |(disk, is_told): (DiskId, bool)| KeyTold { disk: disk.0, is_told };
        let disks = rotated.disks.into_iter().map(told).collect();
        Ok(KeysRotated { key_epoch: rotated.key.0, disks })
    }

    async fn status(&self) -> Result<VolumeStatus> {
        let keys = self.disks.keys();
        let space = volume::space(&*self.engine)?;
        let copies = volume::copies(&*self.engine)?;
        let activity = self.metadata.activity().await;
        let states = self.disks.status().await;
        let memory = copies.disks.values().filter(|disk| disk.is_memory);
        let (memory_bytes, memory_free_bytes) =
            memory.fold((0, 0), |(all, free), disk| (all + disk.bytes, free + disk.bytes_free));
        let lost = volume::lost(&*self.engine)?.into_iter();
        let shown = |path: Vec<u8>| path.escape_ascii().to_string();
        let lost = lost.map(|(_, lost)| LostFile { path: lost.path.map(shown), bytes: lost.bytes });
        let lost = lost.collect();
        let losses = volume::losses(&*self.engine)?.into_iter().map(|loss| {
            let Loss { number, at_s, disk, files, bytes } = loss;
            LossTold { number, at_s, disk: disk.0, files, bytes }
        });
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        Ok(VolumeStatus {
            volume: self.volume.to_text(),
            address: self.address.to_string(),
            engine: self.stored_in.engine.clone(),
            pid: std::process::id(),
            owner: self.metadata.epoch(),
            size_bytes: space.bytes,
            free_bytes: space.bytes_free,
            memory_bytes,
            memory_free_bytes,
            due_files: activity.destaging.files,
            moved_bytes: activity.destaging.moved_bytes,
            late_max_ms: u64::try_from(activity.destaging.late_max.as_millis()).unwrap_or(u64::MAX),
            is_short_of_room: activity.destaging.is_short,
            yielded_bytes: activity.destaging.yielded_bytes,
            yielded_to_memory_bytes: activity.destaging.yielded_to_memory_bytes,
            instead_bytes: activity.instead.bytes,
            is_short_of_memory: activity.instead.is_short,
            archive: ArchiveStatus::of(&activity.archiving).map(Box::new),
            lost,
            losses: losses.collect(),
            trust_ms: u64::try_from(self.disks.trust().time().as_millis()).unwrap_or(u64::MAX),
            key_epoch: keys.epoch.0,
            keys_since_s: keys.since_s,
            setup: volume::setup(&*self.engine)?.map(|setup| setup.name().to_owned()),
            copies: count(copies.copies),
            disks_missing: count(copies.missing),
            sessions: activity.sessions,
            leases: activity.leases,
            calls_waiting: activity.calls_waiting,
            disks: states.iter().map(|state| DiskStatus::of(state, &copies, &activity)).collect(),
        })
    }
}

/// Stops controlling disks when they have left, and removes their keys. Runs until the metadata
/// server has ended.
pub(crate) async fn see_off(
    mut left: watch::Receiver<BTreeSet<DiskId>>,
    disks: Arc<ControlledDisks>,
    keys: Option<PathBuf>,
) {
    let mut seen = BTreeSet::new();
    loop {
        let all = left.borrow_and_update().clone();
        for disk in all.difference(&seen) {
            disks.retire(*disk).await;
            let forgotten = keys.as_ref().map_or(Ok(()), |keys| forget_key(keys, *disk));
            match forgotten {
                Ok(()) => tracing::info!(disk = disk.0, "a disk has left"),
                Err(error) => tracing::warn!(disk = disk.0, "a disk has left: {error:#}"),
            }
        }
        seen = all;
        if left.changed().await.is_err() {
            return;
        }
    }
}

/// Has a disk answer commands from now on.
///
/// # Errors
/// If there can be no socket.
pub(crate) fn answer_for_disk(
    runtime_dir: &RuntimeDir,
    (address, store): (SocketAddr, String),
    device: Arc<Device>,
) -> Result<Answering> {
    answer(runtime_dir, (Kind::Disk, &address.to_string()), move |request| match request {
        Request::Status => {
            let served = DiskServed::of(address, &store, &device);
            Ok(serde_json::to_value(ServerStatus::Disk(served))?)
        }
        _ => bail!("a disk tells how it does, and no more"),
    })
}

/// Has a standby metadata server, which will listen at `address`, answer commands.
///
/// # Errors
/// If there can be no socket.
pub(crate) fn answer_for_standby(
    runtime_dir: &RuntimeDir,
    address: SocketAddr,
) -> Result<Answering> {
    let pid = std::process::id();
    answer(runtime_dir, (Kind::Standby, &pid.to_string()), move |request| match request {
        Request::Status => {
            let standby = Standby { address: address.to_string(), pid };
            Ok(serde_json::to_value(ServerStatus::Standby(standby))?)
        }
        _ => bail!("a metadata server that stands by tells how it does, and no more"),
    })
}

/// The state of each server of this user on this machine. A server that does not answer is left
/// out.
///
/// # Errors
/// If the runtime directory cannot be read.
pub(crate) fn all(runtime_dir: &RuntimeDir) -> Result<Vec<ServerStatus>> {
    let mut all = Vec::new();
    for kind in [Kind::Volume, Kind::Standby, Kind::Disk] {
        for socket in runtime_dir.sockets(kind)? {
            match call(&socket, &Request::Status, SILENCE_MAX, &mut Nowhere) {
                Ok((value, _)) => all.push(serde_json::from_value(value)?),
                Err(CallError::Dead) => runtime_dir.remove_if_dead(&socket)?,
                Err(error) => tracing::debug!("{}: {error}", socket.display()),
            }
        }
    }
    Ok(all)
}

/// The socket of the metadata server of this user that serves the volume in an engine.
///
/// # Errors
/// If the runtime directory cannot be read.
pub(crate) fn of_engine(runtime_dir: &RuntimeDir, shown: &str) -> Result<Option<PathBuf>> {
    for socket in runtime_dir.sockets(Kind::Volume)? {
        let Ok((value, _)) = call(&socket, &Request::Status, SILENCE_MAX, &mut Nowhere) else {
            continue;
        };
        if let ServerStatus::Volume(volume) = serde_json::from_value(value)?
            && volume.engine == shown
        {
            return Ok(Some(socket));
        }
    }
    Ok(None)
}

/// The state of the server of this user that listens at `address`; `None` if there is none.
///
/// # Errors
/// If it does not answer.
pub(crate) fn at(runtime_dir: &RuntimeDir, address: SocketAddr) -> Result<Option<ServerStatus>> {
    for kind in [Kind::Volume, Kind::Disk] {
        let socket = runtime_dir.socket_named(kind, &address.to_string());
        match call(&socket, &Request::Status, SILENCE_MAX, &mut Nowhere) {
            Ok((value, _)) => return Ok(Some(serde_json::from_value(value)?)),
            Err(CallError::Dead) => {}
            Err(error) => return Err(error).with_context(|| format!("the server at {address}")),
        }
    }
    Ok(None)
}
