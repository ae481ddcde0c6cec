//! Suites: lists of tests, each some file work in a directory that is timed.

mod andrew;
mod archive;
mod badros;
mod basic5;
mod command;
mod fscache;
mod lan;
mod mbfs;
mod pieces;
mod snapdragon;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::data::Pattern;
use crate::stand::Confinement;
use crate::target::Target;

/// How much work a suite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Little: does everything work, are the counts right. Seconds.
    Smoke,
    /// So much that five rounds take some minutes: works that take long have smaller amounts.
    Short,
    /// As published.
    Full,
}

impl Size {
    /// Its name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Size::Smoke => "smoke",
            Size::Short => "short",
            Size::Full => "full",
        }
    }

    /// One of two amounts: sizes without an amount of their own use that of `smoke`.
    pub fn pick<T>(self, smoke: T, full: T) -> T {
        match self {
            Size::Smoke | Size::Short => smoke,
            Size::Full => full,
        }
    }

    /// One of three amounts.
    pub fn pick_of<T>(self, smoke: T, short: T, full: T) -> T {
        if self == Size::Short { short } else { self.pick(smoke, full) }
    }
}

/// Names of the suites, with a line about each.
pub const SUITES: [(&str, &str); 7] = [
    ("badros", "13 works of a caching NFS client, alone and as 4 parallel copies (Badros 1998)"),
    ("fscache", "one large file read cold, hot and from the page cache (FS-Cache for CIFS, 2010)"),
    (
        "mbfs",
        "5 works of 1 to 10 clients, from temporary files to durable edits (Anderson and Griffioen, 1999)",
    ),
    ("basic5", "writing and reading back one file in pieces of 8 KiB, by file size (CITI, 2001)"),
    (
        "snapdragon",
        "bandwidth of 6 clients by file size, latencies, a large tree (Aguilera et al., 2003)",
    ),
    ("disks", "1 to 7 disks of one volume, each used by one client (Aguilera et al., 2003)"),
    ("lan", "what a cache costs on a fast link: a stream, small files, git, tar, cp, rm (our own)"),
];

/// A list of tests that share what they are furnished with.
pub struct Suite {
    /// As in [`SUITES`].
    pub name: &'static str,
    /// Its method, in sentences for the report.
    pub method: Vec<String>,
    /// In the order in which they run: later ones may use what earlier ones left.
    pub tests: Vec<Test>,
    /// Puts what several tests need into the directory of one copy, which is empty. The place that
    /// it is given lies behind the target's back, if it has one.
    pub furnish: Untimed,
    /// Rate of the link that the published run had, in bits per second.
    pub link_bits_per_s: Option<u64>,
    /// Copies are clients: each has a mount of its own.
    pub own_mounts: bool,
    /// The server's resources, if the suite is about its memory and its disk.
    pub confinement: Option<Confinement>,
    /// How long each operation of the server's disk takes, if not the machine's own time.
    pub disk_latency: Option<Duration>,
    /// Most rounds, unless a run asks for another number.
    pub rounds: u32,
}

/// Most rounds of a suite that has no reason for another number.
pub const ROUNDS: u32 = 5;

/// A step for one copy while the time is not measured.
pub type Untimed = Arc<dyn Fn(&WorkDir) -> Result<()> + Send + Sync>;

/// The same just before the clock starts; returns what it did, for the record. Empty: nothing.
pub type Prepare = Arc<dyn Fn(&WorkDir) -> Result<&'static str> + Send + Sync>;

/// A test of a suite.
#[derive(Clone)]
pub struct Test {
    /// Name as published.
    pub name: &'static str,
    /// How many copies run at once, each in a directory of its own.
    pub copies: u32,
    /// The swept parameter.
    pub at: BTreeMap<String, f64>,
    /// Whether there is another client beside those of the copies ([`WorkDir::beside`]).
    pub has_other: bool,
    /// Unit of the result: `s` is the time of the work itself.
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
    /// Puts what it alone needs beside what the suite's tests share, and is given the same place.
    pub furnish: Option<Untimed>,
    /// What is done about caches before it.
    pub before: Before,
    /// What is done after that and before the clock starts, for one copy after the other, in the
    /// place of the work: reading what the work is to find in memory, changing a file on the
    /// server.
    pub prepare: Option<Prepare>,
    /// The work.
    pub work: Work,
}

impl Test {
    /// A timed test.
    pub fn timed(name: &'static str, copies: u32, before: Before, work: Work) -> Test {
        Test {
            name,
            copies,
            at: BTreeMap::new(),
            has_other: false,
            unit: "s",
            more_is_better: false,
            furnish: None,
            before,
            prepare: None,
            work,
        }
    }

    /// A test whose result is a rate: each copy's outcome tells an amount.
    pub fn rate(
        name: &'static str,
        copies: u32,
        unit: &'static str,
        before: Before,
        work: Work,
    ) -> Test {
        Test { unit, more_is_better: true, ..Test::timed(name, copies, before, work) }
    }

    /// How many clients it takes, where each copy is one.
    pub fn clients(&self) -> u32 {
        self.copies + u32::from(self.has_other)
    }

    /// At a place of a sweep.
    #[must_use]
    pub fn at(mut self, parameter: &str, value: f64) -> Test {
        self.at.insert(parameter.to_owned(), value);
        self
    }

    /// With another client that changes what the copies work on; its calls are not counted.
    #[must_use]
    pub fn beside_another(mut self) -> Test {
        self.has_other = true;
        self
    }

    /// With things of its own to work on.
    #[must_use]
    pub fn furnished(
        mut self,
        furnish: impl Fn(&WorkDir) -> Result<()> + Send + Sync + 'static,
    ) -> Test {
        self.furnish = Some(Arc::new(furnish));
        self
    }

    /// With something to be done just before the clock starts.
    #[must_use]
    pub fn prepared(
        mut self,
        prepare: impl Fn(&WorkDir) -> Result<&'static str> + Send + Sync + 'static,
    ) -> Test {
        self.prepare = Some(Arc::new(prepare));
        self
    }
}

/// What is done before a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing: cached data in memory may be used.
    Nothing,
    /// Memory forgets all files, of client and server alike; disk caches stay.
    DropMemory,
    /// A fresh mount with an empty disk cache, if the target can be mounted again; what the server
    /// has in memory stays.
    FreshClient,
    /// As after a restart of the client: also a fresh mount, if the target can be mounted again.
    Restart,
    /// The same, and its disk cache is emptied.
    RestartEmpty,
}

/// The work of one copy. Its time is the time of the call.
pub type Work = Arc<dyn Fn(&WorkDir) -> Result<Outcome> + Send + Sync>;

/// Where one copy works.
#[derive(Clone, Debug)]
pub struct WorkDir {
    /// Its directory on the target.
    pub dir: PathBuf,
    /// The same directory behind the target's back, on the server.
    pub back: Option<PathBuf>,
    /// The same directory as another client sees it, in which no copy works; its own, if the
    /// target has no such client.
    pub beside: PathBuf,
    /// Which of the copies it is, from 0.
    pub copy: u32,
}

impl WorkDir {
    /// A directory that is no copy's, on the local disk.
    fn aside(dir: &tempfile::TempDir) -> WorkDir {
        WorkDir::local(dir.path(), 0)
    }

    /// The directory of a copy on the local disk, where there are no clients.
    pub(crate) fn local(dir: &Path, copy: u32) -> WorkDir {
        WorkDir { dir: dir.to_path_buf(), back: None, beside: dir.to_path_buf(), copy }
    }

    /// A name in the directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Compares bytes with what they must be.
pub type Check = Box<dyn FnOnce() -> Result<()> + Send>;

/// The result of a work.
#[derive(Default)]
pub struct Outcome {
    /// The result, if it is neither the time nor a rate. For several copies the mean counts.
    pub value: Option<f64>,
    /// The amount of work done, if the result is a rate: the sum of all copies, divided by the
    /// time until the last one has ended.
    pub amount: Option<f64>,
    /// CPU time of a compiler, to be subtracted from the time, in seconds.
    pub subtract_s: Option<f64>,
    /// Further measurements, by name with unit. Of several copies the mean is recorded.
    pub extra: BTreeMap<String, f64>,
    /// Checks what was read. Runs when the clock is stopped.
    pub check: Option<Check>,
    /// Checks what was written, by reading it: runs after the last test of the round, because it
    /// fills caches.
    pub check_at_end: Option<Check>,
}

impl Outcome {
    /// Nothing to say.
    pub fn done() -> Result<Outcome> {
        Ok(Outcome::default())
    }

    /// With bytes to be compared when the clock is stopped.
    pub fn checked(check: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Outcome> {
        Ok(Outcome::default().and_check(check))
    }

    /// With files to be read at the end of the round.
    pub fn checked_at_end(check: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Outcome> {
        Ok(Outcome::default().and_check_at_end(check))
    }

    /// With an amount, for a rate.
    pub fn of_amount(amount: f64) -> Outcome {
        Outcome { amount: Some(amount), ..Outcome::default() }
    }

    /// Also with bytes to be compared when the clock is stopped.
    #[must_use]
    pub fn and_check(mut self, check: impl FnOnce() -> Result<()> + Send + 'static) -> Outcome {
        self.check = Some(Box::new(check));
        self
    }

    /// Also with files to be read at the end of the round.
    #[must_use]
    pub fn and_check_at_end(
        mut self,
        check: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Outcome {
        self.check_at_end = Some(Box::new(check));
        self
    }
}

/// The suite with a name.
///
/// # Errors
/// If there is none, with the existing names.
pub fn by_name(name: &str, size: Size) -> Result<Suite> {
    match name {
        "badros" => Ok(badros::suite(size)),
        "fscache" => Ok(fscache::suite(size)),
        "mbfs" => Ok(mbfs::suite(size)),
        "basic5" => Ok(basic5::suite(size)),
        "snapdragon" => Ok(snapdragon::suite(size)),
        "disks" => Ok(snapdragon::disks(size)),
        "lan" => Ok(lan::suite(size)),
        _ => {
            let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
            bail!("there is no suite {name}: {}", names.join(", "))
        }
    }
}

impl Suite {
    /// The places of a test's copies, on a target, in a round. Singles and parallel copies do not
    /// share.
    pub fn work_dirs(&self, test: &Test, target: &Target, round: u32) -> Vec<WorkDir> {
        (0..test.copies)
            .map(|copy| {
                let name = format!("{}-{round}/x{}-{copy}", self.name, test.copies);
                WorkDir {
                    dir: target.of_copy(copy).join(&name),
                    back: target.back.as_ref().map(|back| back.join(&name)),
                    beside: target
                        .of_copy(if test.has_other { test.copies } else { copy })
                        .join(&name),
                    copy,
                }
            })
            .collect()
    }
}

/// Writes the first `bytes` of a pattern.
fn write_pattern(file: &mut impl std::io::Write, pattern: Pattern, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let count = usize::try_from((bytes - at).min(buffer.len() as u64))?;
        pattern.fill(at, &mut buffer[..count]);
        file.write_all(&buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

/// Reads a file that [`write_pattern`] made as `cat` does, and counts. The check reads again: the
/// same pages, which are in memory now.
fn read_pattern(path: PathBuf, pattern: Pattern, bytes: u64) -> Result<Outcome> {
    const PIECE_BYTES: usize = 1 << 20;
    let (mut file, mut buffer, mut total) = (File::open(&path)?, vec![0; PIECE_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    Outcome::checked(move || {
        ensure!(total == bytes, "read {total} of {bytes} bytes");
        let mut file = File::open(&path)?;
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let count = usize::try_from(bytes - offset)?.min(PIECE_BYTES);
            file.read_exact(&mut buffer[..count])?;
            pattern.check(offset, &buffer[..count])?;
        }
        Ok(())
    })
}
