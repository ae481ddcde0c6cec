//! A timer for tasks that is late by some tens of microseconds. Tokio's counts whole milliseconds
//! and rounds up, which would add two to a round trip of one; and the kernel's timers (timerfd) can
//! be awaited from safe code only by pretending that they are something else.
//!
//! One thread sleeps until the earliest time that a task waits for, and wakes that task.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::oneshot;

/// A timer for any number of tasks. When dropped, its thread ends; no task may be waiting then.
#[derive(Debug)]
pub(super) struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    waits: Mutex<Waits>,
    /// There is a new earliest time, or the end has come.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waits {
    /// The earliest on top. One that was given up stays until its time.
    by_time: BinaryHeap<Wait>,
    ended: bool,
}

#[derive(Debug)]
struct Wait {
    until: Instant,
    waiter: oneshot::Sender<()>,
}

impl Timer {
    /// # Errors
    /// If there are no more threads.
    pub(super) fn start() -> io::Result<Timer> {
        let shared = Arc::<Shared>::default();
        let thread = std::thread::Builder::new().name("link-timer".to_owned());
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Timer { shared, thread: Some(thread) })
    }

    /// Waits until `at`, never less; not at all if it has passed.
    pub(super) async fn until(&self, at: Instant) {
        if at <= Instant::now() {
            return;
        }
        let (waiter, woken) = oneshot::channel();
        self.shared.add(Wait { until: at, waiter });
        woken.await.expect("the timer outlives who waits for it");
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked it has printed that.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().expect("no holder panics")
    }

    fn add(&self, wait: Wait) {
        let mut waits = self.lock();
        let earliest = waits.by_time.peek().is_none_or(|earliest| wait.until < earliest.until);
        waits.by_time.push(wait);
        drop(waits);
        if earliest {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut waits = self.lock();
        while !waits.ended {
            let now = Instant::now();
            while waits.by_time.peek().is_some_and(|earliest| earliest.until <= now) {
                // A task that gave up need not be woken.
                let _ = waits.by_time.pop().map(|due| due.waiter.send(()));
            }
            let next = waits.by_time.peek().map(|wait| wait.until.saturating_duration_since(now));
            waits = match next {
                None => self.changed.wait(waits).expect("no holder panics"),
                Some(left) => self.changed.wait_timeout(waits, left).expect("no holder panics").0,
            };
        }
    }
}

/// The earlier is the greater, since a heap has the greatest on top.
impl Ord for Wait {
    fn cmp(&self, other: &Self) -> Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Wait {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Wait {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn block_on<F: Future>(work: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn each_is_woken_at_its_time_whatever_the_order() {
        let timer = Timer::start().unwrap();
        let start = Instant::now();
        let until = |ms| {
            let at = start + Duration::from_millis(ms);
            let timer = &timer;
            async move {
                timer.until(at).await;
                assert!(Instant::now() >= at, "{ms} ms came early");
            }
        };
        block_on(async {
            // Later than any busy machine would be.
            tokio::select! {
                biased;
                () = until(1_000_000) => panic!("the latest comes first"),
                ((), (), ()) = async { tokio::join!(until(60), until(20), until(0)) } => {}
            }
        });
    }

    #[test]
    fn a_wait_after_one_that_was_given_up_takes_its_time() {
        let timer = Timer::start().unwrap();
        block_on(async {
            let soon = Instant::now() + Duration::from_millis(20);
            tokio::select! {
                biased;
                // If the test itself was late.
                () = timer.until(soon) => assert!(Instant::now() >= soon),
                () = std::future::ready(()) => (),
            }
            timer.until(soon + Duration::from_millis(10)).await;
            assert!(Instant::now() >= soon + Duration::from_millis(10));
        });
    }
}
