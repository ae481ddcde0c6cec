//! Idle fill-in: partly cached files are completed when the link is quiet, fewest missing bytes
//! first.
//!
//! A file is offered when it is closed. Nothing is fetched while an application waits for the
//! server or has recently done so, nor when the cache has no room. Large files are skipped, and so
//! are sparse ones, whose holes would be transferred as zeros: a protocol that does not report
//! holes makes a disk image of 64 GiB out of one of 1 GiB.

use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{Cred, Error, Ino, Kind, Result};

use super::fill_queue::Fill;
use crate::core::Core;
use crate::node::Node;

/// A file that takes less than this share of its size at the server is sparse.
const SPARSE_SHARE: u64 = 2;

/// How often the link is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// For how long no application must have waited for the server before a piece of a hoarded file is
/// fetched.
const QUIET_FOR_HOARD: Duration = Duration::from_millis(200);

/// Starts the task that fills in; it ends with the client.
pub(crate) fn start(core: &Arc<Core>) {
    let Some(quiet) = core.options.fill_after else { return };
    if !core.options.cache_data {
        return;
    }
    let (core, clock) = (Arc::downgrade(core), core.clock.clone());
    tokio::spawn(async move {
        loop {
            clock.sleep(LOOK_EVERY).await;
            let Some(core) = core.upgrade() else { return };
            while core.is_quiet(quiet) && core.fill_one().await {}
        }
    });
}

impl Core {
    fn is_quiet(&self, quiet: Duration) -> bool {
        self.remote.reachable() && self.now().since(self.fill.last_use()) >= quiet
    }

    /// A file was closed. One that is cached whole, as most are that were written here, lacks
    /// nothing.
    pub(crate) fn offer_to_fill(&self, node: &Arc<Node>, cred: &Cred) {
        let size = node.state().known().attr.size;
        let is_whole = self.file(node).holds(0..size);
        if self.options.fill_after.is_some() && size > 0 && !is_whole {
            self.fill.offer(node, &cred.first_time());
        }
    }

    /// Bytes of the file's present version that the cache lacks; `None` if it has changes that the
    /// server lacks, or is no regular file that exists.
    fn lacks(&self, node: &Node) -> Option<u64> {
        if node.state().known().attr.kind != Kind::File {
            return None;
        }
        self.prepare(node, &self.file(node));
        self.lacking(node)
    }

    /// The same by what the cache holds now, be it of the present version or of an earlier one.
    fn lacking(&self, node: &Node) -> Option<u64> {
        let size = node.state().known().attr.size;
        let idle = !self.has_unsent(node) && !node.state().is_gone();
        let held = self.file(node).held(0..size);
        let held: u64 = held.iter().map(|range| range.end - range.start).sum();
        idle.then(|| size.saturating_sub(held))
    }

    /// Fetches what the cache lacks of a file, whenever no application waits for the server.
    /// Returns how many bytes are missing then: those that the cache does not take; `None` if the
    /// file has changes that the server lacks, or is no regular file that exists.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server cannot be reached, else the server's error.
    pub(crate) async fn complete(self: &Arc<Self>, cred: &Cred, ino: Ino) -> Result<Option<u64>> {
        let node = self.node(ino)?;
        let mut lacks = self.lacks(&node);
        while let Some(before) = lacks.filter(|lacks| *lacks > 0) {
            while !self.is_quiet(QUIET_FOR_HOARD) {
                if !self.remote.reachable() {
                    return Err(Error::TimedOut);
                }
                self.clock.sleep(QUIET_FOR_HOARD).await;
            }
            self.fetch_missing(&node, cred).await?;
            lacks = self.lacks_less_than(before, &node).await;
            if lacks.is_some_and(|after| after >= before) {
                break;
            }
        }
        Ok(lacks)
    }

    /// How many bytes the cache lacks of a file, once that is less than `before` or nothing is on
    /// its way any more: bytes are stored after whoever asked for them has them.
    async fn lacks_less_than(&self, before: u64, node: &Node) -> Option<u64> {
        let mut flights = self.in_air.subscribe();
        loop {
            let is_over = *flights.borrow_and_update() == 0;
            let lacks = self.lacks(node);
            if is_over || lacks.is_none_or(|after| after < before) {
                return lacks;
            }
            // The sender is ours.
            let _ = flights.changed().await;
        }
    }

    /// Fetches one request's worth of the file that lacks least; `false` if there is nothing to do.
    async fn fill_one(self: &Arc<Self>) -> bool {
        let missing = self.fill.candidates().into_iter().filter_map(|(node, cred)| {
            let missing = self.missing_bytes(&node)?;
            Some((missing, node, cred))
        });
        let Some((before, node, cred)) = missing.min_by_key(|(missing, ..)| *missing) else {
            return false;
        };
        if let Err(error) = self.fetch_missing(&node, &cred).await {
            tracing::debug!(ino = node.ino.0, %error, "fill-in stopped");
        }
        // No progress: the file changed, or the cache declines.
        self.missing_bytes(&node).is_some_and(|after| after < before)
    }

    /// The present state of idle fill-in.
    pub(crate) fn fill_status(&self) -> Fill {
        let is_on = self.options.cache_data && self.options.fill_after.is_some();
        let bytes_max = is_on.then_some(self.options.fill_bytes_max);
        let candidates = if is_on { self.fill.candidates() } else { Vec::new() };
        let waits = |(node, _): &(Arc<Node>, Cred)| self.missing_bytes(node).is_some();
        let waiting = candidates.iter().filter(|candidate| waits(candidate)).count() as u64;
        Fill { bytes_max, waiting, filled_bytes: self.fill.filled_bytes() }
    }

    /// Bytes that a partly cached file lacks; `None` if it is whole, empty, not cached at all, or
    /// not to be completed.
    fn missing_bytes(&self, node: &Node) -> Option<u64> {
        let (size, used) = {
            let state = node.state();
            (state.known().attr.size, state.known().attr.used)
        };
        let (fits, is_sparse) = (size <= self.options.fill_bytes_max, used < size / SPARSE_SHARE);
        let wants = |lacks: &u64| fits && !is_sparse && (1..size).contains(lacks);
        self.lacking(node).filter(wants)
    }

    /// Fetches the first piece that the cache lacks of a file that lacks something.
    async fn fetch_missing(self: &Arc<Self>, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        let size = node.state().known().attr.size;
        let held = self.file(node).held(0..size);
        let start = match held.first() {
            Some(first) if first.start == 0 => first.end,
            _ => 0,
        };
        let stop = held.iter().map(|range| range.start).find(|at| *at > start).unwrap_or(size);
        let request_max = u64::from(self.request_bytes_max());
        let stop = stop.min((start / request_max + 1) * request_max);
        debug_assert!(start < stop, "a file that lacks nothing is no candidate");
        let len = u32::try_from(stop - start).expect("one request");
        self.read_range(node, cred, start, len).await?;
        self.fill.filled(u64::from(len));
        Ok(())
    }
}
