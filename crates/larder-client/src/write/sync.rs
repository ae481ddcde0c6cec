//! Sends unsent data on behalf of a caller that waits for it: of some files, or of all.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{Deferred, Deferring, Error, Ino, Result};
use tokio::task::JoinSet;

use crate::class::Durability;
use crate::client::Client;
use crate::core::Core;
use crate::node::Node;

/// How long an unmount waits for bytes on their way from the server to the cache.
const LANDING_WAIT: Duration = Duration::from_secs(1);

/// What the server lacks of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsentTotal {
    /// How many files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// There may be fewer: for files that the kernel writes itself the whole size is counted.
    pub is_bound: bool,
    /// For how long the oldest byte has been unsent; for what an earlier process left, since this
    /// one started.
    pub oldest: Option<Duration>,
}

/// A file of which the server lacks something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaved {
    /// Which.
    pub ino: Ino,
    /// What the server lacks of it.
    pub total: UnsentTotal,
    /// How durable it is, and when the rest is sent.
    pub durability: Durability,
    /// The failure of the last attempt, if no caller was told of it yet.
    pub failure: Option<Error>,
}

impl Client {
    /// Each file of which the server lacks something, as [`Client::unsent`] counts it, in the order
    /// in which they will be sent. Sends no request.
    pub fn unsaved(&self) -> Vec<Unsaved> {
        let one = |node: Arc<Node>| {
            let unsent = self.core.file(&node).unsent();
            Unsaved {
                ino: node.ino,
                total: UnsentTotal {
                    files: 1,
                    bytes: unsent.bytes,
                    is_bound: unsent.is_bound,
                    oldest: self.core.unsent_for(&node),
                },
                durability: self.core.durability(&node),
                failure: node.state().unsent().failure(),
            }
        };
        let files = self.core.with_unsent(&|_| true).into_iter().map(one);
        let mut unsaved: Vec<_> = files.filter(|file| file.total.bytes > 0).collect();
        let mut known: HashSet<Ino> = unsaved.iter().map(|file| file.ino).collect();
        for (node, name) in self.core.names_to_tell(&|ino| !known.contains(&ino)) {
            // A file has an entry for each of its names.
            if !known.insert(node.ino) {
                continue;
            }
            let file = one(node);
            let total = UnsentTotal { files: 1, ..UnsentTotal::default() };
            let failure = file.failure.or(name.failure);
            unsaved.push(Unsaved { total, failure, ..file });
        }
        unsaved.sort_by_key(|file| (file.durability.due, file.ino));
        unsaved
    }

    /// What the server lacks of the files that are `wanted`, including files that are open, or that
    /// the kernel writes itself. Sends no request.
    pub fn unsent(&self, wanted: &(dyn Fn(Ino) -> bool + Sync)) -> UnsentTotal {
        let mut total = UnsentTotal::default();
        let mut counted = HashSet::new();
        for node in self.core.with_unsent(wanted) {
            let unsent = self.core.file(&node).unsent();
            counted.extend((unsent.bytes > 0).then_some(node.ino));
            total.files += u64::from(unsent.bytes > 0);
            total.bytes += unsent.bytes;
            total.is_bound |= unsent.is_bound;
            if unsent.bytes > 0 {
                total.oldest = total.oldest.max(self.core.unsent_for(&node));
            }
        }
        let names = self.core.names_to_tell(&|ino| wanted(ino) && !counted.contains(&ino));
        let due = names.iter().filter(|(_, name)| name.due.is_some());
        total.files += due.map(|(node, _)| node.ino).collect::<HashSet<_>>().len() as u64;
        total
    }

    /// Sends what is unsent of the files that are `wanted` to the server's disk, several files at
    /// once, within the limit on bytes per second ([`crate::Options::rate`]): it may be what has
    /// waited for a day. Data written in the meantime may be left. Waits as long as the server
    /// takes, within its limits.
    ///
    /// # Errors
    /// The first failure; the other files were tried too.
    pub async fn sync(&self, wanted: &(dyn Fn(Ino) -> bool + Sync)) -> Result<()> {
        self.send(wanted, true).await
    }

    async fn send(&self, wanted: &(dyn Fn(Ino) -> bool + Sync), is_limited: bool) -> Result<()> {
        // Names too: those of all files, since they depend on each other. They are due before the
        // first byte goes, so each directory gets them in their order.
        let names = self.core.remote.deferring().map(|here| match is_limited {
            true => here.replay_limited(),
            false => here.replay(None),
        });
        let mut sending = JoinSet::new();
        for node in self.core.with_unsent(wanted) {
            let core = self.core.clone();
            sending.spawn(async move {
                let _permit = core.engine.permit(core.file(&node).unsent().bytes).await;
                let sent = match is_limited {
                    true => core.upload_limited(&node).await,
                    false => core.upload(&node, core.deadline()).await,
                };
                let sent = core.after_upload(&node, sent).await;
                // It is gone at the server, and nobody who wrote it is left to be told.
                if sent == Err(Error::Stale) && !core.is_written(&node) {
                    core.set_aside(&node, Error::Stale).await;
                }
                sent
            });
        }
        let mut result = Ok(());
        if let Some(names) = names {
            result = names.await;
        }
        while let Some(sent) = sending.join_next().await {
            result = result.and(sent.unwrap_or(Err(Error::Io)));
        }
        // What met another client's changes on the way.
        result.and(self.core.place_all().await)
    }

    /// Brings what close has left to this machine's disk, before a process ends that leaves it to
    /// the next one. Waits for the disk.
    pub async fn keep_unsent(&self) {
        self.core.keep_entered().await;
    }

    /// [`Client::sync`] of all files, at the end of a mount, without a limit on bytes per second:
    /// lets what was just read reach the cache too, for at most a second.
    ///
    /// # Errors
    /// As [`Client::sync`].
    pub async fn write_back_all(&self) -> Result<()> {
        let result = Box::pin(self.send(&|_| true, false)).await;
        let mut in_air = self.core.in_air.subscribe();
        let landed = in_air.wait_for(|flights| *flights == 0);
        if self.core.clock.timeout(LANDING_WAIT, landed).await.is_err() {
            tracing::info!("some of what was read last is not in the cache");
        }
        result
    }
}

impl Core {
    /// Files whose names the server does not have.
    fn names_to_tell(&self, wanted: &dyn Fn(Ino) -> bool) -> Vec<(Arc<Node>, Deferred)> {
        let all = self.remote.deferring().map(Deferring::deferred).unwrap_or_default();
        let node = |name: Deferred| {
            let ino = Ino(self.cache.number_of(name.file.as_bytes())?.0);
            Some((self.table.get(ino).filter(|_| wanted(ino))?, name))
        };
        all.into_iter().filter_map(node).collect()
    }

    /// For how long the oldest byte of a file has been unsent.
    fn unsent_for(&self, node: &Node) -> Option<Duration> {
        let since = node.state().unsent().since();
        since.map(|since| self.clock.instant().saturating_duration_since(since))
    }

    fn with_unsent(&self, wanted: &dyn Fn(Ino) -> bool) -> Vec<Arc<Node>> {
        let mut nodes = self.table.select(|node| node.state().may_have_unsent());
        nodes.retain(|node| wanted(node.ino));
        nodes
    }
}
