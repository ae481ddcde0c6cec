//! The state machine against a world that knows what happened.

use larder_io::{Clock, SimClock};
use larder_vfs::{Result, Volatile};

use super::*;

const AGE: Duration = Duration::from_secs(30);
const END: LocalEnd = LocalEnd { size: 7, mtime: Time { sec: 1, nsec: 0 } };

/// A file with its writers, its kernel and its server, as the callers of the state machine see
/// them.
#[derive(Clone)]
struct World {
    unsent: Unsent,
    now: Instant,
    writer: Cred,
    kernel_writes: bool,
    /// The server lacks bytes that the cache knows.
    is_dirty: bool,
    /// The kernel may have written bytes that were not looked for yet.
    is_bypassed: bool,
    /// Another client's change is mixed with ours.
    is_mixed: bool,
    /// A close has reported that our data is late.
    is_late: bool,
    /// A failure that is still to be reported to a caller.
    owed: Option<Error>,
    sending: bool,
    /// The engine has left it to the next mount, or set it aside.
    is_kept: bool,
}

type Step = (&'static str, fn(&mut World));

const STEPS: [Step; 18] = [
    ("a write", |world| {
        let writer = world.writer.clone();
        world.is_dirty = true;
        world.tell(Event::Written { end: END, writer: &writer, is_over_another: false });
    }),
    ("a write over another version", |world| {
        if world.is_dirty || world.kernel_writes {
            return;
        }
        let writer = world.writer.clone();
        (world.is_dirty, world.is_mixed) = (true, true);
        world.tell(Event::Written { end: END, writer: &writer, is_over_another: true });
    }),
    ("an open for the kernel to write", |world| {
        (world.kernel_writes, world.is_bypassed) = (true, true);
        let writer = world.writer.clone();
        world.unsent.may_be_of(&writer);
        world.tell(Event::OpensChanged);
    }),
    ("the kernel's write is seen", |world| {
        if world.kernel_writes {
            world.is_dirty = true;
            world.tell(Event::KernelWrote(END));
        }
    }),
    ("comparing finds bytes", |world| {
        if world.kernel_writes {
            world.is_dirty = true;
            world.tell(Event::Compared { took: Duration::ZERO, found: Some(Some(END)) });
        }
    }),
    ("the kernel's last writer closes", |world| {
        if std::mem::take(&mut world.kernel_writes) {
            world.is_bypassed = false;
            let end = world.is_dirty.then_some(END);
            world.tell(Event::KernelEnded(end));
        }
    }),
    ("a cut, nothing left", |world| {
        world.is_dirty = false;
        world.tell(Event::Cut(None));
    }),
    ("a change of somebody else", |world| {
        world.is_mixed |= world.is_dirty || world.is_bypassed;
        world.unsent.foreign_change(world.is_bypassed);
    }),
    ("an fsync", |world| {
        if world.unsent.may_exist(world.kernel_writes) {
            world.all_is_sent();
        }
    }),
    ("a close that is late", |world| {
        if world.unsent.may_exist(world.kernel_writes) {
            world.is_late = true;
            world.tell(Event::ToldLate);
            world.tell(Event::Left { wait: schedule::RETRY_AFTER });
        }
    }),
    ("a close that says what failed", |world| {
        assert_eq!(world.unsent.take_failure(), world.owed.take(), "told once");
    }),
    ("too much", |world| {
        if world.unsent.may_exist(world.kernel_writes) {
            world.tell(Event::TooMuch);
        }
    }),
    ("the time comes", |world| {
        if let Schedule::Dirty { due } = world.unsent.schedule {
            world.now = world.now.max(due);
            world.tell(Event::Due);
        }
    }),
    ("the engine has sent", |world| {
        if world.sending {
            world.all_is_sent();
            world.end(Ok(()), true);
        }
    }),
    ("no answer", |world| world.end(Err(Error::TimedOut), true)),
    ("refused to a writer", |world| {
        if world.sending && world.unsent.may_exist(world.kernel_writes) {
            world.owed = Some(Error::NoSpace);
        }
        world.end(Err(Error::NoSpace), true);
    }),
    ("refused, nobody there", |world| world.end(Err(Error::NoSpace), false)),
    ("the mount ends", |world| world.end(Err(Error::Shutdown), false)),
];

impl World {
    fn new() -> World {
        World {
            unsent: Unsent::default(),
            now: SimClock::new().instant(),
            writer: Cred::root(),
            kernel_writes: false,
            is_dirty: false,
            is_bypassed: false,
            is_mixed: false,
            is_late: false,
            owed: None,
            sending: false,
            is_kept: false,
        }
    }

    fn tell(&mut self, event: Event<'_>) {
        let (kernel_writes, now) = (self.kernel_writes, self.now);
        let actions =
            self.unsent.apply(event, Context { kernel_writes, now, age: AGE, is_away: false });
        if actions.send {
            assert!(!self.sending, "one write-back at a time");
            (self.sending, self.is_kept) = (true, false);
        }
        if actions.set_aside {
            self.is_dirty = false;
            self.tell(Event::GivenUp);
        }
    }

    fn all_is_sent(&mut self) {
        self.is_dirty = false;
        let drops = self.is_mixed && !self.kernel_writes;
        let before = self.unsent.is_mixed();
        self.tell(Event::Sent);
        assert_eq!(before && !self.unsent.is_mixed(), drops, "a mixture goes as a whole");
        self.is_mixed &= self.kernel_writes;
    }

    fn end(&mut self, sent: Result<()>, is_written: bool) {
        let exists = self.is_dirty || self.kernel_writes;
        if std::mem::take(&mut self.sending) {
            let is_over = sent == Err(Error::Shutdown) || sent == Err(Error::NoSpace);
            self.is_kept = exists && is_over && !is_written;
            self.tell(Event::Ended { sent, is_written });
        }
    }

    fn check(&mut self) {
        let exists = self.is_dirty || self.kernel_writes;
        self.is_late &= exists;
        assert_eq!(self.unsent.may_exist(self.kernel_writes), exists);
        assert_eq!(self.unsent.end().is_some(), self.is_dirty);
        assert_eq!(self.unsent.is_mixed(), self.is_mixed);
        assert_eq!(self.unsent.is_late(), self.is_late);
        assert_eq!(self.unsent.failure(), self.owed);
        assert_eq!(self.unsent.writer(), exists.then_some(&self.writer));
        assert_eq!(self.unsent.since().is_some(), exists);
        assert!(self.unsent.since().is_none_or(|since| since <= self.now));
        assert_eq!(self.sending, self.unsent.schedule == Schedule::Sending);
        match self.unsent.schedule {
            Schedule::Clean => assert!(!exists, "bytes that nobody will send"),
            Schedule::Dirty { due } => {
                assert!(exists && self.now <= due && due <= self.now + AGE);
            }
            Schedule::Sending => {}
            Schedule::Kept => assert!(self.is_kept),
        }
    }
}

/// After each sequence of up to five events the machine reports what the world knows.
#[test]
fn unsent_data_has_one_owner_that_forgets_nothing() {
    fn walk(world: &World, depth: u32) -> u64 {
        let mut count = 0;
        for (_, step) in STEPS {
            let mut next = world.clone();
            step(&mut next);
            next.check();
            count += 1;
            if depth > 1 {
                count += walk(&next, depth - 1);
            }
        }
        count
    }
    let count = walk(&World::new(), 5);
    println!("{count} histories of up to five events");
    assert_eq!(count, (1..=5).map(|len| 18_u64.pow(len)).sum());
}

/// All sequences of closes of three classes, and of write-backs: where bytes go suits everybody who
/// has closed the file, or has it open, since all was sent.
#[test]
fn bytes_go_where_all_want_them_who_have_closed_the_file() {
    const LENGTH: u32 = 5;
    let memory = |copies, due| Some(Volatile { copies, due: Some(Duration::from_secs(due)) });
    let wants = [memory(1, 5), memory(2, 9), None];
    let wanted = |want: Option<Volatile>| want.map_or(Wanted::Disk, Wanted::Memory);
    let (ann, now) = (Cred::new(1, 1, &[]), SimClock::new().instant());
    let context = Context { kernel_writes: false, now, age: AGE, is_away: false };
    for sequence in 0..(wants.len() + 1).pow(LENGTH) {
        let (mut unsent, mut left) = (Unsent::default(), Vec::new());
        let mut rest = sequence;
        for _ in 0..LENGTH {
            let step = rest % (wants.len() + 1);
            rest /= wants.len() + 1;
            let written = Event::Written { end: END, writer: &ann, is_over_another: false };
            let event = if step == wants.len() { Event::Sent } else { written };
            let _ = unsent.apply(event, context);
            match wants.get(step) {
                Some(want) => {
                    unsent.leave_for(wanted(*want));
                    left.push(*want);
                }
                None => left.clear(),
            }
            for open in [None, Some(wants[0]), Some(wants[1]), Some(wants[2])] {
                let all = left.iter().copied().chain(open);
                let all: Option<Vec<Volatile>> = all.collect();
                let copies = |all: &Vec<Volatile>| all.iter().map(|one| one.copies).max();
                let due = |all: &Vec<Volatile>| all.iter().filter_map(|one| one.due).min();
                let expected = all
                    .and_then(|all| copies(&all).map(|copies| Volatile { copies, due: due(&all) }));
                let open = open.map_or(Wanted::Nowhere, wanted);
                let found = unsent.left().and(open).in_memory();
                assert_eq!(found, expected, "{sequence}: {left:?} {open:?}");
            }
        }
    }
}

/// What the next process must know changes with the writer, with a failure, and when all is sent.
#[test]
fn what_outlives_the_process_is_recorded_when_it_changes() {
    let mut unsent = Unsent::default();
    let (ann, bob) = (Cred::new(1, 1, &[]), Cred::new(2, 2, &[]));
    let written = |writer| Event::Written { end: END, writer, is_over_another: false };
    let now = SimClock::new().instant();
    let context = Context { kernel_writes: false, now, age: AGE, is_away: false };
    for (event, is_recorded) in [
        (written(&ann), true),
        (written(&ann), false),
        (written(&bob), true),
        (Event::TooMuch, false),
        (Event::Ended { sent: Err(Error::NoSpace), is_written: true }, true),
        (Event::Sent, true),
        (Event::Sent, false),
    ] {
        assert_eq!(unsent.apply(event, context).record, is_recorded, "{event:?}");
    }
    assert_eq!(unsent.take_failure(), Some(Error::NoSpace));
}
