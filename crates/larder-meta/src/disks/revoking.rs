//! The calls that revoke capabilities on one disk: of one group one call, of several one each, all
//! at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_disk_client::DiskControl;
use larder_wire::capability::{CapabilityId, GroupId};
use larder_wire::disk::REVOKED_MAX;
use tokio::task::JoinSet;

use super::reach::Unreached;

/// Most calls that revoke on one disk at the same time.
const REVOKING_MAX: usize = 32;

/// Capabilities of one group that one call revokes.
pub(super) type Revoked = (GroupId, Vec<CapabilityId>);

/// These capabilities, by call.
pub(super) fn by_call(names: impl Iterator<Item = (GroupId, CapabilityId)>) -> Vec<Revoked> {
    let mut by_group: BTreeMap<GroupId, Vec<CapabilityId>> = BTreeMap::new();
    for (group, id) in names {
        by_group.entry(group).or_default().push(id);
    }
    let chunk = |(group, ids): (GroupId, Vec<CapabilityId>)| {
        let chunks: Vec<_> = ids.chunks(REVOKED_MAX).map(<[_]>::to_vec).collect();
        chunks.into_iter().map(move |ids| (group, ids))
    };
    by_group.into_iter().flat_map(chunk).collect()
}

/// Revokes all of them. The capabilities on one file may be of several groups, and whoever changes
/// the file waits for one round trip.
///
/// # Errors
/// [`Unreached`]: some may be revoked; to revoke them again is no harm.
pub(super) async fn revoke(control: &Arc<DiskControl>, all: &[Revoked]) -> Result<(), Unreached> {
    for some in all.chunks(REVOKING_MAX) {
        let mut revoking = JoinSet::new();
        for (group, ids) in some.iter().cloned() {
            let control = Arc::clone(control);
            revoking.spawn(async move { control.revoke(group, ids).await });
        }
        while let Some(done) = revoking.join_next().await {
            done.map_err(|_| Unreached::Never)??;
        }
    }
    Ok(())
}
