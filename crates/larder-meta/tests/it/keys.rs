//! Rotation of the disks' keys, with a real disk.

use std::sync::Arc;
use std::time::Duration;

use larder_disk_client::DiskError;
use larder_io::{Clock, SimClock};
use larder_meta::disks::ControlledDisks;
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::{Metadata, ROTATED_EVERY, rotate, rotate_regularly};
use larder_testkit::Relay;
use larder_wire::capability::KeyEpoch;
use larder_wire::disk::words::Refusal;
use larder_wire::meta::words::Layout;

use crate::client::serve_metadata;
use crate::served::{Both, DISK, Served, granted, serve_by};

/// A volume with one file, a client of it, and what serves them.
struct Rig {
    sim: Arc<SimClock>,
    engine: MemoryEngine,
    served: Served,
    relay: Relay,
    metadata: Metadata,
    disks: Arc<ControlledDisks>,
}

impl Rig {
    async fn new() -> Rig {
        let (sim, engine) = (Arc::new(SimClock::new()), MemoryEngine::new());
        let clock = Arc::clone(&sim) as Arc<dyn Clock>;
        let served = Served::new(&clock).await;
        let relay = Relay::to(served.address).await;
        let (metadata, disks) = serve_by(&engine, &served, relay.address, &clock).await;
        Rig { sim, engine, served, relay, metadata, disks }
    }

    /// A client, a file, and the layout by which it is read.
    async fn file(&self) -> (Both, larder_wire::meta::words::FileId) {
        let address = serve_metadata(self.metadata.clone()).await;
        let mut one = Both::connect(address, self.served.address, 1).await;
        let (file, _) = one.write("a", b"hello").await;
        (one, file)
    }

    /// Rotates, as time passes. Returns the key epoch, and whether the disk has it.
    async fn rotate(&self) -> (KeyEpoch, bool) {
        let (metadata, disks) = (self.metadata.clone(), Arc::clone(&self.disks));
        let rotating = tokio::spawn(async move { rotate(&metadata, &disks).await });
        self.pass_until(|| rotating.is_finished()).await;
        let rotated = rotating.await.unwrap().unwrap();
        let [(DISK, is_told)] = rotated.disks[..] else { panic!("{rotated:?}") };
        (rotated.key, is_told)
    }

    fn disk_key(&self) -> Option<KeyEpoch> {
        self.served.device().status().key
    }

    /// Lets time pass until something is so. Each step lets the servers keep pace with the clock.
    async fn pass_until(&self, is_so: impl FnMut() -> bool) {
        self.pass_by(Duration::from_millis(20), is_so).await;
    }

    async fn pass_by(&self, step: Duration, mut is_so: impl FnMut() -> bool) {
        let passing = async {
            while !is_so() {
                self.sim.advance(step);
                let _ = self.metadata.activity().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), passing).await.expect("it comes");
    }
}

/// The key epoch after so many rotations. The volume had an owner before: its disk was added.
fn epoch(rotated: u32) -> KeyEpoch {
    KeyEpoch(2 + rotated)
}

fn key_of(layout: &Layout) -> KeyEpoch {
    granted(&layout.grants.0[0]).capability.key
}

const OLD: Result<(), DiskError> = Err(DiskError::Hearsay(Refusal::OldKey));

/// What was made before a rotation is good until the next one, at which the disk refuses and counts
/// it; what is made after a rotation has the new key at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_key_epochs_are_good_and_an_earlier_one_is_refused_and_counted() {
    let rig = Rig::new().await;
    let (one, file) = rig.file().await;
    let mut before: Option<Layout> = None;
    for number in 0..4 {
        let given = one.layout(file).await;
        assert_eq!(key_of(&given), epoch(number));
        assert_eq!(rig.rotate().await, (epoch(number + 1), true));
        assert_eq!(&one.read(&given, 5).await.unwrap()[..], b"hello");
        if let Some(before) = before.replace(given) {
            assert_eq!(one.read(&before, 5).await.map(drop), OLD);
        }
        let refused = rig.served.device().counts().get(Refusal::OldKey);
        assert_eq!(refused, u64::from(number));
        assert_eq!(rig.disks.keys().epoch, epoch(number + 1));
    }
}

/// A disk that cannot be told goes on with what it knows until its trust is over. When it is
/// reached again it is told before it trusts anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_away_during_rotations_is_told_when_it_is_back() {
    let rig = Rig::new().await;
    let (one, file) = rig.file().await;
    let old = one.layout(file).await;
    rig.relay.hold();
    for rotated in 1..=3 {
        assert_eq!(rig.rotate().await, (epoch(rotated), false));
        // It keeps the session.
        one.layout(file).await;
    }
    assert_eq!(rig.disk_key(), Some(epoch(0)));
    assert_eq!(&one.read(&old, 5).await.unwrap()[..], b"hello");
    for _ in 0..4 {
        let until = rig.sim.instant() + Duration::from_secs(10);
        rig.pass_until(|| rig.sim.instant() > until).await;
        one.layout(file).await;
    }
    let refused = one.read(&old, 5).await;
    assert_eq!(refused, Err(DiskError::Refused(Refusal::NotRefreshed)));
    rig.relay.let_go();
    rig.pass_until(|| rig.disk_key() == Some(epoch(3))).await;
    // Whether it trusts by now or not, what is too old stays so.
    assert_eq!(one.read(&old, 5).await.map(drop), OLD);
    let ready = tokio::spawn({
        let disks = Arc::clone(&rig.disks);
        async move { disks.ready().await }
    });
    rig.pass_until(|| ready.is_finished()).await;
    let given = one.layout(file).await;
    assert_eq!(key_of(&given), epoch(3));
    assert_eq!(&one.read(&given, 5).await.unwrap()[..], b"hello");
    assert_eq!(one.read(&old, 5).await.map(drop), OLD);
}

/// A disk that was started again, as one that was added, is told the last epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_starts_again_has_the_last_key_epoch() {
    let mut rig = Rig::new().await;
    rig.rotate().await;
    rig.served.stop().await;
    assert_eq!(rig.rotate().await, (epoch(2), false));
    rig.served.start().await;
    rig.pass_until(|| rig.disk_key().is_some()).await;
    assert_eq!(rig.disk_key(), Some(epoch(2)));
}

/// The server is killed before the commit of a rotation, after it, or after the disk was told: the
/// next one has an epoch that was never used, and the disk accepts it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_a_rotation_leaves_one_epoch_or_the_other() {
    for (is_committed, is_told) in [(false, false), (true, false), (true, true)] {
        let rig = Rig::new().await;
        assert_eq!(rig.rotate().await, (epoch(1), true));
        if !is_told {
            rig.relay.hold();
        }
        if is_committed {
            assert_eq!(rig.rotate().await, (epoch(2), is_told));
        } else {
            rig.engine.fail_after(0);
            let refused = rotate(&rig.metadata, &rig.disks).await.map(drop);
            assert!(refused.is_err(), "it is not on record");
            assert_eq!(rig.disks.keys().epoch, epoch(1), "no disk is told of it");
        }
        assert_eq!(rig.disk_key(), Some(epoch(if is_told { 2 } else { 1 })));
        let Rig { sim, engine, served, metadata, disks, .. } = rig;
        let engine = engine.after_crash();
        drop((metadata, disks));
        let clock = Arc::clone(&sim) as Arc<dyn Clock>;
        let (_metadata, disks) = serve_by(&engine, &served, served.address, &clock).await;
        let expected = epoch(if is_committed { 3 } else { 2 });
        assert_eq!(disks.keys().epoch, expected);
        assert_eq!(served.device().status().key, Some(expected));
    }
}

/// Nobody asks, and keys are rotated each day.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_rotated_each_day() {
    let rig = Rig::new().await;
    let clock = Arc::clone(&rig.sim) as Arc<dyn Clock>;
    tokio::spawn(rotate_regularly(rig.metadata.clone(), Arc::clone(&rig.disks), clock));
    let minute = Duration::from_secs(60);
    for day in 1..=3 {
        let before = rig.disks.keys();
        rig.pass_by(minute, || rig.disks.keys().epoch == epoch(day)).await;
        let after_s = u64::try_from(rig.disks.keys().since_s - before.since_s).unwrap();
        let due_s = ROTATED_EVERY.as_secs();
        assert!(after_s >= due_s, "{after_s} s");
        rig.pass_until(|| rig.disk_key() == Some(epoch(day))).await;
    }
}
