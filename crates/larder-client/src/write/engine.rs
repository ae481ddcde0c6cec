//! The engine: sends unsent bytes that nobody waits for, when their time has come.
//!
//! What became unsent is at the server within [`crate::Options::unsent_age_max`], whether its writer closes the
//! file or not, and whether it was written here or by way of the kernel. One task waits for the times of all files
//! ([`super::unsent`]); what is due is sent by tasks of its own, several files at once, first come, first served.

use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_vfs::{Ino, Result};

use super::unsent::{Actions, Context, Event};
use crate::core::Core;
use crate::node::{Node, State};

/// How often an engine whose client is gone notices.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Starts the engine of a client; it ends with the client.
pub(crate) fn start(core: &Arc<Core>) {
    let (engine, clock, core) = (core.engine.clone(), core.clock.clone(), Arc::downgrade(core));
    tokio::spawn(async move {
        loop {
            let now = clock.instant();
            let (due, next) = engine.take_due(now);
            if send_due(&core, due).is_none() {
                return;
            }
            let latest = now + LOOK_EVERY;
            let until = next.map_or(latest, |next| next.min(latest));
            tokio::select! {
                () = clock.sleep_until(until) => {}
                () = engine.earlier() => {}
            }
        }
    });
}

/// `None` if the client is gone.
fn send_due(core: &Weak<Core>, due: Vec<Ino>) -> Option<()> {
    let core = core.upgrade()?;
    for node in due.into_iter().filter_map(|ino| core.table.get(ino)) {
        let actions = core.apply(node.ino, &mut node.state(), Event::Due);
        if actions.send {
            core.send_later(&node);
        }
    }
    Some(())
}

impl Core {
    /// Tells what happened to the unsent data of a file, under the node's lock, and does what follows at once: the engine
    /// learns the time to go, the session log what the next process is to know, the kernel that its pages are of no
    /// version.
    pub(crate) fn unsent_event(&self, ino: Ino, state: &mut State, event: Event<'_>) {
        let actions = self.apply(ino, state, event);
        debug_assert!(!actions.send && !actions.set_aside, "{event:?} is not the engine's");
    }

    /// The same. What takes longer is left to the caller: [`Actions::send`] and [`Actions::set_aside`].
    fn apply(&self, ino: Ino, state: &mut State, event: Event<'_>) -> Actions {
        let before = state.unsent().schedule();
        let context = Context {
            kernel_writes: state.opens().bypassing(),
            now: self.clock.instant(),
            age: self.options.unsent_age_max,
        };
        let actions = state.unsent_mut().apply(event, context);
        self.engine.replan(ino, before, state.unsent().schedule());
        if actions.record {
            self.note_unfinished(ino, state);
        }
        if actions.drop_pages {
            state.opens_mut().drop_pages();
            self.invalidate(ino);
        }
        actions
    }

    /// Nobody will send what is unsent of a file: the engine does, after `wait`, again and again for as long as the
    /// server is out of reach. What it refuses then is set aside.
    pub(crate) fn leave_unsent(&self, node: &Node, wait: Duration) {
        self.unsent_event(node.ino, &mut node.state(), Event::Left { wait });
    }

    /// So much of a file is unsent that it goes while it is still being written.
    pub(crate) fn send_early(self: &Arc<Self>, node: &Arc<Node>) {
        let actions = self.apply(node.ino, &mut node.state(), Event::TooMuch);
        if actions.send {
            self.send_later(node);
        }
    }

    /// Sends without anybody waiting, once there is a place. Begins what [`Event::Ended`] ends.
    fn send_later(self: &Arc<Self>, node: &Arc<Node>) {
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            let place = core.engine.place().await;
            let sent = core.upload_later(&node).await;
            drop(place);
            core.sent_later(&node, sent).await;
        });
    }

    /// Draws the conclusions of a write-back for which nobody waited.
    async fn sent_later(&self, node: &Node, sent: Result<()>) {
        let is_written = self.is_written(node);
        let ended = Event::Ended { sent, is_written };
        let actions = self.apply(node.ino, &mut node.state(), ended);
        if let (Err(error), true) = (sent, actions.set_aside) {
            self.set_aside(node, error).await;
        }
    }
}
