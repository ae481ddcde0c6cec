//! What the metadata server may do with a disk.
//!
//! Each of these is in force when it is answered: nothing that it forbids is in flight any more,
//! and what it makes durable is durable. [`crate::device`] has the one by which a disk reads
//! another one.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use larder_wire::disk::words::{
    AwaitWrittenHead, ClearHead, CopyHead, Done, EpochHead, GroupReplaceHead, Head, RefreshDone,
    RefreshHead, Refusal, Res, RevokeHead, StatusDone, StatusHead, Trust, WrittenDone,
};

use crate::device::{Device, TRUST_MAX};
use crate::store::Store;

/// What an order brings besides its head.
pub(crate) struct With {
    /// Its data.
    pub(crate) data: Bytes,
    /// From which machine it came.
    pub(crate) beside: IpAddr,
}

/// A request of the metadata server.
pub(crate) trait ControlHead: Head + Send {
    /// Whether an observer may ask for it.
    const IS_FOR_OBSERVERS: bool = false;
    /// Whether the next owner of the volume waits until it is done: unless it changes nothing.
    const IS_WAITED_FOR: bool = true;

    /// Does it.
    fn carry_out(self, device: &Device, with: With)
    -> impl Future<Output = Res<Self::Done>> + Send;
}

impl ControlHead for RefreshHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<RefreshDone> {
        let clock_ms = device.now_ms();
        if let Some(Trust { boot, until_ms }) = self.trust {
            if boot == device.standing().boot() {
                device.begin_to_serve().await?;
            }
            let mut standing = device.standing_mut();
            if boot != standing.boot() {
                return Err(Refusal::OldBoot);
            }
            standing.refresh(until_ms.min(clock_ms + TRUST_MAX.as_millis() as u64));
        }
        let store = device.store();
        Ok(RefreshDone { clock_ms, limit: store.limit(), store: store.state() })
    }
}

impl ControlHead for RevokeHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<Done> {
        device.standing_mut().groups_mut().revoke(self.group, &self.ids.0);
        let sessions = device.client_sessions();
        self.ids.0.iter().for_each(|id| sessions.forget(self.group, *id));
        device.underway().settled().await;
        Ok(Done {})
    }
}

impl ControlHead for GroupReplaceHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<Done> {
        device.standing_mut().groups_mut().replace(self.victim, self.group)?;
        if let Some(victim) = self.victim {
            device.client_sessions().forget_group(victim);
        }
        device.underway().settled().await;
        Ok(Done {})
    }
}

impl ControlHead for EpochHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<Done> {
        device.standing_mut().rotate(self.key)?;
        device.client_sessions().forget_unless(|made_with| self.key.accepts(made_with));
        device.underway().settled().await;
        Ok(Done {})
    }
}

impl ControlHead for CopyHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<Done> {
        device
            .blocking(device.orders().enter(), move |store| store.copy(self.from, self.to))
            .await?;
        Ok(Done {})
    }
}

impl ControlHead for ClearHead {
    async fn carry_out(self, device: &Device, _with: With) -> Res<Done> {
        device
            .blocking(device.orders().enter(), move |store| store.clear(self.extents.as_slice()))
            .await?;
        Ok(Done {})
    }
}

/// Longest wait for a client that has said that it is writing.
const WRITTEN_WAIT_MAX: Duration = Duration::from_secs(10);

impl ControlHead for AwaitWrittenHead {
    const IS_WAITED_FOR: bool = false;

    async fn carry_out(self, device: &Device, _with: With) -> Res<WrittenDone> {
        let wait = Duration::from_millis(self.wait_ms.into()).min(WRITTEN_WAIT_MAX);
        if !device.await_written(&self.extents, wait).await? {
            return Ok(WrittenDone { is_durable: false });
        }
        device.blocking(device.orders().enter(), Store::flush).await?;
        Ok(WrittenDone { is_durable: true })
    }
}

impl ControlHead for StatusHead {
    const IS_FOR_OBSERVERS: bool = true;

    async fn carry_out(self, device: &Device, _with: With) -> Res<StatusDone> {
        Ok(device.status())
    }
}
