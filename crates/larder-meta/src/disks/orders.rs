//! Orders to one disk that wait for those before them.
//!
//! Those of one kind that have come while another is carried out go together, because each costs
//! the disk a call and maybe a sync. Revocations come first: callers wait for them, and nothing is
//! ordered to be cleared before the capabilities on it are revoked.

use std::ops::Range;

use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::disk::words::StatusDone;
use tokio::sync::{mpsc, oneshot};

/// Most orders that are looked through for some that go together.
const TAKEN_MAX: usize = 1024;

/// Those that wait until an order is carried out.
pub(super) type Waiters = Vec<oneshot::Sender<()>>;

/// An order.
#[derive(Debug)]
pub(super) enum Order {
    Revoke(Vec<(GroupId, CapabilityId)>, Waiters),
    Clear(Vec<Range<u64>>, Waiters),
    Flush(oneshot::Sender<()>),
    Void(oneshot::Sender<()>),
    Status(oneshot::Sender<Option<StatusDone>>),
    /// It has another key epoch. Answers whether the disk was told.
    Rotate(oneshot::Sender<bool>),
    /// Its store is on record: it is refreshed at once.
    Refresh,
    /// It is refreshed at once: it may be in another boot.
    Look(oneshot::Sender<()>),
    /// It is not the volume's any more.
    Retire,
}

/// The orders that wait.
#[derive(Debug)]
pub(super) struct Orders {
    coming: mpsc::Receiver<Order>,
    /// Those that have come.
    taken: Vec<Order>,
}

impl Orders {
    pub(super) fn new(coming: mpsc::Receiver<Order>) -> Orders {
        Orders { coming, taken: Vec::new() }
    }

    /// The next order, with all that go together with it. `None` when no more can come. Whoever
    /// does not wait for the end of this loses no order.
    pub(super) async fn next(&mut self) -> Option<Order> {
        if self.taken.is_empty() {
            self.taken.push(self.coming.recv().await?);
        }
        if let Some(revocations) = self.revocations() {
            return Some(revocations);
        }
        let mut next = self.taken.remove(0);
        if let Order::Clear(all, waiters) = &mut next {
            for order in self.taken.extract_if(.., |order| matches!(order, Order::Clear(..))) {
                if let Order::Clear(blocks, waiting) = order {
                    all.extend(blocks);
                    waiters.extend(waiting);
                }
            }
        }
        Some(next)
    }

    /// All revocations that have come, as one.
    pub(super) fn revocations(&mut self) -> Option<Order> {
        while self.taken.len() < TAKEN_MAX
            && let Ok(order) = self.coming.try_recv()
        {
            self.taken.push(order);
        }
        let (mut all, mut waiters) = (Vec::new(), Waiters::new());
        for order in self.taken.extract_if(.., |order| matches!(order, Order::Revoke(..))) {
            if let Order::Revoke(names, waiting) = order {
                all.extend(names);
                waiters.extend(waiting);
            }
        }
        (!waiters.is_empty()).then_some(Order::Revoke(all, waiters))
    }
}

/// It is done. Those that are gone do not wait.
pub(super) fn done(waiters: Waiters) {
    waiters.into_iter().for_each(|waiter| _ = waiter.send(()));
}
