//! A directory of very many files: making, listing and removing them. The last tenth of each must
//! not take longer than the first.
//!
//! Some threads of one client work at once, as one alone would wait for the server most of the
//! time.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, ensure};

use crate::suite::{Before, Outcome, Test, WorkDir};

/// Where the files are.
const DIR: &str = "entries";
/// Threads that make and remove.
pub(super) const THREADS: u64 = 16;
/// What is timed by itself: so many parts one after the other.
const PARTS: u64 = 10;

/// Each uses what the one before has left.
pub(super) fn tests(count: u64) -> [Test; 3] {
    let test = |name, before, work| Test::rate(name, 1, "files/s", before, work);
    let create = move |place: &WorkDir| {
        in_parts(count, |i| {
            File::create_new(path(place, i))?;
            Ok(())
        })
    };
    let remove = move |place: &WorkDir| {
        let outcome = in_parts(count, |i| Ok(fs::remove_file(path(place, i))?))?;
        let dir = place.at(DIR);
        Ok(outcome.and_check(move || {
            let left = fs::read_dir(dir)?.count();
            ensure!(left == 0, "{left} files are left");
            Ok(())
        }))
    };
    [
        test("entries-create", Before::Nothing, Arc::new(create))
            .furnished(|place| Ok(fs::create_dir(place.at(DIR))?)),
        test("entries-list", Before::Restart, Arc::new(move |place| list(place, count))),
        test("entries-remove", Before::Nothing, Arc::new(remove)),
    ]
}

fn path(place: &WorkDir, i: u64) -> PathBuf {
    place.at(DIR).join(format!("f{i}"))
}

/// Does something with each file, one part after the other, by several threads.
fn in_parts(count: u64, each: impl Fn(u64) -> Result<()> + Sync) -> Result<Outcome> {
    let each = &each;
    let part = |part: u64| {
        let started = Instant::now();
        let all = count * part / PARTS..count * (part + 1) / PARTS;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let own = all.clone().skip(thread as usize).step_by(THREADS as usize);
                    scope.spawn(move || own.into_iter().try_for_each(each))
                })
                .collect();
            let panicked = |_| Err(Error::msg("a thread panicked"));
            threads.into_iter().try_for_each(|one| one.join().unwrap_or_else(panicked))
        })?;
        Ok(started.elapsed())
    };
    let times: Result<Vec<Duration>> = (0..PARTS).map(part).collect();
    Ok(outcome(count, &times?))
}

fn list(place: &WorkDir, count: u64) -> Result<Outcome> {
    let mut entries = fs::read_dir(place.at(DIR))?;
    let mut times = Vec::new();
    for part in 0..PARTS {
        let started = Instant::now();
        for _ in count * part / PARTS..count * (part + 1) / PARTS {
            entries.next().ok_or_else(|| Error::msg("too few entries"))??;
        }
        times.push(started.elapsed());
    }
    ensure!(entries.next().is_none(), "more than {count} entries");
    Ok(outcome(count, &times))
}

/// The amount, and what the first and the last part took.
fn outcome(count: u64, parts: &[Duration]) -> Outcome {
    let mut outcome = Outcome::of_amount(count as f64);
    let ends = [("first_tenth_s", parts.first()), ("last_tenth_s", parts.last())];
    for (name, time) in ends.into_iter().filter_map(|(name, time)| Some((name, time?))) {
        outcome.extra.insert(name.to_owned(), time.as_secs_f64());
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_made_listed_and_removed_once_and_the_ends_are_told() {
        let top = tempfile::tempdir().unwrap();
        let place = WorkDir::local(top.path(), 0);
        // Not as many in each part.
        let all = tests(123);
        (all[0].furnish.as_ref().unwrap())(&place).unwrap();
        for test in &all {
            let outcome = (test.work)(&place).unwrap();
            assert_eq!(outcome.amount, Some(123.0), "{}", test.name);
            assert_eq!(outcome.extra.len(), 2, "{}", test.name);
            outcome.check.map_or(Ok(()), |check| check()).unwrap();
            let left = fs::read_dir(place.at(DIR)).unwrap().count();
            assert_eq!(left, if test.name == "entries-remove" { 0 } else { 123 });
        }
        assert!((all[1].work)(&place).is_err(), "nothing is left to list");
        File::create_new(place.at(DIR).join("other")).unwrap();
        assert!(list(&place, 0).is_err(), "there is one more");
    }
}
