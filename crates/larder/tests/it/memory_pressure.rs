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
    fn more(&mut self, group: &Group, mib: u64) {
        let name = format!("larder-test-{}-{}", std::process::id(), self.0.len());
        let file = PathBuf::from("/dev/shm").join(name);
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
    let of = |at: usize, what: &str| status(&server)["disks"][at]["status"][what].as_u64().unwrap();
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
    let mut shown = server.larder_here();
    shown.args(["volume", "status", &server.address().to_string()]);
    let shown = String::from_utf8(succeed(&mut shown).stdout).unwrap();
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
