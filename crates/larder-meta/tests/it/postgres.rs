//! The engine over a real PostgreSQL, which is also killed in the middle of commits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_meta::engine::postgres::{Postgres, Target, Waits};
use larder_meta::engine::{Engine, EngineError, Owner, View, Writes};
use larder_meta::volume;
use larder_testkit::PostgresServer;
use larder_wire::meta::words::{Time, VolumeId};
use proptest::prelude::*;

use crate::store::{batch, last, nobody};

/// How long it is waited for, and for how long an owner is the owner.
pub(crate) const WAITS: Waits =
    Waits { patience: Duration::from_secs(60), term: Duration::from_secs(600) };

fn target(server: &PostgresServer, database: &str) -> Target {
    Target::parse(&server.words(database)).unwrap()
}

/// An engine on a store in a new database.
pub(crate) fn engine(server: &PostgresServer) -> (String, Postgres) {
    let name = server.database();
    Postgres::create(&target(server, &name), &clock()).unwrap();
    let engine = open(server, &name).unwrap();
    (name, engine)
}

pub(crate) fn open(server: &PostgresServer, database: &str) -> Result<Postgres, EngineError> {
    Postgres::open(target(server, database), clock(), WAITS)
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(RealClock)
}

/// One for the tests that do not kill it. Its shell ends with this process, and removes its files.
fn shared() -> &'static PostgresServer {
    static SHARED: OnceLock<PostgresServer> = OnceLock::new();
    SHARED.get_or_init(|| PostgresServer::start("rm -rf $PWD"))
}

/// As time does.
fn end_term(database: &str) {
    shared().sql(database, "UPDATE larder_store SET owned_until = now()");
}

#[test]
fn a_database_keeps_batches_and_refuses_servers_that_do_not_own_the_volume() {
    let (name, engine) = engine(shared());
    for number in 1..=40 {
        let before = engine.view().unwrap();
        engine.commit(&batch(number), &nobody()).unwrap();
        let seen = before.get(b"a").unwrap().map(|value| value[7]);
        assert_eq!(seen, (number > 1).then_some(number as u8 - 1), "a view stays what it was");
    }
    assert_eq!(last(&engine), 40);
    let taken = Writes::from([(b"owner".to_vec(), Some(b"x".to_vec()))]);
    assert!(matches!(engine.commit(&taken, &nobody()), Err(EngineError::NotOwner)), "a term lasts");
    end_term(&name);
    engine.commit(&taken, &nobody()).unwrap();
    assert!(matches!(engine.commit(&batch(41), &nobody()), Err(EngineError::NotOwner)));
    let owner = |value: &[u8]| Owner { key: b"owner".to_vec(), value: Some(value.to_vec()) };
    assert!(matches!(engine.commit(&batch(41), &owner(b"y")), Err(EngineError::NotOwner)));
    engine.commit(&batch(41), &owner(b"x")).unwrap();
    drop(engine);
    assert_eq!(last(&open(shared(), &name).unwrap()), 41);
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()];
    proptest::collection::vec(byte, 1..4)
}

fn any_writes() -> impl Strategy<Value = Writes> {
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..9));
    proptest::collection::btree_map(any_key(), value, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    /// It answers as a map would, for any keys and values.
    #[test]
    fn a_database_is_an_ordered_map_of_bytes(
        steps in proptest::collection::vec((any_writes(), any_key(), any_key()), 8),
    ) {
        let (_, engine) = engine(shared());
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (writes, from, until) in steps {
            engine.commit(&writes, &nobody()).unwrap();
            for (key, value) in writes {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
            let view = engine.view().unwrap();
            let mut found = Vec::new();
            let mut each = |key: &[u8], value: &[u8]| {
                found.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            view.scan(&from, &until, &mut each).unwrap();
            let between = |key: &[u8]| *from <= *key && *key < *until;
            let wanted = model.iter().filter(|(key, _)| between(key));
            let wanted: Vec<_> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(view.get(&from).unwrap(), model.get(&from).cloned());
        }
    }
}

#[test]
fn a_commit_is_one_round_trip_and_so_is_each_step_of_a_view() {
    let (_, engine) = engine(shared());
    let trips = |work: &dyn Fn()| {
        let before = engine.round_trips();
        work();
        engine.round_trips() - before
    };
    let commit = |number| engine.commit(&batch(number), &nobody()).unwrap();
    let look = || drop(engine.view().unwrap().get(b"a").unwrap());
    // They connect, and prepare.
    look();
    commit(1);
    assert_eq!(trips(&|| commit(2)), 1);
    assert_eq!(trips(&look), 3, "it begins, reads and ends");
}

/// The process that took a volume last is the owner; the one before can change nothing any more. No
/// process takes it before the owner's term is over, or was ended.
#[test]
fn of_two_processes_on_one_database_the_later_owner_alone_changes_something() {
    let (name, one) = engine(shared());
    volume::create(&one, VolumeId([1; 16]), 1, Time::default()).unwrap();
    let again = volume::create(&one, VolumeId([2; 16]), 1, Time::default());
    assert!(matches!(again, Err(volume::VolumeError::Exists)));
    let first = volume::take(&one).unwrap();
    let owner = |engine: &Postgres| engine.view().unwrap().get(b"w").unwrap();
    let mine = Owner { key: b"w".to_vec(), value: owner(&one) };
    one.commit(&batch(1), &mine).unwrap();
    let two = open(shared(), &name).unwrap();
    let refused = volume::take(&two).unwrap_err().to_string();
    assert!(refused.contains("another process has the volume: end that, or wait"), "{refused}");
    let refused = larder_meta::check(&two);
    assert!(matches!(refused, Err(volume::VolumeError::Owned(_))), "{refused:?}");
    let left = two.owned_for().unwrap();
    assert!(left > WAITS.term / 2 && left <= WAITS.term, "{left:?}");
    end_term(&name);
    one.commit(&batch(1), &mine).unwrap();
    assert!(volume::take(&two).is_err(), "each commit begins a term, with or without writes");
    end_term(&name);
    let second = volume::take(&two).unwrap();
    assert_eq!((first.epoch(), second.epoch()), (1, 2));
    for _ in 0..2 {
        assert!(matches!(one.commit(&batch(2), &mine), Err(EngineError::NotOwner)));
        assert!(matches!(one.release(&mine), Err(EngineError::NotOwner)));
        // It reads, and knows the other process's number of commits now.
        drop(one.view().unwrap());
    }
    assert_eq!(last(&two), 1);
    let theirs = Owner { value: owner(&two), ..mine };
    two.commit(&batch(2), &theirs).unwrap();
    assert_eq!((last(&two), last(&one)), (2, 2));
    two.release(&theirs).unwrap();
    assert_eq!(volume::take(&one).unwrap().epoch(), 3);
}

/// Killed at any moment: a commit waits until the server is back, determines its own outcome, and
/// is there whole. A call that is not answered within its patience gets an error that says so.
#[test]
fn kill_after_kill_of_the_database_each_commit_is_there_whole() {
    const KILLS: u64 = 4;
    let mut server = PostgresServer::start("true");
    let (name, engine) = engine(&server);
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    let wanted = Arc::new(AtomicU64::new(u64::MAX));
    let until = Arc::clone(&wanted);
    let committing = std::thread::spawn(move || {
        for number in 1.. {
            if number > until.load(Ordering::SeqCst) {
                return number - 1;
            }
            engine.commit(&batch(number), &nobody()).unwrap();
            counted.store(number, Ordering::SeqCst);
        }
        unreachable!()
    });
    for kill in 1..=KILLS {
        while done.load(Ordering::SeqCst) < kill * 23 {
            assert!(!committing.is_finished(), "a commit failed");
            std::thread::yield_now();
        }
        let answered = done.load(Ordering::SeqCst);
        server.kill();
        server.begin("on");
        let there = last(&open(&server, &name).unwrap());
        assert!(there >= answered, "{answered} were answered, {there} are there");
    }
    wanted.store(done.load(Ordering::SeqCst) + 5, Ordering::SeqCst);
    let committed = committing.join().unwrap();
    assert_eq!(last(&open(&server, &name).unwrap()), committed);

    let waits = Waits { patience: Duration::ZERO, ..WAITS };
    let impatient = Postgres::open(target(&server, &name), clock(), waits).unwrap();
    server.kill();
    assert!(matches!(impatient.view(), Err(EngineError::Away(_))));
    let failed = impatient.commit(&batch(committed + 1), &nobody());
    assert!(matches!(failed, Err(EngineError::Away(_))), "{failed:?}");
    server.begin("off");
    let failed = impatient.commit(&batch(committed + 1), &nobody());
    assert!(matches!(failed, Err(EngineError::Failed(_))), "what became of the last is not known");
    let refused = open(&server, &name).unwrap_err().to_string();
    assert!(refused.contains("set fsync = on"), "{refused}");
}

/// One line each, which says what to do.
#[test]
fn a_database_that_is_no_store_of_this_version_is_refused() {
    let refused = |name: &str| {
        let said = open(shared(), name).unwrap_err();
        assert_eq!(said.to_string().lines().count(), 1, "{said}");
        said
    };
    let none = refused("there_is_none").to_string();
    assert!(none.contains("createdb"), "{none}");
    let name = shared().database();
    assert!(matches!(refused(&name), EngineError::None));
    shared().sql(&name, "CREATE TABLE larder_store AS SELECT 'thesis 3' AS format");
    let other = refused(&name).to_string();
    assert!(other.contains("\"thesis 3\", this version reads"), "{other}");
    let nowhere = Target::parse("host=/nowhere user=larder dbname=d").unwrap();
    let away = Postgres::open(nowhere, clock(), WAITS).unwrap_err();
    assert!(matches!(away, EngineError::Away(_)), "{away}");
}

/// What the owner reads stays readable while the server is killed; a process that is not the owner
/// is told.
#[test]
fn a_view_of_the_owner_goes_on_over_a_restart_of_the_database() {
    let mut server = PostgresServer::start("true");
    let (name, engine) = engine(&server);
    engine.commit(&batch(1), &nobody()).unwrap();
    let (steady, view) = (engine.steady_view().unwrap(), engine.view().unwrap());
    let look = |view: &dyn View| view.get(b"a").map(|value| value.unwrap()[7]);
    assert_eq!((look(&*steady).unwrap(), look(&*view).unwrap()), (1, 1));
    server.kill();
    let steady = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || (look(&*steady).unwrap(), steady));
        assert!(matches!(look(&*view), Err(EngineError::Away(_))));
        server.begin("on");
        let (seen, steady) = waiting.join().unwrap();
        assert_eq!(seen, 1);
        steady
    });
    let other = open(&server, &name).unwrap();
    drop(other.view().unwrap());
    other.commit(&batch(2), &nobody()).unwrap();
    assert_eq!(look(&*steady).unwrap(), 1, "it is a snapshot");
    server.kill();
    server.begin("on");
    assert!(matches!(look(&*steady), Err(EngineError::NotOwner)));
}
