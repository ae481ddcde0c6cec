//! What the metadata server has told the disk, and what that allows a capability to do.
//!
//! [`Standing::check`] makes every check except that of the seal: it is a function of the
//! capability, of the request, and of the time.
//!
//! Invariants:
//! - A disk that has just started knows nothing, so it permits nothing.
//! - What it permits ends at a time of its own clock, unless the metadata server extends it before.
//! - Owners and key epochs only rise.

use larder_wire::capability::{BootEpoch, Capability, DiskId, Extent, KeyEpoch, VolumeId};
use larder_wire::disk::words::Refusal;

use crate::groups::Groups;

/// What a request is to do under a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// To begin a session.
    Handshake,
    /// To read bytes.
    Read(Extent),
    /// To write bytes.
    Write(Extent),
    /// To make durable what was written.
    Flush,
}

/// The state by which a disk decides.
#[derive(Debug)]
pub struct Standing {
    volume: VolumeId,
    disk: DiskId,
    boot: BootEpoch,
    owner: u64,
    key: Option<KeyEpoch>,
    trusted_until_ms: u64,
    groups: Groups,
}

impl Standing {
    /// Of a disk that has just started.
    pub fn new(volume: VolumeId, disk: DiskId, boot: BootEpoch) -> Standing {
        let groups = Groups::default();
        Standing { volume, disk, boot, owner: 0, key: None, trusted_until_ms: 0, groups }
    }

    /// Which boot this is.
    pub fn boot(&self) -> BootEpoch {
        self.boot
    }

    /// Fails unless this disk is the one that was named.
    ///
    /// # Errors
    /// [`Refusal::WrongVolume`], [`Refusal::WrongDisk`]
    pub fn is_meant(&self, volume: VolumeId, disk: DiskId) -> Result<(), Refusal> {
        match () {
            () if volume != self.volume => Err(Refusal::WrongVolume),
            () if disk != self.disk => Err(Refusal::WrongDisk),
            () => Ok(()),
        }
    }

    /// Fails unless a capability is for this disk and this boot, and made with a key that is
    /// accepted: only then is it known with which key its seal must be checked.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn is_current(&self, capability: &Capability) -> Result<(), Refusal> {
        self.is_meant(capability.volume, capability.disk)?;
        if capability.boot != self.boot {
            return Err(Refusal::OldBoot);
        }
        let key = self.key.ok_or(Refusal::NotRefreshed)?;
        if key.accepts(capability.key) { Ok(()) } else { Err(Refusal::OldKey) }
    }

    /// Fails unless a capability whose seal is right allows the request now.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn check(&self, capability: &Capability, deed: Deed, now_ms: u64) -> Result<(), Refusal> {
        self.is_current(capability)?;
        if now_ms >= self.trusted_until_ms {
            return Err(Refusal::NotRefreshed);
        }
        self.groups.check(capability.group, capability.id)?;
        if now_ms >= capability.expiry_ms {
            return Err(Refusal::Expired);
        }
        let (is_allowed, range) = match deed {
            Deed::Handshake => (true, None),
            Deed::Read(range) => (capability.mode.reads(), Some(range)),
            Deed::Write(range) => (capability.mode.writes(), Some(range)),
            Deed::Flush => (capability.mode.writes(), None),
        };
        if !is_allowed {
            return Err(Refusal::WrongMode);
        }
        match range {
            Some(range) if !capability.extents.cover(range) => Err(Refusal::OutOfExtents),
            _ => Ok(()),
        }
    }

    /// A holder of the disk's key claims to be this owner of the volume.
    ///
    /// # Errors
    /// [`Refusal::OldOwner`] if there was a later one.
    pub fn owned_by(&mut self, owner: u64) -> Result<(), Refusal> {
        if owner < self.owner {
            return Err(Refusal::OldOwner);
        }
        self.owner = owner;
        Ok(())
    }

    /// Whether `owner` is the latest owner of the volume that the disk knows.
    ///
    /// # Errors
    /// [`Refusal::OldOwner`]
    pub fn is_owner(&self, owner: u64) -> Result<(), Refusal> {
        if owner == self.owner { Ok(()) } else { Err(Refusal::OldOwner) }
    }

    /// The disk may trust its state until then.
    pub fn refresh(&mut self, until_ms: u64) {
        self.trusted_until_ms = until_ms;
    }

    /// Until when the disk may trust what it knows.
    pub fn trusted_until_ms(&self) -> u64 {
        self.trusted_until_ms
    }

    /// Accepts capabilities of this key epoch, and of the one before.
    ///
    /// # Errors
    /// [`Refusal::StaleKey`] if there was a later one.
    pub fn rotate(&mut self, key: KeyEpoch) -> Result<(), Refusal> {
        if self.key.is_some_and(|now| key < now) {
            return Err(Refusal::StaleKey);
        }
        self.key = Some(key);
        Ok(())
    }

    /// The key epoch, once the metadata server has sent it.
    pub fn key(&self) -> Option<KeyEpoch> {
        self.key
    }

    /// The groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The groups, to be changed.
    pub fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::capability::{CapabilityId, Extents, GroupId, Mode};

    use super::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);
    const NOW_MS: u64 = 5_000;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent::new(offset, length).unwrap()
    }

    /// A disk with key epoch 4, trusted until 10 s, with group 2, of which capability 9 is revoked.
    fn standing() -> Standing {
        let mut standing = Standing::new(VOLUME, DiskId(1), BootEpoch(11));
        standing.rotate(KeyEpoch(4)).unwrap();
        standing.refresh(10_000);
        standing.groups_mut().replace(None, GroupId(2)).unwrap();
        standing.groups_mut().revoke(GroupId(2), &[CapabilityId(9)]);
        standing
    }

    fn capability() -> Capability {
        Capability {
            volume: VOLUME,
            disk: DiskId(1),
            boot: BootEpoch(11),
            key: KeyEpoch(4),
            group: GroupId(2),
            id: CapabilityId(1),
            mode: Mode::ReadWrite,
            expiry_ms: 8_000,
            extents: Extents::new(vec![extent(100, 100), extent(200, 50), extent(300, 1)]).unwrap(),
        }
    }

    /// Every combination of faults: the disk reports the first of them, in the order of the checks.
    #[test]
    fn every_combination_of_faults_is_refused_by_the_first() {
        type Fault = (Refusal, fn(&mut Standing, &mut Capability, &mut u64));
        let faults: [Fault; 9] = [
            (Refusal::WrongVolume, |_, one, _| one.volume = VolumeId([8; 16])),
            (Refusal::WrongDisk, |_, one, _| one.disk = DiskId(2)),
            (Refusal::OldBoot, |_, one, _| one.boot = BootEpoch(10)),
            (Refusal::OldKey, |_, one, _| one.key = KeyEpoch(2)),
            (Refusal::NotRefreshed, |standing, _, _| standing.refresh(NOW_MS)),
            (Refusal::OldGroup, |_, one, _| one.group = GroupId(1)),
            (Refusal::Expired, |_, one, now_ms| one.expiry_ms = *now_ms),
            (Refusal::WrongMode, |_, one, _| one.mode = Mode::Read),
            (Refusal::OutOfExtents, |_, one, _| {
                one.extents = Extents::new(vec![extent(0, 100)]).unwrap();
            }),
        ];
        let deed = Deed::Write(extent(100, 150));
        for chosen in 0..1 << faults.len() {
            let (mut standing, mut capability, mut now_ms) = (standing(), capability(), NOW_MS);
            let chosen = |at: &usize| chosen & (1 << at) != 0;
            for at in (0..faults.len()).filter(chosen) {
                faults[at].1(&mut standing, &mut capability, &mut now_ms);
            }
            let expected = (0..faults.len()).find(chosen).map_or(Ok(()), |at| Err(faults[at].0));
            assert_eq!(standing.check(&capability, deed, now_ms), expected);
        }
    }

    #[test]
    fn modes_let_in_what_they_say() {
        let (read, write) = (Deed::Read(extent(100, 1)), Deed::Write(extent(100, 1)));
        let table = [
            (Mode::Read, [true, true, false, false]),
            (Mode::Write, [true, false, true, true]),
            (Mode::ReadWrite, [true, true, true, true]),
        ];
        for (mode, lets_in) in table {
            let capability = Capability { mode, ..capability() };
            for (deed, lets_in) in
                [Deed::Handshake, read, write, Deed::Flush].into_iter().zip(lets_in)
            {
                let expected = if lets_in { Ok(()) } else { Err(Refusal::WrongMode) };
                assert_eq!(
                    standing().check(&capability, deed, NOW_MS),
                    expected,
                    "{mode:?} {deed:?}"
                );
            }
        }
    }

    #[test]
    fn times_and_epochs_end_where_they_say() {
        let check = |standing: &Standing, capability: &Capability, now_ms| {
            standing.check(capability, Deed::Handshake, now_ms)
        };
        let mut standing = standing();
        assert_eq!(check(&standing, &capability(), 7_999), Ok(()));
        assert_eq!(check(&standing, &capability(), 8_000), Err(Refusal::Expired));
        let long = Capability { expiry_ms: u64::MAX, ..capability() };
        assert_eq!(check(&standing, &long, 9_999), Ok(()));
        assert_eq!(check(&standing, &long, 10_000), Err(Refusal::NotRefreshed));
        let revoked = Capability { id: CapabilityId(9), ..capability() };
        assert_eq!(check(&standing, &revoked, NOW_MS), Err(Refusal::Revoked));
        for (key, expected) in [(3, Ok(())), (4, Ok(())), (5, Err(Refusal::OldKey))] {
            let capability = Capability { key: KeyEpoch(key), ..capability() };
            assert_eq!(check(&standing, &capability, NOW_MS), expected);
        }
        assert_eq!(standing.rotate(KeyEpoch(3)), Err(Refusal::StaleKey));
        standing.rotate(KeyEpoch(5)).unwrap();
        assert_eq!(check(&standing, &capability(), NOW_MS), Ok(()));
        standing.rotate(KeyEpoch(6)).unwrap();
        assert_eq!(check(&standing, &capability(), NOW_MS), Err(Refusal::OldKey));
    }

    #[test]
    fn a_disk_that_has_just_started_permits_nothing() {
        let fresh = Standing::new(VOLUME, DiskId(1), BootEpoch(11));
        let refused = fresh.check(&capability(), Deed::Handshake, 0);
        assert_eq!(refused, Err(Refusal::NotRefreshed));
        let mut refreshed = fresh;
        refreshed.refresh(10_000);
        assert_eq!(refreshed.check(&capability(), Deed::Handshake, 0), Err(Refusal::NotRefreshed));
        refreshed.rotate(KeyEpoch(4)).unwrap();
        assert_eq!(refreshed.check(&capability(), Deed::Handshake, 0), Err(Refusal::OldGroup));
    }

    #[test]
    fn an_owner_gives_way_to_the_next_for_good() {
        let mut standing = standing();
        standing.owned_by(3).unwrap();
        standing.owned_by(3).unwrap();
        standing.owned_by(5).unwrap();
        assert_eq!(standing.owned_by(4), Err(Refusal::OldOwner));
        assert_eq!(standing.is_owner(3), Err(Refusal::OldOwner));
        assert_eq!(standing.is_owner(5), Ok(()));
    }
}
