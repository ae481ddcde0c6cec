//! Where the kernel believes a file to end, at most. Pure.
//!
//! The kernel has a size of each file that it knows. A write by one of its processes raises it. An
//! answer with the file's size sets it, but the kernel ignores that one if it was told to drop
//! something of the file since it asked. So an answer may leave it as it is, and only two things
//! lower the bound here, since the kernel takes the size from their answers in any case
//! (`fuse_do_setattr` and `fuse_truncate_update_attr` in `fs/fuse` of 6.18): that a process of this
//! machine sets the size, and that it opens the file with `O_TRUNC`.
//!
//! A file that the kernel writes by itself has no bound while it may do so. When it does not any
//! more, the local file is as long as what was written.

/// The bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BelievedEnd {
    /// There is none: an earlier process told the kernel what it believes.
    #[default]
    Unknown,
    /// The kernel believes the file to end here, or earlier.
    AtMost(u64),
}

/// What may change the kernel's belief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It has never heard of the file.
    Unheard,
    /// It is told that the file ends here, or sees a write that goes up to here.
    Told(u64),
    /// It takes this end from an answer, whatever it believed.
    Set(u64),
    /// The last process has closed the file for which the kernel wrote it; the local file has this
    /// size, if that could be found out.
    WroteItself(Option<u64>),
    /// A process empties the file while the kernel writes it for another one: either may count
    /// last.
    Confused,
}

impl BelievedEnd {
    /// The bound after an event.
    pub(super) fn apply(self, event: Event) -> BelievedEnd {
        use BelievedEnd::{AtMost, Unknown};
        match (self, event) {
            (_, Event::Unheard) => AtMost(0),
            (_, Event::Set(end)) => AtMost(end),
            (AtMost(most), Event::Told(end) | Event::WroteItself(Some(end))) => {
                AtMost(most.max(end))
            }
            (_, Event::WroteItself(None) | Event::Confused) => Unknown,
            (Unknown, Event::Told(_) | Event::WroteItself(Some(_))) => Unknown,
        }
    }

    /// Whether the kernel may believe that the file goes on behind `end`.
    pub(super) fn may_be_beyond(self, end: u64) -> bool {
        match self {
            BelievedEnd::Unknown => true,
            BelievedEnd::AtMost(most) => most > end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file, and what the kernel believes of it.
    #[derive(Clone, Copy)]
    struct World {
        size: u64,
        believed: u64,
        /// The kernel writes it by itself.
        is_bypassed: bool,
        /// Another client has cut it since this machine last set its size.
        is_cut_elsewhere: bool,
    }

    /// Over all sequences of six steps: the kernel never believes in a later end than the bound,
    /// and the bound is the file's end unless another client has cut the file.
    #[test]
    fn the_bound_is_never_too_low_and_only_another_client_makes_it_too_high() {
        const STEPS: usize = 11;
        const LENGTH: u32 = 6;
        let (mut judged, mut exact) = (0, 0);
        for sequence in 0..STEPS.pow(LENGTH) {
            let mut bound = BelievedEnd::default().apply(Event::Unheard);
            let mut world =
                World { size: 0, believed: 0, is_bypassed: false, is_cut_elsewhere: false };
            for step in 0..LENGTH {
                let step = sequence / STEPS.pow(step) % STEPS;
                match step {
                    // A write by a process here.
                    0 | 1 => {
                        let end = [2, 5][step];
                        world.size = world.size.max(end);
                        world.believed = world.believed.max(end);
                        if !world.is_bypassed {
                            bound = bound.apply(Event::Told(world.size));
                        }
                    }
                    // An answer that the kernel heeds, and one that it ignores.
                    2 | 3 => {
                        bound = bound.apply(Event::Told(world.size));
                        world.believed = [world.size, world.believed][step - 2];
                    }
                    4 | 5 => {
                        let size = [1, 4][step - 4];
                        (world.size, world.believed) = (size, size);
                        world.is_cut_elsewhere = false;
                        bound = bound.apply(Event::Set(size));
                    }
                    6 => world.is_bypassed = true,
                    7 if world.is_bypassed => {
                        world.is_bypassed = false;
                        bound = bound.apply(Event::WroteItself(Some(world.size)));
                    }
                    // Another client's changes do not change the local file that the kernel writes.
                    8 | 9 if !world.is_bypassed => {
                        let size = [3, 6][step - 8];
                        world.is_cut_elsewhere |= size < world.size;
                        world.size = size;
                    }
                    10 => bound = bound.apply(Event::Confused),
                    _ => {}
                }
                if world.is_bypassed {
                    continue;
                }
                assert!(bound.may_be_beyond(0) || world.believed == 0, "{sequence}");
                assert!(
                    world.believed == 0 || bound.may_be_beyond(world.believed - 1),
                    "{sequence}"
                );
                let is_known = bound != BelievedEnd::Unknown;
                if is_known && !world.is_cut_elsewhere {
                    assert!(!bound.may_be_beyond(world.size), "{sequence}");
                    exact += 1;
                }
                judged += 1;
            }
        }
        assert!(judged > exact && exact > judged / 4, "{exact} of {judged}");
    }

    #[test]
    fn what_is_not_known_stays_unknown_until_the_kernel_takes_an_end() {
        let unknown = BelievedEnd::default();
        for event in [Event::Told(3), Event::WroteItself(Some(3)), Event::WroteItself(None)] {
            assert_eq!(unknown.apply(event), unknown, "{event:?}");
        }
        assert_eq!(unknown.apply(Event::Set(3)), BelievedEnd::AtMost(3));
        let known = BelievedEnd::AtMost(3);
        assert_eq!(known.apply(Event::WroteItself(None)), unknown);
        assert_eq!(known.apply(Event::WroteItself(Some(2))), known);
        assert_eq!(known.apply(Event::Set(1)), BelievedEnd::AtMost(1));
    }
}
