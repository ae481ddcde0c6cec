//! The metadata server with a real disk: what it grants works there, and what it revokes does not.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use larder_disk_client::DiskError;
use larder_io::{Clock, RealClock, SimClock};
use larder_meta::disks::{Acknowledged, CapabilityName, Disks, TrustInterval, Witnessed};
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::volume;
use larder_rpc::CallOptions;
use larder_testkit::Relay;
use larder_wire::disk::words::{AwaitWrittenHead, ClearHead, Refusal, RevokeHead};
use larder_wire::meta::calls;
use larder_wire::meta::words::{Mode, OpenId, SetAttributes};
use larder_wire::xdr::Array;

use crate::client::dentry;
use crate::served::{Both, DISK, ROOT, SIZE, Served, begin, begin_by, granted};

/// A server that has not reached a disk tries again after so much time.
const PAUSE: Duration = Duration::from_millis(500);

fn real() -> Arc<dyn Clock> {
    Arc::new(RealClock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_written_by_one_and_read_by_another() {
    let (engine, clock) = (MemoryEngine::new(), real());
    let served = Served::new(&clock).await;
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let two = Both::connect(address, served.address, 2).await;
    let (file, layout) = one.write("a", b"hello").await;
    let given = two.layout(file).await;
    assert_eq!(&two.read(&given, 5).await.unwrap()[..], b"hello");
    // A writer's capability is good for writing, and reading.
    assert_eq!(&one.read(&layout, 5).await.unwrap()[..], b"hello");
    let beyond = granted(&given.grants.0[0]);
    let position = given.extents.0[0].position + 4096;
    let beyond = two.disk.read(&beyond, position, 1, CallOptions::default()).await;
    assert_eq!(beyond, Err(DiskError::Refused(Refusal::OutOfExtents)));
}

/// When a chmod was answered, no capability from before it works; a new one does.
#[tokio::test(flavor = "multi_thread")]
async fn a_capability_ends_with_the_rights() {
    let (engine, clock) = (MemoryEngine::new(), real());
    let served = Served::new(&clock).await;
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let (file, written) = one.write("a", b"hello").await;
    let given = one.layout(file).await;
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let (sequence, open) = (one.next(), OpenId::NONE);
    let call = calls::SetAttr { sequence, file, open, set, guard: None };
    one.meta.call(call).await.unwrap();
    for old in [&given, &written] {
        assert_eq!(one.read(old, 5).await, Err(DiskError::Refused(Refusal::Revoked)));
    }
    let given = one.layout(file).await;
    assert_eq!(&one.read(&given, 5).await.unwrap()[..], b"hello");
}

/// Each group is told to the disk by a call of its own, and all of them at the same time: whoever
/// revokes waits for one round trip.
#[tokio::test(flavor = "multi_thread")]
async fn capabilities_of_several_groups_are_revoked_in_one_round_trip() {
    let sim = Arc::new(SimClock::new());
    let clock = Arc::clone(&sim) as Arc<dyn Clock>;
    let served = Served::new(&clock).await;
    let relay = Relay::to(served.address).await;
    let (_, disks) = begin_by(&MemoryEngine::new(), &served, relay.address, &clock).await;
    let mint =
        || disks.mint(DISK, Mode::Read, std::slice::from_ref(&(0..4096))).map(|minted| minted.name);
    let first = mint().unwrap();
    while mint().is_some_and(|name| name.group == first.group) {}
    // The group is full. The disk learns of another one when it is refreshed, which is due once
    // by then.
    sim.advance(disks.trust().time() / 3);
    let until = Instant::now() + Duration::from_secs(20);
    let second = loop {
        match mint() {
            Some(name) => break name,
            None => tokio::task::yield_now().await,
        }
        assert!(Instant::now() < until, "no other group begins");
    };
    assert_ne!(second.group, first.group);
    // Orders to a disk wait for each other: with this one, the refresh is over.
    disks.revoke(vec![(DISK, mint().unwrap())]).await;
    let revoke = async |names: Vec<CapabilityName>, bytes: usize| {
        relay.hold();
        let names = names.into_iter().map(|name| (DISK, name)).collect();
        let revoked = tokio::spawn(disks.revoke(names));
        // Time stands still, so nothing else is sent.
        let until = Instant::now() + Duration::from_secs(20);
        while relay.held_bytes() < bytes {
            assert!(Instant::now() < until, "the second call waits for the answer to the first");
            tokio::task::yield_now().await;
        }
        let held = relay.held_bytes();
        assert!(!revoked.is_finished());
        relay.let_go();
        revoked.await.unwrap();
        held
    };
    let before = served.device().counts().revocations();
    let one = revoke(vec![mint().unwrap()], 1).await;
    revoke(vec![first, second], 2 * one).await;
    assert_eq!(served.device().counts().revocations() - before, 3);
}

/// Orders of one kind that come while another is under way go as one call: 80 to clear, all
/// answered, and 40 to revoke.
#[tokio::test(flavor = "multi_thread")]
async fn orders_that_come_while_one_is_under_way_go_together() {
    let sim = Arc::new(SimClock::new());
    let clock = Arc::clone(&sim) as Arc<dyn Clock>;
    let served = Served::new(&clock).await;
    let relay = Relay::to(served.address).await;
    let (_, disks) = begin_by(&MemoryEngine::new(), &served, relay.address, &clock).await;
    let counts = served.device().counts();
    let before = (counts.orders::<ClearHead>(), counts.orders::<RevokeHead>());
    let block = |number: u64| vec![(DISK, number % 8 * 4096..(number % 8 + 1) * 4096)];
    let names: Vec<CapabilityName> = (0..40)
        .map(|_| disks.mint(DISK, Mode::Read, std::slice::from_ref(&(0..4096))).unwrap().name)
        .collect();
    relay.hold();
    let first = tokio::spawn(disks.clear(block(0)));
    while !relay.has_caught() {
        tokio::task::yield_now().await;
    }
    let mut ordered: Vec<Acknowledged> = Vec::new();
    for number in 0..80 {
        ordered.push(disks.clear(block(number)));
        if let Some(name) = names.get(number as usize) {
            ordered.push(disks.revoke(vec![(DISK, *name)]));
        }
    }
    poll_fn(|context| {
        ordered.iter_mut().for_each(|order| assert!(order.as_mut().poll(context).is_pending()));
        Poll::Ready(())
    })
    .await;
    relay.let_go();
    first.await.unwrap();
    for order in ordered {
        order.await;
    }
    let after = (counts.orders::<ClearHead>(), counts.orders::<RevokeHead>());
    // What is under way is the first one, or a refresh.
    assert!((1..=2).contains(&(after.0 - before.0)));
    assert_eq!(after.1 - before.1, 1);
}

/// Questions whether bytes were written that come while one is under way are one call; those of
/// bytes that were not written, or make no sense, fail alone.
#[tokio::test(flavor = "multi_thread")]
async fn questions_that_come_while_one_is_under_way_go_together() {
    let (engine, clock) = (MemoryEngine::new(), real());
    let served = Served::new(&clock).await;
    let relay = Relay::to(served.address).await;
    let (address, disks) = begin_by(&engine, &served, relay.address, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let mut written = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let position = one.write(name, b"hello").await.1.extents.0[0].position;
        written.push(vec![(DISK, position..position + 4096)]);
    }
    let missing = (0..SIZE).step_by(4096).map(|at| vec![(DISK, at..at + 4096)]);
    let missing = missing.into_iter().find(|block| !written.contains(block)).unwrap();
    let counts = served.device().counts();
    // Makes the connection.
    assert!(disks.await_written(written[0].clone()).await);
    for other in [None, Some(missing), Some(vec![(DISK, SIZE..SIZE + 4096)])] {
        let before = counts.orders::<AwaitWrittenHead>();
        relay.hold();
        let mut asked: Vec<Witnessed> = Vec::new();
        for round in 0..20 {
            asked.extend(written.iter().map(|block| disks.await_written(block.clone())));
            if let (10, Some(other)) = (round, &other) {
                asked.insert(asked.len() / 2, disks.await_written(other.clone()));
            }
        }
        poll_fn(|context| {
            asked.iter_mut().for_each(|one| assert!(one.as_mut().poll(context).is_pending()));
            Poll::Ready(())
        })
        .await;
        relay.let_go();
        let mut refused = 0;
        for is_written in asked {
            refused += usize::from(!is_written.await);
        }
        assert_eq!(refused, usize::from(other.is_some()));
        let calls = counts.orders::<AwaitWrittenHead>() - before;
        match other {
            None => assert!((1..=2).contains(&calls), "{calls} calls"),
            // Those that were asked with it are asked once more, each alone.
            Some(_) => assert!(calls <= 83, "{calls} calls"),
        }
    }
}

/// Files that are removed within 20 ms cost their disk one call to clear them, and become free by
/// one commit of the server.
#[tokio::test(flavor = "multi_thread")]
async fn removed_files_cost_their_disk_one_call() {
    let sim = Arc::new(SimClock::new());
    let (engine, clock) = (MemoryEngine::new(), Arc::clone(&sim) as Arc<dyn Clock>);
    let served = Served::new(&clock).await;
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        one.write(name, b"hello").await;
    }
    let clears = || served.device().counts().orders::<ClearHead>();
    let free = || volume::space(&engine).unwrap().bytes_free;
    let (before, used, commits) = (clears(), SIZE - free(), engine.commits());
    assert!(used >= 4 * 4096);
    for name in names {
        let call = calls::Remove { sequence: one.next(), dentry: dentry(ROOT, name) };
        one.meta.call(call).await.unwrap();
    }
    assert_eq!((clears() - before, engine.commits() - commits), (0, 4));
    sim.advance(Duration::from_millis(20));
    let until = Instant::now() + Duration::from_secs(20);
    while free() < SIZE {
        assert!(Instant::now() < until, "{} of {SIZE} bytes are free", free());
        // The wait for a commit begins when the disk has answered.
        sim.advance(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
    assert_eq!((clears() - before, engine.commits() - commits), (1, 5));
}

/// Blocks of a removed file show nothing to their next owner, and the whole disk can be allocated
/// again and again.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_change_hands_and_show_nothing() {
    let (engine, clock) = (MemoryEngine::new(), real());
    let served = Served::new(&clock).await;
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    for round in 0..30 {
        let name = format!("f{round}");
        let (_, old) = one.write(&name, b"secret").await;
        let call = calls::Remove { sequence: one.next(), dentry: dentry(ROOT, &name) };
        one.meta.call(call).await.unwrap();
        assert_eq!(one.read(&old, 6).await, Err(DiskError::Refused(Refusal::Revoked)));
        // Another one gets blocks, and reads them before it wrote anything.
        let at = (0, one.next().sequence);
        let opened = one.meta.create(at, ROOT, &format!("g{round}")).await.unwrap();
        let Some(grant) = opened.layout.grants.0.first() else { continue };
        let position = opened.layout.extents.0[0].position;
        let read = one.disk.read(&granted(grant), position, 6, CallOptions::default()).await;
        assert_eq!(&read.unwrap()[..], [0; 6]);
        let call =
            calls::Remove { sequence: one.next(), dentry: dentry(ROOT, &format!("g{round}")) };
        one.meta.call(call).await.unwrap();
        let close = calls::Close { sequence: one.next(), opens: Array(vec![opened.open]) };
        one.meta.call(close).await.unwrap();
    }
    assert_eq!(larder_meta::check(&engine).unwrap(), []);
}

/// Readers are granted a file's last block as a whole: behind the bytes that were written they find
/// zeros, and nothing of the file that had the block before.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_finds_zeros_behind_what_was_committed() {
    static OLD: [u8; SIZE as usize] = [b'o'; SIZE as usize];
    static NEW: [u8; 5000] = [b'n'; 5000];
    let (engine, clock) = (MemoryEngine::new(), real());
    let served = Served::new(&clock).await;
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let two = Both::connect(address, served.address, 2).await;
    let (old, _) = one.write("old", &OLD).await;
    assert!(two.read(&two.layout(old).await, SIZE as u32).await.unwrap() == OLD[..]);
    let call = calls::Remove { sequence: one.next(), dentry: dentry(ROOT, "old") };
    one.meta.call(call).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while volume::space(&engine).unwrap().bytes_free < SIZE {
        assert!(Instant::now() < until, "its blocks become free");
        tokio::task::yield_now().await;
    }
    let (file, _) = one.write("new", &NEW).await;
    let given = two.layout(file).await;
    assert_eq!((given.extents.0.len(), given.extents.0[0].length), (1, 8192));
    let read = two.read(&given, 8192).await.unwrap();
    assert!(read[..5000] == NEW && read[5000..] == [0; 3192]);
    assert_eq!(two.read(&given, 8193).await, Err(DiskError::Refused(Refusal::OutOfExtents)));
}

/// Neither a new server nor a new boot of the disk accepts capabilities from before it.
#[tokio::test(flavor = "multi_thread")]
async fn capabilities_end_with_the_server_and_with_the_disk() {
    let sim = Arc::new(SimClock::new());
    let (engine, clock) = (MemoryEngine::new(), Arc::clone(&sim) as Arc<dyn Clock>);
    let mut served = Served::new(&clock).await;
    let (address, disks) = begin(&engine, &served, &clock).await;
    let mut one = Both::connect(address, served.address, 1).await;
    let (file, _) = one.write("a", b"hello").await;
    let old = one.layout(file).await;
    drop(disks);
    let (address, _disks) = begin(&engine, &served, &clock).await;
    let refused = one.read(&old, 5).await;
    assert_eq!(refused, Err(DiskError::Refused(Refusal::OldGroup)));
    let two = Both::connect(address, served.address, 1).await;
    let old = two.layout(file).await;
    assert_eq!(&two.read(&old, 5).await.unwrap()[..], b"hello");
    served.stop().await;
    served.start().await;
    let refused = two.read(&old, 5).await;
    assert!(matches!(refused, Err(DiskError::Hearsay(Refusal::OldBoot))), "{refused:?}");
    // Once the disk was refreshed, new ones are made. When that happens is up to the server.
    let read = async {
        loop {
            let given = two.layout(file).await;
            if !given.grants.0.is_empty()
                && let Ok(read) = two.read(&given, 5).await
            {
                return read;
            }
            sim.advance(Duration::from_millis(100));
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(60), read).await;
    assert_eq!(&read.unwrap()[..], b"hello");
}

/// A disk that is away cannot be told; but after the interval that was set it trusts nothing by
/// itself, and the change is answered: not before, and hardly later.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_waits_for_a_disk_that_is_away_as_long_as_it_may_be_trusted() {
    for trusts in [30, 5].map(Duration::from_secs) {
        let sim = Arc::new(SimClock::new());
        let (engine, clock) = (MemoryEngine::new(), Arc::clone(&sim) as Arc<dyn Clock>);
        let mut served = Served::new(&clock).await;
        served.trusts = TrustInterval::new(trusts).unwrap();
        let mut relay = Relay::to(served.address).await;
        let (address, _disks) = begin_by(&engine, &served, relay.address, &clock).await;
        let mut one = Both::connect(address, served.address, 1).await;
        let (file, _) = one.write("a", b"hello").await;
        one.layout(file).await;
        // The disk was refreshed now: until here time stood still.
        relay.hold();
        let asked = one.begin_to_close_to_others(file).await;
        // From here on the server tries to tell the disk, and does not refresh it.
        relay.catch().await;
        let (step, session) = (Duration::from_millis(100), one.meta.session);
        for _ in 1..trusts.as_millis() / step.as_millis() {
            sim.advance(step);
            // The call lets the server keep pace with the clock.
            one.meta.call(calls::GetAttr { session, file }).await.unwrap();
            assert!(!asked.is_finished(), "too soon, for {trusts:?}");
        }
        // It is answered now; or the server has begun a pause, at whatever time it was then: time
        // passes only while nothing else does.
        let (mut asked, mut late) = (asked, Duration::from_secs(1));
        sim.advance(step + late);
        while let Err(_nothing) = tokio::time::timeout(Duration::from_secs(2), &mut asked).await {
            late += PAUSE;
            assert!(late <= Duration::from_secs(3), "{late:?} too late, for {trusts:?}");
            sim.advance(PAUSE);
        }
    }
}
