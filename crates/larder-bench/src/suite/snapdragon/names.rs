//! Rates of names: making, asking, small files for a moment, removing; by one client and by many.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};

use crate::suite::{Before, Outcome, Test, WorkDir};

/// Where the files are.
const DIR: &str = "names";
/// What a file of the cycle holds.
const FILE_BYTES: usize = 4096;

/// Each with one client, then with many, who have directories of their own.
pub(super) fn tests(many: u32, count: u32) -> Vec<Test> {
    [1, many].into_iter().flat_map(|clients| of(clients, count)).collect()
}

/// Later ones use what earlier ones made.
fn of(clients: u32, count: u32) -> [Test; 5] {
    let test = |name, before, each: fn(&WorkDir, u32) -> Result<()>| {
        let work = Arc::new(move |place: &WorkDir| {
            (0..count).try_for_each(|i| each(place, i))?;
            let mut outcome = Outcome::of_amount(count.into());
            // Copies have as many each, and the calls of all are counted.
            let all = f64::from(clients) * f64::from(count);
            outcome.extra.insert("operations".to_owned(), all);
            Ok(outcome)
        });
        Test::rate(name, clients, "files/s", before, work)
    };
    [
        test("create", Before::Nothing, create)
            .furnished(|place| Ok(fs::create_dir(place.at(DIR))?)),
        test("stat", Before::Restart, stat),
        test("open-again", Before::Nothing, open).prepared(move |place| {
            (0..count).try_for_each(|i| open(place, i))?;
            Ok("each opened once")
        }),
        test("unlink", Before::Nothing, |place, i| Ok(fs::remove_file(path(place, i))?)),
        test("small-file", Before::Nothing, cycle),
    ]
}

fn path(place: &WorkDir, i: u32) -> PathBuf {
    place.at(DIR).join(format!("f{i}"))
}

fn create(place: &WorkDir, i: u32) -> Result<()> {
    File::create_new(path(place, i))?;
    Ok(())
}

fn stat(place: &WorkDir, i: u32) -> Result<()> {
    let path = path(place, i);
    ensure!(path.metadata()?.len() == 0, "{} is not empty", path.display());
    Ok(())
}

fn open(place: &WorkDir, i: u32) -> Result<()> {
    stat(place, i)?;
    File::open(path(place, i))?;
    Ok(())
}

/// A file is made, written, synced, closed and removed.
fn cycle(place: &WorkDir, i: u32) -> Result<()> {
    let path = path(place, i);
    let mut file = File::create_new(&path)?;
    file.write_all(&[1; FILE_BYTES])?;
    file.sync_all()?;
    drop(file);
    Ok(fs::remove_file(&path)?)
}
