//! Where the bytes of a file are: what its layouts say, without the capabilities. Moving them from
//! memory disks to others.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_vfs::{Cred, InArchive, Medium, Result, StoredPart};
use larder_wire::meta::calls::{Archive, ArchiveTold, Destage, GetCaps, LayoutGiven, LookAt};
use larder_wire::meta::words::{
    ByteRange, DiskId, Extent, ExtentState, FileId, Layout, LeaseKind, Mode, OpenId,
};
use larder_wire::meta::{FILE_BYTES_MAX, Status};

use super::Native;
use super::disks::Grants;
use super::plan::Location;
use super::session::Failed;

impl Native {
    /// See [`larder_vfs::Remote::stored`]. Asks the metadata server, whatever leases are held: a
    /// lease says which blocks a file has, and not which disks have them.
    pub(super) async fn stored_parts(&self, cred: &Cred, file: FileId) -> Result<Vec<StoredPart>> {
        self.commit_pending(file).await?;
        let (mut counted, mut at) = (Counted::default(), 0);
        loop {
            let range = ByteRange { offset: at, length: FILE_BYTES_MAX - at };
            let (open, mode) = (OpenId::NONE, Mode::Read);
            let given =
                self.session.ask(cred, |session| GetCaps { session, file, open, mode, range });
            let LayoutGiven { attributes, layout } = given.await?;
            counted.add(&layout, attributes.size, |disk| self.disks.is_memory(disk))?;
            let told = layout.covered.offset.saturating_add(layout.covered.length);
            // It ends there, or the server talks nonsense.
            if told >= attributes.size.min(FILE_BYTES_MAX) || told <= at {
                return Ok(counted.parts());
            }
            at = told;
        }
    }

    /// See [`larder_vfs::Remote::leave_memory`].
    pub(super) async fn destage(&self, cred: &Cred, file: FileId, within: Duration) -> Result<()> {
        self.commit_pending(file).await?;
        if self.session.leases().attributes(file).is_none() {
            // What another client retains is at the disks then, or lost.
            self.look(cred, LookAt::File(file), LeaseKind::None).await?;
        }
        let due_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let moved = self.session.ask(cred, |session| Destage { session, file, due_ms });
        match moved.await {
            // It is no regular file, and the server is of a version that loses none of these.
            Err(Failed::Status(Status::IsDirectory | Status::Invalid)) => Ok(()),
            moved => Ok(moved?),
        }
    }

    /// See [`larder_vfs::Remote::in_archive`].
    pub(super) async fn archive_told(
        &self,
        cred: &Cred,
        file: FileId,
        within: Option<Duration>,
    ) -> Result<Option<InArchive>> {
        self.commit_pending(file).await?;
        let ms = |within: Duration| u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let within_ms = within.map(ms);
        let told = self.session.ask(cred, |session| Archive { session, file, within_ms });
        let ArchiveTold { is_there, due_ms, late_ms } = told.await?;
        let (due, late) = (due_ms.map(Duration::from_millis), Duration::from_millis(late_ms));
        Ok((is_there || due.is_some()).then_some(InArchive { is_there, due, late }))
    }
}

/// Bytes by how they are kept.
#[derive(Default)]
struct Counted(BTreeMap<(Medium, Vec<u32>, bool), u64>);

impl Counted {
    /// Adds what a layout tells of a file of `size` bytes.
    fn add(
        &mut self,
        layout: &Layout,
        size: u64,
        is_memory: impl Fn(DiskId) -> bool,
    ) -> Result<()> {
        let grants = Grants::new(&layout.grants.0)?;
        for extent in &layout.extents.0 {
            let Extent { offset, length, disk, position, state } = *extent;
            let bytes = offset.saturating_add(length).min(size).saturating_sub(offset);
            let location = Location { disk, position };
            let have = grants.covering(location, length, false).into_iter();
            let mut disks: Vec<u32> = have.map(|one| one.capability.disk.0).collect();
            disks.sort_unstable();
            let medium = if is_memory(disk) { Medium::Memory } else { Medium::Disk };
            let is_lost = state == ExtentState::Lost;
            *self.0.entry((medium, disks, is_lost)).or_default() += bytes;
        }
        Ok(())
    }

    fn parts(self) -> Vec<StoredPart> {
        let counted = self.0.into_iter().filter(|(_, bytes)| *bytes > 0);
        let part = |((medium, disks, is_lost), bytes)| StoredPart { medium, bytes, disks, is_lost };
        counted.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::capability as cap;
    use larder_wire::meta::words::Grant;
    use larder_wire::xdr::{Array, Opaque, to_segments};

    use super::*;

    /// Leave to read `length` bytes at `position` of a disk, which is of a set.
    fn grant(set: u32, disk: u32, position: u64, length: u64) -> Grant {
        let extents = vec![cap::Extent::new(position, length).unwrap()];
        let capability = cap::Capability {
            volume: cap::VolumeId([0; 16]),
            disk: cap::DiskId(disk),
            boot: cap::BootEpoch(1),
            key: cap::KeyEpoch(1),
            group: cap::GroupId(1),
            id: cap::CapabilityId(1),
            mode: Mode::Read,
            expiry_ms: 1,
            extents: cap::Extents::new(extents).unwrap(),
        };
        let capability = Opaque(to_segments(&capability).to_bytes());
        Grant { disk: DiskId(set), mode: Mode::Read, expires_ms: 1, capability, secret: [0; 32] }
    }

    /// Two disks beside each other, of which one lacks a block; a memory disk; a part that is lost;
    /// one whose disks are away.
    #[test]
    fn parts_are_told_by_who_has_them() {
        let extent = |offset, disk, position, state| Extent {
            offset,
            length: 4096,
            disk: DiskId(disk),
            position,
            state,
        };
        let committed = ExtentState::Committed;
        let layout = Layout {
            covered: ByteRange { offset: 0, length: 40_960 },
            extents: Array(vec![
                extent(0, 1, 0, committed),
                extent(4096, 1, 4096, committed),
                extent(12_288, 3, 0, committed),
                extent(16_384, 3, 4096, ExtentState::Lost),
                extent(20_480, 1, 8192, committed),
                extent(24_576, 1, 0, committed),
                extent(32_768, 1, 0, committed),
            ]),
            grants: Array(vec![grant(1, 2, 0, 8192), grant(1, 1, 0, 4096), grant(3, 3, 0, 4096)]),
        };
        let mut counted = Counted::default();
        counted.add(&layout, 24_676, |disk| disk == DiskId(3)).unwrap();
        let part = |medium, bytes, disks: &[u32], is_lost| StoredPart {
            medium,
            bytes,
            disks: disks.to_vec(),
            is_lost,
        };
        assert_eq!(
            counted.parts(),
            [
                part(Medium::Memory, 4096, &[], true),
                part(Medium::Memory, 4096, &[3], false),
                part(Medium::Disk, 4096, &[], false),
                part(Medium::Disk, 4096 + 100, &[1, 2], false),
                part(Medium::Disk, 4096, &[2], false),
            ]
        );
    }
}
