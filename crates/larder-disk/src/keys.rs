//! A cache of derived request keys: four HMACs and two key schedules for a request of 4 KiB would
//! take longer than its data.
//!
//! Invariants: keys are cached only for requests whose seal was right, and found only by the very
//! capability for which they were derived; never more than [`KEYS_MAX`], the oldest leave first.
//! Requests are still checked each time: a revoked capability's keys seal its refusal.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use larder_wire::capability::{Capability, CapabilityId, GroupId};
use larder_wire::disk::words::SessionId;
use larder_wire::seal::RequestKeys;

/// Most pairs of a session and a capability whose keys are kept: about 3 MiB.
pub(crate) const KEYS_MAX: usize = 1024;

/// Which request keys are meant; the capability in full decides.
type Name = (SessionId, GroupId, CapabilityId);

/// The keys.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    keys: HashMap<Name, (Capability, Arc<RequestKeys>)>,
    /// Oldest first.
    order: VecDeque<Name>,
}

fn name(session: SessionId, capability: &Capability) -> Name {
    (session, capability.group, capability.id)
}

impl Keys {
    /// The keys of requests in this session that present exactly this capability, if they are
    /// cached.
    pub(crate) fn get(
        &self,
        session: SessionId,
        capability: &Capability,
    ) -> Option<Arc<RequestKeys>> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let (shown, keys) = table.keys.get(&name(session, capability))?;
        (shown == capability).then(|| Arc::clone(keys))
    }

    /// Keeps keys that have shown to be right.
    pub(crate) fn keep(
        &self,
        session: SessionId,
        capability: &Capability,
        keys: &Arc<RequestKeys>,
    ) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name(session, capability);
        let entry = (capability.clone(), Arc::clone(keys));
        if table.keys.insert(name, entry).is_some() {
            return;
        }
        table.order.push_back(name);
        if table.order.len() > KEYS_MAX
            && let Some(oldest) = table.order.pop_front()
        {
            table.keys.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::capability::{BootEpoch, DiskId, Extent, Extents, KeyEpoch, Mode, VolumeId};
    use larder_wire::seal::Secret;

    use super::*;

    fn capability(id: u32) -> Capability {
        Capability {
            volume: VolumeId([7; 16]),
            disk: DiskId(1),
            boot: BootEpoch(1),
            key: KeyEpoch(1),
            group: GroupId(1),
            id: CapabilityId(id),
            mode: Mode::Read,
            expiry_ms: 1000,
            extents: Extents::new(vec![Extent::new(0, 1).unwrap()]).unwrap(),
        }
    }

    fn keys() -> Arc<RequestKeys> {
        let secret = Secret::new([1; 32]);
        Arc::new(secret.session_key(&[2; 32], &[3; 32]).request_keys(&secret))
    }

    #[test]
    fn keys_are_found_by_the_very_capability_and_session() {
        let kept = Keys::default();
        kept.keep(SessionId(1), &capability(1), &keys());
        assert!(kept.get(SessionId(1), &capability(1)).is_some());
        assert!(kept.get(SessionId(2), &capability(1)).is_none());
        let wider = Capability { mode: Mode::ReadWrite, ..capability(1) };
        assert!(kept.get(SessionId(1), &wider).is_none());
        let longer = Capability { expiry_ms: 2000, ..capability(1) };
        assert!(kept.get(SessionId(1), &longer).is_none());
    }

    #[test]
    fn no_more_keys_are_kept_than_may_be() {
        let kept = Keys::default();
        let keys = keys();
        for id in 0..KEYS_MAX as u32 + 10 {
            (0..2).for_each(|_| kept.keep(SessionId(1), &capability(id), &keys));
        }
        let found = |id| kept.get(SessionId(1), &capability(id)).is_some();
        assert_eq!((0..KEYS_MAX as u32 + 10).filter(|id| found(*id)).count(), KEYS_MAX);
        assert!(!found(9) && found(10));
    }
}
