//! The engine over a real PostgreSQL, which is killed in the middle of commits, too.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use larder_io::{Clock, RealClock};
use larder_meta::engine::postgres::{Postgres, Target};
use larder_meta::engine::{Engine, EngineError, Owner, Writes};
use larder_meta::volume;
use larder_wire::meta::words::{Time, VolumeId};
use proptest::prelude::*;

use crate::store::{batch, last, nobody};

/// Who runs it: it refuses to be root's.
const AS_NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
/// How long a commit waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A PostgreSQL in a directory of its own, reached by a socket in it. It runs below a shell that
/// is the first process of its namespace: when our end of the shell's input is closed, by a kill
/// or since the test is over, everything dies at once.
struct Server {
    dir: tempfile::TempDir,
    shell: Option<Child>,
    /// What the shell does at its end.
    end: &'static str,
}

impl Server {
    fn start(end: &'static str) -> Server {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let mut server = Server { dir, shell: None, end };
        let script = format!(
            "{AS_NOBODY} {} -D data -U larder -A trust --no-sync --no-locale -E UTF8 >/dev/null",
            program("initdb").display()
        );
        let mut making = Command::new("sh");
        making.args(["-c", &script]).current_dir(server.dir.path());
        assert!(making.status().unwrap().success(), "initdb: is the test run by root?");
        server.begin("on");
        server
    }

    fn begin(&mut self, fsync: &str) {
        // Left by one that was killed; its number may be another process's now.
        let _ = std::fs::remove_file(self.dir.path().join("data/postmaster.pid"));
        let script = format!(
            "{AS_NOBODY} {} -w -s -D data -l log start -o \"-c listen_addresses= -c fsync={fsync} \
             -c unix_socket_directories=$PWD -c shared_buffers=16MB\" && echo ready; \
             read _; kill -9 -1; {}",
            program("pg_ctl").display(),
            self.end
        );
        let mut shell = Command::new("unshare");
        shell.args(["--pid", "--fork", "--kill-child", "sh", "-c", &script]);
        shell.current_dir(self.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        assert_eq!(said, "ready\n", "{}", log());
        self.shell = Some(shell);
    }

    fn kill(&mut self) {
        let mut shell = self.shell.take().unwrap();
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }

    fn target(&self, database: &str) -> Target {
        let host = self.dir.path().display();
        Target::parse(&format!("host={host} user=larder dbname={database}")).unwrap()
    }

    /// A database that nobody else has.
    fn database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("d{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    fn sql(&self, database: &str, text: &str) {
        let mut psql = Command::new(program("psql"));
        psql.arg("-h").arg(self.dir.path()).args(["-U", "larder", "-qc", text, database]);
        assert!(psql.status().unwrap().success());
    }

    /// An engine on a store in a new database.
    fn engine(&self) -> (String, Postgres) {
        let name = self.database();
        Postgres::create(&self.target(&name), &clock()).unwrap();
        let engine = self.open(&name).unwrap();
        (name, engine)
    }

    fn open(&self, database: &str) -> Result<Postgres, EngineError> {
        Postgres::open(self.target(database), clock(), PATIENCE)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.shell.is_some() {
            self.kill();
        }
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(RealClock)
}

/// Debian keeps them away from the path, by version.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<_> =
        versions.map(|one| one.unwrap().path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| Path::new(name).to_owned())
}

/// One for the tests that do not kill it. Its shell ends with this process, and clears up.
fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Server::start("rm -rf $PWD"))
}

#[test]
fn a_database_keeps_batches_and_refuses_who_is_not_the_owner() {
    let (name, engine) = shared().engine();
    for number in 1..=40 {
        let before = engine.view().unwrap();
        engine.commit(&batch(number), &nobody()).unwrap();
        let seen = before.get(b"a").unwrap().map(|value| value[7]);
        assert_eq!(seen, (number > 1).then_some(number as u8 - 1), "a view stays what it was");
    }
    assert_eq!(last(&engine), 40);
    let taken = Writes::from([(b"owner".to_vec(), Some(b"x".to_vec()))]);
    engine.commit(&taken, &nobody()).unwrap();
    assert!(matches!(engine.commit(&batch(41), &nobody()), Err(EngineError::NotOwner)));
    let owner = |value: &[u8]| Owner { key: b"owner".to_vec(), value: Some(value.to_vec()) };
    assert!(matches!(engine.commit(&batch(41), &owner(b"y")), Err(EngineError::NotOwner)));
    engine.commit(&batch(41), &owner(b"x")).unwrap();
    drop(engine);
    assert_eq!(last(&shared().open(&name).unwrap()), 41);
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

    /// What it answers is what a map would, to any keys and values.
    #[test]
    fn a_database_is_an_ordered_map_of_bytes(
        steps in proptest::collection::vec((any_writes(), any_key(), any_key()), 8),
    ) {
        let (_, engine) = shared().engine();
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
    let (_, engine) = shared().engine();
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

/// Whoever took a volume later is the owner; the one before can change nothing any more.
#[test]
fn of_two_processes_on_one_database_the_later_owner_alone_changes_something() {
    let (name, one) = shared().engine();
    volume::create(&one, VolumeId([1; 16]), Time::default()).unwrap();
    let again = volume::create(&one, VolumeId([2; 16]), Time::default());
    assert!(matches!(again, Err(volume::VolumeError::Exists)));
    let first = volume::take(&one).unwrap();
    let owner = |engine: &Postgres| engine.view().unwrap().get(b"w").unwrap();
    let mine = Owner { key: b"w".to_vec(), value: owner(&one) };
    one.commit(&batch(1), &mine).unwrap();
    let two = shared().open(&name).unwrap();
    let second = volume::take(&two).unwrap();
    assert_eq!((first.epoch(), second.epoch()), (1, 2));
    for _ in 0..2 {
        assert!(matches!(one.commit(&batch(2), &mine), Err(EngineError::NotOwner)));
        // It looks, and knows the others' number of commits now.
        drop(one.view().unwrap());
    }
    assert_eq!(last(&two), 1);
    two.commit(&batch(2), &Owner { value: owner(&two), ..mine }).unwrap();
    assert_eq!((last(&two), last(&one)), (2, 2));
}

/// As with a directory; and who was killed does not keep others out.
#[test]
fn a_database_is_kept_by_one_process_that_asks_for_it() {
    let (name, one) = shared().engine();
    let two = shared().open(&name).unwrap();
    one.lock().unwrap();
    one.commit(&batch(1), &nobody()).unwrap();
    shared().sql(
        &name,
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    );
    one.commit(&batch(2), &nobody()).unwrap();
    let refused = two.lock();
    assert!(matches!(refused, Err(EngineError::Busy)), "it is taken again: {refused:?}");
    drop(one);
    two.lock().unwrap();
    assert_eq!(last(&two), 2);
}

/// Killed wherever it is: a commit waits until the server is there again, finds out what became of
/// it, and is there whole. Whoever is not answered within his patience is told so.
#[test]
fn kill_after_kill_of_the_database_each_commit_is_there_whole() {
    const KILLS: u64 = 4;
    let mut server = Server::start("true");
    let (name, engine) = server.engine();
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
        let there = last(&server.open(&name).unwrap());
        assert!(there >= answered, "{answered} were answered, {there} are there");
    }
    wanted.store(done.load(Ordering::SeqCst) + 5, Ordering::SeqCst);
    let committed = committing.join().unwrap();
    assert_eq!(last(&server.open(&name).unwrap()), committed);

    let impatient = Postgres::open(server.target(&name), clock(), Duration::ZERO).unwrap();
    server.kill();
    assert!(matches!(impatient.view(), Err(EngineError::Away(_))));
    let failed = impatient.commit(&batch(committed + 1), &nobody());
    assert!(matches!(failed, Err(EngineError::Away(_))), "{failed:?}");
    server.begin("off");
    let failed = impatient.commit(&batch(committed + 1), &nobody());
    assert!(matches!(failed, Err(EngineError::Failed(_))), "what became of the last is not known");
    let refused = server.open(&name).unwrap_err().to_string();
    assert!(refused.contains("set fsync = on"), "{refused}");
}

/// One line each, which says what to do.
#[test]
fn a_database_that_is_no_store_of_this_version_is_refused() {
    let refused = |name: &str| {
        let said = shared().open(name).unwrap_err();
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
    let away = Postgres::open(nowhere, clock(), PATIENCE).unwrap_err();
    assert!(matches!(away, EngineError::Away(_)), "{away}");
}
