//! Things in transit: they arrive in the order in which they were sent, each at its time, and there
//! are never more of them than there is room for.
//!
//! A line has one entrance and one exit. Room is taken before a thing enters and returned when what
//! came out of the exit is dropped, that is after it was handed on: a receiver that stalls fills
//! the line, and then the sender stalls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use super::timer::Timer;

/// The size of any thing in addition to its bytes, so that many small things fill the line as well.
const OVERHEAD_BYTES: usize = 64;

/// Where things enter. Dropped, it lets the exit run dry.
pub(super) struct Entrance<T> {
    sender: mpsc::UnboundedSender<Due<T>>,
    room: Arc<Room>,
}

/// Where things come out.
pub(super) struct Exit<T> {
    receiver: mpsc::UnboundedReceiver<Due<T>>,
}

/// A thing in transit.
pub(super) struct Due<T> {
    arrival: Instant,
    /// The thing.
    pub(super) thing: T,
    _taken: Taken,
}

/// Room in a line; given back when dropped.
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

/// A new line, empty.
pub(super) fn line<T>() -> (Entrance<T>, Exit<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Entrance { sender, room: Arc::default() }, Exit { receiver })
}

impl<T> Entrance<T> {
    /// Waits until there is room for `bytes` more in a line of at most `bytes_max`. A thing of any
    /// size may enter an empty line.
    pub(super) async fn room(&self, bytes: usize, bytes_max: usize) -> Taken {
        loop {
            match self.try_room(bytes, bytes_max) {
                Some(taken) => return taken,
                None => self.room.freed.notified().await,
            }
        }
    }

    fn try_room(&self, bytes: usize, bytes_max: usize) -> Option<Taken> {
        let bytes = bytes + OVERHEAD_BYTES;
        let fits = |used: usize| (used == 0 || used + bytes <= bytes_max).then_some(used + bytes);
        self.room.used_bytes.fetch_update(Relaxed, Relaxed, fits).ok()?;
        Some(Taken { room: Arc::clone(&self.room), bytes })
    }

    /// Sends a thing, which comes out at `arrival`, or after the things before it, if that is
    /// later. It is lost if the exit was dropped.
    pub(super) fn send(&self, thing: T, arrival: Instant, taken: Taken) {
        let _ = self.sender.send(Due { arrival, thing, _taken: taken });
    }
}

impl<T> Exit<T> {
    /// Waits for the next thing, and for its time. `None` after the entrance was dropped.
    pub(super) async fn next(&mut self, timer: &Timer) -> Option<Due<T>> {
        let due = self.receiver.recv().await?;
        timer.until(due.arrival).await;
        Some(due)
    }
}

#[derive(Default)]
struct Room {
    used_bytes: AtomicUsize,
    freed: Notify,
}

impl Drop for Taken {
    /// Wakes one waiter. If there is room for another, the next thing that comes out wakes that
    /// one; and there is a next thing, since the waiter that was woken has entered one.
    fn drop(&mut self) {
        self.room.used_bytes.fetch_sub(self.bytes, Relaxed);
        self.room.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn block_on<F: Future>(work: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn things_arrive_in_order_and_never_early() {
        block_on(async {
            let (entrance, mut exit) = line();
            let (timer, start) = (Timer::start().unwrap(), Instant::now());
            for (thing, ms) in [("first", 30), ("second", 10), ("third", 60)] {
                let taken = entrance.try_room(1, 1000).unwrap();
                entrance.send(thing, start + Duration::from_millis(ms), taken);
            }
            drop(entrance);
            for (thing, ms) in [("first", 30), ("second", 30), ("third", 60)] {
                assert_eq!(exit.next(&timer).await.unwrap().thing, thing);
                assert!(start.elapsed() >= Duration::from_millis(ms), "{thing} came early");
            }
            assert!(exit.next(&timer).await.is_none());
        });
    }

    #[test]
    fn a_full_line_has_no_room_until_something_has_come_out() {
        block_on(async {
            let (entrance, mut exit) = line();
            let timer = Timer::start().unwrap();
            let each = 1000 - OVERHEAD_BYTES;
            for _ in 0..2 {
                let taken = entrance.try_room(each, 2000).unwrap();
                entrance.send((), Instant::now(), taken);
            }
            assert!(entrance.try_room(1, 2000).is_none());
            let come = exit.next(&timer).await;
            assert!(entrance.try_room(1, 2000).is_none(), "it was not handed on yet");
            let (_taken, ()) = tokio::join!(entrance.room(each, 2000), async { drop(come) });
            assert!(entrance.try_room(1, 2000).is_none());
        });
    }

    #[test]
    fn a_thing_of_any_size_may_enter_an_empty_line() {
        block_on(async {
            let (entrance, _exit) = line::<()>();
            let taken = entrance.try_room(5000, 1000).unwrap();
            assert!(entrance.try_room(0, 1000).is_none());
            drop(taken);
            assert!(entrance.try_room(0, 1000).is_some());
        });
    }
}
