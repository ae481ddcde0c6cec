//! kill -9 of the metadata server, of its database, of the disk and of clients, at any moment,
//! under load.
//!
//! Several mounts write, sync, rename, remove and truncate files ([`load`]). After each kill and
//! restart the volume is checked, what was acknowledged as durable is there, and no file shows a
//! byte of another one.

mod load;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use larder_testkit::PostgresServer;
use tempfile::TempDir;

use crate::harness::{Mount, eventually, larder, scratch, succeed};
use crate::ports::free_address;
use crate::server::Server;
use load::{Random, Worker};

/// In the environment of a process in which one of these tests runs alone.
const ALONE: &str = "LARDER_KILLS_ALONE";
/// Kills of each kind, unless the variable `LARDER_KILLS` says otherwise.
const KILLS: u64 = 3;
const MOUNTS: usize = 3;
const WORKERS_PER_MOUNT: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Meta,
    /// The metadata server that has a standby.
    Owner,
    /// The same, which is not killed but stopped, and continues when it has been replaced.
    Stopped,
    /// PostgreSQL, which has the metadata.
    Database,
    Disk,
    Client,
}

/// A volume whose servers are processes of their own, and mounts of it.
struct Stand {
    dir: TempDir,
    kept: Kept,
    disk_address: String,
    disk: Option<Child>,
    meta: Server,
    standby: Option<Server>,
    mounts: Vec<Mount>,
    /// Has no cache, and sees what the servers have.
    observer: Mount,
}

/// The place of the metadata.
pub(crate) struct Kept {
    /// The options for it.
    pub(crate) options: Vec<String>,
    pub(crate) database: Option<PostgresServer>,
}

impl Kept {
    fn embedded(dir: &Path) -> Kept {
        let engine = format!("embedded:{}", dir.join("meta").display());
        Kept { options: vec!["--engine".to_owned(), engine], database: None }
    }

    /// In a PostgreSQL of its own.
    pub(crate) fn postgres(dir: &Path) -> Kept {
        let database = PostgresServer::start("true");
        let engine = format!("postgres:{}", database.words(&database.database()));
        let keys = dir.join("keys").display().to_string();
        let options = ["--engine", &engine, "--keys", &keys].map(str::to_owned).to_vec();
        Kept { options, database: Some(database) }
    }

    /// A metadata server that does not run yet, and that gives way to another one soon where that
    /// is possible.
    pub(crate) fn server(&self, more: &[&str]) -> Server {
        let mut options: Vec<_> = self.options.iter().map(String::as_str).collect();
        if self.database.is_some() {
            // Long enough for a busy machine to renew it.
            options.extend(["--take-over", "3s"]);
        }
        options.extend(more);
        Server::standby(&options)
    }

    /// The volume, which no server serves, has no faults.
    pub(crate) fn check(&self) {
        eventually("who was killed has the volume no more", || {
            let mut check = larder();
            let done = check.args(["volume", "check", "-n"]).args(&self.options).output().unwrap();
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let (said, failed) = (text(&done.stdout), text(&done.stderr));
            if self.database.is_some() && failed.contains("another process has the volume") {
                return false;
            }
            assert_eq!(
                (done.status.code(), &said[..]),
                (Some(0), "nothing is wrong\n"),
                "{failed}"
            );
            true
        });
    }
}

impl Stand {
    fn new(victim: Victim) -> Stand {
        let (dir, disk_address) = (scratch("larder-kills-"), free_address().to_string());
        let kept = match victim {
            Victim::Database | Victim::Owner | Victim::Stopped => Kept::postgres(dir.path()),
            Victim::Meta | Victim::Disk | Victim::Client => Kept::embedded(dir.path()),
        };
        succeed(larder().args(["volume", "create"]).args(&kept.options));
        let mut enrol = larder();
        enrol.args(["disk", "enrol", "--size", "256M", "--address", &disk_address]);
        succeed(enrol.arg(dir.path().join("key")).args(&kept.options));
        let disk = Some(start_disk(&dir, &disk_address));
        let has_standby = matches!(victim, Victim::Owner | Victim::Stopped);
        let roles: &[&str] = if has_standby { &["--standby"] } else { &[] };
        let mut meta = kept.server(roles);
        meta.restart();
        let mut standby = has_standby.then(|| kept.server(roles));
        standby.iter_mut().for_each(Server::begin);
        let url = match &standby {
            Some(standby) => format!("larder://{},{}/", meta.address(), standby.address()),
            None => meta.url(),
        };
        let mount = |options: &[&str]| {
            // A server that is silent for a second counts as gone.
            let more: &[&str] = if victim == Victim::Stopped { &["hard,timeo=10"] } else { &[] };
            let mut mount = Mount::unmounted(&meta, &[options, more].concat());
            mount.set_url(url.clone());
            mount.mount();
            mount
        };
        let mounts = (0..MOUNTS).map(|_| mount(&[])).collect();
        let observer = mount(&["plain", "noac"]);
        Stand { dir, kept, disk_address, disk, meta, standby, mounts, observer }
    }

    fn kill(&mut self, victim: Victim, which: usize) {
        match victim {
            Victim::Meta | Victim::Owner => self.meta.kill(),
            Victim::Stopped => self.meta.freeze(),
            Victim::Database => self.kept.database.as_mut().unwrap().kill(),
            Victim::Disk => end(&mut self.disk),
            Victim::Client => self.mounts[which].kill(),
        }
    }

    fn restart(&mut self, victim: Victim, which: usize) {
        match victim {
            Victim::Meta => {
                self.kept.check();
                self.meta.restart();
                // An idle client learns of it now, and delays no other.
                let _ = self.observer.path("nothing").try_exists();
            }
            Victim::Owner | Victim::Stopped => {
                let standby = self.standby.as_mut().unwrap();
                std::mem::swap(&mut self.meta, standby);
                self.meta.listens();
                if victim == Victim::Stopped {
                    standby.thaw();
                    standby.fails();
                }
                standby.begin();
                let _ = self.observer.path("nothing").try_exists();
            }
            Victim::Database => self.kept.database.as_mut().unwrap().begin("on"),
            Victim::Disk => self.disk = Some(start_disk(&self.dir, &self.disk_address)),
            Victim::Client => self.mounts[which].mount(),
        }
    }

    /// Everything that was written is at the servers.
    fn sync_all(&self) {
        for mount in &self.mounts {
            succeed(mount.larder().arg("sync").arg(mount.path("")));
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if self.disk.is_some() {
            end(&mut self.disk);
        }
    }
}

fn start_disk(dir: &TempDir, address: &str) -> Child {
    let mut command: Command = larder();
    command.args(["disk", "--size", "256M", "--listen", address]);
    command.arg("--key").arg(dir.path().join("key")).arg("--store").arg(dir.path().join("store"));
    let disk = command.stdin(Stdio::null()).spawn().unwrap();
    eventually("the disk listens", || std::net::TcpStream::connect(address).is_ok());
    disk
}

fn end(process: &mut Option<Child>) {
    let mut process = process.take().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Works until it is stopped, or the mount dies.
fn run(workers: &mut [Worker], stop: &AtomicBool, done: &AtomicU64) {
    let ready = &Barrier::new(workers.len());
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(move || {
                keep_own_files();
                ready.wait();
                while !stop.load(SeqCst) && worker.step() {
                    done.fetch_add(1, SeqCst);
                }
            });
        }
    });
}

/// Files that this thread opens from now on are its own: a process that another thread starts does
/// not inherit them. At its exec it would close them, and wait for a server that is dead.
fn keep_own_files() {
    #[expect(deprecated, reason = "this thread uses no file of another one")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::FILES).unwrap();
}

/// Runs a test in a process of its own, in which no other code has files open.
fn alone(name: &str, victim: Victim) {
    if std::env::var_os(ALONE).is_some() {
        return kill_again_and_again(victim);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("kills::{name}"), "--nocapture"]).env(ALONE, "1");
    let done = succeed(&mut command);
    print!("{}", String::from_utf8_lossy(&done.stdout));
}

fn kill_again_and_again(victim: Victim) {
    let kills = std::env::var("LARDER_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let seed = std::env::var("LARDER_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut stand, mut random, begin) = (Stand::new(victim), Random(seed), Instant::now());
    let mut workers: Vec<Worker> = (0..MOUNTS * WORKERS_PER_MOUNT)
        .map(|number| {
            let dir = format!("w{number}");
            fs::create_dir(stand.mounts[number / WORKERS_PER_MOUNT].path(&dir)).unwrap();
            let path = stand.mounts[number / WORKERS_PER_MOUNT].path(&dir);
            Worker::new(number as u32, path, random.next())
        })
        .collect();
    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    let mut steps = 0;
    for round in 0..kills {
        let which = random.below(MOUNTS);
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&mut workers, &stop, &done));
            let moment = 5 + random.below(60) as u64;
            eventually("there is load", || done.load(SeqCst) >= moment);
            stand.kill(victim, which);
            let killed_at = done.load(SeqCst);
            stand.restart(victim, which);
            eventually("the others go on", || done.load(SeqCst) >= killed_at + 15);
            stop.store(true, SeqCst);
            load.join().unwrap();
        });
        steps += done.load(SeqCst);
        stand.sync_all();
        for (number, worker) in workers.iter_mut().enumerate() {
            let seen_by_others = stand.observer.path(&format!("w{number}"));
            worker.verify(&seen_by_others).unwrap_or_else(|fault| {
                panic!("kill {round} of {victim:?}, LARDER_SEED={seed}, w{number}: {fault}")
            });
            for error in worker.errors.drain(..) {
                *errors.entry(error).or_default() += 1;
            }
        }
        let is_checked = matches!(victim, Victim::Database | Victim::Disk | Victim::Client);
        if is_checked && round % 5 == 4 {
            stand.kill(Victim::Meta, 0);
            stand.restart(Victim::Meta, 0);
        }
    }
    stand.standby = None;
    stand.kill(Victim::Meta, 0);
    stand.kept.check();
    println!(
        "{kills} kills of {victim:?}, seed {seed}: {steps} operations in {:.0?}, not answered: {errors:?}",
        begin.elapsed()
    );
}

#[test]
fn a_metadata_server_that_is_killed_under_load_loses_nothing() {
    alone("a_metadata_server_that_is_killed_under_load_loses_nothing", Victim::Meta);
}

/// Its standby continues.
#[test]
fn a_metadata_server_that_is_killed_beside_its_standby_loses_nothing() {
    alone("a_metadata_server_that_is_killed_beside_its_standby_loses_nothing", Victim::Owner);
}

/// It does not notice that it was away, answers nothing, and ends.
#[test]
fn a_metadata_server_that_was_stopped_and_replaced_does_no_harm() {
    alone("a_metadata_server_that_was_stopped_and_replaced_does_no_harm", Victim::Stopped);
}

/// Calls wait until it is there again.
#[test]
fn a_database_that_is_killed_under_load_loses_nothing() {
    alone("a_database_that_is_killed_under_load_loses_nothing", Victim::Database);
}

#[test]
fn a_disk_that_is_killed_under_load_loses_nothing() {
    alone("a_disk_that_is_killed_under_load_loses_nothing", Victim::Disk);
}

#[test]
fn a_client_that_is_killed_under_load_leaves_nothing_behind() {
    alone("a_client_that_is_killed_under_load_leaves_nothing_behind", Victim::Client);
}
