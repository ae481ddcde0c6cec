//! Application-chosen persistence (T. Anderson, J. Griffioen, USENIX 1999): five works, each by 1
//! to 10 clients at once. A client is a parallel copy in a directory of its own.

mod edit;
mod further;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::andrew::{self, Tree};
use super::archive::{self, Archive};
use super::{Before, Outcome, Size, Suite, Test, WorkDir, write_pattern};
use crate::data::Pattern;
use edit::Edits;
use further::Further;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    large_bytes: u64,
    small_files: SmallFiles,
    archive: Archive,
    edits: Edits,
    tree: Tree,
    further: Further,
}

/// Files that a client makes, writes and removes.
#[derive(Clone, Copy, Debug)]
struct SmallFiles {
    count: u32,
    /// After this, no further one is begun.
    time_max: Duration,
}

const SMALL_BYTES: usize = 1024;
/// The large file is copied in pieces of this.
const PIECE_BYTES: usize = 256 << 10;

/// The time of a disk operation in 1999.
const DISK_LATENCY: Duration = Duration::from_millis(10);

/// Most rounds, because a server with that disk takes minutes for one.
const ROUNDS: u32 = 3;

const LARGE: &str = "large";
const SMALL: &str = "small";

impl Scale {
    fn of(size: Size) -> Scale {
        Scale {
            large_bytes: size.pick_of(1_000_000, 1_000_000, 10_000_000),
            small_files: SmallFiles {
                count: size.pick_of(10, 100, 100),
                time_max: size.pick_of(
                    Duration::from_secs(60),
                    Duration::from_millis(500),
                    Duration::from_secs(1),
                ),
            },
            archive: Archive::of_files(size.pick_of(4, 6, 12), 8000),
            edits: Edits { each: size.pick_of(2, 1, 3) },
            tree: Tree {
                dirs: size.pick_of(3, 3, 5),
                files: size.pick_of(6, 8, 16),
                sources: size.pick_of(2, 2, 4),
                ..Tree::original(Size::Smoke)
            },
            further: Further::of(size),
        }
    }
}

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let scale = Scale::of(size);
    let clients: &[u32] = size.pick_of(&[1, 3], &[1, 10], &[1, 2, 4, 6, 8, 10]);
    // What reads a large file from the server's memory goes first: others have that forgotten.
    let mut tests = scale.further.tests();
    tests.extend(clients.iter().flat_map(|clients| published(scale, *clients)));
    Suite {
        name: "mbfs",
        method: method(scale),
        tests,
        furnish: Arc::new(|_| Ok(())),
        link_bits_per_s: None,
        own_mounts: true,
        confinement: None,
        disk_latency: Some(DISK_LATENCY),
        rounds: ROUNDS,
    }
}

fn method(scale: Scale) -> Vec<String> {
    let Scale { large_bytes, small_files, edits, tree, .. } = scale;
    let Tree { dirs, files, sources, .. } = tree;
    let mut all = vec![
        "Every client is a mount of its own on this machine, with a cache, connections and (as root) a network namespace of its own, and works in a directory of its own; the time is until the last one is done. Before each published work, memory forgets all files on client and server; compiler and tar are then brought back, being no part of what is measured.".to_owned(),
        format!("large-write copies a file of {} MB that was then read once, by reads and writes of 256 KiB, so that no file system shares blocks in place of copying.", large_bytes / 1_000_000),
        format!("small-file makes, writes ({SMALL_BYTES} bytes) and deletes {} files per client, one after the other, and begins none after {:?}: files of all clients per second. What was deleted cannot be compared; that its names are gone is checked at once, that nothing stayed after the last work.", small_files.count, small_files.time_max),
        format!("untar unpacks {}, with the system's tar.", scale.archive.shown()),
        format!("edit: {} texts are replaced as editors do (read, write a new file, fsync, rename over the old one, fsync the directory), as many pages are rewritten in place and fsynced, as many messages are appended to a mailbox, each fsynced, marked as read in place, each fsynced, and the mailbox is then replaced without the old ones.", edits.each),
        format!("andrew: make {dirs} directories, copy {files} files into them, scan once, read once, compile {sources}. The compilers' CPU time (user and system, in steps of 10 ms) is subtracted; of parallel clients their sum by the number of processors that they can use at once, so what remains is the waiting that compiling did not hide. System time counts: what the kernel does for a file system within the compiler is subtracted too."),
    ];
    all.extend(scale.further.method());
    all.extend([
        "What was written is compared after the last work.".to_owned(),
        format!("Without --target, each operation of the disk of our servers (a sync of a file or directory; of the export also a read that is not in its memory) takes {} ms, one after the other, beside what the machine's own disk takes. Names and attributes are on it when the server answers, except for \"plain async names\", which mounts a second server of ours that does not wait for them.", DISK_LATENCY.as_millis()),
        "plain writes as the kernel's NFS client does: asynchronously, by WRITE UNSTABLE, with COMMIT at close; \"plain sync\" has each write on the server's disk when it returns. nfs-ganesha has the machine's own disk, at its speed. So has local (ext4). local sync is an ext4 mounted with sync and dirsync, on a disk of which each sync takes as long as that of a volume; ext4 syncs its disk twice for each commit of its journal. tmpfs is in memory. passthrough is a tmpfs behind FUSE and nothing else: no cache, no server.".to_owned(),
        "Mounts with a class of durability have it for all files. \"exclusive\": names are made on the client's machine, where the class allows it; on the others they are at the server when a call returns. \"volume\": a volume of our own servers with a memory disk, where names are on its other disk when a call returns. What a class lets stay on the client's machine is not sent within the time that is measured.".to_owned(),
    ]);
    all
}

fn published(scale: Scale, clients: u32) -> Vec<Test> {
    let Scale { large_bytes, small_files, archive, edits, tree, .. } = scale;
    let cold = Before::DropMemory;
    let small_file = Arc::new(move |place: &WorkDir| small_file(place, small_files));
    vec![
        Test::timed("large-write", clients, cold, Arc::new(move |place| copy(place, large_bytes)))
            .furnished(move |place| {
                write_pattern(&mut File::create(place.at(LARGE))?, large(place), large_bytes)
            })
            .prepared(|place| Ok(fs::read(place.at(LARGE)).map(|_| "then the source read")?)),
        Test::rate("small-file", clients, "files/s", cold, small_file)
            .furnished(|place| Ok(fs::create_dir(place.at(SMALL))?)),
        Test::timed("untar", clients, cold, Arc::new(move |place| archive.unpack(place)))
            .furnished(move |place| archive.furnish(place))
            .prepared(archive::warm_up),
        Test::timed("edit", clients, cold, Arc::new(move |place| edits.edit(place)))
            .furnished(move |place| edits.furnish(place)),
        Test::timed("andrew", clients, cold, Arc::new(move |place| tree.all(place)))
            .furnished(move |place| tree.furnish(place))
            .prepared(andrew::warm_up),
    ]
}

/// The large file of a client.
fn large(place: &WorkDir) -> Pattern {
    Pattern(0x1a46e + u64::from(place.copy))
}

fn copy(place: &WorkDir, bytes: u64) -> Result<Outcome> {
    let copy = place.at("copy");
    let (mut from, mut to) = (File::open(place.at(LARGE))?, File::create_new(&copy)?);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => break,
            count => to.write_all(&piece[..count])?,
        }
    }
    drop(to);
    let pattern = large(place);
    Outcome::checked_at_end(move || {
        let read = fs::read(&copy)?;
        ensure!(read.len() as u64 == bytes, "{} bytes instead of {bytes}", read.len());
        pattern.check(0, &read).with_context(|| copy.display().to_string())
    })
}

fn small_file(place: &WorkDir, files: SmallFiles) -> Result<Outcome> {
    let dir = place.at(SMALL);
    let content = Pattern(u64::from(place.copy)).bytes(SMALL_BYTES);
    let (started, mut made) = (Instant::now(), 0);
    while made < files.count && started.elapsed() < files.time_max {
        let path = dir.join(format!("small-{made}"));
        let mut file = File::create_new(&path)?;
        file.write_all(&content)?;
        drop(file);
        fs::remove_file(path)?;
        made += 1;
    }
    let mut outcome = Outcome::of_amount(f64::from(made));
    outcome.extra.insert("files_per_client".to_owned(), f64::from(made));
    let again = dir.clone();
    Ok(outcome
        .and_check(move || check_deleted(&dir, "small-"))
        .and_check_at_end(move || check_deleted(&again, "")))
}

/// No name begins with this. At first only the deleted names must be gone: a client may keep a file
/// under another name for a moment, until all know that it was closed.
fn check_deleted(dir: &Path, prefix: &str) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let left = name.to_string_lossy().starts_with(prefix);
        ensure!(!left, "{} is still there", name.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_files_must_be_gone_and_nothing_may_stay() {
        let dir = tempfile::tempdir().unwrap();
        let check = |prefix| check_deleted(dir.path(), prefix);
        assert!(check("small-").is_ok() && check("").is_ok());
        fs::write(dir.path().join(".nfs1"), "").unwrap();
        assert!(check("small-").is_ok() && check("").is_err());
        fs::write(dir.path().join("small-1"), "").unwrap();
        assert_eq!(check("small-").unwrap_err().to_string(), "small-1 is still there");
    }
}
