//! The disks of a volume, as the metadata server uses them: [`Disks`], and [`ControlledDisks`],
//! which are reached over the network.

mod controlled;
mod data;
mod disk_state;
mod extents;
mod minted;
mod orders;
mod outcome;
mod pending;
mod questions;
mod reach;
mod revoking;
mod store_check;
mod trust;

pub use controlled::ControlledDisks;
pub use minted::{CapabilityName, Minted};
pub use outcome::Outcome;
pub(crate) use store_check::continues;
pub use trust::{TrustInterval, Trusting};

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use larder_wire::capability::{KeyEpoch, VolumeId};
use larder_wire::disk::words::{StatusDone, StoreState};
use larder_wire::meta::words::{DiskId, DiskInfo, Mode};
use larder_wire::seal::{MasterKey, Setup};
use tokio::sync::watch;

/// An end of something at the disks.
pub type Acknowledged = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An end of a copy.
pub type Copied = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An end of a write: whether it was done.
pub type Stored = Pin<Box<dyn Future<Output = bool> + Send>>;

/// An end of a reading: the bytes; `None` if the disk does not give them.
pub type BytesRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// Resolves when the copies of a move have ended.
pub(crate) type Moved = Pin<Box<dyn Future<Output = Failed> + Send>>;

/// The disks to which a move did not bring everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failed {
    /// All of them.
    pub(crate) disks: BTreeSet<DiskId>,
    /// Those of them that did not take it. To the others there was nothing to bring.
    pub(crate) refused: BTreeSet<DiskId>,
}

/// Resolves when the wait for bytes in flight to disks has ended: whether they arrived.
pub type Witnessed = Pin<Box<dyn Future<Output = bool> + Send>>;

/// How many bytes memory disks can hold, where that is known.
pub type Limits = BTreeMap<DiskId, u64>;

/// The stores of disks, as these said last.
pub type Stores = BTreeMap<DiskId, StoreState>;

/// Makes capabilities on disks and revokes them.
pub trait Disks: Send + Sync + 'static {
    /// The disks, where clients reach them, and their boot epochs. Whether they leave is in the
    /// store.
    fn list(&self) -> Vec<DiskInfo>;

    /// Whether a disk could last be reached: allocations take others first. Does not block.
    fn is_there(&self, disk: DiskId) -> bool;

    /// Makes a capability on bytes of a disk: at most [`larder_wire::capability::EXTENTS_MAX`]
    /// ranges in order, not empty, without overlap. `None` if none can be made for this disk now.
    /// Does not block.
    fn mint(&self, disk: DiskId, mode: Mode, bytes: &[Range<u64>]) -> Option<Minted>;

    /// Revokes capabilities. Resolves when no disk accepts any of them any more: it has
    /// acknowledged, or has not been refreshed for so long that it accepts none at all.
    fn revoke(&self, capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged;

    /// Makes blocks read as zeros for their next owner. Resolves when the disks have done so.
    fn clear(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged;

    /// Waits, for a limited time, until all these blocks have been written. Resolves to whether
    /// they were, durably: `false` also if that is not known.
    fn await_written(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Witnessed;

    /// Makes durable what was written to these disks before. Resolves when all have done so.
    fn flush(&self, disks: Vec<DiskId>) -> Acknowledged;

    /// Has the second disk fetch bytes from the first one and write them from `target` on, durably.
    /// Resolves to what became of that; if it was not done, nothing is written any more after the
    /// capability to write is revoked.
    fn copy(
        &self,
        from: (DiskId, Minted),
        to: (DiskId, Minted),
        bytes: Range<u64>,
        target: u64,
    ) -> Copied;

    /// Reads bytes of a disk.
    fn read(&self, _from: (DiskId, Minted), _bytes: Range<u64>) -> BytesRead {
        Box::pin(std::future::ready(None))
    }

    /// Writes bytes to a disk, from `at` on, durably. Resolves to whether that was done; if it was
    /// not, nothing is written any more after the capability is revoked.
    fn write(&self, _to: (DiskId, Minted), _at: u64, _bytes: Bytes) -> Stored {
        Box::pin(std::future::ready(false))
    }

    /// How many bytes each memory disk can hold now, as it said last. Tells when one changes.
    fn limits(&self) -> watch::Receiver<Limits> {
        watch::Sender::default().subscribe()
    }

    /// Asks the memory disks whether they were started again: [`list`](Self::list) has their boots
    /// then. Resolves when each has answered, or was not reached.
    fn look(&self) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    /// From which stores the disks serve, or would. Tells when one changes. Memory disks, whose
    /// stores do not outlive their boots, are not among them.
    fn stores(&self) -> watch::Receiver<Stores> {
        watch::Sender::default().subscribe()
    }

    /// A disk may serve from a store, in this generation and the next: that is on record. Does not
    /// block.
    fn accept_store(&self, _disk: DiskId, _store: StoreState) {}

    /// Voids every capability that was made before this process began. Resolves as
    /// [`revoke`](Self::revoke) does.
    fn void_all(&self) -> Acknowledged;
}

/// Whose the disks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeOwner {
    /// The volume.
    pub volume: VolumeId,
    /// The number of its present owner.
    pub owner: u64,
    /// The setup that each of its disks must have; none: whichever it has.
    pub setup: Option<Setup>,
}

/// A disk of the volume, and where it listens.
#[derive(Clone, Debug)]
pub struct DiskAddress {
    /// Its number.
    pub disk: DiskId,
    /// How many bytes of it the volume uses.
    pub bytes: u64,
    /// Where this server reaches it.
    pub address: SocketAddr,
    /// Where clients do: `host:port`.
    pub public: String,
    /// Whether it is a memory disk, as the volume has it.
    pub is_memory: bool,
    /// The key that this server shares with it.
    pub master: MasterKey,
}

/// Which epoch the disks' keys have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The epoch.
    pub epoch: KeyEpoch,
    /// Since when, in seconds since 1970: since the last rotation, or since the metadata server
    /// began.
    pub since_s: i64,
}

/// How a disk does.
#[derive(Clone, Debug)]
pub struct DiskState {
    /// Its number.
    pub disk: DiskId,
    /// Where clients reach it.
    pub public: String,
    /// Whether it was reached at the last attempt: allocations take others first.
    pub is_there: bool,
    /// Why not, when that was tried last; or why it did not fetch bytes from another disk.
    pub problem: Option<String>,
    /// Capabilities that may have been in use when their group ended because it had no numbers
    /// left.
    pub unwanted: u64,
    /// What it reports of itself; nothing if it does not answer.
    pub status: Option<StatusDone>,
}
