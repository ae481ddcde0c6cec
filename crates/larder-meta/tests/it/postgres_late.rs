//! Late commits to a real PostgreSQL, which is killed: also below a metadata server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_io::SimClock;
use larder_meta::engine::postgres::Postgres;
use larder_meta::engine::{Engine, EngineError};
use larder_meta::volume::{self, Joining, NewDisk};
use larder_meta::{Metadata, Options};
use larder_testkit::PostgresServer;
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::calls::{Make, MakeWhat};
use larder_wire::meta::words::{DiskId, FileId, Medium, SetAttributes, Time, VolumeId};

use crate::client::{Client, GoodDisks, dentry, serve_metadata};
use crate::late::{Counting, make};
use crate::postgres::{engine, open};
use crate::store::{batch, last, nobody};

/// A server that writes its log out by itself as seldom as it can.
fn lazy() -> PostgresServer {
    let server = PostgresServer::start("true");
    server.sql("postgres", "ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.sql("postgres", "SELECT pg_reload_conf()");
    server
}

fn restart(server: &mut PostgresServer) {
    server.kill();
    server.begin("on");
}

/// Where late commits live after a recovery.
fn boot(engine: &Postgres) -> Vec<u8> {
    engine.boot().unwrap().expect("there are late commits")
}

/// A kill leaves all commits up to one of them, and none is missing that was durable: by itself, by
/// a durable one after it, or by a sync. What late commits live in has another name then, and the
/// same name as long as nothing can be lost.
#[test]
fn late_commits_to_a_database_are_lost_from_the_end_and_never_before_a_durable_one() {
    let mut server = lazy();
    let (name, first) = engine(&server);
    drop(first);
    let mut done = 0;
    for (round, makes_durable) in [None, Some(true), Some(false), None].into_iter().enumerate() {
        let one = open(&server, &name).unwrap();
        let before = boot(&one);
        assert_eq!(boot(&open(&server, &name).unwrap()), before);
        drop(one.view().unwrap());
        one.commit(&batch(done + 1), &nobody()).unwrap();
        let mut durable = done + 1;
        for number in durable + 1..durable + 20 {
            one.commit_late(&batch(number), &nobody()).unwrap();
            assert_eq!(last(&one), number, "it is there at once");
        }
        let mut answered = durable + 19;
        match makes_durable {
            Some(true) => {
                answered += 1;
                one.commit(&batch(answered), &nobody()).unwrap();
                durable = answered;
            }
            Some(false) => {
                one.sync().unwrap();
                durable = answered;
            }
            None => {}
        }
        restart(&mut server);
        let other = open(&server, &name).unwrap();
        let there = last(&other);
        println!("round {round}: {durable} durable, {there} there, {answered} answered");
        assert!((durable..=answered).contains(&there), "{round}: {durable} {there} {answered}");
        assert_ne!(boot(&other), before, "{round}");
        // A process whose commits are lost is told so, each time.
        let is_lost = there < answered;
        for told in [one.view().map(drop), one.sync(), one.steady_view().map(drop)] {
            assert_eq!(matches!(told, Err(EngineError::Lost)), is_lost, "{round}: {told:?}");
        }
        let told = one.commit(&batch(answered + 1), &nobody());
        assert_eq!(matches!(told, Err(EngineError::Lost)), is_lost, "{round}: {told:?}");
        done = last(&other);
    }
}

/// The loss is seen however it came about: here by hand, so that it is sure to be one.
#[test]
fn a_process_whose_commits_are_not_there_any_more_reads_and_commits_nothing() {
    let server = PostgresServer::start("true");
    let (name, one) = engine(&server);
    boot(&one);
    for number in 1..=5 {
        one.commit_late(&batch(number), &nobody()).unwrap();
    }
    one.sync().unwrap();
    server.sql(&name, "UPDATE larder_store SET commits = commits - 2");
    assert!(matches!(one.view().map(drop), Err(EngineError::Lost)));
    assert!(matches!(one.steady_view().map(drop), Err(EngineError::Lost)));
    assert!(matches!(one.sync(), Err(EngineError::Lost)));
    assert!(matches!(one.commit_late(&batch(6), &nobody()), Err(EngineError::Lost)));
    // The next one goes on, also if it has seen what is lost.
    let other = open(&server, &name).unwrap();
    drop(other.view().unwrap());
    server.sql(&name, "UPDATE larder_store SET commits = commits - 1");
    drop(other.view().unwrap());
    other.commit(&batch(6), &nobody()).unwrap();
    assert_eq!(last(&other), 6);
}

/// A late commit is one round trip as any other.
#[test]
fn a_late_commit_is_one_round_trip() {
    let server = PostgresServer::start("true");
    let (_, engine) = engine(&server);
    boot(&engine);
    let trips = |work: &dyn Fn()| {
        let before = engine.round_trips();
        work();
        engine.round_trips() - before
    };
    engine.commit_late(&batch(1), &nobody()).unwrap();
    engine.sync().unwrap();
    assert_eq!(trips(&|| engine.commit_late(&batch(2), &nobody()).unwrap()), 1);
    assert_eq!(trips(&|| engine.sync().unwrap()), 1);
}

/// A metadata server over a database makes volatile files and directories without a durable commit.
/// After a kill of the database the next server counts the files as lost, or they are gone, and
/// what was durable is there.
#[tokio::test(flavor = "multi_thread")]
async fn volatile_files_over_a_database_are_late_and_count_as_lost_after_its_crash() {
    const FILES: u32 = 5;
    let mut server = lazy();
    let (name, store) = engine(&server);
    volume::create(&store, VolumeId([1; 16]), 1, Time::default()).unwrap();
    let disk = |is_memory| NewDisk {
        id: [2; 16],
        address: "nowhere:1".into(),
        bytes: 1024 * BLOCK_BYTES,
        is_memory,
    };
    let end_term = |server: &PostgresServer| {
        server.sql(&name, "UPDATE larder_store SET owned_until = now()");
    };
    volume::add_disk(&store, &disk(false)).unwrap();
    assert_eq!(volume::enrol(&store, &disk(true), Joining::Anywhere).unwrap(), DiskId(2));
    let (durable, late) = Default::default();
    let counting = Arc::new(Counting { engine: Arc::new(store), durable, late });
    let owned = volume::take(&*counting).unwrap();
    let own = Arc::clone(&counting) as Arc<dyn Engine>;
    // No time passes: so nothing is made durable on the way, however slow the machine is.
    let (disks, clock) = (Arc::new(GoodDisks::default()), Arc::new(SimClock::new()));
    let metadata = Metadata::start(own, owned, disks, clock, Options::default()).unwrap();
    let client = Client::connect(serve_metadata(metadata.clone()).await, 1, 1).await;
    make(&client, 1, (FileId::ROOT, "durable"), Medium::Disk).await;
    let before = counting.durable.load(Ordering::SeqCst);
    let (sequence, medium) = (client.sequence(0, 10), Medium::Memory(1));
    let (dentry, set) = (dentry(FileId::ROOT, "dir"), SetAttributes::default());
    let call = Make { sequence, dentry, what: MakeWhat::Directory, set, medium };
    let dir = client.call(call).await.unwrap().made.file;
    let mut files = Vec::new();
    for at in 0..FILES {
        files.push(make(&client, 20 + at * 4, (dir, &format!("v{at}")), medium).await);
    }
    assert!(counting.late.load(Ordering::SeqCst) > u64::from(FILES) * 2);
    assert_eq!(counting.durable.load(Ordering::SeqCst), before);

    restart(&mut server);
    end_term(&server);
    let next = open(&server, &name).unwrap();
    drop(volume::take(&next).unwrap());
    assert_eq!(
        larder_meta::check(&{
            end_term(&server);
            open(&server, &name).unwrap()
        })
        .unwrap(),
        []
    );
    let lost = volume::lost(&next).unwrap();
    let (view, mut there) = (next.view().unwrap(), 0);
    println!("lost: {lost:?}");
    for file in files {
        let inode = [&b"i"[..], &file.0.to_be_bytes()].concat();
        if view.get(&inode).unwrap().is_some() {
            assert!(lost.contains_key(&file), "{file:?} is there and not lost");
            there += 1;
        }
    }
    assert_eq!(lost.len(), there);
    assert_eq!(volume::losses(&next).unwrap().len(), usize::from(there > 0));
    let entry = [&b"e"[..], &FileId::ROOT.0.to_be_bytes(), b"durable"].concat();
    assert!(view.get(&entry).unwrap().is_some());
}
