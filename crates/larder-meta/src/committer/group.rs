//! What the events of a group have written and what is to be answered, until the group is
//! committed.

use tokio::sync::oneshot;

use super::Finished;
use crate::engine::Writes;

/// The results of a group so far.
#[derive(Default)]
pub(super) struct Group {
    pub(super) writes: Writes,
    pub(super) finished: Vec<Finished>,
    /// How many of its transactions may be late.
    pub(super) late: u64,
    /// Whether another one must not be, or an answer promises what was committed before.
    pub(super) is_durable: bool,
    /// Whether it is committed even without writes: that renews the term for which the volume is
    /// ours.
    pub(super) renews: bool,
    /// The receiver of the server's end.
    pub(super) end: Option<oneshot::Sender<()>>,
}

/// How something may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lateness {
    /// There is nothing.
    Nothing,
    Late,
    Durable,
}

impl Group {
    /// A transaction has written something.
    pub(super) fn take(&mut self, mut writes: Writes, standing: Lateness) {
        self.writes.append(&mut writes);
        match standing {
            Lateness::Nothing => {}
            Lateness::Late => self.late += 1,
            Lateness::Durable => self.is_durable = true,
        }
    }

    /// Whether its commit syncs.
    pub(super) fn is_synced(&self) -> bool {
        let is_not_late = self.late == 0 && !self.writes.is_empty();
        self.is_durable || self.renews || is_not_late
    }
}
