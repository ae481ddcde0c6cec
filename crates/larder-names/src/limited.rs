//! Makes at the server what nobody waits for, within the mount's limit on bytes per second.
//!
//! Changes are made in slices, each of what passes in a part of a second, in the order of
//! [`crate::making`]. Who makes a slice has the turn for that alone, and waits for the limit before
//! it: a caller that needs something at the server never waits for the limit, and what is made on
//! its behalf does not count. Bytes on which a slice depends are sent before it, too: a long file
//! takes a long time within the limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use larder_io::REQUEST_BYTES;
use larder_vfs::{Handle, Held, Kind, Result};
use tokio::task::JoinSet;

use crate::object::{Body, Dir, ObjectNo};
use crate::replay::is_silence;
use crate::shared::{Shared, Target};
use crate::state::State;
use crate::which::Which;

/// A slice is what passes in this part of a second.
const SLICES_PER_SECOND: u64 = 4;
/// Most changes of a slice.
const SLICE_MAX: usize = 1024;
/// How often it is looked what has come of changes that were made: a file that replaces another one
/// gets its own name first.
const ROUNDS_MAX: usize = 4;
/// Files whose bytes are sent at the same time before a slice.
const FILES_MAX: usize = 8;

impl Shared {
    /// [`Shared::replay_which`] within the limit. Nothing is tried twice.
    ///
    /// # Errors
    /// As [`Shared::replay_which`].
    pub(crate) async fn replay_limited(self: &Arc<Self>, which: &Which) -> Result<()> {
        let (mut tried, mut result) = (BTreeSet::new(), Ok(()));
        for _ in 0..ROUNDS_MAX {
            if self.rate().get().is_none() {
                return result.and(self.replay_which(which).await);
            }
            let mut all = self.in_order(which);
            all.retain(|no| tried.insert(*no));
            if all.is_empty() {
                break;
            }
            result = result.and(self.replay_slices(&all).await?);
        }
        result
    }

    /// Makes an object that waits, and those that are to be there before it, within the limit.
    pub(crate) async fn make_limited(self: &Arc<Self>, file: &Handle) {
        let Ok(Target::Waiting(no)) = self.target(file) else { return };
        if self.rate().get().is_some() {
            let all = self.due_up_to(no, self.clock.instant());
            // Who sends the bytes asks for it again, and learns why it is not there.
            let _ = self.replay_slices(&all).await;
        }
    }

    /// A waiting object and those that are due and were made here before it: in its directory, and
    /// in the directories above it that wait. Those whose names are not free yet are left out.
    pub(crate) fn due_up_to(&self, no: ObjectNo, now: Instant) -> Vec<ObjectNo> {
        let state = self.state();
        let journal = state.journal();
        let is_due = |other: ObjectNo| state.due(other).is_some_and(|due| due <= now);
        let (mut all, mut at) = (BTreeSet::new(), Some(no));
        while let Some((last, dentry)) = at.and_then(|no| Some((no, journal.waiting(no)?.0))) {
            let before = journal.waiting_in(&dentry.dir).map(|(_, other)| other);
            let before =
                before.filter(|other| *other <= last && (*other == last || is_due(*other)));
            all.extend(before.filter(|other| {
                let dentry = journal.waiting(*other).map(|(dentry, _)| dentry);
                dentry.is_some_and(|at| journal.taken().from(&at.dir, &at.name).is_none())
            }));
            at = match &dentry.dir {
                Dir::Made(above) => Some(*above),
                Dir::Server(_) => None,
            };
        }
        all.into_iter().collect()
    }

    /// The changes that wait, in the order in which they are made at the server.
    fn in_order(&self, which: &Which) -> Vec<ObjectNo> {
        let mut all = self.in_the_way(which);
        let first: BTreeSet<ObjectNo> = all.iter().copied().collect();
        let state = self.state();
        let due = state.all_due().map(|(no, _)| no);
        let mut rest: Vec<_> = due
            .filter(|no| !first.contains(no) && which.has(&state, *no))
            .map(|no| (phase(&state, no), no))
            .collect();
        rest.sort_unstable();
        all.extend(rest.into_iter().map(|(_, no)| no));
        all
    }

    /// Makes these, slice by slice. The inner error is that of the first that the server refused.
    ///
    /// # Errors
    /// The server's silence.
    async fn replay_slices(self: &Arc<Self>, mut all: &[ObjectNo]) -> Result<Result<()>> {
        let mut result = Ok(());
        while !all.is_empty() {
            let (slice, rest) = all.split_at(all.len().min(self.slice_len()));
            self.send_bytes_before(slice).await;
            let bytes = slice.len() as u64 * REQUEST_BYTES;
            self.rate().pass(&*self.clock, bytes).await;
            let slice = Which::These(slice.iter().copied().collect());
            match self.replay_which(&slice).await {
                // The others would wait as long.
                Err(error) if is_silence(error) && !self.remote.reachable() => return Err(error),
                made => result = result.and(made),
            }
            all = rest;
        }
        Ok(result)
    }

    fn slice_len(&self) -> usize {
        let Some(rate) = self.rate().get() else { return usize::MAX };
        let passes = usize::try_from(rate / SLICES_PER_SECOND / REQUEST_BYTES);
        passes.unwrap_or(SLICE_MAX).clamp(1, SLICE_MAX)
    }

    /// Sends within the limit the bytes that must be there before these changes.
    async fn send_bytes_before(&self, slice: &[ObjectNo]) {
        let held = self.holder();
        let Some(held) = held else { return };
        let files: BTreeSet<Vec<u8>> = {
            let state = self.state();
            let needed = slice.iter().filter_map(|no| needs_bytes(&state, *no));
            needed.map(|file| file.as_bytes().to_vec()).collect()
        };
        let mut sending = JoinSet::new();
        for file in files {
            if sending.len() == FILES_MAX {
                sending.join_next().await;
            }
            let held: Arc<dyn Held> = held.clone();
            sending.spawn(async move { held.bring_limited(&Handle::new(&file)).await });
        }
        // What was not sent is asked for again by who makes the change.
        sending.join_all().await;
    }
}

/// After which other changes one is made: new objects, further names, removals.
fn phase(state: &State, no: ObjectNo) -> u8 {
    let journal = state.journal();
    match journal.taken().get(no) {
        Some(_) => 2,
        None => u8::from(journal.links().get(no).is_some()),
    }
}

/// The file, as the client knows it, whose bytes are at the server before this change is.
fn needs_bytes(state: &State, no: ObjectNo) -> Option<Handle> {
    let journal = state.journal();
    if let Some(taken) = journal.taken().get(no) {
        let file = journal.dir(&taken.handle);
        let keeps_a_name =
            taken.dentry.is_some() || !taken.is_last || journal.links().count_of(&file) > 0;
        let is_one = taken.kind == Kind::File && keeps_a_name;
        return is_one.then(|| journal.client_handle(&file));
    }
    if let Some(linked) = journal.links().get(no) {
        return (linked.kind == Kind::File).then(|| journal.client_handle(&linked.file));
    }
    let (dentry, waiting) = journal.waiting(no)?;
    let is_replacing = journal.taken().from(&dentry.dir, &dentry.name).is_some();
    (waiting.body == Body::File && is_replacing).then(|| journal.handle(no))
}
