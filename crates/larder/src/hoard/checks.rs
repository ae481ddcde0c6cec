//! Comparing the local bytes of hoarded trees with their checksums, at intervals.
//!
//! A tree is due when its interval is over by the wall clock, which goes on while nothing is
//! mounted. The time of the last whole comparison is in the record of its pin. A comparison is
//! paced, gives way to every round, and goes on behind it where it was.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_cache::FileNo;
use larder_client::last_path;

use super::{File, Hoarded, Rounds};

/// Time between two comparisons of a tree.
const EVERY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes that are compared at once.
const SLICE_BYTES: u64 = 1 << 20;
/// The pause after each of them: about 16 MiB in a second.
const SLICE_PAUSE: Duration = Duration::from_millis(60);

/// Where comparisons are, and what they found.
#[derive(Debug)]
pub(super) struct Checks {
    every: Option<Duration>,
    /// How far each tree's comparison is that was begun.
    places: Mutex<BTreeMap<FileNo, Place>>,
    /// Wrong chunks since this process began.
    wrong: Mutex<BTreeMap<FileNo, u64>>,
    /// Held while the record of a pin is changed.
    records: Mutex<()>,
}

/// Files are compared in the order of their numbers: what is before this has been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: u64,
    offset: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checks {
    pub(super) fn new(every: Option<Duration>) -> Checks {
        let every = Some(every.unwrap_or(EVERY)).filter(|every| !every.is_zero());
        let (places, wrong, records) = (Mutex::default(), Mutex::default(), Mutex::default());
        Checks { every, places, wrong, records }
    }

    /// Changes the record of a pin.
    pub(super) fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        let _alone = lock(&self.records);
        change()
    }

    /// How many wrong chunks were found in a tree.
    pub(super) fn wrong(&self, top: FileNo) -> u64 {
        lock(&self.wrong).get(&top).copied().unwrap_or(0)
    }

    /// Whether a tree is to be compared now. A time that is still to come is none.
    fn is_due(&self, verified_sec: Option<u64>, now_sec: u64) -> bool {
        let Some(every) = self.every else { return false };
        let age = verified_sec.and_then(|then| now_sec.checked_sub(then));
        age.is_none_or(|age| age >= every.as_secs())
    }
}

impl Rounds {
    pub(super) fn wall_sec(&self) -> u64 {
        u64::try_from(self.clock.wall().sec).unwrap_or(0)
    }

    /// Compares the trees that are due, until all are done.
    pub(super) async fn check_due(&self, trees: Vec<(FileNo, Vec<File>)>) {
        for (top, mut files) in trees {
            let record = self.trees().into_iter().find(|(one, _)| *one == top);
            let Some((_, hoarded)) = record else { continue };
            if !self.checks.is_due(hoarded.verified_sec, self.wall_sec()) {
                continue;
            }
            files.sort_unstable_by_key(|file| file.ino);
            for file in files {
                self.check_file(top, file).await;
            }
            lock(&self.checks.places).remove(&top);
            self.note_verified(top, &hoarded);
        }
    }

    /// Compares what was not compared yet of a file. A file with local changes is left to the next
    /// time.
    async fn check_file(&self, top: FileNo, file: File) {
        let place = |offset| Place { file: file.ino.0, offset };
        let mut at = lock(&self.checks.places).get(&top).copied().unwrap_or_default();
        at = at.max(place(0));
        while at.file == file.ino.0 && at.offset < file.bytes {
            let (cache, from) = (self.cache.clone(), at.offset);
            let compared = tokio::task::spawn_blocking(move || {
                let file = cache.file(FileNo(file.ino.0));
                larder_io::behind_others(|| file.verify_again(from..from + SLICE_BYTES))
            });
            let (_, wrong) = compared.await.unwrap_or_default();
            at = place(from + SLICE_BYTES);
            lock(&self.checks.places).insert(top, at);
            if wrong > 0 {
                let path = last_path(&self.cache, FileNo(file.ino.0)).unwrap_or_default();
                tracing::error!(wrong, path = %path.display(),
                    "bytes of a hoarded file are not as they were stored: they are fetched anew");
                *lock(&self.checks.wrong).entry(top).or_default() += wrong;
                self.is_due.notify_one();
            }
            self.clock.sleep(SLICE_PAUSE).await;
        }
    }

    /// All of a tree was compared; unless it was pinned anew meanwhile, that is on record.
    fn note_verified(&self, top: FileNo, before: &Hoarded) {
        self.checks.alone(|| {
            let now = self.trees().into_iter().find(|(one, _)| *one == top);
            if let Some((_, now)) = now.filter(|(_, now)| now == before) {
                let verified = Hoarded { verified_sec: Some(self.wall_sec()), ..now };
                self.cache.pin_tree(top, Some(&verified.encode()));
            }
        });
    }
}
