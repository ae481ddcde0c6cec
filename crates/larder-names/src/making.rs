//! The order in which waiting changes are made at the server.
//!
//! Changes that block others come first, then new objects and other names of files, then the
//! changes that block nothing. In each directory new objects are made one after the other, in the
//! order in which they were made here, and in several directories at once. A directory's turn comes
//! when the server has it, whatever the others still have to make: a long one holds up nobody but
//! what is in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use larder_vfs::{Deadline, Error, Result};
use tokio::task::JoinSet;

use crate::object::{Dir, ObjectNo};
use crate::replay::{DIRECTORIES_MAX, is_silence};
use crate::shared::Shared;
use crate::state::State;
use crate::which::Which;

/// How often what waits for directories that are gone is sent elsewhere in one attempt.
pub(crate) const SETTLED_MAX: u32 = 16;
/// Most objects that are requested before the fact that they exist is recorded on the disk.
const BATCH_MAX: usize = 1024;

/// Objects of one directory, in their order.
type Group = (Dir, Vec<ObjectNo>);

/// What came of a group.
struct Made {
    dir: Dir,
    failed: Vec<(ObjectNo, Error)>,
    /// For these the server was not asked.
    unasked: Vec<ObjectNo>,
}

/// Whether an object is due, and another one of its directory that was made here earlier.
fn is_due_after_others(state: &State, no: ObjectNo, now: Instant) -> bool {
    let is_due = |no| state.due(no).is_some_and(|due| due <= now);
    let Some((dentry, _)) = state.journal().waiting(no).filter(|_| is_due(no)) else {
        return false;
    };
    let mut others = state.journal().waiting_in(&dentry.dir);
    others.any(|(_, other)| other < no && is_due(other) && state.failure(other).is_none())
}

impl Shared {
    /// Makes these changes at the server.
    ///
    /// # Errors
    /// The server's error for the first object that it did not accept; the others were tried too.
    pub(crate) async fn replay_which(self: &Arc<Self>, which: &Which) -> Result<()> {
        self.reach(None).await?;
        let _turn = self.turn.lock().await;
        let mut replayed = self.replay_once(which).await;
        for _ in 0..SETTLED_MAX {
            let is_refused = replayed.is_err() && self.remote.reachable();
            if !is_refused || !self.settle_gone(None).await {
                break;
            }
            replayed = self.replay_once(which).await;
        }
        replayed
    }

    async fn replay_once(self: &Arc<Self>, which: &Which) -> Result<()> {
        self.resolve_asked(None).await?;
        let mut refused = BTreeMap::new();
        self.replay_some(self.in_the_way(which), &mut refused).await?;
        self.make_new(which, None, &mut refused).await?;
        self.make_links(which, &mut refused).await?;
        self.remove_files(which, &mut refused).await?;
        self.replay_some(self.taken_due(which), &mut refused).await?;
        self.keep().await?;
        refused.into_values().next().map_or(Ok(()), Err)
    }

    /// An object that is due is about to be made there on its own, by who has the turn: the ones
    /// of its directory that were made here before it, and are due, are made first. It does so with
    /// all that is due, in several directories at once, unless there is a limit on what nobody
    /// waits for; and waits for nobody's bytes. What the server has refused before is left to the
    /// task that tries it again.
    ///
    /// # Errors
    /// As [`Shared::make_one`].
    pub(crate) async fn make_due_before(
        self: &Arc<Self>,
        no: ObjectNo,
        deadline: Option<Deadline>,
    ) -> Result<()> {
        let now = self.clock.instant();
        let mut refused = {
            let state = self.state();
            if !is_due_after_others(&state, no, now) {
                return Ok(());
            }
            let failed = |(no, _): (ObjectNo, _)| Some((no, state.failure(no)?));
            state.all_due().filter_map(failed).collect()
        };
        let which = match self.rate().get() {
            None => Which::Due(now),
            Some(_) => Which::These(self.due_up_to(no, now).into_iter().collect()),
        };
        let made = self.make_new(&which, deadline, &mut refused).await;
        made.map_err(|error| if is_silence(error) { Error::TimedOut } else { error })
    }

    /// Makes new objects at the server. Those that it refuses are added to `refused`; those that
    /// are in it are left out.
    ///
    /// # Errors
    /// The server's silence, or the disk's refusal to record what is to be requested.
    async fn make_new(
        self: &Arc<Self>,
        which: &Which,
        deadline: Option<Deadline>,
        refused: &mut BTreeMap<ObjectNo, Error>,
    ) -> Result<()> {
        let (mut making, mut busy) = (JoinSet::new(), BTreeSet::new());
        let (mut ready, mut marked) = (VecDeque::new(), BTreeSet::new());
        let (mut may_be_more, mut stopped_by) = (true, None);
        loop {
            if ready.is_empty() && may_be_more && stopped_by.is_none() {
                ready = self.ready(which, refused, &busy);
                may_be_more = false;
                let all: Vec<_> = ready.iter().flat_map(|(_, group)| group).copied().collect();
                match self.mark_attempted(&all).await {
                    Ok(new) => marked.extend(new),
                    Err(error) => (stopped_by, ready) = (Some(error), VecDeque::new()),
                }
            }
            while making.len() < DIRECTORIES_MAX
                && let Some((dir, group)) = ready.pop_front()
            {
                busy.insert(dir.clone());
                let again: BTreeSet<_> =
                    group.iter().copied().filter(|no| !marked.contains(no)).collect();
                let shared = self.clone();
                making.spawn(async move { shared.make_group(dir, group, again, deadline).await });
            }
            let Some(made) = making.join_next().await else { break };
            // A task that panicked leaves its directory to the next attempt.
            let Ok(Made { dir, failed, unasked }) = made else { continue };
            busy.remove(&dir);
            may_be_more = true;
            for (no, error) in failed {
                self.late_error(no, error);
                refused.insert(no, error);
                if is_silence(error) {
                    // The others would wait as long.
                    stopped_by = Some(error);
                }
            }
            let left =
                if stopped_by.is_some() { std::mem::take(&mut ready) } else { VecDeque::new() };
            let unasked = left.into_iter().flat_map(|(_, group)| group).chain(unasked);
            self.unmark(unasked.filter(|no| marked.contains(no)).collect());
        }
        let Some(error) = stopped_by else { return Ok(()) };
        self.keep().await?;
        Err(error)
    }

    /// An earlier attempt for those that are made `again` was not answered.
    async fn make_group(
        &self,
        dir: Dir,
        group: Vec<ObjectNo>,
        again: BTreeSet<ObjectNo>,
        deadline: Option<Deadline>,
    ) -> Made {
        let (mut failed, mut group) = (Vec::new(), group.into_iter());
        for no in &mut group {
            if let Err(error) = self.make_as(no, None, again.contains(&no), deadline).await {
                failed.push((no, error));
                // Nobody is there: the others would wait as long.
                if is_silence(error) {
                    break;
                }
            }
        }
        Made { dir, failed, unasked: group.collect() }
    }

    /// These objects, with the directories above them, that can be made now, by directory; none of
    /// a directory that is `busy`.
    fn ready(
        &self,
        which: &Which,
        refused: &BTreeMap<ObjectNo, Error>,
        busy: &BTreeSet<Dir>,
    ) -> VecDeque<Group> {
        let state = self.state();
        let mut wanted = BTreeSet::new();
        let due = state.all_due().map(|(no, _)| no).filter(|no| which.has(&state, *no));
        for no in due.flat_map(|no| state.needed_for(no)) {
            // The topmost that is not at the server.
            let mut at = no;
            while let Some((dentry, _)) = state.journal().waiting(at) {
                match dentry.dir {
                    Dir::Made(above) if state.journal().waiting(above).is_some() => at = above,
                    _ => break,
                }
            }
            wanted.insert(at);
        }
        let mut groups: BTreeMap<Dir, Vec<ObjectNo>> = BTreeMap::new();
        let mut count = 0;
        for no in wanted.into_iter().filter(|no| !refused.contains_key(no)) {
            let Some((dentry, _)) = state.journal().waiting(no) else { continue };
            // An object whose name is not free yet was tried before.
            let is_free = state.journal().taken().from(&dentry.dir, &dentry.name).is_none();
            if !is_free || busy.contains(&dentry.dir) {
                continue;
            }
            if count == BATCH_MAX {
                break;
            }
            groups.entry(dentry.dir.clone()).or_default().push(no);
            count += 1;
        }
        groups.into_iter().collect()
    }
}
