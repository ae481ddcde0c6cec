//! The vocabulary of the program of disks: its procedures, and the reasons for refusals.

use bytes::Bytes;

use super::{DATA_BYTES_MAX, GROUPS_MAX, PROGRAM, REVOKED_MAX, TEXT_BYTES_MAX, VERSION};
use crate::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extent, Extents, GroupId, KeyEpoch, VolumeId,
};
use crate::seal::{KEY_BYTES, Setup};
use crate::xdr::{Array, Decode, Encode, Encoder, Opaque, XdrError};

xdr_newtype! {
    /// Number of a session at a disk, in one boot of it.
    SessionId(u64);
}

/// A disk's answer: results, or a refusal.
pub type Res<T> = Result<T, Refusal>;

impl<T: Encode> Encode for Res<T> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(results) => {
                out.put_u32(0);
                results.encode(out);
            }
            Err(refusal) => refusal.encode(out),
        }
    }
}

impl<T: Decode> Decode for Res<T> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        match u32::decode(input)? {
            0 => T::decode(input).map(Ok),
            refusal => Refusal::try_from(refusal).map(Err),
        }
    }
}

#[cfg(test)]
impl<T: crate::sample::Sample> crate::sample::Sample for Res<T> {
    fn sample(source: &mut crate::sample::Source<'_>) -> Self {
        match bool::sample(source) {
            true => Ok(T::sample(source)),
            false => Err(Refusal::sample(source)),
        }
    }
}

xdr_enum! {
    /// Why a disk did not carry out a request. [`Refusal::remedy`] says what to do.
    Refusal {
        /* What cannot be answered under a seal: whoever is between may have made it up. */
        Malformed = 1, UnknownSession = 2, Forged = 3, Replayed = 4, Exhausted = 5,
        WrongVolume = 6, WrongDisk = 7, OldBoot = 8, OldKey = 9,
        /* What a capability does not let its holder do, or not any more. */
        NotRefreshed = 16, OldGroup = 17, Revoked = 18, Expired = 19, WrongMode = 20,
        OutOfExtents = 21,
        /* What the metadata server may not do. */
        NotControl = 32, OldOwner = 33, StaleGroup = 34, StaleKey = 35, TooManyGroups = 36,
        /* What the store cannot do. */
        OutOfDisk = 48, NoSpace = 49, Failed = 50, Poisoned = 51,
    }
}

/// What the client may do after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Shake hands, and ask again.
    Handshake,
    /// Ask the metadata server for another capability, once.
    Capability,
    /// Nothing: it will be refused again.
    None,
}

impl Refusal {
    /// All that there are.
    pub const ALL: [Refusal; 24] = {
        use Refusal::*;
        [
            Malformed,
            UnknownSession,
            Forged,
            Replayed,
            Exhausted,
            WrongVolume,
            WrongDisk,
            OldBoot,
            OldKey,
            NotRefreshed,
            OldGroup,
            Revoked,
            Expired,
            WrongMode,
            OutOfExtents,
            NotControl,
            OldOwner,
            StaleGroup,
            StaleKey,
            TooManyGroups,
            OutOfDisk,
            NoSpace,
            Failed,
            Poisoned,
        ]
    };

    /// What the client may do.
    pub fn remedy(self) -> Remedy {
        use Refusal::*;
        match self {
            UnknownSession | Replayed | Exhausted => Remedy::Handshake,
            OldBoot | OldKey | NotRefreshed | OldGroup | Revoked | Expired | Forged => {
                Remedy::Capability
            }
            Malformed | WrongVolume | WrongDisk | WrongMode | OutOfExtents | NotControl
            | OldOwner | StaleGroup | StaleKey | TooManyGroups | OutOfDisk | NoSpace | Failed
            | Poisoned => Remedy::None,
        }
    }

    /// It in words, for people and for accounts.
    pub fn as_str(self) -> &'static str {
        use Refusal::*;
        match self {
            Malformed => "the request cannot be read",
            UnknownSession => "the disk does not know the session",
            Forged => "the seal is not that of the request",
            Replayed => "the request came before",
            Exhausted => "the session is used up",
            WrongVolume => "the capability is for another volume",
            WrongDisk => "the capability is for another disk",
            OldBoot => "the capability is older than the disk's last start",
            OldKey => "the capability is made with a key that is no longer taken",
            NotRefreshed => "the disk has not heard of the metadata server in time",
            OldGroup => "the capability's group is no longer valid",
            Revoked => "the capability is revoked",
            Expired => "the capability has expired",
            WrongMode => "the capability is for reading only, or for writing only",
            OutOfExtents => "the capability does not cover all of the bytes",
            NotControl => "only the metadata server may do this",
            OldOwner => "the volume has another owner meanwhile",
            StaleGroup => "the group is not newer than all that the disk has had",
            StaleKey => "the key epoch is older than the disk's",
            TooManyGroups => "the disk has as many groups as it can have",
            OutOfDisk => "the bytes are behind the end of the disk",
            NoSpace => "what is below the disk has no room left",
            Failed => "the store failed",
            Poisoned => "the store failed before, and takes no more changes",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}

/// A request: the part of its arguments that is read before its data.
pub trait Head: Encode + Decode {
    /// The number of the procedure.
    const NUMBER: u32;
    /// The answer if it was carried out, besides data.
    type Done: Encode + Decode;
    /// Whether its data is a secret. Then it is encrypted, in every setup.
    const HAS_SECRET: bool = false;
}

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    NullCall {}

    /// Arguments of HANDSHAKE: `mac` is over `hello`, under the secret that belongs to what it
    /// presents.
    HandshakeCall { hello: Hello, mac: [u8; KEY_BYTES] }

    /// What the client presents, for which disk, and with which nonce. `ends` is a session that is
    /// over.
    Hello {
        volume: VolumeId, disk: DiskId, shows: Shown, nonce: [u8; KEY_BYTES], ends: Option<Ending>,
    }

    /// The metadata server, as owner number `owner` of the volume.
    #[derive(Copy)]
    Owner { owner: u64 }

    /// A session to be ended, and the proof that it belongs to the caller. Its requests are carried
    /// out before the handshake is answered, or never.
    #[derive(Copy)]
    Ending { session: SessionId, proof: [u8; KEY_BYTES] }

    /// A session is made. `mac` is over `welcome`, under the new session's key.
    #[derive(Copy)]
    HandshakeDone { welcome: Welcome, mac: [u8; KEY_BYTES] }

    /// The new session, the boot of the disk, the setup of its volume, the disk's nonce.
    #[derive(Copy)]
    Welcome { session: SessionId, boot: BootEpoch, setup: Setup, nonce: [u8; KEY_BYTES] }

    /// READ: `length` bytes from `offset` of the disk.
    ReadHead { capability: Capability, offset: u64, length: u32 }
    /// WRITE: the request's data to `offset` of the disk; if `stable`, durable before the reply.
    WriteHead { capability: Capability, offset: u64, stable: bool }
    /// WRITE_FROM: `length` bytes of the same disk to `offset` of it; otherwise as WRITE.
    WriteFromHead {
        capability: Capability, offset: u64, stable: bool, length: u32, source: Origin,
    }
    /// Where these bytes begin, the capability to read them, and the proof that the caller has its
    /// secret: over [`WriteFromHead::claim`].
    Origin { capability: Capability, offset: u64, proof: [u8; KEY_BYTES] }
    /// What is read and written, and under which capability it is written. So a proof is of no use
    /// for other bytes, or to the holder of another capability.
    Claim { target: Capability, offset: u64, length: u32, from: u64 }
    /// FLUSH: what was written to the disk, and acknowledged, is durable before the reply.
    FlushHead { capability: Capability }

    /// REFRESH: until when the disk may trust what it knows. Without a time it only returns the
    /// disk's clock.
    #[derive(Copy)]
    RefreshHead { trust: Option<Trust> }
    /// A time of a disk's clock in one boot: it does not depend on when the disk receives it.
    #[derive(Copy)]
    Trust { boot: BootEpoch, until_ms: u64 }
    /// The disk's clock: milliseconds since it started, at a moment before the answer was sent. How
    /// many bytes it can hold now: its size, or less while its machine lacks memory. From which
    /// store it serves.
    #[derive(Copy)]
    RefreshDone { clock_ms: u64, limit: u64, store: StoreState }
    /// Which store it is, by random bytes from when it was made; and its generation: in how many
    /// boots the disk was let serve from it. A copy of it has a generation of its own from then on.
    #[derive(Copy)]
    StoreState { id: [u8; 16], generation: u64 }
    /// REVOKE: these capabilities of a group are over. Requests that they have admitted are done
    /// before the reply.
    RevokeHead { group: GroupId, ids: Array<CapabilityId, REVOKED_MAX> }
    /// GROUP_REPLACE: `victim` is over, `group` begins; its number is higher than any that the disk
    /// has had.
    #[derive(Copy)]
    GroupReplaceHead { victim: Option<GroupId>, group: GroupId }
    /// EPOCH: the disk accepts capabilities of this key epoch, and of the one before it.
    #[derive(Copy)]
    EpochHead { key: KeyEpoch }
    /// COPY: bytes of this disk to another place of it, durable before the reply.
    #[derive(Copy)]
    CopyHead { from: Extent, to: u64 }
    /// CLEAR: bytes that read as zeros from now on, durably; whole blocks are released.
    ClearHead { extents: Extents }
    /// AWAIT_WRITTEN: waits at most `wait_ms` until every block with bytes of the extents has been
    /// written. They are durable before the reply.
    AwaitWrittenHead { extents: Extents, wait_ms: u32 }
    /// Whether they all have been written, durably.
    #[derive(Copy)]
    WrittenDone { is_durable: bool }
    /// FETCH: `length` bytes of another disk to `offset` of this one, durable before the reply.
    /// They are written only if the capability to write is good at that moment. The data is the
    /// secret of the capability to read.
    FetchHead { capability: Capability, offset: u64, length: u32, source: Elsewhere }
    /// Where these bytes begin on the other disk, the capability to read them, and the disk's
    /// address as [`address`](super::address) has it, beside the caller.
    Elsewhere { capability: Capability, offset: u64, address: Opaque<TEXT_BYTES_MAX> }
    /// Why the other disk did not give the bytes, in words. Nothing: they are written.
    FetchDone { unread: Option<Opaque<TEXT_BYTES_MAX>> }
    /// STATUS: what the disk reports of itself.
    #[derive(Copy, Default)]
    StatusHead {}

    /// Results of procedures that have none.
    #[derive(Copy, Default)]
    Done {}

    /// Results of STATUS. `limit` is as in REFRESH. `trusted_until_ms` is a time of the disk's
    /// clock. Refusals are counted since the start; reasons that never occurred are left out.
    StatusDone {
        setup: Setup, size: u64, written: u64, limit: u64, clock_ms: u64, trusted_until_ms: u64,
        key: Option<KeyEpoch>, sessions: u32, poisoned: bool, groups: Array<GroupStatus, GROUPS_MAX>,
        refusals: Array<RefusalCount, 24>,
    }

    /// A valid group, and how many of its capabilities are revoked.
    #[derive(Copy)]
    GroupStatus { group: GroupId, revoked: u32 }

    /// How often a disk refused something.
    #[derive(Copy)]
    RefusalCount { refusal: Refusal, count: u64 }
}

xdr_union! {
    /// What a handshake presents. An observer has the disk's key, but gives no orders: it may
    /// request STATUS only.
    Shown {
        1 => Capability(Capability),
        2 => Control(Owner),
        3 => Observer,
    }
}

procedures! { PROGRAM, VERSION; 0 NullCall => (), 1 HandshakeCall => Res<HandshakeDone> }

/// The head of each procedure, and the type of its answer.
macro_rules! heads {
    ($( $number:literal $head:ident => $done:ident ),+ $(,)?) => { $(
        impl Head for $head {
            const NUMBER: u32 = $number;
            type Done = $done;
        }
    )+ };
}

heads! {
    2 ReadHead => Done, 3 WriteHead => Done, 4 FlushHead => Done, 5 RefreshHead => RefreshDone,
    6 RevokeHead => Done, 7 GroupReplaceHead => Done, 8 EpochHead => Done, 9 CopyHead => Done,
    10 ClearHead => Done, 11 StatusHead => StatusDone, 12 AwaitWrittenHead => WrittenDone,
    13 WriteFromHead => Done,
}

impl Head for FetchHead {
    const NUMBER: u32 = 14;
    type Done = FetchDone;
    const HAS_SECRET: bool = true;
}

impl WriteFromHead {
    /// What the proof of its source is over.
    pub fn claim(&self) -> Claim {
        let WriteFromHead { capability, offset, length, source, .. } = self;
        let target = capability.clone();
        Claim { target, offset: *offset, length: *length, from: source.offset }
    }
}

/// How many bytes a READ requests, from its whole message, which is not checked: the length is the
/// head's last value, followed by the seal and the length of no data.
pub fn read_length(message: &[u8]) -> usize {
    let at = message.len().wrapping_sub(4 + crate::seal::TAG_BYTES + 4);
    let length = message.get(at..).and_then(<[u8]>::first_chunk);
    length.map_or(0, |length| (u32::from_be_bytes(*length) as usize).min(DATA_BYTES_MAX))
}
