//! Memory disks on machines that lack memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::groups::Group;
use crate::harness::{Mount, eventually, pattern, succeed};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const MIB: u64 = 1 << 20;
/// What the memory disk's group may take.
const GROUP: u64 = 104;
/// What a memory disk leaves to others.
const RESERVE: u64 = 16;

/// Memory that other processes of a group take, until it is dropped: files of a tmpfs belong to the
/// group of their writer.
struct Taken(Vec<PathBuf>);

impl Taken {
    /// Takes more, when what the disk leaves to others is there.
    fn more(&mut self, group: &Group, mib: u64) {
        eventually("there is memory for others", || group.left() >= RESERVE * MIB);
        let of = group.to_string();
        let of = of.rsplit('/').next().expect("a group has a name");
        let file = PathBuf::from("/dev/shm").join(format!("{of}-{}", self.0.len()));
        let mut write = Command::new("dd");
        write.args(["if=/dev/zero", "bs=1M", "status=none", &format!("count={mib}")]);
        write.arg(format!("of={}", file.display()));
        self.0.push(file);
        succeed(&mut group.running(&write));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

/// The cgroup of a full memory disk is taken by other processes step by step: the disk gives the
/// memory back, its bytes go to the other disk and can all be read, new volatile bytes go there,
/// too, the status says so, and the kernel kills nothing. When the others have gone, bytes are in
/// memory again. Does nothing where this user may not limit the memory of a cgroup.
#[test]
fn a_memory_disk_gives_memory_back_when_its_machine_lacks_it() {
    let mut volume = Volume::with_memory_disk();
    let Some(group) = Group::with_limit(GROUP * MIB) else {
        return eprintln!("no cgroup with a limit of memory can be made here");
    };
    volume.disks[1].group = Some(group);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("both disks are there", || status(&server)["disks"][1]["state"] == "up");
    let mount = Mount::new(&server, &["class=volatile"]);
    let content = |number: u64| pattern(number, 2 << 20);
    let write =
        |number: u64| fs::write(mount.path(&format!("f{number}")), content(number)).unwrap();
    let of = |at: usize, what: &str| {
        let mut told = None;
        // A disk that is asked while it is busy may not say it in time.
        eventually("the disk tells", || {
            told = status(&server)["disks"][at]["status"][what].as_u64();
            told.is_some()
        });
        told.unwrap()
    };
    let written = |at: usize| of(at, "written_bytes");
    (0..24).for_each(write);
    assert_eq!((written(0), written(1)), (0, 48 * MIB));

    let (mut taken, mut total) = (Taken(Vec::new()), 0);
    for more in [20, 12, 12, 12] {
        taken.more(volume.disks[1].group.as_ref().unwrap(), more);
        total += more;
        let can_hold = (GROUP - RESERVE - total) * MIB;
        eventually("what is too much has left memory", || written(1) <= can_hold);
        assert!(volume.disks[1].runs());
    }
    let told = status(&server);
    let (limit, held) = (of(1, "limit_bytes"), written(1));
    assert!(held > 0 && limit < 40 * MIB, "{told}");
    assert!(told["yielded_bytes"].as_u64().unwrap() >= 16 * MIB, "{told}");
    (24..28).for_each(write);
    let can_hold = (GROUP - RESERVE - total) * MIB;
    eventually("what is too much has left memory again", || written(1) <= can_hold);
    let shown = shown(&server);
    assert!(shown.contains(": its machine lacks memory"), "{shown}");
    assert!(shown.contains("yielded   "), "{shown}");
    let third = Mount::plain(&server, &["hard"]);
    for number in 0..28 {
        let read = fs::read(third.path(&format!("f{number}"))).unwrap();
        assert!(read == content(number), "{number}");
    }
    assert!(volume.disks[1].runs());
    assert_eq!(status(&server)["lost"].as_array().unwrap().len(), 0);

    drop(taken);
    eventually("there is memory again", || of(1, "limit_bytes") == 64 * MIB);
    let before = (written(0), written(1));
    eventually("new bytes are in memory", || {
        fs::write(mount.path("again"), content(99)).unwrap();
        written(1) > before.1
    });
    assert!(volume.disks[1].runs());
}

/// A volume with a disk and two memory disks, the first of them with this limit, and its metadata
/// server. `None` where this user may not limit the memory of a cgroup.
fn with_two(limit: u64) -> Option<(Volume, Server)> {
    let mut volume = Volume::with_memory_disk();
    volume.enrol(&["--memory"]).keep_in_memory();
    let Some(group) = Group::with_limit(limit) else {
        eprintln!("no cgroup with a limit of memory can be made here");
        return None;
    };
    volume.disks[1].group = Some(group);
    volume.disks.iter_mut().for_each(Disk::start);
    let server = Server::meta(&["--engine", &volume.engine()]);
    eventually("all disks are there", || {
        let told = status(&server);
        told["disks"].as_array().unwrap().iter().all(|disk| disk["state"] == "up")
    });
    Some((volume, server))
}

/// Whatever the status of a volume shows.
fn shown(server: &Server) -> String {
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    String::from_utf8(succeed(&mut shown).stdout).unwrap()
}

/// The cgroup of one of two memory disks is taken by other processes: what it cannot hold goes to
/// the other memory disk, and nothing to the disk. When that one is killed, what has to leave goes
/// to the disk, and exactly what the killed one had is lost. Does nothing where this user may not
/// limit the memory of a cgroup.
#[test]
fn a_memory_disk_gives_its_bytes_to_another_one_before_any_go_to_a_disk() {
    // Another one than that of the test above, by its name.
    let limit = GROUP + 1;
    let Some((mut volume, server)) = with_two(limit * MIB) else { return };
    let mount = Mount::new(&server, &["class=volatile"]);
    // Each is on one disk, and each disk has every other one.
    let content = |number: u64| pattern(number, 1 << 20);
    let written = |at: usize| {
        status(&server)["disks"][at]["status"]["written_bytes"].as_u64().unwrap_or_default()
    };
    // The first bytes go to the disk while the server finds out that the memory disks are new.
    eventually("both are used", || {
        fs::write(mount.path("first"), pattern(0, 2 << 20)).unwrap();
        (written(1), written(2)) == (MIB, MIB)
    });
    fs::remove_file(mount.path("first")).unwrap();
    eventually("nothing is left", || [0, 1, 2].iter().all(|at| written(*at) == 0));
    for number in 0..64 {
        fs::write(mount.path(&format!("f{number}")), content(number)).unwrap();
    }
    let before = written(1);
    assert_eq!((written(0), before + written(2)), (0, 64 * MIB));
    assert_eq!(before, 32 * MIB, "the memory disks take turns");

    let (mut taken, mut can_hold) = (Taken(Vec::new()), limit - RESERVE);
    for more in [20, 12, 12, 14] {
        taken.more(volume.disks[1].group.as_ref().unwrap(), more);
        can_hold -= more;
        eventually("what is too much has left the first", || written(1) <= can_hold * MIB);
    }
    let has_all = || (written(0), written(1) + written(2)) == (0, 64 * MIB);
    eventually("the second has it", has_all);
    assert!(written(1) > 0, "no more has left than had to");
    let told = status(&server);
    let yielded = told["yielded_bytes"].as_u64().unwrap();
    assert!(yielded > 0, "{told}");
    assert_eq!(told["yielded_to_memory_bytes"].as_u64().unwrap(), yielded, "{told}");
    let shown = shown(&server);
    assert!(shown.contains(" went to other memory disks, 0 B to disks: "), "{shown}");
    let reader = Mount::plain(&server, &["hard"]);
    let read = |number: u64| fs::read(reader.path(&format!("f{number}")));
    for number in 0..64 {
        assert!(read(number).unwrap() == content(number), "{number}");
    }

    volume.disks[2].kill();
    eventually("it is known to be away", || status(&server)["disks"][2]["is_there"] == false);
    taken.more(volume.disks[1].group.as_ref().unwrap(), 8);
    can_hold -= 8;
    eventually("the disk has what the first cannot hold", || {
        written(1) <= can_hold * MIB && written(0) > 0
    });
    volume.disks[2].start();
    eventually("the loss is known", || !status(&server)["lost"].as_array().unwrap().is_empty());
    let lost = status(&server)["lost"].clone();
    let lost = lost.as_array().unwrap();
    let bytes: u64 = lost.iter().map(|file| file["bytes"].as_u64().unwrap()).sum();
    eventually("all others are there", || written(0) + written(1) + bytes == 64 * MIB);
    let reader = Mount::plain(&server, &["hard"]);
    let read = |number: u64| fs::read(reader.path(&format!("f{number}")));
    let not_recoverable = Some(rustix::io::Errno::NOTRECOVERABLE.raw_os_error());
    for number in 0..64 {
        let is_lost = lost.iter().any(|one| one["path"] == format!("/f{number}"));
        match (read(number), is_lost) {
            (Ok(read), false) => assert!(read == content(number), "{number}"),
            (Err(error), true) => assert_eq!(error.raw_os_error(), not_recoverable),
            (read, is_lost) => panic!("{number}: {:?}, lost: {is_lost}", read.map(drop)),
        }
    }
}
