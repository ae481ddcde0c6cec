//! What a disk that is away may still trust.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_disk_client::DiskError;
use larder_io::{Clock, SimClock};
use larder_meta::disks::{ControlledDisks, DiskAddress, Disks, TrustInterval};
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::volume;
use larder_testkit::Relay;
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::words::Refusal;
use larder_wire::meta::calls;
use larder_wire::meta::words::Time;
use larder_wire::seal::MasterKey;

use crate::served::{Both, Served, begin_by};

/// A server that lets disks trust for 5 s, after one that has let them trust for a minute: a disk
/// that it does not reach may do so for that long.
#[tokio::test]
async fn a_server_waits_for_what_an_earlier_one_told_a_disk_that_is_away() {
    let sim = Arc::new(SimClock::new());
    let (engine, clock) = (MemoryEngine::new(), Arc::clone(&sim) as Arc<dyn Clock>);
    volume::create(&engine, VolumeId([1; 16]), 1, Time::default()).unwrap();
    let take = |seconds| {
        let interval = TrustInterval::new(Duration::from_secs(seconds)).unwrap();
        volume::take_trusting(&engine, interval).unwrap()
    };
    drop(take(60));
    let owned = take(5);
    // Nobody listens there.
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let (disk, public, master) = (DiskId(1), address.to_string(), MasterKey::new([5; 32]));
    let disk = DiskAddress { disk, bytes: 0, address, public, is_memory: false, master };
    let (whose, trust) = (owned.to_disks(), owned.trust());
    let disks = ControlledDisks::start_trusting(vec![disk], whose, trust, &clock);
    let begun = sim.instant();
    let voided = tokio::spawn(disks.void_all());
    let passing = async {
        while !voided.is_finished() {
            sim.asleep(1).await;
            let next = sim.next_wake().unwrap_or(begun);
            sim.advance(next.saturating_duration_since(sim.instant()));
            // Whoever was woken finds out, before more time passes.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), passing).await.expect("it is answered");
    let waited = (sim.instant() - begun).as_secs();
    assert!((60..=61).contains(&waited), "{waited} s");
}

/// A disk is stopped with a REFRESH in its socket, and continues after the metadata server has
/// given it up: the message lets it trust nothing that was revoked in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_is_heard_late_revives_nothing() {
    let sim = Arc::new(SimClock::new());
    let clock = Arc::clone(&sim) as Arc<dyn Clock>;
    let engine = MemoryEngine::new();
    let served = Served::new(&clock).await;
    let mut relay = Relay::to(served.address).await;
    let (address, _disks) = begin_by(&engine, &served, relay.address, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let (file, _) = one.write("a", b"hello").await;
    let given = one.layout(file).await;
    assert_eq!(&one.read(&given, 5).await.unwrap()[..], b"hello");
    relay.hold();
    let session = one.meta.session;
    while !relay.has_caught() {
        sim.advance(Duration::from_millis(100));
        one.meta.call(calls::GetAttr { session, file }).await.unwrap();
    }
    let asked = one.begin_to_close_to_others(file).await;
    // The calls let the servers keep pace with the clock.
    while !asked.is_finished() {
        sim.advance(Duration::from_millis(100));
        one.meta.call(calls::GetAttr { session, file }).await.unwrap();
    }
    asked.await.unwrap();
    relay.deliver_first().await;
    assert_eq!(one.read(&given, 5).await, Err(DiskError::Refused(Refusal::NotRefreshed)));
}
