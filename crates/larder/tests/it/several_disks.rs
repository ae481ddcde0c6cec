//! A volume on three disks: `larder volume`, `larder disk enrol`, `larder meta`, and a mount.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::groups::Group;
use crate::harness::{Mount, eventually, larder, pattern, run, scratch, stop, succeed, tree};
use crate::ports::free_address;
use crate::server::Server;

const MIB: u64 = 1 << 20;

/// A volume of several disks.
pub(crate) struct Volume {
    pub(crate) dir: TempDir,
    pub(crate) disks: Vec<Disk>,
}

/// One of them, until it is dropped.
pub(crate) struct Disk {
    pub(crate) address: String,
    pub(crate) key: PathBuf,
    pub(crate) store: PathBuf,
    /// The cgroup that it runs in, if it has one of its own.
    pub(crate) group: Option<Group>,
    process: Option<Child>,
}

impl Disk {
    fn command(&self) -> Command {
        self.command_with("64M")
    }

    /// What serves it with this size.
    pub(crate) fn command_with(&self, size: &str) -> Command {
        let mut command = larder();
        command.args(["disk", "--size", size, "--listen", &self.address]);
        command.arg("--key").arg(&self.key).arg("--store").arg(&self.store);
        command
    }

    pub(crate) fn start(&mut self) {
        let command = self.command();
        let mut command =
            self.group.as_ref().map(|group| group.running(&command)).unwrap_or(command);
        self.process = Some(command.stdin(Stdio::null()).spawn().unwrap());
        eventually("the disk listens", || std::net::TcpStream::connect(&self.address).is_ok());
    }

    /// From its next start on its bytes are in memory.
    pub(crate) fn keep_in_memory(&mut self) {
        self.store = PathBuf::from("memory");
    }

    /// Stops it at an arbitrary moment: it is silent as long as this exists.
    pub(crate) fn freeze(&self) -> Frozen {
        let process = self.process.as_ref().unwrap().id();
        stop(process);
        Frozen(process)
    }

    /// Whether its process runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// A disk's process, which does not run.
pub(crate) struct Frozen(u32);

impl Drop for Frozen {
    fn drop(&mut self) {
        run("kill", &["-CONT", &self.0.to_string()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

impl Volume {
    /// A volume with this many disks that do not run.
    fn new(disks: usize) -> Volume {
        Volume::with_copies(1, disks)
    }

    /// The same with this many copies.
    pub(crate) fn with_copies(copies: u32, disks: usize) -> Volume {
        Volume::created(&["--copies", &copies.to_string()], disks)
    }

    /// The same with these options of `larder volume create`.
    pub(crate) fn created(options: &[&str], disks: usize) -> Volume {
        let mut volume = Volume { dir: scratch("larder-disks-"), disks: Vec::new() };
        let mut create = larder();
        create.args(["volume", "create", "--engine", &volume.engine()]);
        succeed(create.args(options));
        for _ in 0..disks {
            volume.enrol(&[]);
        }
        volume
    }

    /// A volume with a disk and a memory disk, which do not run.
    pub(crate) fn with_memory_disk() -> Volume {
        let mut volume = Volume::with_copies(1, 1);
        volume.enrol(&["--memory"]);
        volume.disks[1].keep_in_memory();
        volume
    }

    /// Adds a disk that does not run.
    pub(crate) fn enrol(&mut self, options: &[&str]) -> &mut Disk {
        let number = self.disks.len();
        let path = |what: &str| self.dir.path().join(format!("{what}{number}"));
        let (key, store) = (path("key"), path("store"));
        let disk =
            Disk { address: free_address().to_string(), key, store, group: None, process: None };
        succeed(self.enrolling(&disk.key, &disk.address).args(options));
        self.disks.push(disk);
        &mut self.disks[number]
    }

    pub(crate) fn engine(&self) -> String {
        format!("embedded:{}", self.dir.path().join("meta").display())
    }

    pub(crate) fn enrolling(&self, key: &Path, address: &str) -> Command {
        let mut command = larder();
        command.args(["disk", "enrol", "--size", "64M", "--address", address]).arg(key);
        command.args(["--engine", &self.engine()]);
        command
    }

    /// Adds a disk that does not run, by the metadata server.
    pub(crate) fn enrol_at(&mut self, server: &Server, options: &[&str]) -> &mut Disk {
        let number = self.disks.len();
        let path = |what: &str| self.dir.path().join(format!("{what}{number}"));
        let (key, store) = (path("key"), path("store"));
        let disk =
            Disk { address: free_address().to_string(), key, store, group: None, process: None };
        let mut enrolling = server.larder_here();
        enrolling.args(["disk", "enrol", "--size", "64M", "--address", &disk.address]);
        enrolling.arg(&disk.key).args(["--engine", &self.engine()]);
        succeed(enrolling.args(options));
        self.disks.push(disk);
        &mut self.disks[number]
    }

    pub(crate) fn check(&self) -> Command {
        let mut command = larder();
        command.args(["volume", "check", "--engine", &self.engine()]);
        command
    }
}

pub(crate) fn status(server: &Server) -> serde_json::Value {
    let mut command = server.larder_here();
    command.args(["volume", "status", "--json", &server.address().to_string()]);
    serde_json::from_slice(&succeed(&mut command).stdout).unwrap()
}

/// The line with which a command fails.
pub(crate) fn refusal(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.lines().count() == 1, "{said}");
    said
}

/// Data is on all disks. Data on a killed disk is not available until it is back; the rest is read,
/// and new files are made, in the meantime. When everything was killed and restarted, everything is
/// there.
#[test]
fn a_disk_that_is_away_holds_up_what_lies_on_it_and_nothing_else() {
    let mut volume = Volume::new(3);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let one = Mount::new(&server, &[]);
    let name = |number: u64| format!("f{number}");
    for number in 0..33 {
        fs::write(one.path(&name(number)), pattern(number, 4096)).unwrap();
    }
    fs::write(one.path("large"), pattern(99, 12 << 20)).unwrap();
    let told = status(&server);
    for disk in told["disks"].as_array().unwrap() {
        let about = &disk["status"];
        assert!(about["written_bytes"].as_u64().unwrap() >= 4 * MIB, "{told}");
        assert_eq!(about["setup"], "secure");
    }
    assert_eq!(told["size_bytes"].as_u64().unwrap(), 3 * 64 * MIB);

    // It has read from each disk.
    let other = Mount::plain(&server, &["hard"]);
    for number in 30..33 {
        assert!(fs::read(other.path(&name(number))).unwrap() == pattern(number, 4096));
    }
    volume.disks[1].kill();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..30 {
            let (path, done) = (other.path(&name(number)), &done);
            scope.spawn(move || {
                assert!(fs::read(path).unwrap() == pattern(number, 4096));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("the other disks are read", || done.load(Ordering::Relaxed) == 20);
        eventually("the metadata server has noticed", || {
            let told = status(&server);
            assert!(!told["disks"][2]["status"].is_null());
            told["disks"][1]["is_there"] == false && told["disks"][1]["status"].is_null()
        });
        let mut new = fs::File::create(one.path("new")).unwrap();
        new.write_all(&pattern(7, 5 << 20)).unwrap();
        new.sync_all().unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 20, "one disk is away");
        volume.disks[1].start();
    });

    let before = tree(&one.path(""));
    volume.disks.iter_mut().for_each(Disk::kill);
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
    volume.disks.iter_mut().for_each(Disk::start);
    server.restart();
    assert!(refusal(&mut volume.check()).contains("another process"));
    let third = Mount::plain(&server, &[]);
    let after = tree(&third.path(""));
    let names = |tree: &BTreeMap<PathBuf, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    for (path, bytes) in &before {
        let differs = bytes.iter().zip(&after[path]).position(|(one, other)| one != other);
        let lengths = (bytes.len(), after[path].len());
        assert!(differs.is_none() && lengths.0 == lengths.1, "{path:?}: {differs:?} {lengths:?}");
    }
}

/// A disk is added while a mount works, and gets what is written from then on; `larder status`
/// shows the servers, which clients use them, and why a disk is away.
#[test]
fn a_disk_is_added_while_the_volume_is_served_and_status_tells() {
    let mut volume = Volume::new(1);
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("before"), pattern(1, 3 << 20)).unwrap();
    volume.enrol_at(&server, &[]);
    let key = fs::read(&volume.disks[1].key).unwrap();
    assert_eq!(fs::read(volume.dir.path().join("meta/keys/disk2.key")).unwrap(), key);

    let of = |servers: &serde_json::Value, kind: &str| -> Vec<serde_json::Value> {
        let all = servers.as_array().unwrap().iter();
        all.filter(|one| one["server"] == kind).cloned().collect()
    };
    let told = || {
        let mut command = server.larder_here();
        let done = succeed(command.args(["status", "--json"]));
        let all = serde_json::from_slice(&done.stdout).unwrap();
        of(&all, "volume").pop().unwrap()
    };
    eventually("it is known that the disk is away", || {
        told()["disks"][1]["problem"].as_str().is_some_and(|why| why.contains("refused"))
    });
    let about = told();
    assert_eq!(
        (&about["disks"][0]["state"], &about["disks"][1]["state"]),
        (&"up".into(), &"away".into())
    );
    assert!(about["sessions"].as_u64().unwrap() >= 1 && about["leases"].as_u64().unwrap() >= 1);
    assert_eq!(about["size_bytes"].as_u64().unwrap(), 2 * 64 * MIB);

    volume.disks[1].start();
    eventually("the disk is used", || told()["disks"][1]["state"] == "up");
    fs::write(mount.path("after"), pattern(2, 6 << 20)).unwrap();
    let about = told();
    let written = about["disks"][1]["status"]["written_bytes"].as_u64().unwrap();
    assert!(
        written >= 3 * MIB && about["disks"][1]["free_bytes"].as_u64().unwrap() < 64 * MIB,
        "{about}"
    );
    let mut command = server.larder_here();
    let shown = succeed(command.args(["status", &server.address().to_string()]));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("setup     secure") && shown.contains("disk 2    "), "{shown}");

    // Another one's key.
    let other = Volume::new(1);
    volume.disks[1].kill();
    let own = fs::read(&volume.disks[1].key).unwrap();
    fs::copy(&other.disks[0].key, &volume.disks[1].key).unwrap();
    let strange_store = refusal(&mut volume.disks[1].command());
    assert!(strange_store.contains("its volume is"), "{strange_store}");
    fs::write(&volume.disks[1].key, own).unwrap();
    volume.disks[1].start();

    let before = tree(&mount.path(""));
    drop(mount);
    server.kill();
    volume.disks.iter_mut().for_each(Disk::kill);
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
    volume.disks.iter_mut().for_each(Disk::start);
    server.restart();
    let mount = Mount::plain(&server, &[]);
    assert!(tree(&mount.path("")) == before);
}

/// A second metadata server on a store that one uses ends with one line, and the first one
/// serves on, also after a restart.
#[test]
fn a_second_metadata_server_on_a_store_ends_and_the_first_one_serves_on() {
    let mut volume = Volume::new(1);
    volume.disks[0].start();
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("before"), pattern(1, 3 << 20)).unwrap();
    let mut second = larder();
    second.args(["meta", "--listen", &free_address().to_string(), "--engine", &volume.engine()]);
    for (round, restarts) in [(0, true), (1, false)] {
        let said = refusal(&mut second);
        assert!(said.contains("another process has the store open"), "{said}");
        let name = format!("after{round}");
        fs::write(mount.path(&name), pattern(round, 50_000)).unwrap();
        let other = Mount::plain(&server, &[]);
        assert!(fs::read(other.path(&name)).unwrap() == pattern(round, 50_000));
        assert!(fs::read(other.path("before")).unwrap() == pattern(1, 3 << 20));
        drop(other);
        if restarts {
            server.kill();
            server.restart();
        }
    }
    drop(mount);
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}

/// An empty disk is removed while the volume is served and while it is not; one with data is not,
/// and no disk gets the number of another. Work goes on meanwhile.
#[test]
fn an_empty_disk_is_removed_and_its_number_is_not_given_again() {
    let mut volume = Volume::new(1);
    volume.disks[0].start();
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("file"), pattern(1, 3 << 20)).unwrap();
    volume.enrol_at(&server, &[]);
    let key = |number: u32| volume.dir.path().join(format!("meta/keys/disk{number}.key"));
    let numbers = |server: &Server| -> Vec<u64> {
        let told = status(server);
        told["disks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|disk| disk["disk"].as_u64().unwrap())
            .collect()
    };
    let remove = |server: Option<&Server>, number: &str| {
        let mut command = server.map_or_else(larder, Server::larder_here);
        command.args(["disk", "remove", number, "--engine", &volume.engine()]);
        command
    };
    assert_eq!(numbers(&server), [1, 2]);
    let said = refusal(&mut remove(Some(&server), "7"));
    assert!(said.contains("the volume has no disk 7"), "{said}");
    let said = succeed(&mut remove(Some(&server), "2")).stdout;
    assert_eq!(said, b"disk 2 does not belong to the volume any more\n");
    assert_eq!(numbers(&server), [1]);
    let said = refusal(&mut remove(Some(&server), "1"));
    assert!(said.contains("and the disks that stay have 0 free bytes: add a disk"), "{said}");
    assert!(!key(2).exists() && key(1).exists());
    assert!(fs::read(mount.path("file")).unwrap() == pattern(1, 3 << 20));
    fs::write(mount.path("more"), pattern(2, 3 << 20)).unwrap();
    let added = succeed(
        server
            .larder_here()
            .args(["disk", "enrol", "--size", "64M", "--address", "127.0.0.1:1"])
            .arg(volume.dir.path().join("another"))
            .args(["--engine", &volume.engine()]),
    );
    assert!(added.stdout.starts_with(b"disk 3 of volume "), "{added:?}");
    drop(mount);
    server.kill();
    let said = succeed(remove(None, "3").arg("--json")).stdout;
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&said).unwrap(),
        serde_json::json!({ "disk": 3, "state": "gone", "used_bytes": 0 })
    );
    assert!(!key(3).exists());
    let said = refusal(&mut remove(None, "1"));
    assert!(said.contains("and the disks that stay have 0 free bytes: add a disk"), "{said}");
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
    server.restart();
    assert_eq!(numbers(&server), [1]);
    let mount = Mount::plain(&server, &[]);
    assert!(fs::read(mount.path("more")).unwrap() == pattern(2, 3 << 20));
}

/// A disk with less space than it was enrolled with is not used, and `larder status` and the log
/// say so. Started again with enough it is used.
#[test]
fn a_disk_that_is_smaller_than_enrolled_is_not_used() {
    let mut volume = Volume::new(1);
    let disk = &mut volume.disks[0];
    let mut command = larder();
    command.args(["disk", "--size", "32M", "--store", "memory", "--listen", &disk.address]);
    disk.process = Some(command.arg("--key").arg(&disk.key).stdin(Stdio::null()).spawn().unwrap());
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("it is told", || {
        let told = status(&server);
        let problem = told["disks"][0]["problem"].as_str().unwrap_or_default();
        problem.contains("was enrolled with 67108864")
    });
    assert_eq!(server.log().matches("was enrolled with 67108864").count(), 1);
    volume.disks[0].kill();
    volume.disks[0].start();
    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("a"), pattern(1, 50_000)).unwrap();
    assert!(fs::read(Mount::plain(&server, &[]).path("a")).unwrap() == pattern(1, 50_000));
}

/// Invalid arguments are refused in one line, and change nothing.
#[test]
fn a_volume_that_cannot_be_made_or_served_says_why_in_one_line() {
    let volume = Volume::new(1);
    let check = |said: String, word: &str| assert!(said.contains(word), "{said}");
    let engine = volume.engine();
    check(refusal(larder().args(["volume", "create", "--engine", &engine])), "it is not empty");
    let nowhere = format!("{engine}-not");
    let meta = |engine: &str| {
        let mut command = larder();
        command.args(["meta", "--listen", "127.0.0.1:0", "--engine", engine]);
        command
    };
    check(refusal(&mut meta(&nowhere)), "larder volume create");
    assert!(!volume.dir.path().join("meta-not").exists());
    for (typed, word) in [
        ("postgres:host=db", "another machine"),
        ("postgres://ann:hush@localhost/volumes", "a password on the command line"),
        ("postgres:hosts=a", "use postgres://"),
    ] {
        assert_eq!(meta(typed).output().unwrap().status.code(), Some(2));
        let said = refusal(&mut meta(typed));
        assert!(said.contains(word) && !said.contains("hush"), "{said}");
    }
    let away = "postgres:host=/nowhere user=larder dbname=volumes";
    check(refusal(&mut meta(away)), "cannot use the volume in database volumes of /nowhere");
    check(refusal(larder().args(["volume", "create", "--engine", away])), "by --keys DIR");
    let disk = &volume.disks[0];
    check(refusal(&mut volume.enrolling(&disk.key, "127.0.0.1:9")), "cannot make");
    let key = volume.dir.path().join("other");
    check(refusal(&mut volume.enrolling(&key, &disk.address)), "disk 1 is at");
    assert!(!key.exists());

    let held = volume.dir.path().join("meta/keys/disk1.key");
    assert_eq!(fs::metadata(&held).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&held).unwrap(), fs::read(&disk.key).unwrap());
    fs::set_permissions(&held, fs::Permissions::from_mode(0o640)).unwrap();
    check(refusal(&mut meta(&engine)), "chmod 600 it");
    fs::set_permissions(&held, fs::Permissions::from_mode(0o600)).unwrap();
    let another = Volume::new(1);
    fs::copy(&another.disks[0].key, &held).unwrap();
    check(refusal(&mut meta(&engine)), "it is of volume");
}
