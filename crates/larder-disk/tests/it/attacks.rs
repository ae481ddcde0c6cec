//! What an attacker may try at a disk: each is refused for its own reason, counted, and changes
//! nothing.
//!
//! The attacker can read, keep, alter, repeat and drop everything on the wire, and may have
//! capabilities, but no key of the disk.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use larder_disk::TRUST_MAX;
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};
use larder_wire::disk::sealed::Sealed;
use larder_wire::disk::session::{AskError, Granted, Hailing, Session};
use larder_wire::disk::words::{
    ClearHead, EpochHead, GroupReplaceHead, Origin, ReadHead, RefreshHead, Refusal, Res,
    StatusHead, Trust, WriteFromHead, WriteHead,
};
use larder_wire::seal::{MasterKey, Setup};
use larder_wire::xdr::{Decode, to_segments};

use crate::stand::{DISK, GROUP, KEY, LIFE, Stand, TRUST, VOLUME, extent, master, write};

const SECRET: &[u8] = b"what the file's owner has written";
const EVIL: &[u8] = b"what the attacker writes over it.";

/// A disk with a file, its owner's capability and session, and the messages on the wire.
struct Scene {
    stand: Stand,
    owner: Granted,
    session: Session,
}

impl Scene {
    async fn new() -> Scene {
        let stand = Stand::new(Setup::Secure).await;
        let owner = stand.grant(Mode::ReadWrite, &[(8192, 4096)]);
        let session = stand.session(&owner).await;
        stand.write(&session, &owner, 8192, SECRET).await.unwrap();
        Scene { stand, owner, session }
    }

    /// A write by the attacker, under a capability that it has changed in some way, minted or not.
    async fn write_under(&self, granted: &Granted) -> Res<()> {
        refused(self.stand.write(&self.session, granted, 8192, EVIL).await)
    }

    /// The same, with a capability that is minted with this content.
    async fn write_minted(&self, change: fn(&mut Capability)) -> Res<()> {
        let mut capability = self.stand.capability(Mode::ReadWrite, &[(8192, 4096)]);
        change(&mut capability);
        self.write_under(&Granted::mint(&master(), capability)).await
    }

    /// A request of the owner, with bytes altered on the way.
    async fn altered(&self, alter: impl FnOnce(&mut Vec<u8>)) -> Res<()> {
        let (request, _) = write(&self.session, &self.owner, 8192, EVIL);
        let mut bytes = to_segments(&request).to_bytes().to_vec();
        alter(&mut bytes);
        let altered = Sealed::<WriteHead>::decode(&mut bytes.into()).unwrap();
        self.stand.bring(&altered).await.map(drop)
    }
}

/// The refusal, whether under a seal or not.
fn refused<T>(answered: Result<T, AskError>) -> Res<()> {
    match answered {
        Ok(_) => Ok(()),
        Err(AskError::Refused(refusal) | AskError::Hearsay(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

type Attack = for<'a> fn(&'a Scene) -> Pin<Box<dyn Future<Output = Res<()>> + 'a>>;

/// A list of attacks: the refusal, and the attempt.
macro_rules! attacks {
    ($( $name:literal => $refusal:ident, |$scene:ident| $attempt:expr; )+) => {
        vec![$( ($name, Refusal::$refusal, |$scene: &Scene| Box::pin(async move { $attempt })) ),+]
    };
}

/// Where the parts of a request are, in bytes: session, sequence, head with its length, seal, data
/// with its length.
const SEQUENCE_AT: usize = 8;
const HEAD_AT: usize = 20;

type Attacks = Vec<(&'static str, Refusal, Attack)>;

/// By an attacker without a capability for what it wants.
fn forgeries() -> Attacks {
    attacks! {
        "a forged seal" => Forged, |scene| {
            let length = EVIL.len().next_multiple_of(4) + 4;
            scene.altered(|bytes| { let at = bytes.len() - length - 1; bytes[at] ^= 1; }).await
        };
        "altered data" => Forged, |scene| {
            scene.altered(|bytes| { let at = bytes.len() - 5; bytes[at] ^= 1; }).await
        };
        "an altered capability" => Forged, |scene| {
            // The last byte of the expiry.
            scene.altered(|bytes| bytes[HEAD_AT + 55] ^= 1).await
        };
        "an altered offset" => Forged, |scene| {
            scene.altered(|bytes| bytes[HEAD_AT + 76 + 7] ^= 1).await
        };
        "another sequence number" => Forged, |scene| {
            scene.altered(|bytes| bytes[SEQUENCE_AT + 7] ^= 0x40).await
        };
        "a capability without its secret" => Forged, |scene| {
            let Granted { capability, .. } = scene.owner.clone();
            let secret = scene.stand.grant(Mode::ReadWrite, &[(0, 4096)]).secret;
            scene.write_under(&Granted { capability, secret }).await
        };
        "a capability of somebody who guesses the key" => Forged, |scene| {
            let capability = scene.owner.capability.clone();
            scene.write_under(&Granted::mint(&MasterKey::new([6; 32]), capability)).await
        };
        "an own capability in somebody else's session" => Forged, |scene| {
            // He knows the session's number, not its key.
            let own = scene.stand.grant(Mode::ReadWrite, &[(8192, 4096)]);
            let own_session = scene.stand.session(&own).await;
            let (request, _) = write(&own_session, &own, 8192, EVIL);
            let (theirs, _) = write(&scene.session, &scene.owner, 8192, EVIL);
            let mut bytes = to_segments(&request).to_bytes().to_vec();
            bytes[..8].copy_from_slice(&theirs.session.0.to_be_bytes());
            let moved = Sealed::<WriteHead>::decode(&mut bytes.into()).unwrap();
            scene.stand.bring(&moved).await.map(drop)
        };
        "a request moved to another session" => Forged, |scene| {
            let other = scene.stand.session(&scene.owner).await;
            let (in_other, _) = write(&other, &scene.owner, 8192, SECRET);
            scene.altered(|bytes| bytes[..8].copy_from_slice(&in_other.session.0.to_be_bytes())).await
        };
    }
}

/// By a holder of a capability that wants more.
fn trespasses() -> Attacks {
    attacks! {
        "one byte beyond an extent" => OutOfExtents, |scene| {
            refused(scene.stand.read(&scene.session, &scene.owner, 8192, 4097).await)
        };
        "one byte before an extent" => OutOfExtents, |scene| {
            refused(scene.stand.write(&scene.session, &scene.owner, 8191, EVIL).await)
        };
        "across a gap between extents" => OutOfExtents, |scene| {
            let gap = scene.stand.grant(Mode::Read, &[(0, 4096), (8192, 4096)]);
            refused(scene.stand.read(&scene.session, &gap, 4000, 5000).await)
        };
        "a write under a capability to read" => WrongMode, |scene| {
            scene.write_minted(|one| one.mode = Mode::Read).await
        };
        "a read under a capability to write" => WrongMode, |scene| {
            let writer = scene.stand.grant(Mode::Write, &[(8192, 4096)]);
            refused(scene.stand.read(&scene.session, &writer, 8192, 16).await)
        };
        "a capability for another disk of the mirror" => WrongDisk, |scene| {
            scene.write_minted(|one| one.disk = DiskId(2)).await
        };
        "a capability for another volume" => WrongVolume, |scene| {
            scene.write_minted(|one| one.volume = VolumeId([8; 16])).await
        };
        "a client that gives orders" => NotControl, |scene| {
            let whole = Extents::new(vec![extent(8192, 4096)]).unwrap();
            let clear = ClearHead { extents: whole };
            let order = scene.session.ask(&scene.owner.secret, &clear, Bytes::new()).unwrap();
            refused(scene.stand.deliver(order).await)
        };
    }
}

/// By an attacker that had a capability, or has recorded the messages of a holder.
fn leftovers() -> Attacks {
    attacks! {
        "an expired capability" => Expired, |scene| {
            scene.stand.clock.advance(LIFE);
            scene.write_under(&scene.owner).await
        };
        "a revoked capability, as after a chmod" => Revoked, |scene| {
            scene.stand.revoke(&scene.owner).await;
            scene.write_under(&scene.owner).await
        };
        "a write that was kept back until its owner's lease was broken" => Revoked, |scene| {
            let kept_back = write(&scene.session, &scene.owner, 8192, EVIL);
            scene.stand.revoke(&scene.owner).await;
            refused(scene.stand.deliver(kept_back).await)
        };
        "a capability of a group that was replaced" => OldGroup, |scene| {
            let group = GroupReplaceHead { victim: Some(GROUP), group: GroupId(11) };
            scene.stand.order(&group).await.unwrap();
            scene.write_under(&scene.owner).await
        };
        "a capability that no group has" => OldGroup, |scene| {
            scene.write_minted(|one| one.id = CapabilityId(8192)).await
        };
        "a capability of an earlier boot" => OldBoot, |scene| {
            scene.write_minted(|one| one.boot = BootEpoch(one.boot.0 ^ 1)).await
        };
        "a capability of an old key epoch" => OldKey, |scene| {
            scene.stand.order(&EpochHead { key: KeyEpoch(KEY.0 + 2) }).await.unwrap();
            scene.write_under(&scene.owner).await
        };
        "a request that comes twice in its session" => Replayed, |scene| {
            let (request, asked) = write(&scene.session, &scene.owner, 8192, SECRET);
            let kept = request.clone();
            scene.stand.deliver((request, asked)).await.unwrap();
            scene.stand.bring(&kept).await.map(drop)
        };
        "a request in the session after a reconnect" => UnknownSession, |scene| {
            let (kept, _) = write(&scene.session, &scene.owner, 8192, EVIL);
            let nonce = larder_io::secret::random();
            scene.stand.hail(&scene.owner, nonce, Some(&scene.session)).await.unwrap();
            scene.stand.bring(&kept).await.map(drop)
        };
        "a hello that comes again after its session was used" => Replayed, |scene| {
            let session = scene.stand.hail(&scene.owner, [3; 32], None).await.unwrap();
            scene.stand.read(&session, &scene.owner, 8192, 16).await.unwrap();
            scene.stand.hail(&scene.owner, [3; 32], None).await.map(drop)
        };
        "a disk that has not heard of the metadata server in time" => NotRefreshed, |scene| {
            let long = |one: &mut Capability| one.expiry_ms = u64::MAX;
            scene.stand.clock.advance(TRUST);
            scene.write_minted(long).await
        };
    }
}

/// By a metadata server that has lost its state, or the volume.
fn rollbacks() -> Attacks {
    attacks! {
        "a group table that is rolled back" => StaleGroup, |scene| {
            let replace = |victim, group| GroupReplaceHead { victim, group: GroupId(group) };
            scene.stand.order(&replace(None, GROUP.0 + 2)).await.unwrap();
            refused(scene.stand.order(&replace(Some(GROUP), GROUP.0 + 1)).await)
        };
        "a group that begins again" => StaleGroup, |scene| {
            let again = GroupReplaceHead { victim: Some(GROUP), group: GROUP };
            refused(scene.stand.order(&again).await)
        };
        "a key epoch that is rolled back" => StaleKey, |scene| {
            refused(scene.stand.order(&EpochHead { key: KeyEpoch(KEY.0 - 1) }).await)
        };
        "an earlier owner of the volume" => OldOwner, |scene| {
            scene.stand.control_as(0, [2; 32]).await.map(drop)
        };
    }
}

/// Each attack is refused for its reason, is counted once, also in the disk's status, and changes
/// no byte.
#[tokio::test]
async fn each_attack_is_refused_and_counted() {
    let attacks = [forgeries(), trespasses(), leftovers(), rollbacks()].into_iter().flatten();
    for (name, expected, attack) in attacks {
        let scene = Scene::new().await;
        let before = scene.stand.told(expected).await;
        assert_eq!(before, scene.stand.refused(expected), "{name}");
        assert_eq!(attack(&scene).await, Err(expected), "{name}");
        let after = scene.stand.told(expected).await;
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{name}: counted once");
        assert_eq!(after, scene.stand.refused(expected), "{name}");
        let bytes = scene.stand.device.store().read(extent(8192, SECRET.len() as u64)).unwrap();
        assert_eq!(bytes, SECRET, "{name}: nothing is changed");
        assert_eq!(scene.stand.device.store().written(), 4096, "{name}");
    }
}

/// The attack table does not pass because everything is refused.
#[tokio::test]
async fn what_is_no_attack_is_not_refused() {
    let scene = Scene::new().await;
    let Scene { stand, owner, session } = &scene;
    assert_eq!(stand.read(session, owner, 8192, SECRET.len() as u32).await.unwrap(), SECRET);
    stand.write(session, owner, 12_287, b"x").await.unwrap();
    stand.flush(session, owner).await.unwrap();
    stand.order(&EpochHead { key: KeyEpoch(KEY.0 + 1) }).await.unwrap();
    stand.clock.advance(LIFE - std::time::Duration::from_millis(1));
    assert_eq!(stand.read(session, owner, 12_287, 1).await.unwrap(), &b"x"[..]);
    let (all, _) = stand.refused(Refusal::Forged);
    assert_eq!(all, 0);
}

/// Each bit of a request counts: with any one of them flipped it has no effect.
#[tokio::test]
async fn no_bit_of_a_request_can_be_flipped() {
    let scene = Scene::new().await;
    let (request, asked) = write(&scene.session, &scene.owner, 8192, EVIL);
    let bytes = to_segments(&request).to_bytes();
    // The three bytes of padding at the end are not protected.
    let end = bytes.len() - (EVIL.len().next_multiple_of(4) - EVIL.len());
    for bit in 0..end * 8 {
        let mut altered = bytes.to_vec();
        altered[bit / 8] ^= 0x80 >> (bit % 8);
        let Ok(altered) = Sealed::<WriteHead>::decode(&mut altered.into()) else { continue };
        let answered = scene.stand.call(&altered).await;
        assert!(!matches!(answered, Ok(Ok(_))), "bit {bit}");
    }
    let store = scene.stand.device.store();
    assert_eq!(store.read(extent(8192, SECRET.len() as u64)).unwrap(), SECRET);
    scene.stand.deliver((request, asked)).await.unwrap();
    assert_eq!(store.read(extent(8192, EVIL.len() as u64)).unwrap(), EVIL);
}

/// A client that was killed and draws the same nonce again still has other keys: the disk's nonce
/// is new. So no number is ever used twice with a key.
#[tokio::test]
async fn a_client_that_starts_anew_never_repeats_a_key() {
    let scene = Scene::new().await;
    let Scene { stand, owner, .. } = &scene;
    let first = stand.hail(owner, [3; 32], None).await.unwrap();
    let (before, asked) = write(&first, owner, 8192, SECRET);
    stand.deliver((before.clone(), asked)).await.unwrap();
    assert_eq!(stand.hail(owner, [3; 32], None).await.unwrap_err(), Refusal::Replayed);

    // The disk has forgotten the session meanwhile, as it may.
    let again = stand.hail(owner, [4; 32], Some(&first)).await.unwrap();
    let again = stand.hail(owner, [3; 32], Some(&again)).await.unwrap();
    let (after, asked) = write(&again, owner, 8192, SECRET);
    assert_eq!(after.sequence, before.sequence);
    let seal = |request: &Sealed<WriteHead>| to_segments(request).to_bytes().slice(8..);
    assert_ne!(seal(&after), seal(&before));
    stand.deliver((after, asked)).await.unwrap();
}

/// Bytes of a block's earlier owner are not visible to the next one, whether written or not.
#[tokio::test]
async fn a_fresh_allocation_shows_nothing_of_its_earlier_owner() {
    let scene = Scene::new().await;
    let Scene { stand, owner, session } = &scene;
    stand.flush(session, owner).await.unwrap();
    stand.revoke(owner).await;
    let extents = Extents::new(vec![extent(8192, 4096)]).unwrap();
    stand.order(&ClearHead { extents }).await.unwrap();

    let next = stand.grant(Mode::ReadWrite, &[(8192, 4096)]);
    let earlier = (owner, session);
    let session = stand.session(&next).await;
    assert_eq!(stand.read(&session, &next, 8192, 4096).await.unwrap(), vec![0; 4096]);
    stand.write(&session, &next, 8192 + 5, b"mine").await.unwrap();
    let bytes = stand.read(&session, &next, 8192, 4096).await.unwrap();
    assert_eq!(&bytes[..12], b"\0\0\0\0\0mine\0\0\0");
    assert!(bytes[12..].iter().all(|byte| *byte == 0));

    // Nor are those of the next one visible to the earlier one.
    assert_eq!(stand.told(Refusal::Revoked).await, (0, 0));
    let (owner, session) = earlier;
    let read = stand.read(session, owner, 8192, 4096).await;
    assert_eq!(read, Err(AskError::Refused(Refusal::Revoked)));
    assert_eq!(stand.told(Refusal::Revoked).await, (1, 1));
}

/// A metadata server that has lost its state cannot undo its earlier orders.
#[tokio::test]
async fn a_group_table_is_not_rolled_back() {
    let scene = Scene::new().await;
    let Scene { stand, owner, .. } = &scene;
    stand.revoke(owner).await;
    let replace = |victim: Option<u64>, group: u64| GroupReplaceHead {
        victim: victim.map(GroupId),
        group: GroupId(group),
    };
    stand.order(&replace(None, 12)).await.unwrap();
    for (victim, group) in [(Some(10), 10), (None, 10), (Some(12), 11), (None, 12), (Some(10), 12)]
    {
        let refused = stand.order(&replace(victim, group)).await;
        assert_eq!(refused, Err(AskError::Refused(Refusal::StaleGroup)));
    }
    assert_eq!(stand.told(Refusal::StaleGroup).await, (5, 5));
    assert_eq!(scene.write_under(owner).await, Err(Refusal::Revoked));
    let stale = stand.order(&EpochHead { key: KeyEpoch(KEY.0 - 1) }).await;
    assert_eq!(stale, Err(AskError::Refused(Refusal::StaleKey)));
}

/// Of two metadata servers, the disk obeys the later owner of the volume.
#[tokio::test]
async fn an_earlier_owner_gives_no_orders() {
    let stand = Stand::new(Setup::Secure).await;
    let later = stand.control_as(2, [1; 32]).await.unwrap();
    let replace = GroupReplaceHead { victim: None, group: GroupId(20) };
    let refused = stand.order(&replace).await;
    assert_eq!(refused, Err(AskError::Hearsay(Refusal::UnknownSession)));
    assert_eq!(stand.control_as(1, [2; 32]).await.unwrap_err(), Refusal::OldOwner);
    stand.order_in(&later, &replace).await.unwrap();
}

/// An observer with the disk's key gives no orders, and takes control from no one.
#[tokio::test]
async fn reading_changes_nothing() {
    let stand = Stand::new(Setup::Secure).await;
    let (hello, hailing) = Hailing::observer(&master(), VOLUME, DISK, [1; 32]);
    let done = stand.call(&hello).await.unwrap().unwrap();
    let observer = hailing.welcomed(&done).unwrap();
    let status = stand.order_in(&observer, &StatusHead {}).await.unwrap();
    assert_eq!((status.key, status.groups.0.len()), (Some(KEY), 1));
    let replace = GroupReplaceHead { victim: None, group: GroupId(20) };
    let refused = stand.order_in(&observer, &replace).await;
    assert_eq!(refused, Err(AskError::Hearsay(Refusal::NotControl)));
    stand.order(&replace).await.unwrap();
}

/// A disk that has just started knows no group and no key, so it admits no request.
#[tokio::test]
async fn a_disk_that_was_told_nothing_refuses_everything() {
    let stand = Stand::untold(Setup::Secure).await;
    let granted = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let hail = || stand.hail(&granted, larder_io::secret::random(), None);
    assert_eq!(hail().await.unwrap_err(), Refusal::NotRefreshed);
    stand.refresh().await;
    assert_eq!(hail().await.unwrap_err(), Refusal::NotRefreshed);
    stand.order(&EpochHead { key: KEY }).await.unwrap();
    assert_eq!(hail().await.unwrap_err(), Refusal::OldGroup);
    stand.order(&GroupReplaceHead { victim: None, group: GROUP }).await.unwrap();
    hail().await.unwrap();
}

/// The metadata server gives a time of the disk's clock. However late the disk receives it, trust
/// ends then; and in another boot the time means nothing.
#[tokio::test]
async fn a_refresh_that_is_heard_late_ends_when_it_was_to_end() {
    let stand = Stand::new(Setup::Secure).await;
    let until = Capability { expiry_ms: u64::MAX, ..stand.capability(Mode::Read, &[(0, 4096)]) };
    let reader = Granted::mint(&master(), until);
    let session = stand.session(&reader).await;
    let late = stand.refreshing();
    stand.clock.advance(TRUST - Duration::from_millis(10));
    stand.deliver(late).await.unwrap();
    stand.read(&session, &reader, 0, 1).await.unwrap();
    let too_late = stand.refreshing();
    stand.clock.advance(TRUST);
    stand.deliver(too_late).await.unwrap();
    let refused = stand.read(&session, &reader, 0, 1).await;
    assert_eq!(refused, Err(AskError::Refused(Refusal::NotRefreshed)));
    // Nor does it trust for longer than a disk does.
    let ask = async |boot, until_ms| {
        stand.order(&RefreshHead { trust: Some(Trust { boot, until_ms }) }).await
    };
    let other = BootEpoch(stand.boot().0 + 1);
    assert_eq!(ask(other, u64::MAX).await, Err(AskError::Refused(Refusal::OldBoot)));
    let refused = stand.read(&session, &reader, 0, 1).await;
    assert_eq!(refused, Err(AskError::Refused(Refusal::NotRefreshed)));
    ask(stand.boot(), u64::MAX).await.unwrap();
    stand.read(&session, &reader, 0, 1).await.unwrap();
    stand.clock.advance(TRUST_MAX);
    let refused = stand.read(&session, &reader, 0, 1).await;
    assert_eq!(refused, Err(AskError::Refused(Refusal::NotRefreshed)));
    // A request that only asks for the clock changes nothing.
    let asked = stand.order(&RefreshHead { trust: None }).await.unwrap();
    assert_eq!(asked.clock_ms, stand.device.now_ms());
    let refused = stand.read(&session, &reader, 0, 1).await;
    assert_eq!(refused, Err(AskError::Refused(Refusal::NotRefreshed)));
}

/// A handshake is checked like a request.
#[tokio::test]
async fn a_handshake_under_a_bad_capability_makes_no_session() {
    let stand = Stand::new(Setup::Secure).await;
    let granted = |change: fn(&mut Capability)| {
        let mut capability = stand.capability(Mode::Read, &[(0, 4096)]);
        change(&mut capability);
        Granted::mint(&master(), capability)
    };
    let forged = {
        let Granted { mut capability, secret } = granted(|_| ());
        capability.mode = Mode::ReadWrite;
        Granted { capability, secret }
    };
    let table = [
        (forged, Refusal::Forged),
        (granted(|one| one.volume = VolumeId([8; 16])), Refusal::WrongVolume),
        (granted(|one| one.disk = DiskId(DISK.0 + 1)), Refusal::WrongDisk),
        (granted(|one| one.boot = BootEpoch(1)), Refusal::OldBoot),
        (granted(|one| one.key = KeyEpoch(KEY.0 + 1)), Refusal::OldKey),
        (granted(|one| one.group = GroupId(1)), Refusal::OldGroup),
        (granted(|one| one.expiry_ms = 0), Refusal::Expired),
    ];
    let sessions = stand.device.sessions();
    for (granted, expected) in table {
        let refused = stand.hail(&granted, larder_io::secret::random(), None).await;
        assert_eq!(refused.unwrap_err(), expected);
        assert_eq!(stand.refused(expected).1, 1);
    }
    assert_eq!(stand.device.sessions(), sessions);
    let other = MasterKey::new([6; 32]);
    let hello = Hailing::control(&other, VOLUME, DISK, 9, [1; 32], None);
    assert_eq!(stand.call(&hello.0).await.unwrap().unwrap_err(), Refusal::Forged);
}

/// A write of bytes that the disk has needs a capability to read them, too, and its secret. The
/// attacker has a file of its own.
#[tokio::test]
async fn what_may_not_be_read_is_not_copied() {
    let Scene { stand, owner, session: owners } = Scene::new().await;
    let own = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let session = stand.session(&own).await;
    let request = |source: &Granted, target: &Granted, from: u64, offset: u64, length: u32| {
        let capability = source.capability.clone();
        let taken = Origin { capability, offset: from, proof: [0; 32] };
        let capability = target.capability.clone();
        let mut head = WriteFromHead { capability, offset, stable: false, length, source: taken };
        head.source.proof = source.secret.sign_source(&head.claim());
        head
    };
    let ask = async |session: &Session, granted: &Granted, head: &WriteFromHead| {
        let asked = session.ask(&granted.secret, head, Bytes::new()).unwrap();
        refused(stand.deliver(asked).await.map(drop))
    };
    let length = SECRET.len() as u32;
    let by_owner = request(&owner, &owner, 8192, 10_000, length);
    ask(&owners, &owner, &by_owner).await.unwrap();
    assert_eq!(stand.read(&owners, &owner, 10_000, length).await.unwrap(), SECRET);
    // The capability was seen on the wire; its secret was not.
    let seen = Granted { capability: owner.capability.clone(), secret: own.secret.clone() };
    let mut replayed = request(&owner, &own, 8192, 0, length);
    replayed.source.proof = by_owner.source.proof;
    let with = |change: fn(&mut Capability)| {
        let mut capability = stand.capability(Mode::Read, &[(8192, 4096)]);
        change(&mut capability);
        request(&Granted::mint(&master(), capability), &own, 8192, 0, length)
    };
    let good = stand.grant(Mode::Read, &[(8192, 4096)]);
    let moved = |change: fn(&mut WriteFromHead)| {
        let mut head = request(&good, &own, 8192, 0, length);
        change(&mut head);
        head
    };
    let revoked = stand.grant(Mode::Read, &[(8192, 4096)]);
    stand.revoke(&revoked).await;
    let table = [
        (request(&seen, &own, 8192, 0, length), Refusal::Forged),
        (replayed, Refusal::Forged),
        (moved(|head| head.source.offset += 1), Refusal::Forged),
        (moved(|head| head.offset += 1), Refusal::Forged),
        (moved(|head| head.length -= 1), Refusal::Forged),
        (request(&good, &own, 12_288 - 5, 0, 6), Refusal::OutOfExtents),
        (request(&good, &own, 8192, 4091, 6), Refusal::OutOfExtents),
        (request(&good, &own, 8192, 0, 0), Refusal::Malformed),
        (request(&good, &own, u64::MAX, 0, 1), Refusal::Malformed),
        (request(&revoked, &own, 8192, 0, length), Refusal::Revoked),
        (with(|one| one.mode = Mode::Write), Refusal::WrongMode),
        (with(|one| one.expiry_ms = 0), Refusal::Expired),
        (with(|one| one.group = GroupId(1)), Refusal::OldGroup),
        (with(|one| one.boot = BootEpoch(1)), Refusal::OldBoot),
        (with(|one| one.disk = DiskId(DISK.0 + 1)), Refusal::WrongDisk),
        (with(|one| one.volume = VolumeId([8; 16])), Refusal::WrongVolume),
    ];
    for (at, (head, expected)) in table.iter().enumerate() {
        let before = stand.refused(*expected).1;
        assert_eq!(ask(&session, &own, head).await, Err(*expected), "{at}");
        assert_eq!(stand.refused(*expected).1, before + 1, "{at}");
    }
    assert_eq!(stand.read(&session, &own, 0, 4096).await.unwrap(), vec![0; 4096]);
    ask(&session, &own, &moved(|_| ())).await.unwrap();
    assert_eq!(stand.read(&session, &own, 0, length).await.unwrap(), SECRET);
}

/// Zero bytes, and bytes where there is no disk, cannot be asked for.
#[tokio::test]
async fn ranges_that_cannot_be_are_refused() {
    let stand = Stand::new(Setup::Secure).await;
    let granted = stand.grant(Mode::ReadWrite, &[(0, 1 << 40)]);
    let session = stand.session(&granted).await;
    let table: [(u64, u32, Refusal); 5] = [
        (0, 0, Refusal::Malformed),
        (u64::MAX, 1, Refusal::Malformed),
        (0, (1 << 20) + 1, Refusal::Malformed),
        (crate::stand::SIZE, 1, Refusal::OutOfDisk),
        (crate::stand::SIZE - 1, 2, Refusal::OutOfDisk),
    ];
    for (offset, length, expected) in table {
        let refused = stand.read(&session, &granted, offset, length).await;
        assert_eq!(refused, Err(AskError::Refused(expected)), "{offset} {length}");
    }
    let with_data = ReadHead { capability: granted.capability.clone(), offset: 0, length: 1 };
    let asked = session.ask(&granted.secret, &with_data, Bytes::from_static(b"?")).unwrap();
    assert_eq!(stand.deliver(asked).await.unwrap_err(), AskError::Refused(Refusal::Malformed));
    let refused = stand.write(&session, &granted, 0, b"").await;
    assert_eq!(refused, Err(AskError::Refused(Refusal::Malformed)));
}
