//! Which transactions may be answered before they are durable, and what is held back until then.
//!
//! A file, directory, link or special file that is made in a class that lets it be lost is
//! *volatile* ([`Inode::late`]). What touches nothing else is committed late
//! ([`crate::engine::Engine::commit_late`]): it survives the end of this process, and a crash of
//! the machine may undo it, together with all that was committed after it. A sync follows soon, and
//! any durable commit is one.
//!
//! Commits have one order, so a commit that is durable has the directories of its names, however
//! late they were made. What comes after it must not move these names late: a directory ends being
//! volatile, with all above it, as soon as something durable is in it.
//!
//! Nobody may take the bytes that such a crash leaves for those that were written last. So late
//! commits are counted in *spans*, of which one ends with each sync. The bytes, size and attributes
//! of a file are changed late only if its record says that they were changed in one of the last few
//! spans, and then it says the present one. After a crash each volatile file of the last spans
//! counts as lost ([`crate::volume`]); older ones are as they were written. Of a file that a client
//! retains ([`crate::retained`]) names and removal count as its bytes do. Other objects have
//! nothing but their records, which are those of one moment, so their span does not matter.
//!
//! Invariants:
//! - A transaction is late only if each record that it writes is of a kind that is listed here.
//! - Blocks that a late transaction gives up are cleared when it is durable.
//! - What is not volatile has all of its names in directories that are not volatile, and these are
//!   in such directories up to the root. Nor has a volatile directory a name of a file with
//!   several.
//!
//! Absent on purpose: the engine, and the clock; [`crate::committer`] has these.

use std::ops::Range;

use larder_wire::meta::Status;
use larder_wire::meta::calls::{Made, MakeWhat, Special};
use larder_wire::meta::words::{DiskId, FileId, Kind, Medium};

use crate::change::Change;
use crate::data::copies::Sets;
use crate::inode::{self, Body};
use crate::names;
use crate::request::Request;
use crate::store::records::{Extent, Inode, Record};
use crate::store::{Txn, key};

/// In so many spans after its last change a file is changed late.
const SPANS: u64 = 4;
/// A file that was not changed for so many spans has no change that is not durable: more than
/// [`SPANS`], since a sync may end a span that has begun after it.
pub(crate) const SETTLED_SPANS: u64 = 2 * SPANS;
/// Most late transactions that are not durable: fewer than [`REUSE_GAP`].
const TRANSACTIONS_MAX: u64 = 100_000;
/// By so much numbers and versions are raised after a crash: what was given and lost is not given
/// again.
pub(crate) const REUSE_GAP: u64 = 1 << 20;

/// Blocks that are to be cleared.
type Blocks = Vec<(DiskId, Range<u64>)>;

/// The commits that are not durable.
#[derive(Debug)]
pub(crate) struct Late {
    /// Whether the engine knows late commits.
    is_possible: bool,
    span: u64,
    /// Number of the last late commit, and of the last one that is known to be durable.
    last: u64,
    durable: u64,
    /// Late transactions since then.
    transactions: u64,
    /// Whether the store says that no file has changes which are not durable.
    is_settled: bool,
    /// What late commits give up, by their number.
    held: Vec<(u64, Blocks)>,
}

/// The first span of an owner: later than all of the owners before.
pub(crate) fn first_span(epoch: u64) -> u64 {
    epoch << 32
}

impl Late {
    /// None yet. With an engine without late commits none is made.
    pub(crate) fn new(epoch: u64, is_possible: bool) -> Late {
        Late {
            is_possible,
            span: first_span(epoch),
            last: 0,
            durable: 0,
            transactions: 0,
            is_settled: true,
            held: Vec::new(),
        }
    }

    /// The span for what is made volatile. `None`: there is nothing volatile on this volume.
    fn span(&self, sets: &Sets) -> Option<u64> {
        (self.is_possible && sets.memory().next().is_some()).then_some(self.span)
    }

    /// Carries out a call that makes anything but a regular file.
    pub(crate) fn make(
        &self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        call: &Change,
        sets: &Sets,
    ) -> Result<Made, Status> {
        let (dentry, set, body, medium) = match call {
            Change::MkDir(call) => (&call.dentry, call.set, Body::Directory, Medium::Disk),
            Change::Symlink(call) => {
                (&call.dentry, call.set, Body::Symlink(call.target.0.clone()), Medium::Disk)
            }
            Change::MkNod(call) => {
                (&call.dentry, call.set, Body::Special(call.kind, call.device), Medium::Disk)
            }
            Change::Make(call) => {
                let body = match &call.what {
                    MakeWhat::Directory => Body::Directory,
                    MakeWhat::Symlink(target) => Body::Symlink(target.0.clone()),
                    MakeWhat::Special(Special { kind, device }) => Body::Special(*kind, *device),
                };
                (&call.dentry, call.set, body, call.medium)
            }
            _ => return Err(Status::Invalid),
        };
        let made = names::make(txn, request, dentry, body, set)?;
        let inode = inode::get(txn, made.made.file)?;
        self.made(txn, Some(medium), inode, sets);
        Ok(made)
    }

    /// What a call has made is volatile if its class lets bytes be in one memory alone: with more
    /// copies, no single crash is to lose it.
    pub(crate) fn made(
        &self,
        txn: &mut Txn<'_>,
        allocate: Option<Medium>,
        mut inode: Inode,
        sets: &Sets,
    ) -> Inode {
        let is_volatile = matches!(allocate, Some(Medium::Memory(0 | 1)));
        if let Some(span) = self.span(sets).filter(|_| is_volatile) {
            inode.late = span;
            inode::put(txn, &inode);
        }
        inode
    }

    /// Whether what a call, or the server itself, has written may be durable late. Files of which
    /// it changes more than names get the present span.
    ///
    /// # Errors
    /// [`Status::Io`]
    pub(crate) fn judge(
        &mut self,
        txn: &mut Txn<'_>,
        change: Option<&Change>,
        sets: &Sets,
    ) -> Result<bool, Status> {
        if !self.is_possible {
            return Ok(false);
        }
        let span = self.span(sets);
        let is_late = match span {
            Some(span) => {
                self.transactions < TRANSACTIONS_MAX
                    && change.is_none_or(is_known)
                    && Records { txn, change, sets, span }.are_volatile()?
            }
            None => false,
        };
        let on_record = on_record(txn)?;
        let dirs = change.map(parents).unwrap_or_default();
        if !is_late {
            dirs.iter().try_for_each(|dir| keep_directories(txn, *dir))?;
        }
        let is_changed = change.is_some_and(changes_content);
        for mut inode in on_record.into_iter().filter(|inode| inode.late != 0) {
            if inode.attributes.links > 1 {
                // Which names it has is not known from its record.
                let all = dirs.iter().chain([&inode.parent]);
                all.copied().try_for_each(|dir| keep_directories(txn, dir))?;
            }
            if inode.attributes.kind != Kind::File {
                continue;
            }
            if has_lasting(txn, inode.file(), sets)? {
                // A part of it was promised to be durable.
                keep(txn, inode)?;
            } else if let Some(span) = span.filter(|_| is_changed || is_retained(&inode)) {
                self.is_settled = false;
                if inode.late != span {
                    inode.late = span;
                    inode::put(txn, &inode);
                }
            } else {
                self.is_settled &= Some(inode.late) != span;
            }
        }
        Ok(is_late)
    }

    /// A commit is late, with so many transactions. Returns its number.
    pub(crate) fn committed(&mut self, transactions: u64) -> u64 {
        self.last += 1;
        self.transactions += transactions;
        self.last
    }

    /// The number of the last late commit.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// All up to this commit are durable. Returns what they gave up.
    pub(crate) fn synced(&mut self, number: u64) -> Blocks {
        self.durable = self.durable.max(number);
        if self.are_durable() {
            self.transactions = 0;
        }
        let due = self.held.extract_if(.., |(of, _)| *of <= number);
        due.flat_map(|(_, blocks)| blocks).collect()
    }

    /// The engine has synced what was committed late until then.
    pub(crate) fn end_span(&mut self) {
        self.span += 1;
    }

    /// Whether all commits are durable.
    pub(crate) fn are_durable(&self) -> bool {
        self.durable == self.last
    }

    /// A commit gives blocks up. They are returned if it is durable.
    pub(crate) fn hold(&mut self, number: u64, blocks: Blocks) -> Option<Blocks> {
        if number <= self.durable {
            return Some(blocks);
        }
        self.held.push((number, blocks));
        None
    }

    /// Whether no file of this owner has a span that counts as recent after a crash.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// If files were changed and all is durable now: the span from which on files may have
    /// changes that are not. To be put on record.
    pub(crate) fn settle(&mut self) -> Option<u64> {
        if self.is_settled || !self.are_durable() {
            return None;
        }
        self.is_settled = true;
        self.span += SETTLED_SPANS + 1;
        Some(self.span)
    }
}

/// A file of any kind is to be durable from now on, as it is, with its names.
pub(crate) fn keep(txn: &mut Txn<'_>, mut inode: Inode) -> Result<(), Status> {
    if inode.late != 0 {
        inode.late = 0;
        inode::put(txn, &inode);
        keep_directories(txn, inode.parent)?;
    }
    Ok(())
}

/// A directory, if it still exists, and those above it are to be durable from now on.
fn keep_directories(txn: &mut Txn<'_>, first: FileId) -> Result<(), Status> {
    let mut at = first;
    while let Some(mut dir) = txn.get::<Inode>(&key::inode(at))?.filter(|dir| dir.late != 0) {
        dir.late = 0;
        inode::put(txn, &dir);
        at = dir.parent;
    }
    Ok(())
}

/// What is no directory, and whose record, or extents, a transaction has written.
fn on_record(txn: &Txn<'_>) -> Result<Vec<Inode>, Status> {
    let mut files = Vec::new();
    for key in txn.written().keys().filter(|key| matches!(key[0], b'i' | b'x')) {
        let file = key.get(1..9).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
        files.push(u64::from_be_bytes(*file));
    }
    files.sort_unstable();
    files.dedup();
    let mut found = Vec::new();
    for file in files {
        let inode = txn.get::<Inode>(&key::inode(FileId(file)))?;
        found.extend(inode.filter(|inode| !inode.is_directory()));
    }
    Ok(found)
}

/// Whether a transaction has put bytes of a file on a disk that is no memory disk.
fn has_lasting(txn: &Txn<'_>, file: FileId, sets: &Sets) -> Result<bool, Status> {
    for (key, _) in txn.written().range(key::extent(file, 0)..=key::extent(file, u64::MAX)) {
        let extent = txn.get::<Extent>(key)?;
        if extent.is_some_and(|extent| !sets.is_memory(extent.disk)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a call changes more of files than their names.
fn changes_content(change: &Change) -> bool {
    !matches!(
        change,
        Change::Remove(_)
            | Change::Rename(_)
            | Change::Link(_)
            | Change::Close(_)
            | Change::Alloc(_)
            | Change::AllocNear(_)
    )
}

/// Whether the bytes of a file are with a client, which drops them when its last name is removed:
/// if that is undone, nobody has them.
fn is_retained(inode: &Inode) -> bool {
    inode.whereabouts.client().is_some()
}

/// Whether a call may be late at all.
fn is_known(change: &Change) -> bool {
    matches!(
        change,
        Change::SetAttr(_)
            | Change::Open(_)
            | Change::Close(_)
            | Change::Alloc(_)
            | Change::AllocNear(_)
            | Change::CommitExtents(_)
            | Change::Retain(_)
            | Change::Punch(_)
            | Change::Make(_)
            | Change::Link(_)
            | Change::Remove(_)
            | Change::RmDir(_)
            | Change::Rename(_)
            | Change::SetXattr(_)
            | Change::RemoveXattr(_)
    )
}

/// The directories in which a call makes or removes names.
fn parents(change: &Change) -> Vec<FileId> {
    use larder_wire::meta::calls::OpenWhat;
    match change {
        Change::Open(call) => match &call.what {
            OpenWhat::Create(create) => vec![create.dentry.dir],
            OpenWhat::File(_) | OpenWhat::Name(_) => Vec::new(),
        },
        Change::MkDir(call) => vec![call.dentry.dir],
        Change::Symlink(call) => vec![call.dentry.dir],
        Change::MkNod(call) => vec![call.dentry.dir],
        Change::Make(call) => vec![call.dentry.dir],
        Change::Link(call) => vec![call.dentry.dir],
        Change::Remove(call) => vec![call.dentry.dir],
        Change::RmDir(call) => vec![call.dentry.dir],
        Change::Rename(call) => vec![call.from.dir, call.to.dir],
        _ => Vec::new(),
    }
}

/// What a transaction has written.
struct Records<'a, 'b> {
    txn: &'a Txn<'b>,
    change: Option<&'a Change>,
    sets: &'a Sets,
    span: u64,
}

impl Records<'_, '_> {
    /// Whether a crash may undo all of it.
    fn are_volatile(&self) -> Result<bool, Status> {
        for (key, value) in self.txn.written() {
            let is_calls = self.change.is_some();
            let is_volatile = match key[0] {
                // The next number, replies, names and what goes with a volatile file: each has its
                // inode in the same transaction.
                b'v' | b'r' | b'e' | b'l' | b'm' | b'o' | b'a' | b'c' => is_calls,
                b'f' | b'd' => self.is_on_memory(key)?,
                b't' => self.is_of_memory(key)?,
                b'x' => is_calls && self.extent_is_in_memory(key, value.as_ref())?,
                b'p' | b'g' => self.extent_is_in_memory(key, value.as_ref())?,
                b'i' => is_calls && self.inode_is_volatile(key, value.as_ref())?,
                _ => false,
            };
            if !is_volatile {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_on_memory(&self, key: &[u8]) -> Result<bool, Status> {
        Ok(self.sets.is_memory(disk(key)?))
    }

    fn is_of_memory(&self, key: &[u8]) -> Result<bool, Status> {
        Ok(self.sets.of(disk(key)?).is_some_and(|(set, _)| self.sets.is_memory(set)))
    }

    fn extent_is_in_memory(&self, key: &[u8], value: Option<&Vec<u8>>) -> Result<bool, Status> {
        let after = value.map(|value| Extent::from_bytes(value.clone()));
        let after = after.transpose().map_err(|_never| Status::Io)?;
        let mut both = after.into_iter().chain(self.txn.before::<Extent>(key)?);
        Ok(both.all(|extent| self.sets.is_memory(extent.disk)))
    }

    fn inode_is_volatile(&self, key: &[u8], value: Option<&Vec<u8>>) -> Result<bool, Status> {
        let Some(change) = self.change else { return Ok(false) };
        let before = self.txn.before::<Inode>(key)?;
        let after = value.map(|value| Inode::from_bytes(value.clone()));
        let after = after.transpose().map_err(|_never| Status::Io)?;
        Ok(match (before, after) {
            (Some(before), Some(after)) => {
                let are_late = before.late != 0 && after.late != 0;
                match before.attributes.kind {
                    // That its names change is as volatile as what they stand for.
                    Kind::Directory => are_late || parents(change).contains(&after.file()),
                    Kind::File => {
                        let is_content = changes_content(change) || is_retained(&before);
                        are_late && (self.is_recent(&before) || !is_content)
                    }
                    _ => are_late,
                }
            }
            (Some(gone), None) => gone.late != 0 && (self.is_recent(&gone) || !is_retained(&gone)),
            (None, Some(new)) => new.late != 0,
            (None, None) => true,
        })
    }

    /// Whether a file counts as lost if the machine crashes now.
    fn is_recent(&self, inode: &Inode) -> bool {
        inode.late.saturating_add(SPANS) >= self.span
    }
}

/// The disk in a key, after its tag.
fn disk(key: &[u8]) -> Result<DiskId, Status> {
    let disk = key.get(1..5).and_then(<[u8]>::first_chunk).ok_or(Status::Io)?;
    Ok(DiskId(u32::from_be_bytes(*disk)))
}
