//! Writes: straight to the disks; the metadata server allocates the blocks, and makes them part of
//! the file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use larder_vfs::{Change, Cred, Error, RemoteWritten, Result, Stability};
use larder_wire::meta::calls::{Alloc, AllocNear, LayoutGiven};
use larder_wire::meta::words::{DiskId, FileId, Layout, Medium, Near, OpenId, Written};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX, Status};
use larder_wire::xdr::Array;
use tokio::task::JoinSet;

use super::Native;
use super::beside::Beside;
use super::disks::{Grants, NotDone, Unflushed};
use super::opens::Open;
use super::plan::{Piece, block_of};
use super::read::GRANTS_MAX;
use super::session::Failed;
use super::uncommitted::{Due, Noted};

/// How often a write is repeated if it is lost each time before it is committed.
const WRITES_MAX: u32 = 8;

/// How often a volume without space is asked again: the last time after 300 ms.
pub(super) const ROOM_TRIES_MAX: u32 = 3;

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct How {
    /// Whether they are on their medium for good when that is answered.
    pub(super) is_stable: bool,
    /// The medium that new blocks are to be on.
    pub(super) medium: Medium,
    /// When they are to be elsewhere.
    pub(super) due: Due,
}

impl Native {
    /// Writes all of `data`.
    pub(super) async fn write_all(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<RemoteWritten> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let range = offset..end.ok_or(Error::FileTooLarge)?;
        let (medium, due) = match stability {
            Stability::Shared(volatile) => {
                (Medium::Memory(u32::from(volatile.copies)), volatile.due)
            }
            _ => (Medium::Disk, None),
        };
        let now = self.rpc().config().clock.instant();
        let at = |within: Option<Duration>| within.and_then(|within| now.checked_add(within));
        let due = Due { on_disk: at(due), archived: at(self.archived.within(file)) };
        let how = How { is_stable: stability != Stability::Unstable, medium, due };
        let is_stable = how.is_stable;
        let answered = match stability {
            Stability::DataSync => Stability::FileSync,
            stability => stability,
        };
        if medium != Medium::Memory(1) && self.has_uncommitted_in_memory(file) {
            // Those blocks are given up with the others that are asked for.
            self.commit_pending(file).await?;
        }
        for _ in 0..WRITES_MAX {
            // First: what is lost from now on may be this write, whichever call commits it.
            let verifier = self.verifier();
            if range.is_empty() {
                return Ok(RemoteWritten { stability, verifier, change: Change::default() });
            }
            let mut at = range.start;
            let may_be_beside = is_stable && offset == 0 && !self.is_out_of_memory(how);
            if let Some(open) = open.filter(|_| may_be_beside) {
                match self.write_beside_commit(cred, (file, open), &data, how).await? {
                    Beside::Committed(change) => {
                        let (stability, change) = (answered, *change);
                        return Ok(RemoteWritten { stability, verifier, change });
                    }
                    Beside::Written => at = range.end,
                    Beside::NotWritten => {}
                }
            }
            while at < range.end {
                let rest = data.slice(usize::try_from(at - offset).map_err(|_| Error::Io)?..);
                let how = self.how_now(file, how).await?;
                at = self.write_part(cred, (file, open), at, &rest, how).await?;
            }
            if !is_stable {
                // The version does not change before the commit.
                let (stability, change) = (Stability::Unstable, Change::default());
                return Ok(RemoteWritten { stability, verifier, change });
            }
            let change = Box::pin(self.commit_file(file)).await?.unwrap_or_default();
            if self.verifier() == verifier {
                return Ok(RemoteWritten { stability: answered, verifier, change });
            }
        }
        tracing::warn!(file = file.0, "what is written is lost again and again");
        Err(Error::Io)
    }

    /// Whether what is to be on memory disks must go to others now.
    pub(super) fn is_out_of_memory(&self, how: How) -> bool {
        how.medium.is_memory() && self.disks.avoids_memory()
    }

    /// How bytes are written now: to other disks while memory disks do not take them.
    async fn how_now(&self, file: FileId, how: How) -> Result<How> {
        if !self.is_out_of_memory(how) {
            return Ok(how);
        }
        if self.has_uncommitted_in_memory(file) {
            // Those blocks are given up with the others that are asked for.
            self.commit_pending(file).await?;
        }
        Ok(How { medium: Medium::INSTEAD, ..how })
    }

    /// Writes as much from the start of `data` as one layout covers; returns where that ends.
    async fn write_part(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        offset: u64,
        data: &Bytes,
        how: How,
    ) -> Result<u64> {
        if self.disks.writes_anew() {
            let anew = self.write_part_anew(cred, (file, open), offset, data, how);
            return Box::pin(anew).await;
        }
        // A commit tells the server that nothing else is in flight.
        let turn = self.uncommitted.turn(file);
        let _turn = turn.read().await;
        let range = offset..offset + data.len() as u64;
        let blocks = block_of(range.start)..range.end.next_multiple_of(BLOCK_BYTES);
        let mut tried = 0;
        while tried < GRANTS_MAX {
            self.before_try(tried).await;
            let ahead = open.and_then(|open| open.ahead(range.start, range.end));
            let layout = match ahead {
                Some(layout) => layout,
                None => match self.alloc(cred, file, &blocks, how.medium, &mut tried).await? {
                    Some(layout) => layout,
                    None => continue,
                },
            };
            let (offset, data) = with_zeros_before(&layout, offset, data);
            let layout = whole_blocks(layout);
            let (pieces, grants) = self.planned(&layout, offset..range.end)?;
            let end = pieces.last().map_or(offset, |last| last.offset + last.length);
            match self.write_pieces(pieces, grants, offset, &data, how.is_stable).await {
                Ok((written, unflushed)) => {
                    self.uncommitted.note(cred, file, &written, unflushed.due(how.due));
                    return Ok(end);
                }
                Err(NotDone::Refused) => drop(open.map(Open::forget_ahead)),
                Err(NotDone::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
        Err(self.refused_again_and_again(file))
    }

    /// Whether something was written to memory disks and is not committed.
    fn has_uncommitted_in_memory(&self, file: FileId) -> bool {
        self.uncommitted
            .get(file)
            .is_some_and(|entry| entry.lies_on(&|disk| self.disks.is_memory(disk)))
    }

    /// Whether blocks are on a medium, or a stronger one: each disk of a set has a grant.
    pub(super) fn suits(&self, layout: &Layout, medium: Medium) -> bool {
        let copies = |set| layout.grants.0.iter().filter(|grant| grant.disk == set).count();
        layout.extents.0.iter().all(|extent| match medium {
            _ if !self.disks.is_memory(extent.disk) => true,
            Medium::Disk => false,
            Medium::Memory(wanted) => copies(extent.disk) >= wanted as usize,
        })
    }

    /// Requests blocks to write to. `None` if there was no space and the request is to be repeated.
    pub(super) async fn alloc(
        &self,
        cred: &Cred,
        file: FileId,
        blocks: &Range<u64>,
        medium: Medium,
        tried: &mut u32,
    ) -> Result<Option<Layout>> {
        let (open, range) = (OpenId::NONE, blocks.clone().into());
        let args = |sequence| Alloc { sequence, file, open, range, medium };
        allocated(self.session.change(cred, args).await, tried)
    }

    /// The same on disks, where `near` says, as far as the server can and will.
    pub(super) async fn alloc_near(
        &self,
        cred: &Cred,
        file: FileId,
        blocks: &Range<u64>,
        near: &[Near],
        tried: &mut u32,
    ) -> Result<Option<Layout>> {
        let medium = Medium::Disk;
        if !self.lacks_near.load(Ordering::Relaxed) {
            let (open, range) = (OpenId::NONE, blocks.clone().into());
            let args = |sequence| AllocNear {
                alloc: Alloc { sequence, file, open, range, medium },
                near: Array(near.to_vec()),
            };
            match self.session.change(cred, args).await {
                // The server is of a version that lets disks take turns alone.
                Err(Failed::Call(Error::NotSupported)) => {
                    self.lacks_near.store(true, Ordering::Relaxed);
                }
                given => return allocated(given, tried),
            }
        }
        self.alloc(cred, file, blocks, medium, tried).await
    }

    /// All pieces in parallel; one alone, as of a short file, is written by this task. Returns what
    /// was written where, and which disks have it.
    pub(super) async fn write_pieces(
        &self,
        pieces: Vec<Piece>,
        grants: Arc<Grants>,
        offset: u64,
        data: &Bytes,
        is_stable: bool,
    ) -> Result<(Vec<Written>, Noted), NotDone> {
        let (mut writing, mut all) = (JoinSet::new(), Vec::with_capacity(pieces.len()));
        let is_alone = pieces.len() == 1;
        for Piece { offset: from, length, at } in pieces {
            // Everything that was asked for was to be allocated.
            let location = at.ok_or(Error::Io)?;
            let index = |position: u64| usize::try_from(position).map_err(|_| Error::Io);
            let bytes = data.slice(index(from - offset)?..index(from - offset + length)?);
            let (disk, position) = (location.disk, location.position);
            all.push(Written { offset: from, length, disk, position });
            let (disks, grants) = (Arc::clone(&self.disks), Arc::clone(&grants));
            // What a memory disk has belongs to one boot, however it was written.
            let is_stable = is_stable && !disks.is_memory(disk);
            let write = async move {
                (disk, is_stable, disks.write(&grants, location, bytes, is_stable).await)
            };
            if is_alone {
                let mut noted = Noted::default();
                note(&mut noted, write.await)?;
                return Ok((all, noted));
            }
            writing.spawn(write);
        }
        Ok((all, all_written(writing).await?))
    }
}

/// The layout that was given. `None` if there was no space and the request is to be repeated.
fn allocated(given: Result<LayoutGiven, Failed>, tried: &mut u32) -> Result<Option<Layout>> {
    match given {
        // Now that space is short, the server takes back what closed files do not use.
        Err(Failed::Status(Status::NoSpace)) if *tried < ROOM_TRIES_MAX => {
            *tried += 1;
            Ok(None)
        }
        given => Ok(Some(given?.layout)),
    }
}

/// A part that was to be written: its set, whether it is durable when that is answered, and which
/// disks have it.
type Part = (DiskId, bool, Result<Vec<Unflushed>, NotDone>);

/// Waits for what is written of one call; of each part: its set, whether it is durable when that is
/// answered, and which disks have it.
///
/// # Errors
/// [`NotDone`]; [`NotDone::Refused`] if a disk has lost a part: all of it is written again.
pub(super) async fn all_written(mut writing: JoinSet<Part>) -> Result<Noted, NotDone> {
    let mut noted = Noted::default();
    while let Some(done) = writing.join_next().await {
        note(&mut noted, done.map_err(|_| Error::Shutdown)?)?;
    }
    Ok(noted)
}

fn note(noted: &mut Noted, (set, is_stable, done): Part) -> Result<(), NotDone> {
    match noted.add(set, done?, is_stable) {
        true => Err(NotDone::Refused),
        false => Ok(()),
    }
}

/// Extends each extent to the end of its last block: what is written beyond the end of an extent
/// that was shortened by a smaller size goes into that block.
pub(super) fn whole_blocks(mut layout: Layout) -> Layout {
    for extent in &mut layout.extents.0 {
        extent.length = extent.length.next_multiple_of(BLOCK_BYTES);
    }
    layout
}

/// What to write, and where, so that no old bytes become visible: beyond the end of an extent that
/// was shortened, zeros are written in that block up to where the data begins.
fn with_zeros_before(layout: &Layout, offset: u64, data: &Bytes) -> (u64, Bytes) {
    let ends = layout.extents.0.iter().map(|extent| extent.offset + extent.length);
    let cut = ends
        .filter(|end| end % BLOCK_BYTES != 0)
        .find(|end| block_of(*end) == block_of(offset) && *end < offset);
    let Some(cut) = cut else { return (offset, data.clone()) };
    let zeros = usize::try_from(offset - cut).expect("less than a block");
    let mut longer = BytesMut::with_capacity(zeros + data.len());
    longer.put_bytes(0, zeros);
    longer.extend_from_slice(data);
    (cut, longer.freeze())
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::{ByteRange, Extent, ExtentState};

    use super::*;

    /// A layout with extents from and to these bytes.
    fn layout(spans: &[(u64, u64)]) -> Layout {
        let extents = spans.iter().map(|(start, end)| Extent {
            offset: *start,
            length: end - start,
            disk: DiskId(1),
            position: *start,
            state: ExtentState::Committed,
        });
        let covered = ByteRange { offset: 0, length: FILE_BYTES_MAX };
        Layout { covered, extents: Array(extents.collect()), grants: Array::default() }
    }

    /// Every end of a file in two blocks, and every offset beyond it.
    #[test]
    fn what_is_written_behind_a_cut_has_zeros_before_it() {
        let data = Bytes::from_static(b"data");
        for cut in 1..=2 * BLOCK_BYTES {
            let layout = layout(&[(0, cut)]);
            for offset in [0, 1, cut - 1, cut, cut + 1, 4095, 4096, 4097, 8191, 8192, 9000] {
                let (from, bytes) = with_zeros_before(&layout, offset, &data);
                let is_behind = cut < offset && cut % BLOCK_BYTES != 0;
                let begins =
                    if is_behind && block_of(cut) == block_of(offset) { cut } else { offset };
                assert_eq!(from, begins, "{cut} {offset}");
                let zeros = usize::try_from(offset - from).unwrap();
                assert!(bytes[..zeros].iter().all(|byte| *byte == 0));
                assert_eq!(bytes[zeros..], data[..]);
            }
        }
    }

    #[test]
    fn extents_are_written_to_the_end_of_their_blocks() {
        let layout = whole_blocks(layout(&[(0, 4096), (8192, 8200)]));
        let lengths: Vec<_> = layout.extents.0.iter().map(|extent| extent.length).collect();
        assert_eq!(lengths, [4096, 4096]);
    }
}
