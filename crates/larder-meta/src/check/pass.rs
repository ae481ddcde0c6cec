//! Walks over records of one kind, in the order of their keys, in a bounded part of memory.
//!
//! A pass sees the records as they were when it began: repairs that are made meanwhile do not show
//! in it. It does not borrow the check, which can so mend what a pass shows.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::vec;

use larder_wire::meta::Status;
use larder_wire::meta::words::FileId;

use super::{directory, number};
use crate::engine::{View, Writes};
use crate::store::records::{Inode, Record};
use crate::store::txn::Entries;
use crate::store::{Txn, key};

/// Records that are in memory at a time.
const BATCH: usize = 256;

/// All records with a tag.
pub(super) struct Pass<'a, R> {
    view: &'a dyn View,
    /// The repairs of such records when it began.
    repaired: Writes,
    from: Vec<u8>,
    until: Vec<u8>,
    batch: vec::IntoIter<(Vec<u8>, R)>,
    is_last: bool,
}

impl<'a, R: Record> Pass<'a, R> {
    pub(super) fn new(view: &'a dyn View, repairs: &Writes, tag: u8) -> Pass<'a, R> {
        let (from, until) = (vec![tag], key::after(&[tag]));
        let repaired = repairs.range(from.clone()..until.clone());
        let repaired = repaired.map(|(key, value)| (key.clone(), value.clone())).collect();
        Pass { view, repaired, from, until, batch: Vec::new().into_iter(), is_last: false }
    }

    fn read(&mut self) -> Result<(), Status> {
        let txn = Txn::new(self.view, &self.repaired);
        let batch: Entries<R> = txn.scan(&self.from, &self.until, BATCH)?;
        self.is_last = batch.len() < BATCH;
        if let Some((last, _)) = batch.last() {
            // The first key behind it.
            self.from = [&last[..], &[0]].concat();
        }
        self.batch = batch.into_iter();
        Ok(())
    }
}

impl<R: Record> Iterator for Pass<'_, R> {
    type Item = Result<(Vec<u8>, R), Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.as_slice().is_empty()
            && !self.is_last
            && let Err(status) = self.read()
        {
            self.is_last = true;
            return Some(Err(status));
        }
        self.batch.next().map(Ok)
    }
}

/// The same records by the file, or directory, whose number is the first in their keys.
pub(super) struct Groups<'a, R: Record>(Peekable<Pass<'a, R>>);

impl<'a, R: Record> Groups<'a, R> {
    pub(super) fn new(pass: Pass<'a, R>) -> Groups<'a, R> {
        Groups(pass.peekable())
    }

    /// The file whose records come next.
    pub(super) fn next_file(&mut self) -> Result<Option<FileId>, Status> {
        match self.0.peek() {
            None => Ok(None),
            Some(Ok((key, _))) => directory(key).map(Some),
            Some(Err(status)) => Err(*status),
        }
    }

    /// Gives the records of a file to `each`. Files must be asked for in the order of their
    /// numbers; those between are passed over.
    pub(super) fn of(
        &mut self,
        file: FileId,
        mut each: impl FnMut(Vec<u8>, R) -> Result<(), Status>,
    ) -> Result<(), Status> {
        while let Some(next) = self.next_file()?.filter(|next| *next <= file) {
            if let Some(record) = self.0.next().transpose()?
                && next == file
            {
                each(record.0, record.1)?;
            }
        }
        Ok(())
    }
}

/// All inodes in the order of their numbers, as they are when they are asked for.
pub(super) struct Inodes<'a> {
    stored: Peekable<Pass<'a, Inode>>,
    /// The one that was given last.
    last: Option<FileId>,
}

impl<'a> Inodes<'a> {
    pub(super) fn new(stored: Pass<'a, Inode>) -> Inodes<'a> {
        Inodes { stored: stored.peekable(), last: None }
    }

    fn next_stored(&mut self) -> Result<Option<FileId>, Status> {
        match self.stored.peek() {
            None => Ok(None),
            Some(Ok((key, _))) => Ok(Some(FileId(number(key)?))),
            Some(Err(status)) => Err(*status),
        }
    }

    /// The next one. `changed`: those that are to be written.
    pub(super) fn next(
        &mut self,
        changed: &BTreeMap<FileId, Inode>,
    ) -> Result<Option<(FileId, Inode)>, Status> {
        let behind = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let changed_next = changed.range(behind).next().map(|(file, _)| *file);
        let next = [self.next_stored()?, changed_next].into_iter().flatten().min();
        let Some(file) = next else { return Ok(None) };
        self.last = next;
        Ok(self.get(file, changed)?.map(|inode| (file, inode)))
    }

    /// The one of a file. Files must be asked for in the order of their numbers.
    pub(super) fn get(
        &mut self,
        file: FileId,
        changed: &BTreeMap<FileId, Inode>,
    ) -> Result<Option<Inode>, Status> {
        let mut stored = None;
        while let Some(next) = self.next_stored()?.filter(|next| *next <= file) {
            let (_, inode) = self.stored.next().transpose()?.ok_or(Status::Io)?;
            stored = (next == file).then_some(inode);
        }
        Ok(changed.get(&file).cloned().or(stored))
    }
}
