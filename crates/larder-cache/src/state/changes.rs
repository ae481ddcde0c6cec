//! How the bytes here relate to the version that they are said to belong to.
//!
//! A file is *current* from the moment a version is set for its bytes until the first local change.
//! A change that the server acknowledged needs a version, too: the bytes no longer belong to the
//! previous one.

use larder_io::Monotonic;

/// An event of the bytes, as far as it concerns their version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A local change begins.
    Begun(Monotonic),
    /// A change that the kernel made itself was found.
    Found,
    /// The server has taken changes.
    Acknowledged,
    /// The bytes are those of a version that the server gave.
    Vouched,
    /// Which bytes are dirty has changed, or the bytes of those.
    Redirtied,
    /// All of the local file was synced.
    Synced,
}

/// The standing of the bytes.
#[derive(Debug)]
pub(crate) struct Changes {
    is_current: bool,
    /// Bytes were acknowledged since the version was set.
    is_acknowledged: bool,
    /// All of the local file was synced since its last local change.
    is_synced: bool,
    /// When the last local change began.
    begun_at: Option<Monotonic>,
    /// Counts the changes that invalidate a prepared save.
    count: u64,
}

impl Changes {
    /// Nothing has changed yet, in the `count`-th state that the file has.
    pub(crate) fn none(count: u64) -> Changes {
        let (is_acknowledged, is_synced) = (false, false);
        Changes { is_current: true, is_acknowledged, is_synced, begun_at: None, count }
    }

    /// Changes of an earlier run.
    pub(crate) fn of_earlier_run(is_acknowledged: bool, is_synced: bool, count: u64) -> Changes {
        Changes { is_current: false, is_acknowledged, is_synced, begun_at: None, count }
    }

    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Begun(now) => {
                self.is_current = false;
                self.is_synced = false;
                self.begun_at = Some(now);
            }
            Event::Found => self.is_current = false,
            Event::Acknowledged => {
                self.is_current = false;
                self.is_acknowledged = true;
            }
            Event::Vouched => {
                self.is_current = true;
                self.is_acknowledged = false;
            }
            Event::Redirtied => self.is_synced = false,
            Event::Synced => self.is_synced = true,
        }
        if !matches!(event, Event::Redirtied | Event::Synced) {
            self.count += 1;
        }
        debug_assert!(
            !(self.is_current && self.is_acknowledged),
            "bytes that the server took since have a version of their own"
        );
    }

    pub(crate) fn is_current(&self) -> bool {
        self.is_current
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced
    }

    pub(crate) fn begun_at(&self) -> Option<Monotonic> {
        self.begun_at
    }

    /// A different number than before means that a save prepared then is invalid now.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

impl Default for Changes {
    fn default() -> Changes {
        Changes::none(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH_MAX: u32 = 6;

    /// Every history up to [`LENGTH_MAX`] events, checked from its end.
    #[test]
    fn every_history_is_judged_by_the_last_event_that_matters() {
        let at = |secs: u64| Monotonic::from_nanos(secs);
        let events = [
            Event::Begun(at(1)),
            Event::Begun(at(2)),
            Event::Found,
            Event::Acknowledged,
            Event::Vouched,
            Event::Redirtied,
            Event::Synced,
        ];
        let mut count = 0;
        for length in 0..=LENGTH_MAX {
            for number in 0..events.len().pow(length) {
                let history: Vec<Event> = (0..length)
                    .map(|place| events[number / events.len().pow(place) % events.len()])
                    .collect();
                let mut found = Changes::default();
                history.iter().for_each(|event| found.apply(*event));
                check(&history, &found);
                count += 1;
            }
        }
        assert_eq!(count, (7_u32.pow(7) - 1) / 6);
    }

    fn check(history: &[Event], found: &Changes) {
        let rposition =
            |is: fn(&Event) -> bool| history.iter().rposition(is).map_or(0, |at| at + 1);
        let vouched = rposition(|event| *event == Event::Vouched);
        let acknowledged = rposition(|event| *event == Event::Acknowledged);
        let changed = rposition(|event| {
            matches!(event, Event::Begun(_) | Event::Found | Event::Acknowledged)
        });
        assert_eq!(found.is_current(), vouched >= changed, "{history:?}");
        assert_eq!(found.is_acknowledged(), acknowledged > vouched, "{history:?}");
        let synced = rposition(|event| *event == Event::Synced);
        let redirtied = rposition(|event| matches!(event, Event::Begun(_) | Event::Redirtied));
        assert_eq!(found.is_synced(), synced > redirtied, "{history:?}");
        let begun = history.iter().rev().find_map(|event| match event {
            Event::Begun(at) => Some(*at),
            _ => None,
        });
        assert_eq!(found.begun_at(), begun, "{history:?}");
        let counted = history.iter().filter(|e| !matches!(e, Event::Redirtied | Event::Synced));
        assert_eq!(found.count(), counted.count() as u64, "{history:?}");
    }
}
