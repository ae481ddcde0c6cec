//! The task that makes at the server what is due.

use std::time::Duration;

use crate::shared::Shared;
use crate::which::Which;

/// After a failure the server is not asked for this long.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// How soon it is noticed that the server is back.
const AWAY_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Shared {
    /// The server is back: what is known of its directories must be checked with it.
    async fn come_back(&self, stood_in: u64) {
        let dirs = {
            let mut state = self.state();
            // What was acknowledged although its class promises more is late.
            if self.licence.offline {
                state.all_is_due(self.clock.instant());
            }
            state.forget_known()
        };
        for dir in dirs {
            self.distrust(&dir).await;
        }
        {
            let _turn = self.turn.lock().await;
            // What is not resolved now is, before the next change is made there.
            let _ = self.resolve_asked(None).await;
        }
        self.set_checked(stood_in);
    }
}

/// Makes at the server what is due, as long as another owner of `shared` exists.
pub(crate) async fn run(shared: std::sync::Weak<Shared>) {
    while let Some(held) = shared.upgrade() {
        let (clock, alarm) = (held.clock.clone(), held.alarm.clone());
        let due = held.state().next_due();
        if held.is_away() {
            drop(held);
            clock.sleep(AWAY_AGAIN_AFTER).await;
            continue;
        }
        if let Some(stood_in) = held.unchecked() {
            held.come_back(stood_in).await;
            continue;
        }
        let now = clock.instant();
        let is_due = due.is_some_and(|due| due <= now);
        let is_late = is_due && held.replay_limited(&Which::Due(now)).await.is_err();
        drop(held);
        if is_late {
            clock.sleep(RETRY_AFTER).await;
        } else if !is_due {
            let latest = now + RETRY_AFTER;
            alarm.sleep_until(&*clock, due.map_or(latest, |due| due.min(latest))).await;
        }
    }
}
