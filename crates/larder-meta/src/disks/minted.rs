//! Capabilities that were made.

use std::time::Duration;

use bytes::Bytes;
use larder_wire::capability::{CapabilityId, GroupId};

/// Identifies a capability to its disk.
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
    /// What its holder presents to the disk.
    pub capability: Bytes,
    /// The proof that it belongs to the holder.
    pub secret: [u8; 32],
    /// How long it is good at most.
    pub lasts: Duration,
    /// The boot of the disk in which it is valid.
    pub boot: u64,
}
