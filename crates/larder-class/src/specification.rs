//! What a class promises.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Where bytes are safe, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// In the memory of this machine: outlives the program that wrote them, and the daemon.
    Memory,
    /// On this machine's disk: outlives a crash of the machine.
    Local,
    /// In the memory of other machines.
    Shared,
    /// On the server's disk.
    Durable,
    /// In an archive.
    Archive,
}

impl Level {
    /// All levels, the weakest first.
    pub const ALL: [Level; 5] =
        [Level::Memory, Level::Local, Level::Shared, Level::Durable, Level::Archive];

    /// The level's name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Local => "local",
            Level::Shared => "shared",
            Level::Durable => "durable",
            Level::Archive => "archive",
        }
    }

    /// The level with this name.
    pub fn named(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By when bytes are at a level, counted from the write. An earlier deadline is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deadline {
    /// At most this long after the write; zero: before the write is answered.
    Within(Duration),
    /// They need not reach the level.
    Never,
}

impl Deadline {
    /// Before the write is answered.
    pub const AT_ONCE: Deadline = Deadline::Within(Duration::ZERO);
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deadline::Within(Duration::ZERO) => f.write_str("at every write"),
            Deadline::Within(time) if time.as_millis() % 1000 != 0 => {
                write!(f, "within {} ms", time.as_millis())
            }
            Deadline::Within(time) if time.as_secs() % 60 != 0 => {
                write!(f, "within {} s", time.as_secs())
            }
            Deadline::Within(time) => write!(f, "within {} min", time.as_secs() / 60),
            Deadline::Never => f.write_str("never"),
        }
    }
}

/// The promise for one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// By when bytes are there.
    pub within: Deadline,
    /// How many copies of them exist, each in a failure domain of its own.
    pub copies: u8,
}

/// What happens to bytes that a level refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnError {
    /// They are dropped, with a line in the log.
    Discard,
    /// The next fsync or close fails; data whose refusal could not be reported is set aside.
    Keep,
}

impl OnError {
    /// The name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            OnError::Discard => "discard",
            OnError::Keep => "keep",
        }
    }
}

/// What a class promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// By level; for a level without an entry nothing is promised.
    pub steps: BTreeMap<Level, Step>,
    /// The level that bytes have reached when close(2) returns; `None`: it waits for nothing.
    pub close: Option<Level>,
    /// The same for fsync(2) and msync(2).
    pub fsync: Option<Level>,
    /// What happens to bytes that a level refuses.
    pub on_error: OnError,
}

impl Specification {
    /// Promises nothing.
    pub fn nothing() -> Specification {
        let steps = BTreeMap::new();
        Specification { steps, close: None, fsync: None, on_error: OnError::Keep }
    }

    /// The strongest level that bytes have reached when their write is answered; `None` if none is
    /// promised.
    pub fn write(&self) -> Option<Level> {
        let at_once = self.steps.iter().filter(|(_, step)| step.within == Deadline::AT_ONCE);
        at_once.map(|(level, _)| *level).max()
    }

    /// By when bytes are at `level`, or at a stronger one.
    pub fn due(&self, level: Level) -> Deadline {
        let steps = self.steps.range(level..).map(|(_, step)| step.within);
        steps.min().unwrap_or(Deadline::Never)
    }

    /// The strongest level for which anything is promised.
    pub fn promised(&self) -> Option<Level> {
        let steps = self.steps.iter().filter(|(_, step)| step.within != Deadline::Never);
        steps.map(|(level, _)| *level).max().max(self.close).max(self.fsync)
    }

    /// Whether it keeps everything that `other` promises: a stronger level stands for a weaker one
    /// with any number of copies.
    pub fn keeps(&self, other: &Specification) -> bool {
        let keeps_step = |level: Level, wanted: &Step| {
            self.steps.range(level..).any(|(held, step)| {
                step.within <= wanted.within && (*held > level || step.copies >= wanted.copies)
            })
        };
        let promised = other.steps.iter().filter(|(_, step)| step.within != Deadline::Never);
        promised.into_iter().all(|(level, step)| keeps_step(*level, step))
            && self.close.max(self.write()) >= other.close
            && self.fsync.max(self.write()) >= other.fsync
            && self.on_error >= other.on_error
    }
}

impl fmt::Display for Specification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (level, Step { within, copies }) in &self.steps {
            if *within == Deadline::Never || (*level == Level::Memory && *copies == 1) {
                continue;
            }
            write!(f, "{level} {within}")?;
            if *copies > 1 {
                write!(f, " in {copies} copies")?;
            }
            f.write_str(", ")?;
        }
        let level = |level: Option<Level>| level.map_or("nothing", Level::name);
        write!(f, "close waits for {}, fsync for {}", level(self.close), level(self.fsync))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_specification() -> impl Strategy<Value = Specification> {
        let within = prop_oneof![
            Just(Deadline::AT_ONCE),
            (1_u64..4).prop_map(|s| Deadline::Within(Duration::from_secs(s))),
            Just(Deadline::Never),
        ];
        let step = (within, 1_u8..3).prop_map(|(within, copies)| Step { within, copies });
        let level = || proptest::sample::select(Level::ALL.to_vec());
        let steps = proptest::collection::btree_map(level(), step, 0..5);
        let waits = || proptest::option::of(level());
        let on_error = proptest::sample::select(vec![OnError::Discard, OnError::Keep]);
        (steps, waits(), waits(), on_error).prop_map(|(steps, close, fsync, on_error)| {
            Specification { steps, close, fsync, on_error }
        })
    }

    proptest! {
        /// `keeps` is an order: reflexive and transitive. If `a` keeps `b`, no deadline of `a` is
        /// later, and its close waits for no weaker level.
        #[test]
        fn strength_is_an_order(
            a in any_specification(), b in any_specification(), c in any_specification()
        ) {
            prop_assert!(a.keeps(&a));
            let nothing = Specification { on_error: a.on_error, ..Specification::nothing() };
            prop_assert!(a.keeps(&nothing));
            if a.keeps(&b) && b.keeps(&c) {
                prop_assert!(a.keeps(&c));
            }
            if a.keeps(&b) {
                for level in Level::ALL {
                    prop_assert!(a.due(level) <= b.due(level), "{level}");
                }
                prop_assert!(a.close.max(a.write()) >= b.close);
            }
        }

        #[test]
        fn one_more_promise_is_never_weaker(
            a in any_specification(), level in proptest::sample::select(Level::ALL.to_vec())
        ) {
            let mut more = a.clone();
            let copies = a.steps.get(&level).map_or(1, |step| step.copies);
            more.steps.insert(level, Step { within: Deadline::AT_ONCE, copies });
            more.close = more.close.max(Some(level));
            prop_assert!(more.keeps(&a));
            prop_assert!(more.write() >= Some(level));
            prop_assert_eq!(more.due(level), Deadline::AT_ONCE);
        }
    }

    #[test]
    fn a_specification_is_a_line() {
        let mut specification = Specification::nothing();
        let line = |specification: &Specification| specification.to_string();
        assert_eq!(line(&specification), "close waits for nothing, fsync for nothing");
        for (level, seconds, copies) in
            [(Level::Memory, 0, 1), (Level::Local, 0, 1), (Level::Shared, 30, 2)]
        {
            let within = Deadline::Within(Duration::from_secs(seconds));
            specification.steps.insert(level, Step { within, copies });
        }
        let step = Step { within: Deadline::Within(Duration::from_secs(600)), copies: 1 };
        specification.steps.insert(Level::Durable, step);
        specification.steps.insert(Level::Archive, Step { within: Deadline::Never, copies: 1 });
        specification.close = Some(Level::Local);
        assert_eq!(
            line(&specification),
            "local at every write, shared within 30 s in 2 copies, durable within 10 min, close \
             waits for local, fsync for nothing"
        );
        assert_eq!(specification.promised(), Some(Level::Durable), "an archive is never");
        assert_eq!(Specification::nothing().promised(), None);
        assert_eq!(Deadline::Within(Duration::from_millis(1500)).to_string(), "within 1500 ms");
        assert_eq!(Deadline::Never.to_string(), "never");
    }

    #[test]
    fn levels_have_words() {
        for level in Level::ALL {
            assert_eq!(Level::named(level.name()), Some(level));
        }
        assert_eq!(Level::named("disk"), None);
    }
}
