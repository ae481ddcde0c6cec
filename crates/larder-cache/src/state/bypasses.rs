//! The bypasses of a file: how many are in progress, and the local file's stamp at their turning
//! points.
//!
//! A bypass that begins while another is in progress joins it: what the kernel wrote is compared
//! with the content from when the first began.

use larder_io::Stamp;

/// An event of a bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// What the kernel had written since an earlier run got the local file was found; before that
    /// it had this stamp.
    Found(Stamp),
    /// The bypass of an earlier run goes on in this one.
    GoesOn,
    /// The kernel gets the local file, which has this stamp; it may have it already.
    Begun(Stamp),
    /// The kernel gives it back once.
    Ended,
    /// It was compared; before that it had this stamp.
    Collected(Stamp),
    /// All its pages were on the disk when it had this stamp.
    Flushed(Stamp),
}

/// Bypasses of one file.
#[derive(Debug, Default)]
pub(crate) struct Bypasses {
    count: u32,
    /// The local file when what an earlier run's bypass had written was found.
    found_at: Option<Stamp>,
    /// None in a bypass that an earlier run began.
    begun_at: Option<Stamp>,
    /// The local file before the last comparing.
    collected_at: Option<Stamp>,
    flushed_at: Option<Stamp>,
    /// An earlier run died in a bypass: the kernel may still be writing.
    of_earlier_run: bool,
}

impl Bypasses {
    /// No bypass in this run; `goes_on` says whether the run before died during one.
    pub(crate) fn of_earlier_run(goes_on: bool) -> Bypasses {
        Bypasses { of_earlier_run: goes_on, ..Bypasses::default() }
    }

    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Found(stamp) => {
                assert_eq!(self.count, 0, "what an earlier run left is found first");
                self.found_at = Some(stamp);
            }
            Event::Begun(_) | Event::GoesOn if self.count > 0 => self.count += 1,
            Event::GoesOn => {
                *self = Bypasses { count: 1, found_at: self.found_at, ..Bypasses::default() };
            }
            Event::Begun(stamp) => {
                *self = Bypasses { count: 1, begun_at: Some(stamp), ..Bypasses::default() };
            }
            Event::Ended => {
                assert!(self.count > 0, "the kernel gives a local file back as often as it got it");
                self.count -= 1;
            }
            Event::Collected(stamp) => self.collected_at = Some(stamp),
            Event::Flushed(stamp) => self.flushed_at = Some(stamp),
        }
    }

    /// The previous run's bypass is over: the changes that it may have made are sent.
    pub(crate) fn end_of_earlier_run(&mut self) {
        self.of_earlier_run = false;
    }

    /// Whether the kernel writes the local file.
    pub(crate) fn go_on(&self) -> bool {
        self.count > 0
    }

    /// Whether the kernel may be writing it, from the point of view of a later run.
    pub(crate) fn may_go_on(&self) -> bool {
        self.count > 0 || self.of_earlier_run
    }

    /// Whether a local file with this stamp was compared since it was last written.
    pub(crate) fn is_collected(&self, now: Stamp) -> bool {
        self.collected_at == Some(now)
    }

    /// The same, or it was not compared yet, and has its stamp from when the bypass began, or from
    /// when what an earlier run's had written was found.
    pub(crate) fn is_seen(&self, now: Stamp) -> bool {
        self.collected_at.or(self.begun_at).or(self.found_at) == Some(now)
    }

    /// Whether a local file with this stamp has certainly not been written since the bypass began,
    /// or was compared. A store to a mapped page changes the file's time only if the page was
    /// clean: what an earlier run's bypass left tells nothing before all pages were on the disk.
    pub(crate) fn is_unwritten(&self, now: Stamp) -> bool {
        let compared = self.flushed_at.filter(|_| self.flushed_at == self.collected_at);
        [self.begun_at, compared].contains(&Some(now))
    }
}

impl super::State {
    /// See [`Event::Found`].
    pub(crate) fn find_bypassed(&mut self, looked: Stamp) {
        self.bypasses.apply(Event::Found(looked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH_MAX: usize = 7;

    fn stamp(number: u64) -> Stamp {
        Stamp { ino: number, size: 0, mtime_ns: 0, ctime_ns: 0 }
    }

    /// The stamps with which the local file was last compared, and last brought to the disk.
    fn last_looks(history: &[Event]) -> (Option<Stamp>, Option<Stamp>) {
        let last = |pick: fn(&Event) -> Option<Stamp>| history.iter().rev().find_map(pick);
        let collected = last(|event| match event {
            Event::Collected(stamp) => Some(*stamp),
            _ => None,
        });
        let flushed = last(|event| match event {
            Event::Flushed(stamp) => Some(*stamp),
            _ => None,
        });
        (collected, flushed)
    }

    /// What must be true after a history, computed from all of it.
    fn check(history: &[Event], found: &Bypasses) {
        let count_at = |at: usize| {
            let ended = history[..at].iter().filter(|event| **event == Event::Ended).count();
            let begun = history[..at].iter().filter(|e| matches!(e, Event::Begun(_))).count();
            begun - ended
        };
        assert_eq!(found.go_on(), count_at(history.len()) > 0, "{history:?}");
        assert_eq!(found.may_go_on(), found.go_on());
        // The present bypass began with the last event that found none.
        let begin = (0..history.len())
            .rev()
            .find(|at| matches!(history[*at], Event::Begun(_)) && count_at(*at) == 0);
        let Some(begin) = begin else { return };
        let Event::Begun(begun) = history[begin] else { return };
        let since = &history[begin..];
        let (collected, flushed) = last_looks(since);
        for now in [stamp(0), stamp(1)] {
            let is_compared = collected == Some(now);
            assert_eq!(found.is_collected(now), is_compared, "{history:?}");
            let is_seen = is_compared || (collected.is_none() && begun == now);
            assert_eq!(found.is_seen(now), is_seen, "{history:?}");
            let is_unwritten = begun == now || (is_compared && flushed == Some(now));
            assert_eq!(found.is_unwritten(now), is_unwritten, "{history:?}");
        }
    }

    /// Every history up to [`LENGTH_MAX`] events, with two possible stamps of the local file.
    #[test]
    fn every_history_is_judged_by_what_happened_since_the_bypass_began() {
        let looks = [stamp(0), stamp(1)];
        let events: Vec<Event> = [Event::Begun, Event::Collected, Event::Flushed]
            .into_iter()
            .flat_map(|event| looks.map(event))
            .chain([Event::Ended])
            .collect();
        let mut histories = vec![Vec::new()];
        let mut count = 0;
        for _ in 0..LENGTH_MAX {
            let longer = |history: &Vec<Event>| {
                events.iter().map(|event| [&history[..], &[*event]].concat()).collect::<Vec<_>>()
            };
            // Nothing happens to a bypass that does not go on.
            let is_possible = |history: &Vec<Event>| {
                let mut count = 0;
                history.iter().all(|event| {
                    let goes_on = count > 0;
                    match event {
                        Event::Begun(_) => count += 1,
                        Event::Ended if goes_on => count -= 1,
                        _ => (),
                    }
                    goes_on || matches!(event, Event::Begun(_))
                })
            };
            histories = histories.iter().flat_map(longer).filter(is_possible).collect();
            for history in &histories {
                let mut found = Bypasses::default();
                history.iter().for_each(|event| found.apply(*event));
                check(history, &found);
                count += 1;
            }
        }
        assert!(count > 100_000, "{count}");
    }

    /// However a bypass of an earlier run goes on: the local file is seen if it has the stamp from
    /// when it was last compared, or found; and certainly unwritten only if it was compared with
    /// all its pages on the disk.
    #[test]
    fn a_bypass_that_goes_on_is_judged_by_what_was_found() {
        let looks = [stamp(0), stamp(1)];
        let steps: Vec<Event> =
            [Event::Collected, Event::Flushed].into_iter().flat_map(|e| looks.map(e)).collect();
        let mut histories = vec![Vec::new()];
        for _ in 0..4 {
            for found_at in [None, Some(stamp(0)), Some(stamp(1))] {
                for history in &histories {
                    let mut found = Bypasses::of_earlier_run(true);
                    found_at.into_iter().for_each(|at| found.apply(Event::Found(at)));
                    found.apply(Event::GoesOn);
                    history.iter().for_each(|event| found.apply(*event));
                    let (collected, flushed) = last_looks(history);
                    assert!(found.go_on() && found.may_go_on());
                    for now in looks {
                        let what = format!("{found_at:?} {history:?}");
                        assert_eq!(
                            found.is_seen(now),
                            collected.or(found_at) == Some(now),
                            "{what}"
                        );
                        assert_eq!(found.is_collected(now), collected == Some(now), "{what}");
                        let is_unwritten = collected == Some(now) && flushed == Some(now);
                        assert_eq!(found.is_unwritten(now), is_unwritten, "{what}");
                    }
                }
            }
            let longer = |history: &Vec<Event>| {
                steps.iter().map(|step| [&history[..], &[*step]].concat()).collect::<Vec<_>>()
            };
            histories = histories.iter().flat_map(longer).collect();
        }
    }

    #[test]
    fn a_bypass_of_an_earlier_run_may_go_on_until_it_is_over_or_another_begins() {
        let mut found = Bypasses::of_earlier_run(true);
        assert!(found.may_go_on() && !found.go_on());
        found.end_of_earlier_run();
        assert!(!found.may_go_on());
        let mut found = Bypasses::of_earlier_run(true);
        found.apply(Event::Begun(stamp(1)));
        found.apply(Event::Ended);
        assert!(!found.may_go_on());
        assert!(!Bypasses::of_earlier_run(false).may_go_on());
    }
}
