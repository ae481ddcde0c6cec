//! Carries out the tasks of [`crate::resilver`], at a limited rate.

use std::sync::Arc;
use std::time::Duration;

use larder_io::Clock;
use tokio::sync::{mpsc, oneshot};

use crate::committer::{Event, NextStale};
use crate::disks::{Disks, Outcome};
use crate::live::Doing;

/// Pauses while there is nothing to do, or nothing can be done: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

/// How long to wait for a disk that clears blocks before others get their turn.
const CLEAR_MAX: Duration = Duration::from_secs(2);

/// Carries out tasks, copying no more than `rate` bytes a second, until the receiver of events is
/// gone.
pub(crate) async fn drive(
    disks: Arc<dyn Disks>,
    clock: Arc<dyn Clock>,
    rate: u64,
    queue: mpsc::WeakSender<Event>,
) {
    let mut pause = PAUSES[0];
    loop {
        let (asked, next) = oneshot::channel();
        if !tell(&queue, Event::NextStale(asked)).await {
            return;
        }
        match next.await.unwrap_or(NextStale::Rest) {
            NextStale::Ask => {}
            NextStale::Rest => {
                clock.sleep_until(clock.instant() + pause).await;
                pause = PAUSES[1].min(pause * 2);
            }
            NextStale::Do(disk, doing) => match *doing {
                Doing::Clear { bytes } => {
                    let (cleared, queue) = (disks.clear(vec![(disk, bytes)]), queue.clone());
                    let clearing = tokio::spawn(async move {
                        cleared.await;
                        tell(&queue, Event::TaskEnded(disk, true)).await;
                    });
                    pause = PAUSES[0];
                    // A disk that goes away during this may continue when it is back. Until then
                    // others are brought up to date.
                    let _ = clock.timeout(CLEAR_MAX, clearing).await;
                }
                Doing::Copy { from, to, bytes } => {
                    let length = bytes.end - bytes.start;
                    let due =
                        clock.instant() + Duration::from_secs_f64(length as f64 / rate as f64);
                    let copied = disks.copy(from, to, bytes.clone(), bytes.start).await;
                    let is_done = copied == Outcome::Done;
                    if !tell(&queue, Event::TaskEnded(disk, is_done)).await {
                        return;
                    }
                    pause = PAUSES[0];
                    clock.sleep_until(if is_done { due } else { clock.instant() + pause }).await;
                }
            },
        }
    }
}

/// Sends the committer an event. Returns whether the receiver of events still exists; this keeps it
/// no longer than the sending takes.
pub(crate) async fn tell(queue: &mpsc::WeakSender<Event>, event: Event) -> bool {
    match queue.upgrade() {
        Some(queue) => queue.send(event).await.is_ok(),
        None => false,
    }
}
