//! State of idle fill-in: closed files that may be incomplete, and when the link was last used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use larder_io::Monotonic;
use larder_vfs::Cred;

use crate::node::Node;

/// Files remembered; the oldest is forgotten.
const FILES_MAX: usize = 256;

/// Files that may be worth completing, and when the link was last used.
#[derive(Default)]
pub(crate) struct FillQueue {
    files: Mutex<VecDeque<(Weak<Node>, Cred)>>,
    last_use_ns: AtomicU64,
    filled_bytes: AtomicU64,
}

/// What `larder status` shows of idle fill-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Files up to this size are completed; `None` if none are.
    pub bytes_max: Option<u64>,
    /// Files that lack something.
    pub waiting: u64,
    /// Bytes that idle fill-in has fetched.
    pub filled_bytes: u64,
}

impl FillQueue {
    /// Remembers a file that was closed. Walks over all that are remembered.
    pub(super) fn offer(&self, node: &Arc<Node>, cred: &Cred) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|(held, _)| held.upgrade().is_some_and(|held| held.ino != node.ino));
        if files.len() == FILES_MAX {
            files.pop_front();
        }
        files.push_back((Arc::downgrade(node), cred.clone()));
        debug_assert!(files.len() <= FILES_MAX, "no more files are remembered than the bound");
    }

    /// An application waits for the server.
    pub(super) fn link_used(&self, now: Monotonic) {
        self.last_use_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// When an application last waited for the server.
    pub(super) fn last_use(&self) -> Monotonic {
        Monotonic::from_nanos(self.last_use_ns.load(Ordering::Relaxed))
    }

    /// So many bytes were fetched.
    pub(super) fn filled(&self, bytes: u64) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes were fetched so far.
    pub(super) fn filled_bytes(&self) -> u64 {
        self.filled_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn candidates(&self) -> Vec<(Arc<Node>, Cred)> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().filter_map(|(node, cred)| Some((node.upgrade()?, cred.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_cache::{Cache, Limits};
    use larder_io::SimClock;
    use larder_vfs::{Handle, Time};

    use super::*;
    use crate::fixtures::file_of;
    use crate::journal::Known;
    use crate::node::Table;

    fn table() -> Table {
        let clock = Arc::new(SimClock::new());
        let cache = Cache::in_memory(clock.clone(), Limits::default()).unwrap();
        Table::new(cache, clock, 1 << 16)
    }

    fn node(table: &Table, number: u32) -> Arc<Node> {
        let begun = Monotonic::from_nanos(0);
        let known = || Known::described(file_of(Time::default()), 1, begun, Duration::ZERO);
        table.get_or_insert(&Handle::new(&number.to_be_bytes()), known).0
    }

    fn waiting(queue: &FillQueue) -> Vec<u64> {
        queue.candidates().iter().map(|(node, _)| node.ino.0).collect()
    }

    /// The file that was closed last is behind all others, and each is queued once; the oldest are
    /// dropped, and so are those whose nodes are gone.
    #[test]
    fn files_wait_in_the_order_of_their_last_close() {
        let (table, queue) = (table(), FillQueue::default());
        let nodes: Vec<_> = (0..FILES_MAX as u32 + 2).map(|number| node(&table, number)).collect();
        let mut model: Vec<u64> = Vec::new();
        for step in 0..1000_usize {
            let closed = &nodes[step * 7 % nodes.len()];
            queue.offer(closed, &Cred::new(u32::try_from(step).unwrap(), 0, &[]));
            model.retain(|ino| *ino != closed.ino.0);
            model.push(closed.ino.0);
            model.drain(..model.len().saturating_sub(FILES_MAX));
            if step % 97 == 0 {
                assert_eq!(waiting(&queue), model, "{step}");
            }
        }
        let last = queue.candidates().pop().unwrap();
        assert_eq!(last.1.uid, 999, "on behalf of who closed it last");
        drop((nodes, last, table));
        assert_eq!(waiting(&queue), []);
    }

    #[test]
    fn what_was_filled_and_when_the_link_was_used_is_remembered() {
        let queue = FillQueue::default();
        queue.filled(3);
        queue.filled(4);
        queue.link_used(Monotonic::from_nanos(9));
        assert_eq!((queue.filled_bytes(), queue.last_use()), (7, Monotonic::from_nanos(9)));
    }
}
