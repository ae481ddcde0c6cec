//! End and modification time of a file with bytes that the server lacks.

use larder_io::Stamp;
use larder_vfs::Time;

/// Size and modification time that applications see while the server does not know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalEnd {
    pub(crate) size: u64,
    pub(crate) mtime: Time,
}

impl LocalEnd {
    /// Those of a local file.
    pub(crate) fn of(stamp: &Stamp) -> LocalEnd {
        LocalEnd { size: stamp.size, mtime: time_of(stamp.mtime_ns) }
    }
}

/// The time that is this many nanoseconds after the start of 1970.
pub(crate) fn time_of(ns: i64) -> Time {
    let second = 1_000_000_000;
    let nsec = u32::try_from(ns.rem_euclid(second)).expect("less than a second");
    Time { sec: ns.div_euclid(second), nsec }
}

/// A modification time that a caller has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) time: Time,
    /// That of the local file when it was set: if it is later now, the file has been written
    /// since.
    pub(super) over: Time,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_io::{Clock, SimClock};
    use larder_vfs::Cred;

    use super::super::unsent::{Context, Event, Unsent};
    use super::*;

    /// Over each order of three inspections of the local file, a write and a utimes: the file has
    /// the time that was set if it was not written since, and that time is sent after the bytes.
    #[test]
    fn a_time_that_was_given_counts_until_the_next_write() {
        let (old, time) = (Time { sec: -5, nsec: 3 }, |sec| Time { sec, nsec: 0 });
        let context = |kernel_writes| Context {
            kernel_writes,
            now: SimClock::new().instant(),
            age: Duration::from_secs(30),
            is_away: false,
        };
        let end = |sec| LocalEnd { size: 7, mtime: time(sec) };
        let looks: [fn(LocalEnd) -> Event<'static>; 2] = [Event::KernelWrote, |end| {
            Event::Compared { took: Duration::ZERO, found: Some(Some(end)) }
        }];
        for (look, is_known) in looks.into_iter().flat_map(|look| [(look, false), (look, true)]) {
            let (mut unsent, context) = (Unsent::default(), context(true));
            let mut tell = |event| {
                let _ = unsent.apply(event, context);
                unsent.given_time()
            };
            if is_known {
                assert_eq!(tell(look(end(1))), None);
            }
            let given = Event::TimeGiven { time: old, over: time(1) };
            assert_eq!(tell(given), is_known.then_some(old));
            assert_eq!(tell(look(end(1))), Some(old), "as old as it was");
            assert_eq!(tell(look(end(2))), None, "written since");
            assert_eq!(tell(Event::TimeGiven { time: old, over: time(2) }), Some(old));
            let writer = Cred::root();
            let written = Event::Written { end: end(2), writer: &writer, is_over_another: false };
            assert_eq!(tell(written), None);
            assert_eq!(tell(look(end(2))), None, "the time is that of the write");
            assert_eq!(tell(Event::TimeGiven { time: old, over: time(3) }), Some(old));
            assert_eq!(tell(Event::Sent), None);
        }
    }
}
