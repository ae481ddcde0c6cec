//! 13 works of a caching NFS client (G. Badros, University of Washington, 1998), alone and then as
//! 4 parallel copies. The sizes are the published ones; the contents are made here.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::andrew::{self, Tree};
use super::archive::{self, Archive};
use super::{Before, Outcome, ROUNDS, Size, Suite, Test, WorkDir, write_pattern};
use crate::data::{Pattern, Random};

/// Numbers of copies.
const COPIES: [u32; 2] = [1, 4];

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Bytes of each of the two large files.
    large_bytes: u64,
    /// Bytes of the file that is read at random.
    random_bytes: u64,
    random_reads: u32,
    /// Files listed, in five directories.
    listed: u32,
    small_writes: u32,
    small_rewrites: u32,
    archive: Archive,
    /// The tree that the andrew tests copy and compile.
    tree: Tree,
}

impl Scale {
    fn of(size: Size) -> Scale {
        Scale {
            large_bytes: size.pick(1_500_000, 6_100_000),
            random_bytes: size.pick(1_000_000, 4_300_000),
            random_reads: size.pick_of(100, 300, 1000),
            listed: size.pick_of(100, 500, 500),
            small_writes: size.pick_of(200, 2000, 2000),
            small_rewrites: size.pick_of(50, 300, 1000),
            archive: Archive::of(size),
            tree: Tree::original(size),
        }
    }
}

const BIG: Pattern = Pattern(1);
const OTHER: Pattern = Pattern(2);
const RANDOM: Pattern = Pattern(3);

/// Most bytes of one read at random.
const RANDOM_READ_BYTES_MAX: u64 = 2663;

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let scale = Scale::of(size);
    let tests = COPIES.iter().flat_map(|copies| tests(scale, *copies)).collect();
    Suite {
        name: "badros",
        method: vec![
            "13 works, each alone and then all again as 4 parallel copies in directories of their own; disk caches are not emptied in between.".to_owned(),
            "Before each work, memory forgets all files on client and server; compiler and tar are then brought back, being no part of what is measured.".to_owned(),
            "ls reads the directories and asks for the attributes of every name. andrew-cpu counts the compiler's time, as published.".to_owned(),
            "What was read is compared byte by byte when the clock is stopped; what was written, after the last work.".to_owned(),
        ],
        tests,
        furnish: Arc::new(move |place| furnish(place, scale)),
        link_bits_per_s: Some(10_000_000),
        own_mounts: false,
        confinement: None,
        disk_latency: None,
        rounds: ROUNDS,
    }
}

fn tests(scale: Scale, copies: u32) -> Vec<Test> {
    fn test(
        name: &'static str,
        copies: u32,
        work: impl Fn(&WorkDir) -> Result<Outcome> + Send + Sync + 'static,
    ) -> Test {
        Test::timed(name, copies, Before::DropMemory, Arc::new(work))
    }
    let Scale { tree, archive, .. } = scale;
    vec![
        test("andrew-mkdir", copies, move |place| tree.mkdir(place).and_then(|()| Outcome::done())),
        test("andrew-copy", copies, move |place| andrew_copy(place, tree)),
        test("andrew-stat", copies, move |place| {
            tree.stat(place, 2).and_then(|()| Outcome::done())
        }),
        test("andrew-read", copies, move |place| {
            tree.read(place, 2).and_then(|()| Outcome::done())
        }),
        test("andrew-cpu", copies, move |place| tree.compile(place).and_then(|_| Outcome::done()))
            .prepared(andrew::warm_up),
        test("untar", copies, move |place| archive.unpack(place)).prepared(archive::warm_up),
        test("ls", copies, move |place| ls(place, scale)),
        test("read-big", copies, move |place| read_big(place, scale)),
        test("read-big-again", copies, move |place| read_big(place, scale)),
        test("copy-big", copies, move |place| copy_big(place, scale)),
        test("random-reads", copies, move |place| random_reads(place, scale)),
        test("small-writes", copies, move |place| small_writes(place, scale.small_writes)),
        test("small-rw", copies, move |place| small_rw(place, scale)),
    ]
}

fn furnish(place: &WorkDir, scale: Scale) -> Result<()> {
    for (name, pattern, bytes) in [
        ("big", BIG, scale.large_bytes),
        ("other", OTHER, scale.large_bytes),
        ("random", RANDOM, scale.random_bytes),
    ] {
        write_pattern(&mut File::create(place.at(name))?, pattern, bytes)?;
    }
    for i in 0..scale.listed {
        let listed = place.at("list").join((i % 5).to_string());
        fs::create_dir_all(&listed)?;
        fs::write(listed.join(format!("name-{i}")), "")?;
    }
    scale.tree.furnish(place)?;
    scale.archive.furnish(place)
}

fn andrew_copy(place: &WorkDir, tree: Tree) -> Result<Outcome> {
    tree.copy(place)?;
    let place = place.clone();
    Outcome::checked_at_end(move || tree.check(&place))
}

/// Four times, what `ls -lR` asks.
fn ls(place: &WorkDir, scale: Scale) -> Result<Outcome> {
    let mut seen = 0;
    for _ in 0..4 {
        for folder in fs::read_dir(place.at("list"))? {
            for entry in fs::read_dir(folder?.path())? {
                ensure!(entry?.metadata()?.is_file(), "not a file");
                seen += 1;
            }
        }
    }
    ensure!(seen == 4 * scale.listed, "{seen} names instead of {}", 4 * scale.listed);
    Outcome::done()
}

fn read_big(place: &WorkDir, scale: Scale) -> Result<Outcome> {
    let read = fs::read(place.at("big"))?;
    Outcome::checked(move || check_whole(BIG, &read, scale.large_bytes))
}

fn check_whole(pattern: Pattern, read: &[u8], bytes: u64) -> Result<()> {
    ensure!(read.len() as u64 == bytes, "{} bytes instead of {bytes}", read.len());
    pattern.check(0, read)
}

fn copy_big(place: &WorkDir, scale: Scale) -> Result<Outcome> {
    let copy = place.at("copy");
    fs::copy(place.at("other"), &copy)?;
    Outcome::checked_at_end(move || check_whole(OTHER, &fs::read(copy)?, scale.large_bytes))
}

fn random_reads(place: &WorkDir, scale: Scale) -> Result<Outcome> {
    let file = File::open(place.at("random"))?;
    let mut random = Random(u64::from(place.copy));
    let mut pieces = Vec::new();
    for _ in 0..scale.random_reads {
        let mut piece = vec![0; 1 + random.below(RANDOM_READ_BYTES_MAX) as usize];
        let offset = random.below(scale.random_bytes - RANDOM_READ_BYTES_MAX);
        file.read_exact_at(&mut piece, offset)?;
        pieces.push((offset, piece));
    }
    Outcome::checked(move || pieces.iter().try_for_each(|(at, piece)| RANDOM.check(*at, piece)))
}

/// The integers from 1 to `count`, one after the other.
fn integers(count: u32) -> String {
    (1..=count).map(|i| i.to_string()).collect()
}

/// Appends the integers from 1 to `count` to one file, each by a write of its own.
pub(super) fn small_writes(place: &WorkDir, count: u32) -> Result<Outcome> {
    let path = place.at("log");
    let mut file = File::create(&path)?;
    for i in 1..=count {
        file.write_all(i.to_string().as_bytes())?;
    }
    drop(file);
    Outcome::checked_at_end(move || check_integers(&path, count))
}

fn small_rw(place: &WorkDir, scale: Scale) -> Result<Outcome> {
    let path = place.at("rewritten");
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(&path)?;
    let mut all = String::new();
    for i in 1..=scale.small_rewrites {
        file.seek(SeekFrom::End(0))?;
        file.write_all(i.to_string().as_bytes())?;
        file.rewind()?;
        all.clear();
        file.read_to_string(&mut all)?;
    }
    drop(file);
    let outcome = Outcome::checked(move || {
        ensure!(all == integers(scale.small_rewrites), "wrong bytes");
        Ok(())
    })?;
    Ok(outcome.and_check_at_end(move || check_integers(&path, scale.small_rewrites)))
}

/// Also detects errors of the last close: dropping a file does not report them.
fn check_integers(path: &Path, count: u32) -> Result<()> {
    ensure!(fs::read_to_string(path)? == integers(count), "wrong bytes in {}", path.display());
    Ok(())
}
