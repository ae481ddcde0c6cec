//! A disk leaves its volume while a mount works.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;

use serde_json::Value;

use crate::harness::{Mount, SOON, eventually, pattern, succeed, tree};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, refusal};

const MIB: u64 = 1 << 20;

/// What the metadata server says, as soon as it can be asked.
fn told(server: &Server) -> Value {
    let mut told = Value::Null;
    eventually("the metadata server answers", || {
        let mut command = server.larder_here();
        command.args(["volume", "status", "--json", &server.address().to_string()]);
        let done = command.output().unwrap();
        if done.status.success() {
            told = serde_json::from_slice(&done.stdout).unwrap();
        }
        done.status.success()
    });
    told
}

/// What it says of a disk; nothing if the volume has no such disk.
fn about(server: &Server, disk: u64) -> Option<Value> {
    let told = told(server);
    let disks = told["disks"].as_array().unwrap();
    disks.iter().find(|one| one["disk"] == disk).cloned()
}

fn moved(server: &Server, disk: u64) -> u64 {
    about(server, disk).map_or(0, |about| about["leaving"]["moved_bytes"].as_u64().unwrap_or(0))
}

fn remove(server: &Server, volume: &Volume, options: &[&str]) -> Command {
    let mut command = server.larder_here();
    command.args(["disk", "remove", "2", "--engine", &volume.engine()]).args(options);
    command
}

fn removed(server: &Server, volume: &Volume, options: &[&str]) -> Value {
    let mut command = remove(server, volume, options);
    serde_json::from_slice(&succeed(command.arg("--json")).stdout).unwrap()
}

/// In the environment of the process that works on a mount: the mountpoint.
const WORK: &str = "LARDER_LEAVING_WORK";

const LARGE: u64 = 6 * MIB;
const SMALL_FILES: u64 = 24;

/// Writes parts of one file in place, and other files anew, and reads them; as many rounds as the
/// process that has it work asks for.
struct Worker {
    /// None where only the content is of interest.
    at: Option<(PathBuf, fs::File)>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Worker {
    /// The files before the first round, and no work on them.
    fn before() -> Worker {
        let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        for number in 0..SMALL_FILES {
            files.insert(format!("f{number}").into(), pattern(number, 30_000));
        }
        files.insert("large".into(), pattern(99, LARGE as usize));
        // Enough that is not written again, so that the disk is not emptied by its writers.
        for number in 0..5 {
            files.insert(format!("still{number}").into(), pattern(number + 7, 8 << 20));
        }
        Worker { at: None, files }
    }

    fn round(&mut self, round: u64) {
        let large = self.files.get_mut(Path::new("large")).unwrap();
        for turn in 0..4 {
            // Parts of blocks, and more than a block.
            let at = (round * 7 + turn) * 77_777 % (LARGE - 20_000);
            let bytes = pattern(round * 4 + turn, 1 + (round * 1117 % 9000) as usize);
            if let Some((_, open)) = &self.at {
                open.write_all_at(&bytes, at).unwrap();
            }
            large[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        let name = PathBuf::from(format!("f{}", round % SMALL_FILES));
        let bytes = pattern(round + 1000, 100 + (round * 7919 % 60_000) as usize);
        if let Some((dir, open)) = &self.at {
            open.sync_all().unwrap();
            let mut read = vec![0; LARGE as usize];
            open.read_exact_at(&mut read, 0).unwrap();
            let differs = read.iter().zip(large.iter()).position(|(one, other)| one != other);
            assert_eq!(differs, None, "round {round}");
            fs::write(dir.join(&name), &bytes).unwrap();
            assert!(fs::read(dir.join(&name)).unwrap() == bytes, "round {round}");
        }
        self.files.insert(name, bytes);
    }
}

/// The worker, if this is its process: it has files of the mount open, which a process that starts
/// servers must not. Otherwise it does nothing.
#[test]
fn the_process_that_works_while_a_disk_leaves() {
    let Some(dir) = std::env::var_os(WORK).map(PathBuf::from) else { return };
    let open = fs::File::options().read(true).write(true).open(dir.join("large")).unwrap();
    let mut worker = Worker { at: Some((dir, open)), ..Worker::before() };
    for (round, asked) in std::io::stdin().lines().enumerate() {
        asked.unwrap();
        worker.round(round as u64);
        println!("\nround");
    }
}

/// The process that works, as its parent sees it.
struct Working {
    process: Child,
    asked: ChildStdin,
    done: Receiver<()>,
    rounds: u64,
}

impl Working {
    fn begin(dir: PathBuf) -> Working {
        let name = "leaving::the_process_that_works_while_a_disk_leaves";
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(WORK, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (told, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let rounds = lines.map_while(Result::ok).filter(|line| line == "round");
            // Nobody listens after the test.
            rounds.for_each(|_| _ = told.send(()));
        });
        let asked = process.stdin.take().unwrap();
        Working { process, asked, done, rounds: 0 }
    }

    /// Has it begin another round.
    fn ask(&mut self) {
        self.asked.write_all(b"\n").unwrap();
        self.rounds += 1;
    }

    /// Waits for the end of a round.
    fn wait(&mut self) {
        self.done.recv_timeout(SOON).expect("the worker goes on");
    }

    fn work(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.ask();
            self.wait();
        }
    }

    /// Ends it. Returns what the files contain.
    fn end(mut self) -> BTreeMap<PathBuf, Vec<u8>> {
        let rounds = self.rounds;
        drop(self.asked);
        assert!(self.process.wait().unwrap().success());
        let mut worker = Worker::before();
        (0..rounds).for_each(|round| worker.round(round));
        worker.files
    }
}

fn same(mount: &Mount, files: &BTreeMap<PathBuf, Vec<u8>>) {
    let has = tree(&mount.path(""));
    let has: BTreeMap<_, _> = has
        .into_iter()
        .map(|(path, bytes)| (PathBuf::from(path.file_name().unwrap()), bytes))
        .collect();
    assert!(has.keys().eq(files.keys()), "{:?} {:?}", has.keys(), files.keys());
    for (path, bytes) in files {
        let differs = bytes.iter().zip(&has[path]).position(|(one, other)| one != other);
        assert!(differs.is_none() && bytes.len() == has[path].len(), "{path:?}: {differs:?}");
    }
}

/// A mount writes and verifies while a disk leaves: the metadata server is killed in the middle,
/// twice, and so is the disk; the disk is kept once, and leaves again. In the end it is not the
/// volume's any more, and everything is there without it.
#[test]
fn a_disk_leaves_while_a_mount_works_and_everything_is_killed() {
    let mut volume = Volume::with_copies(1, 2);
    volume.disks.iter_mut().for_each(Disk::start);
    // At that rate the next move begins half a minute after one of 4 MiB.
    let slow = "128KB/s";
    let mut server = Server::meta(&["--engine", &volume.engine(), "--resilver", slow]);
    let mount = Mount::new(&server, &["hard"]);
    for (name, bytes) in &Worker::before().files {
        fs::write(mount.path(name.to_str().unwrap()), bytes).unwrap();
    }
    let mut working = Working::begin(mount.path(""));
    working.work(3);
    assert!(refusal(&mut remove(&server, &volume, &["--cancel"])).contains("is not leaving"));
    let said = removed(&server, &volume, &[]);
    assert_eq!((&said["disk"], &said["state"]), (&2.into(), &"leaving".into()));
    assert!(said["used_bytes"].as_u64().unwrap() > 8 * MIB, "{said}");
    eventually("something is moved", || moved(&server, 2) > 0);
    working.work(5);
    for _ in 0..2 {
        // In the middle of a round.
        working.ask();
        server.kill();
        server.restart();
        let now = about(&server, 2).unwrap();
        assert!(now["leaving"]["left_bytes"].as_u64().unwrap() > 0, "{now}");
        working.wait();
        eventually("more is moved", || moved(&server, 2) > 0);
        working.work(3);
    }
    eventually("it is said to leave", || about(&server, 2).unwrap()["state"] == "leaving");
    let mut shown = server.larder_here();
    shown.args(["status", &server.address().to_string()]);
    let shown = String::from_utf8(succeed(&mut shown).stdout).unwrap();
    assert!(shown.contains("leaving   ") && shown.contains(" were moved"), "{shown}");

    working.ask();
    assert_eq!(removed(&server, &volume, &["--cancel"])["state"], "stays");
    assert_eq!(about(&server, 2).unwrap()["leaving"], Value::Null);
    working.wait();
    working.work(5);
    working.ask();
    assert_eq!(removed(&server, &volume, &[])["state"], "leaving");
    working.wait();
    working.ask();
    volume.disks[1].kill();
    volume.disks[1].start();
    working.wait();
    working.work(2);
    assert!(about(&server, 2).is_some());
    working.ask();
    server.kill();
    server.restart_with(slow, "200MB/s");
    working.wait();
    while about(&server, 2).is_some() {
        working.work(1);
    }
    working.work(3);
    let files = working.end();
    eventually("its key is removed", || !volume.dir.path().join("meta/keys/disk2.key").exists());
    assert!(refusal(&mut remove(&server, &volume, &[])).contains("has no disk 2"));
    volume.disks[1].kill();
    let other = Mount::plain(&server, &["hard"]);
    same(&other, &files);
    same(&mount, &files);
    drop((mount, other));
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}
