//! Layouts: where a part of a file is stored, for a client that may read or write it.

use std::collections::BTreeMap;
use std::ops::Range;

use larder_wire::meta::words::{ByteRange, DiskId, Extent, ExtentState, FileId, Mode, SessionId};
use larder_wire::meta::{EXTENTS_MAX, GRANTS_MAX, Status};

use super::copies::{self, Sets};
use super::map::{Map, Piece, rounded};
use crate::store::Txn;

/// A layout without its grants, and the extents that those have to cover.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) covered: ByteRange,
    pub(crate) extents: Vec<Extent>,
    /// Bytes of each disk, in order and without overlap.
    pub(crate) grants: BTreeMap<DiskId, Vec<Range<u64>>>,
}

/// The location of `range` of a file, for a session: what is committed or lost, and for writing,
/// where nothing is committed, what the session has allocated or was given ahead. A reader sees
/// zeros there: what its session has written and not committed is not part of the file. Where there
/// are copies, the session's blocks come before the committed ones, which are never written.
pub(crate) fn layout(
    txn: &Txn<'_>,
    (session, file): (SessionId, FileId),
    mode: Mode,
    range: &Range<u64>,
    sets: &Sets,
) -> Result<Plan, Status> {
    let blocks = rounded(range);
    let ours = Map::File(file).overlapping(txn, &blocks, EXTENTS_MAX)?;
    let limit = if mode.writes() { EXTENTS_MAX } else { 0 };
    let asked = Map::Own(session, file).overlapping(txn, &blocks, limit)?;
    let ahead = Map::Ahead(session, file).overlapping(txn, &blocks, limit)?;
    let own_first = sets.are_written_anew() && mode.writes();
    let state = |state| move |piece: &Piece| (*piece, state);
    let mut committed = Vec::with_capacity(ours.len());
    for piece in &ours {
        committed.extend(there_or_lost(txn, piece, sets)?);
    }
    let mut own: Vec<_> = asked.iter().chain(&ahead).map(state(ExtentState::Provisional)).collect();
    own.sort_by_key(|(piece, _)| piece.offset);
    let (first, second) = if own_first { (own, committed) } else { (committed, own) };
    let mut extents: Vec<(Piece, ExtentState)> = Vec::new();
    let mut at = blocks.start;
    for (piece, state) in first {
        let Some(piece) = piece.within(&blocks) else { continue };
        fill(&mut extents, &second, at..piece.offset);
        at = piece.end();
        extents.push((piece, state));
    }
    // Beyond the records that were read there may be more.
    let seen = |pieces: &[Piece]| match pieces.last() {
        Some(last) if pieces.len() == EXTENTS_MAX => last.end(),
        _ => u64::MAX,
    };
    let end = blocks.end.min(seen(&ours)).min(seen(&asked)).min(seen(&ahead));
    fill(&mut extents, &second, at..end);
    extents.retain(|(piece, _)| piece.offset < end);
    let cut = extents.get(EXTENTS_MAX).map(|(piece, _)| piece.offset);
    extents.truncate(EXTENTS_MAX);
    let covered = range.start..range.end.min(cut.unwrap_or(end)).max(range.start);
    Ok(Plan {
        covered: covered.into(),
        grants: grants(&extents, mode, sets),
        extents: wire(&extents),
    })
}

/// Parts of a committed extent: those that exist, and those that memory disks have lost.
fn there_or_lost(
    txn: &Txn<'_>,
    piece: &Piece,
    sets: &Sets,
) -> Result<Vec<(Piece, ExtentState)>, Status> {
    if !sets.is_memory(piece.disk) {
        return Ok(vec![(*piece, ExtentState::Committed)]);
    }
    let bytes = piece.bytes();
    let lost = copies::lost(txn, sets.disks(piece.disk), &bytes)?;
    let there = copies::without(std::slice::from_ref(&bytes), &lost);
    let state = |state| move |bytes: Range<u64>| (bytes, state);
    let lost = lost.into_iter().map(state(ExtentState::Lost));
    let mut parts: Vec<_> =
        there.into_iter().map(state(ExtentState::Committed)).chain(lost).collect();
    parts.sort_by_key(|(bytes, _)| bytes.start);
    let in_file = |at: u64| piece.offset + (at - piece.position);
    let part = |(bytes, state): (Range<u64>, _)| {
        Some((piece.within(&(in_file(bytes.start)..in_file(bytes.end)))?, state))
    };
    Ok(parts.into_iter().filter_map(part).collect())
}

/// Adds the parts of `others` that are in a hole.
fn fill(
    extents: &mut Vec<(Piece, ExtentState)>,
    others: &[(Piece, ExtentState)],
    hole: Range<u64>,
) {
    let part = |(piece, state): &(Piece, ExtentState)| Some((piece.within(&hole)?, *state));
    extents.extend(others.iter().filter_map(part));
}

/// The extents that grants must cover: to read, the bytes of the file; to write, whole blocks, but
/// none that are never written again. Extents on more disks than fit into a reply are left out.
fn grants(
    extents: &[(Piece, ExtentState)],
    mode: Mode,
    sets: &Sets,
) -> BTreeMap<DiskId, Vec<Range<u64>>> {
    let mut grants: BTreeMap<DiskId, Vec<Range<u64>>> = BTreeMap::new();
    let sets_max = GRANTS_MAX / sets.copies_max();
    for (piece, state) in extents {
        let length = if mode.writes() { piece.length() } else { piece.valid };
        let is_new = !grants.contains_key(&piece.disk);
        let is_immutable =
            mode.writes() && sets.are_written_anew() && *state == ExtentState::Committed;
        if *state == ExtentState::Lost || is_immutable || (is_new && grants.len() == sets_max) {
            continue;
        }
        let bytes = piece.position..piece.position + length;
        grants.entry(piece.disk).or_default().push(bytes);
    }
    grants.values_mut().for_each(merge);
    grants
}

/// Puts ranges into order, and neighbours together.
pub(crate) fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let follows = next.start == range.end;
        if follows {
            range.end = next.end;
        }
        follows
    });
}

fn wire(extents: &[(Piece, ExtentState)]) -> Vec<Extent> {
    let extent = |(piece, state): &(Piece, ExtentState)| Extent {
        offset: piece.offset,
        length: piece.valid,
        disk: piece.disk,
        position: piece.position,
        state: *state,
    };
    extents.iter().map(extent).collect()
}
