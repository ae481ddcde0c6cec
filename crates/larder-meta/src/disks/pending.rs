//! What waits for a disk to do it: callers of clearing and flushing.

use std::ops::Range;

use larder_disk_client::DiskControl;
use larder_wire::capability::{DiskId, EXTENTS_MAX};
use larder_wire::disk::session::Granted;
use tokio::sync::oneshot;

use super::data::{self, Data};
use super::extents::{extents, joined};
use super::orders::{self, Waiters};
use super::reach::Unreached;

/// So many ranges, or those of one order, are looked through for some that one call clears.
const RANGES_MAX: usize = 4096;

/// Blocks that are to be cleared, as far as they are not, and who waits for it.
type Unclear = (Vec<Range<u64>>, Waiters);

/// What the disk has not done yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    unclear: Vec<Unclear>,
    /// The callers that wait until the disk has made durable what was written to it.
    unflushed: Vec<oneshot::Sender<()>>,
}

impl Pending {
    pub(super) fn add_clear(&mut self, blocks: Vec<Range<u64>>, done: Waiters) {
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
        self.unclear.drain(..).for_each(|(_, waiters)| orders::done(waiters));
        orders::done(std::mem::take(&mut self.unflushed));
    }

    /// Has the disk make durable what was written to it, if it can do that now.
    pub(super) async fn flush(&mut self, disk: DiskId, data: &Data, granted: &Granted) {
        match data::flush(data, granted).await {
            Ok(()) => orders::done(std::mem::take(&mut self.unflushed)),
            Err(error) => tracing::debug!(disk = disk.0, "not flushed: {error}"),
        }
    }

    /// Clears blocks by one call, as many as it takes. Returns whether there are more that the disk
    /// may clear now.
    pub(super) async fn clear_some(&mut self, disk: DiskId, control: &DiskControl) -> bool {
        let Some(extents) = self.next_call() else { return false };
        if let Err(error) = try_clear(control, &extents).await {
            tracing::debug!(disk = disk.0, "not cleared: {error}");
            return false;
        }
        self.are_clear(&extents);
        !self.unclear.is_empty()
    }

    /// What the next call is to clear, neighbours as one. Nothing if nothing is to be cleared.
    fn next_call(&self) -> Option<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (blocks, _) in &self.unclear {
            if !ranges.is_empty() && ranges.len() + blocks.len() > RANGES_MAX {
                break;
            }
            ranges.extend_from_slice(blocks);
        }
        let mut joined = joined(ranges);
        joined.truncate(EXTENTS_MAX);
        (!self.unclear.is_empty()).then_some(joined)
    }

    /// These were cleared, in order. Those that wait for nothing else are told.
    fn are_clear(&mut self, extents: &[Range<u64>]) {
        let is_in = |bytes: &Range<u64>| {
            let after = extents.partition_point(|extent| extent.start <= bytes.start);
            after > 0 && bytes.end <= extents[after - 1].end
        };
        for (blocks, waiters) in &mut self.unclear {
            blocks.retain(|bytes| !is_in(bytes));
            if blocks.is_empty() {
                orders::done(std::mem::take(waiters));
            }
        }
        self.unclear.retain(|(blocks, _)| !blocks.is_empty());
    }
}

async fn try_clear(control: &DiskControl, blocks: &[Range<u64>]) -> Result<(), Unreached> {
    if !blocks.is_empty() {
        control.clear(extents(blocks)?).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = 4096;

    /// Orders of blocks, each a list of block numbers; how many extents each call clears, and which
    /// orders are done after it.
    fn check(ordered: &[&[u64]], calls: &[(usize, &[usize])]) {
        let mut pending = Pending::default();
        let mut done = Vec::new();
        for blocks in ordered {
            let (waiter, is_done) = oneshot::channel();
            let ranges = blocks.iter().map(|block| block * B..(block + 1) * B).collect();
            pending.add_clear(ranges, vec![waiter]);
            done.push(is_done);
        }
        for (extents, after) in calls {
            let next = pending.next_call().expect("something is to be cleared");
            assert_eq!(next.len(), *extents);
            assert!(next.is_sorted_by(|one, other| one.end < other.start), "{next:?}");
            pending.are_clear(&next);
            let told = done.iter_mut().enumerate();
            let told = told.filter_map(|(at, done)| done.try_recv().is_ok().then_some(at));
            assert_eq!(told.collect::<Vec<_>>(), *after);
        }
        assert!(pending.next_call().is_none());
    }

    #[test]
    fn one_call_clears_what_was_ordered_and_neighbours_are_one() {
        check(&[], &[]);
        check(&[&[3], &[1, 2], &[5], &[]], &[(2, &[0, 1, 2, 3])]);
        // The same blocks again, as after a restart.
        check(&[&[3, 4], &[4]], &[(1, &[0, 1])]);
    }

    #[test]
    fn a_call_has_no_more_extents_than_it_may_and_who_needs_several_is_told_after_the_last() {
        let apart: Vec<u64> = (0..2 * EXTENTS_MAX as u64).map(|number| number * 2).collect();
        let low: Vec<u64> = apart[..10].to_vec();
        check(&[&apart, &low, &[1]], &[(EXTENTS_MAX, &[1, 2]), (EXTENTS_MAX - 1, &[0])]);
    }

    #[test]
    fn no_more_is_looked_through_than_is_useful() {
        let many: Vec<u64> = (0..RANGES_MAX as u64).collect();
        check(&[&[9000], &many, &[9002]], &[(1, &[0]), (1, &[1]), (1, &[2])]);
    }
}
