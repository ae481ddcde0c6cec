//! The metadata server's state of one disk, and the capabilities that it makes from that.
//!
//! A capability carries the disk's present boot, a time of the disk's own clock, and a number in a
//! group that the disk accepts. Groups are begun in advance, so making a capability needs no
//! request. A pure state machine: the caller talks to the disk and reports the answers.
//!
//! Invariant: a number of a group is used once, and a group is used by one life of the server.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extent, Extents, GROUP_CAPABILITIES, GroupId,
    KeyEpoch, Mode, VolumeId,
};
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::Trust;
use larder_wire::seal::{MasterKey, Secret};
use larder_wire::xdr::{Decode, to_segments};

use super::minted::{CapabilityName, Minted};
use super::store_check::StoreCheck;

/// How long capabilities last. A client that needs one longer requests another.
pub(super) const LASTS: Duration = Duration::from_secs(600);
/// Groups that a disk accepts at a time. When another one begins the oldest ends; its capabilities
/// have expired, unless more are made than this many groups have numbers for.
const GROUPS_MAX: usize = 32;

/// Clocks of two machines differ in rate by at most one part in this many. Quartz and NTP's slewing
/// cause less than one in a thousand.
const DRIFT: u32 = 100;

/// The disk's identity, and its owner.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) master: MasterKey,
    pub(super) volume: VolumeId,
    pub(super) disk: DiskId,
    /// The number of this owner of the volume: the upper half of groups.
    pub(super) owner: u64,
}

/// What is known of a disk.
#[derive(Debug)]
pub(super) struct Known {
    identity: Identity,
    store: StoreCheck,
    /// The key epoch of capabilities: the disk accepts it, since it knows this one or the next.
    key: KeyEpoch,
    /// The key epoch that the disk is to know.
    key_wanted: KeyEpoch,
    boot: Option<BootEpoch>,
    /// The disk's clock was this at least, at that moment.
    clock: Option<(u64, Instant)>,
    /// Groups that the disk accepts, oldest first; numbers are assigned from `current`.
    groups: VecDeque<GroupId>,
    current: Option<GroupId>,
    /// Numbers that were given of the current group.
    used: u32,
    /// Groups that the disk takes and that no number was given of.
    spare: VecDeque<GroupId>,
    next_group: u64,
    /// How many numbers were given of a group, and when the last of them.
    given: BTreeMap<GroupId, (u32, Instant)>,
    /// Capabilities that may have been in use when their group ended because it had no numbers
    /// left.
    unwanted: u64,
}

impl Known {
    /// Nothing yet. The disk is to be told key epoch `key`.
    pub(super) fn new(identity: Identity, store: StoreCheck, key: KeyEpoch) -> Known {
        let next_group = identity.owner << 32 | 1;
        Known {
            identity,
            store,
            key,
            key_wanted: key,
            boot: None,
            clock: None,
            groups: VecDeque::new(),
            current: None,
            used: 0,
            spare: VecDeque::new(),
            next_group,
            given: BTreeMap::new(),
            unwanted: 0,
        }
    }

    /// How many capabilities may have been in use when their group ended, because the disk accepts
    /// only so many groups at a time. Those that were revoked before are included.
    pub(super) fn unwanted(&self) -> u64 {
        self.unwanted
    }

    /// The disk is to accept capabilities of this key epoch. Those that are made have the one
    /// before, until it does.
    pub(super) fn rotate(&mut self, key: KeyEpoch) {
        self.key_wanted = self.key_wanted.max(key);
    }

    /// The key epoch that a disk is told on which no capability is valid.
    pub(super) fn last_key(&self) -> KeyEpoch {
        self.key_wanted
    }

    /// The key epoch that the disk is to be told next, if it lacks some. A disk that accepts one
    /// accepts the one before: so it accepts what is made for it until it is known that it was
    /// told.
    pub(super) fn next_key(&self) -> Option<KeyEpoch> {
        (self.key < self.key_wanted).then(|| KeyEpoch(self.key.0 + 1))
    }

    /// The disk was told a key epoch.
    pub(super) fn has_key(&mut self, key: KeyEpoch) {
        self.key = self.key.max(key);
    }

    /// Whether it may serve from its store.
    pub(super) fn store(&mut self) -> &mut StoreCheck {
        &mut self.store
    }

    pub(super) fn boot(&self) -> Option<BootEpoch> {
        self.boot
    }

    /// The disk reported its boot. In another one it has forgotten all groups. Returns whether it
    /// is another.
    pub(super) fn booted(&mut self, boot: BootEpoch) -> bool {
        let before = self.boot.replace(boot);
        let is_another = before.is_some_and(|before| before != boot);
        if is_another {
            self.forget();
        }
        is_another
    }

    /// The disk's clock was `clock_ms` at `at` at least.
    pub(super) fn refreshed(&mut self, clock_ms: u64, at: Instant) {
        self.clock = Some((clock_ms, at));
    }

    /// A time of the disk's clock that it reaches at `until` at the latest, however much the two
    /// clocks differ in rate: the time until which the disk may be told to trust. `None` while its
    /// clock is not known.
    ///
    /// When the disk's report was received, its clock had at least the reported time; so it reaches
    /// a later time before our clock does, not after.
    pub(super) fn trust(&self, until: Instant) -> Option<Trust> {
        let (boot, (clock_ms, at)) = (self.boot?, self.clock?);
        let ahead = until.saturating_duration_since(at);
        let ahead_ms = u64::try_from((ahead - ahead / DRIFT).as_millis()).unwrap_or(u64::MAX);
        Some(Trust { boot, until_ms: clock_ms.saturating_add(ahead_ms) })
    }

    /// The disk is in another boot, whose clock is not known.
    pub(super) fn forget_clock(&mut self) {
        self.clock = None;
    }

    /// No capability is made until a group begins.
    pub(super) fn forget(&mut self) {
        self.groups.clear();
        self.given.clear();
        self.spare.clear();
        self.current = None;
    }

    /// A number that no group had.
    pub(super) fn next_group(&mut self) -> GroupId {
        self.next_group += 1;
        GroupId(self.next_group - 1)
    }

    /// Which group should end, if one should, because another should begin.
    pub(super) fn wants_group(&self) -> Option<Option<GroupId>> {
        let is_low = self.current.is_none() || self.used > GROUP_CAPABILITIES / 2;
        let wants = self.spare.is_empty() && is_low;
        let victim = self.groups.front().copied().filter(|_| self.groups.len() >= GROUPS_MAX);
        wants.then_some(victim)
    }

    /// The disk takes `group` now, and `victim` no longer.
    pub(super) fn began(&mut self, victim: Option<GroupId>, group: GroupId, now: Instant) {
        let given = victim.and_then(|victim| self.given.remove(&victim));
        let may_be_used = |(_, last): &(u32, Instant)| now < *last + LASTS;
        self.unwanted += given.filter(may_be_used).map_or(0, |(count, _)| u64::from(count));
        self.groups.retain(|other| Some(*other) != victim);
        if self.current == victim {
            self.current = None;
        }
        self.groups.push_back(group);
        self.spare.push_back(group);
    }

    /// Makes a capability. `None` while too little is known of the disk.
    pub(super) fn mint(
        &mut self,
        mode: Mode,
        bytes: &[Range<u64>],
        now: Instant,
    ) -> Option<Minted> {
        let boot = self.boot.filter(|_| self.store.may_be_used())?;
        let (clock_ms, at) = self.clock?;
        if self.current.is_none() || self.used == GROUP_CAPABILITIES {
            self.current = Some(self.spare.pop_front()?);
            self.used = 0;
        }
        let group = self.current?;
        let extent = |range: &Range<u64>| Extent::new(range.start, range.end - range.start).ok();
        let extents = bytes.iter().map(extent).collect::<Option<Vec<_>>>()?;
        let extents = Extents::new(extents).ok()?;
        let id = CapabilityId(self.used);
        self.used += 1;
        self.given.insert(group, (self.used, now));
        let passed = now.saturating_duration_since(at) + LASTS;
        let passed_ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let Identity { master, volume, disk, .. } = &self.identity;
        let granted = Granted::mint(
            master,
            Capability {
                volume: *volume,
                disk: *disk,
                boot,
                key: self.key,
                group,
                id,
                mode,
                expiry_ms: clock_ms.saturating_add(passed_ms),
                extents,
            },
        );
        Some(Minted {
            name: CapabilityName { group, id },
            capability: to_segments(&granted.capability).to_bytes(),
            secret: *granted.secret.as_bytes(),
            lasts: LASTS,
            boot: boot.0,
        })
    }
}

/// A capability that was made, to be used here.
pub(super) fn granted(minted: &Minted) -> Option<Granted> {
    let capability = Capability::decode(&mut minted.capability.clone()).ok()?;
    Some(Granted { capability, secret: Secret::new(minted.secret) })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn known() -> Known {
        let (master, volume) = (MasterKey::new([5; 32]), VolumeId([7; 16]));
        let identity = Identity { master, volume, disk: DiskId(1), owner: 3 };
        Known::new(identity, StoreCheck::new(true), KeyEpoch(3))
    }

    fn mint(known: &mut Known, now: Instant) -> Option<Minted> {
        known.mint(Mode::Read, std::slice::from_ref(&(0..4096)), now)
    }

    fn begin(known: &mut Known, now: Instant) -> Option<GroupId> {
        let victim = known.wants_group()?;
        let group = known.next_group();
        known.began(victim, group, now);
        Some(group)
    }

    #[test]
    fn nothing_is_made_before_the_disk_is_known() {
        let (mut known, now) = (known(), Instant::now());
        assert!(mint(&mut known, now).is_none());
        assert!(!known.booted(BootEpoch(9)), "it is the first that we know");
        known.refreshed(1000, now);
        assert!(mint(&mut known, now).is_none());
        begin(&mut known, now).unwrap();
        let later = now + Duration::from_secs(5);
        let minted = mint(&mut known, later).unwrap();
        let capability = Capability::decode(&mut minted.capability.clone()).unwrap();
        assert_eq!((capability.boot, capability.key), (BootEpoch(9), KeyEpoch(3)));
        assert_eq!(capability.expiry_ms, 1000 + 5000 + LASTS.as_millis() as u64);
        // Another boot has no group.
        assert!(!known.booted(BootEpoch(9)));
        assert!(known.booted(BootEpoch(10)));
        assert!(mint(&mut known, now).is_none());
    }

    /// Delays of every length, and clocks of every possible rate: when we consider the disk's trust
    /// as over, it is.
    #[test]
    fn the_disk_does_not_trust_longer_than_we_count() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        for (heard, rate) in [0, 1, 400, 30_000]
            .into_iter()
            .flat_map(|heard| [990, 1000, 1010].map(|rate| (heard, rate)))
        {
            // At `begun` the disk read its clock; we received that later.
            let mut known = known();
            assert_eq!(known.trust(begun), None);
            known.booted(BootEpoch(9));
            known.refreshed(5_000, begun + ms(heard));
            for ahead in [0, 1, 8_000, 30_000, 60_000] {
                let until = begun + ms(heard + ahead);
                let trust = known.trust(until).unwrap();
                let disk_ms = 5_000 + (heard + ahead) * rate / 1000;
                assert!(trust.until_ms <= disk_ms, "{heard} {rate} {ahead}");
                assert!(trust.until_ms >= 5_000 + ahead * 98 / 100);
            }
            known.forget_clock();
            assert_eq!(known.trust(begun), None);
        }
    }

    #[test]
    fn numbers_are_given_once_and_groups_end_in_their_order() {
        let (mut known, now) = (known(), Instant::now());
        known.booted(BootEpoch(9));
        known.refreshed(1000, now);
        let mut taken = HashSet::new();
        let mut begun = Vec::new();
        for _ in 0..GROUP_CAPABILITIES * (GROUPS_MAX as u32 + 3) {
            begun.extend(begin(&mut known, now));
            let minted = mint(&mut known, now).unwrap();
            assert!(taken.insert(minted.name));
            assert!(known.groups.len() <= GROUPS_MAX);
            assert!(known.groups.contains(&minted.name.group));
        }
        assert!(begun.is_sorted_by(|one, next| one < next));
        let kept: Vec<GroupId> = known.groups.iter().copied().collect();
        assert!(begun.ends_with(&kept));
        let ended = begun.len() - kept.len();
        assert_eq!(known.unwanted(), ended as u64 * u64::from(GROUP_CAPABILITIES));
    }

    /// Groups whose capabilities have expired may end.
    #[test]
    fn a_group_that_no_client_can_use_any_more_is_no_loss() {
        for (passed, unwanted) in [(LASTS - Duration::from_millis(1), 2), (LASTS, 0)] {
            let (mut known, now) = (known(), Instant::now());
            known.booted(BootEpoch(9));
            known.refreshed(1000, now);
            let first = begin(&mut known, now);
            (0..2).for_each(|_| drop(mint(&mut known, now).unwrap()));
            let next = known.next_group();
            known.began(first, next, now + passed);
            assert_eq!(known.unwanted(), unwanted);
        }
    }
    /// What happens between a server and a disk whose key it rotates.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Rotated,
        /// The disk was told what it lacks next, and has answered.
        Told,
        /// The disk was told, and its answer was lost.
        Unanswered,
        /// The disk was started anew, and told the last epoch.
        Booted,
    }

    /// Each sequence of seven such steps: a capability that is made has a key that the disk
    /// accepts, and once the disk was told everything, that is the key of the last epoch.
    #[test]
    fn what_is_made_has_a_key_that_the_disk_accepts() {
        const STEPS: [Step; 4] = [Step::Rotated, Step::Told, Step::Unanswered, Step::Booted];
        for code in 0..STEPS.len().pow(7) {
            let now = Instant::now();
            let (mut known, mut disk, mut last) = (known(), KeyEpoch(3), KeyEpoch(3));
            known.booted(BootEpoch(9));
            known.refreshed(1000, now);
            begin(&mut known, now).unwrap();
            for at in 0..7 {
                let step = STEPS[code / STEPS.len().pow(at) % STEPS.len()];
                match step {
                    Step::Rotated => {
                        last = KeyEpoch(last.0 + 1);
                        known.rotate(last);
                        // A rotation that is told late.
                        known.rotate(KeyEpoch(last.0 - 1));
                    }
                    Step::Told | Step::Unanswered => {
                        let Some(key) = known.next_key() else { continue };
                        disk = key;
                        if matches!(step, Step::Told) {
                            known.has_key(key);
                        }
                    }
                    Step::Booted => {
                        disk = known.last_key();
                        known.has_key(disk);
                    }
                }
                let minted = mint(&mut known, now).unwrap();
                let made = Capability::decode(&mut minted.capability.clone()).unwrap().key;
                assert!(
                    disk.accepts(made),
                    "{code} {step:?}: made with {made:?}, the disk has {disk:?}"
                );
                let is_told = known.next_key().is_none();
                assert!(!is_told || (made, disk) == (last, last), "{code} {step:?}");
            }
        }
    }
}
