//! The write engine: sends unsent bytes for which no caller waits, when they are due.
//!
//! Bytes that become unsent are at the server within [`crate::Options::unsent_age_max`], whether
//! their writer closes the file or not, and whether the daemon or the kernel wrote them. One task
//! waits for the due times of all files ([`super::unsent`]); separate tasks send what is due,
//! several files at once, first come, first served.

use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_vfs::{Error, Ino, Result};

use super::unsent::Event;
use crate::core::Core;
use crate::node::Node;

/// How often a task whose client is gone notices.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

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
            engine.sleep_until(&*clock, until).await;
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
    /// Once this much of a file is unsent, it is sent while the file is still being written.
    pub(crate) fn send_early(self: &Arc<Self>, node: &Arc<Node>) {
        let actions = self.apply(node.ino, &mut node.state(), Event::TooMuch);
        if actions.send {
            self.send_later(node);
        }
    }

    /// Sends in the background, once its turn in the queue has come. Begins what [`Event::Ended`]
    /// ends.
    fn send_later(self: &Arc<Self>, node: &Arc<Node>) {
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            let permit = core.engine.permit(core.file(&node).unsent().bytes).await;
            let sent = core.upload_later(&node).await;
            drop(permit);
            let sent = core.after_upload(&node, sent).await;
            core.sent_later(&node, sent).await;
        });
    }

    /// Processes the result of a write-back in the background.
    async fn sent_later(&self, node: &Node, sent: Result<()>) {
        let is_written = self.is_written(node);
        if sent == Err(Error::Changed) && is_written {
            self.unsent_event(node.ino, &mut node.state(), Event::Failed(Error::Changed));
        }
        let ended = Event::Ended { sent, is_written };
        let actions = self.apply(node.ino, &mut node.state(), ended);
        if let (Err(error), true) = (sent, actions.set_aside) {
            self.set_aside(node, error).await;
        }
    }
}
