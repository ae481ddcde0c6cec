//! Memory disks of volumes, on mounts.

mod in_several;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::groups::Group;
use crate::harness::{Mount, eventually, larder, pattern, said, scratch, succeed};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, refusal, status};

const MIB: u64 = 1 << 20;

/// Bytes that were ever written to a disk and not cleared, as it reports them.
pub(crate) fn written(told: &serde_json::Value, at: usize) -> u64 {
    told["disks"][at]["status"]["written_bytes"].as_u64().unwrap()
}

/// With `larder serve --memory`, and with `larder disk enrol --memory`: the volume is full when its
/// other disk is, and the memory disk is empty.
#[test]
fn memory_disks_are_told_apart_and_stay_empty() {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    for mut server in [
        Server::volume(&["--size", "64M", "--memory", "64M"]),
        Server::meta(&["--engine", &volume.engine()]),
    ] {
        let mount = Mount::new(&server, &[]);
        eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
        fs::write(mount.path("most"), pattern(1, 60 << 20)).unwrap();
        let mut more = fs::File::create(mount.path("more")).unwrap();
        let written_more = more.write_all(&pattern(2, 8 << 20)).and_then(|()| more.sync_all());
        let more = written_more.unwrap_err();
        assert_eq!(more.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        let told = status(&server);
        assert_eq!(
            (&told["disks"][0]["is_memory"], &told["disks"][1]["is_memory"]),
            (&false.into(), &true.into())
        );
        assert_eq!(told["size_bytes"], 64 * MIB);
        assert_eq!(
            (&told["memory_bytes"], &told["memory_free_bytes"]),
            (&(64 * MIB).into(), &(64 * MIB).into())
        );
        assert!(written(&told, 0) >= 60 * MIB && written(&told, 1) == 0, "{told}");
        let mut shown = server.larder_here();
        shown.args(["volume", "status", &server.address().to_string()]);
        let shown = String::from_utf8(succeed(&mut shown).stdout).unwrap();
        assert!(shown.contains("memory    64.0 MiB, 64.0 MiB free"), "{shown}");
        drop(mount);
        server.kill();
    }
}

/// How many lines of the metadata server's log tell of a loss with a memory disk and have all these
/// words.
fn losses_logged(server: &Server, words: &[&str]) -> usize {
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("loss: a memory disk was started again"));
    let all = lines.map(|line| line.split_whitespace().collect::<Vec<&str>>());
    all.filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// A loss of so many bytes of two files is the only one that is reported.
fn is_reported_as_the_only_loss(server: &Server, bytes: i32) {
    let mut gauges = server.larder_here();
    gauges.args(["status", "--prometheus", &server.address().to_string()]);
    let gauges = String::from_utf8(succeed(&mut gauges).stdout).unwrap();
    let labels = format!("{{server=\"{}\"}}", server.address());
    for (name, value) in [("losses", 1), ("lost_files", 2), ("lost_bytes", bytes)] {
        let line = format!("larder_volume_{name}{labels} {value}\n");
        assert!(gauges.contains(&line), "{line} in {gauges}");
    }
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    let shown = String::from_utf8(succeed(&mut shown).stdout).unwrap();
    assert!(shown.contains(": disk 2: 3.00 MiB of 2 files lost\n"), "{shown}");
    let words = ["number=1", "disk=2", "files=2", &format!("bytes={bytes}")];
    eventually("the loss is logged", || losses_logged(server, &[]) > 0);
    let logged = (losses_logged(server, &words), losses_logged(server, &[]));
    assert_eq!(logged, (1, 1), "{}", server.log());
}

/// Class `volatile`: in memory alone, and visible to other mounts at once. After the memory disk
/// was restarted, a read reports that the bytes are lost, `volume status` lists the file once and
/// the loss once, the metadata server's log has one line about it, also after a restart of that
/// server, and the file can be rewritten and removed; files of class `edited` are unaffected.
#[test]
fn a_volatile_file_is_in_memory_and_its_loss_is_told() {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
    let (one, two) = (Mount::new(&server, &["class=volatile"]), Mount::new(&server, &[]));
    let (small, large) = (pattern(1, 5000), pattern(2, 3 << 20));
    fs::write(one.path("small"), &small).unwrap();
    fs::write(one.path("large"), &large).unwrap();
    let told = status(&server);
    assert!(written(&told, 0) == 0 && written(&told, 1) >= 3 * MIB, "{told}");
    assert!(fs::read(two.path("small")).unwrap() == small);
    assert!(fs::read(two.path("large")).unwrap() == large);
    fs::write(two.path("kept"), &small).unwrap();
    assert!(written(&status(&server), 0) >= 8192, "edited bytes are on the disk");
    // A writer of another class has its own bytes written to the disk, and no others.
    let file = fs::File::options().write(true).open(two.path("large")).unwrap();
    file.write_all_at(b"edited", 2 << 20).unwrap();
    drop(file);

    volume.disks[1].kill();
    volume.disks[1].start();
    let third = Mount::plain(&server, &["hard"]);
    let lost = |name: &str| fs::read(third.path(name)).unwrap_err().raw_os_error();
    let expected = Some(rustix::io::Errno::NOTRECOVERABLE.raw_os_error());
    assert_eq!((lost("small"), lost("large")), (expected, expected));
    assert!(fs::read(third.path("kept")).unwrap() == small);
    assert_eq!(fs::metadata(third.path("small")).unwrap().len(), 5000);
    let listed = |told: &serde_json::Value| -> Vec<String> {
        let all = told["lost"].as_array().unwrap().iter();
        all.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&status(&server)), ["/small", "/large"]);
    let told = status(&server)["losses"].clone();
    let bytes = 2 * 4096 + (3 << 20) - 4096;
    assert_eq!(told[0]["bytes"], bytes, "{told}: a block was written to the disk");
    assert_eq!((&told[0]["number"], &told[0]["files"]), (&1.into(), &2.into()));
    is_reported_as_the_only_loss(&server, bytes);

    fs::write(one.path("large"), &small).unwrap();
    assert!(fs::read(third.path("large")).unwrap() == small);
    fs::remove_file(third.path("small")).unwrap();
    assert_eq!(listed(&status(&server)), [] as [&str; 0]);
    server.kill();
    server.restart();
    eventually("the loss is told once", || status(&server)["losses"] == told);
    // By the next loss the server has looked at the disk since it was started again.
    eventually("there is something to lose", || {
        fs::write(one.path("more"), &small).unwrap();
        status(&server)["disks"][1]["status"]["written_bytes"].as_u64() > Some(0)
    });
    volume.disks[1].kill();
    volume.disks[1].start();
    let losses = || status(&server)["losses"].as_array().unwrap().clone();
    eventually("the next loss is told", || losses().len() == 2);
    assert_eq!((&losses()[0], &losses()[1]["number"]), (&told[0], &2.into()));
    eventually("the next loss is logged", || losses_logged(&server, &["number=2"]) > 0);
    let logged = (losses_logged(&server, &["number=1"]), losses_logged(&server, &[]));
    assert_eq!(logged, (1, 2), "{}", server.log());
}

/// Classes that let bytes be in memory for a time, for a long time and for good: those that are
/// due go to the disk and no others, and are not lost when the memory disk is. The metadata server
/// is killed between.
#[test]
fn what_is_due_goes_from_memory_to_the_disk_and_nothing_else_does() {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    let mut server = Server::meta(&["--engine", &volume.engine()]);
    let up = |server: &Server| status(server)["disks"][1]["state"] == "up";
    eventually("both disks are there", || up(&server));
    let rules = volume.dir.path().join("rules.toml");
    let classes = "[class.soon]\nlike = 'volatile'\ndurable = '1s'\n\
                   [class.later]\nlike = 'volatile'\ndurable = '20d'\n\
                   [[rule]]\nglob = '*.soon'\nclass = 'soon'\n\
                   [[rule]]\nglob = '*.later'\nclass = 'later'\n";
    fs::write(&rules, classes).unwrap();
    let mount = Mount::new(&server, &[&format!("rules={}", rules.display()), "class=volatile"]);
    let content = |number: u64| pattern(number, 5000 + number as usize * 100_000);
    let kinds = ["soon", "later", "never"];
    for (number, kind) in (0..9).flat_map(|number| kinds.map(|kind| (number, kind))) {
        fs::write(mount.path(&format!("f{number}.{kind}")), content(number)).unwrap();
    }
    fs::remove_file(mount.path("f8.later")).unwrap();
    let reader = Mount::plain(&server, &["hard"]);
    let held = fs::File::open(reader.path("f8.soon")).unwrap();
    held.read_exact_at(&mut [0; 10], 0).unwrap();
    let blocks = |length: usize| length.next_multiple_of(4096) as u64;
    let due: u64 = (0..9).map(|number| blocks(content(number).len())).sum();
    eventually("what is due is on the disk", || written(&status(&server), 0) == due);
    eventually("eight files are due later", || status(&server)["due_files"] == 8);
    let mut bytes = content(8);
    bytes.fill(0);
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content(8), "whoever has it open reads on");
    drop(held);

    server.kill();
    server.restart();
    eventually("both disks are there again", || up(&server));
    assert_eq!(status(&server)["due_files"], 8);
    volume.disks[1].kill();
    volume.disks[1].start();
    eventually("losses are told", || status(&server)["lost"].as_array().unwrap().len() == 17);
    let expected = Some(rustix::io::Errno::NOTRECOVERABLE.raw_os_error());
    for number in 0..9 {
        let read = |kind: &str| fs::read(reader.path(&format!("f{number}.{kind}")));
        assert!(read("soon").unwrap() == content(number), "{number}");
        assert_eq!(read("never").unwrap_err().raw_os_error(), expected, "{number}");
        let later = if number == 8 { Some(2) } else { expected };
        assert_eq!(read("later").unwrap_err().raw_os_error(), later, "{number}");
    }
    assert_eq!(written(&status(&server), 0), due);
    drop((mount, reader));
    server.kill();
    assert_eq!(succeed(&mut volume.check()).stdout, b"nothing is wrong\n");
}

/// A volume with a disk and a memory disk, and a mount whose files `*.o` are volatile, `*.later`
/// for a time, and others not.
fn with_volatile_names() -> (Volume, Server, Mount) {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
    let rules = volume.dir.path().join("rules.toml");
    let classes = "[class.later]\nlike = 'volatile'\ndurable = '20d'\n\
                   [[rule]]\nglob = '*.o'\nclass = 'volatile'\n\
                   [[rule]]\nglob = 'out/'\nclass = 'volatile'\n\
                   [[rule]]\nglob = '*.later'\nclass = 'later'\n";
    fs::write(&rules, classes).unwrap();
    let mount = Mount::new(&server, &[&format!("rules={}", rules.display()), "user_xattr"]);
    (volume, server, mount)
}

/// The exit code of `larder class set`.
fn set_class(mount: &Mount, class: &str, name: &str) -> Option<i32> {
    said(mount, &["class", "set", class, mount.path(name).to_str().unwrap()]).0
}

/// A directory gets a name or a class by which files below it are to be more durable: these leave
/// memory at once, without a further call, and outlive the memory disk. Others stay there.
#[test]
fn files_below_a_directory_leave_memory_when_they_are_to_be_more_durable() {
    let (mut volume, server, mount) = with_volatile_names();
    fs::create_dir_all(mount.path("out/below")).unwrap();
    fs::create_dir(mount.path("set")).unwrap();
    let content = |name: &str| pattern(name.len() as u64, 5000 + name.len() * 30_000);
    for name in ["out/a", "out/below/other", "out/stays.o", "set/raised.o"] {
        fs::write(mount.path(name), content(name)).unwrap();
    }
    let blocks = |name: &str| content(name).len().next_multiple_of(4096) as u64;
    assert_eq!(written(&status(&server), 0), 0);
    fs::rename(mount.path("out"), mount.path("release")).unwrap();
    let mut expected = blocks("out/a") + blocks("out/below/other");
    let is_there = |expected: u64| {
        let told = status(&server);
        written(&told, 0) == expected && told["due_files"] == 0
    };
    eventually("they are on the disk", || is_there(expected));
    assert_eq!(set_class(&mount, "edited", "set"), Some(0));
    expected += blocks("set/raised.o");
    eventually("it is on the disk", || is_there(expected));
    volume.disks[1].kill();
    let third = Mount::plain(&server, &["hard"]);
    for (name, made_as) in [
        ("release/a", "out/a"),
        ("release/below/other", "out/below/other"),
        ("set/raised.o", "set/raised.o"),
    ] {
        assert!(fs::read(third.path(name)).unwrap() == content(made_as), "{name}");
    }
}

/// However a file gets a stronger class or a name of one: its bytes are on the disk when the call
/// returns, and outlive the memory disk, which is killed right then. Those of others stay in
/// memory, and a class with a deadline gives its file that time.
#[test]
fn bytes_leave_memory_before_a_stronger_class_or_name_counts() {
    let (mut volume, server, mount) = with_volatile_names();
    let path = |name: &str| mount.path(name);
    let content = |name: &str| match name {
        "large" => pattern(7, 12 << 20),
        _ => pattern(name.len() as u64, 5000 + name.len() * 30_000),
    };
    let write = |name: &str| fs::write(path(&format!("{name}.o")), content(name)).unwrap();
    let rename = |from: &str, to: &str| fs::rename(path(from), path(to)).unwrap();
    let on_disk = || written(&status(&server), 0);
    for name in ["renamed", "large", "over", "linked", "set", "xattr", "again", "stays", "same"] {
        write(name);
    }
    write("timed");
    assert_eq!(on_disk(), 0);
    rename("same.o", "moved.o");
    rename("timed.o", "timed.later");
    assert_eq!((on_disk(), &status(&server)["due_files"]), (0, &1.into()));

    rename("renamed.o", "renamed");
    let blocks = content("renamed").len().next_multiple_of(4096) as u64;
    assert_eq!(on_disk(), blocks, "it is there when the call returns");
    rename("large.o", "large");
    fs::write(path("over"), "former").unwrap();
    rename("over.o", "over");
    fs::hard_link(path("linked.o"), path("linked")).unwrap();
    assert_eq!(set_class(&mount, "edited", "set.o"), Some(0));
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(path("xattr.o"), "user.larder.class", b"edited", flags).unwrap();
    // A file with a class of its own is replaced, and that class goes to the new one.
    write("kept");
    assert_eq!(set_class(&mount, "edited", "kept.o"), Some(0));
    rename("again.o", "kept.o");
    // Whoever has it open goes on in the new class.
    let mut open = fs::File::create(path("open.o")).unwrap();
    let (first, rest) = (content("open"), pattern(3, 100_000));
    open.write_all(&first).unwrap();
    rename("open.o", "open");
    open.write_all(&rest).unwrap();
    drop(open);
    volume.disks[1].kill();

    let third = Mount::plain(&server, &["hard"]);
    for (name, as_written) in [
        ("renamed", content("renamed")),
        ("large", content("large")),
        ("over", content("over")),
        ("linked.o", content("linked")),
        ("set.o", content("set")),
        ("xattr.o", content("xattr")),
        ("kept.o", content("again")),
        ("open", [first, rest].concat()),
    ] {
        assert!(fs::read(third.path(name)).unwrap() == as_written, "{name}");
    }
    volume.disks[1].start();
    let listed = || -> Vec<String> {
        let told = status(&server);
        let all = told["lost"].as_array().unwrap().iter();
        all.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    };
    let lost = ["/stays.o", "/moved.o", "/timed.later"];
    eventually("losses are told", || {
        let told = listed();
        told.len() == 3 && lost.iter().all(|name| told.iter().any(|one| one == name))
    });
}

/// If the bytes cannot be moved, the process that raises the class is told why, and the file has
/// its former name and class: bytes that are lost, and a disk that is full. When there is room
/// again, it works.
#[test]
fn a_class_that_cannot_be_raised_is_as_before() {
    let (mut volume, server, mount) = with_volatile_names();
    let path = |name: &str| mount.path(name);
    let content = pattern(1, 300_000);
    let rename = |from: &str, to: &str| {
        fs::rename(path(from), path(to)).map_err(|error| Errno::from_io_error(&error).unwrap())
    };
    fs::write(path("lost.o"), &content).unwrap();
    volume.disks[1].kill();
    volume.disks[1].start();
    eventually("its restart was seen", || status(&server)["lost"].as_array().unwrap().len() == 1);
    assert_eq!(rename("lost.o", "lost"), Err(Errno::NOTRECOVERABLE));
    assert_ne!(set_class(&mount, "edited", "lost.o"), Some(0));
    let flags = XattrFlags::empty();
    let set = rustix::fs::setxattr(path("lost.o"), "user.larder.class", b"edited", flags);
    assert_eq!(set, Err(Errno::NOTRECOVERABLE));
    let (_, told) = said(&mount, &["class", "explain", path("lost.o").to_str().unwrap()]);
    assert!(told.contains("volatile"), "{told}");
    fs::remove_file(path("lost.o")).unwrap();

    let mut fill = fs::File::create(path("fill")).unwrap();
    while fill.write_all(&content).and_then(|()| fill.sync_all()).is_ok() {}
    drop(fill);
    fs::write(path("small.o"), &content).unwrap();
    assert_eq!(rename("small.o", "small"), Err(Errno::NOSPC));
    assert_ne!(set_class(&mount, "edited", "small.o"), Some(0));
    assert!(!path("small").exists() && fs::read(path("small.o")).unwrap() == content);
    fs::remove_file(path("fill")).unwrap();
    eventually("there is room again", || rename("small.o", "small").is_ok());
    volume.disks[1].kill();
    let third = Mount::plain(&server, &["hard"]);
    assert!(fs::read(third.path("small")).unwrap() == content);
}

/// `user.larder.durability` reports where the bytes are: not what the class of this mount promises,
/// but what the metadata server has; a loss; and that it is not known while no server answers.
#[test]
fn the_attribute_reports_where_the_bytes_are() {
    let (mut volume, mut server, mount) = with_volatile_names();
    let told = |name: &str| {
        let mut line = [0; 256];
        let name = mount.path(name);
        let length = rustix::fs::getxattr(name, "user.larder.durability", &mut line).unwrap();
        String::from_utf8(line[..length].to_vec()).unwrap()
    };
    let volatile = Mount::new(&server, &["class=volatile"]);
    let content = pattern(1, 100_000);
    fs::write(mount.path("own.o"), &content).unwrap();
    fs::write(volatile.path("others"), &content).unwrap();
    fs::write(mount.path("disk"), &content).unwrap();
    fs::write(mount.path("renamed.o"), &content).unwrap();
    fs::create_dir(mount.path("dir.o")).unwrap();
    assert_eq!(told("own.o"), "level=shared promised=shared");
    assert_eq!(told("others"), "level=shared promised=durable");
    assert_eq!(told("disk"), "level=durable promised=durable");
    fs::rename(mount.path("disk"), mount.path("disk.o")).unwrap();
    assert_eq!(told("disk.o"), "level=durable promised=shared");
    fs::rename(mount.path("renamed.o"), mount.path("renamed")).unwrap();
    assert_eq!(told("renamed"), "level=durable promised=durable");
    assert_eq!(told("dir.o"), "level=durable promised=shared");
    volume.disks[1].kill();
    volume.disks[1].start();
    eventually("losses are told", || status(&server)["lost"].as_array().unwrap().len() == 2);
    assert_eq!(told("own.o"), "level=lost promised=shared");
    assert_eq!(told("others"), "level=lost promised=durable");
    assert_eq!(told("renamed"), "level=durable promised=durable");
    server.kill();
    assert_eq!(told("renamed"), "level=unknown promised=durable");
    server.restart();
    eventually("it answers again", || told("renamed") == "level=durable promised=durable");
}

/// A memory disk that is larger than what this machine has available is refused with one line, and
/// leaves nothing behind; so is one that the limit of a cgroup has no room for, where the testing
/// user may make one.
#[test]
fn a_memory_disk_that_does_not_fit_is_refused() {
    let volume = Volume::with_memory_disk();
    let told = refusal(&mut volume.disks[1].command_with("1000T"));
    assert!(told.contains("a memory disk of 1000 TiB does not fit: "), "{told}");
    let folder = scratch("larder-serve-");
    let dir = folder.path().join("volume");
    let serve = |memory: &str| {
        let mut command = larder();
        command.args(["serve", "--size", "64M", "--listen", "127.0.0.1:0", "--memory", memory]);
        command.arg(&dir);
        command
    };
    let told = refusal(&mut serve("1000T"));
    assert!(told.contains("cannot serve") && told.contains("does not fit: "), "{told}");
    let engine = format!("embedded:{}", dir.join("meta").display());
    let checked = succeed(larder().args(["volume", "check", "--engine", &engine]));
    assert_eq!(checked.stdout, b"nothing is wrong\n");

    let Some(group) = Group::with_limit(90 << 20) else { return };
    let told = refusal(&mut group.running(&volume.disks[1].command_with("64M")));
    assert!(told.contains("a memory disk of 64.0 MiB does not fit: "), "{told}");
    assert!(told.contains(&format!("by the limit of {},", group)), "{told}");
    let told = refusal(&mut group.running(&serve("64M")));
    assert!(told.contains("by the limit of "), "{told}");
}

/// More volatile bytes than a memory disk has room for, which runs where no more memory than that
/// is: the rest goes to a disk, `larder volume status` says so, everything can be read, and the
/// kernel kills nothing. When files are removed, later ones are in memory again.
#[test]
fn what_finds_no_room_in_memory_goes_to_disks_and_is_reported() {
    let mut volume = Volume::with_memory_disk();
    volume.disks[1].group = Group::with_limit(104 << 20);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
    let mount = Mount::new(&server, &["class=volatile"]);
    let content = |number: u64| pattern(number, 10 << 20);
    let write =
        |number: u64| fs::write(mount.path(&format!("f{number}")), content(number)).unwrap();
    (0..6).for_each(write);
    let told = status(&server);
    assert_eq!((&told["instead_bytes"], &told["is_short_of_memory"]), (&0.into(), &false.into()));
    (6..8).for_each(write);
    let told = status(&server);
    let instead = told["instead_bytes"].as_u64().unwrap();
    assert!(instead >= 16 * MIB && told["is_short_of_memory"] == true, "{told}");
    assert!(written(&told, 0) >= 16 * MIB && told["memory_free_bytes"] == 0, "{told}");
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    let shown = String::from_utf8(succeed(&mut shown).stdout).unwrap();
    assert!(shown.contains(" for memory went to disks, now: no memory disk had room"), "{shown}");
    let third = Mount::plain(&server, &["hard"]);
    for number in 0..8 {
        assert!(fs::read(third.path(&format!("f{number}"))).unwrap() == content(number));
    }
    (0..3).for_each(|number| fs::remove_file(mount.path(&format!("f{number}"))).unwrap());
    let free = || status(&server)["memory_free_bytes"].as_u64().unwrap();
    eventually("there is room in memory", || free() >= 30 * MIB);
    let before = written(&status(&server), 0);
    write(9);
    assert_eq!(written(&status(&server), 0), before);
    assert!(volume.disks[1].runs());
    assert_eq!(volume.disks[1].group.as_ref().map_or(0, Group::oom_kills), 0);
}

/// While the memory disk is away, a call that raises a class ends within the limit of calls, and
/// nothing has changed; other files are written meanwhile.
#[test]
fn a_raise_ends_while_the_memory_disk_is_away() {
    let (mut volume, server, _mount) = with_volatile_names();
    let rules = format!("rules={}", volume.dir.path().join("rules.toml").display());
    let mount = Mount::new(&server, &[&rules, "user_xattr", "timeo=30"]);
    let content = pattern(1, 300_000);
    fs::write(mount.path("f.o"), &content).unwrap();
    volume.disks[1].kill();
    let refused = std::thread::scope(|scope| {
        let raise = scope.spawn(|| fs::rename(mount.path("f.o"), mount.path("f")));
        fs::write(mount.path("other"), &content).unwrap();
        raise.join().unwrap().unwrap_err()
    });
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::TIMEDOUT));
    assert!(mount.path("f.o").exists() && !mount.path("f").exists());
    assert_ne!(set_class(&mount, "edited", "f.o"), Some(0));
    let (_, told) = said(&mount, &["class", "explain", mount.path("f.o").to_str().unwrap()]);
    assert!(told.contains("volatile"), "{told}");
}

/// The calls of a mount for one read of an open file past the kernel's memory, and those that keep
/// its session alive left out.
pub(crate) fn calls_to_read(
    mount: &Mount,
    file: &fs::File,
    expected: &[u8],
) -> BTreeMap<String, u64> {
    let of = |calls: &BTreeMap<String, u64>, name: &str| calls.get(name).copied().unwrap_or(0);
    let before = mount.calls_by_procedure();
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut seen = vec![0; expected.len()];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == expected);
    let after = mount.calls_by_procedure();
    let more = after.iter().map(|(name, calls)| (name.clone(), calls - of(&before, name)));
    let is_beside = |name: &str| ["RENEW", "RETURN_LEASE", "OPEN"].contains(&name);
    more.filter(|(name, calls)| *calls > 0 && !is_beside(name)).collect()
}

/// How often a disk was told to revoke capabilities, and has refused revoked ones.
fn told_to_revoke(disk: &Disk) -> (u64, u64) {
    let mut status = larder();
    status.args(["status", "--json", &disk.address]);
    let told: serde_json::Value = serde_json::from_slice(&succeed(&mut status).stdout).unwrap();
    let refused = told["status"]["refused"].as_array().unwrap().iter();
    let refused = refused.filter(|one| one["reason"] == "Revoked");
    (told["revocations"].as_u64().unwrap(), refused.map(|one| one["count"].as_u64().unwrap()).sum())
}

/// Two mounts, one of which has a file open. A chmod by the other one is told to the disk by one
/// call, and takes the capability from the reader with its lease: one call more, which brings
/// another lease, so that the next read costs no call more. When the bytes
/// leave the memory disk the reader keeps its lease, and shows what was revoked: the disk refuses
/// it, and that costs two calls more.
#[test]
fn what_ends_the_capability_of_an_open_file_costs_its_reader_two_calls_at_most() {
    let mut volume = Volume::with_memory_disk();
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
    let (one, two) =
        (Mount::new(&server, &["class=volatile", "user_xattr"]), Mount::plain(&server, &[]));
    let bytes = pattern(1, 5000);
    fs::write(one.path("file"), &bytes).unwrap();
    let calls = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
        all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    let under_lease = || {
        let file = fs::File::open(two.path("file")).unwrap();
        eventually("it reads under a lease", || {
            fs::metadata(two.path("file")).unwrap();
            calls_to_read(&two, &file, &bytes) == calls(&[("READ", 1)])
        });
        file
    };
    let told = || [0, 1].map(|at| told_to_revoke(&volume.disks[at]));

    let file = under_lease();
    let before = told();
    fs::set_permissions(one.path("file"), Permissions::from_mode(0o600)).unwrap();
    let after = calls_to_read(&two, &file, &bytes);
    assert_eq!(after, calls(&[("LOOK", 1), ("READ", 1)]));
    let again = calls_to_read(&two, &file, &bytes);
    assert_eq!(again, calls(&[("READ", 1)]), "it reads under a lease again");
    let [on_disk, in_memory] = before;
    assert_eq!(told(), [on_disk, (in_memory.0 + 1, in_memory.1)], "one call, and no refusal");
    drop(file);

    // It is connected to the disk.
    fs::write(one.path("edited"), &bytes).unwrap();
    let xattr = |name: &str, class: &str| {
        let path = one.path(name);
        rustix::fs::setxattr(path, "user.larder.class", class.as_bytes(), XattrFlags::empty())
    };
    xattr("edited", "edited").unwrap();
    assert!(fs::read(two.path("edited")).unwrap() == bytes);
    let file = under_lease();
    let before = told();
    xattr("file", "edited").unwrap();
    let after = calls_to_read(&two, &file, &bytes);
    assert_eq!(after, calls(&[("GETCAPS", 1), ("READ", 2)]));
    assert_eq!(told()[1].1, before[1].1 + 1, "the memory disk refused it");
}
