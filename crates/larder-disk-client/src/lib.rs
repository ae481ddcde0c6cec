//! The client side of the disk protocol: READ, WRITE and FLUSH under capabilities ([`DiskClient`]),
//! and the metadata server's control of a disk ([`DiskControl`]).
//!
//! Both keep one session with the disk. It is made when it is first needed, and again when it is
//! over: after a restart of the disk, a lost connection, or a request whose outcome is unknown.
//! Requests of the old session that are still in flight end, or are refused, before the new session
//! begins, so an abandoned write never takes effect after a later one.
//!
//! Absent on purpose: which bytes of which disk belong to which file, where capabilities come from,
//! and asking for another one: a refused caller learns the reason ([`DiskError::remedy`]).

#![forbid(unsafe_code)]

mod link;

use std::time::Duration;

use bytes::Bytes;
use larder_rpc::{CallOptions, Program, RpcClient, RpcError};
use larder_wire::capability::VolumeId;
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extent, Extents, GroupId, KeyEpoch,
};
use larder_wire::disk::sealed::ReplyError;
use larder_wire::disk::session::{Granted, Hailing};
use larder_wire::disk::words::{
    AwaitWrittenHead, ClearHead, CopyHead, Done, Elsewhere, EpochHead, FetchHead, FlushHead,
    GroupReplaceHead, Head, Origin, ReadHead, RefreshDone, RefreshHead, Refusal, Remedy,
    RevokeHead, StatusDone, StatusHead, Trust, WriteFromHead, WriteHead,
};
use larder_wire::disk::{PROCEDURE_NAMES, PROGRAM, TEXT_BYTES_MAX, VERSION};
use larder_wire::seal::MasterKey;
use larder_wire::xdr::{Array, Opaque, XdrError};
use link::Link;
use thiserror::Error;

/// The program, for [`larder_rpc::Config`].
pub const DISK_PROGRAM: Program =
    Program { number: PROGRAM, version: VERSION, procedures: PROCEDURE_NAMES };

/// Why a disk did not do something, or why it is unknown whether it did.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DiskError {
    /// The disk refused, and the seal proves that the answer is the disk's.
    #[error("{0}")]
    Refused(Refusal),
    /// An unsealed message says that the disk refused. The disk may nevertheless have executed the
    /// request.
    #[error("{0}, as somebody says")]
    Hearsay(Refusal),
    /// The answer is not from the disk.
    #[error("the answer is not from the disk: {0}")]
    NotGenuine(ReplyError),
    /// No answer came.
    #[error("{0}")]
    Rpc(RpcError),
}

impl DiskError {
    /// What the caller should do: try once more at most, because an attacker in between can send
    /// anything.
    pub fn remedy(self) -> Remedy {
        match self {
            DiskError::Refused(refusal) | DiskError::Hearsay(refusal) => refusal.remedy(),
            DiskError::NotGenuine(_) | DiskError::Rpc(_) => Remedy::None,
        }
    }
}

/// Reads and writes a disk under capabilities. Many tasks may use it at a time.
#[derive(Debug)]
pub struct DiskClient {
    link: Link,
}

impl DiskClient {
    /// A client of the disk that `rpc` calls; see [`DISK_PROGRAM`].
    pub fn new(rpc: RpcClient) -> DiskClient {
        DiskClient { link: Link::new(rpc) }
    }

    /// For tests: the numbers of the present session below this one count as used.
    #[doc(hidden)]
    pub fn skip_to(&self, sequence: u64) {
        self.link.skip_to(sequence);
    }

    /// How many answers were refused here ([`DiskError::NotGenuine`]): they were forged, altered,
    /// or belonged to other requests.
    pub fn forged(&self) -> u64 {
        self.link.forged()
    }

    /// Reads `length` bytes, at most [`larder_wire::disk::DATA_BYTES_MAX`], from `offset` of the
    /// disk.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn read(
        &self,
        granted: &Granted,
        offset: u64,
        length: u32,
        options: CallOptions,
    ) -> Result<Bytes, DiskError> {
        let head = ReadHead { capability: granted.capability.clone(), offset, length };
        let (_, data, _) = self.ask(granted, head, Bytes::new(), options).await?;
        if data.len() != length as usize {
            return Err(self.link.not_genuine(ReplyError::Malformed(XdrError::Short)));
        }
        Ok(data)
    }

    /// Writes `data`, at most [`larder_wire::disk::DATA_BYTES_MAX`], to `offset` of the disk. If
    /// `stable`, they are durable on return; otherwise after a [`DiskClient::flush`] that the same
    /// boot answers. If another boot answers, what was not flushed may be lost, and must be written
    /// again.
    ///
    /// # Errors
    /// [`DiskError`]: any part of the data may have been written, but none is written after the
    /// answer to a later call.
    pub async fn write(
        &self,
        granted: &Granted,
        offset: u64,
        data: Bytes,
        stable: bool,
        options: CallOptions,
    ) -> Result<BootEpoch, DiskError> {
        let head = WriteHead { capability: granted.capability.clone(), offset, stable };
        let (_, _, boot) = self.ask(granted, head, data, options).await?;
        Ok(boot)
    }

    /// Writes `length` bytes, at most [`larder_wire::disk::DATA_BYTES_MAX`], that the disk has at
    /// `from`, to `offset` of it: they do not pass the caller. `source` is to read them. Otherwise
    /// as [`DiskClient::write`].
    ///
    /// # Errors
    /// As [`DiskClient::write`]
    pub async fn write_from(
        &self,
        (granted, offset): (&Granted, u64),
        (source, from): (&Granted, u64),
        length: u32,
        stable: bool,
        options: CallOptions,
    ) -> Result<BootEpoch, DiskError> {
        let taken = Origin { capability: source.capability.clone(), offset: from, proof: [0; 32] };
        let capability = granted.capability.clone();
        let mut head = WriteFromHead { capability, offset, stable, length, source: taken };
        head.source.proof = source.secret.sign_source(&head.claim());
        let (_, _, boot) = self.ask(granted, head, Bytes::new(), options).await?;
        Ok(boot)
    }

    /// Makes durable what was written and answered before.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn flush(
        &self,
        granted: &Granted,
        options: CallOptions,
    ) -> Result<BootEpoch, DiskError> {
        let head = FlushHead { capability: granted.capability.clone() };
        let (_, _, boot) = self.ask(granted, head, Bytes::new(), options).await?;
        Ok(boot)
    }

    async fn ask<H: Head<Done = Done>>(
        &self,
        granted: &Granted,
        head: H,
        data: Bytes,
        options: CallOptions,
    ) -> Result<(Done, Bytes, BootEpoch), DiskError> {
        let hail = |nonce, before: Option<&_>| Hailing::client(granted, nonce, before);
        self.link.call(&hail, Some(granted), &head, data, options).await
    }
}

/// The identity under which a disk is controlled.
#[derive(Clone, Debug)]
pub struct Control {
    /// The secret that the disk and the metadata server share.
    pub master: MasterKey,
    /// The volume.
    pub volume: VolumeId,
    /// The disk's number in it.
    pub disk: DiskId,
    /// The number of the volume's owner that this metadata server is: higher than that of every
    /// earlier owner.
    pub owner: u64,
}

/// The metadata server's operations on a disk. Each takes effect before it is answered.
#[derive(Debug)]
pub struct DiskControl {
    link: Link,
    control: Control,
    options: CallOptions,
}

impl DiskControl {
    /// Controls the disk that `rpc` calls; see [`DISK_PROGRAM`].
    pub fn new(rpc: RpcClient, control: Control) -> DiskControl {
        DiskControl { link: Link::new(rpc), control, options: CallOptions::default() }
    }

    /// Lets the disk trust its state until a time of its own clock, but for ten minutes at most;
    /// `None` changes nothing. Returns its clock, which may have advanced since, and its current
    /// boot. After a new boot the disk has no state, and must be given key epoch and groups.
    ///
    /// # Errors
    /// [`DiskError`]; [`Refusal::OldBoot`] if the time is of another boot.
    pub async fn refresh(
        &self,
        trust: Option<Trust>,
    ) -> Result<(RefreshDone, BootEpoch), DiskError> {
        self.order(RefreshHead { trust }).await
    }

    /// Revokes capabilities of a group, at most [`larder_wire::disk::REVOKED_MAX`]. On return none
    /// of them admits a request, and no request that they admitted is in progress.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn revoke(&self, group: GroupId, ids: Vec<CapabilityId>) -> Result<(), DiskError> {
        self.order(RevokeHead { group, ids: Array(ids) }).await.map(drop)
    }

    /// Ends a group and begins another, whose number is higher than that of every earlier group.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn replace_group(
        &self,
        victim: Option<GroupId>,
        group: GroupId,
    ) -> Result<(), DiskError> {
        self.order(GroupReplaceHead { victim, group }).await.map(drop)
    }

    /// Has the disk accept capabilities of this key epoch and of the one before.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn rotate(&self, key: KeyEpoch) -> Result<(), DiskError> {
        self.order(EpochHead { key }).await.map(drop)
    }

    /// Copies bytes of the disk to another offset, durably.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn copy(&self, from: Extent, to: u64) -> Result<(), DiskError> {
        self.order(CopyHead { from, to }).await.map(drop)
    }

    /// Makes bytes read as zeros, durably, and frees whole blocks.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn clear(&self, extents: Extents) -> Result<(), DiskError> {
        self.order(ClearHead { extents }).await.map(drop)
    }

    /// Waits, for a limited time, until every block with bytes of `extents` has been written.
    /// Returns whether all have been, durably.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn await_written(&self, extents: Extents, wait: Duration) -> Result<bool, DiskError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let (done, _) = self.order(AwaitWrittenHead { extents, wait_ms }).await?;
        Ok(done.is_durable)
    }

    /// Has the disk read `length` bytes, at most [`larder_wire::disk::DATA_BYTES_MAX`], of another
    /// disk from `from` on, and write them to `offset`, durably: they do not pass the caller. It
    /// writes if the capability to write is good when it has them. `address` is the other disk's,
    /// as [`larder_wire::disk::address`] has it. Returns why that disk did not give the bytes, if
    /// it did not.
    ///
    /// # Errors
    /// [`DiskError`]: any part of the bytes may have been written, and may be until the capability
    /// to write is revoked.
    ///
    /// # Panics
    /// If the address is longer than [`TEXT_BYTES_MAX`].
    pub async fn fetch(
        &self,
        (capability, offset): (&Capability, u64),
        (source, address, from): (&Granted, &str, u64),
        length: u32,
    ) -> Result<Option<String>, DiskError> {
        assert!(address.len() <= TEXT_BYTES_MAX, "an address, not a name");
        let address = Opaque::copy_from_slice(address.as_bytes());
        let secret = Bytes::copy_from_slice(source.secret.as_bytes());
        let source = Elsewhere { capability: source.capability.clone(), offset: from, address };
        let head = FetchHead { capability: capability.clone(), offset, length, source };
        let (done, _) = self.order_with(head, secret).await?;
        Ok(done.unread.map(|why| String::from_utf8_lossy(&why).into_owned()))
    }

    /// The disk's report of its state.
    ///
    /// # Errors
    /// [`DiskError`]
    pub async fn status(&self) -> Result<StatusDone, DiskError> {
        self.order(StatusHead {}).await.map(|(status, _)| status)
    }

    async fn order<H: Head>(&self, head: H) -> Result<(H::Done, BootEpoch), DiskError> {
        self.order_with(head, Bytes::new()).await
    }

    async fn order_with<H: Head>(
        &self,
        head: H,
        data: Bytes,
    ) -> Result<(H::Done, BootEpoch), DiskError> {
        let Control { master, volume, disk, owner } = &self.control;
        let hail = |nonce, before: Option<&_>| {
            Hailing::control(master, *volume, *disk, *owner, nonce, before)
        };
        let answered = self.link.call(&hail, None, &head, data, self.options).await;
        answered.map(|(done, _, boot)| (done, boot))
    }
}

/// Asks a disk for its state, on behalf of a holder of its key. Changes nothing on the disk.
///
/// # Errors
/// [`DiskError`]
pub async fn observe(
    rpc: RpcClient,
    master: &MasterKey,
    volume: VolumeId,
    disk: DiskId,
) -> Result<StatusDone, DiskError> {
    let hail = |nonce, _: Option<&_>| Hailing::observer(master, volume, disk, nonce);
    let link = Link::new(rpc);
    let answered = link.call(&hail, None, &StatusHead {}, Bytes::new(), CallOptions::default());
    answered.await.map(|(status, _, _)| status)
}
