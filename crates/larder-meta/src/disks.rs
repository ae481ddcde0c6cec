//! The disks of a volume, as the metadata server uses them: [`Disks`], and [`ControlledDisks`],
//! which are reached over the network.

mod controlled;
mod data;
mod known;
mod reach;

pub use controlled::ControlledDisks;

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::disk::words::StatusDone;
use larder_wire::meta::words::{DiskId, DiskInfo, Mode};
use larder_wire::seal::MasterKey;

/// What names a capability to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapabilityName {
    /// Its group.
    pub group: GroupId,
    /// Its number in that.
    pub id: CapabilityId,
}

/// A capability that was made.
#[derive(Clone, Debug)]
pub struct Minted {
    /// To revoke it by.
    pub name: CapabilityName,
    /// What its holder shows the disk.
    pub capability: Bytes,
    /// What proves that it is the holder's.
    pub secret: [u8; 32],
    /// How long it is good at most.
    pub lasts: Duration,
}

/// An end of something at the disks.
pub type Acknowledged = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An end of a copy: whether it was made.
pub type Copied = Pin<Box<dyn Future<Output = bool> + Send>>;

/// An end of waiting for what is on its way to disks: whether it is there.
pub type Witnessed = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Makes capabilities on disks and revokes them.
pub trait Disks: Send + Sync + 'static {
    /// The disks, where clients reach them, and their boot epochs.
    fn list(&self) -> Vec<DiskInfo>;

    /// Whether a disk could be reached last: who looks for room takes others first. Does not block.
    fn is_there(&self, disk: DiskId) -> bool;

    /// Makes a capability on bytes of a disk: at most [`larder_wire::capability::EXTENTS_MAX`]
    /// ranges in order, not empty, without overlap. `None` if none can be made for this disk now.
    /// Does not block.
    fn mint(&self, disk: DiskId, mode: Mode, bytes: &[Range<u64>]) -> Option<Minted>;

    /// Revokes capabilities. Ends when no disk takes any of them any more: it has said so, or has
    /// not been refreshed for so long that it takes none at all.
    fn revoke(&self, capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged;

    /// Makes blocks read as zeros, whoever gets them next. Ends when the disks have done so.
    fn clear(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged;

    /// Waits, not for long, until all these blocks have been written. Ends with whether they were,
    /// durably: `false` also if that is not known.
    fn await_written(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Witnessed;

    /// Makes durable what was written to these disks before. Ends when all have done so.
    fn flush(&self, disks: Vec<DiskId>) -> Acknowledged;

    /// Copies bytes from one disk to the same place of another, durably. Ends with whether that was
    /// done; if it was not, nothing is written any more after the capability to write is revoked.
    fn copy(&self, from: (DiskId, Minted), to: (DiskId, Minted), bytes: Range<u64>) -> Copied;

    /// Voids every capability that was made before this process began. Ends as
    /// [`revoke`](Self::revoke) does.
    fn void_all(&self) -> Acknowledged;
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
    /// What this server has in common with it.
    pub master: MasterKey,
}

/// How a disk does.
#[derive(Clone, Debug)]
pub struct DiskState {
    /// Its number.
    pub disk: DiskId,
    /// Where clients reach it.
    pub public: String,
    /// Whether it was reached when that was tried last: who looks for room takes others first.
    pub is_there: bool,
    /// Why not, when that was tried last.
    pub problem: Option<String>,
    /// Capabilities that may have been in use when they ended for want of numbers.
    pub unwanted: u64,
    /// What it says of itself; nothing if it does not answer.
    pub status: Option<StatusDone>,
}
