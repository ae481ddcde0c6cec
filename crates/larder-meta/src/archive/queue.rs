//! Which file is put into the archive next, and which version is deleted there: an order in which
//! to look at the records, and what is being done.
//!
//! A pure state machine, like [`crate::destage`]: an entry may be out of date, and the caller of
//! [`Queue::next`] reads the record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_wire::meta::Status;
use larder_wire::meta::calls::ArchiveTold;
use larder_wire::meta::words::FileId;

use super::Error;
use super::file::{self, Event, OnRecord};
use crate::activity::{ArchiveTrouble, Archiving};
use crate::destage::Moments;
use crate::store::Txn;
use crate::store::records::NEVER_MS;

/// Most files that are put, or versions that are deleted, at a time.
const TASKS_MAX: usize = 4;
/// Pause before a file is tried again that could not be read, or was changed meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// Pauses before a store is asked again that did not do something: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What is done with a file's versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// This version is put.
    Put(u64),
    /// This version is deleted.
    Delete(u64),
}

/// What is to be looked at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The record of a file whose present version may be due.
    Put(FileId),
    /// A version that may be deleted.
    Delete(FileId, u64),
}

/// What is known of a file on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    begin_ms: u64,
    due_ms: u64,
    held_bytes: Option<u64>,
}

/// The order, and what is being done.
#[derive(Debug)]
pub(crate) struct Queue {
    moments: Moments,
    /// Where the archive is; nothing is done without one.
    url: Option<String>,
    /// Whether it is the volume's level durable, for what may be in memory for a time.
    is_durable: bool,
    files: BTreeMap<FileId, Known>,
    /// By when a put is to begin.
    order: BTreeSet<(u64, FileId)>,
    due: BTreeSet<(u64, FileId)>,
    /// Versions that no file needs, and from when on they may be deleted.
    unneeded: BTreeMap<(FileId, u64), u64>,
    useless: BTreeSet<(u64, FileId, u64)>,
    doing: BTreeMap<FileId, Task>,
    /// Nothing is asked of the store before this, after so many failures in a row.
    resumes_ms: u64,
    failures: u32,
    trouble: Option<ArchiveTrouble>,
    held_bytes: u64,
    held_files: usize,
    put_bytes: u64,
    deleted: u64,
}

impl Queue {
    /// What is on record. `url`: where the archive is, if there is one. `is_durable`: it is the
    /// volume's level durable, for what may be in memory for a time.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn load(
        txn: &Txn<'_>,
        moments: Moments,
        url: Option<String>,
        is_durable: bool,
    ) -> Result<Queue, Status> {
        let mut queue = Queue::new(moments, url);
        queue.is_durable = is_durable && queue.has_archive();
        let (wanted, unneeded) = file::all(txn)?;
        wanted.iter().for_each(|(file, record)| queue.note(*file, record));
        unneeded.iter().for_each(|(file, version)| queue.set_unneeded(*file, *version, Some(0)));
        Ok(queue)
    }

    fn new(moments: Moments, url: Option<String>) -> Queue {
        Queue {
            moments,
            url,
            is_durable: false,
            files: BTreeMap::new(),
            order: BTreeSet::new(),
            due: BTreeSet::new(),
            unneeded: BTreeMap::new(),
            useless: BTreeSet::new(),
            doing: BTreeMap::new(),
            resumes_ms: 0,
            failures: 0,
            trouble: None,
            held_bytes: 0,
            held_files: 0,
            put_bytes: 0,
            deleted: 0,
        }
    }

    /// Whether the volume has an archive.
    pub(crate) fn has_archive(&self) -> bool {
        self.url.is_some()
    }

    /// Whether the archive is the volume's level durable, for what may be in memory for a time.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// The files that are on record, and not there as they are.
    pub(crate) fn due_files(&self) -> impl Iterator<Item = FileId> {
        self.due.iter().map(|(_, file)| *file)
    }

    /// Whether some version of a file is being put.
    pub(crate) fn puts(&self, file: FileId) -> bool {
        matches!(self.doing.get(&file), Some(Task::Put(_)))
    }

    /// Whether a file is on record.
    pub(crate) fn knows(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether no file is on record.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// What is on record of a file now.
    fn note(&mut self, file: FileId, record: &OnRecord) {
        self.forget(file);
        let known = self.unneeded.range((file, 0)..=(file, u64::MAX));
        let known: BTreeSet<u64> = known.map(|((_, version), _)| *version).collect();
        for version in known.difference(record.unneeded()) {
            self.set_unneeded(file, *version, None);
        }
        for version in record.unneeded().difference(&known) {
            self.set_unneeded(file, *version, Some(0));
        }
        if record.within_ms().is_none() {
            return;
        }
        let held_bytes = record.held().map(|(_, receipt)| receipt.bytes);
        let known = Known { begin_ms: record.begin_ms(), due_ms: record.due_ms(), held_bytes };
        if known.due_ms != NEVER_MS {
            self.order.insert((known.begin_ms, file));
            self.due.insert((known.due_ms, file));
        }
        self.held_bytes += held_bytes.unwrap_or(0);
        self.held_files += usize::from(held_bytes.is_some());
        self.files.insert(file, known);
    }

    /// A client changes a file, which is to be in the archive within so many ms.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn changed(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        within_ms: u64,
        now: Instant,
    ) -> Result<(), Status> {
        let now_ms = self.moments.ms(now);
        self.put(txn, file, Event::Changed { now_ms, within_ms })
    }

    /// Puts on record what follows from an event.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn put(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        event: Event,
    ) -> Result<(), Status> {
        let record = OnRecord::note(txn, file, event)?;
        self.note(file, &record);
        Ok(())
    }

    /// A file is not on record any more. Versions that nobody needs stay.
    fn forget(&mut self, file: FileId) {
        let Some(known) = self.files.remove(&file) else { return };
        self.order.remove(&(known.begin_ms, file));
        self.due.remove(&(known.due_ms, file));
        self.held_bytes -= known.held_bytes.unwrap_or(0);
        self.held_files -= usize::from(known.held_bytes.is_some());
    }

    /// From when on a version that no file needs may be deleted.
    fn set_unneeded(&mut self, file: FileId, version: u64, at_ms: Option<u64>) {
        let key = (file, version);
        let before = match at_ms {
            Some(at_ms) => self.unneeded.insert(key, at_ms),
            None => self.unneeded.remove(&key),
        };
        if let Some(before) = before {
            self.useless.remove(&(before, file, version));
        }
        if let Some(at_ms) = at_ms {
            self.useless.insert((at_ms, file, version));
        }
    }

    /// What the archive has of the present version of a file, and when that is due; with a time,
    /// it is to be there within so many ms.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn told(
        &mut self,
        txn: &mut Txn<'_>,
        (file, version): (FileId, u64),
        within_ms: Option<u64>,
        now: Instant,
    ) -> Result<ArchiveTold, Status> {
        let now_ms = self.moments.ms(now);
        if let Some(within_ms) = within_ms {
            self.put(txn, file, Event::Wanted { now_ms, within_ms, version })?;
        }
        let record = OnRecord::load(txn, file)?;
        let due_ms = Some(record.due_ms()).filter(|due_ms| *due_ms != NEVER_MS);
        Ok(ArchiveTold {
            is_there: record.has(version) && due_ms.is_none(),
            due_ms: due_ms.map(|due_ms| due_ms.saturating_sub(now_ms)),
            late_ms: due_ms.map_or(0, |due_ms| now_ms.saturating_sub(due_ms)),
        })
    }

    /// What is to be looked at next.
    pub(crate) fn next(&self, now: Instant) -> Option<Next> {
        let now_ms = self.moments.ms(now);
        let (at_ms, next) = self.first()?;
        (at_ms <= now_ms).then_some(next)
    }

    /// When [`Queue::next`] returns something, if nothing else happens.
    pub(crate) fn first_at(&self) -> Option<Instant> {
        self.first().map(|(at_ms, _)| self.moments.instant(at_ms))
    }

    fn first(&self) -> Option<(u64, Next)> {
        if self.url.is_none() || self.doing.len() >= TASKS_MAX {
            return None;
        }
        let is_idle = |file: &FileId| !self.doing.contains_key(file);
        let put = self.order.iter().find(|(_, file)| is_idle(file));
        let delete = self.useless.iter().find(|(_, file, _)| is_idle(file));
        let put = put.map(|(at_ms, file)| (*at_ms, Next::Put(*file)));
        let delete = delete.map(|(at_ms, file, version)| (*at_ms, Next::Delete(*file, *version)));
        let first = put.into_iter().chain(delete).min_by_key(|(at_ms, _)| *at_ms);
        first.map(|(at_ms, next)| (at_ms.max(self.resumes_ms), next))
    }

    /// A file cannot be put now, or a version cannot be deleted.
    pub(crate) fn put_off(&mut self, next: Next, now: Instant) {
        let later_ms = self.moments.ms(now + PAUSE);
        match next {
            Next::Put(file) => {
                let Some(known) = self.files.get_mut(&file) else { return };
                if self.order.remove(&(known.begin_ms, file)) {
                    known.begin_ms = known.begin_ms.max(later_ms);
                    self.order.insert((known.begin_ms, file));
                }
            }
            Next::Delete(file, version) => self.set_unneeded(file, version, Some(later_ms)),
        }
    }

    /// Something has begun.
    pub(crate) fn begun(&mut self, file: FileId, task: Task) {
        let before = self.doing.insert(file, task);
        debug_assert!(before.is_none(), "one thing is done with a file at a time");
    }

    /// Whether this is being done.
    pub(crate) fn does(&self, file: FileId, task: Task) -> bool {
        self.doing.get(&file) == Some(&task)
    }

    /// What was done has ended. Returns whether it was being done.
    pub(crate) fn ended(&mut self, file: FileId, task: Task) -> bool {
        let was_done = self.does(file, task);
        if was_done {
            self.doing.remove(&file);
        }
        was_done
    }

    /// The store has done what it was asked for.
    pub(crate) fn store_answers(&mut self, put_bytes: u64, deleted: u64) {
        (self.failures, self.resumes_ms, self.trouble) = (0, 0, None);
        self.put_bytes += put_bytes;
        self.deleted += deleted;
    }

    /// The store has not. It is asked again after a pause, which grows.
    pub(crate) fn store_fails(&mut self, error: &Error, now: Instant) {
        let pause = PAUSES.0.saturating_mul(1 << self.failures.min(16)).min(PAUSES.1);
        self.failures += 1;
        self.resumes_ms = self.resumes_ms.max(self.moments.ms(now + pause));
        let text = error.to_string();
        let needs_somebody = !matches!(error, Error::Unreachable { .. });
        if self.trouble.as_ref().is_none_or(|known| known.text != text) {
            tracing::warn!("the archive: {text}");
        }
        self.trouble = Some(ArchiveTrouble { text, needs_somebody });
    }

    /// What the server's status shows.
    pub(crate) fn activity(&self, now: Instant) -> Archiving {
        let now_ms = self.moments.ms(now);
        let late = self.due.first().map(|(due_ms, _)| now_ms.saturating_sub(*due_ms));
        Archiving {
            url: self.url.clone(),
            is_durable: self.is_durable,
            held_files: self.held_files,
            held_bytes: self.held_bytes,
            due_files: self.due.len(),
            late: Duration::from_millis(late.unwrap_or(0)),
            unneeded: self.unneeded.len(),
            put_bytes: self.put_bytes,
            deleted: self.deleted,
            trouble: self.trouble.clone(),
        }
    }
}
