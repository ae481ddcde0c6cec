//! What waits for a disk to do it: callers of clearing and flushing.

use std::ops::Range;

use larder_disk_client::DiskControl;
use larder_wire::capability::{DiskId, EXTENTS_MAX, Extent, Extents};
use larder_wire::disk::session::Granted;
use tokio::sync::oneshot;

use super::data::{self, Data};
use super::reach::Unreached;

/// Blocks that are to be cleared, and the caller that waits for it.
type Unclear = (Vec<Range<u64>>, oneshot::Sender<()>);

/// What the disk has not done yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    unclear: Vec<Unclear>,
    /// The callers that wait until the disk has made durable what was written to it.
    unflushed: Vec<oneshot::Sender<()>>,
}

impl Pending {
    pub(super) fn add_clear(&mut self, blocks: Vec<Range<u64>>, done: oneshot::Sender<()>) {
        self.unclear.push((blocks, done));
    }

    pub(super) fn add_flush(&mut self, done: oneshot::Sender<()>) {
        self.unflushed.push(done);
    }

    pub(super) fn wants_flush(&self) -> bool {
        !self.unflushed.is_empty()
    }

    /// No caller waits for the disk any more: its content is not used again.
    pub(super) fn retire(&mut self) {
        // A caller that is gone does not wait.
        self.unclear.drain(..).for_each(|(_, done)| _ = done.send(()));
        self.unflushed.drain(..).for_each(|done| _ = done.send(()));
    }

    /// Has the disk make durable what was written to it, if it can do that now.
    pub(super) async fn flush(&mut self, disk: DiskId, data: &Data, granted: &Granted) {
        match data::flush(data, granted).await {
            Ok(()) => self.unflushed.drain(..).for_each(|done| _ = done.send(())),
            Err(error) => tracing::debug!(disk = disk.0, "not flushed: {error}"),
        }
    }

    /// Clears the blocks that are to be cleared, as far as the disk does it now.
    pub(super) async fn clear(&mut self, disk: DiskId, control: &DiskControl) {
        for (blocks, done) in std::mem::take(&mut self.unclear) {
            match try_clear(control, &blocks).await {
                Ok(()) => drop(done.send(())),
                Err(error) => {
                    tracing::debug!(disk = disk.0, "not cleared: {error}");
                    self.unclear.push((blocks, done));
                }
            }
        }
    }
}

async fn try_clear(control: &DiskControl, blocks: &[Range<u64>]) -> Result<(), Unreached> {
    let mut blocks = blocks.to_vec();
    blocks.sort_by_key(|bytes| bytes.start);
    for part in blocks.chunks(EXTENTS_MAX) {
        let extents = part.iter().map(|bytes| Extent::new(bytes.start, bytes.end - bytes.start));
        let extents = extents.collect::<Result<Vec<_>, _>>().and_then(Extents::new);
        control.clear(extents.map_err(Unreached::Extents)?).await?;
    }
    Ok(())
}
