//! Groups of capabilities: which are valid, and which capabilities of them are revoked.
//!
//! Invariants:
//! - At most [`GROUPS_MAX`] groups, with a bit for each of their capabilities: 64 KiB in all.
//! - A revoked capability stays revoked, and a group that is over stays over: a group begins with a
//!   higher number than any before it in this boot, and no bit is ever taken back. So a metadata
//!   server that has lost its state cannot make the disk lose it.

use std::collections::BTreeMap;

use larder_wire::capability::{CapabilityId, GROUP_CAPABILITIES, GroupId};
use larder_wire::disk::GROUPS_MAX;
use larder_wire::disk::words::{GroupStatus, Refusal};

const WORDS: usize = GROUP_CAPABILITIES as usize / 64;

/// The valid groups.
#[derive(Debug, Default)]
pub struct Groups {
    valid: BTreeMap<GroupId, Box<[u64; WORDS]>>,
    /// The highest that there was.
    highest: Option<GroupId>,
}

impl Groups {
    /// Fails unless a capability belongs to a valid group, and is not revoked.
    ///
    /// # Errors
    /// [`Refusal::OldGroup`], [`Refusal::Revoked`]
    pub fn check(&self, group: GroupId, id: CapabilityId) -> Result<(), Refusal> {
        let revoked = self.valid.get(&group).ok_or(Refusal::OldGroup)?;
        let (word, bit) = bit_of(id).ok_or(Refusal::OldGroup)?;
        if revoked[word] & bit == 0 { Ok(()) } else { Err(Refusal::Revoked) }
    }

    /// Revokes capabilities. Those of a group that is over are over already.
    pub fn revoke(&mut self, group: GroupId, ids: &[CapabilityId]) {
        let Some(revoked) = self.valid.get_mut(&group) else { return };
        for (word, bit) in ids.iter().filter_map(|id| bit_of(*id)) {
            revoked[word] |= bit;
        }
    }

    /// Ends `victim`, if there is such a group, and begins `group`.
    ///
    /// # Errors
    /// [`Refusal::StaleGroup`] if `group` is not higher than all before it;
    /// [`Refusal::TooManyGroups`]. Then nothing is changed.
    pub fn replace(&mut self, victim: Option<GroupId>, group: GroupId) -> Result<(), Refusal> {
        if self.highest.is_some_and(|highest| group <= highest) {
            return Err(Refusal::StaleGroup);
        }
        let ends = victim.is_some_and(|victim| self.valid.contains_key(&victim));
        if self.valid.len() - usize::from(ends) >= GROUPS_MAX {
            return Err(Refusal::TooManyGroups);
        }
        if let Some(victim) = victim {
            self.valid.remove(&victim);
        }
        self.valid.insert(group, Box::new([0; WORDS]));
        self.highest = Some(group);
        Ok(())
    }

    /// The valid groups, and how many of each are revoked.
    pub fn status(&self) -> Vec<GroupStatus> {
        let count = |words: &[u64; WORDS]| words.iter().map(|word| word.count_ones()).sum();
        let groups = self.valid.iter();
        groups.map(|(group, words)| GroupStatus { group: *group, revoked: count(words) }).collect()
    }
}

/// Where a capability's bit is. None if no group has such a capability.
fn bit_of(id: CapabilityId) -> Option<(usize, u64)> {
    (id.0 < GROUP_CAPABILITIES).then(|| ((id.0 / 64) as usize, 1 << (id.0 % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVOKED: Result<(), Refusal> = Err(Refusal::Revoked);
    const OLD: Result<(), Refusal> = Err(Refusal::OldGroup);

    #[test]
    fn each_capability_has_a_bit_of_its_own() {
        let mut groups = Groups::default();
        groups.replace(None, GroupId(1)).unwrap();
        groups.replace(None, GroupId(2)).unwrap();
        let revoked = [0, 1, 63, 64, 65, GROUP_CAPABILITIES - 1].map(CapabilityId);
        groups.revoke(GroupId(1), &revoked);
        for id in (0..GROUP_CAPABILITIES).map(CapabilityId) {
            let expected = if revoked.contains(&id) { REVOKED } else { Ok(()) };
            assert_eq!(groups.check(GroupId(1), id), expected);
            assert_eq!(groups.check(GroupId(2), id), Ok(()));
        }
        assert_eq!(groups.check(GroupId(1), CapabilityId(GROUP_CAPABILITIES)), OLD);
        groups.revoke(GroupId(1), &[CapabilityId(GROUP_CAPABILITIES), CapabilityId(u32::MAX)]);
        assert_eq!(groups.status()[0], GroupStatus { group: GroupId(1), revoked: 6 });
    }

    #[test]
    fn a_group_that_is_over_stays_over() {
        let mut groups = Groups::default();
        assert_eq!(groups.check(GroupId(1), CapabilityId(0)), OLD);
        groups.replace(None, GroupId(5)).unwrap();
        groups.revoke(GroupId(5), &[CapabilityId(7)]);
        for stale in 0..=5 {
            let refused = groups.replace(Some(GroupId(5)), GroupId(stale));
            assert_eq!(refused, Err(Refusal::StaleGroup));
        }
        assert_eq!(groups.check(GroupId(5), CapabilityId(7)), REVOKED);
        groups.replace(Some(GroupId(5)), GroupId(6)).unwrap();
        groups.revoke(GroupId(5), &[CapabilityId(8)]);
        assert_eq!(groups.check(GroupId(5), CapabilityId(1)), OLD);
        assert_eq!(groups.check(GroupId(6), CapabilityId(7)), Ok(()));
        assert_eq!(groups.replace(None, GroupId(5)), Err(Refusal::StaleGroup));
    }

    #[test]
    fn there_are_not_more_groups_than_there_may_be() {
        let mut groups = Groups::default();
        for number in 1..=GROUPS_MAX as u64 {
            groups.replace(None, GroupId(number)).unwrap();
        }
        let next = GroupId(GROUPS_MAX as u64 + 1);
        for victim in [None, Some(GroupId(1000))] {
            assert_eq!(groups.replace(victim, next), Err(Refusal::TooManyGroups));
        }
        groups.replace(Some(GroupId(3)), next).unwrap();
        assert_eq!(groups.status().len(), GROUPS_MAX);
    }
}
