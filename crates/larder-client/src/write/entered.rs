//! Which closed files this machine's disk is to have soon, and when ([`super::keep_soon`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_io::{Alarm, Clock};
use larder_vfs::Ino;

/// The files that are entered, and the alarm of the task.
#[derive(Default)]
pub(crate) struct KeepSoon {
    entered: Mutex<Entered>,
    alarm: Alarm,
}

/// The files that are entered.
#[derive(Debug, Default)]
struct Entered {
    /// Each with the number of its last entry. A file stays until what was entered is kept.
    files: HashMap<Ino, u64>,
    entries: u64,
    /// When all of them are kept; `None`: nothing was entered since they were kept last.
    due: Option<Instant>,
}

impl Entered {
    /// Something is to be kept at `due` at the latest.
    fn enter(&mut self, ino: Option<Ino>, due: Instant) {
        self.entries += 1;
        self.files.extend(ino.map(|ino| (ino, self.entries)));
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
    }

    /// All files, if the time has come.
    fn take_due(&mut self, now: Instant) -> Option<Vec<Ino>> {
        self.due.take_if(|due| *due <= now).map(|_| self.files.keys().copied().collect())
    }

    /// A file is kept as it was at this entry.
    fn kept(&mut self, ino: Ino, entry: Option<u64>) {
        if entry.is_some() && self.files.get(&ino).copied() == entry {
            self.files.remove(&ino);
        }
    }
}

impl KeepSoon {
    fn entered(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file, or names, are to be kept at `due` at the latest.
    pub(super) fn enter(&self, ino: Option<Ino>, due: Instant) {
        self.entered().enter(ino, due);
        self.alarm.set(due);
    }

    /// All files, if the time has come, and when it comes next.
    pub(super) fn take_due(&self, now: Instant) -> (Option<Vec<Ino>>, Option<Instant>) {
        let mut entered = self.entered();
        (entered.take_due(now), entered.due)
    }

    /// All files.
    pub(super) fn all(&self) -> Vec<Ino> {
        self.entered().files.keys().copied().collect()
    }

    /// Sleeps until then, or until something is to be kept earlier.
    pub(super) async fn sleep_until(&self, clock: &dyn Clock, until: Instant) {
        self.alarm.sleep_until(clock, until).await;
    }

    /// The last entry of a file; `None`: it is kept, or has nothing to keep.
    pub(crate) fn entry(&self, ino: Ino) -> Option<u64> {
        self.entered().files.get(&ino).copied()
    }

    /// A file is kept, sent or given up as it was at this entry.
    pub(super) fn kept(&self, ino: Ino, entry: Option<u64>) {
        self.entered().kept(ino, entry);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_io::SimClock;

    use super::*;

    /// All sequences of entries of two files, of the end of keeping what was entered at an earlier
    /// moment, and of the time that comes: what was entered last is kept after its entry, and not
    /// later than its time.
    #[test]
    fn what_is_entered_while_it_is_kept_is_kept_again() {
        #[derive(Clone, Copy, Debug)]
        enum Step {
            Enter(u64),
            Due,
            Kept(u64),
        }
        const STEPS: [Step; 5] =
            [Step::Enter(0), Step::Enter(1), Step::Due, Step::Kept(0), Step::Kept(1)];
        const LENGTH: u32 = 7;
        for sequence in 0..STEPS.len().pow(LENGTH) {
            let (mut entered, mut now) = (Entered::default(), SimClock::new().instant());
            // By file: whether an entry is not covered by keeping that began after it, and the
            // entry at which keeping has begun.
            let (mut open, mut begun) = ([false; 2], [None; 2]);
            let mut left = sequence;
            for _ in 0..LENGTH {
                let step = STEPS[left % STEPS.len()];
                left /= STEPS.len();
                match step {
                    Step::Enter(file) => {
                        entered.enter(Some(Ino(file)), now + Duration::from_secs(1));
                        open[usize::try_from(file).unwrap()] = true;
                    }
                    Step::Due => {
                        now += Duration::from_secs(1);
                        let taken = entered.take_due(now).unwrap_or_default();
                        for (file, is_open) in open.iter_mut().enumerate() {
                            let ino = Ino(file as u64);
                            assert!(!*is_open || taken.contains(&ino), "{sequence}: {step:?}");
                            if taken.contains(&ino) {
                                begun[file] = entered.files.get(&ino).copied();
                                *is_open = false;
                            }
                        }
                    }
                    Step::Kept(file) => {
                        let at = usize::try_from(file).unwrap();
                        entered.kept(Ino(file), begun[at].take());
                    }
                }
                for (file, is_open) in open.iter().enumerate() {
                    let has = entered.files.contains_key(&Ino(file as u64));
                    assert!(has || !is_open, "{sequence}: {step:?} forgets {file}");
                    assert!(
                        !is_open
                            || entered.due.is_some_and(|due| due <= now + Duration::from_secs(1))
                    );
                }
            }
        }
    }
}
