//! How long a caller waits for an answer of the server that it can do without.
//!
//! Where this machine may answer in the server's place, a caller who opens a file that is cached
//! whole waits a moment for the server, and is then answered from what is held. The question goes
//! on without its caller: so a silent server is noticed, and an answer that comes late is taken in.
//! While one is late, others are not asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Least wait. A caller notices a longer one.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// On a slow link: this many times as long as recent answers took.
const ANSWERS: u32 = 4;
/// By which part of itself the time of answers falls with each one that is faster.
const FALLS_BY: u64 = 8;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// Questions whose callers were answered without the server.
    late: AtomicU32,
    /// How long recent answers took, in nanoseconds: the slowest, which is slowly forgotten.
    took_ns: AtomicU64,
}

impl Patience {
    /// Whether such a question is out.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Acquire) > 0
    }

    /// How long a caller waits.
    pub(crate) fn wait(&self) -> Duration {
        let took = Duration::from_nanos(self.took_ns.load(Ordering::Relaxed));
        (took * ANSWERS).max(WAIT_MIN)
    }

    /// An answer came in time.
    pub(crate) fn answered(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.took_ns.load(Ordering::Relaxed);
        self.took_ns.store(took.max(before - before / FALLS_BY), Ordering::Relaxed);
    }
}

/// A question whose caller was answered without the server, until it ends.
pub(crate) struct Late(Arc<Patience>);

impl Late {
    pub(crate) fn begin(patience: &Arc<Patience>) -> Late {
        patience.late.fetch_add(1, Ordering::AcqRel);
        Late(patience.clone())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second at least; more after slow answers, until many fast ones followed.
    #[test]
    fn the_wait_follows_the_slowest_recent_answer() {
        let patience = Patience::default();
        let ms = Duration::from_millis;
        for took in [1, 10, 249] {
            patience.answered(ms(took));
            assert_eq!(patience.wait(), WAIT_MIN);
        }
        patience.answered(ms(600));
        assert_eq!(patience.wait(), ms(2400));
        let mut before = patience.wait();
        for _ in 0..7 {
            patience.answered(ms(1));
            assert!(patience.wait() <= before);
            before = patience.wait();
        }
        assert_eq!(patience.wait(), WAIT_MIN);
    }
}
