//! Leases from the metadata server, and what they allow the client to answer without asking.
//!
//! While a lease on a file holds, no other client changes the file. The server's description of the
//! file is cached here until a change is reported: by the server in a recall, or by the reply to a
//! change of ours, which says exactly how the file changed.
//!
//! A recall may overtake the reply that grants its lease, and a reply may describe the state before
//! a change of ours. So a request first [begins](Leases::begin), and what happened since then
//! decides which parts of the answer count.
//!
//! A write lease excludes other clients: what waits in a file may be sent later, since nobody reads
//! the file or changes it before. When it is recalled it excludes them until it is returned, and
//! what waits is sent before that. No client waits for another one by that: nobody else has a lease
//! on such a file.
//!
//! Invariants:
//! - a lease ends here before the server learns that it was returned;
//! - however often a lease is recalled, it is returned once, when what depends on it is done;
//! - the cached description of a file is that of its present version, except for changes of ours
//!   whose replies have not arrived.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use larder_vfs::{Access, Cred, Lease, Watcher};
use larder_wire::meta::words::{
    Attributes, Changed, FileId, Layout, LeaseGiven, LeaseKind, LeaseNumber, Seen, VolumeId,
};

use super::convert;

/// Most leases that we hold. Beyond them, the server is not asked for more.
const HELD_MAX: usize = 1 << 16;
/// Most layouts that are kept for reading: those that came last.
const LAYOUTS_MAX: usize = 1 << 12;
/// Most callers of one file whose rights are kept.
const CALLERS_MAX: usize = 4;

/// All of them.
#[derive(Default)]
pub(super) struct Leases {
    state: Mutex<State>,
    watcher: OnceLock<Weak<dyn Watcher>>,
    /// How often a lease was returned before all that depended on it was done.
    late: AtomicU64,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("held", &self.lock().held.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    held: HashMap<FileId, Held>,
    /// Leases that are recalled, and not returned yet.
    returning: HashMap<FileId, Returning>,
    /// Counts events.
    moment: Moment,
    /// The moments at which requests in flight began, and how many began at each.
    asking: BTreeMap<Moment, u32>,
    /// When files were last recalled, or changed by us; kept as long as a request is in flight.
    recalled: HashMap<FileId, Moment>,
    changed: HashMap<FileId, Moment>,
    /// When all leases ended last, or all may have been changed by us.
    all_recalled: Moment,
    all_changed: Moment,
    layouts: usize,
    /// The files that got a layout, in that order. Some have lost it since.
    got_layout: VecDeque<FileId>,
}

type Moment = u64;

struct Returning {
    number: LeaseNumber,
    /// It is a write lease, and what waits under it is not at the server yet.
    excludes: bool,
}

/// What a recall asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// A lease that was held. Whoever gets this answer returns it.
    Held(LeaseKind),
    /// One that an earlier recall asked for: it is returned when all that depends on it is done.
    Returning,
    /// One that is not here: its grant is in flight, or it was returned.
    Unknown,
}

struct Held {
    number: LeaseNumber,
    kind: LeaseKind,
    lease: Lease,
    known: Option<Known>,
}

/// What the server reported of a file.
struct Known {
    attributes: Attributes,
    rights: Vec<(Caller, u32)>,
    layout: Option<Layout>,
}

/// On whose behalf a question is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Caller {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    fn of(cred: &Cred) -> Caller {
        Caller { uid: cred.uid, gid: cred.gid, groups: cred.groups.to_vec() }
    }
}

/// A request in flight.
pub(super) struct Asking<'a> {
    leases: &'a Leases,
    since: Moment,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.leases.lock();
        if let Some(count) = state.asking.get_mut(&self.since) {
            *count -= 1;
            if *count == 0 {
                state.asking.remove(&self.since);
            }
        }
        // What happened before all requests in flight began does not concern them.
        match state.asking.keys().next().copied() {
            None => {
                state.recalled.clear();
                state.changed.clear();
            }
            Some(first) if first > self.since => {
                state.recalled.retain(|_, when| *when > first);
                state.changed.retain(|_, when| *when > first);
            }
            Some(_) => {}
        }
    }
}

impl Leases {
    /// A lease is returned before all that depends on it is done: the time for that is over.
    pub(super) fn note_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub(super) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the server is asked about a file.
    pub(super) fn begin(&self) -> Asking<'_> {
        let mut state = self.lock();
        let since = state.moment;
        *state.asking.entry(since).or_default() += 1;
        Asking { leases: self, since }
    }

    /// Whether there is room for another lease.
    pub(super) fn has_room(&self) -> bool {
        self.lock().held.len() < HELD_MAX
    }

    /// The attributes of a file, if they need not be asked for.
    pub(super) fn attributes(&self, file: FileId) -> Option<Attributes> {
        let state = self.lock();
        Some(state.held.get(&file)?.known.as_ref()?.attributes)
    }

    /// The attributes, the caller's rights, and the lease, if no request is needed for them.
    pub(super) fn judged(&self, cred: &Cred, file: FileId) -> Option<(Attributes, u32, Lease)> {
        let state = self.lock();
        let held = state.held.get(&file)?;
        let known = held.known.as_ref()?;
        let caller = Caller::of(cred);
        let (_, granted) = known.rights.iter().find(|(of, _)| *of == caller)?;
        Some((known.attributes, *granted, held.lease.clone()))
    }

    /// Whether a caller is known to have no right to read a file: what was told of it to a reader
    /// by an open is not for this caller.
    pub(super) fn refuses(&self, cred: &Cred, file: FileId) -> bool {
        let state = self.lock();
        let known = state.held.get(&file).and_then(|held| held.known.as_ref());
        let (mut rights, caller) = (known.iter().flat_map(|it| &it.rights), Caller::of(cred));
        let granted = rights.find(|(of, _)| *of == caller);
        granted.is_some_and(|(_, granted)| !convert::access(*granted).contains(Access::READ))
    }

    /// The location of a part of a file, if no request is needed for it; and the file's attributes.
    pub(super) fn layout(
        &self,
        file: FileId,
        offset: u64,
        end: u64,
    ) -> Option<(Attributes, Layout)> {
        let state = self.lock();
        let known = state.held.get(&file)?.known.as_ref()?;
        let layout = known.layout.as_ref()?;
        let covered = layout.covered;
        let end = end.min(known.attributes.size);
        let holds = covered.offset <= offset && end <= covered.offset + covered.length;
        holds.then(|| (known.attributes, layout.clone()))
    }

    /// A layout was of no use.
    pub(super) fn forget_layout(&self, file: FileId) {
        let state = &mut *self.lock();
        if let Some(Held { known: Some(known), .. }) = state.held.get_mut(&file) {
            state.layouts -= usize::from(known.layout.take().is_some());
        }
    }

    /// Ends all leases: the server may not know them any more. The watcher is notified, and not
    /// waited for.
    pub(super) fn end_all(&self, volume: VolumeId) {
        let files: Vec<FileId> = {
            let state = &mut *self.lock();
            state.moment += 1;
            (state.all_recalled, state.layouts) = (state.moment, 0);
            state.returning.clear();
            state.held.values().for_each(|held| held.lease.end());
            state.held.drain().map(|(file, _)| file).collect()
        };
        let Some(watcher) = self.watcher().filter(|_| !files.is_empty()) else { return };
        tokio::spawn(async move {
            for file in files {
                watcher.broken(&convert::handle(volume, file)).await;
            }
        });
    }

    /// The watcher that is notified when leases end.
    pub(super) fn watcher(&self) -> Option<Arc<dyn Watcher>> {
        self.watcher.get().and_then(Weak::upgrade)
    }

    /// Sets the watcher, once.
    pub(super) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let _ = self.watcher.set(watcher);
    }

    /// A lease is recalled: for each call of another client that wants more of it.
    pub(super) fn recalled(&self, file: FileId, number: LeaseNumber) -> Recalled {
        let state = &mut *self.lock();
        state.moment += 1;
        state.recalled.insert(file, state.moment);
        if state.returning.get(&file).is_some_and(|one| one.number == number) {
            return Recalled::Returning;
        }
        let kind = match state.held.get(&file).filter(|held| held.number == number) {
            Some(held) => held.kind,
            None => return Recalled::Unknown,
        };
        state.drop_held(file);
        let excludes = kind == LeaseKind::Write;
        state.returning.insert(file, Returning { number, excludes });
        Recalled::Held(kind)
    }

    /// A lease that was recalled excludes nobody any more: what waited under it is at the server.
    pub(super) fn excludes_no_more(&self, file: FileId, number: LeaseNumber) {
        let state = &mut *self.lock();
        let returning = state.returning.get_mut(&file).filter(|one| one.number == number);
        returning.into_iter().for_each(|one| one.excludes = false);
    }

    /// A lease that was recalled is about to be returned.
    pub(super) fn returned(&self, file: FileId, number: LeaseNumber) {
        let state = &mut *self.lock();
        if state.returning.get(&file).is_some_and(|one| one.number == number) {
            state.returning.remove(&file);
        }
    }

    /// Whether there is a lease on a file.
    pub(super) fn holds(&self, file: FileId) -> bool {
        self.lock().held.contains_key(&file)
    }

    /// Whether a write lease excludes other clients, and none of them waits.
    pub(super) fn excludes(&self, file: FileId) -> bool {
        self.lock().held.get(&file).is_some_and(|held| held.kind == LeaseKind::Write)
    }

    /// Whether a write lease is recalled, and excludes other clients still.
    pub(super) fn is_returning(&self, file: FileId) -> bool {
        self.lock().returning.get(&file).is_some_and(|one| one.excludes)
    }

    /// A reply reports what a change of ours made of a file.
    pub(super) fn changed(&self, changed: &Changed) {
        let file = changed.after.file;
        let state = &mut *self.lock();
        state.moment += 1;
        state.changed.insert(file, state.moment);
        let Some(held) = state.held.get_mut(&file) else { return };
        let Some(known) = held.known.as_mut() else { return };
        state.layouts -= usize::from(known.layout.take().is_some());
        if known.attributes.version() != changed.before {
            held.known = None;
            return;
        }
        let who = |of: &Attributes| (of.mode, of.uid, of.gid);
        if who(&known.attributes) != who(&changed.after) {
            known.rights.clear();
        }
        known.attributes = changed.after;
        if changed.after.links == 0 {
            state.drop_held(file);
        }
    }

    /// A change of ours failed, perhaps half-way: nothing is known except leases.
    pub(super) fn changed_somehow(&self) {
        let state = &mut *self.lock();
        state.moment += 1;
        (state.all_changed, state.layouts) = (state.moment, 0);
        state.held.values_mut().for_each(|held| held.known = None);
    }
}

impl Asking<'_> {
    /// Records the server's answer about a file. Returns the lease that came with it, which may
    /// have ended already.
    pub(super) fn take(&self, cred: &Cred, seen: &Seen) -> Lease {
        let lease = Lease::new();
        let state = &mut *self.leases.lock();
        let file = seen.attributes.file;
        let is_since = |when: Option<&Moment>| when.is_some_and(|when| *when > self.since);
        let is_recalled = is_since(state.recalled.get(&file)) || state.all_recalled > self.since;
        let Some(given) = seen.lease.filter(|_| !is_recalled) else {
            // A lease may be available the next time: the conflicting request ends soon.
            lease.end();
            return lease;
        };
        let is_changed = is_since(state.changed.get(&file)) || state.all_changed > self.since;
        let held = state.held.entry(file).or_insert_with(|| Held {
            number: given.number,
            kind: given.kind,
            lease: lease.clone(),
            known: None,
        });
        if held.number != given.number {
            // The one before was given back, and its number is not given again.
            held.lease.end();
            (held.number, held.lease, held.known) = (given.number, lease, None);
        }
        // The server weakens none by itself: an answer that says less is older.
        held.kind = held.kind.max(given.kind);
        let lease = held.lease.clone();
        if !is_changed {
            let before = held.known.take().filter(|one| one.attributes == seen.attributes);
            let had_layout = before.as_ref().is_some_and(|known| known.layout.is_some());
            let layout = (seen.layout.covered.length > 0).then(|| seen.layout.clone());
            let mut rights = before.map_or_else(Vec::new, |known| known.rights);
            let caller = Caller::of(cred);
            rights.retain(|(of, _)| *of != caller);
            rights.truncate(CALLERS_MAX - 1);
            rights.push((caller, seen.granted));
            let has_layout = layout.is_some();
            held.known = Some(Known { attributes: seen.attributes, rights, layout });
            state.layouts -= usize::from(had_layout);
            if has_layout {
                state.keep_layout(file);
            }
        }
        lease
    }

    /// Records a file that we have opened or made, and the lease that came with it, if there is
    /// one.
    pub(super) fn take_opened(&self, attributes: &Attributes, given: Option<LeaseGiven>) {
        let state = &mut *self.leases.lock();
        let file = attributes.file;
        let is_since = |when: Option<&Moment>| when.is_some_and(|when| *when > self.since);
        let is_recalled = is_since(state.recalled.get(&file)) || state.all_recalled > self.since;
        let is_changed = is_since(state.changed.get(&file)) || state.all_changed > self.since;
        let Some(given) = given.filter(|_| !is_recalled) else { return };
        if state.held.get(&file).is_some_and(|held| held.number == given.number) {
            return;
        }
        // The one before was given back, and its number is not given again.
        state.drop_held(file);
        let known = Known { attributes: *attributes, rights: Vec::new(), layout: None };
        let (lease, known) = (Lease::new(), (!is_changed).then_some(known));
        state.held.insert(file, Held { number: given.number, kind: given.kind, lease, known });
    }

    /// Keeps the location of a part of a file, if these are known to be its present attributes.
    pub(super) fn take_layout(&self, attributes: &Attributes, layout: &Layout) {
        let state = &mut *self.leases.lock();
        let file = attributes.file;
        let is_since = |when: Option<&Moment>| when.is_some_and(|when| *when > self.since);
        let is_over = is_since(state.recalled.get(&file)) || is_since(state.changed.get(&file));
        let all_over = state.all_recalled.max(state.all_changed) > self.since;
        let Some(Held { known: Some(known), .. }) = state.held.get_mut(&file) else { return };
        if is_over || all_over || known.attributes != *attributes {
            return;
        }
        if known.layout.replace(layout.clone()).is_none() {
            state.keep_layout(file);
        }
    }
}

impl State {
    /// A file has got a layout, and had none. One that is kept for the longest time gives way.
    fn keep_layout(&mut self, file: FileId) {
        self.layouts += 1;
        self.got_layout.push_back(file);
        while self.layouts > LAYOUTS_MAX
            && let Some(oldest) = self.got_layout.pop_front()
        {
            let held = self.held.get_mut(&oldest);
            let layout = held.and_then(|held| held.known.as_mut()?.layout.take());
            self.layouts -= usize::from(layout.is_some());
        }
        if self.got_layout.len() > 2 * LAYOUTS_MAX {
            let has = |file: &FileId| {
                let known = self.held.get(file).and_then(|held| held.known.as_ref());
                known.is_some_and(|known| known.layout.is_some())
            };
            let mut seen = HashSet::new();
            self.got_layout.retain(|file| has(file) && seen.insert(*file));
        }
    }

    fn drop_held(&mut self, file: FileId) {
        if let Some(held) = self.held.remove(&file) {
            held.lease.end();
            let has_layout = held.known.is_some_and(|known| known.layout.is_some());
            self.layouts -= usize::from(has_layout);
        }
    }
}

#[cfg(test)]
mod tests;
