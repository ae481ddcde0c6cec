//! Closed files that this machine's disk is to have soon.
//!
//! A class may give this machine's disk a time instead of having close wait for it
//! ([`larder_class::Class::local_within`]). Then a close only enters the file here. One task keeps
//! all files that are entered when the first time is over, many at once, so that they share syncs
//! of the disk: a program that closes file after file waits for none. What is sent or removed
//! before that costs no sync.
//!
//! Times are counted from the first close. Names that were made meanwhile are kept with the files.

use std::sync::Arc;
use std::time::Duration;

use larder_cache::BegunKeeping;
use larder_class::Class;
use larder_vfs::{Deferring, Ino};
use tokio::task::JoinSet;

use super::engine::LOOK_EVERY;
use crate::core::{Core, blocking};
use crate::node::Node;

/// Most files whose records are made at the same time.
const BEGUN_AT_ONCE: usize = 16;

/// What was begun for a file as it was at an entry.
enum Begun {
    /// It has nothing to keep.
    Nothing(Option<u64>),
    /// It is not kept.
    Refused(Option<u64>),
    /// It is on record, which is not durable yet.
    Record(Option<u64>, BegunKeeping),
}

/// Starts the task of a client; it ends with the client.
pub(crate) fn start(core: &Arc<Core>) {
    let (soon, clock, core) = (core.keep_soon.clone(), core.clock.clone(), Arc::downgrade(core));
    tokio::spawn(async move {
        loop {
            let now = clock.instant();
            let (due, next) = soon.take_due(now);
            let Some(core) = core.upgrade() else { return };
            if let Some(files) = due {
                core.keep_all(files).await;
                continue;
            }
            drop(core);
            let latest = now + LOOK_EVERY;
            let until = next.map_or(latest, |next| next.min(latest));
            soon.sleep_until(&*clock, until).await;
        }
    });
}

impl Core {
    /// A file of this class was closed: this machine's disk is to have it within the time that the
    /// class gives it, if close does not wait for that.
    pub(crate) fn keep_closed(&self, node: &Node, class: &Class) {
        if let Some(within) = class.local_within().filter(|_| self.has_unsent(node)) {
            self.keep_soon.enter(Some(node.ino), self.clock.instant() + within);
        }
    }

    /// The same for the names that were made here.
    pub(crate) fn keep_names_within(&self, within: Duration) {
        self.keep_soon.enter(None, self.clock.instant() + within);
    }

    /// The record of an entered file comes before what is recorded next: a crash of the machine
    /// never leaves the file under its next name without its bytes. Waits for a sync of a long file
    /// only.
    pub(crate) async fn keep_before_name(&self, node: &Arc<Node>) {
        if self.keep_soon.entry(node.ino).is_some()
            && let Begun::Refused(_) = self.begin_one(node).await
        {
            tracing::debug!(ino = node.ino.0, "a file gets a name before this disk has it");
        }
    }

    /// Before names that were made here are made at the server since another client looks for them:
    /// this disk has what is entered. So no crash of this machine leaves the server with the name
    /// of a closed file whose bytes are lost. Waits for the disk.
    pub(crate) async fn keep_before_names(&self) {
        let entered = self.keep_soon.all();
        for node in entered.iter().filter_map(|ino| self.table.get(*ino)) {
            self.keep_before_name(&node).await;
        }
        if let Some(here) = self.remote.deferring().filter(|_| !entered.is_empty())
            && let Err(error) = Deferring::keep(here).await
        {
            tracing::warn!(%error, "names go to the server before this machine's disk has their files");
        }
    }

    /// Keeps everything that is entered, at the end of a mount that leaves something unsent.
    pub(crate) async fn keep_entered(self: &Arc<Self>) {
        self.keep_all(self.keep_soon.all()).await;
    }

    /// Keeps files and all names. Files that this machine's disk does not take are sent.
    async fn keep_all(self: &Arc<Self>, files: Vec<Ino>) {
        let (mut beginning, mut begun) = (JoinSet::new(), Vec::new());
        for ino in files {
            let Some(node) = self.table.get(ino) else {
                // What left memory has nothing unsent.
                self.keep_soon.kept(ino, self.keep_soon.entry(ino));
                continue;
            };
            if beginning.len() == BEGUN_AT_ONCE {
                begun.extend(beginning.join_next().await);
            }
            let core = self.clone();
            let one = async move { (node.clone(), core.begin_one(&node).await) };
            beginning.spawn_on(one, &self.runtime);
        }
        while let Some(one) = beginning.join_next().await {
            begun.push(one);
        }
        // One sync of the disk has all of them.
        for (node, one) in begun.into_iter().flatten() {
            let (entry, kept) = match one {
                Begun::Nothing(entry) => (entry, true),
                Begun::Refused(entry) => (entry, false),
                Begun::Record(entry, record) => {
                    (entry, matches!(blocking(|| record.wait()).await, Ok(Ok(()))))
                }
            };
            self.keep_soon.kept(node.ino, entry);
            if !kept && self.has_unsent(&node) {
                self.leave_unsent(&node, Duration::ZERO);
            }
        }
        let Some(here) = self.remote.deferring() else { return };
        if let Err(error) = Deferring::keep(here).await {
            tracing::warn!(%error, "names that were made here are not on this machine's disk");
        }
    }

    async fn begin_one(&self, node: &Arc<Node>) -> Begun {
        let entry = self.keep_soon.entry(node.ino);
        if !self.has_unsent(node) {
            return Begun::Nothing(entry);
        }
        let record = async {
            let _transfer = node.transfer.begin(None).await?;
            let file = self.file(node);
            self.collect(node, &file).await?;
            self.begin_keeping(node, file, None).await
        };
        match record.await {
            Ok(Some(record)) => Begun::Record(entry, record),
            Ok(None) | Err(_) => Begun::Refused(entry),
        }
    }
}
