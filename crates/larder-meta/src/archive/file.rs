//! What is on record of one file, as a pure state machine.
//!
//! The archive's own contents are not known here. What it may have is what the record names: a put
//! puts its version on record as unneeded before it begins, so a server that dies in the middle of
//! one leaves a version that the next server deletes.

use std::collections::BTreeSet;

use larder_wire::meta::Status;
use larder_wire::meta::words::FileId;

use super::Receipt;
use crate::store::records::{Archived, NEVER_MS, Unneeded};
use crate::store::{Txn, key};

/// What is on record of a file and the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnRecord {
    /// Whether the file exists, and is to be in the archive.
    wanted: Option<Wanted>,
    /// Versions of which the archive may have something that no file needs.
    unneeded: BTreeSet<u64>,
}

/// What is wanted of a file's versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// When its present version is to be there; [`NEVER_MS`] if it is.
    due_ms: u64,
    /// Within how many ms of a change.
    within_ms: u64,
    /// The version that is there, and what proves its bytes.
    held: Option<(u64, Receipt)>,
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its data has changed, and is to be there within this time.
    Changed { now_ms: u64, within_ms: u64 },
    /// A client wants this version, which is the present one, and later ones to be there within
    /// this time.
    Wanted { now_ms: u64, within_ms: u64, version: u64 },
    /// It is no more.
    Gone,
    /// A put of this version is to begin.
    Begins(u64),
    /// The archive has this version, which is still the file's.
    Put(u64, Receipt),
    /// The archive has nothing of this version any more.
    Deleted(u64),
}

impl OnRecord {
    /// What follows from an event.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Changed { now_ms, within_ms } => {
                let due_ms = now_ms.saturating_add(within_ms);
                let wanted = self.wanted.get_or_insert(Wanted { due_ms, within_ms, held: None });
                wanted.within_ms = within_ms;
                wanted.due_ms = wanted.due_ms.min(due_ms);
            }
            Event::Wanted { within_ms, version, .. } if self.has(version) => {
                self.wanted.iter_mut().for_each(|wanted| wanted.within_ms = within_ms);
            }
            Event::Wanted { now_ms, within_ms, .. } => {
                self.apply(Event::Changed { now_ms, within_ms });
            }
            Event::Gone => {
                let held = self.wanted.take().and_then(|wanted| wanted.held);
                self.unneeded.extend(held.map(|(version, _)| version));
            }
            Event::Begins(version) => {
                debug_assert!(!self.has(version), "it is there");
                self.unneeded.insert(version);
            }
            Event::Put(version, receipt) => {
                let Some(wanted) = &mut self.wanted else { return };
                self.unneeded.remove(&version);
                let before = wanted.held.replace((version, receipt)).map(|(version, _)| version);
                self.unneeded.extend(before.filter(|before| *before != version));
                wanted.due_ms = NEVER_MS;
            }
            Event::Deleted(version) => {
                self.unneeded.remove(&version);
            }
        }
    }

    /// Within how many ms of a change the file is to be there, if it is to be there.
    pub(crate) fn within_ms(&self) -> Option<u64> {
        self.wanted.map(|wanted| wanted.within_ms)
    }

    /// Versions of which the archive may have something that no file needs.
    pub(crate) fn unneeded(&self) -> &BTreeSet<u64> {
        &self.unneeded
    }

    /// Whether the archive has this version of the file.
    pub(crate) fn has(&self, version: u64) -> bool {
        self.held().is_some_and(|(held, _)| held == version)
    }

    /// The version that the archive has, and its receipt.
    pub(crate) fn held(&self) -> Option<(u64, Receipt)> {
        self.wanted.and_then(|wanted| wanted.held)
    }

    /// When the present version is to be there; [`NEVER_MS`] if it is, or need not be.
    pub(crate) fn due_ms(&self) -> u64 {
        self.wanted.map_or(NEVER_MS, |wanted| wanted.due_ms)
    }

    /// When a put of the present version is to begin: a tenth of its time before it is due.
    pub(crate) fn begin_ms(&self) -> u64 {
        let Some(Wanted { due_ms, within_ms, .. }) = self.wanted else { return NEVER_MS };
        if due_ms == NEVER_MS { NEVER_MS } else { due_ms.saturating_sub(within_ms / 10) }
    }

    /// From when on the present version has to be on other disks than memory disks instead: a tenth
    /// of its time after it was due.
    pub(crate) fn late_ms(&self) -> u64 {
        let Some(Wanted { due_ms, within_ms, .. }) = self.wanted else { return NEVER_MS };
        if due_ms == NEVER_MS { NEVER_MS } else { due_ms.saturating_add(within_ms / 10) }
    }

    /// What the store has on record.
    pub(crate) fn load(txn: &Txn<'_>, file: FileId) -> Result<OnRecord, Status> {
        let wanted = txn.get::<Archived>(&key::archived(file))?.map(|record| wanted_of(&record));
        let prefix = &key::unneeded(file, 0)[..9];
        let number = |(key, _): (Vec<u8>, _)| key::last_number(&key).ok_or(Status::Io);
        let unneeded = txn.scan_all::<Unneeded>(prefix)?.into_iter().map(number);
        Ok(OnRecord { wanted, unneeded: unneeded.collect::<Result<_, _>>()? })
    }

    /// Puts what follows from an event on record, and returns what is there then.
    pub(crate) fn note(txn: &mut Txn<'_>, file: FileId, event: Event) -> Result<OnRecord, Status> {
        let before = OnRecord::load(txn, file)?;
        let mut after = before.clone();
        after.apply(event);
        match after.wanted {
            Some(wanted) if before.wanted != after.wanted => {
                txn.put(key::archived(file), &record_of(&wanted));
            }
            None if before.wanted.is_some() => txn.delete(key::archived(file)),
            _ => {}
        }
        for version in after.unneeded.difference(&before.unneeded) {
            txn.put(key::unneeded(file, *version), &Unneeded {});
        }
        for version in before.unneeded.difference(&after.unneeded) {
            txn.delete(key::unneeded(file, *version));
        }
        Ok(after)
    }
}

fn wanted_of(record: &Archived) -> Wanted {
    let Archived { due_ms, within_ms, version, bytes, root } = *record;
    let held = (version != 0).then_some((version, Receipt { bytes, root }));
    Wanted { due_ms, within_ms, held }
}

fn record_of(wanted: &Wanted) -> Archived {
    let Wanted { due_ms, within_ms, held } = *wanted;
    let (version, Receipt { bytes, root }) =
        held.unwrap_or((0, Receipt { bytes: 0, root: [0; 32] }));
    Archived { due_ms, within_ms, version, bytes, root }
}

/// Files that are, or are to be, in the archive; and versions that no file needs there.
type All = (Vec<(FileId, OnRecord)>, Vec<(FileId, u64)>);

/// All that is on record.
pub(crate) fn all(txn: &Txn<'_>) -> Result<All, Status> {
    let mut wanted = Vec::new();
    for (key, record) in txn.scan_all::<Archived>(&key::archived(FileId(0))[..1])? {
        let file = FileId(key::last_number(&key).ok_or(Status::Io)?);
        let unneeded = BTreeSet::new();
        wanted.push((file, OnRecord { wanted: Some(wanted_of(&record)), unneeded }));
    }
    let mut unneeded = Vec::new();
    for (key, _) in txn.scan_all::<Unneeded>(&key::unneeded(FileId(0), 0)[..1])? {
        let file = key.get(1..9).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
        let version = key::last_number(&key).ok_or(Status::Io)?;
        unneeded.push((FileId(u64::from_be_bytes(*file)), version));
    }
    Ok((wanted, unneeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a step of a history is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        /// A client writes the file.
        Write,
        /// A client says within which time it is to be there.
        Want,
        /// Its last name goes.
        Remove,
        /// The worker begins a put that is due.
        Begin,
        /// The worker begins to delete what is not needed.
        Clean,
        /// The store has carried out a part of it.
        Part,
        /// The store has carried out all of it, and the server notes that.
        End,
        /// The store does not do it, or does not say so; or the server dies.
        Fail,
    }

    const STEPS: [Step; 8] = [
        Step::Write,
        Step::Want,
        Step::Remove,
        Step::Begin,
        Step::Clean,
        Step::Part,
        Step::End,
        Step::Fail,
    ];

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Task {
        Put(u64),
        Delete(u64),
    }

    /// What a store has of a version.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Has {
        Part,
        All,
    }

    /// A file, its server and the store.
    #[derive(Clone, Debug)]
    struct Scene {
        record: OnRecord,
        present: Option<u64>,
        last: u64,
        doing: Option<Task>,
        /// Whether a client has said that it is to be there.
        is_wanted: bool,
        store: std::collections::BTreeMap<u64, Has>,
    }

    fn receipt(version: u64) -> Receipt {
        Receipt { bytes: version, root: [7; 32] }
    }

    impl Scene {
        fn new() -> Scene {
            let record = OnRecord { wanted: None, unneeded: BTreeSet::new() };
            let store = std::collections::BTreeMap::new();
            Scene { record, present: Some(1), last: 1, doing: None, is_wanted: false, store }
        }

        /// The put that is due.
        fn due(&self) -> Option<Task> {
            let is_due = self.record.due_ms() != NEVER_MS;
            self.present.filter(|_| is_due).map(Task::Put)
        }

        /// A version to delete. The present one may be put at any time.
        fn useless(&self) -> Option<Task> {
            let mut all = self.record.unneeded.iter();
            all.find(|version| self.present != Some(**version))
                .map(|version| Task::Delete(*version))
        }

        fn go(&mut self, step: Step) {
            match step {
                Step::Write => {
                    if self.present.is_some() {
                        self.last += 1;
                        self.present = Some(self.last);
                        self.record.apply(Event::Changed { now_ms: 5, within_ms: 10 });
                        self.is_wanted = true;
                    }
                }
                Step::Want => {
                    if let Some(version) = self.present {
                        let was_there = self.record.has(version);
                        let (now_ms, within_ms) = (5, 10);
                        self.record.apply(Event::Wanted { now_ms, within_ms, version });
                        self.is_wanted = true;
                        assert_eq!(self.due().is_none(), was_there, "{self:?}");
                    }
                }
                Step::Remove => {
                    self.present = None;
                    self.record.apply(Event::Gone);
                }
                Step::Begin if self.doing.is_none() => {
                    self.doing = self.due();
                    if let Some(Task::Put(version)) = self.doing {
                        self.record.apply(Event::Begins(version));
                    }
                }
                Step::Clean if self.doing.is_none() => self.doing = self.useless(),
                Step::Begin | Step::Clean => {}
                Step::Part => match self.doing {
                    Some(Task::Put(version)) => {
                        self.store.insert(version, Has::Part);
                    }
                    Some(Task::Delete(version)) if self.store.contains_key(&version) => {
                        self.store.insert(version, Has::Part);
                    }
                    _ => {}
                },
                Step::End => match self.doing.take() {
                    Some(Task::Put(version)) => {
                        self.store.insert(version, Has::All);
                        if self.present == Some(version) {
                            self.record.apply(Event::Put(version, receipt(version)));
                        }
                    }
                    Some(Task::Delete(version)) => {
                        self.store.remove(&version);
                        self.record.apply(Event::Deleted(version));
                    }
                    None => {}
                },
                Step::Fail => self.doing = None,
            }
            self.check();
        }

        fn check(&self) {
            for version in self.store.keys() {
                let is_known = self.record.has(*version) || self.record.unneeded.contains(version);
                assert!(is_known, "{self:?}: nobody knows version {version}");
            }
            if let Some((held, its)) = self.record.held() {
                assert_eq!(its, receipt(held));
                assert_eq!(self.store.get(&held), Some(&Has::All), "{self:?}");
                assert!(!self.record.unneeded.contains(&held), "{self:?}: it would be deleted");
            }
        }

        /// Once nothing else happens, the store has the present version and nothing more.
        fn come_to_rest(mut self) {
            let is_wanted = self.is_wanted;
            self.go(Step::Fail);
            for _ in 0..20 {
                for step in [Step::Begin, Step::End, Step::Clean, Step::End] {
                    self.go(step);
                }
            }
            assert_eq!((self.due(), self.useless()), (None, None));
            let present = self.present.filter(|_| is_wanted);
            let expected: Vec<u64> = present.into_iter().collect();
            assert_eq!(self.store.into_keys().collect::<Vec<_>>(), expected);
        }
    }

    fn all_from(scene: &Scene, left: u32, seen: &mut u64) {
        *seen += 1;
        scene.clone().come_to_rest();
        if left > 0 {
            for step in STEPS {
                let mut next = scene.clone();
                next.go(step);
                all_from(&next, left - 1, seen);
            }
        }
    }

    #[test]
    fn every_history_ends_with_the_present_version_alone() {
        let mut seen = 0;
        all_from(&Scene::new(), 6, &mut seen);
        assert_eq!(seen, (0..=6).map(|length| 8_u64.pow(length)).sum::<u64>());
    }

    #[test]
    fn the_first_change_says_when_a_version_is_due() {
        let mut record = Scene::new().record;
        assert_eq!((record.due_ms(), record.begin_ms()), (NEVER_MS, NEVER_MS));
        record.apply(Event::Changed { now_ms: 1000, within_ms: 100 });
        record.apply(Event::Changed { now_ms: 1050, within_ms: 100 });
        assert_eq!((record.due_ms(), record.begin_ms()), (1100, 1090));
        record.apply(Event::Changed { now_ms: 1060, within_ms: 10 });
        assert_eq!(record.due_ms(), 1070, "a stronger class hastens it");
        record.apply(Event::Begins(9));
        record.apply(Event::Put(9, receipt(9)));
        assert_eq!(record.due_ms(), NEVER_MS);
        record.apply(Event::Changed { now_ms: 2000, within_ms: 10 });
        assert_eq!(record.due_ms(), 2010);
        assert!(record.has(9), "until a later one is there");
    }

    #[test]
    fn a_version_that_is_there_is_not_due_again_when_it_is_wanted() {
        let mut record = Scene::new().record;
        let wanted = |version| Event::Wanted { now_ms: 1000, within_ms: 100, version };
        record.apply(wanted(3));
        assert_eq!(record.due_ms(), 1100);
        record.apply(Event::Begins(3));
        record.apply(Event::Put(3, receipt(3)));
        record.apply(Event::Wanted { now_ms: 2000, within_ms: 7, version: 3 });
        assert_eq!((record.due_ms(), record.within_ms()), (NEVER_MS, Some(7)));
        record.apply(wanted(4));
        assert_eq!(record.due_ms(), 1100);
    }
}
