//! Writes on volumes with copies, memory disks or a disk that leaves: never over committed blocks,
//! but to other blocks, which the commit puts in their place.
//!
//! A block of which only a part is written is *merged*: the rest is read from the file's present
//! block, and the whole block is written. The commit names that block, so that two clients that
//! write parts of one block do not undo each other's writes: the second is told that the block has
//! changed, and writes again.
//!
//! Writes of whole blocks run in parallel. A merging write runs alone, because the block that it
//! reads must not change meanwhile; so does a commit, after which the same blocks are not written
//! again.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use larder_vfs::{Cred, Error, Result};
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::calls::GetCaps;
use larder_wire::meta::words::{
    ByteRange, Extent, ExtentState, FileId, Layout, MergedFrom, Mode, OpenId,
};

use super::Native;
use super::disks::NotDone;
use super::opens::Open;
use super::plan::block_of;
use super::read::{GRANTS_MAX, refuse_lost};
use super::uncommitted::Merged;
use super::write::How;

/// At most this many blocks are merged before they are committed: as many as a commit can name.
const MERGED_MAX: usize = larder_wire::meta::RANGES_MAX / 2;

/// What is written in place of what the caller wrote.
#[derive(Debug, PartialEq, Eq)]
struct Whole {
    offset: u64,
    data: Bytes,
    merged: Merged,
}

/// A block that the file has, as far as it is the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    from: Option<MergedFrom>,
    data: Bytes,
}

impl Native {
    /// Writes as much from the start of `data` as one layout covers; returns where that ends.
    pub(super) async fn write_part_anew(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        offset: u64,
        data: &Bytes,
        how: How,
    ) -> Result<u64> {
        let range = offset..offset + data.len() as u64;
        let turn = self.uncommitted.turn(file);
        if parts_of_blocks(&range).next().is_none() {
            let _turn = turn.read().await;
            let whole = Whole { offset, data: data.clone(), merged: Merged::new() };
            return self.write_whole(cred, (file, open), &whole, how).await;
        }
        if self.uncommitted.merged(file) >= MERGED_MAX {
            self.commit_pending(file).await?;
        }
        let _turn = turn.write().await;
        let mut blocks = BTreeMap::new();
        for block in parts_of_blocks(&range) {
            // Bytes that we have written and not committed are in the same block.
            if !self.uncommitted.has(file, block) {
                blocks.insert(block, self.read_block(file, block).await?);
            }
        }
        let whole = merge(offset, data, &blocks);
        let end = self.write_whole(cred, (file, open), &whole, how).await?;
        Ok(end.clamp(range.start, range.end))
    }

    async fn write_whole(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        Whole { offset, data, merged }: &Whole,
        how: How,
    ) -> Result<u64> {
        let range = *offset..offset + data.len() as u64;
        let blocks = block_of(range.start)..range.end.next_multiple_of(BLOCK_BYTES);
        let mut tried = 0;
        while tried < GRANTS_MAX {
            self.before_try(tried).await;
            let ahead = open.and_then(|open| open.ahead(range.start, range.end));
            let ahead = ahead.filter(|ahead| self.suits(ahead, how.medium));
            let layout = match ahead.map(own).filter(|ahead| is_all_there(ahead, &range)) {
                Some(ahead) => ahead,
                None => match self.alloc(cred, file, &blocks, how.medium, &mut tried).await? {
                    Some(layout) => own(layout),
                    None => continue,
                },
            };
            if how.medium.is_memory() && !self.suits(&layout, how.medium) {
                // A memory disk was started again, or is away. What is to be in several memories
                // goes to another disk rather than to fewer.
                self.disks.avoid_memory();
                return Ok(*offset);
            }
            let covered = layout.covered.get().map_or(range.start, |covered| covered.end);
            if !is_all_there(&layout, &(range.start..range.end.min(covered))) {
                // No disk leaves any more, and the volume accepts writes in place.
                self.session.learn_disks().await?;
                if !self.disks.writes_anew() {
                    return Ok(*offset);
                }
            }
            let (pieces, grants) = self.planned(&layout, range.clone())?;
            let end = pieces.last().map_or(*offset, |last| last.offset + last.length);
            match self.write_pieces(pieces, grants, *offset, data, how.is_stable).await {
                Ok((written, noted)) => {
                    let merged = merged.range(..end).map(|(at, from)| (*at, *from)).collect();
                    self.uncommitted.note(cred, file, &written, noted.with(merged).due(how.due));
                    return Ok(end);
                }
                Err(NotDone::Refused) => drop(open.map(Open::forget_ahead)),
                // It is written again, to another disk.
                Err(NotDone::Failed(Error::NoSpace)) if self.is_out_of_memory(how) => {
                    open.map(Open::forget_ahead);
                    return Ok(*offset);
                }
                Err(NotDone::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
        Err(self.refused_again_and_again(file))
    }

    /// A block as the file has it. A caller that may write a part of the block need not have the
    /// right to read it: the bytes are only written back.
    async fn read_block(&self, file: FileId, block: u64) -> Result<Block> {
        for tried in 0..GRANTS_MAX {
            self.before_try(tried).await;
            let (open, mode) = (OpenId::NONE, Mode::Read);
            let range = ByteRange { offset: block, length: BLOCK_BYTES };
            let cred = Cred::root();
            let given =
                self.session.ask(&cred, |session| GetCaps { session, file, open, mode, range });
            let given = given.await?;
            let has = given.layout.extents.0.iter().find(|one| one.offset == block);
            let Some(extent) = has else {
                return Ok(Block { from: None, data: Bytes::new() });
            };
            let length = u32::try_from(extent.length).map_err(|_| Error::Io)?;
            let (disk, position) = (extent.disk, extent.position);
            let from = Some(MergedFrom { disk, position, length });
            // Beyond the file's end there are zeros.
            let end = (block + extent.length).min(given.attributes.size.max(block));
            if end == block {
                return Ok(Block { from, data: Bytes::new() });
            }
            refuse_lost(&given.layout, &(block..end))?;
            let (pieces, grants) = self.planned(&given.layout, block..end)?;
            match self.read_pieces(pieces, grants).await {
                Ok(parts) => {
                    let data = parts.concat().into();
                    return Ok(Block { from, data });
                }
                Err(NotDone::Refused) => {}
                Err(NotDone::Failed(error)) => return Err(error),
            }
        }
        Err(self.refused_again_and_again(file))
    }
}

/// A layout without the committed extents.
pub(super) fn own(mut layout: Layout) -> Layout {
    layout.extents.0.retain(|extent| extent.state == ExtentState::Provisional);
    layout
}

/// Whether there are extents for all of a range.
fn is_all_there(layout: &Layout, range: &Range<u64>) -> bool {
    let mut at = range.start;
    for Extent { offset, length, .. } in &layout.extents.0 {
        let end = offset.saturating_add(*length);
        if *offset <= at && at < end {
            at = end;
        }
    }
    at >= range.end
}

/// The blocks of a range that are not all in it.
fn parts_of_blocks(range: &Range<u64>) -> impl Iterator<Item = u64> {
    let ends = [range.start, range.end].map(|end| (end % BLOCK_BYTES > 0).then(|| block_of(end)));
    let [first, last] = ends;
    first.into_iter().chain(last.filter(|last| Some(*last) != first))
}

/// What to write for `data` at `offset`: with the rest of its first and last block as the file has
/// them.
fn merge(offset: u64, data: &Bytes, blocks: &BTreeMap<u64, Block>) -> Whole {
    let merged = blocks.iter().map(|(at, block)| (*at, block.from)).collect();
    let end = offset + data.len() as u64;
    let mut whole = BytesMut::new();
    let first = blocks.get(&block_of(offset)).filter(|_| !offset.is_multiple_of(BLOCK_BYTES));
    let start = if first.is_some() { block_of(offset) } else { offset };
    // Less than a block each.
    let index = |at: u64, block: u64| (at - block) as usize;
    if let Some(Block { data: before, .. }) = first {
        let length = index(offset, start);
        whole.extend_from_slice(&before[..before.len().min(length)]);
        whole.resize(length, 0);
    }
    whole.extend_from_slice(data);
    if let Some(Block { data: behind, .. }) = blocks.get(&block_of(end)) {
        let from = index(end, block_of(end));
        whole.extend_from_slice(behind.get(from..).unwrap_or_default());
    }
    Whole { offset: start, data: whole.freeze(), merged }
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::DiskId;

    use super::*;

    const B: u64 = BLOCK_BYTES;

    /// Ranges that begin and end around blocks' ends, in files that end there: with the merged
    /// blocks, what is written is the file with the data in it.
    #[test]
    fn what_is_written_for_a_part_is_the_whole_block() {
        let offsets = [0, 1, 100, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 7, 3 * B];
        for size in offsets {
            let file: Vec<u8> = (0..size).map(|at| (at % 251) as u8 | 1).collect();
            let of = |block: u64| Block {
                from: Some(MergedFrom { disk: DiskId(1), position: block, length: 4096 }),
                data: file[block.min(size) as usize..(block + B).min(size) as usize]
                    .to_vec()
                    .into(),
            };
            for (start, end) in offsets.iter().flat_map(|a| offsets.map(|b| (*a, b))) {
                if start >= end {
                    continue;
                }
                let data = Bytes::from(vec![0xee; (end - start) as usize]);
                let blocks: BTreeMap<u64, Block> =
                    parts_of_blocks(&(start..end)).map(|block| (block, of(block))).collect();
                let whole = merge(start, &data, &blocks);
                let mut wanted = file.clone();
                wanted.resize(size.max(end) as usize, 0);
                wanted[start as usize..end as usize].fill(0xee);
                let written_end = whole.offset + whole.data.len() as u64;
                let part = whole.offset as usize..written_end as usize;
                assert_eq!(whole.data[..], wanted[part], "{start}..{end} of {size}");
                assert_eq!(whole.offset % B, 0);
                // No old byte is left out, and the file does not become longer than it should.
                assert!(written_end == end || written_end <= size, "{start}..{end} of {size}");
                let last = end.next_multiple_of(B).min(size.max(end));
                assert_eq!(written_end, last, "{start}..{end} of {size}");
            }
        }
    }

    #[test]
    fn what_a_block_was_taken_from_is_kept_with_it() {
        let from = |position| Some(MergedFrom { disk: DiskId(1), position, length: 9 });
        let block =
            |position| Block { from: from(position), data: Bytes::from_static(b"012345678") };
        let none = Block { from: None, data: Bytes::new() };
        let blocks = BTreeMap::from([(0, block(B)), (B, none)]);
        let whole = merge(3, &Bytes::from(vec![b'x'; 4096]), &blocks);
        assert_eq!(whole.merged, Merged::from([(0, from(B)), (B, None)]));
        assert_eq!(&whole.data[..4], b"012x");
        // A block that is ours already is written in part.
        let whole = merge(3, &Bytes::from_static(b"xy"), &BTreeMap::new());
        assert_eq!((whole.offset, &whole.data[..], whole.merged.len()), (3, &b"xy"[..], 0));
    }
}
