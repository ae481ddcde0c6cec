//! [`Alarm`]: wakes a task when something is due, and not each time something will be.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::Clock;

/// The alarm of one task, which looks what is due, sleeps until the next thing is, and looks again.
/// Whoever adds a thing sets the alarm, and wakes the task only if that would sleep too long:
/// waking a thread for each of many short files costs as much as making them.
#[derive(Debug, Default)]
pub struct Alarm {
    /// Until when the task sleeps; `None`: it is awake, and looks before it sleeps.
    asleep: Mutex<Option<Instant>>,
    rung: Notify,
}

impl Alarm {
    /// Something is due at `at`, and is there for the task to see. Does not block.
    pub fn set(&self, at: Instant) {
        if self.asleep().is_none_or(|until| at < until) {
            self.ring();
        }
    }

    /// Has the task look at once. Does not block.
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// Sleeps until then, or until the alarm rings, if it did not ring since the last sleep. What
    /// was set before the caller last looked may end the sleep, too.
    pub async fn sleep_until(&self, clock: &dyn Clock, until: Instant) {
        *self.asleep() = Some(until);
        let _awake = Awake(self);
        tokio::select! {
            () = clock.sleep_until(until) => {}
            () = self.rung.notified() => {}
        }
    }

    fn asleep(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes the end of a sleep, also of one that is given up.
struct Awake<'a>(&'a Alarm);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        *self.0.asleep() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::SimClock;

    fn is_over(sleep: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        sleep.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_is_due_earlier_ends_a_sleep() {
        let (clock, alarm) = (SimClock::new(), Alarm::default());
        let until = clock.instant() + 10 * SECOND;
        let mut sleep = pin!(alarm.sleep_until(&clock, until));
        assert!(!is_over(sleep.as_mut()));
        alarm.set(until + SECOND);
        alarm.set(until);
        assert!(!is_over(sleep.as_mut()), "it wakes by then anyway");
        alarm.set(until - SECOND);
        assert!(is_over(sleep.as_mut()));
    }

    #[test]
    fn a_sleep_ends_at_its_time_and_when_the_alarm_rings() {
        let (clock, alarm) = (SimClock::new(), Alarm::default());
        let until = clock.instant() + SECOND;
        let mut sleep = pin!(alarm.sleep_until(&clock, until));
        assert!(!is_over(sleep.as_mut()));
        clock.advance(SECOND);
        assert!(is_over(sleep.as_mut()));
        let mut next = pin!(alarm.sleep_until(&clock, until + SECOND));
        assert!(!is_over(next.as_mut()));
        alarm.ring();
        assert!(is_over(next.as_mut()));
    }

    /// The task has looked, and does not sleep yet; or its sleep was given up.
    #[test]
    fn what_is_set_while_the_task_is_awake_ends_its_next_sleep() {
        let (clock, alarm) = (SimClock::new(), Alarm::default());
        let until = clock.instant() + SECOND;
        for is_given_up in [false, true] {
            if is_given_up {
                let mut sleep = Box::pin(alarm.sleep_until(&clock, until));
                assert!(!is_over(sleep.as_mut()));
            }
            alarm.set(until + SECOND);
            let mut sleep = pin!(alarm.sleep_until(&clock, until));
            assert!(is_over(sleep.as_mut()), "the task looks again");
            let mut sleep = pin!(alarm.sleep_until(&clock, until));
            assert!(!is_over(sleep.as_mut()), "and then sleeps");
        }
    }
}
