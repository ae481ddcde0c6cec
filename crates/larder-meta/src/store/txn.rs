//! A transaction: the store as it was, and a call's writes on top.
//!
//! Everything that the server does to names, files and blocks is a function of a [`Txn`], the call
//! and its caller. It reads what is durable, what earlier calls of the same group wrote, and what
//! it wrote itself; what it writes is taken as a whole or not at all.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, SessionId};

use super::records::{Record, key};
use crate::engine::{EngineError, View, Writes, layers};

/// Entries of a scan: the key, and the record.
pub(crate) type Entries<R> = Vec<(Vec<u8>, R)>;

/// A transaction.
pub(crate) struct Txn<'a> {
    below: &'a dyn View,
    group: &'a Writes,
    own: Writes,
    effects: Effects,
}

/// What must happen at the disks before a call is answered, or blocks are used again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Whose capabilities end with it.
    pub(crate) revoked: BTreeSet<Revoked>,
    /// Those of them that were not [taken](Txn::take_revoked).
    pub(crate) untaken: BTreeSet<Revoked>,
    /// Blocks that are free once those are revoked.
    pub(crate) draining: Vec<(DiskId, Range<u64>)>,
    /// Files that are no more.
    pub(crate) gone: Vec<FileId>,
    /// When a file's bytes on a set of memory disks are due on others, in ms.
    pub(crate) due: Vec<(DiskId, FileId, u64)>,
}

/// Capabilities that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revoked {
    /// All on a file.
    File(FileId),
    /// Those of a session on a file.
    Session(SessionId, FileId),
    /// All of a session.
    All(SessionId),
}

impl<'a> Txn<'a> {
    /// A transaction on top of a view and of what earlier calls of the group wrote.
    pub(crate) fn new(below: &'a dyn View, group: &'a Writes) -> Txn<'a> {
        Txn { below, group, own: Writes::new(), effects: Effects::default() }
    }

    /// What it wrote, and what must then happen at the disks.
    pub(crate) fn finish(self) -> (Writes, Effects) {
        (self.own, self.effects)
    }

    /// Capabilities end with this.
    pub(crate) fn revoke(&mut self, revoked: Revoked) {
        self.effects.revoked.insert(revoked);
        self.effects.untaken.insert(revoked);
    }

    /// The capabilities that end with what was done so far: those that are made from now on do not.
    pub(crate) fn take_revoked(&mut self) -> BTreeSet<Revoked> {
        std::mem::take(&mut self.effects.untaken)
    }

    /// Blocks are given up with this.
    pub(crate) fn drain(&mut self, disk: DiskId, blocks: Range<u64>) {
        self.effects.draining.push((disk, blocks));
    }

    /// A file is no more.
    pub(crate) fn forget(&mut self, file: FileId) {
        self.effects.gone.push(file);
    }

    /// A file has bytes on a set of memory disks that are due on others then.
    pub(crate) fn due(&mut self, set: DiskId, file: FileId, due_ms: u64) {
        self.effects.due.push((set, file, due_ms));
    }

    /// What it wrote so far.
    pub(crate) fn written(&self) -> &Writes {
        &self.own
    }

    /// The record of a key before the transaction.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn before<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Status> {
        let value = layers::get(&[self.group], self.below, key).map_err(report)?;
        value.map(|value| read(key, value)).transpose()
    }

    /// Whether it wrote nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// The record of a key.
    ///
    /// # Errors
    /// [`Status::Io`] if the store fails, or contains something else there.
    pub(crate) fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Status> {
        let value = layers::get(&[&self.own, self.group], self.below, key).map_err(report)?;
        value.map(|value| read(key, value)).transpose()
    }

    /// Up to `limit` records from `from` on, of keys below `until`.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn scan<R: Record>(
        &self,
        from: &[u8],
        until: &[u8],
        limit: usize,
    ) -> Result<Entries<R>, Status> {
        let mut found = Vec::new();
        self.visit(from, until, |key, record| {
            found.push((key.to_vec(), record));
            let is_full = found.len() >= limit;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }

    /// Gives each record whose key begins with `prefix` to `each`, in order, so that not all of
    /// them are in memory.
    ///
    /// # Errors
    /// [`Status::Io`], and those of `each`
    pub(crate) fn each<R: Record>(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8], R) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.visit(prefix, &key::after(prefix), |key, record| {
            each(key, record).map(ControlFlow::Continue)
        })
    }

    fn visit<R: Record>(
        &self,
        from: &[u8],
        until: &[u8],
        mut each: impl FnMut(&[u8], R) -> Result<ControlFlow<()>, Status>,
    ) -> Result<(), Status> {
        let mut failed = None;
        let mut visitor = |key: &[u8], value: &[u8]| {
            let visited = read(key, value.to_vec()).and_then(|record| each(key, record));
            visited.unwrap_or_else(|status| {
                failed = Some(status);
                ControlFlow::Break(())
            })
        };
        layers::scan(&[&self.own, self.group], self.below, from, until, &mut visitor)
            .map_err(report)?;
        failed.map_or(Ok(()), Err)
    }

    /// All records whose keys begin with `prefix`.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn scan_all<R: Record>(&self, prefix: &[u8]) -> Result<Entries<R>, Status> {
        self.scan(prefix, &key::after(prefix), usize::MAX)
    }

    /// Writes a record.
    pub(crate) fn put(&mut self, key: Vec<u8>, record: &impl Record) {
        self.own.insert(key, Some(record.to_bytes()));
    }

    /// Removes the record of a key.
    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.own.insert(key, None);
    }
}

fn read<R: Record>(key: &[u8], value: Vec<u8>) -> Result<R, Status> {
    R::from_bytes(value).map_err(|cause| {
        tracing::error!("the {} record at \"{}\" is {cause}", R::KIND, key.escape_ascii());
        Status::Io
    })
}

fn report(error: EngineError) -> Status {
    error.status()
}
