//! Random work by two machines against a model: an open sees what was closed before.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_client::Options;
use larder_vfs::SetAttr;

use crate::rig::{READ, Random, Rig, WRITE, pattern, root};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STEPS: u64 = 300;

type Model = BTreeMap<&'static str, Vec<u8>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_of_two_machines_agrees_with_a_model() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(1..9, |seed: u64| seed..seed + 1) {
        for cache_data in [true, false] {
            for leases in [true, false] {
                println!("LARDER_SEED={seed}, cached data: {cache_data}, leases: {leases}");
                run(seed, cache_data, leases).await;
            }
        }
    }
}

async fn run(seed: u64, cache_data: bool, leases: bool) {
    let mut random = Random(seed);
    let mut rig = Rig::new(Options { cache_data, fill_after: None, ..Options::default() }).await;
    if leases {
        rig.server.give_leases();
        rig.names().await;
    }
    let other = rig.foreigner().await;
    let mut model = Model::new();
    for step in 0..STEPS {
        // No two steps are at the same time.
        rig.clock.advance(Duration::from_micros(1));
        if random.below(40) == 0 {
            rig = rig.remount().await;
            rig.names().await;
        }
        let foreign = random.below(4) == 0;
        let name = NAMES[random.below(5) as usize];
        let who = if foreign { &other } else { &rig };
        if foreign {
            // What the other machine changes is seen at open; changes of names after their timeout,
            // or at once if the directory is leased.
            change(who, &mut model, &mut random, name).await;
            rig.advance(if leases { 0 } else { 31 });
        } else if random.below(3) == 0 {
            check(who, &model, name, step).await;
        } else {
            change(who, &mut model, &mut random, name).await;
        }
        if random.below(10) == 0 {
            rig.advance(random.below(10));
        }
        if random.below(20) == 0 {
            assert_eq!(rig.names().await.len(), model.len(), "step {step}");
        }
    }
    for name in NAMES {
        check(&rig, &model, name, STEPS).await;
        check(&other, &model, name, STEPS).await;
    }
    let names: Vec<_> = model.keys().map(ToString::to_string).collect();
    assert_eq!(rig.names().await, names);
}

async fn check(rig: &Rig, model: &Model, name: &'static str, step: u64) {
    let Some(bytes) = model.get(name) else {
        assert!(rig.find(name).await.is_none(), "step {step}: {name} exists");
        return;
    };
    let open = rig.open(&root(), name, READ).await.unwrap();
    let half = bytes.len() / 2;
    let tail = open.read(half as u64, 1 << 20).await.unwrap();
    assert!(tail == bytes[half..], "step {step}: second half of {name}");
    let all = open.read(0, 1 << 20).await.unwrap();
    assert!(all == *bytes, "step {step}: {name}");
    open.close().await.unwrap();
    assert_eq!(rig.stat(name).await.attr.size, bytes.len() as u64, "step {step}: {name}");
}

async fn change(rig: &Rig, model: &mut Model, random: &mut Random, name: &'static str) {
    let bytes = pattern(random.below(1000), random.below(60_000) as usize);
    match (random.below(6), model.contains_key(name)) {
        (0, true) => {
            rig.remove(name).await.unwrap();
            model.remove(name);
        }
        (1, true) => {
            let to = NAMES[random.below(5) as usize];
            rig.rename(name, to).await.unwrap();
            let moved = model.remove(name).unwrap();
            model.insert(to, moved);
        }
        (2, true) => {
            let size = random.below(90_000);
            rig.set(name, SetAttr { size: Some(size), ..SetAttr::default() }).await;
            model.get_mut(name).unwrap().resize(size as usize, 0);
        }
        (3 | 4, true) => {
            let at = random.below(80_000) as usize;
            let open = rig.open(&root(), name, WRITE).await.unwrap();
            open.write(at as u64, &bytes).await.unwrap();
            let held = model.get_mut(name).unwrap();
            if !bytes.is_empty() && held.len() < at + bytes.len() {
                held.resize(at + bytes.len(), 0);
            }
            if !bytes.is_empty() {
                held[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let read = open.read(0, 1 << 20).await.unwrap();
            assert!(read == *held, "{name} read while it is written");
            open.close().await.unwrap();
        }
        _ => {
            rig.put(name, &bytes).await;
            model.insert(name, bytes);
        }
    }
}
