//! The resolution of the server's clock, and a lower bound of its time.
//!
//! A validator tells two versions of a file apart by their times. On a server that keeps whole
//! seconds (ext4 with small inodes, ext3, HFS+, FAT) a file that is changed twice within one, and
//! keeps its size, has the same validator after both. So a version that is younger than the
//! *granule* of these times when it is read vouches for nothing later (git calls such a file racy):
//! what is held of it is doubtful ([`crate::node::state`]).
//!
//! Both facts are learnt from what replies say anyway.
//! - The granule is the largest decimal unit of which all change times are multiples. Programs
//!   cannot set change times, as they can other times. Until one with finer digits was seen, a
//!   server counts as coarse. The server's own statement (RFC 1813, 3.3.19, `time_delta`) is
//!   useless: Linux and nfs-ganesha describe their code, and not the file system that they export.
//! - By our monotonic clock, less a margin for the drift, the server's time moved on from each
//!   change time that was seen. A change time may be in the future, because a clock was set; so the
//!   server's time is assumed to be no later than our own clock. If our clock is behind, versions
//!   count as young for longer, which costs requests.
//! - A file that has changed since it was last seen shows what time the server had since then. If
//!   that is less than the bound, the server's clock was *set back*. From then on only such changes
//!   tell the time, because all other change times may be of the server's future; and a version of
//!   that future vouches for nothing, however long ago it was read.
//!
//! Some clocks have fine digits and move in steps of some milliseconds (Linux before 6.13). That is
//! noticed when two changes, the second one sent after the first was answered, have the same time.
//!
//! With a change attribute none of this matters. Until a change shows that the server's clock was
//! set back, nobody can know it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_io::{Monotonic, WallTime};
use larder_vfs::{Attr, Change, Time};

const SECOND_NS: i128 = 1_000_000_000;
/// Where all times are whole seconds: FAT keeps every other one only.
const WHOLE_SECONDS_NS: i128 = 2 * SECOND_NS;
/// Units below this are shorter than any round trip, in which two changes may follow on each other.
const FINE_NS: i128 = 10_000;
/// The longest tick of Linux's clock (`CONFIG_HZ=100`).
const TICK_NS: i128 = 10_000_000;
/// Clocks are assumed to drift apart by one part in this many at most: adjtimex(2) slews by half of
/// it.
const DRIFT_PARTS: i128 = 1000;
/// File systems below one mount for which this is known. Others are unknown, so they count as
/// coarse.
const FILE_SYSTEMS_MAX: usize = 64;

/// What is known of the clock that gives a server's file systems their times.
#[derive(Debug, Default)]
pub(crate) struct ServerTimes(Mutex<Vec<Seen>>);

/// What the change times of one file system have shown.
#[derive(Clone, Copy, Debug)]
struct Seen {
    fsid: u64,
    /// Largest power of ten, at most a second, of which all change times are multiples; in
    /// nanoseconds.
    unit: i128,
    /// Two changes had the same time, although they were apart.
    ticks: bool,
    reached: Option<Reached>,
    /// The clock was set back while we looked.
    was_set_back: bool,
}

/// A time that the server's clock had reached at a moment of ours.
#[derive(Clone, Copy, Debug)]
struct Reached {
    time: i128,
    at: Monotonic,
}

impl Reached {
    /// The earliest time that the server's clock can have had at another moment, unless it was set.
    fn by(&self, moment: Monotonic) -> i128 {
        let ours = i128::from(moment.as_nanos()) - i128::from(self.at.as_nanos());
        self.time + ours - ours.abs() / DRIFT_PARTS
    }
}

/// What the age of a version says of bytes and names that have this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// They have each change that came before the version was asked for.
    Old,
    /// A later change may have the same time: what is read from then on vouches for nothing.
    Young,
    /// It is of the server's future, whose clock was set back: what was read earlier vouches for
    /// nothing either.
    OfTheFuture,
}

impl Age {
    pub(crate) fn is_young(self) -> bool {
        self != Age::Old
    }
}

impl Seen {
    fn nothing(fsid: u64) -> Seen {
        Seen { fsid, unit: SECOND_NS, ticks: false, reached: None, was_set_back: false }
    }

    /// Changes that are closer together may have the same time; `None` if no two changes have the
    /// same time.
    fn granule(&self) -> Option<i128> {
        match self.unit {
            SECOND_NS => Some(WHOLE_SECONDS_NS),
            unit if unit >= FINE_NS => Some(unit),
            _ => self.ticks.then_some(TICK_NS),
        }
    }

    /// The clock had reached this time by `now`.
    fn reach(&mut self, time: i128, now: Monotonic) {
        if self.reached.is_none_or(|known| known.by(now) < time) {
            self.reached = Some(Reached { time, at: now });
        }
    }
}

impl ServerTimes {
    /// Takes in a description that had come by `now`.
    pub(crate) fn see(&self, attr: &Attr, now: Monotonic) {
        self.update(attr, |seen| {
            while seen.unit > 1 && i128::from(attr.ctime.nsec) % seen.unit != 0 {
                seen.unit /= 10;
            }
            if seen.granule().is_some() && !seen.was_set_back {
                seen.reach(nanos(attr.ctime), now);
            }
        });
    }

    /// Takes in a description that had come by `now`, of a file that was different at some moment
    /// since `before`; `None`: in an earlier session.
    pub(crate) fn see_next(
        &self,
        last: &Attr,
        before: Option<Monotonic>,
        attr: &Attr,
        now: Monotonic,
    ) {
        if last.ctime == attr.ctime && last.size == attr.size && last.mtime == attr.mtime {
            return;
        }
        self.update(attr, |seen| {
            let Some(granule) = seen.granule() else { return };
            let time = nanos(attr.ctime);
            let reached = seen.reached.zip(before).map(|(reached, moment)| reached.by(moment));
            let is_back = time < nanos(last.ctime);
            if is_back || reached.is_some_and(|reached| time + granule < reached) {
                tracing::debug!(fsid = seen.fsid, "the server's clock was set back");
                (seen.was_set_back, seen.reached) = (true, None);
            }
            seen.reach(time, now);
        });
    }

    /// Processes the reply to a change of ours that always moves the change time.
    pub(crate) fn see_step(&self, change: &Change) {
        let Change { before: Some(before), after: Some(after) } = change else { return };
        if before.ctime == after.ctime {
            self.update(after, |seen| {
                if !std::mem::replace(&mut seen.ticks, true) {
                    tracing::debug!(fsid = seen.fsid, "two changes at the server have one time");
                }
            });
        }
    }

    /// Whether a change by another client may have the same time as a change of ours that was just
    /// answered with `attr`.
    pub(crate) fn is_coarse(&self, attr: &Attr) -> bool {
        attr.change.is_none() && self.of(attr.fsid).granule().is_some()
    }

    /// How old the version `attr` was when it was asked for: it is young if a change that comes
    /// later may have the same time. Our own clocks show `now` and `wall`.
    pub(crate) fn age(
        &self,
        attr: &Attr,
        asked: Monotonic,
        (now, wall): (Monotonic, impl FnOnce() -> WallTime),
    ) -> Age {
        if attr.change.is_some() {
            return Age::Old;
        }
        let seen = self.of(attr.fsid);
        let Some(granule) = seen.granule() else { return Age::Old };
        let Some(reached) = seen.reached else { return Age::Young };
        let wall = wall();
        let our_time = nanos(Time { sec: wall.sec, nsec: wall.nsec });
        let since_ns = i128::from(now.as_nanos()) - i128::from(asked.as_nanos());
        let reached = reached.by(asked).min(our_time - since_ns);
        match nanos(attr.ctime) + granule > reached {
            true if seen.was_set_back => Age::OfTheFuture,
            true => Age::Young,
            false => Age::Old,
        }
    }

    fn of(&self, fsid: u64) -> Seen {
        let seen = self.lock().iter().find(|seen| seen.fsid == fsid).copied();
        seen.unwrap_or_else(|| Seen::nothing(fsid))
    }

    fn update(&self, attr: &Attr, with: impl FnOnce(&mut Seen)) {
        if attr.change.is_some() {
            return;
        }
        let mut all = self.lock();
        if let Some(seen) = all.iter_mut().find(|seen| seen.fsid == attr.fsid) {
            with(seen);
        } else if all.len() < FILE_SYSTEMS_MAX {
            let mut seen = Seen::nothing(attr.fsid);
            with(&mut seen);
            all.push(seen);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.sec) * SECOND_NS + i128::from(time.nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::file_of;
    use larder_vfs::Before;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn time(ms: u64) -> Time {
        Time { sec: i64::try_from(ms / 1000).unwrap(), nsec: (ms % 1000) as u32 * 1_000_000 }
    }

    fn wall(ms: u64) -> WallTime {
        let Time { sec, nsec } = time(ms);
        WallTime { sec, nsec }
    }

    /// A file is changed, described, and changed again, at all moments of some granules, with
    /// clocks that are apart in both directions and drift, after another file of any age was seen.
    /// Whenever the second change has the time of the first, the description was considered young.
    /// With clocks that agree, it is not considered young for ever.
    #[test]
    fn what_a_later_change_could_hide_behind_is_young() {
        const OURS: u64 = 1_000_000;
        for granule in [2, 10, 100, 1000, 2000] {
            for (server, faster) in [(0, 0), (0, 400), (3_000_000, 0), (3_000_000, 400)] {
                // The server's time at a moment of our clock; it may be slower by one part in
                // `faster`.
                let there = |ours: u64| {
                    5_000_000 + server + ours - ours.checked_div(faster * 5).unwrap_or(0)
                };
                let told = |ours: u64| file_of(time(there(ours) / granule * granule));
                let (mut hidden, mut old) = (0, 0);
                for other in [0, OURS - 10 * granule, OURS + 7 * granule] {
                    for changed in (0..8).map(|part| OURS + part * granule / 4) {
                        for asked in (0..24).map(|part| changed + part * granule / 4) {
                            let times = ServerTimes::default();
                            if other <= asked {
                                times.see(&told(other), at(other.max(OURS)));
                            }
                            let (version, came) = (told(changed), asked + 1);
                            times.see(&version, at(came));
                            let own_clock = (at(came), || wall(5_000_000 + came));
                            let is_young = times.age(&version, at(asked), own_clock).is_young();
                            let is_hidden = told(asked) == version;
                            assert!(is_young || !is_hidden, "{granule} {server} {changed} {asked}");
                            hidden += u32::from(is_hidden);
                            old += u32::from(!is_young);
                        }
                    }
                }
                assert!(hidden > 0);
                assert!(old > 0 || server > 0 || faster > 0, "nothing is ever believed: {granule}");
            }
        }
    }

    #[test]
    fn fine_clocks_leave_nothing_young() {
        let times = ServerTimes::default();
        let fine = file_of(Time { sec: 5, nsec: 1_234_567 });
        assert!(times.is_coarse(&fine), "until it is known better");
        for (nsec, coarse) in [(0, true), (500_000_000, true), (120_000, true), (1_000, false)] {
            times.see(&file_of(Time { sec: 5, nsec }), at(0));
            assert_eq!(times.is_coarse(&fine), coarse, "{nsec}");
        }
        let own_clock = (at(0), || unreachable!("no need to look"));
        assert_eq!(times.age(&fine, at(0), own_clock), Age::Old);
        assert!(times.is_coarse(&Attr { fsid: 2, ..fine }), "another file system is another clock");
        assert!(!times.is_coarse(&Attr { fsid: 2, change: Some(1), ..fine }));
    }

    #[test]
    fn fine_digits_of_a_clock_that_ticks_are_found_out() {
        let times = ServerTimes::default();
        let fine = file_of(Time { sec: 5, nsec: 1_234_567 });
        times.see(&fine, at(0));
        let Attr { size, mtime, ctime, change, .. } = fine;
        let before = |ctime| Some(Before { size, mtime, ctime, change, data_change: None });
        let earlier = Time { sec: 5, nsec: 234_567 };
        times.see_step(&Change { before: before(earlier), after: Some(fine) });
        assert!(!times.is_coarse(&fine), "it moved on");
        times.see_step(&Change { before: before(ctime), after: Some(fine) });
        assert!(times.is_coarse(&fine), "it stood still");
    }

    /// A file is changed after it was seen and before it is seen again. (when it was seen, if in
    /// this session; its change time then and now; whether the clock was set back), where another
    /// file was changed and seen at 100 s.
    #[test]
    fn a_change_shows_that_the_clock_was_set_back() {
        for (before, last, next, is_back) in [
            (Some(100_000), 50_000, 98_000, false),
            (Some(100_000), 50_000, 97_000, true),
            (Some(200_000), 50_000, 197_900, false),
            (Some(200_000), 50_000, 197_000, true),
            // The clocks may have drifted since.
            (Some(50_000), 40_000, 47_951, false),
            (Some(50_000), 40_000, 47_000, true),
            (None, 50_000, 51_000, false),
            (None, 50_000, 49_000, true),
            (Some(200_000), 50_000, 50_000, false),
        ] {
            let times = ServerTimes::default();
            times.see(&file_of(time(100_000)), at(100_000));
            let (last, next) = (file_of(time(last)), file_of(time(next)));
            times.see_next(&last, before.map(at), &next, at(250_000));
            let young = file_of(time(299_000));
            let age = times.age(&young, at(300_000), (at(300_000), || wall(300_000)));
            let expected = if is_back { Age::OfTheFuture } else { Age::Young };
            assert_eq!(age, expected, "{before:?} {:?} {:?}", last.ctime, next.ctime);
        }
    }

    /// Versions count as young for as long as they are in the future by our clock.
    #[test]
    fn what_is_of_the_future_tells_nothing() {
        let times = ServerTimes::default();
        times.see(&file_of(time(100_000_000)), at(0));
        let version = file_of(time(5_000_000));
        for (since, is_young) in [(1000, true), (1999, true), (2000, false)] {
            let own_clock = (at(1), || wall(5_000_001 + since));
            assert_eq!(times.age(&version, at(0), own_clock).is_young(), is_young, "{since}");
        }
    }
}
