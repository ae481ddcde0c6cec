//! Disks of the fuzzer.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_meta::disks::{Acknowledged, CapabilityName, Copied, Disks, Minted, Outcome, Witnessed};
use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::meta::words::{DiskId, DiskInfo, Mode};

/// Disks that carry out every request at once.
#[derive(Debug, Default)]
pub(super) struct GoodDisks(AtomicU32);

impl Disks for GoodDisks {
    fn list(&self) -> Vec<DiskInfo> {
        Vec::new()
    }

    fn is_there(&self, _disk: DiskId) -> bool {
        true
    }

    fn mint(&self, _disk: DiskId, _mode: Mode, bytes: &[Range<u64>]) -> Option<Minted> {
        assert!(bytes.len() <= larder_wire::capability::EXTENTS_MAX);
        assert!(
            bytes.iter().all(|bytes| bytes.start < bytes.end && bytes.end <= super::DISK_BYTES)
        );
        assert!(bytes.is_sorted_by(|one, next| one.end < next.start));
        let id = CapabilityId(self.0.fetch_add(1, Ordering::Relaxed));
        let name = CapabilityName { group: GroupId(1), id };
        let lasts = Duration::from_secs(60);
        let capability = Bytes::from_static(b"cap");
        Some(Minted { name, capability, secret: [0; 32], lasts, boot: 0 })
    }

    fn revoke(&self, _capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn clear(&self, _blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn await_written(&self, _: Vec<(DiskId, Range<u64>)>) -> Witnessed {
        Box::pin(std::future::ready(true))
    }

    fn flush(&self, _disks: Vec<DiskId>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn copy(&self, _: (DiskId, Minted), _: (DiskId, Minted), _: Range<u64>, _: u64) -> Copied {
        Box::pin(std::future::ready(Outcome::Done))
    }

    fn void_all(&self) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }
}
