//! Memory disks on machines that lack memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::{Value, json};

use crate::groups::Group;
use crate::harness::{Mount, eventually, pattern, succeed};
use crate::server::Server;
use crate::several_disks::{Disk, Volume, status};

const MIB: u64 = 1 << 20;
/// What the memory disk's group may take.
const GROUP: u64 = 104;
/// What a memory disk leaves to others.
const RESERVE: u64 = 16;
/// What must be available where a memory disk starts.
const TO_START: u64 = 64 + 32;
/// Longest time that a write may take, whatever the memory disk does.
const WRITE_MAX: Duration = Duration::from_secs(20);

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

    /// Takes so much more than is there for others, however much that is: the disk has to give it
    /// back. Returns how much was taken.
    fn too_much(&mut self, group: &Group, mib: u64) -> u64 {
        eventually("there is memory for others", || group.left() >= RESERVE * MIB);
        let all = (group.left() / MIB).saturating_sub(RESERVE) + mib;
        self.more(group, all);
        all
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

fn name(number: u64) -> String {
    format!("f{number}")
}

/// Writes a file of this length. It must return in time.
fn write_in_time(mount: &Mount, number: u64, length: u64) {
    let (path, bytes) = (mount.path(&name(number)), pattern(number, length as usize));
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(fs::write(path, bytes)));
    let written = is_done.recv_timeout(WRITE_MAX);
    written.unwrap_or_else(|_| panic!("a write of file {number} hangs")).unwrap();
}

/// What a disk tells of itself. One that is asked while it is busy may not say it in time.
fn told_by(server: &Server, at: usize, what: &str) -> u64 {
    let mut told = None;
    eventually("the disk tells", || {
        let all = status(server);
        told = all["disks"][at]["status"][what].as_u64();
        if told.is_none() {
            eprintln!("disk {at} does not tell {what}: {}", all["disks"][at]);
        }
        told.is_some()
    });
    told.unwrap()
}

/// Waits until so many bytes are in memory or on the disk, and the status accounts for those on the
/// disk: they had to leave memory, or found no room there. `late` were written while memory was
/// lacking.
fn are_accounted_for(server: &Server, bytes: u64, late: u64) {
    eventually("the status accounts for all bytes", || {
        let told = status(server);
        let has = |at: usize| told["disks"][at]["status"]["written_bytes"].as_u64();
        let (Some(on_disk), Some(in_memory)) = (has(0), has(1)) else { return false };
        let yielded = told["yielded_bytes"].as_u64().unwrap();
        let instead = told["instead_bytes"].as_u64().unwrap();
        let most = yielded + instead.min(late);
        on_disk + in_memory == bytes && (yielded..=most).contains(&on_disk)
    });
}

/// The paths of the files that are lost, and how many bytes of them.
fn lost(server: &Server) -> (BTreeSet<String>, u64) {
    let told = status(server);
    let lost = told["lost"].as_array().unwrap();
    let path = |file: &Value| file["path"].as_str().unwrap().to_owned();
    let paths: BTreeSet<String> = lost.iter().map(path).collect();
    assert_eq!(paths.len(), lost.len(), "each is listed once: {told}");
    (paths, lost.iter().map(|file| file["bytes"].as_u64().unwrap()).sum())
}

/// A mount that has read nothing yet finds so many files of this length whole, except for those
/// that are listed as lost: those cannot be read.
fn are_whole_or_lost(server: &Server, files: u64, length: u64) {
    let (lost, _) = lost(server);
    let reader = Mount::plain(server, &["hard"]);
    let not_recoverable = Some(Errno::NOTRECOVERABLE.raw_os_error());
    for number in 0..files {
        let is_lost = lost.contains(&format!("/{}", name(number)));
        match (fs::read(reader.path(&name(number))), is_lost) {
            (Ok(read), false) => assert!(read == pattern(number, length as usize), "{number}"),
            (Err(error), true) => assert_eq!(error.raw_os_error(), not_recoverable, "{number}"),
            (read, is_lost) => panic!("{number}: {:?}, lost: {is_lost}", read.map(drop)),
        }
    }
}

/// Whether some bytes of a file of the mount are in memory alone, as its attribute says.
fn is_in_memory(mount: &Mount, number: u64) -> bool {
    let mut level = String::new();
    eventually("it is known where the bytes are", || {
        let mut line = [0; 256];
        let path = mount.path(&name(number));
        let length = rustix::fs::getxattr(path, "user.larder.durability", &mut line).unwrap();
        let line = String::from_utf8(line[..length].to_vec()).unwrap();
        level = line.split_whitespace().next().unwrap().to_owned();
        level != "level=unknown"
    });
    assert!(["level=shared", "level=durable"].contains(&level.as_str()), "{number}: {level}");
    level == "level=shared"
}

/// The memory disk is killed and started again: what was there alone is lost, as one loss, each
/// file is listed once, and all others can be read.
fn lose_memory(volume: &mut Volume, server: &Server, mount: &Mount, files: u64, length: u64) {
    let written = |at: usize| told_by(server, at, "written_bytes");
    eventually("nothing is on its way", || written(0) + written(1) == files * length);
    let bytes = written(1);
    let in_memory = (0..files).filter(|number| is_in_memory(mount, *number));
    let expected: BTreeSet<String> = in_memory.map(|number| format!("/{}", name(number))).collect();
    assert!(!expected.is_empty() && (expected.len() as u64) < files, "{expected:?}");

    let disk = &mut volume.disks[1];
    disk.kill();
    let group = disk.group.as_ref().unwrap();
    eventually("its memory is there again", || group.left() >= TO_START * MIB);
    disk.start();
    eventually("the loss is told", || status(server)["losses"] != json!([]));
    let losses = status(server)["losses"].clone();
    assert_eq!(losses.as_array().unwrap().len(), 1, "{losses}");
    let told = (&losses[0]["files"], &losses[0]["bytes"]);
    assert_eq!(told, (&expected.len().into(), &bytes.into()));
    assert_eq!(lost(server), (expected, bytes));
    are_whole_or_lost(server, files, length);
}

/// Whatever the status of a volume shows.
fn shown(server: &Server) -> String {
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    String::from_utf8(succeed(&mut shown).stdout).unwrap()
}

/// The cgroup of a full memory disk is taken by other processes step by step: the disk gives the
/// memory back, its bytes go to the other disk and can all be read, new volatile bytes are written
/// in time and go there, too, the status accounts for them, and the kernel kills nothing. When the
/// others have gone, bytes are in memory again. When the memory disk is killed then, what was there
/// is lost and told, and nothing else. Does nothing where this user may not limit the memory of a
/// cgroup.
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
    let mount = Mount::new(&server, &["class=volatile", "user_xattr"]);
    let write = |number: u64| write_in_time(&mount, number, 2 * MIB);
    let written = |at: usize| told_by(&server, at, "written_bytes");
    (0..24).for_each(write);
    assert_eq!((written(0), written(1)), (0, 48 * MIB));

    let (mut taken, mut can_hold) = (Taken(Vec::new()), (GROUP - RESERVE) * MIB);
    for more in [20, 12, 12, 12] {
        taken.more(volume.disks[1].group.as_ref().unwrap(), more);
        can_hold -= more * MIB;
        eventually("what is too much has left memory", || written(1) <= can_hold);
        assert!(volume.disks[1].runs());
    }
    let told = status(&server);
    let (limit, held) = (told_by(&server, 1, "limit_bytes"), written(1));
    assert!(held > 0 && limit < 40 * MIB, "{told}");
    assert!(told["yielded_bytes"].as_u64().unwrap() >= 16 * MIB, "{told}");
    (24..28).for_each(write);
    eventually("what is too much has left memory again", || written(1) <= can_hold);
    are_accounted_for(&server, 56 * MIB, 8 * MIB);
    let shown = shown(&server);
    assert!(shown.contains(": its machine lacks memory"), "{shown}");
    assert!(shown.contains("yielded   "), "{shown}");
    are_whole_or_lost(&server, 28, 2 * MIB);
    assert!(volume.disks[1].runs());
    assert_eq!(lost(&server), (BTreeSet::new(), 0));

    drop(taken);
    eventually("there is memory again", || told_by(&server, 1, "limit_bytes") == 64 * MIB);
    let before = written(1);
    eventually("new bytes are in memory", || {
        write(28);
        written(1) > before
    });
    assert!(volume.disks[1].runs());
    lose_memory(&mut volume, &server, &mount, 29, 2 * MIB);
    assert_eq!(volume.disks[1].group.as_ref().unwrap().oom_kills(), 0);
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

/// The cgroup of one of two memory disks is taken by other processes: what it cannot hold goes to
/// the other memory disk, and nothing to the disk. When that one is killed, what has to leave goes
/// to the disk, and exactly what the killed one had is lost. The kernel kills nothing. Does nothing
/// where this user may not limit the memory of a cgroup.
#[test]
fn a_memory_disk_gives_its_bytes_to_another_one_before_any_go_to_a_disk() {
    // Another one than that of the test above, by its name.
    let limit = GROUP + 1;
    let Some((mut volume, server)) = with_two(limit * MIB) else { return };
    let mount = Mount::new(&server, &["class=volatile"]);
    let written = |at: usize| told_by(&server, at, "written_bytes");
    // The first bytes may go to the disk while the server finds out that the memory disks are new.
    // What a write replaces stays until that is durable, so the disks may have more than the file.
    eventually("both are used", || {
        fs::write(mount.path("first"), pattern(0, 2 << 20)).unwrap();
        written(1) >= MIB && written(2) >= MIB
    });
    fs::remove_file(mount.path("first")).unwrap();
    eventually("nothing is left", || [0, 1, 2].iter().all(|at| written(*at) == 0));
    // Each is on one disk, and each disk has every other one.
    (0..64).for_each(|number| write_in_time(&mount, number, MIB));
    let before = written(1);
    assert_eq!((written(0), before + written(2)), (0, 64 * MIB));
    assert_eq!(before, 32 * MIB, "the memory disks take turns");

    let (mut taken, mut can_hold) = (Taken(Vec::new()), limit - RESERVE);
    for more in [20, 12, 12, 14] {
        taken.more(volume.disks[1].group.as_ref().unwrap(), more);
        can_hold -= more;
        eventually("what is too much has left the first", || written(1) <= can_hold * MIB);
    }
    eventually("the second has it", || {
        // From there it would not come back.
        assert_eq!(written(0), 0, "nothing goes to the disk: {}", status(&server));
        written(1) + written(2) == 64 * MIB
    });
    assert!(written(1) > 0, "no more has left than had to");
    let told = status(&server);
    let yielded = told["yielded_bytes"].as_u64().unwrap();
    assert!(yielded > 0, "{told}");
    assert_eq!(told["yielded_to_memory_bytes"].as_u64().unwrap(), yielded, "{told}");
    let shown = shown(&server);
    assert!(shown.contains(" went to other memory disks, 0 B to disks: "), "{shown}");
    assert_eq!(lost(&server), (BTreeSet::new(), 0));
    are_whole_or_lost(&server, 64, MIB);

    volume.disks[2].kill();
    eventually("it is known to be away", || status(&server)["disks"][2]["is_there"] == false);
    // What is there for others is more than before where the disk has given its buffers back.
    let more = taken.too_much(volume.disks[1].group.as_ref().unwrap(), 8);
    can_hold = can_hold.saturating_sub(more);
    eventually("the disk has what the first cannot hold", || {
        written(1) <= can_hold * MIB && written(0) > 0
    });
    volume.disks[2].start();
    eventually("the loss is known", || !lost(&server).0.is_empty());
    let (_, bytes) = lost(&server);
    // The limit falls in steps: what leaves after the restart goes to the second again.
    let all = || written(0) + written(1) + written(2) + bytes;
    eventually("all others are there", || all() == 64 * MIB);
    are_whole_or_lost(&server, 64, MIB);
    assert_eq!(volume.disks[1].group.as_ref().unwrap().oom_kills(), 0);
}
