//! Holes: FSCTL_SET_SPARSE, FSCTL_SET_ZERO_DATA and FSCTL_QUERY_ALLOCATED_RANGES (MS-FSCC, 2.3).
//!
//! A file that is to get a hole is first marked sparse: otherwise servers write zeros. A file
//! without the mark reports no holes, even for ranges that were never written.
//!
//! Absent on purpose: allocation, and zeros with room below them. Servers promise no room for a
//! range of a file.

use super::link::{Link, garbled};
use super::share::Share;
use super::status::Failure;
use super::wire;
use larder_vfs::{Access, Change, Cred, Error, Handle, Seek, SpaceChange, SpaceKind};
use smb2::msg::ioctl::IoctlResponse;
use smb2::types::FileId;
use smb2::types::status::NtStatus;
use std::ops::Range;
use std::sync::Arc;

/// Largest answer that is asked for: 4,096 ranges.
const RANGES_BYTES_MAX: u32 = 1 << 16;

/// Highest offset in the protocol.
const PLACE_MAX: u64 = i64::MAX.cast_unsigned();

impl Share {
    /// Punches a range, durably.
    pub(super) async fn change_space(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        change: &SpaceChange,
    ) -> Result<Change, Failure> {
        change.check(self.limits.file_size_max)?;
        if change.kind != SpaceKind::Punch {
            return Err(Failure::Is(Error::NotSupported));
        }
        self.shape.may_with_file(cred, Access::MODIFY)?;
        let changing = self.files.changing(file);
        let after = match self.lock_open(link, file).await? {
            Some(open) => {
                punch(link, open.id, &change.range).await?;
                open.info().await?
            }
            None => {
                let opened = self.open_to_change(link, cred, file, wire::WRITE).await?;
                punch(link, opened.open.id, &change.range).await?;
                opened.open.finish(Vec::new()).await?
            }
        };
        let was = changing.done(Some(after));
        Ok(self.change(was, Some(after)))
    }

    /// Looks for data or a hole.
    pub(super) async fn seek(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64, Failure> {
        self.shape.may_with_file(cred, Access::READ)?;
        let opened = self.open_file(link, file, wire::READ, wire::NON_DIRECTORY_FILE).await?;
        let (id, size) = (opened.open.id, opened.info.size);
        let mut at = offset;
        while at < size {
            let (data, told) = allocated(link, id, at..size).await?;
            match what.among(at, told, data) {
                Ok(found) if found < told => return Ok(found),
                // The server talks nonsense.
                _ if told <= at => return Err(Failure::Is(Error::Io)),
                _ => at = told,
            }
        }
        let ends = what == Seek::Hole && offset < size;
        if ends { Ok(size) } else { Err(Failure::Is(Error::NoData)) }
    }
}

async fn punch(link: &Arc<Link>, id: FileId, range: &Range<u64>) -> Result<(), Failure> {
    let (start, end) = (range.start.min(PLACE_MAX), range.end.min(PLACE_MAX));
    link.ask(wire::control(id, wire::SET_SPARSE, vec![1], 0)).await?.check()?;
    let zeros = [start.to_le_bytes(), end.to_le_bytes()].concat();
    link.ask(wire::control(id, wire::SET_ZERO_DATA, zeros, 0)).await?.check()?;
    link.ask(wire::flush(id)).await?.check()
}

/// The allocated parts of a range, and how far the reply covers it.
async fn allocated(
    link: &Arc<Link>,
    id: FileId,
    range: Range<u64>,
) -> Result<(Vec<Range<u64>>, u64), Failure> {
    let asked = [range.start.to_le_bytes(), (range.end - range.start).to_le_bytes()].concat();
    let reply = link.ask(wire::control(id, wire::QUERY_RANGES, asked, RANGES_BYTES_MAX)).await?;
    let is_cut = reply.status == NtStatus::BUFFER_OVERFLOW;
    let told = reply.read::<IoctlResponse>()?.output_data;
    let ranges = ranges(&told).ok_or_else(|| garbled(smb2::Error::invalid_data("ranges")))?;
    let end = ranges.last().filter(|_| is_cut).map_or(range.end, |last| last.end.min(range.end));
    Ok((ranges, end))
}

/// The ranges of a reply to FSCTL_QUERY_ALLOCATED_RANGES; `None` if they are not in order.
fn ranges(told: &[u8]) -> Option<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for one in told.chunks(16) {
        let start = u64::from_le_bytes(one.get(..8)?.try_into().ok()?);
        let length = u64::from_le_bytes(one.get(8..16)?.try_into().ok()?);
        let end = start.checked_add(length).filter(|end| *end <= PLACE_MAX)?;
        if ranges.last().is_some_and(|last| start < last.end) {
            return None;
        }
        ranges.push(start..end);
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_or_none() {
        let told = |pairs: &[(u64, u64)]| -> Vec<u8> {
            let bytes = |(start, length): &(u64, u64)| [start.to_le_bytes(), length.to_le_bytes()];
            pairs.iter().flat_map(bytes).flatten().collect()
        };
        assert_eq!(ranges(&told(&[(0, 5), (5, 2), (9, 1)])), Some(vec![0..5, 5..7, 9..10]));
        assert_eq!(ranges(&[]), Some(vec![]));
        for senseless in [&[(5, 5), (9, 1)][..], &[(u64::MAX, 2)], &[(0, 1 << 63)]] {
            assert_eq!(ranges(&told(senseless)), None, "{senseless:?}");
        }
        assert_eq!(ranges(&told(&[(0, 5)])[..15]), None, "cut");
    }
}
