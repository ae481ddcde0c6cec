//! Network-attached disks (M. Aguilera et al., FAST 2003): bandwidth by file size with 6 clients,
//! latency of single operations, one client's share of many disks, and Andrew on a large tree.
//!
//! What was compared then (secure, non-secure, an NFS server, an unlimited cache) are targets here:
//! the tests are the same for all of them. Volumes of 1 to 7 disks are targets of a suite of its
//! own, in which each runs the tests of as many clients as it has disks.

mod entries;
mod latency;
mod names;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::andrew::{self, Tree};
use super::pieces::Content;
use super::{Before, Outcome, ROUNDS, Size, Suite, Test, WorkDir};
use crate::data::{Pattern, Stamped, Stamps};

const PIECE_BYTES: usize = 64 << 10;
/// Clients that read and write files.
const CLIENTS: u32 = 6;
/// Clients that change names at once.
const CLIENTS_MAX: u32 = 16;
/// Most disks of a volume here.
const DISKS_MAX: u32 = 7;
/// No client touches more files of one size.
const FILES_MAX: u64 = 2000;
/// Of files up to this size each client touches that many, if not asked for little only, so that
/// the capabilities of all clients fill several groups, which the metadata server replaces.
const MANY_KIB_MAX: u64 = 16;

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let memory = Stamped::new();
    let all: &[u64] = &[4, 16, 64, 256, 1024, 4096];
    let few: &[u64] = &[4, 64, 256];
    let sizes = size.pick_of(few, all, all);
    let bytes = size.pick_of(256 << 10, 8 << 20, 32 << 20);
    let small_files = size.pick_of(20, 300, 700);
    let names = size.pick_of(10, 100, 300);
    let entries = size.pick_of(200, 20_000, 1_000_000);
    let tree = Tree {
        dirs: size.pick_of(30, 200, 690),
        files: size.pick_of(100, 2_000, 10_528),
        sources: size.pick_of(4, 12, 24),
        text_bytes_max: size.pick(8000, 24_100),
        ..Tree::original(size)
    };
    // A mount takes a second on a busy machine, so the smallest size has few.
    let clients = size.pick_of(2, CLIENTS, CLIENTS);
    let many = size.pick_of(3, CLIENTS_MAX, CLIENTS_MAX);
    let mut tests = Vec::new();
    for kib in sizes {
        let least = if size != Size::Smoke && *kib <= MANY_KIB_MAX { FILES_MAX } else { 1 };
        let count = (bytes / (kib << 10)).clamp(least, FILES_MAX);
        let files = Files { what: "read", kib: *kib, count };
        tests.extend(reading_and_writing(files, clients, ("file size KB", *kib as f64), &memory));
    }
    tests.extend(latency::tests(small_files));
    tests.extend(names::tests(many, names));
    tests.extend(entries::tests(entries));
    tests.push(andrew("andrew", Tree::original(size)));
    tests.push(andrew("andrew-large", tree));
    Suite {
        name: "snapdragon",
        method: method([clients, many], bytes, small_files, (names, entries), tree),
        tests,
        furnish: Arc::new(|_| Ok(())),
        link_bits_per_s: None,
        own_mounts: true,
        confinement: None,
        disk_latency: None,
        rounds: ROUNDS,
    }
}

/// The suite of several disks.
pub(super) fn disks(size: Size) -> Suite {
    let share = Files { what: "read", kib: 256, count: size.pick_of(10, 60, 600) };
    let memory = Stamped::new();
    let tests = (1..=DISKS_MAX).flat_map(|clients| {
        reading_and_writing(share, clients, ("disks", clients.into()), &memory)
    });
    Suite {
        name: "disks",
        method: vec![
            format!("Volumes of 1 to {DISKS_MAX} disks, each with as many clients. A client is a mount of its own without a cache on disk, with connections and (as root) a network namespace of its own. Each disk is made as slow as --rate says, so that processors and memory of one machine are enough for all. A KB is 2^10 bytes."),
            format!("read, write: each client reads or writes {} files of {} KB in a directory of its own, one at a time, whole, in pieces of 64 KB, and closes it; every file is touched once. The result is the bytes of all clients by the time until the last one is done. New bytes go to all disks in turns. Before each test, memory forgets all files.", share.count, share.kib),
            "Of what was read in the clock, the mark of each page is compared; of what was written, every byte after the last test.".to_owned(),
        ],
        tests: tests.collect(),
        furnish: Arc::new(|_| Ok(())),
        link_bits_per_s: None,
        own_mounts: true,
        confinement: None,
        disk_latency: None,
        rounds: ROUNDS,
    }
}

fn method(
    [clients, many]: [u32; 2],
    bytes: u64,
    small_files: u32,
    (names, entries): (u32, u64),
    tree: Tree,
) -> Vec<String> {
    vec![
        "Setups (secure or not, with 256 MB of memory for each client or with 2 MB, one disk or several) are targets, not tests. Before each test, memory forgets all files on client and server. A KB is 2^10 bytes.".to_owned(),
        format!("read, write: {clients} clients, each a mount of its own on this machine without a cache on disk, with connections and (as root) a network namespace of its own, in directories of their own, open one file at a time, read or write it whole in pieces of 64 KB and close it; every file is touched once. Each client moves {} KB, but touches {FILES_MAX} files at most, and (in sizes short and full) of files up to {MANY_KIB_MAX} KB so many in any case. The result is the bytes of all clients by the time until the last one is done. Writing makes new files and does not fsync them.", bytes >> 10),
        format!("latency: {small_files} files of 4 KB in random order by one client, one operation per file: open, read, close, after a fresh mount if the target can be mounted again; and open, write in place, fsync, close. latency-again: open, read past the kernel's memory, close, of a file that was just read so; latency-revoked: the same after a chmod by another client (a mount of its own), which ends the client's capability; the calls of that other client are not counted. latency-chmod: chmod of an empty file whose attributes were asked for, so that there is no capability; latency-revocation: of one that was just read, so that the disk has to be told. disk_revocations and disk_refusals beside the result are how often the metadata server told the disk to revoke capabilities, and how often the disk refused a request, in the whole test. latency-getcaps: open, read of 4 KB and close at places of one large file that are so far apart that each needs a capability of its own, which the client has not. The result is the mean; percentiles are recorded beside it."),
        format!("create, stat, unlink, small-file: one client, then {many}, each {names} times in a directory of its own: make an empty file; ask for its attributes after a fresh mount; ask again, open and close it, which was done once before (open-again); remove it; make a file, write 4 KB, fsync, close and remove it. The result is files of all clients by the time until the last one is done. What a volume acknowledges is on disk; the file system behind nfs-ganesha syncs names, too (chattr +D), but not modes and times."),
        format!("entries: {} threads of one client make {entries} empty files in one directory; one lists them after a fresh mount; they remove them. Beside the rate is recorded what the first and the last tenth took.", entries::THREADS),
        format!("andrew: the original tree, as in suite mbfs. andrew-large: make {} directories, copy {} files, scan once, read once, compile {} of the files. The compiler's CPU time (user and system, in steps of 10 ms) is subtracted. The compiler is in memory.", tree.dirs, tree.files, tree.sources),
        "Of what was read in the clock, the mark of each page is compared, which differs from page to page and from file to file; of what was written, every byte after the last test.".to_owned(),
    ]
}

/// Files of one size, in a directory of their own in each client's place.
#[derive(Clone, Copy, Debug)]
struct Files {
    /// What is done with them.
    what: &'static str,
    kib: u64,
    count: u64,
}

impl Files {
    fn dir(self, place: &WorkDir) -> PathBuf {
        place.at(&format!("{}-{}", self.what, self.kib))
    }

    /// Every file of every client and size is of a pattern of its own.
    fn content(self, place: &WorkDir, i: u64) -> Content {
        let group = 2 * self.kib + u64::from(self.what == "write");
        let pattern = Pattern((group << 48) | (u64::from(place.copy) << 32) | i);
        Content { pattern, bytes: self.kib << 10, piece_bytes: PIECE_BYTES }
    }

    fn write(self, place: &WorkDir, mut memory: Stamped) -> Result<()> {
        let dir = self.dir(place);
        for i in 0..self.count {
            self.content(place, i).write(&dir.join(format!("f{i}")), &mut memory)?;
        }
        Ok(())
    }

    fn read(self, place: &WorkDir) -> Result<Outcome> {
        let dir = self.dir(place);
        let mut stamps = Stamps::with_room_for(self.bytes());
        let mut buffer = vec![0; PIECE_BYTES];
        for i in 0..self.count {
            let path = dir.join(format!("f{i}"));
            self.content(place, i).read(&path, &mut buffer, &mut stamps)?;
        }
        Ok(Outcome::of_amount(self.bytes() as f64).and_check(move || stamps.check()))
    }

    fn check(self, place: &WorkDir) -> Result<()> {
        let dir = self.dir(place);
        for i in 0..self.count {
            self.content(place, i).check(&dir.join(format!("f{i}")))?;
        }
        let names = fs::read_dir(&dir)?.count() as u64;
        ensure!(names == self.count, "{names} files instead of {}", self.count);
        Ok(())
    }

    fn bytes(self) -> u64 {
        self.count * (self.kib << 10)
    }
}

/// Reading and writing such files by some clients, at a place of a sweep.
fn reading_and_writing(
    files: Files,
    clients: u32,
    (parameter, value): (&str, f64),
    memory: &Stamped,
) -> [Test; 2] {
    let files = Files { what: "write", ..files };
    let memory = memory.clone();
    let write = Arc::new(move |place: &WorkDir| {
        files.write(place, memory.clone())?;
        let outcome = Outcome::of_amount(files.bytes() as f64);
        let place = place.clone();
        Ok(outcome.and_check_at_end(move || files.check(&place)))
    });
    let write = Test::rate("write", clients, "B/s", Before::DropMemory, write)
        .furnished(move |place| Ok(fs::create_dir(files.dir(place))?));
    let read = reading(clients, Files { what: "read", ..files });
    [read, write].map(|test| test.at(parameter, value))
}

fn reading(clients: u32, files: Files) -> Test {
    let work = Arc::new(move |place: &WorkDir| files.read(place));
    Test::rate("read", clients, "B/s", Before::DropMemory, work).furnished(move |place| {
        fs::create_dir(files.dir(place))?;
        files.write(place, Stamped::new())
    })
}

/// All phases of Andrew, on a tree in a directory of its own.
fn andrew(name: &'static str, tree: Tree) -> Test {
    let within = move |place: &WorkDir| WorkDir { dir: place.at(name), ..place.clone() };
    let work = Arc::new(move |place: &WorkDir| tree.all(&within(place)));
    Test::timed(name, 1, Before::DropMemory, work)
        .furnished(move |place| {
            fs::create_dir(place.at(name))?;
            tree.furnish(&within(place))
        })
        .prepared(move |place| andrew::warm_up(&within(place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn place(dir: &std::path::Path, copy: u32) -> WorkDir {
        WorkDir::local(dir, copy)
    }

    #[test]
    fn no_two_files_have_the_same_pattern() {
        let mut seeds = BTreeSet::new();
        for what in ["read", "write"] {
            for kib in [4, 16, 64, 256, 1024, 4096] {
                for copy in 0..CLIENTS {
                    for i in 0..FILES_MAX {
                        let files = Files { what, kib, count: FILES_MAX };
                        let content = files.content(&place(std::path::Path::new("/"), copy), i);
                        assert!(seeds.insert(content.pattern.0));
                    }
                }
            }
        }
    }

    #[test]
    fn swapped_files_are_found() {
        let top = tempfile::tempdir().unwrap();
        let place = place(top.path(), 1);
        let files = Files { what: "read", kib: 4, count: 3 };
        let dir = files.dir(&place);
        fs::create_dir(&dir).unwrap();
        files.write(&place, Stamped::new()).unwrap();
        let reads = || files.read(&place).unwrap().check.unwrap()();
        assert!(reads().is_ok() && files.check(&place).is_ok());
        fs::rename(dir.join("f0"), dir.join("f")).unwrap();
        fs::rename(dir.join("f1"), dir.join("f0")).unwrap();
        fs::rename(dir.join("f"), dir.join("f1")).unwrap();
        assert!(reads().is_err() && files.check(&place).is_err());
    }
}
