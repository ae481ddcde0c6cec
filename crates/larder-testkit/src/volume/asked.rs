//! What the process that serves the volume asks its metadata server.

use std::sync::mpsc;

use larder_meta::disks::ControlledDisks;
use larder_meta::{Activity, Metadata};
use larder_wire::capability::DiskId;

/// What the metadata server is asked, not by a client, and who waits for the answer.
#[derive(Debug)]
pub(super) enum Asked {
    /// To rotate the disks' keys: whether all disks were told.
    Rotate(mpsc::Sender<bool>),
    /// What it is doing.
    Activity(mpsc::Sender<Activity>),
    /// To let a disk leave.
    Remove(DiskId, mpsc::Sender<()>),
    /// What is wrong with the disks.
    Problems(mpsc::Sender<Vec<Option<String>>>),
}

impl Asked {
    pub(super) async fn answer(self, served: &Metadata, disks: &ControlledDisks) {
        // A caller that is gone does not wait.
        match self {
            Asked::Rotate(tell) => {
                let done = larder_meta::rotate(served, disks).await;
                let told = done.expect("it is served").disks;
                let _ = tell.send(told.iter().all(|(_, is_told)| *is_told));
            }
            Asked::Activity(tell) => {
                let _ = tell.send(served.activity().await);
            }
            Asked::Remove(disk, tell) => {
                served.remove_disk(disk).await.expect("others have room for what is on it");
                let _ = tell.send(());
            }
            Asked::Problems(tell) => {
                let states = disks.status().await;
                let _ = tell.send(states.into_iter().map(|state| state.problem).collect());
            }
        }
    }
}
