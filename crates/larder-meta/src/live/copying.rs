//! Which disks of a set are read and written, and bringing them up to date; and which sessions were
//! granted to write in place, and what happens to a file whose writer does not commit.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use larder_wire::meta::calls::{CommitExtents, FileChanged};
use larder_wire::meta::words::{
    ByteRange, DiskId, DiskInfo, Extent, ExtentState, FileId, Grant, Layout, Mode, SessionId, Time,
    Written,
};
use larder_wire::meta::{EXTENTS_MAX, Status};
use larder_wire::xdr::{Array, Opaque};

use super::{Live, Moment};
use crate::data::{self, Map, Plan, blocks, copies};
use crate::disks::{Minted, Stores};
use crate::in_place::Mark;
use crate::inode;
use crate::issued::{Purpose, Taken};
use crate::request::Request;
use crate::resilver::{Source, Step, Task};
use crate::store::txn::Revoked;
use crate::store::{Txn, key, records};

/// Bytes of a disk.
type OnDisk = (DiskId, Vec<Range<u64>>);

/// What a task of resilvering uses.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, in a box")]
pub(crate) enum Doing {
    /// To copy bytes from a disk to the same position of another.
    Copy { from: (DiskId, Minted), to: (DiskId, Minted), bytes: Range<u64> },
    /// To have them read as zeros.
    Clear { bytes: Range<u64> },
}

/// The session number for capabilities of the task of a disk. It belongs to no session: their
/// numbers are random.
fn resilverer(to: DiskId) -> SessionId {
    let mut id = [0; 16];
    id[12..].copy_from_slice(&to.0.to_be_bytes());
    SessionId(id)
}

/// A task that copies has this many capabilities.
const TASK_CAPABILITIES: usize = 2;

/// Blocks that the disks of their set have cleared, except some that were away.
#[derive(Clone, Debug)]
pub(crate) struct Cleared {
    pub(crate) set: DiskId,
    pub(crate) bytes: Range<u64>,
    pub(crate) missed: Vec<DiskId>,
}

impl Live {
    /// A layout with its grants. An empty range has an empty one.
    pub(super) fn layout(
        &mut self,
        txn: &mut Txn<'_>,
        session: SessionId,
        file: FileId,
        mode: Mode,
        range: ByteRange,
        moment: Moment,
    ) -> Result<Layout, Status> {
        let Some(bytes) = range.get() else {
            let covered = ByteRange { offset: range.offset, length: 0 };
            return Ok(Layout { covered, extents: Array::default(), grants: Array::default() });
        };
        let inode = inode::get(txn, file)?;
        let plan = match inode.whereabouts.is_lost() {
            true => data::lost_layout(&inode, &bytes),
            false => data::layout(txn, (session, file), mode, &bytes, &self.sets)?,
        };
        let (plan, lost) = self.restoring.shorten(txn, &self.archive, file, plan)?;
        if let Some(set) = lost {
            self.destage.note(set, file, 0);
        }
        let Plan { covered, extents, grants } = plan;
        self.note_grant(txn, (file, session), mode, &extents);
        // Capabilities that the call ends were made before; those that it makes now stay.
        let revoked = txn.take_revoked();
        self.ended.extend(revoked.into_iter().flat_map(|revoked| self.issued.take(revoked)));
        let mut given = Vec::with_capacity(grants.len());
        let purpose = Purpose { session, file, mode };
        for (set, ranges) in grants {
            for (disk, ranges) in self.copies_of(txn, set, &ranges, mode)? {
                let Some(minted) = self.mint(purpose, disk, &ranges, moment.instant) else {
                    continue;
                };
                let expires_ms = u32::try_from(minted.lasts.as_millis()).unwrap_or(u32::MAX);
                let (capability, secret) = (Opaque(minted.capability), minted.secret);
                given.push(Grant { disk: set, mode, expires_ms, capability, secret });
            }
        }
        Ok(Layout { covered, extents: Array(extents), grants: Array(given) })
    }

    /// Makes a capability that ends with what it is for.
    pub(super) fn mint(
        &mut self,
        purpose: Purpose,
        disk: DiskId,
        ranges: &[Range<u64>],
        now: Instant,
    ) -> Option<Minted> {
        let minted = self.disks.mint(disk, purpose.mode, ranges)?;
        self.issued.add(purpose, (disk, minted.name), now + minted.lasts, now);
        if self.sets.boot(disk).is_some_and(|boot| boot != minted.boot) {
            // What the disk had before is lost, and that is not recorded yet.
            self.noticed.is_restarted(disk, minted.boot);
            return None;
        }
        Some(minted)
    }

    /// Frees blocks that the disks have cleared.
    pub(crate) fn free(
        &mut self,
        txn: &mut Txn<'_>,
        Cleared { set, bytes, missed }: &Cleared,
    ) -> Result<(), Status> {
        blocks::free(txn, (*set, &self.sets), bytes, missed)?;
        self.cursors.of(self.sets.is_memory(*set)).freed(*set, bytes);
        Ok(())
    }

    /// The disks, as clients learn of them.
    pub(super) fn disks_told(&self) -> Vec<DiskInfo> {
        let mut disks = self.disks.list();
        for info in &mut disks {
            info.leaves = self.sets.of(info.disk).is_some_and(|(_, set)| set.leaves);
        }
        disks
    }

    /// The disks of a set.
    pub(crate) fn disks_of(&self, set: DiskId) -> &[DiskId] {
        self.sets.disks(set)
    }

    /// The disks of a set to be read or written, and which of these ranges they have. Disks that
    /// are away are not written if another one is there, and are read only if no other has the
    /// bytes.
    pub(super) fn copies_of(
        &self,
        txn: &Txn<'_>,
        set: DiskId,
        ranges: &[Range<u64>],
        mode: Mode,
    ) -> Result<Vec<OnDisk>, Status> {
        let disks = self.sets.disks(set);
        if let ([disk], false) = (disks, self.sets.may_be_stale(set)) {
            return Ok(vec![(*disk, ranges.to_vec())]);
        }
        let (there, away): (Vec<DiskId>, Vec<DiskId>) =
            disks.iter().partition(|disk| self.disks.is_there(**disk));
        let is_alone = there.is_empty();
        let (mut found, mut missing) = (Vec::new(), ranges.to_vec());
        let whole = |disk: DiskId| -> Result<_, Status> {
            let mut whole = copies::whole(txn, disk, ranges)?;
            whole.truncate(EXTENTS_MAX);
            Ok((disk, whole))
        };
        for disk in there {
            let (disk, whole) = whole(disk)?;
            missing = copies::without(&missing, &whole);
            found.push((disk, whole));
        }
        if is_alone || (!mode.writes() && !missing.is_empty()) {
            found.extend(away.into_iter().map(whole).collect::<Result<Vec<_>, _>>()?);
        }
        found.retain(|(_, whole)| !whole.is_empty());
        Ok(found)
    }

    /// The next stale blocks of disks.
    pub(crate) fn next_stale(&mut self, txn: &Txn<'_>) -> Result<Step, Status> {
        let disks = &self.disks;
        self.resilver.next(txn, &self.sets, &|disk| disks.is_there(disk))
    }

    /// A task begins: returns what it uses, and the capabilities that end first. Nothing if none
    /// can be made for it now.
    pub(crate) fn begin_task(&mut self, task: &Task, now: Instant) -> Option<(Doing, Vec<Taken>)> {
        let (to, bytes) = (task.to, task.bytes.clone());
        self.resilver.begun(to, now);
        let Source::Copy(from, file) = task.source else {
            return Some((Doing::Clear { bytes }, Vec::new()));
        };
        let own = resilverer(task.to);
        // A client may write there late.
        let ended = self.issued.take_writers(file, to);
        let mut mint = |disk, mode| {
            let purpose = Purpose { session: own, file, mode };
            self.mint(purpose, disk, std::slice::from_ref(&bytes), now).map(|one| (disk, one))
        };
        let (from, to) = (mint(from, Mode::Read)?, mint(to, Mode::Write)?);
        Some((Doing::Copy { from, to, bytes }, ended))
    }

    /// A task has been done, or not. Its capabilities end.
    pub(crate) fn end_task(
        &mut self,
        txn: &mut Txn<'_>,
        to: DiskId,
        is_done: bool,
    ) -> Result<(), Status> {
        let Some(task) = self.resilver.ended(to) else { return Ok(()) };
        let bytes = match task.source {
            Source::Copy(_, file) => {
                let has_lasted = self.issued.count(resilverer(to), file) == TASK_CAPABILITIES;
                txn.revoke(Revoked::Session(resilverer(to), file));
                vec![task.bytes].into_iter().filter(|_| has_lasted).collect()
            }
            // Its present owner has written it after the clearing, but not on that disk.
            Source::Clear => blocks::free_in(txn, self.set_of(to), &task.bytes)?,
        };
        for bytes in bytes.iter().filter(|_| is_done) {
            copies::remove_stale(txn, to, bytes)?;
            self.resilver.brought(to, bytes.end - bytes.start);
        }
        Ok(())
    }

    /// Disks have reported their stores.
    pub(crate) fn stores_told(&mut self, stores: Stores) {
        self.stores.found(stores);
    }

    /// Puts on record from which stores disks serve.
    pub(crate) fn note_stores(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        for disk in self.stores.note(txn, &self.sets)? {
            self.end_copy_to(txn, disk);
        }
        Ok(())
    }

    /// What is on record is durable: the disks may be used.
    pub(crate) fn accept_stores(&mut self) {
        for (disk, store) in self.stores.take_recorded() {
            self.disks.accept_store(disk, store);
        }
    }

    /// The task of a disk counts for nothing: it copies to a store that the disk has no more.
    fn end_copy_to(&mut self, txn: &mut Txn<'_>, disk: DiskId) {
        if let Some(task) = self.resilver.ended(disk)
            && let Source::Copy(_, file) = task.source
        {
            txn.revoke(Revoked::Session(resilverer(disk), file));
        }
    }

    fn set_of(&self, disk: DiskId) -> DiskId {
        self.sets.of(disk).map_or(disk, |(set, _)| set)
    }
}

/// What is written in place, and what is left of it.
impl Live {
    /// A session is granted these extents of a file.
    pub(super) fn note_grant(
        &mut self,
        txn: &mut Txn<'_>,
        mark: Mark,
        mode: Mode,
        extents: &[Extent],
    ) {
        let is_committed = |extent: &Extent| extent.state == ExtentState::Committed;
        let is_in_place = mode.writes() && !self.sets.are_written_anew();
        if is_in_place && extents.iter().any(is_committed) && self.in_place.granted(mark) {
            txn.put(key::in_place(mark.0, mark.1), &records::InPlace {});
        }
    }

    /// Within which times what a commit has on memory disks is to be on others, and in the archive.
    fn due_where(&self, call: &CommitExtents) -> (Option<u32>, Option<u32>) {
        let is_in_memory = |part: &Written| self.sets.is_memory(part.disk);
        match self.archive.is_durable() && call.written.0.iter().any(is_in_memory) {
            true => (None, call.due_ms.into_iter().chain(call.archive_ms).min()),
            false => (call.due_ms, call.archive_ms),
        }
    }

    /// COMMIT_EXTENTS.
    pub(super) fn commit(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &CommitExtents,
    ) -> Result<FileChanged, Status> {
        let may = self.need_data(txn, request, call.file, call.open, Mode::Write);
        let (due_ms, archive_ms) = self.due_where(call);
        let due_ms =
            due_ms.map_or(records::NEVER_MS, |within| self.destage.due_ms(moment.instant, within));
        // What was written in place before a disk began to leave is written again.
        let is_in_place = self.in_place.has((call.file, request.session));
        let mut committed =
            may.and_then(|_| data::commit(txn, request, call, (&self.sets, is_in_place), due_ms));
        if let (Ok(_), Some(within_ms)) = (&committed, archive_ms)
            && let Err(status) =
                self.archive.changed(txn, call.file, within_ms.into(), moment.instant)
        {
            committed = Err(status);
        }
        self.note_commit((call.file, request.session), committed.is_ok(), call.all);
        committed
    }

    /// A session has committed something, or `all` that it wrote; or the commit was refused: then
    /// it will not be committed.
    pub(super) fn note_commit(&mut self, mark: Mark, is_done: bool, all: bool) {
        if is_done && all {
            self.in_place.committed(mark);
        } else if !is_done && self.in_place.left(mark) {
            self.refused.push(mark);
        }
    }

    /// Whether a commit was refused that may have left something.
    pub(crate) fn was_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Ends the capabilities under which what is left may have been written.
    pub(crate) fn end_refused(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        for (file, session) in std::mem::take(&mut self.refused) {
            txn.revoke(Revoked::Session(session, file));
        }
        Ok(())
    }

    /// What is left when capabilities end.
    pub(crate) fn left_with(&mut self, revoked: &Revoked) -> Vec<Mark> {
        match *revoked {
            Revoked::All(session) => {
                let all = self.in_place.writing(session);
                all.into_iter().filter(|mark| self.in_place.left(*mark)).collect()
            }
            Revoked::Session(session, file) => {
                let mark = Some((file, session));
                mark.into_iter().filter(|mark| self.in_place.is_left(*mark)).collect()
            }
            // Their holders may continue with others.
            Revoked::File(_) => Vec::new(),
        }
    }

    /// The disks that have bytes of a file.
    pub(crate) fn disks_with(&self, txn: &Txn<'_>, file: FileId) -> Result<Vec<DiskId>, Status> {
        let pieces = Map::File(file).overlapping(txn, &(0..u64::MAX), usize::MAX)?;
        let sets: BTreeSet<DiskId> = pieces.into_iter().map(|piece| piece.disk).collect();
        Ok(sets.into_iter().flat_map(|set| self.sets.disks(set)).copied().collect())
    }

    /// What is left of a file cannot change any more, and the disks have it: the file gets a new
    /// data version, so clients that have cached bytes of it ask again.
    pub(crate) fn mend(&mut self, txn: &mut Txn<'_>, mark: Mark, now: Time) -> Result<(), Status> {
        match inode::get(txn, mark.0) {
            Ok(mut inode) => {
                inode.doubt(now);
                inode::put(txn, &inode);
            }
            Err(Status::Stale) => {}
            Err(error) => return Err(error),
        }
        if self.in_place.mended(mark) {
            txn.delete(key::in_place(mark.0, mark.1));
        }
        Ok(())
    }

    /// Forgets the marks of writers that have committed everything.
    pub(crate) fn forget_committed(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        for (file, session) in self.in_place.forget_clean() {
            txn.delete(key::in_place(file, session));
        }
        Ok(())
    }
}
