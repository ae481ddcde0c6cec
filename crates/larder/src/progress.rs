//! How far long work is: counted by the daemon ([`Tally`]), and told to people by the command
//! ([`TimeLeft`], [`line`]). Pure functions of what was counted, and when.

use std::collections::VecDeque;
use std::time::Duration;

use larder_client::UnsentTotal;

use crate::control::Progress;
use crate::options::Bytes;

/// The time left is told by what was done in this time.
const WINDOW: Duration = Duration::from_secs(10);
/// Before so much time there is nothing to tell it by.
const WINDOW_MIN: Duration = Duration::from_millis(500);

/// What was sent, while more may be written: what is done and what is left are always the total.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    left: UnsentTotal,
    files: u64,
    bytes: u64,
}

impl Tally {
    /// Nothing is sent yet, and this is left.
    pub(crate) fn new(left: UnsentTotal) -> Tally {
        Tally { left, files: 0, bytes: 0 }
    }

    /// This is left now: there is less because it was sent, or more because it was written.
    pub(crate) fn see(&mut self, left: UnsentTotal) -> Progress {
        self.files += self.left.files.saturating_sub(left.files);
        self.bytes += self.left.bytes.saturating_sub(left.bytes);
        self.left = left;
        Progress {
            files: self.files,
            bytes: self.bytes,
            bytes_total: Some(self.bytes + left.bytes),
            files_total: Some(self.files + left.files),
        }
    }
}

/// How long work will take, by what was done lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeLeft {
    /// When which progress was told; the first is the last one before [`WINDOW`].
    seen: VecDeque<(Duration, Progress)>,
}

impl TimeLeft {
    /// Notes the progress at a time since the work began.
    pub(crate) fn see(&mut self, at: Duration, progress: Progress) {
        self.seen.push_back((at, progress));
        let is_old = |seen: &VecDeque<(Duration, Progress)>| {
            seen.get(1).is_some_and(|(second, _)| *second + WINDOW <= at)
        };
        while is_old(&self.seen) {
            self.seen.pop_front();
        }
    }

    /// Bytes per second, and how long the rest will take; `None`: that cannot be told, because the
    /// total is not known, or because something is left of which nothing was done lately.
    pub(crate) fn tell(&self) -> (Option<u64>, Option<Duration>) {
        let (Some((begin, first)), Some((end, last))) = (self.seen.front(), self.seen.back())
        else {
            return (None, None);
        };
        let time = *end - *begin;
        if time < WINDOW_MIN {
            return (None, None);
        }
        let bytes_done = last.bytes.saturating_sub(first.bytes);
        let rate = (bytes_done as f64 / time.as_secs_f64()) as u64;
        let of_bytes = needed(last.bytes_total, last.bytes, bytes_done, time);
        let files_done = last.files.saturating_sub(first.files);
        // Work whose files are not counted is told by its bytes.
        let files_total = last.files_total.or(last.bytes_total.map(|_| last.files));
        let of_files = needed(files_total, last.files, files_done, time);
        (Some(rate), of_bytes.zip(of_files).map(|(bytes, files)| bytes.max(files)))
    }
}

/// How long the rest takes if `done` of it took `time`.
fn needed(total: Option<u64>, so_far: u64, done: u64, time: Duration) -> Option<Duration> {
    match (total?.saturating_sub(so_far), done) {
        (0, _) => Some(Duration::ZERO),
        (_, 0) => None,
        (left, done) => {
            let seconds = time.as_secs_f64() * left as f64 / done as f64;
            Duration::try_from_secs_f64(seconds).ok()
        }
    }
}

/// The progress as a line: what is done, of how much, how fast, and how long the rest takes.
pub(crate) fn line(progress: Progress, left: &TimeLeft) -> String {
    let (rate, time) = left.tell();
    let mut line = match progress.bytes_total {
        Some(total) => format!("{} of {}", Bytes(progress.bytes), Bytes(total)),
        None => Bytes(progress.bytes).to_string(),
    };
    match progress.files_total {
        Some(total) => line += &format!(", {} of {total} files", progress.files),
        None if progress.files > 0 => line += &format!(", {} files", progress.files),
        None => {}
    }
    if let Some(rate) = rate {
        line += &format!(", {}/s", Bytes(rate));
    }
    if let Some(time) = time {
        line += &format!(", {} left", clock_time(time));
    }
    line
}

/// `7s`, `3min 5s`, `2h 40min`; rounded up.
fn clock_time(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}min {}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes}min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsent(files: u64, bytes: u64) -> UnsentTotal {
        UnsentTotal { files, bytes, ..UnsentTotal::default() }
    }

    fn of((files, files_total): (u64, u64), (bytes, bytes_total): (u64, u64)) -> Progress {
        Progress { files, bytes, bytes_total: Some(bytes_total), files_total: Some(files_total) }
    }

    /// What is done and what is left is the total, whatever is sent and written in between; what
    /// is done never becomes less.
    #[test]
    fn what_is_written_meanwhile_is_added_to_the_total() {
        let mut tally = Tally::new(unsent(10, 1000));
        for (left, told) in [
            ((10, 1000), of((0, 10), (0, 1000))),
            ((7, 600), of((3, 10), (400, 1000))),
            // Two more are written, and a long one.
            ((9, 5600), of((3, 12), (400, 6000))),
            ((9, 5000), of((3, 12), (1000, 6000))),
            ((0, 0), of((12, 12), (6000, 6000))),
        ] {
            assert_eq!(tally.see(unsent(left.0, left.1)), told);
        }
    }

    fn told(seen: &[(u64, Progress)]) -> (Option<u64>, Option<u64>) {
        let mut left = TimeLeft::default();
        for (seconds, progress) in seen {
            left.see(Duration::from_secs(*seconds), *progress);
        }
        let (rate, time) = left.tell();
        (rate, time.map(|time| time.as_secs()))
    }

    #[test]
    fn the_time_left_is_what_the_rest_takes_at_the_present_rate() {
        let bytes = |done| of((0, 0), (done, 1000));
        let files = |done| of((done, 100), (0, 0));
        for (seen, expected) in [
            (vec![], (None, None)),
            (vec![(1, bytes(500))], (None, None)),
            (vec![(0, bytes(0)), (1, bytes(100))], (Some(100), Some(9))),
            (vec![(0, bytes(0)), (4, bytes(1000))], (Some(250), Some(0))),
            // It has become slower: what was before the last ten seconds does not count.
            (vec![(0, bytes(0)), (1, bytes(500)), (11, bytes(600))], (Some(10), Some(40))),
            // It stands still.
            (vec![(0, bytes(0)), (1, bytes(500)), (12, bytes(500))], (Some(0), None)),
            // Names without bytes take time, too.
            (vec![(0, files(0)), (2, files(20))], (Some(0), Some(8))),
            (vec![(0, files(0)), (2, files(0))], (Some(0), None)),
            // The slower of both decides, and neither hides that the other stands still.
            (vec![(0, of((0, 10), (0, 100))), (1, of((5, 10), (10, 100)))], (Some(10), Some(9))),
            (vec![(0, of((0, 10), (0, 100))), (1, of((1, 10), (50, 100)))], (Some(50), Some(9))),
            (vec![(0, of((0, 10), (0, 100))), (1, of((0, 10), (50, 100)))], (Some(50), None)),
        ] {
            assert_eq!(told(&seen), expected, "{seen:?}");
        }
        let total_unknown = Progress { files: 1, bytes: 5, ..Progress::default() };
        assert_eq!(told(&[(0, Progress::default()), (1, total_unknown)]), (Some(5), None));
        let files_unknown = Progress { files_total: None, ..of((7, 0), (500, 1000)) };
        assert_eq!(told(&[(0, Progress::default()), (1, files_unknown)]), (Some(500), Some(1)));
    }

    /// At a constant rate the time left is right at each moment, however it is looked at.
    #[test]
    fn at_a_constant_rate_the_time_left_is_right() {
        const TOTAL: u64 = 1000;
        for rate in [1, 3, 17] {
            let mut left = TimeLeft::default();
            for seconds in 0..TOTAL / rate {
                let done = seconds * rate;
                left.see(Duration::from_secs(seconds), of((0, 0), (done, TOTAL)));
                let Some(time) = left.tell().1 else { continue };
                let right = (TOTAL - done) as f64 / rate as f64;
                assert!((time.as_secs_f64() - right).abs() < 0.01, "{time:?} at {seconds} s");
            }
        }
    }

    #[test]
    fn a_line_says_what_is_known() {
        let mut left = TimeLeft::default();
        let begin = of((0, 40), (0, 10 << 20));
        assert_eq!(line(begin, &left), "0 B of 10.0 MiB, 0 of 40 files");
        left.see(Duration::ZERO, begin);
        let half = of((10, 40), (5 << 20, 10 << 20));
        left.see(Duration::from_secs(5), half);
        assert_eq!(line(half, &left), "5.00 MiB of 10.0 MiB, 10 of 40 files, 1.00 MiB/s, 15s left");
        let warmed = Progress { files: 3, bytes: 2048, ..Progress::default() };
        assert_eq!(line(warmed, &TimeLeft::default()), "2.00 KiB, 3 files");
        for (seconds, shown) in
            [(0.0, "0s"), (0.2, "1s"), (59.0, "59s"), (61.0, "1min 1s"), (9600.0, "2h 40min")]
        {
            assert_eq!(clock_time(Duration::from_secs_f64(seconds)), shown);
        }
    }
}
