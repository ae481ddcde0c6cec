//! Whose turn it is to have the server make a file of what was set aside ([`super::beside`]).

use tokio::sync::{Mutex, MutexGuard, Notify};

/// Whose turn it is, and what the task waits for.
#[derive(Default)]
pub(crate) struct Placing {
    turn: Mutex<()>,
    bell: Notify,
}

impl Placing {
    /// There is something to do.
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits until there is something to do.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Waits until nobody else does it.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }
}
