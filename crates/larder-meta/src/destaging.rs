//! Tells the committer when bytes on memory disks are due on other disks ([`crate::destage`]), and
//! how many bytes these disks can hold.

use std::sync::Arc;
use std::time::Instant;

use larder_io::Clock;
use tokio::sync::{mpsc, oneshot, watch};

use crate::committer::Event;
use crate::resilvering::tell;

/// Runs until the committer has ended. `first` is when the first bytes are due, as the committer
/// publishes it.
pub(crate) async fn drive(
    clock: Arc<dyn Clock>,
    mut first: watch::Receiver<Option<Instant>>,
    queue: mpsc::WeakSender<Event>,
) {
    while is_due(&*clock, &mut first).await {
        let (waiter, done) = oneshot::channel();
        if !tell(&queue, Event::Due(waiter)).await {
            return;
        }
        // If the committer is gone, the next round ends.
        let _ = done.await;
    }
}

/// Waits until `first` has come, which the committer publishes. `false`: the committer has ended.
pub(crate) async fn is_due(
    clock: &dyn Clock,
    first: &mut watch::Receiver<Option<Instant>>,
) -> bool {
    loop {
        let at = *first.borrow_and_update();
        if at.is_some_and(|at| at <= clock.instant()) {
            return true;
        }
        let passed = async {
            match at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = first.changed() => {
                if changed.is_err() {
                    return false;
                }
            }
            () = passed => {}
        }
    }
}

/// Tells what disks report of themselves, and each change of it, until the disks are gone.
pub(crate) async fn tell_all<T: Clone>(
    mut reported: watch::Receiver<T>,
    queue: mpsc::WeakSender<Event>,
    event: fn(T) -> Event,
) {
    loop {
        let now = reported.borrow_and_update().clone();
        if !tell(&queue, event(now)).await || reported.changed().await.is_err() {
            return;
        }
    }
}
