//! Copies within a volume: disks copy what they have themselves, so that no data passes the client.
//!
//! The client asks where the source's bytes are, and for blocks of the target on the same disks, as
//! for a read and a write. Of what is on the same disks in both, each of them reads and writes; the
//! rest is read and written here: what the target has elsewhere, or what those disks have no room
//! for. The copy is committed like any write.
//!
//! Disks copy whole blocks of both files. Holes, and parts of blocks, are read and written here,
//! too.

use std::ops::Range;
use std::sync::Arc;

use larder_vfs::{CopyEnd, Cred, Error, RemoteCopied, Result, Stability};
use larder_wire::meta::words::{ByteRange, FileId, Near, Written};
use larder_wire::meta::{BLOCK_BYTES, FILE_BYTES_MAX};
use tokio::task::JoinSet;

use super::anew::own;
use super::disks::{Grants, NotDone};
use super::opens::Open;
use super::plan::{Location, Piece, block_of};
use super::read::{GRANTS_MAX, refuse_lost};
use super::uncommitted::{Due, Noted};
use super::write::{all_written, whole_blocks};
use super::{Native, held};

/// No more is copied by one call: as much as a layout for reading covers.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// No more is read and written here at a time.
const HERE_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are contiguous on the disks of both files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Where they begin in the target.
    offset: u64,
    length: u64,
    from: Location,
    to: Location,
}

/// A file, and an open of it, if there is one.
type Side<'a> = (FileId, Option<&'a Open>);

impl Native {
    /// See [`larder_vfs::Remote::copy_range`].
    pub(super) async fn copy_within(
        &self,
        cred: &Cred,
        (from, to): (CopyEnd<'_>, CopyEnd<'_>),
        len: u64,
    ) -> Result<RemoteCopied> {
        let source = (self.file(from.file)?, held(from.open));
        let target = (self.file(to.file)?, held(to.open));
        // Arguments that are wrong whatever the file's size is are not sent to the server.
        from.check(&to, len.min(1), u64::MAX, FILE_BYTES_MAX)?;
        self.commit_pending(source.0).await?;
        self.commit_pending(target.0).await?;
        let asked = from.offset..from.offset.saturating_add(len).min(FILE_BYTES_MAX);
        let (attributes, _) = self.layout(cred, source, &asked).await?;
        let len = from.check(&to, len, attributes.size, FILE_BYTES_MAX)?.min(COPIED_BYTES_MAX);
        // A caller that may not write the target gets that error.
        let first = to.offset..to.offset.saturating_add(1);
        let (size, _) = self.to_write(cred, target.0, &first).await?;
        // Where blocks are written anew, the rest of the last one is merged into it.
        let size = (!self.disks.writes_anew()).then_some(size);
        let (verifier, end) = (self.verifier(), to.offset + len);
        let mut at = to.offset;
        while at < end {
            let behind = from.offset + (at - to.offset);
            let next = match copied_blocks(&(at..end), behind, size) {
                Some(blocks) => self.copy_part(cred, (source, behind), target, blocks).await?,
                None => None,
            };
            at = match next {
                Some(next) => next,
                None => self.copy_here(cred, (source, behind), (target, at), end - at).await?,
            };
        }
        let change = self.commit_file(target.0).await?.unwrap_or_default();
        if self.verifier() != verifier {
            return Err(Error::Io);
        }
        Ok(RemoteCopied { len, change })
    }

    /// Reads and writes what the disks cannot copy, from the start of a range on: up to the end of
    /// a block. Returns where that ends in the target.
    async fn copy_here(
        &self,
        cred: &Cred,
        (source, from): (Side<'_>, u64),
        (target, to): (Side<'_>, u64),
        len: u64,
    ) -> Result<u64> {
        let is_apart = from % BLOCK_BYTES != to % BLOCK_BYTES;
        let len_max = if is_apart { HERE_BYTES_MAX } else { BLOCK_BYTES - to % BLOCK_BYTES };
        let len = u32::try_from(len.min(len_max)).expect("short");
        let read = self.read_all(cred, source, from, len).await?.data;
        if read.is_empty() {
            // It was cut meanwhile.
            return Err(Error::Io);
        }
        let next = to + read.len() as u64;
        self.write_all(cred, target, to, read, Stability::Unstable).await?;
        Ok(next)
    }

    /// Has disks copy whole blocks of the target's range, as far as one layout of each file covers
    /// them, up to a hole; returns where that ends in the target. `None` if there is nothing.
    async fn copy_part(
        &self,
        cred: &Cred,
        (source, from): (Side<'_>, u64),
        target: Side<'_>,
        range: Range<u64>,
    ) -> Result<Option<u64>> {
        let turn = self.uncommitted.turn(target.0);
        let _turn = turn.read().await;
        let bytes = from..from + (range.end - range.start);
        let mut tried = 0;
        while tried < GRANTS_MAX {
            self.before_try(tried).await;
            let (attributes, layout) = self.layout(cred, source, &bytes).await?;
            let there = bytes.start..bytes.end.min(attributes.size);
            if there.is_empty() {
                return Ok(None);
            }
            refuse_lost(&layout, &there)?;
            let (pieces, from_grants) = self.planned(&layout, there)?;
            let near = near(&pieces, from, range.start);
            let Some(last) = near.last() else { return Ok(None) };
            let blocks = range.start..last.range.offset + last.range.length;
            // The server may give up blocks of the target that are elsewhere.
            self.session.opens().forget_ahead(target.0);
            let given = self.alloc_near(cred, target.0, &blocks, &near, &mut tried).await?;
            let Some(given) = given else { continue };
            let given = match self.disks.writes_anew() {
                true => own(given),
                false => whole_blocks(given),
            };
            let end = range.end.min(blocks.end);
            let (places, to_grants) = self.planned(&given, range.start..end)?;
            let parts = parts(&pieces, &places, from);
            let Some(last) = parts.last() else { return Ok(None) };
            let end = last.offset + last.length;
            match self.copy_parts(parts, &from_grants, &to_grants).await {
                Ok((written, noted)) => {
                    self.uncommitted.note(cred, target.0, &written, noted.due(Due::default()));
                    return Ok(Some(end));
                }
                Err(NotDone::Refused) => {
                    self.session.leases().forget_layout(source.0);
                }
                Err(NotDone::Failed(error)) => return Err(error),
            }
            tried += 1;
        }
        Err(self.refused_again_and_again(target.0))
    }

    /// All parts in parallel. Returns what was written where, and which disks have it.
    async fn copy_parts(
        &self,
        parts: Vec<Part>,
        sources: &Arc<Grants>,
        targets: &Arc<Grants>,
    ) -> Result<(Vec<Written>, Noted), NotDone> {
        let (mut copying, mut all) = (JoinSet::new(), Vec::with_capacity(parts.len()));
        for part in parts {
            let Part { offset, length, to, .. } = part;
            all.push(Written { offset, length, disk: to.disk, position: to.position });
            let disks = Arc::clone(&self.disks);
            let (sources, targets) = (Arc::clone(sources), Arc::clone(targets));
            copying.spawn(async move {
                let (from, to) = ((&*sources, part.from), (&*targets, to));
                (to.1.disk, false, disks.copy(from, to, length).await)
            });
        }
        Ok((all, all_written(copying).await?))
    }
}

/// The whole blocks from the start of a range of the target on, if they are whole blocks of the
/// source from `from` on. At the end of a target of this size, or behind it, a part of a block
/// counts as whole.
fn copied_blocks(range: &Range<u64>, from: u64, size: Option<u64>) -> Option<Range<u64>> {
    let begins = range.start.is_multiple_of(BLOCK_BYTES) && from.is_multiple_of(BLOCK_BYTES);
    let is_at_end = size.is_some_and(|size| range.end >= size);
    let end = if is_at_end { range.end } else { block_of(range.end) };
    (begins && end > range.start).then_some(range.start..end)
}

/// Where the blocks of the target from `to` on should be: on the disks of the source's pieces, from
/// `from` on up to a hole.
fn near(source: &[Piece], from: u64, to: u64) -> Vec<Near> {
    let mut near: Vec<Near> = Vec::new();
    let there = source.iter().map_while(|piece| Some((piece.offset, piece.length, piece.at?.disk)));
    for (offset, length, disk) in there {
        let offset = to + (offset - from);
        match near.last_mut().filter(|last| last.disk == disk) {
            Some(last) => last.range.length += length,
            None => near.push(Near { range: ByteRange { offset, length }, disk }),
        }
    }
    if let Some(last) = near.last_mut() {
        // The file's end.
        last.range.length = last.range.length.next_multiple_of(BLOCK_BYTES);
    }
    near
}

/// What is at one place in both, in order and without gaps, up to a hole of the source: pieces of
/// the source from `from` on, and those of the target.
fn parts(source: &[Piece], target: &[Piece], from: u64) -> Vec<Part> {
    let Some(start) = target.first().map(|piece| piece.offset) else { return Vec::new() };
    let (mut parts, mut at) = (Vec::new(), start);
    loop {
        let behind = from + (at - start);
        let holding = |pieces: &[Piece], at| pieces.iter().find(|piece| piece.holds(at)).copied();
        let (Some(one), Some(other)) = (holding(source, behind), holding(target, at)) else {
            return parts;
        };
        let (one, other) = (one.from(behind), other.from(at));
        let (Some(from), Some(to)) = (one.at, other.at) else { return parts };
        let length = one.length.min(other.length);
        parts.push(Part { offset: at, length, from, to });
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::DiskId;

    use super::*;

    const B: u64 = BLOCK_BYTES;

    #[test]
    fn whole_blocks_are_copied_and_the_end_of_the_target_counts_as_one() {
        for (start, end, from, size, copied) in [
            (0, 3 * B, 0, Some(9 * B), Some(0..3 * B)),
            (B, 3 * B + 1, 5 * B, Some(9 * B), Some(B..3 * B)),
            (B, 3 * B + 1, 5 * B, Some(3 * B), Some(B..3 * B + 1)),
            (B, 3 * B + 1, 5 * B, Some(3 * B + 1), Some(B..3 * B + 1)),
            (B, 3 * B + 1, 5 * B, Some(3 * B + 2), Some(B..3 * B)),
            (B, 3 * B + 1, 5 * B, None, Some(B..3 * B)),
            (1, 3 * B, 1, Some(9 * B), None),
            (0, 3 * B, 1, Some(9 * B), None),
            (0, B - 1, 0, Some(B), None),
            (0, B - 1, 0, None, None),
            (0, 1, 0, Some(0), Some(0..1)),
        ] {
            let what = format!("{start}..{end} {from} {size:?}");
            assert_eq!(copied_blocks(&(start..end), from, size), copied, "{what}");
        }
    }

    /// Pieces of these lengths from `start` on, one behind the other on a disk of their own each,
    /// or nowhere.
    fn pieces(start: u64, lengths: &[(u64, bool)]) -> Vec<Piece> {
        let mut offset = start;
        let piece = |(at, (length, is_there)): (usize, &(u64, bool))| {
            let location = Location { disk: DiskId(at as u32), position: 1000 * at as u64 };
            let piece = Piece { offset, length: *length, at: is_there.then_some(location) };
            offset += length;
            piece
        };
        lengths.iter().enumerate().map(piece).collect()
    }

    /// Every cut of six bytes in both files: the parts say of each byte where it is in both, up to
    /// the first that is nowhere.
    #[test]
    fn parts_are_what_each_byte_says() {
        const LENGTH: u64 = 6;
        let mut count = 0;
        let cuts: Vec<_> = (0..LENGTH).flat_map(|at| [(at, true), (at, false)]).collect();
        for (first, is_first) in &cuts {
            for (second, is_second) in &cuts {
                let of = |start, at, is_there| {
                    let all = [(at, true), (LENGTH - at, is_there)];
                    pieces(start, if at == 0 { &all[1..] } else { &all })
                };
                let source = of(100, *first, *is_first);
                let target = of(7, *second, *is_second);
                let mut at = 7;
                for part in parts(&source, &target, 100) {
                    assert_eq!(part.offset, at);
                    for by in 0..part.length {
                        let place = |pieces: &[Piece], at| {
                            let piece = pieces.iter().find(|piece| piece.holds(at)).unwrap();
                            piece.from(at).at.unwrap()
                        };
                        let moved = |one: Location| (one.disk, one.position + by);
                        let (from, to) = (place(&source, 93 + at + by), place(&target, at + by));
                        assert_eq!(moved(part.from), (from.disk, from.position));
                        assert_eq!(moved(part.to), (to.disk, to.position));
                    }
                    at += part.length;
                }
                let is_there = |at: u64, cut: u64, is_second: bool| at < cut || is_second;
                let all = (0..LENGTH).take_while(|at| {
                    is_there(*at, *first, *is_first) && is_there(*at, *second, *is_second)
                });
                assert_eq!(at, 7 + all.count() as u64, "{source:?} {target:?}");
                count += 1;
            }
        }
        println!("{count} pairs of files");
    }
}
