//! The disks' keys get another epoch.

use larder_wire::capability::KeyEpoch;
use tokio::sync::oneshot;

use super::waiting::Lateness;
use super::{Committer, Ended, Finished, Group};
use crate::engine::{EngineError, View};
use crate::store::Txn;
use crate::volume::{VolumeError, keys};

/// Waits until another key epoch is on record.
pub(crate) type KeysWaiter = oneshot::Sender<Result<KeyEpoch, VolumeError>>;

impl Committer {
    /// Puts another key epoch on record, and answers when that is durable: only then may a disk be
    /// told, so that the next server uses none that a disk knows already.
    pub(super) fn rotate_keys(&mut self, view: &dyn View, group: &mut Group, waiter: KeysWaiter) {
        let mut txn = Txn::new(view, &group.writes);
        let rotated = match self.failed {
            Some(status) => Err(EngineError::Failed(format!("{status:?}")).into()),
            None => keys::rotate(&mut txn),
        };
        match rotated {
            Ok(key) => {
                let (writes, _) = txn.finish();
                group.take(writes, Lateness::Durable);
                let nobody = Finished::nobody_asked(Ended::default());
                group.finished.push(Finished { keys: Some((waiter, key)), ..nobody });
            }
            // A caller that is gone does not wait.
            Err(error) => drop(waiter.send(Err(error))),
        }
    }
}
