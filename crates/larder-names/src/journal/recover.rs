//! The journal as the next process finds it: from the records on the disk.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use larder_cache::ConflictKind;
use larder_vfs::Kind;

use super::{Change, JOURNAL, Journal};
use crate::doubt::{Doubt, Doubts};
use crate::linked::{Linked, Links};
use crate::met::Met;
use crate::object::{Altered, Dentry, Dir, Object, ObjectNo, Stage, Taken};
use crate::record::JournalState;
use crate::taken::TakenNames;

impl Journal {
    /// The journal from `records`, or a new one with that `id` if there are none; and how many
    /// records were unusable: damaged, of a later format, or without the directory in which they
    /// are, or the file.
    pub(crate) fn recover(records: Vec<Change>, id: [u8; 16]) -> (Journal, usize) {
        let (mut head, mut lost, mut told) = (None, 0, Vec::new());
        let (mut objects, mut taken, mut links) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut altered, mut doubts) = (BTreeMap::new(), Doubts::default());
        for (no, record) in records {
            let record = record.unwrap_or_default();
            match no {
                JOURNAL => head = JournalState::decode(&record),
                no if Taken::is_one(&record) => match Taken::decode(&record) {
                    Some((one, None)) => drop(taken.insert(ObjectNo(no), one)),
                    Some((one, Some(wanted))) => told.push((ObjectNo(no), one.origin, wanted)),
                    None => lost += 1,
                },
                no if Altered::is_one(&record) => match Altered::decode(&record) {
                    Some(one) => drop(altered.insert(ObjectNo(no), one)),
                    None => lost += 1,
                },
                no if Linked::is_one(&record) => match Linked::decode(&record) {
                    Some(one) => drop(links.insert(ObjectNo(no), one)),
                    None => lost += 1,
                },
                no if Doubt::is_one(&record) => match Doubt::decode(&record) {
                    Some(one) => doubts.put(ObjectNo(no), Some(one)),
                    None => lost += 1,
                },
                no => match Object::decode(&record) {
                    Some((object, wanted)) => {
                        let no = ObjectNo(no);
                        told.extend(wanted.map(|name| (no, object.dentry.clone(), name)));
                        objects.insert(no, object);
                    }
                    None => lost += 1,
                },
            }
        }
        let last = objects.keys().next_back().max(taken.keys().next_back());
        let last = last.max(altered.keys().next_back()).max(links.keys().next_back());
        let last = last.copied().max(doubts.all().map(|(no, _)| no).last());
        let beyond = last.map_or(1, |no: ObjectNo| no.0 + 1);
        let JournalState { id, next } = head.unwrap_or(JournalState { id, next: beyond });
        let mut journal = Journal {
            id,
            next: next.max(beyond),
            reserved: 0,
            objects: BTreeMap::new(),
            waiting: HashMap::new(),
            waiting_count: 0,
            subdirectories: HashMap::new(),
            by_handle: HashMap::new(),
            by_fileid: HashMap::new(),
            by_dentry: HashMap::new(),
            taken: TakenNames::default(),
            links: Links::default(),
            altered_by_handle: altered
                .iter()
                .map(|(no, one): (&ObjectNo, &Altered)| (one.handle.clone(), *no))
                .collect(),
            altered,
            doubts,
            changes: Vec::new(),
            left: Vec::new(),
            met: Vec::new(),
        };
        lost += journal.take_in(objects);
        taken.into_iter().for_each(|(no, one)| journal.taken.put(no, Some(one)));
        lost += journal.take_in_links(links);
        journal.take_in_told(told);
        (journal, lost)
    }

    /// Conflicts that an earlier version kept in the journal go on record with the others.
    fn take_in_told(&mut self, told: Vec<(ObjectNo, Dentry, OsString)>) {
        for (no, at, wanted) in told {
            self.changes.push((no.0, self.objects.get(&no).map(Object::encode)));
            self.met.push(match at.name == wanted {
                true => Met::Stays { at },
                false => Met::Name { kind: ConflictKind::Made, at, wanted },
            });
        }
    }

    /// Adds objects whose directories exist; returns how many do not fit. A directory may have a
    /// higher number than an object that was moved into it.
    fn take_in(&mut self, mut left: BTreeMap<ObjectNo, Object>) -> usize {
        loop {
            let (ready, rest): (BTreeMap<_, _>, _) =
                left.into_iter().partition(|(_, object)| {
                    match (&object.stage, &object.dentry.dir) {
                        (Stage::Waiting(_), Dir::Made(dir)) => self.is_directory(*dir),
                        _ => true,
                    }
                });
            left = rest;
            if ready.is_empty() {
                return left.len();
            }
            for (no, object) in ready {
                self.index(no, &object);
                self.objects.insert(no, object);
            }
        }
    }

    fn is_directory(&self, no: ObjectNo) -> bool {
        self.objects.get(&no).is_some_and(|object| match &object.stage {
            Stage::Waiting(waiting) => waiting.body.kind() == Kind::Directory,
            Stage::Named(_) => true,
        })
    }

    /// Adds other names of files, whose directories and files exist; returns how many do not fit.
    fn take_in_links(&mut self, links: BTreeMap<ObjectNo, Linked>) -> usize {
        let has = |dir: &Dir| !matches!(dir, Dir::Made(no) if !self.objects.contains_key(no));
        let is_one = |one: &Linked| has(&one.dentry.dir) && has(&one.file);
        let (ready, left): (Vec<_>, Vec<_>) = links.into_iter().partition(|(_, one)| is_one(one));
        ready.into_iter().for_each(|(no, one)| self.links.put(no, Some(one)));
        left.len()
    }
}
