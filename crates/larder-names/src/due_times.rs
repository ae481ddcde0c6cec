//! When what waits is made at the server.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::object::ObjectNo;

/// Most objects that may wait: they are in memory. Further names are made at the server at once.
pub(crate) const WAITING_MAX: usize = 1 << 16;
/// With this many, all are due, so that callers need not wait for the server later on.
const CROWDED: usize = WAITING_MAX / 4 * 3;
/// They are again when so many more have come.
const CROWDED_STEP: usize = WAITING_MAX / 16;

/// The time of each object that waits.
#[derive(Debug)]
pub(crate) struct DueTimes {
    of: HashMap<ObjectNo, Instant>,
    in_order: BTreeSet<(Instant, ObjectNo)>,
    /// With this many, all are due next.
    crowded_at: usize,
}

impl DueTimes {
    /// These wait, and are due at `now`.
    pub(crate) fn new(waiting: impl Iterator<Item = ObjectNo>, now: Instant) -> DueTimes {
        let of: HashMap<_, _> = waiting.map(|no| (no, now)).collect();
        let in_order = of.iter().map(|(no, due)| (*due, *no)).collect();
        DueTimes { of, in_order, crowded_at: CROWDED }
    }

    pub(crate) fn get(&self, no: ObjectNo) -> Option<Instant> {
        self.of.get(&no).copied()
    }

    /// All that wait, with their times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObjectNo, Instant)> {
        self.of.iter().map(|(no, due)| (*no, *due))
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.in_order.first().map(|(due, _)| *due)
    }

    pub(crate) fn set(&mut self, no: ObjectNo, due: Instant) {
        if let Some(before) = self.of.insert(no, due) {
            self.in_order.remove(&(before, no));
        }
        self.in_order.insert((due, no));
        debug_assert_eq!(self.of.len(), self.in_order.len(), "each has one time");
    }

    /// An object that waits is due at `now` at the latest.
    pub(crate) fn hurry(&mut self, no: ObjectNo, now: Instant) {
        if self.get(no).is_some_and(|due| due > now) {
            self.set(no, now);
        }
    }

    /// All are due.
    pub(crate) fn hurry_all(&mut self, now: Instant) {
        self.of.values_mut().for_each(|due| *due = now);
        self.in_order = self.of.iter().map(|(no, due)| (*due, *no)).collect();
    }

    /// Has all made soon if there is little room for more. Returns whether that is news.
    pub(crate) fn make_room(&mut self, now: Instant) -> bool {
        if self.of.len() < CROWDED {
            self.crowded_at = CROWDED;
        }
        let is_crowded = self.of.len() >= self.crowded_at;
        if is_crowded {
            self.crowded_at = self.of.len() + CROWDED_STEP;
            self.hurry_all(now);
        }
        is_crowded
    }

    pub(crate) fn remove(&mut self, no: ObjectNo) {
        if let Some(due) = self.of.remove(&no) {
            self.in_order.remove(&(due, no));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_io::{Clock, SimClock};

    use super::*;

    /// All sequences of five steps over two objects, compared with a list.
    #[test]
    fn the_first_time_is_that_of_an_object_that_waits() {
        #[derive(Clone, Copy, Debug)]
        enum Step {
            Set(u64, u64),
            Hurry(u64),
            HurryAll,
            Remove(u64),
        }
        const STEPS: [Step; 9] = [
            Step::Set(0, 5),
            Step::Set(0, 9),
            Step::Set(1, 5),
            Step::Set(1, 7),
            Step::Hurry(0),
            Step::Hurry(1),
            Step::HurryAll,
            Step::Remove(0),
            Step::Remove(1),
        ];
        let start = SimClock::new().instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        for sequence in 0..STEPS.len().pow(5) {
            let (mut times, mut list, mut rest) =
                (DueTimes::new(None.into_iter(), start), [None, None], sequence);
            for now in 4..9 {
                let step = STEPS[rest % STEPS.len()];
                rest /= STEPS.len();
                let hurried = |due: Option<Instant>| due.map(|due| due.min(at(now)));
                match step {
                    Step::Set(no, due) => {
                        times.set(ObjectNo(no), at(due));
                        list[no as usize] = Some(at(due));
                    }
                    Step::Hurry(no) => {
                        times.hurry(ObjectNo(no), at(now));
                        list[no as usize] = hurried(list[no as usize]);
                    }
                    Step::HurryAll => {
                        times.hurry_all(at(now));
                        list = list.map(|due| due.map(|_| at(now)));
                    }
                    Step::Remove(no) => {
                        times.remove(ObjectNo(no));
                        list[no as usize] = None;
                    }
                }
                assert_eq!([0, 1].map(|no| times.get(ObjectNo(no))), list, "{sequence}");
                assert_eq!(times.first(), list.into_iter().flatten().min(), "{sequence}");
            }
        }
    }

    #[test]
    fn what_waits_is_due_before_there_is_no_room() {
        let (now, later) = (SimClock::new().instant(), Duration::from_secs(600));
        let mut times = DueTimes::new(None.into_iter(), now);
        let mut hurried = 0;
        for no in 0..WAITING_MAX as u64 {
            times.set(ObjectNo(no), now + later);
            hurried += u32::from(times.make_room(now));
        }
        assert_eq!(hurried, 5, "not for each of them");
        assert_eq!(times.first(), Some(now));
        // As soon as there is room, they have their time.
        (100..WAITING_MAX as u64).for_each(|no| times.remove(ObjectNo(no)));
        times.set(ObjectNo(0), now + later);
        assert!(!times.make_room(now));
        assert_eq!(times.get(ObjectNo(0)), Some(now + later));
        assert_eq!(times.crowded_at, CROWDED);
    }
}
