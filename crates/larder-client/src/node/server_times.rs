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
//!
//! Some clocks have fine digits and move in steps of some milliseconds (Linux before 6.13). That is
//! noticed when two changes, the second one sent after the first was answered, have the same time.
//!
//! With a change attribute none of this matters. The server's clock is assumed never to be set
//! back.

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
    /// Greatest difference between a change time and our clock when it was seen, less the possible
    /// drift.
    ahead: Option<i128>,
}

impl Seen {
    fn nothing(fsid: u64) -> Seen {
        Seen { fsid, unit: SECOND_NS, ticks: false, ahead: None }
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
}

impl ServerTimes {
    /// Takes in a description that had come by `now`.
    pub(crate) fn see(&self, attr: &Attr, now: Monotonic) {
        self.update(attr, |seen| {
            while seen.unit > 1 && i128::from(attr.ctime.nsec) % seen.unit != 0 {
                seen.unit /= 10;
            }
            if seen.granule().is_some() {
                let ahead = nanos(attr.ctime) - passed(now);
                seen.ahead = Some(seen.ahead.map_or(ahead, |known| known.max(ahead)));
            }
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

    /// Whether a change may have the same time as the version `attr`, although it comes after a
    /// request that was sent at `asked`. Our own clocks show `now` and `wall`.
    pub(crate) fn is_young(
        &self,
        attr: &Attr,
        asked: Monotonic,
        (now, wall): (Monotonic, impl FnOnce() -> WallTime),
    ) -> bool {
        if attr.change.is_some() {
            return false;
        }
        let seen = self.of(attr.fsid);
        let Some(granule) = seen.granule() else { return false };
        let Some(ahead) = seen.ahead else { return true };
        let wall = wall();
        let our_time = nanos(Time { sec: wall.sec, nsec: wall.nsec });
        let since_ns = i128::from(now.as_nanos()) - i128::from(asked.as_nanos());
        let reached = (ahead + passed(asked)).min(our_time - since_ns);
        nanos(attr.ctime) + granule > reached
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

/// How much of our clock has passed at the server at least.
fn passed(now: Monotonic) -> i128 {
    let ours = i128::from(now.as_nanos());
    ours - ours / DRIFT_PARTS
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
                            let is_young = times.is_young(&version, at(asked), own_clock);
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
        assert!(!times.is_young(&fine, at(0), (at(0), || unreachable!("no need to look"))));
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

    /// Versions count as young for as long as they are in the future by our clock.
    #[test]
    fn what_is_of_the_future_tells_nothing() {
        let times = ServerTimes::default();
        times.see(&file_of(time(100_000_000)), at(0));
        let version = file_of(time(5_000_000));
        for (since, is_young) in [(1000, true), (1999, true), (2000, false)] {
            let own_clock = (at(1), || wall(5_000_001 + since));
            assert_eq!(times.is_young(&version, at(0), own_clock), is_young, "{since}");
        }
    }
}
