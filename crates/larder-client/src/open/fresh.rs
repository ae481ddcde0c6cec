//! Whether the cached state of a file may be shown to a process that opens it: close-to-open.

use std::time::Duration;

use larder_vfs::{Cred, Result};

use super::mode::Mode;
use crate::core::Core;
use crate::limits::Transferring;
use crate::node::{Node, State};
use crate::patience::Late;

/// An open that follows on a lookup by the same process need not ask again within this time: the
/// lookup's reply is its freshness check, as one open(2) makes both.
const LOOKUP_COUNTS_FOR: Duration = Duration::from_secs(1);

/// Longest wait of an open for the release of a file that the kernel wrote and whose writer closed
/// it, where cached bytes must be dropped. It matters only if the writer has duplicated its
/// descriptor; otherwise the release arrives soon.
const BYPASS_END_WAIT_MAX: Duration = Duration::from_secs(1);

impl Core {
    /// While a change of ours is in flight no description counts, so an open that must ask the
    /// server waits for its end, and has its turn before the next change. No open waits for bytes
    /// in flight: the file is being written here.
    pub(super) async fn await_own_change<'a>(
        &self,
        node: &'a Node,
        cred: &Cred,
    ) -> Option<Transferring<'a>> {
        let asks = self.options.close_to_open && self.remote.reachable() && {
            let state = node.state();
            state.changing() && state.unsent().end().is_none() && !state.is_vouched_for()
        };
        // If the change does not end in time, the wait may have used up the time for the answer,
        // too.
        if asks { node.transfer.begin(cred.deadline).await.ok() } else { None }
    }

    /// Whether the server may be done without, if it takes its time, for what concerns the version
    /// of a file: no other client writes, or the attributes are within their time and the mount's
    /// user permits to work without the server.
    pub(super) fn may_do_without(&self, node: &Node) -> bool {
        let Some(here) = self.remote.deferring() else { return false };
        here.is_sole() || (here.may_be_offline() && self.is_fresh(node))
    }

    /// The server's answer, or `None` if that does not come in time ([`crate::patience`]).
    pub(super) async fn in_time<T: Send + 'static>(
        &self,
        asking: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Option<Result<T>> {
        if self.patience.is_late() {
            return None;
        }
        let (begun, mut asking) = (self.now(), Box::pin(asking));
        if let Ok(answer) = self.clock.timeout(self.patience.wait(), &mut asking).await {
            self.patience.answered(self.now().since(begun));
            return Some(answer);
        }
        let late = Late::begin(&self.patience);
        self.runtime.spawn(async move {
            drop(asking.await);
            drop(late);
        });
        None
    }

    pub(super) fn is_fresh_for_open(&self, node: &Node, cred: &Cred) -> bool {
        if !self.is_fresh(node) {
            return false;
        }
        if !self.options.close_to_open || !self.remote.reachable() {
            return true;
        }
        let mut state = node.state();
        let is_used = state.changing() || !state.opens().is_empty();
        if state.is_vouched_for() || is_used && state.unsent().end().is_some() {
            return true;
        }
        let looked_up = state.take_lookup();
        looked_up.is_some_and(|(pid, when)| {
            pid == cred.pid && pid != 0 && self.now().since(when) < LOOKUP_COUNTS_FOR
        })
    }

    /// A process that opens a file is shown no bytes that may lack another client's change: what is
    /// cached and doubtful is fetched again. While the file is being written here, or the server is
    /// out of reach, it stays.
    pub(crate) async fn give_up_doubtful(&self, node: &Node) {
        let (is_suspect, is_bypassed) = {
            let state = node.state();
            (state.known().doubtful || state.unsent().is_mixed(), state.opens().is_bypassed())
        };
        if !is_suspect || !self.remote.reachable() {
            return;
        }
        if is_bypassed {
            self.await_end_of_bypass(node).await;
        }
        if self.start_over(node) {
            tracing::debug!(ino = node.ino.0, "what is held is doubtful: it is fetched anew");
            self.told(node).await;
        }
    }

    /// Gives up what is cached and doubtful, unless the file is being written here. Returns whether
    /// it did.
    pub(crate) fn start_over(&self, node: &Node) -> bool {
        let is_clean = self.file(node).dirty().is_empty();
        let mut state = node.state();
        let is_written =
            state.unsent().end().is_some() || state.opens().is_bypassed() || state.changing();
        if !is_clean || is_written || !state.start_over() {
            return false;
        }
        self.table.persist(node.ino, &mut state);
        self.outdate(node.ino, &mut state);
        true
    }

    /// Waits for the releases of open files by which the kernel wrote the local file, and that are
    /// closed: the kernel sends them after close(2) has returned, so the next open may overtake
    /// them.
    pub(crate) async fn await_end_of_bypass(&self, node: &Node) {
        let mut writers = self.open_files.of(node.ino);
        writers.retain(|(_, open)| open.mode == Mode::Bypass);
        if !writers.iter().all(|(_, open)| open.is_flushed()) {
            return;
        }
        let ended = node.until(|state| !state.opens().is_bypassed());
        if self.clock.timeout(BYPASS_END_WAIT_MAX, ended).await.is_ok() {
            return;
        }
        if node.state().opens().bypassing() {
            // Their descriptors were duplicated: they write on.
            writers.iter().for_each(|(_, open)| open.set_flushed(false));
        } else {
            self.await_search(node).await;
        }
    }

    /// Waits until the bytes that the kernel wrote last are found, unless it may continue to write.
    /// That is work for the local disk only.
    pub(crate) async fn await_search(&self, node: &Node) {
        let is_over = |state: &State| !state.opens().is_bypassed() || state.opens().bypassing();
        node.until(is_over).await;
    }
}
