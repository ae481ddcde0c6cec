//! Begins and ends moves of bytes to other disks: from memory disks when they are due
//! ([`crate::destage`]), when the archive does not have them in time, or
//! when their machines lack memory ([`super::yielding`]: then to other
//! memory disks, if these have room), and from disks that leave ([`crate::leaving`]).

use std::time::Instant;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, Kind, Medium, Mode, SessionId};

use super::Live;
use super::restoring::Kept;
use crate::data;
use crate::data::blocks::{self, Cursors, Room};
use crate::data::copies::Sets;
use crate::data::memory::{self, Standing};
use crate::data::moving::{self, Found, Leg, Move};
use crate::disks::{Failed, Minted, Moved, Outcome};
use crate::inode;
use crate::issued::{Purpose, Taken};
use crate::late;
use crate::store::records::{NEVER_MS, Orphan};
use crate::store::txn::Revoked;
use crate::store::{Txn, key};

/// The session under which capabilities of moves are issued. Ids of real sessions are random.
const MOVER: SessionId = SessionId(*b"\0\0\0\0\0\0\0\0larder-m");

/// A copy to be made to a disk.
struct Copy {
    leg: Leg,
    from: Origin,
    to: (DiskId, Minted),
}

/// Where the bytes of a copy are.
enum Origin {
    Disk(DiskId, Minted),
    Archive(Kept),
}

/// A move that has begun, and the copies that it takes.
pub(crate) struct Copying {
    pub(crate) file: FileId,
    copies: Vec<Copy>,
}

impl Live {
    /// A file's bytes are due then, as its record says.
    pub(crate) fn is_due(&mut self, set: DiskId, file: FileId, due_ms: u64) {
        self.destage.note(set, file, due_ms);
    }

    /// What a file has in memory is due on other disks within this time, if it is not due before;
    /// or in the archive, if that is durable and there is time. Returns when it is due on disks.
    ///
    /// # Errors
    /// [`Status::Stale`], [`Status::Io`]
    pub(crate) fn hasten(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        due_ms: u32,
        now: Instant,
    ) -> Result<u64, Status> {
        let inode = inode::get(txn, file)?;
        if due_ms > 0 && self.archive.is_durable() && inode.attributes.kind == Kind::File {
            self.hasten_to_archive(txn, file, due_ms, now)?;
            return Ok(NEVER_MS);
        }
        if due_ms == 0 {
            late::keep(txn, inode)?;
        }
        let due_ms = self.destage.due_ms(now, due_ms);
        for (set, _) in self.sets.memory() {
            if !memory::on_set(txn, set, file)?.is_empty() {
                memory::note(txn, (set, file), due_ms, false)?;
            }
        }
        Ok(due_ms)
    }

    /// What became of bytes of a file in memory that were due then.
    ///
    /// # Errors
    /// As [`Live::hasten`]
    pub(crate) fn standing(
        &self,
        txn: &Txn<'_>,
        file: FileId,
        due_ms: u64,
    ) -> Result<Standing, Status> {
        inode::get(txn, file)?;
        memory::standing(txn, file, due_ms, &self.sets)
    }

    /// Whether bytes of a file are being moved.
    pub(crate) fn is_moving(&self, file: FileId) -> bool {
        self.destage.moving(file).is_some()
    }

    /// When the next bytes are due, or files are to be searched for that have some on disks that
    /// leave. `now` is that or a moment before it.
    pub(crate) fn first_due(&self, now: Instant) -> Option<Instant> {
        let search = self.leaving.due(&self.sets, now);
        self.destage.first_due().into_iter().chain(search).min()
    }

    /// Searches for more files with bytes on disks that leave, if that is due.
    pub(crate) fn look_for_leaving(&mut self, txn: &Txn<'_>, now: Instant) -> Result<(), Status> {
        for (set, file) in self.leaving.look(txn, &self.sets, now)? {
            self.destage.note(set, file, 0);
        }
        Ok(())
    }

    /// The disks that leave, all of whose blocks are free.
    pub(crate) fn emptied(&self, txn: &Txn<'_>) -> Result<Vec<DiskId>, Status> {
        let mut emptied = Vec::new();
        for (set, about) in self.sets.leaving() {
            if blocks::are_all_free(txn, set, about.bytes)? {
                emptied.extend(about.disks.iter().copied());
            }
        }
        Ok(emptied)
    }

    /// The volume has other disks from now on, or others leave. Capabilities on one that was
    /// removed end.
    pub(crate) fn disks_changed(
        &mut self,
        txn: &mut Txn<'_>,
        gone: Option<DiskId>,
    ) -> Result<Vec<Taken>, Status> {
        let mut sets = Sets::load(txn)?;
        sets.set_limits(self.sets.limits().clone());
        if self.sets.are_written_anew() && !sets.are_written_anew() {
            self.write_in_place(txn)?;
        }
        self.sets = sets;
        self.leaving.sets_changed(&self.sets);
        self.cursors = Cursors::default();
        Ok(gone.map(|disk| self.issued.take_on(disk)).unwrap_or_default())
    }

    /// Committed blocks are written in place from now on: no move in progress counts, and no
    /// session has blocks that are to be put in place of committed ones.
    fn write_in_place(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        data::drop_superseding(txn)?;
        for file in self.destage.files_moving() {
            txn.revoke(Revoked::Session(MOVER, file));
        }
        Ok(())
    }

    /// The next file that may have bytes that are due by now.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(DiskId, FileId, u64)> {
        self.destage.next(now)
    }

    /// Begins to move a file's bytes, if they are due or make room for others. They may be copied
    /// once the transaction is durable, and no capability of the file that it ends is valid any
    /// more.
    pub(crate) fn begin_move(
        &mut self,
        txn: &mut Txn<'_>,
        (set, file, now_ms): (DiskId, FileId, u64),
        now: Instant,
    ) -> Result<Option<Copying>, Status> {
        if let Some(copying) = self.begin_restore(txn, (set, file), now)? {
            return Ok(Some(copying));
        }
        let leaves = self.sets.leaves(set);
        let mut makes_room = false;
        let mut due_ms = self.leaves_ms(txn, set, file)?;
        if due_ms > now_ms && leaves {
            if let Some(until) = self.leaving.held_until(now) {
                self.destage.note_at(set, file, until);
                return Ok(None);
            }
            due_ms = NEVER_MS;
        } else if due_ms > now_ms && self.yields(txn, set)? {
            (due_ms, makes_room) = (NEVER_MS, true);
        } else if due_ms > now_ms {
            if due_ms != NEVER_MS {
                self.destage.note(set, file, due_ms);
            }
            return Ok(None);
        }
        let is_orphan = !leaves && txn.get::<Orphan>(&key::orphan(file))?.is_some();
        if is_orphan && !self.opens.is_open(file) {
            // The file has no name, and is removed unless a client from before the server's start
            // opens it again.
            self.destage.put_off(set, file, now);
            return Ok(None);
        }
        match self.take_room(txn, (set, file), makes_room, now)? {
            Found::Move(found) => match self.mint_copies(&found, None, now) {
                Some(copies) => {
                    if leaves {
                        // Under these committed blocks may be written in place, from before the
                        // disk began to leave.
                        for disk in found.reads().keys() {
                            self.ended.extend(self.issued.take_writers(file, *disk));
                        }
                        self.leaving.begun(found.bytes(), now);
                    }
                    self.destage.begun(found, due_ms);
                    Ok(Some(Copying { file, copies }))
                }
                None => {
                    found.give_up(txn);
                    txn.revoke(Revoked::Session(MOVER, file));
                    self.destage.put_off(set, file, now);
                    Ok(None)
                }
            },
            Found::Away => {
                self.destage.put_off(set, file, now);
                Ok(None)
            }
            found @ (Found::Lost | Found::None) => {
                self.leaving.done(set, file);
                if self.sets.is_memory(set) {
                    memory::is_not_due(txn, (set, file), found == Found::Lost);
                }
                Ok(None)
            }
        }
    }

    /// Takes blocks for bytes of a file that are moved from a set: those that are not due, and only
    /// make room there, on other memory disks if these have some; all others on disks.
    fn take_room(
        &mut self,
        txn: &mut Txn<'_>,
        of: (DiskId, FileId),
        makes_room: bool,
        now: Instant,
    ) -> Result<Found, Status> {
        let is_there = &|disk| self.disks.is_there(disk);
        if makes_room {
            let avoided = self.yielding.avoided(now);
            let takes = &|disk| {
                let set = self.sets.of(disk).map(|(set, _)| set);
                is_there(disk) && set.is_some_and(|set| set != of.0 && !avoided.contains(&set))
            };
            let copies = u32::try_from(self.sets.disks(of.0).len()).unwrap_or(u32::MAX);
            let medium = Medium::Memory(copies);
            let room = Room { sets: &self.sets, is_there: takes, medium };
            match moving::begin(txn, of, is_there, &mut self.cursors, room) {
                Err(Status::NoSpace) => {}
                found => return found,
            }
        }
        let room = Room { sets: &self.sets, is_there, medium: Medium::Disk };
        moving::begin(txn, of, is_there, &mut self.cursors, room)
    }

    /// There is no room for a file's bytes, or its records cannot be read.
    pub(crate) fn cannot_move(&mut self, set: DiskId, file: FileId, now: Instant) {
        self.destage.put_off(set, file, now);
        if !self.destage.is_short(now) {
            tracing::warn!("bytes are due on other disks, and those have no room");
        }
        self.destage.rest(now);
    }

    /// A memory disk has lost what was moved to it: these moves count for nothing.
    pub(super) fn end_moves_to(&self, txn: &mut Txn<'_>, disk: DiskId) {
        let Some((set, _)) = self.sets.of(disk) else { return };
        for file in self.destage.files_to(set) {
            txn.revoke(Revoked::Session(MOVER, file));
        }
    }

    /// Begins to write anew what memory disks have lost, if the archive has it: to memory if the
    /// archive is durable, otherwise to disks; if there is no room, to the other.
    fn begin_restore(
        &mut self,
        txn: &mut Txn<'_>,
        (set, file): (DiskId, FileId),
        now: Instant,
    ) -> Result<Option<Copying>, Status> {
        let Some(kept) = self.restoring.kept(txn, &self.archive, file)? else { return Ok(None) };
        let copies = u32::try_from(self.sets.disks(set).len()).unwrap_or(u32::MAX);
        let mut media = [Medium::Disk, Medium::Memory(copies)];
        if self.archive.is_durable() {
            media.reverse();
        }
        let is_there = &|disk| self.disks.is_there(disk);
        let mut begin = |medium| {
            let room = Room { sets: &self.sets, is_there, medium };
            moving::begin_lost(txn, (set, file), &mut self.cursors, room)
        };
        let found = match begin(media[0]) {
            Err(Status::NoSpace) => begin(media[1]),
            found => found,
        }?;
        let Some(found) = found else { return Ok(None) };
        let Some(copies) = self.mint_copies(&found, Some(&kept), now) else {
            found.give_up(txn);
            txn.revoke(Revoked::Session(MOVER, file));
            return Err(Status::Later);
        };
        self.destage.begun(found, NEVER_MS);
        Ok(Some(Copying { file, copies }))
    }

    /// Makes the capabilities of a move. `None` if one cannot be made now. What the disks have lost
    /// is `kept` in the archive.
    fn mint_copies(
        &mut self,
        found: &Move,
        kept: Option<&Kept>,
        now: Instant,
    ) -> Option<Vec<Copy>> {
        let file = found.file();
        let mut mint = |mode, disk: DiskId, bytes: &[_]| {
            let purpose = Purpose { session: MOVER, file, mode };
            self.mint(purpose, disk, bytes, now).map(|minted| (disk, minted))
        };
        let reads = found.reads();
        let reads = reads.iter().map(|(disk, bytes)| mint(Mode::Read, *disk, bytes));
        let reads = reads.collect::<Option<Vec<_>>>()?;
        let writes = found.writes();
        let writes = writes.iter().map(|(disk, bytes)| mint(Mode::Write, *disk, bytes));
        let writes = writes.collect::<Option<Vec<_>>>()?;
        let of = |all: &[(DiskId, Minted)], disk: DiskId| {
            all.iter().find(|(one, _)| *one == disk).cloned()
        };
        let copy = |(leg, disk): (&Leg, DiskId)| {
            let from = match leg.from {
                Some(from) => of(&reads, from).map(|(disk, minted)| Origin::Disk(disk, minted))?,
                None => Origin::Archive(kept?.clone()),
            };
            Some(Copy { leg: *leg, from, to: of(&writes, disk)? })
        };
        found.copies().map(copy).collect()
    }

    /// Has the disks copy the bytes of a move.
    pub(crate) fn copy(&self, Copying { copies, .. }: Copying) -> Moved {
        let disks = std::sync::Arc::clone(&self.disks);
        Box::pin(async move {
            let mut failed = Failed::default();
            for Copy { leg, from, to } in copies {
                let disk = to.0;
                if failed.disks.contains(&disk) {
                    continue;
                }
                let copied = match from {
                    Origin::Disk(of, minted) => {
                        disks.copy((of, minted), to, leg.source(), leg.target).await
                    }
                    Origin::Archive(kept) => {
                        match kept.write(&*disks, to, leg.in_file(), leg.target).await {
                            true => Outcome::Done,
                            // Whoever it was.
                            false => Outcome::NotRead,
                        }
                    }
                };
                if copied != Outcome::Done {
                    failed.disks.insert(disk);
                }
                if copied == Outcome::NotWritten {
                    failed.refused.insert(disk);
                }
            }
            failed
        })
    }

    /// The copies of a move were made, except on the disks that failed. Its capabilities end.
    /// Returns whether the file's bytes must wait for the next try.
    pub(crate) fn end_move(
        &mut self,
        txn: &mut Txn<'_>,
        file: FileId,
        Failed { disks: failed, refused }: &Failed,
        now: Instant,
    ) -> Result<bool, Status> {
        let Some(found) = self.destage.moving(file) else { return Ok(false) };
        let capabilities = found.reads().len() + found.writes().len();
        let has_lasted = self.issued.count(MOVER, file) == capabilities;
        txn.revoke(Revoked::Session(MOVER, file));
        if has_lasted {
            found.end(txn, failed, &self.sets)?;
        } else {
            found.give_up(txn);
        }
        let (set, bytes) = (found.set(), found.bytes());
        let is_restored = found.is_restored();
        let to_memory = found.targets().filter(|to| self.sets.is_memory(*to));
        let to_memory: Vec<DiskId> = to_memory.collect();
        let in_memory: u64 = to_memory.iter().map(|to| found.bytes_to(*to)).sum();
        let leaves = self.sets.leaves(set);
        let has_more = !memory::on_set(txn, set, file)?.is_empty();
        if !has_more && memory::due_ms(txn, set, file)? != NEVER_MS {
            memory::is_not_due(txn, (set, file), false);
        }
        let due_ms = self.leaves_ms(txn, set, file)?;
        let is_done = failed.is_empty() && has_lasted;
        let was_due = self.destage.ended(file, is_done, now);
        if !is_done {
            tracing::debug!(file = file.0, ?failed, "bytes were not moved");
        } else if leaves {
            self.leaving.moved(set, bytes);
        } else if !was_due && !is_restored {
            self.yielding.moved(bytes, in_memory);
        }
        if !has_more {
            self.leaving.done(set, file);
        }
        // Memory disks that did not take it are not asked again soon: it goes to a disk at once.
        // Without the capabilities it could not be copied anyway.
        let is_refused = |to: &DiskId| {
            has_lasted && self.sets.disks(*to).iter().any(|one| refused.contains(one))
        };
        let refused: Vec<DiskId> = to_memory.into_iter().filter(is_refused).collect();
        refused.iter().for_each(|set| self.yielding.avoid(*set, now));
        // If the file was changed meanwhile, the rest of it is moved at once.
        let must_wait = has_lasted && !failed.is_empty() && refused.is_empty();
        if must_wait {
            self.destage.put_off(set, file, now);
        } else if has_more
            && (leaves
                || self.yields(txn, set)?
                || self.restoring.kept(txn, &self.archive, file)?.is_some())
        {
            self.destage.note(set, file, 0);
        } else if has_more && due_ms != NEVER_MS {
            self.destage.note(set, file, due_ms);
        }
        Ok(must_wait)
    }
}
