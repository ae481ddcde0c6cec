//! The setup of a volume, with a real disk that has it or another one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_disk_client::observe;
use larder_io::{Clock, SimClock};
use larder_meta::disks::{ControlledDisks, Disks};
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::engine::{Engine, Owner, Writes};
use larder_meta::{Metadata, volume};
use larder_wire::meta::words::{Mode, Time};
use larder_wire::seal::Setup;

use crate::served::{DISK, Served, VOLUME, connect, master, start_by};

/// Waits until a disk has answered a request that is made now.
async fn disk_answers(address: SocketAddr) {
    observe(connect(address).await, &master(), VOLUME, DISK).await.expect("it runs");
}

/// Lets time pass until the disk accepts what is made for it, or what is said of it is `problem`,
/// and nothing is made.
async fn comes_to(
    (sim, address): (&SimClock, SocketAddr),
    (metadata, disks): (&Metadata, &ControlledDisks),
    problem: Option<&str>,
) {
    let is_it = async {
        loop {
            let state = disks.status().await.pop().unwrap();
            let minted = disks.mint(DISK, Mode::Read, std::slice::from_ref(&(0..4096)));
            let groups = state.status.map(|status| status.groups.0).unwrap_or_default();
            let is_it = match (problem, &minted) {
                (None, Some(one)) => groups.iter().any(|status| status.group == one.name.group),
                (Some(problem), None) => state.problem.as_deref() == Some(problem),
                _ => false,
            };
            if is_it {
                return;
            }
        }
    };
    // The servers keep pace with the clock: each answers in each step.
    let passing = async {
        loop {
            sim.advance(Duration::from_millis(20));
            let _ = metadata.activity().await;
            disk_answers(address).await;
        }
    };
    let either = async {
        tokio::select! {
            () = is_it => {}
            () = passing => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), either).await.expect("it comes");
}

/// What is said of a disk with one setup on a volume with another.
fn refusal(setup: Setup, wanted: Setup) -> String {
    let (setup, wanted) = (setup.name(), wanted.name());
    format!(
        "its setup is {setup}, and that of the volume is {wanted}: start it with --setup {wanted} and an empty store"
    )
}

/// Each setup of a volume with each one of its disk: the disk is used if it is the same. A disk
/// that was started again with another one is not used any more, and is used when it has that of
/// the volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_used_only_with_the_setup_of_its_volume() {
    for wanted in Setup::ALL {
        for other in Setup::ALL.into_iter().filter(|other| *other != wanted) {
            let (engine, sim) = (MemoryEngine::new(), Arc::new(SimClock::new()));
            let clock = Arc::clone(&sim) as Arc<dyn Clock>;
            volume::create_with_setup(&engine, VOLUME, (1, wanted), Time::default()).unwrap();
            assert_eq!(volume::setup(&engine).unwrap(), Some(wanted));
            let refused = refusal(other, wanted);
            let mut served = Served::new(&clock).await;
            served.restart_empty(other).await;
            let (metadata, disks) = start_by(&engine, &served, served.address, &clock);
            comes_to((&sim, served.address), (&metadata, &disks), Some(&refused)).await;
            served.restart_empty(wanted).await;
            comes_to((&sim, served.address), (&metadata, &disks), None).await;
            served.restart_empty(other).await;
            comes_to((&sim, served.address), (&metadata, &disks), Some(&refused)).await;
        }
    }
}

/// A volume from before volumes had a setup: its disk is used whichever setup it has, also by the
/// next owners, and the volume goes on to state none.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_states_no_setup_takes_its_disks_as_they_are() {
    for setup in Setup::ALL {
        let (engine, sim) = (MemoryEngine::new(), Arc::new(SimClock::new()));
        let clock = Arc::clone(&sim) as Arc<dyn Clock>;
        volume::create(&engine, VOLUME, 1, Time::default()).unwrap();
        // Its record in format 2, as that version wrote it: the number of the next file is 2.
        let record = [&2_u32.to_be_bytes()[..], &VOLUME.0, &2_u64.to_be_bytes()].concat();
        let writes = Writes::from([(b"v".to_vec(), Some(record))]);
        engine.commit(&writes, &Owner { key: b"w".to_vec(), value: None }).unwrap();
        let mut served = Served::new(&clock).await;
        served.restart_empty(setup).await;
        for _ in 0..2 {
            let (metadata, disks) = start_by(&engine, &served, served.address, &clock);
            comes_to((&sim, served.address), (&metadata, &disks), None).await;
            assert_eq!(volume::setup(&engine).unwrap(), None);
        }
    }
}
