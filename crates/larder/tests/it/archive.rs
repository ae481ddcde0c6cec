//! Volumes with an archive on an S3-compatible store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_testkit::Versitygw;

use crate::harness::{Mount, eventually, larder, pattern, said};
use crate::memory::explained;
use crate::server::Server;
use crate::several_disks::{Disk, Volume, refusal, status};

/// Bytes in memory until they are in the archive, a second after they were written.
const CLASSES: &str = "[class.kept]\nlike = 'volatile'\nclose = 'shared'\narchive = '1s'\n";

/// A volume with a memory disk, and a store.
struct World {
    store: Versitygw,
    volume: Volume,
    /// Has the classes.
    rules: PathBuf,
}

impl World {
    fn new() -> World {
        World::of(Volume::with_memory_disk())
    }

    fn of(mut volume: Volume) -> World {
        let store = Versitygw::start().unwrap();
        volume.disks.iter_mut().for_each(Disk::start);
        let rules = volume.dir.path().join("rules.toml");
        fs::write(&rules, CLASSES).unwrap();
        World { store, volume, rules }
    }

    /// A file with the keys of the store's account.
    fn credentials(&self, secret: &str) -> String {
        let path = self.volume.dir.path().join(format!("credentials-{secret}"));
        let access = Versitygw::ACCESS;
        let text =
            format!("[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The options of commands that use volume and store.
    fn options(&self, secret: &str) -> [String; 8] {
        let (bucket, credentials) = (Versitygw::BUCKET, self.credentials(secret));
        [
            "--engine".to_owned(),
            self.volume.engine(),
            "--archive".to_owned(),
            format!("s3://{bucket}/office"),
            "--archive-endpoint".to_owned(),
            self.store.endpoint(),
            "--archive-credentials".to_owned(),
            credentials,
        ]
    }

    fn serve(&self, secret: &str) -> Server {
        self.serve_with(secret, &[])
    }

    fn serve_with(&self, secret: &str, more: &[&str]) -> Server {
        let options = self.options(secret);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = Server::meta(&[&options, more].concat());
        let last = self.volume.disks.len() - 1;
        eventually("all disks are there", || status(&server)["disks"][last]["state"] == "up");
        server
    }

    fn rules(&self) -> String {
        format!("rules={}", self.rules.display())
    }

    /// How many objects the store has.
    fn objects(&self) -> usize {
        files(&self.store.bucket().join("office"))
    }
}

fn files(below: &Path) -> usize {
    let Ok(entries) = fs::read_dir(below) else { return 0 };
    let count = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => files(&entry.path()),
        false => 1,
    };
    entries.flatten().map(count).sum()
}

/// Whether the present versions of so many files are in the archive, and no others.
fn is_archived(server: &Server, files: u64) -> bool {
    let told = status(server)["archive"].clone();
    (&told["held_files"], &told["due_files"], &told["unneeded"])
        == (&files.into(), &0.into(), &0.into())
}

/// Files in memory alone are read after that memory is lost, since the archive has them; what it
/// does not have in time is on a disk by then; and of a removed file nothing stays there.
#[test]
fn an_archived_file_outlives_the_memory_that_it_is_in() {
    let mut world = World::new();
    let server = world.serve(Versitygw::SECRET);
    let (small, large) = (pattern(1, 5000), pattern(2, (9 << 20) + 5));
    let mount = Mount::new(&server, &[&world.rules(), "class=kept"]);
    fs::write(mount.path("small"), &small).unwrap();
    fs::write(mount.path("large"), &large).unwrap();
    eventually("both are archived", || is_archived(&server, 2));
    assert_eq!(world.objects(), 3, "two objects with bytes, and checksums of one");
    let on = |disk: usize, server: &Server| {
        status(server)["disks"][disk]["status"]["written_bytes"].clone()
    };
    assert_eq!(on(0, &server), 0, "they are in memory alone");

    world.volume.disks[1].kill();
    world.volume.disks[1].start();
    let other = Mount::plain(&server, &["hard"]);
    assert!(fs::read(other.path("small")).unwrap() == small);
    assert!(fs::read(other.path("large")).unwrap() == large);
    assert!(on(0, &server).as_u64().unwrap() >= 9 << 20, "it was written to a disk");
    let told = status(&server);
    assert!(told["lost"].as_array().unwrap().is_empty(), "{told}");

    world.store.kill().unwrap();
    fs::write(mount.path("small"), pattern(3, 5000)).unwrap();
    eventually("the memory disk is there", || status(&server)["disks"][1]["state"] == "up");
    fs::write(mount.path("new"), pattern(4, 5000)).unwrap();
    eventually("the store does not answer", || {
        status(&server)["archive"]["trouble"].as_str().is_some_and(|text| text.contains("answer"))
    });
    drop(mount);
    eventually("what the archive does not have in time is on a disk", || on(1, &server) == 0);
    world.volume.disks[1].kill();
    world.volume.disks[1].start();
    let third = Mount::plain(&server, &["hard"]);
    assert!(fs::read(third.path("small")).unwrap() == pattern(3, 5000));
    assert!(fs::read(third.path("new")).unwrap() == pattern(4, 5000));

    world.store.begin().unwrap();
    fs::remove_file(third.path("large")).unwrap();
    fs::remove_file(third.path("small")).unwrap();
    fs::remove_file(third.path("new")).unwrap();
    eventually("nothing is archived", || is_archived(&server, 0));
    assert_eq!(world.objects(), 0);
}

/// A volume has a memory disk and a store, and no other disk: what its class wants durable within a
/// second is in the store then, and outlives the memory. What the store did not get does not.
#[test]
fn memory_disks_and_a_store_are_a_volume() {
    let mut volume = Volume::with_copies(1, 0);
    volume.enrol(&["--memory"]).keep_in_memory();
    let mut world = World::of(volume);
    let classes = "[class.soon]\nlike = 'volatile'\nclose = 'shared'\ndurable = '1s'\n";
    fs::write(&world.rules, classes).unwrap();
    let server = world.serve_with(Versitygw::SECRET, &["--durable", "archive"]);
    let (small, large) = (pattern(1, 5000), pattern(2, (9 << 20) + 5));
    let mount = Mount::new(&server, &[&world.rules(), "class=soon"]);
    fs::write(mount.path("small"), &small).unwrap();
    fs::write(mount.path("large"), &large).unwrap();
    eventually("both are archived", || is_archived(&server, 2));
    assert_eq!(world.objects(), 3, "two objects with bytes, and checksums of one");
    assert_eq!(status(&server)["archive"]["is_durable"], true);
    assert_eq!(explained(&mount, "small")["durable"]["level"], "archive");

    world.volume.disks[0].kill();
    world.volume.disks[0].start();
    let other = Mount::plain(&server, &["hard"]);
    assert!(fs::read(other.path("small")).unwrap() == small);
    assert!(fs::read(other.path("large")).unwrap() == large);
    assert!(status(&server)["lost"].as_array().unwrap().is_empty());

    world.store.kill().unwrap();
    fs::write(mount.path("new"), &small).unwrap();
    eventually("it is due", || status(&server)["archive"]["late_ms"].as_u64() > Some(0));
    assert_eq!(explained(&mount, "new")["durable"]["level"], "shared");
    drop(mount);
    world.volume.disks[0].kill();
    world.volume.disks[0].start();
    let lost = fs::read(other.path("new")).unwrap_err().raw_os_error();
    assert_eq!(lost, Some(rustix::io::Errno::NOTRECOVERABLE.raw_os_error()));
    world.store.begin().unwrap();
    eventually("the others are there", || {
        fs::read(other.path("large")).is_ok_and(|it| it == large)
    });
}

/// The metadata server is killed while the store does not answer a put; the next server puts the
/// version, and nothing else stays in the store.
#[test]
fn a_put_goes_on_after_a_kill() {
    let mut world = World::new();
    let mut server = world.serve(Versitygw::SECRET);
    let mount = Mount::new(&server, &[&world.rules(), "class=kept"]);
    world.store.kill().unwrap();
    fs::write(mount.path("file"), pattern(1, (9 << 20) + 5)).unwrap();
    eventually("a put has begun", || status(&server)["archive"]["unneeded"] == 1);
    server.kill();
    world.store.begin().unwrap();
    server.restart();
    eventually("it is archived", || is_archived(&server, 1));
    fs::write(mount.path("file"), pattern(2, 5000)).unwrap();
    eventually("the next version is", || is_archived(&server, 1) && world.objects() == 1);

    // What no record names is found, and deleted by a repair; what is missing is found.
    drop(mount);
    server.kill();
    let volume = fs::read_dir(world.store.bucket().join("office")).unwrap().next().unwrap();
    let volume = volume.unwrap().path();
    let own = fs::read_dir(&volume).unwrap().next().unwrap().unwrap().path();
    let foreign = volume.join("00000000000000ff/0000000000000007");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("00000000"), "nobody's").unwrap();
    let check = |option: &str| {
        let mut check = larder();
        check.args(["volume", "check", option]).args(world.options(Versitygw::SECRET));
        let done = check.output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let says = "the archive has version 7 of file 255, which nobody needs";
    let (code, told) = check("-n");
    assert!(code == Some(4) && told.contains(says), "{told}");
    let (code, told) = check("--repair");
    assert!(code == Some(1) && told.contains(says) && world.objects() == 1, "{told}");
    assert_eq!(check("-n").0, Some(0));
    fs::remove_dir_all(own).unwrap();
    let (code, told) = check("-n");
    assert!(code == Some(4) && told.contains("the archive lacks version"), "{told}");
}

/// A store that refuses the keys needs somebody, and says why; with the right ones what is due is
/// archived.
#[test]
fn wrong_keys_of_an_archive_are_told() {
    let world = World::new();
    let mut server = world.serve("not-this-one");
    let mount = Mount::new(&server, &[&world.rules(), "class=kept"]);
    fs::write(mount.path("file"), pattern(1, 5000)).unwrap();
    eventually("somebody is needed", || status(&server)["archive"]["needs_somebody"] == true);
    let told = status(&server)["archive"].clone();
    assert!(told["trouble"].as_str().unwrap().contains("check the credentials"), "{told}");
    server.kill();
    let (wrong, right) = (world.credentials("not-this-one"), world.credentials(Versitygw::SECRET));
    server.restart_with(&wrong, &right);
    eventually("it is archived", || is_archived(&server, 1));
}

/// A mount whose class has level archive is refused in one line if its volume has none, and the
/// options of an archive are read before anything is served.
#[test]
fn a_class_with_an_archive_needs_one() {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    let rules = volume.dir.path().join("rules.toml");
    fs::write(&rules, CLASSES).unwrap();
    let server = Server::meta(&["--engine", &volume.engine()]);
    let mount = Mount::unmounted(&server, &[&format!("rules={}", rules.display()), "class=kept"]);
    let refused = refusal(&mut mount.command());
    assert!(refused.contains("class kept: the volume has no level archive"), "{refused}");
    let mut wrong = larder();
    wrong.args(["meta", "--engine", &volume.engine(), "--archive", "backup"]);
    let refused = refusal(&mut wrong);
    assert!(refused.contains("write s3://BUCKET"), "{refused}");
}

/// A class that is set for a file which exists has that archived within its time, and no other
/// file; `larder explain` tells whether the archive has it, when it is due there, and for how long
/// it has been, and counts on the archive only if it has the present version. So does the loss of
/// the memory disk.
#[test]
fn a_class_that_is_set_archives_what_is_there_and_explain_tells() {
    let mut world = World::new();
    let server = world.serve(Versitygw::SECRET);
    let mount = Mount::new(&server, &[&world.rules(), "class=volatile"]);
    let (bytes, other) = (pattern(1, 5000), pattern(2, 5000));
    fs::write(mount.path("file"), &bytes).unwrap();
    fs::write(mount.path("other"), &other).unwrap();
    let before = explained(&mount, "file");
    assert!(before["archive"].is_null() && before["durable"]["level"] == "shared", "{before}");

    world.store.kill().unwrap();
    let path = mount.path("file");
    assert_eq!(said(&mount, &["class", "set", "kept", path.to_str().unwrap()]).0, Some(0));
    let due = explained(&mount, "file")["archive"].clone();
    assert!(due["has_present"] == false && due["due_ms"].as_u64().unwrap() <= 1000, "{due}");
    eventually("it has been due", || explained(&mount, "file")["archive"]["late_ms"] != 0);
    let (_, text) = said(&mount, &["explain", path.to_str().unwrap()]);
    let late = "  archive  does not have it, and it has been due for ";
    assert!(text.contains(late) && text.contains("  level    shared"), "{text}");

    world.store.begin().unwrap();
    eventually("it is archived", || explained(&mount, "file")["archive"]["has_present"] == true);
    let after = explained(&mount, "file");
    assert_eq!(after["durable"]["level"], "archive", "{after}");
    let years = after["mean_time_to_loss_s"].as_u64().unwrap() / (365 * 24 * 3600);
    assert_eq!(years, 1_000_000, "{after}");
    let (_, text) = said(&mount, &["explain", path.to_str().unwrap()]);
    let lost_by = "lost by a restart of memory disk 2 and the loss of the archive";
    assert!(text.contains("  archive  has it as it is now\n") && text.contains(lost_by), "{text}");
    assert!(is_archived(&server, 1), "the other one is not to be there");

    // It is due again when it is changed.
    fs::write(&path, &other).unwrap();
    eventually("the next version is", || is_archived(&server, 1));
    drop(mount);
    world.volume.disks[1].kill();
    world.volume.disks[1].start();
    let third = Mount::plain(&server, &["hard"]);
    assert!(fs::read(third.path("file")).unwrap() == other);
    let lost = fs::read(third.path("other")).unwrap_err().raw_os_error();
    assert_eq!(lost, Some(rustix::io::Errno::NOTRECOVERABLE.raw_os_error()));
}
