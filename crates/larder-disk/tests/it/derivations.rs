//! How many keys both sides derive for a request, and that none is kept of what has ended.
//!
//! Client and disk run on the thread of the test, which counts. A capability that neither side has
//! seen takes two keys of requests on each side, and its secret at the disk.
//!
//! And that a restart of the disk leads to other keys.

use std::collections::BTreeSet;

use larder_disk::sessions::KEYS_MAX;
use larder_io::MemDisk;
use larder_wire::capability::{BootEpoch, Capability, CapabilityId, GroupId, KeyEpoch, Mode};
use larder_wire::disk::session::{Granted, Hailing, Session};
use larder_wire::disk::words::{
    AwaitWrittenHead, EpochHead, GroupReplaceHead, SessionId, StatusHead, Welcome,
};
use larder_wire::seal::{Setup, derived};

use crate::stand::{DISK, GROUP, KEY, Stand, VOLUME, master, write};

/// What was derived of the master key and of the secret: the disk's secret, and its keys.
const DISK_FIRST: u64 = 3;
const CLIENT_FIRST: u64 = 2;

const ALL: &[(u64, u64)] = &[(0, 16 * 4096)];

/// A 4 KiB write; returns how many keys each side derived, client and disk.
async fn write_4k(stand: &Stand, session: &Session, granted: &Granted) -> (u64, u64) {
    let before = derived();
    let request = write(session, granted, 0, &[7; 4096]);
    let asked = derived();
    stand.deliver(request).await.unwrap();
    (asked - before, derived() - asked)
}

#[tokio::test]
async fn a_request_under_a_known_capability_derives_nothing() {
    for setup in [Setup::Secure, Setup::Private] {
        let stand = Stand::new(setup).await;
        let granted = stand.grant(Mode::ReadWrite, ALL);
        let session = stand.session(&granted).await;
        assert_eq!(write_4k(&stand, &session, &granted).await, (CLIENT_FIRST, DISK_FIRST));
        for _ in 0..50 {
            assert_eq!(write_4k(&stand, &session, &granted).await, (0, 0));
            let before = derived();
            stand.read(&session, &granted, 0, 4096).await.unwrap();
            stand.flush(&session, &granted).await.unwrap();
            assert_eq!(derived(), before);
        }
    }
}

#[tokio::test]
async fn a_new_capability_derives_its_own_keys_and_nothing_else() {
    let stand = Stand::new(Setup::Secure).await;
    let session = stand.session(&stand.grant(Mode::ReadWrite, ALL)).await;
    let capabilities: Vec<Capability> =
        (0..50).map(|_| stand.capability(Mode::ReadWrite, ALL)).collect();
    let master = master();
    drop(master.disk_key(KEY));
    for capability in capabilities {
        let before = derived();
        let granted = Granted::mint(&master, capability);
        assert_eq!(derived() - before, 1, "the metadata server derives the secret");
        assert_eq!(write_4k(&stand, &session, &granted).await, (CLIENT_FIRST, DISK_FIRST));
    }
}

#[tokio::test]
async fn an_order_derives_nothing() {
    let stand = Stand::new(Setup::Secure).await;
    let (granted, extents) = (stand.grant(Mode::ReadWrite, ALL), stand.capability(Mode::Read, ALL));
    let session = stand.session(&granted).await;
    write_4k(&stand, &session, &granted).await;
    let before = derived();
    for _ in 0..20 {
        stand.refresh().await;
        stand.order(&StatusHead {}).await.unwrap();
        let written = (0, 4096);
        let extents = stand.capability(Mode::Read, &[written]).extents;
        stand.order(&AwaitWrittenHead { extents, wait_ms: 0 }).await.unwrap();
    }
    stand.revoke(&Granted { capability: extents, secret: granted.secret.clone() }).await;
    assert_eq!(derived(), before);
}

/// A client that shows one capability after the other gets no more memory than there is for all,
/// and one that is used all the time keeps its keys.
#[tokio::test]
async fn many_capabilities_displace_none_that_is_in_use() {
    let stand = Stand::new(Setup::Secure).await;
    let granted = stand.grant(Mode::ReadWrite, ALL);
    let (ours, theirs) = (stand.session(&granted).await, stand.session(&granted).await);
    write_4k(&stand, &ours, &granted).await;
    for _ in 0..KEYS_MAX + 500 {
        write_4k(&stand, &theirs, &stand.grant(Mode::ReadWrite, ALL)).await;
        assert_eq!(write_4k(&stand, &ours, &granted).await, (0, 0));
        assert!(stand.device.keys() <= KEYS_MAX);
    }
}

#[tokio::test]
async fn no_keys_are_kept_of_what_has_ended() {
    let stand = Stand::new(Setup::Secure).await;
    let first = stand.grant(Mode::ReadWrite, ALL);
    let session = stand.session(&first).await;
    let use_three = async || {
        for _ in 0..3 {
            write_4k(&stand, &session, &stand.grant(Mode::ReadWrite, ALL)).await;
        }
    };
    write_4k(&stand, &session, &first).await;
    use_three().await;
    assert_eq!(stand.device.keys(), 4);
    stand.revoke(&first).await;
    assert_eq!(stand.device.keys(), 3);

    // A capability that is over is refused under seal, and leaves nothing behind.
    stand.deliver(write(&session, &first, 0, &[1; 4096])).await.unwrap_err();
    assert_eq!(stand.device.keys(), 3);

    let group = GroupId(GROUP.0 + 1);
    stand.order(&GroupReplaceHead { victim: Some(GROUP), group }).await.unwrap();
    assert_eq!(stand.device.keys(), 0);

    let of = |key, id| Capability {
        group,
        key,
        id: CapabilityId(id),
        ..stand.capability(Mode::ReadWrite, ALL)
    };
    write_4k(&stand, &session, &Granted::mint(&master(), of(KEY, 1))).await;
    let next = KeyEpoch(KEY.0 + 1);
    stand.order(&EpochHead { key: next }).await.unwrap();
    assert_eq!(stand.device.keys(), 1, "the epoch before is accepted");
    write_4k(&stand, &session, &Granted::mint(&master(), of(next, 2))).await;
    stand.order(&EpochHead { key: KeyEpoch(next.0 + 1) }).await.unwrap();
    assert_eq!(stand.device.keys(), 1);

    // The client ends the session.
    let last = Granted::mint(&master(), of(next, 3));
    stand.hail(&last, [1; 32], Some(&session)).await.unwrap();
    assert_eq!(stand.device.keys(), 0);
}

/// A disk that starts again draws another nonce: the same handshake, under the same secret and with
/// the same nonce of the client, leads to another key in each boot.
#[tokio::test]
async fn a_disk_that_starts_anew_never_repeats_a_key() {
    let (disk, nonce) = (MemDisk::new(), [3; 32]);
    let secret = master().control_secret(VOLUME, DISK);
    let mut seals = BTreeSet::new();
    for boot in 0..4 {
        let stand = Stand::on(&disk, Setup::Secure).await;
        let (hello, hailing) = Hailing::control(&master(), VOLUME, DISK, 1, nonce, None);
        let done = stand.call(&hello).await.unwrap().unwrap();
        let key = secret.session_key(&nonce, &done.welcome.nonce);
        key.check_welcome(&done.welcome, &done.mac).unwrap();
        hailing.welcomed(&done).unwrap();
        // Keys are the same if they seal the same bytes in the same way.
        let (session, setup) = (SessionId(1), Setup::Secure);
        let same = Welcome { session, boot: BootEpoch(1), setup, nonce };
        assert!(seals.insert(key.sign_welcome(&same)), "boot {boot} has the key of another one");
    }
}
