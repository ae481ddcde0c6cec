//! The records of files on their way to the server ([`crate::beside`]), together with the conflicts
//! of which they are.

use std::io;
use std::sync::Arc;

use larder_io::{DiskFile, OpenMode};

use crate::FileNo;
use crate::aside_dir::{ASIDE_DIR, name_among, names};
use crate::beside::{Beside, Next, Step, StepEvent};
use crate::cache::Cache;
use crate::conflicts::{self, CONFLICTS_MAX, Conflict, ConflictKind, FoundConflict};
use crate::log::Change;
use crate::records::tag;
use crate::store::Store;

impl Store {
    /// A local file is about to be set aside, as `conflict` says, and is to be `wanted` at the
    /// server. That is durable on return, unless the disk refuses, which is logged.
    pub(crate) fn intend_beside(
        &self,
        (no, serial): (FileNo, u64),
        conflict: &Conflict,
        wanted: Vec<u8>,
    ) {
        let step = Step::Intended { conflict: conflicts::encode(self.now_sec(), conflict) };
        let aside = conflict.aside.clone();
        let beside = Beside { no, serial, number: 0, aside, wanted, step };
        self.index.put(beside.key(), Some(beside.encode()));
        self.keep_beside();
    }

    fn keep_beside(&self) {
        if let Err(error) = self.index.make_durable(self.index.mark()) {
            tracing::warn!(%error, "a crash of the machine may undo how far a conflict is resolved");
        }
    }

    fn all_besides(&self) -> Vec<Beside> {
        let records = self.index.scan_all(&[tag::BESIDE]);
        records.iter().filter_map(|(key, value)| Beside::decode(key, value)).collect()
    }

    /// What a process that died only intended is no more: while its changes are there, they are
    /// sent, or meet the other ones again. To be called before this process sets anything aside.
    /// Reads the disk's directory.
    pub(crate) fn drop_intended(&self) {
        let mut intended = self.all_besides();
        intended.retain(is_intended);
        if intended.is_empty() {
            return;
        }
        let aside = names(&*self.disk);
        for beside in intended {
            if name_among(&aside, beside.no, beside.serial).is_none() {
                self.put_step(&beside, None, None);
            }
        }
    }

    /// The change of a conflict's record when its file is at the server, or stays where it is.
    fn resolved(&self, beside: &Beside, how: &Resolved<'_>) -> Option<Change> {
        let key = conflicts::key_of(beside.number);
        // A user may have cleared it.
        let (found_sec, conflict) = conflicts::decode(&self.index.get(&key)?)?;
        let conflict = match how {
            Resolved::Placed { dir, name } => {
                Conflict { dir: Some(*dir), name: name.to_vec(), aside: String::new(), ..conflict }
            }
            Resolved::Stays { reason } => Conflict { reason: (*reason).to_owned(), ..conflict },
        };
        Some((key, Some(conflicts::encode(found_sec, &conflict))))
    }

    fn put_step(&self, beside: &Beside, next: Option<&Beside>, how: Option<&Resolved<'_>>) {
        let mut changes = vec![(beside.key(), next.map(Beside::encode))];
        // So that nobody clears the conflict in between.
        let _conflicts = crate::lock(&self.conflicts);
        changes.extend(how.and_then(|how| self.resolved(beside, how)));
        self.index.put_all(changes);
    }
}

/// Whether nothing has been moved yet.
fn is_intended(beside: &Beside) -> bool {
    matches!(beside.step, Step::Intended { .. })
}

/// How a conflict about bytes ends.
enum Resolved<'a> {
    /// They are in this directory under this name.
    Placed { dir: FileNo, name: &'a [u8] },
    /// They stay where they are.
    Stays { reason: &'a str },
}

impl Cache {
    /// The files that were set aside and are to be at the server. Those that are just being set
    /// aside are not among them yet.
    pub fn besides(&self) -> Vec<Beside> {
        let mut all = self.store.all_besides();
        all.retain(|beside| !is_intended(beside));
        all
    }

    /// Opens what was set aside.
    ///
    /// # Errors
    /// The disk's; `NotFound` if a user has removed it.
    pub fn open_aside(&self, beside: &Beside) -> io::Result<Arc<dyn DiskFile>> {
        self.store.disk.open(&beside.aside, OpenMode::Existing)
    }

    /// Puts on record what has happened to a file on its way to the server, into the directory
    /// `dir`; if the server refuses, with its `reason`. Durable on return, unless the disk refuses,
    /// which is logged. Returns how far it is; `None` when the way ends: at the server, where the
    /// local file is then removed, or in `set-aside`, where it stays. The conflict on record says
    /// so. Waits for the disk.
    pub fn step_beside(
        &self,
        beside: Beside,
        event: StepEvent,
        dir: FileNo,
        reason: &str,
    ) -> Option<Beside> {
        let is_refused = event == StepEvent::Refused;
        if let (Step::Placed { .. }, StepEvent::Removed) = (&beside.step, &event) {
            // Perhaps it was removed by a user, or by a process that died. Durably, before the
            // record goes that would have it removed again.
            let _ = self.store.disk.remove(&beside.aside);
            if let Err(error) = self.store.disk.sync_dir(ASIDE_DIR) {
                tracing::warn!(%error, aside = beside.aside, "it may come back after a crash");
            }
        }
        let stays = Resolved::Stays { reason };
        let next = match beside.step.clone().apply(event) {
            Next::Step(step) => Some(Beside { step, ..beside.clone() }),
            Next::StaysAside | Next::Done => None,
        };
        let placed = match next.as_ref().map(|next| &next.step) {
            Some(Step::Placed { name }) => Some(Resolved::Placed { dir, name }),
            _ => None,
        };
        let how = placed.or(is_refused.then_some(stays));
        self.store.put_step(&beside, next.as_ref(), how.as_ref());
        self.store.keep_beside();
        next
    }

    /// Another machine has kept something in `dir` under the name of a conflict. Puts that on
    /// record if it was not made here.
    pub fn saw_conflict(&self, dir: FileNo, name: &[u8], wanted: &[u8]) {
        let is_own = self.store.all_besides().iter().any(|one| one.step.name() == Some(name));
        let is_it =
            |found: &FoundConflict| found.conflict.dir == Some(dir) && found.conflict.name == name;
        if is_own || self.conflicts(0, CONFLICTS_MAX).iter().any(is_it) {
            return;
        }
        let conflict = Conflict {
            kind: ConflictKind::Elsewhere,
            dir: Some(dir),
            file: None,
            name: name.to_vec(),
            wanted: wanted.to_vec(),
            aside: String::new(),
            reason: String::new(),
        };
        self.store.put_with_conflicts(Vec::new(), vec![conflict]);
    }
}
