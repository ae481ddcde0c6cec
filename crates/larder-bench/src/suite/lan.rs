//! What a cache costs where it cannot gain anything: on a link so fast that the server's memory is
//! as near as the client's disk. Not published elsewhere.
//!
//! The server has everything in memory; the client is cold: a fresh mount with an empty disk cache.
//! All the additional time of a cached target compared with a plain one is the cache's own work. No
//! kernel memory is dropped, so that runs can be made beside other work on the machine.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::archive::{self, Archive};
use super::command::run;
use super::{Before, Outcome, ROUNDS, Size, Suite, Test, WorkDir, read_pattern, write_pattern};
use crate::data::Pattern;
use crate::memory;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Scale {
    stream_bytes: u64,
    small_files: u32,
    archive: Archive,
    /// Number of objects that each of the [`PARALLEL`] makes and removes.
    made_each: u32,
    opens: u32,
}

const STREAM: &str = "stream";
const STREAM_SEED: u64 = 0x1a_0001;
const SMALL: &str = "small";
const SMALL_BYTES: usize = 4000;
/// Files in a directory.
const FANOUT: u32 = 100;
const REPOSITORY: &str = "repository";
const COPY: &str = "copied";
const PARALLEL: u32 = 10;

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let scale = Scale {
        stream_bytes: size.pick_of(4 << 20, 256 << 20, 1 << 30),
        small_files: size.pick_of(40, 1000, 2000),
        archive: Archive::of_files(size.pick_of(60, 1000, 2000), 5000),
        made_each: size.pick_of(5, 50, 100),
        opens: size.pick_of(50, 2000, 10_000),
    };
    Suite {
        name: "lan",
        method: method(scale),
        tests: [reading(scale), writing(scale)].concat(),
        furnish: Arc::new(|_| Ok(())),
        link_bits_per_s: None,
        own_mounts: false,
        confinement: None,
        disk_latency: None,
        rounds: ROUNDS,
    }
}

fn method(scale: Scale) -> Vec<String> {
    let Scale { stream_bytes, small_files, archive, made_each, opens } = scale;
    vec![
        "The link is loopback and the server has the files in memory. Cold is the client: a fresh mount with an empty disk cache. Nothing else is dropped.".to_owned(),
        format!("stream-cold: a file of {} MiB, read from beginning to end in pieces of 1 MiB. Six times as much memory is written to and freed just before: a virtual machine's host takes memory back that is not used, and supplying it again would be measured instead.", stream_bytes >> 20),
        format!("small-cold and small-warm: {small_files} files of {SMALL_BYTES} bytes, {FANOUT} in a directory, each opened, read and closed; warm is the same again."),
        format!("git-status-cold: status of a repository with these {small_files} files. The inode numbers in its index are the server's, so git reads every file."),
        format!("untar, cp-r, rm-r: {}, unpacked, copied within the mount, and the copy removed, with the system's programs.", archive.shown()),
        format!("create-unlink: {PARALLEL} at once, each in a directory of its own, create, write ({SMALL_BYTES} bytes), close and unlink {made_each} files, one after the other."),
        format!("open-close: one file, that was read before, opened and closed {opens} times."),
        "What was read is compared when the clock is stopped, what was written after the last work.".to_owned(),
    ]
}

fn reading(scale: Scale) -> Vec<Test> {
    let Scale { stream_bytes, small_files, .. } = scale;
    let small = Arc::new(move |place: &WorkDir| read_small(place, small_files));
    vec![
        Test::timed(
            "stream-cold",
            1,
            Before::FreshClient,
            Arc::new(move |place| {
                read_pattern(place.at(STREAM), Pattern(STREAM_SEED), stream_bytes)
            }),
        )
        .prepared(move |_| {
            // The pages of the mount, those of the local file, what the reader keeps to compare it,
            // and as much again: the kernel does not take free pages in the order in
            // which it got them.
            memory::touch(usize::try_from(6 * stream_bytes).unwrap_or(0));
            Ok("memory touched, so that the host has supplied it")
        })
        .furnished(move |place| {
            write_pattern(&mut File::create(place.at(STREAM))?, Pattern(STREAM_SEED), stream_bytes)
        }),
        Test::timed("small-cold", 1, Before::FreshClient, small.clone())
            .furnished(move |place| write_small(&place.at(SMALL), small_files)),
        Test::timed("small-warm", 1, Before::Nothing, small.clone()).prepared(move |place| {
            // Another target had its turn meanwhile.
            read_small(place, small_files)?;
            Ok("read once just before")
        }),
        Test::timed("git-status-cold", 1, Before::FreshClient, Arc::new(git_status))
            .furnished(move |place| make_repository(&place.at(REPOSITORY), small_files)),
    ]
}

fn writing(scale: Scale) -> Vec<Test> {
    let Scale { archive, made_each, opens, .. } = scale;
    vec![
        Test::timed("untar", 1, Before::FreshClient, Arc::new(move |place| archive.unpack(place)))
            .furnished(move |place| archive.furnish(place))
            .prepared(archive::warm_up),
        Test::timed("cp-r", 1, Before::Nothing, Arc::new(move |place| copy(place, archive))),
        Test::timed("rm-r", 1, Before::Nothing, Arc::new(remove)),
        Test::timed(
            "create-unlink",
            PARALLEL,
            Before::FreshClient,
            Arc::new(move |place| create_and_unlink(place, made_each)),
        ),
        Test::timed(
            "open-close",
            1,
            Before::Nothing,
            Arc::new(move |place| open_close(place, opens)),
        )
        .furnished(|place| Ok(fs::write(place.at("opened"), small_content(0))?))
        .prepared(|place| Ok(fs::read(place.at("opened")).map(|_| "read once just before")?)),
    ]
}

fn small_path(top: &Path, number: u32) -> PathBuf {
    top.join(format!("d{}/f{number}", number / FANOUT))
}

fn small_content(number: u32) -> Vec<u8> {
    Pattern(0x1a_1000 + u64::from(number)).bytes(SMALL_BYTES)
}

fn write_small(top: &Path, count: u32) -> Result<()> {
    for number in 0..count {
        let path = small_path(top, number);
        if number % FANOUT == 0 {
            fs::create_dir_all(path.parent().unwrap_or(top))?;
        }
        fs::write(path, small_content(number))?;
    }
    Ok(())
}

fn read_small(place: &WorkDir, count: u32) -> Result<Outcome> {
    let top = place.at(SMALL);
    let read: std::io::Result<Vec<Vec<u8>>> =
        (0..count).map(|number| fs::read(small_path(&top, number))).collect();
    let read = read?;
    Outcome::checked(move || {
        for (number, bytes) in (0..count).zip(read) {
            ensure!(bytes == small_content(number), "file {number}");
        }
        Ok(())
    })
}

/// git without settings of the user or the machine.
fn git(repository: &Path) -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    // A status that stores its results would be a different work the second time.
    git.env("GIT_OPTIONAL_LOCKS", "0");
    git.args([
        "-c",
        "safe.directory=*",
        "-c",
        "user.name=bench",
        "-c",
        "user.email=bench@localhost",
    ]);
    git.arg("-C").arg(repository);
    git
}

fn make_repository(top: &Path, count: u32) -> Result<()> {
    write_small(top, count)?;
    run(git(top).args(["init", "--quiet"]))?;
    run(git(top).args(["add", "."]))?;
    run(git(top).args(["commit", "--quiet", "-m", "all"]))?;
    // Loose objects would be as many files again.
    run(git(top).args(["gc", "--quiet"]))?;
    Ok(())
}

fn git_status(place: &WorkDir) -> Result<Outcome> {
    let said = run(git(&place.at(REPOSITORY)).args(["status", "--porcelain"]))?;
    Outcome::checked(move || {
        ensure!(said.is_empty(), "git sees changes: {said}");
        Ok(())
    })
}

fn copy(place: &WorkDir, archive: Archive) -> Result<Outcome> {
    run(Command::new("cp").arg("-r").arg(archive::unpacked(place)).arg(place.at(COPY)))?;
    let copied = place.at(COPY);
    Outcome::checked(move || archive.check_names(&copied))
}

fn remove(place: &WorkDir) -> Result<Outcome> {
    let copied = place.at(COPY);
    run(Command::new("rm").arg("-r").arg(&copied))?;
    Outcome::checked(move || {
        ensure!(!copied.exists(), "the copy is still there");
        Ok(())
    })
}

fn create_and_unlink(place: &WorkDir, count: u32) -> Result<Outcome> {
    let content = small_content(place.copy);
    for number in 0..count {
        let path = place.at(&format!("made-{number}"));
        let mut file = File::create_new(&path)?;
        file.write_all(&content)?;
        drop(file);
        fs::remove_file(path)?;
    }
    let dir = place.dir.clone();
    Outcome::checked(move || {
        let left = fs::read_dir(&dir)?.find_map(|entry| {
            let name = entry.ok()?.file_name().to_string_lossy().into_owned();
            name.starts_with("made-").then_some(name)
        });
        ensure!(left.is_none(), "{left:?} is still there");
        Ok(())
    })
}

fn open_close(place: &WorkDir, count: u32) -> Result<Outcome> {
    let path = place.at("opened");
    for _ in 0..count {
        drop(File::open(&path).with_context(|| path.display().to_string())?);
    }
    Outcome::done()
}
