//! Files that are lost as a whole ([`crate::retained`]): no disk has them.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{ByteRange, Extent, ExtentState};

use super::Plan;
use crate::retained::NO_DISK;
use crate::store::records::Inode;

/// The layout of a file that is lost as a whole.
pub(crate) fn lost_layout(inode: &Inode, range: &Range<u64>) -> Plan {
    let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
    let end = range.end.min(inode.attributes.size).max(start);
    let lost = Extent {
        offset: start,
        length: end - start,
        disk: NO_DISK,
        position: start,
        state: ExtentState::Lost,
    };
    Plan {
        covered: ByteRange::from(range.clone()),
        extents: if end > range.start { vec![lost] } else { Vec::new() },
        grants: BTreeMap::default(),
    }
}
