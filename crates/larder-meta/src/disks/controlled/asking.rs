//! What all disks are asked or told at a time: how they do, whether they were started again, and
//! which epoch their keys have.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_wire::capability::{DiskId, KeyEpoch};
use tokio::sync::oneshot;

use super::super::{Acknowledged, DiskState, Keys};
use super::{ControlledDisks, Keeper, Order, Reach, lock};

/// How long all disks together may take to say how they do.
const STATUS_MAX: Duration = Duration::from_secs(3);
/// How long all disks together may take to answer that they have another key epoch.
const ROTATE_MAX: Duration = Duration::from_secs(5);

impl ControlledDisks {
    /// The status of each disk. Takes at most [`STATUS_MAX`], however many are away.
    pub async fn status(&self) -> Vec<DiskState> {
        let mut states = Vec::new();
        for (disk, keeper, status) in self.ask_all(STATUS_MAX, Order::Status).await {
            let status = status.flatten();
            let (is_there, problem) = match &*keeper.reach.borrow() {
                Reach::Ready => (true, keeper.data.problem()),
                Reach::Unknown => (false, None),
                Reach::Away(why) => (false, Some(why.clone())),
            };
            let (unwanted, public) = (lock(&keeper.known).unwanted(), keeper.public);
            states.push(DiskState { disk, public, is_there, problem, unwanted, status });
        }
        states
    }

    /// Tells the disks this key epoch, which is on record. Returns which of them have it: within
    /// [`ROTATE_MAX`], however many are away. The others are told when they are reached; they trust
    /// nothing when their [`TrustInterval`](super::TrustInterval) is over, and until they are told.
    /// From then on no disk accepts a capability of an epoch before the last two.
    pub async fn rotate(&self, key: KeyEpoch) -> Vec<(DiskId, bool)> {
        {
            let mut keys = self.keys_mut();
            if keys.epoch < key {
                *keys = Keys { epoch: key, since_s: self.clock.wall().sec };
            }
        }
        self.all().values().for_each(|keeper| lock(&keeper.known).rotate(key));
        let asked = self.ask_all(ROTATE_MAX, Order::Rotate).await;
        asked.into_iter().map(|(disk, _, told)| (disk, told == Some(true))).collect()
    }

    /// Gives an order to each disk. Returns, within this time, which disk has answered what.
    pub(super) async fn ask_all<T>(
        &self,
        within: Duration,
        order: impl Fn(oneshot::Sender<T>) -> Order,
    ) -> Vec<(DiskId, Keeper, Option<T>)> {
        let until = self.clock.instant() + within;
        let mut asked = Vec::new();
        for (disk, keeper) in &*self.all() {
            let (done, is_done) = oneshot::channel();
            // One that has no room for more orders does not answer either.
            let is_asked = keeper.orders.try_send(order(done)).is_ok();
            asked.push((*disk, keeper.clone(), is_asked.then_some(is_done)));
        }
        let mut answers = Vec::new();
        for (disk, keeper, is_done) in asked {
            let answer = match is_done {
                Some(is_done) => {
                    let left = until.saturating_duration_since(self.clock.instant());
                    let answered = self.clock.timeout(left, is_done).await;
                    answered.ok().and_then(Result::ok)
                }
                None => None,
            };
            answers.push((disk, keeper, answer));
        }
        answers
    }

    /// Refreshes the memory disks at once: those that were started again are known then.
    pub(super) fn ask_memory(&self) -> Acknowledged {
        let mut memory = BTreeMap::new();
        for (disk, keeper) in &*self.all() {
            if keeper.is_memory {
                memory.insert(*disk, ());
            }
        }
        self.order(memory, |(), done| Order::Look(done))
    }
}
