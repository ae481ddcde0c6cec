//! Puts versions of files into the archive: what is on record of them follows their changes
//! ([`crate::archive::file`]), and a version counts as there only if nothing of the file was
//! changed while its bytes were read. What it does not have in time leaves memory for other disks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use larder_wire::capability::EXTENTS_MAX;
use larder_wire::meta::Status;
use larder_wire::meta::calls::ArchiveTold;
use larder_wire::meta::words::{DiskId, FileId, Mode, SessionId};

use super::Live;
use crate::archive::file::{Event, OnRecord};
use crate::archive::queue::{Next, Task};
use crate::archive::{Error, Receipt, Version};
use crate::data::{Map, copies, memory};
use crate::disks::Minted;
use crate::inode;
use crate::issued::Purpose;
use crate::late;
use crate::store::records::{Inode, NEVER_MS, Orphan};
use crate::store::txn::Revoked;
use crate::store::{Txn, key};

/// The session under which capabilities for reading are issued. Ids of real sessions are random.
const ARCHIVER: SessionId = SessionId(*b"\0\0\0\0\0\0\0\0larder-a");
/// Most extents that are read under one set of capabilities.
const PIECES_MAX: usize = EXTENTS_MAX;

/// What the worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// To put this version, of so many bytes.
    Put(Version, u64),
    /// To delete this version.
    Delete(Version),
}

/// Where bytes of a version are. What no read covers is zeros.
#[derive(Debug)]
pub(crate) struct Part {
    /// Where this ends in the file.
    pub(crate) end: u64,
    pub(crate) reads: Vec<Read>,
}

/// Bytes to be read from a disk.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    /// Where they begin in the file.
    pub(crate) offset: u64,
    pub(crate) from: (DiskId, Minted),
    pub(crate) bytes: Range<u64>,
}

/// Why bytes of a version cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The file has another version, or is no more.
    Changed,
    /// Disks are away, or have lost them.
    Away,
}

impl Live {
    /// A transaction is about to be committed: files whose data it changes are due in the archive
    /// again, and of files that it removes nothing is needed there.
    pub(crate) fn follow_archived(
        &mut self,
        txn: &mut Txn<'_>,
        now: Instant,
    ) -> Result<(), Status> {
        if self.archive.is_empty() {
            return Ok(());
        }
        let written = txn.written().range(key::inode(FileId(0))..=key::inode(FileId(u64::MAX)));
        let files = written.filter_map(|(key, _)| key::last_number(key).map(FileId));
        let files: Vec<FileId> = files.filter(|file| self.archive.knows(*file)).collect();
        for file in files {
            let data = |inode: Inode| inode.attributes.data_change;
            let after = txn.get::<Inode>(&key::inode(file))?.map(data);
            let before = txn.before::<Inode>(&key::inode(file))?.map(data);
            let Some(within_ms) = OnRecord::load(txn, file)?.within_ms() else { continue };
            match after {
                None => self.archive.put(txn, file, Event::Gone)?,
                Some(_) if after != before => {
                    self.archive.changed(txn, file, within_ms, now)?;
                    self.watch(txn, file)?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Memory is to be looked at when the archive should have had a file for some time.
    fn watch(&mut self, txn: &Txn<'_>, file: FileId) -> Result<(), Status> {
        let late_ms = OnRecord::load(txn, file)?.late_ms();
        if late_ms != NEVER_MS {
            for set in memory::sets_of(txn, file, &self.sets)? {
                self.destage.note(set, file, late_ms);
            }
        }
        Ok(())
    }

    /// When what a file has on a set is due on other disks. In memory, what the archive does not
    /// have in time is; if it is being put at that moment, the end of that decides.
    pub(super) fn leaves_ms(
        &self,
        txn: &Txn<'_>,
        set: DiskId,
        file: FileId,
    ) -> Result<u64, Status> {
        let due_ms = memory::due_ms(txn, set, file)?;
        if !self.sets.is_memory(set) || !self.archive.knows(file) || self.archive.puts(file) {
            return Ok(due_ms);
        }
        Ok(due_ms.min(OnRecord::load(txn, file)?.late_ms()))
    }

    /// What a file has in memory is to be in the archive within this time.
    pub(super) fn hasten_to_archive(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        within_ms: u32,
        now: Instant,
    ) -> Result<(), Status> {
        if !memory::sets_of(txn, file, &self.sets)?.is_empty() {
            self.archive_told(txn, file, Some(within_ms), now)?;
        }
        Ok(())
    }

    /// What the archive has of a file; with a time, its present version is to be there within so
    /// many ms.
    ///
    /// # Errors
    /// [`Status::Stale`] and the like if it is not a file with data; [`Status::NotSupported`] if it
    /// is to be there, and there is no archive; [`Status::Io`]
    pub(crate) fn archive_told(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        within_ms: Option<u32>,
        now: Instant,
    ) -> Result<ArchiveTold, Status> {
        let version = inode::regular(txn, file)?.attributes.data_change.0;
        if within_ms.is_some() && !self.archive.has_archive() {
            return Err(Status::NotSupported);
        }
        let told = self.archive.told(txn, (file, version), within_ms.map(u64::from), now)?;
        self.watch(txn, file)?;
        Ok(told)
    }

    /// When the worker has something to do.
    pub(crate) fn first_to_archive(&self) -> Option<Instant> {
        self.archive.first_at()
    }

    /// What the worker is to do now, once this is durable.
    pub(crate) fn next_to_archive(
        &mut self,
        txn: &mut Txn<'_>,
        now: Instant,
    ) -> Result<Option<Work>, Status> {
        let Some(next) = self.archive.next(now) else { return Ok(None) };
        let begun = match next {
            Next::Put(file) => self.begin_put(txn, file),
            Next::Delete(file, version) => self.begin_delete(txn, file, version),
        };
        if !matches!(begun, Ok(Some(_))) {
            self.archive.put_off(next, now);
        }
        begun
    }

    fn begin_put(&mut self, txn: &mut Txn<'_>, file: FileId) -> Result<Option<Work>, Status> {
        let inode = match inode::regular(txn, file) {
            Ok(inode) => inode,
            // A crash of the machine has undone it.
            Err(Status::Stale) => return self.archive.put(txn, file, Event::Gone).map(|()| None),
            Err(status) => return Err(status),
        };
        // A file without names goes with its last open.
        let is_orphan = txn.get::<Orphan>(&key::orphan(file))?.is_some();
        if is_orphan || self.in_place.is_unsettled(file) {
            return Ok(None);
        }
        let version = inode.attributes.data_change.0;
        self.archive.put(txn, file, Event::Begins(version))?;
        self.archive.begun(file, Task::Put(version));
        Ok(Some(Work::Put(self.version(file, version), inode.attributes.size)))
    }

    fn begin_delete(
        &mut self,
        txn: &Txn<'_>,
        file: FileId,
        version: u64,
    ) -> Result<Option<Work>, Status> {
        let record = OnRecord::load(txn, file)?;
        let inode = txn.get::<Inode>(&key::inode(file))?;
        // The present version may be put at any time.
        let is_present = inode.is_some_and(|inode| inode.attributes.data_change.0 == version);
        if record.has(version) || (is_present && record.within_ms().is_some()) {
            return Ok(None);
        }
        self.archive.begun(file, Task::Delete(version));
        Ok(Some(Work::Delete(self.version(file, version))))
    }

    fn version(&self, file: FileId, data_version: u64) -> Version {
        Version { volume: self.volume.id.0, ino: file.0, data_version }
    }

    /// Where bytes of a version that is put are, from the start of `range` on. The capabilities of
    /// the part before end.
    pub(crate) fn part_to_archive(
        &mut self,
        txn: &Txn<'_>,
        version: Version,
        range: Range<u64>,
        now: Instant,
    ) -> Result<Part, Unread> {
        let file = FileId(version.ino);
        let before = self.issued.take(Revoked::Session(ARCHIVER, file));
        self.ended.extend(before);
        if !self.is_putting(txn, version) {
            return Err(Unread::Changed);
        }
        let pieces = Map::File(file).overlapping(txn, &range, PIECES_MAX);
        let pieces = pieces.map_err(|_logged| Unread::Away)?;
        let mut end = range.end;
        if let Some(last) = pieces.last().filter(|_| pieces.len() == PIECES_MAX) {
            end = end.min(last.end());
        }
        let (mut found, mut reads) = (Vec::new(), BTreeMap::<DiskId, Vec<Range<u64>>>::new());
        for piece in pieces.iter().filter(|piece| piece.offset < end) {
            let start = piece.offset.max(range.start);
            let until = piece.valid_end().min(end).max(start);
            let at = |offset: u64| piece.position + (offset - piece.offset);
            let bytes = at(start)..at(until);
            if bytes.is_empty() {
                continue;
            }
            let mut missing = vec![bytes.clone()];
            for disk in self.sets.disks(piece.disk) {
                let whole = copies::whole(txn, *disk, &missing).map_err(|_logged| Unread::Away)?;
                if !self.disks.is_there(*disk) {
                    continue;
                }
                missing = copies::without(&missing, &whole);
                for part in whole {
                    let offset = piece.offset + (part.start - piece.position);
                    reads.entry(*disk).or_default().push(part.clone());
                    found.push((offset, *disk, part));
                }
            }
            if !missing.is_empty() {
                return Err(Unread::Away);
            }
        }
        let mut minted = BTreeMap::new();
        for (disk, mut ranges) in reads {
            crate::data::merge(&mut ranges);
            if ranges.len() > EXTENTS_MAX {
                return Err(Unread::Away);
            }
            let purpose = Purpose { session: ARCHIVER, file, mode: Mode::Read };
            let one = self.mint(purpose, disk, &ranges, now).ok_or(Unread::Away)?;
            minted.insert(disk, one);
        }
        let read = |(offset, disk, bytes): (u64, DiskId, Range<u64>)| {
            let from = (disk, minted[&disk].clone());
            Read { offset, from, bytes }
        };
        Ok(Part { end, reads: found.into_iter().map(read).collect() })
    }

    /// Whether a version is being put, and is still the file's.
    fn is_putting(&self, txn: &Txn<'_>, version: Version) -> bool {
        let (file, number) = (FileId(version.ino), version.data_version);
        let inode = inode::regular(txn, file);
        self.archive.does(file, Task::Put(number))
            && inode.is_ok_and(|inode| inode.attributes.data_change.0 == number)
            && !self.in_place.is_unsettled(file)
    }

    /// A version was put, or not.
    pub(crate) fn put_ended(
        &mut self,
        txn: &mut Txn<'_>,
        version: Version,
        put: &Result<Receipt, Error>,
        now: Instant,
    ) -> Result<(), Status> {
        let (file, number) = (FileId(version.ino), version.data_version);
        let is_present = self.is_putting(txn, version);
        txn.revoke(Revoked::Session(ARCHIVER, file));
        if !self.archive.ended(file, Task::Put(number)) {
            return Ok(());
        }
        match put {
            Ok(receipt) => {
                self.archive.store_answers(receipt.bytes, 0);
                if is_present {
                    self.archive.put(txn, file, Event::Put(number, *receipt))?;
                    late::keep(txn, inode::get(txn, file)?)?;
                    // What memory disks have lost by now comes back.
                    for set in memory::sets_with_lost(txn, file, &self.sets)? {
                        self.destage.note(set, file, 0);
                    }
                    return Ok(());
                }
                tracing::debug!(file = file.0, number, "it was changed while it was archived");
            }
            Err(Error::Source(error)) => {
                tracing::debug!(file = file.0, number, "it cannot be archived now: {error}");
            }
            Err(error) => self.archive.store_fails(error, now),
        }
        self.archive.put_off(Next::Put(file), now);
        self.watch(txn, file)
    }

    /// A version was deleted, or not.
    pub(crate) fn delete_ended(
        &mut self,
        txn: &mut Txn<'_>,
        version: Version,
        deleted: &Result<(), Error>,
        now: Instant,
    ) -> Result<(), Status> {
        let (file, number) = (FileId(version.ino), version.data_version);
        if !self.archive.ended(file, Task::Delete(number)) {
            return Ok(());
        }
        match deleted {
            Ok(()) => {
                self.archive.store_answers(0, 1);
                self.archive.put(txn, file, Event::Deleted(number))
            }
            Err(error) => {
                self.archive.store_fails(error, now);
                self.archive.put_off(Next::Delete(file, number), now);
                Ok(())
            }
        }
    }
}
