//! What nobody waits for goes to the server within a limit on bytes per second; what a caller waits
//! for does not wait for the limit.

use std::sync::Arc;
use std::time::Duration;

use larder_client::Options;
use larder_io::{Clock, Rate};
use larder_vfs::{Cookie, Cred, FileSystem, MemRemote, Remote, Stability};

use crate::kept::{at_server, generated};
use crate::rig::{Rig, WRITE, pattern};

/// Of the tests, in bytes per second.
const RATE: u64 = 100_000;

fn limited(options: Options) -> Options {
    Options { rate: Arc::new(Rate::new(Some(RATE))), ..options }
}

/// Lets all tasks do what they can before more time passes (see [`crate::rig::pass`]).
async fn settle() {
    let nothing = std::future::pending::<()>();
    assert!(tokio::time::timeout(Duration::from_millis(1), nothing).await.is_err());
}

/// What the server has: names of the root directory with the sizes of the files.
async fn there(server: &MemRemote) -> Vec<(String, u64)> {
    let (cred, top) = (Cred::root(), server.root().await.unwrap().handle);
    let page = server.readdir(&cred, &top, Cookie::default(), 1 << 20).await.unwrap();
    let mut all = Vec::new();
    for entry in page.entries {
        let found = server.lookup(&cred, &top, &entry.name).await.unwrap().found.unwrap();
        all.push((entry.name.into_string().unwrap(), found.attr.size));
    }
    all
}

/// Lets time pass, from one wake of a sleeping task to the next, until this holds. At no time the
/// server has got more than the limit allows, beyond what it `had`.
async fn within_the_limit(rig: &Rig, had: u64, mut holds: impl FnMut(&[(String, u64)]) -> bool) {
    let (server, begin) = (rig.server.another_client(), rig.clock.instant());
    loop {
        settle().await;
        let all = there(&server).await;
        let got = all.iter().map(|(_, size)| size).sum::<u64>() - had;
        let time = rig.clock.instant() - begin;
        let allowed = u128::from(RATE) * time.as_nanos() / 1_000_000_000;
        assert!(u128::from(got) <= allowed, "{got} bytes in {time:?}");
        if holds(&all) {
            return;
        }
        assert!(time < Duration::from_secs(600), "{all:?}");
        rig.pass_to_next_wake();
    }
}

/// Does what a caller waits for, while time stands still.
async fn at_once<T>(call: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(3600), call).await;
    done.expect("it does not wait for the limit")
}

const FILES: u64 = 30;
const SIZE: u64 = 20_000;

async fn put_many(rig: &Rig) {
    for count in 0..FILES {
        rig.put(&format!("f{count}"), &pattern(count, SIZE as usize)).await;
    }
}

async fn all_arrived(rig: &Rig) {
    for count in 0..FILES {
        assert!(at_server(rig, &format!("f{count}")).await == pattern(count, SIZE as usize));
    }
}

/// Names and bytes that wait on this machine, sent for `larder sync`: it takes no longer than the
/// limit asks for, but for a moment.
#[tokio::test(start_paused = true)]
async fn what_waits_arrives_within_the_limit() {
    let rig = Rig::exclusive(limited(generated())).await;
    put_many(&rig).await;
    // The server shows once to which user it maps the caller, and has no bytes.
    let before = there(&rig.server).await;
    assert!(before.iter().all(|(_, size)| *size == 0) && before.len() <= 1, "{before:?}");
    let (client, begin) = (rig.client.clone(), rig.clock.instant());
    let syncing = tokio::spawn(async move { client.sync(&|_| true).await });
    within_the_limit(&rig, 0, |all| {
        all.len() as u64 == FILES && all.iter().all(|(_, size)| *size == SIZE)
    })
    .await;
    let took = rig.clock.instant() - begin;
    let needed = Duration::from_secs(FILES * SIZE / RATE);
    assert!(needed < took && took < needed * 2, "{took:?}");
    rig.in_vain(syncing).await.unwrap().unwrap();
    all_arrived(&rig).await;
    assert_eq!(rig.set_aside().len(), 0);
}

/// A long file is being sent within the limit. A caller that needs it there has it without any time
/// passing, and so has a caller that needs another one.
#[tokio::test(start_paused = true)]
async fn an_fsync_does_not_wait_for_the_limit() {
    const LONG: u64 = 3_000_000;
    for is_the_same in [true, false] {
        let rig = Rig::new(limited(Options::default())).await;
        let long = rig.create("long").await;
        let bytes = pattern(1, LONG as usize);
        long.write(0, &bytes).await.unwrap();
        let has_begun = |all: &[(String, u64)]| all.iter().any(|(_, size)| *size > 100_000);
        within_the_limit(&rig, 0, has_begun).await;
        let begin = rig.clock.instant();
        if is_the_same {
            at_once(long.flush()).await.unwrap();
            assert!(at_server(&rig, "long").await == bytes);
        } else {
            at_once(rig.put("short", b"bytes")).await;
            assert_eq!(at_server(&rig, "short").await, b"bytes");
            let size = there(&rig.server).await.into_iter().find(|(name, _)| name == "long");
            assert!(size.unwrap().1 < LONG, "the other one keeps to the limit");
        }
        assert_eq!(rig.clock.instant(), begin);
        at_once(long.close()).await.unwrap();
    }
}

/// While many files wait for the limit, one of them is asked for by a caller. The others keep to
/// the limit after that, too.
#[tokio::test(start_paused = true)]
async fn a_caller_gets_its_own_file_there_and_no_other() {
    let rig = Rig::exclusive(limited(generated())).await;
    put_many(&rig).await;
    let client = rig.client.clone();
    let syncing = tokio::spawn(async move { client.sync(&|_| true).await });
    let has_begun = |all: &[(String, u64)]| all.iter().any(|(_, size)| *size > 0);
    within_the_limit(&rig, 0, has_begun).await;
    let sent = |all: Vec<(String, u64)>| all.into_iter().map(|(_, size)| size).sum::<u64>();
    let before = sent(there(&rig.server).await);
    let begin = rig.clock.instant();
    let open = rig.open(&Cred::root(), "f29", WRITE).await.unwrap();
    let last = &pattern(29, SIZE as usize)[SIZE as usize - 1..];
    let (ino, id) = open.names();
    let write = rig.client.write(&Cred::root(), ino, Some(id), SIZE - 1, last, Stability::FileSync);
    at_once(write.wait()).await.unwrap();
    assert_eq!(rig.clock.instant(), begin);
    assert!(at_server(&rig, "f29").await == pattern(29, SIZE as usize));
    let had = sent(there(&rig.server).await);
    assert!(had <= before + SIZE, "{had} after {before}");
    within_the_limit(&rig, had, |all| all.iter().all(|(_, size)| *size == SIZE)).await;
    rig.in_vain(syncing).await.unwrap().unwrap();
    all_arrived(&rig).await;
}

/// The end of a mount does not wait for the limit: its time is short anyway.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_mount_does_not_wait_for_the_limit() {
    let rig = Rig::exclusive(limited(generated())).await;
    put_many(&rig).await;
    let begin = rig.clock.instant();
    at_once(rig.client.write_back_all()).await.unwrap();
    assert_eq!(rig.clock.instant(), begin);
    all_arrived(&rig).await;
}
