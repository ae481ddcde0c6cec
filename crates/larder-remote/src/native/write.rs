//! Writes: straight to the disks; the metadata server allocates the blocks, and makes them part of
//! the file.
//!
//! To punch a range, the metadata server removes its whole blocks, as a truncation does; the client
//! writes zeros over the rest of the first and the last block, unless it is a hole. (If another
//! client truncates the file meanwhile it may become as long as before again, as with any write.)
//! An allocated range gets blocks that were never written, which read as zeros.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{BufMut, Bytes, BytesMut};
use larder_vfs::{
    Change, Committed, Cred, Error, RemoteWritten, Result, SetAttr, SpaceChange, SpaceKind,
    Stability, Verifier,
};
use larder_wire::meta::calls::{self, Alloc, CommitExtents, GetCaps};
use larder_wire::meta::words::{ByteRange, DiskId, FileId, Layout, Mode, OpenId, Written};
use larder_wire::meta::{ALLOCATE_BYTES_MAX, BLOCK_BYTES, FILE_BYTES_MAX, RANGES_MAX, Status};
use larder_wire::xdr::Array;
use tokio::task::JoinSet;

use super::beside::Beside;
use super::disks::{self, Grants, NotDone};
use super::opens::Open;
use super::plan::{Piece, block_of, parts, spans};
use super::read::GRANTS_MAX;
use super::session::Failed;
use super::uncommitted::{Noted, Uncommitted};
use super::{Native, convert};

/// How often the same is written if it is lost before it is committed each time.
const WRITES_MAX: u32 = 8;

/// How often a volume without room is asked again: the last time after 300 ms.
const ROOM_TRIES_MAX: u32 = 3;

/// Changes of a file that follow each other, as one.
#[derive(Default)]
struct Chain(Option<Change>);

impl Chain {
    /// Adds the next one. If somebody else has changed the file in between, it is not known how it
    /// was before the first.
    fn add(&mut self, next: Change) {
        let is_next =
            |before: &Change| before.after.is_some_and(|attr| next.follows(&attr.validator()));
        self.0 = Some(match self.0 {
            None => next,
            Some(first) if is_next(&first) => Change { before: first.before, ..next },
            Some(_) => Change { before: None, ..next },
        });
    }

    /// All of them; `None` if there were none.
    fn whole(&self) -> Option<Change> {
        self.0
    }
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
        let is_stable = stability != Stability::Unstable;
        for _ in 0..WRITES_MAX {
            // First: what is lost from now on may be ours, whoever commits it.
            let verifier = self.verifier();
            if range.is_empty() {
                return Ok(RemoteWritten { stability, verifier, change: Change::default() });
            }
            let mut at = range.start;
            if let Some(open) = open.filter(|_| is_stable && offset == 0) {
                match self.write_beside_commit(cred, (file, open), &data).await? {
                    Beside::Committed(change) => {
                        let stability = Stability::FileSync;
                        return Ok(RemoteWritten { stability, verifier, change: *change });
                    }
                    Beside::Written => at = range.end,
                    Beside::NotWritten => {}
                }
            }
            while at < range.end {
                let rest = data.slice(usize::try_from(at - offset).map_err(|_| Error::Io)?..);
                at = self.write_part(cred, (file, open), at, &rest, is_stable).await?;
            }
            if !is_stable {
                // The version does not change before the commit.
                let (stability, change) = (Stability::Unstable, Change::default());
                return Ok(RemoteWritten { stability, verifier, change });
            }
            let change = self.commit_file(file).await?.unwrap_or_default();
            if self.verifier() == verifier {
                return Ok(RemoteWritten { stability: Stability::FileSync, verifier, change });
            }
        }
        tracing::warn!(file = file.0, "what is written is lost again and again");
        Err(Error::Io)
    }

    /// Writes as much from the start of `data` as one layout tells of; answers where that ends.
    async fn write_part(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        offset: u64,
        data: &Bytes,
        is_stable: bool,
    ) -> Result<u64> {
        if self.is_mirrored() {
            return self.write_part_anew(cred, (file, open), offset, data, is_stable).await;
        }
        // A commit tells the server that nothing else is under way.
        let turn = self.uncommitted.turn(file);
        let _turn = turn.read().await;
        let range = offset..offset + data.len() as u64;
        let blocks = block_of(range.start)..range.end.next_multiple_of(BLOCK_BYTES);
        let mut tried = 0;
        while tried < GRANTS_MAX {
            self.before_try(tried).await;
            let ahead = open.and_then(|open| open.ahead(range.start, range.end));
            let mut layout = match ahead {
                Some(layout) => layout,
                None => match self.alloc(cred, file, &blocks, &mut tried).await? {
                    Some(layout) => layout,
                    None => continue,
                },
            };
            let (offset, data) = with_zeros_before(&layout, offset, data);
            whole_blocks(&mut layout);
            let (pieces, grants) = self.planned(&layout, offset..range.end)?;
            let end = pieces.last().map_or(offset, |last| last.offset + last.length);
            match self.write_pieces(pieces, grants, offset, &data, is_stable).await {
                Ok((written, unflushed)) => {
                    self.uncommitted.note(cred, file, &written, unflushed);
                    return Ok(end);
                }
                Err(NotDone::Refused) => drop(open.map(Open::forget_ahead)),
                Err(NotDone::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
        Err(self.refused_again_and_again(file))
    }

    /// Asks for blocks to write to. `None` if there was no room and that is to be tried again.
    pub(super) async fn alloc(
        &self,
        cred: &Cred,
        file: FileId,
        blocks: &Range<u64>,
        tried: &mut u32,
    ) -> Result<Option<Layout>> {
        let (open, range) = (OpenId::NONE, blocks.clone().into());
        let given = self.session.change(cred, |sequence| Alloc { sequence, file, open, range });
        match given.await {
            // Now that somebody is short of room, the server gives up what closed files do not
            // use.
            Err(Failed::Status(Status::NoSpace)) if *tried < ROOM_TRIES_MAX => {
                *tried += 1;
                Ok(None)
            }
            given => Ok(Some(given?.layout)),
        }
    }

    /// All pieces at once. Answers what was written where, and which disks have it.
    pub(super) async fn write_pieces(
        &self,
        pieces: Vec<Piece>,
        grants: Arc<Grants>,
        offset: u64,
        data: &Bytes,
        is_stable: bool,
    ) -> Result<(Vec<Written>, Noted), NotDone> {
        let (mut writing, mut all) = (JoinSet::new(), Vec::with_capacity(pieces.len()));
        for Piece { offset: from, length, at } in pieces {
            // Everything that was asked for was to be allocated.
            let place = at.ok_or(Error::Io)?;
            let index = |position: u64| usize::try_from(position).map_err(|_| Error::Io);
            let bytes = data.slice(index(from - offset)?..index(from - offset + length)?);
            let (disk, position) = (place.disk, place.position);
            all.push(Written { offset: from, length, disk, position });
            let (disks, grants) = (Arc::clone(&self.disks), Arc::clone(&grants));
            writing
                .spawn(async move { (disk, disks.write(&grants, place, bytes, is_stable).await) });
        }
        let mut noted = Noted::default();
        while let Some(done) = writing.join_next().await {
            let (set, done) = done.map_err(|_| Error::Shutdown)?;
            if noted.add(set, done?, is_stable) {
                // What was written first is lost; all of it is written again.
                return Err(NotDone::Refused);
            }
        }
        Ok((all, noted))
    }

    /// Makes what was written of a file durable, and part of it.
    pub(super) async fn commit_written(&self, file: FileId) -> Result<Committed> {
        let change = self.commit_file(file).await?.unwrap_or_default();
        Ok(Committed { verifier: self.verifier(), change })
    }

    /// Commits what was written of a file, so that the server's word of it is ours, too.
    pub(super) async fn settle(&self, file: FileId) -> Result<()> {
        self.commit_file(file).await.map(drop)
    }

    /// Commits what was written of a file; how it changed, if there was something. If it was lost
    /// meanwhile the verifier changes, and nothing is committed.
    async fn commit_file(&self, file: FileId) -> Result<Option<Change>> {
        let Some(entry) = self.uncommitted.get(file) else { return Ok(None) };
        let turn = self.uncommitted.turn(file);
        let _alone = turn.write().await;
        let Some(written) = entry.take() else { return Ok(None) };
        let done = self.commit(file, &written).await;
        // They are the file's, or lost.
        self.session.opens().forget_ahead(file);
        match done {
            Ok(_) => {}
            Err(Error::TimedOut | Error::Shutdown | Error::TryAgain) => {
                self.uncommitted.put_back(file, written);
            }
            // It will not be otherwise the next time. Who wrote finds out by the verifier.
            Err(_) => self.note_loss(),
        }
        self.uncommitted.forget_if_done(file);
        done
    }

    async fn commit(&self, file: FileId, written: &Uncommitted) -> Result<Option<Change>> {
        let mut copies = written.copies.clone();
        let wanted = copies.all();
        for (disk, unflushed) in &written.unflushed {
            if !wanted.contains(disk) {
                continue;
            }
            let flushed = self.is_lost(file, written, *disk, unflushed);
            let has_others = copies.has_others(*disk);
            let is_lost = if has_others {
                // Another disk has it: this one has missed it.
                self.disks.patiently(flushed).await.and_then(|is_lost| is_lost).unwrap_or(true)
            } else {
                flushed.await?
            };
            if is_lost {
                copies.remove(*disk);
            }
        }
        let mut is_lost = copies.is_lost();
        let mut chain = Chain::default();
        let mut chunks = written.pieces.chunks(RANGES_MAX).peekable();
        while let Some(pieces) = chunks.next() {
            if is_lost {
                break;
            }
            let merged = written.merged_in(pieces);
            // Nobody writes it meanwhile.
            let all = chunks.peek().is_none();
            let done = self.session.change(&written.cred, |sequence| CommitExtents {
                sequence,
                file,
                open: OpenId::NONE,
                written: Array(pieces.to_vec()),
                copies: Array(copies.all()),
                merged: Array(merged.clone()),
                mtime: None,
                all,
                on_way: false,
            });
            match self.note_changes(done.await, |done| vec![done.file]) {
                Ok(done) => chain.add(self.changed(&done.file)),
                // The blocks went with the session that had them, or somebody else's are there now.
                Err(Failed::Status(Status::NotAllocated | Status::Changed)) => is_lost = true,
                Err(failed) => return Err(failed.into()),
            }
        }
        if is_lost {
            tracing::warn!(file = file.0, "written bytes were lost before they were committed");
            self.session.opens().forget_ahead(file);
            self.note_loss();
            return Ok(None);
        }
        Ok(chain.whole())
    }

    /// Flushes a disk, under another capability if the one that was used for writing is over;
    /// whether it has lost what was written.
    async fn is_lost(
        &self,
        file: FileId,
        written: &Uncommitted,
        disk: DiskId,
        unflushed: &disks::Unflushed,
    ) -> Result<bool> {
        let mut granted = Arc::clone(&unflushed.granted);
        for tried in 0..GRANTS_MAX {
            self.before_try(tried).await;
            match self.disks.flush(&granted).await {
                Ok(boot) => return Ok(boot != unflushed.boot),
                Err(NotDone::Refused) => {}
                Err(NotDone::Failed(error)) => return Err(error),
            }
            let on_it = written.pieces.iter().find(|piece| written.copies.has(piece.disk, disk));
            let first = on_it.map_or(0, |piece| piece.offset);
            let given = self.session.ask(&written.cred, |session| GetCaps {
                session,
                file,
                open: OpenId::NONE,
                mode: Mode::Write,
                range: ByteRange { offset: block_of(first), length: BLOCK_BYTES },
            });
            let grants = Grants::new(&given.await?.layout.grants.0)?;
            // The blocks went with the session that had them.
            let Some(other) = grants.on(disk).next() else { return Ok(true) };
            granted = Arc::clone(other);
        }
        Err(self.refused_again_and_again(file))
    }

    pub(super) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes when what was written and not committed may be lost.
    fn verifier(&self) -> Verifier {
        Verifier(self.losses.load(Ordering::Acquire))
    }
}

/// Room for ranges of files.
impl Native {
    /// See [`larder_vfs::Remote::change_space`].
    pub(super) async fn change_space_of(
        &self,
        cred: &Cred,
        of: (FileId, Option<&Open>),
        change: &SpaceChange,
    ) -> Result<Change> {
        change.check(FILE_BYTES_MAX)?;
        self.settle(of.0).await?;
        // Who may not write the file is told so.
        let (size, _) = self.to_write(cred, of.0, &change.range).await?;
        if change.kind != SpaceKind::Punch && change.range.end > change.size_after(size) {
            // Extents end where the file does.
            return Err(Error::NotSupported);
        }
        let mut chain = Chain::default();
        if change.kind != SpaceKind::Allocate && change.range.start < size {
            self.punch(cred, of, &change.range, size, &mut chain).await?;
        }
        if change.kind != SpaceKind::Punch {
            self.allocate(cred, of.0, &change.range, size, &mut chain).await?;
        }
        Ok(chain.whole().unwrap_or_default())
    }

    /// The size of a file that the caller may write, and what of a range is no hole, from its start
    /// on.
    async fn to_write(
        &self,
        cred: &Cred,
        file: FileId,
        range: &Range<u64>,
    ) -> Result<(u64, Layout)> {
        let (open, mode, range) = (OpenId::NONE, Mode::Write, range.clone().into());
        let given =
            self.session.ask(cred, |session| GetCaps { session, file, open, mode, range }).await?;
        Ok((given.attributes.size, given.layout))
    }

    /// Has a range of a file of `size` bytes read as zeros.
    async fn punch(
        &self,
        cred: &Cred,
        of: (FileId, Option<&Open>),
        range: &Range<u64>,
        size: u64,
        chain: &mut Chain,
    ) -> Result<()> {
        let (blocks, edges) = parts(range, size);
        if !blocks.is_empty() {
            let punched = self.session.change(cred, |sequence| calls::Punch {
                sequence,
                file: of.0,
                open: OpenId::NONE,
                range: blocks.clone().into(),
            });
            let punched = self.note_changes(punched.await, |punched| vec![punched.file])?;
            chain.add(self.changed(&punched.file));
        }
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            let (_, layout) = self.to_write(cred, of.0, &edge).await?;
            let is_data = |span: Range<u64>| span.start < edge.end && edge.start < span.end;
            if spans(&layout).any(is_data) {
                let length = usize::try_from(edge.end - edge.start).expect("less than two blocks");
                let (zeros, stable) = (Bytes::from(vec![0; length]), Stability::FileSync);
                chain.add(self.write_all(cred, of, edge.start, zeros, stable).await?.change);
            }
        }
        Ok(())
    }

    /// Gives the holes of a range blocks, in a file of `size` bytes, which it keeps if there are
    /// not enough.
    async fn allocate(
        &self,
        cred: &Cred,
        file: FileId,
        range: &Range<u64>,
        size: u64,
        chain: &mut Chain,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(ALLOCATE_BYTES_MAX));
            match self.preallocate(cred, file, at..end).await {
                Ok(change) => chain.add(change),
                Err(error) => {
                    self.take_growth_back(cred, file, size, chain).await;
                    return Err(error);
                }
            }
            at = end;
        }
        Ok(())
    }

    async fn preallocate(&self, cred: &Cred, file: FileId, range: Range<u64>) -> Result<Change> {
        let mut tried = 0;
        loop {
            self.before_try(tried).await;
            let done = self.session.change(cred, |sequence| calls::Preallocate {
                sequence,
                file,
                open: OpenId::NONE,
                range: range.clone().into(),
            });
            match self.note_changes(done.await, |done| vec![done.file]) {
                // Now that somebody is short of room, the server gives up what closed files do not
                // use.
                Err(Failed::Status(Status::NoSpace)) if tried < ROOM_TRIES_MAX => tried += 1,
                done => return Ok(self.changed(&done?.file)),
            }
        }
    }

    /// A part of a range has got blocks, and the rest has not: the file is as long as it was, if
    /// nobody else has changed it.
    async fn take_growth_back(&self, cred: &Cred, file: FileId, size: u64, chain: &Chain) {
        let grown = chain.whole().and_then(|whole| whole.after);
        let Some(grown) = grown.filter(|grown| grown.size > size) else { return };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let cut = self.session.change(cred, |sequence| calls::SetAttr {
            sequence,
            file,
            open: OpenId::NONE,
            set: convert::set(&set),
            guard: Some(convert::sent_time(grown.ctime)),
        });
        if let Err(failed) = self.note_changes(cut.await, |cut| vec![cut.file]) {
            let error = Error::from(failed);
            tracing::warn!(file = file.0, %error, "a file that was to get room is longer now");
        }
    }
}

/// Has each extent end with a block: what is written behind the end of one that a smaller size has
/// cut goes into its last block.
fn whole_blocks(layout: &mut Layout) {
    for extent in &mut layout.extents.0 {
        extent.length = extent.length.next_multiple_of(BLOCK_BYTES);
    }
}

/// What to write, and from where on, so that no old bytes are seen: behind the end of an extent
/// that was cut within the first block, up to where the data begins, there are zeros.
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
    use larder_wire::meta::words::{Extent, ExtentState};

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

    /// Every end of a file in two blocks, and every place behind it.
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
        let mut layout = layout(&[(0, 4096), (8192, 8200)]);
        whole_blocks(&mut layout);
        let lengths: Vec<_> = layout.extents.0.iter().map(|extent| extent.length).collect();
        assert_eq!(lengths, [4096, 4096]);
    }
}
