//! Deadlines on the simulated clock. Files are due at all times, and many at once, while others are
//! written, overwritten and removed, and each copy takes time.
//!
//! The server's driver ([`crate::destaging::drive`]) runs, and sleeps on that clock. The disks copy
//! in rounds: the moves that have begun by then, one after the other. Nothing else takes time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use larder_io::Clock;
use larder_wire::meta::words::{DiskId, FileId, Mode};
use tokio::sync::{mpsc, oneshot, watch};

use super::{B, DISK, wait, write};
use crate::activity::Destaging;
use crate::committer::Event;
use crate::destaging::drive;
use crate::rights::Caller;
use crate::tests::memory::{MEMORY, memory};
use crate::tests::random::Random;
use crate::tests::rig::Rig;
use crate::volume::Joining;

const FILES: u64 = 200;
/// So many files are moved at a time.
const AT_ONCE: usize = 32;
/// What a round of copies takes, and each copy of a file in it.
const ROUND_MS: u64 = 30;
const COPY_MS: u64 = 20;
/// All files are first written by this time.
const WRITTEN_BY_MS: u64 = 60_000;
/// The shortest time in which bytes are due.
const SOONEST_MS: u64 = 30_000;
/// When a third of the files is due.
const TOGETHER_MS: u64 = 100_000;
/// Stands for the time of what is never due.
const NEVER_MS: u64 = u64::MAX;
/// The client renews its session at least this often.
const RENEWAL_MS: u64 = 5_000;

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// It is written as a whole, and due so many ms later, if it is ever.
    Write(Option<u64>),
    /// It is removed.
    Remove,
}

/// What is done to which file, and when: the first deeds last.
type Plan = Vec<(u64, u64, Deed)>;

/// Each file is written. A third is due in the same moment, a tenth is removed before it is due, a
/// tenth is written anew before that, and a twentieth may stay in memory.
fn plan(random: &mut Random) -> Plan {
    let mut plan = Plan::new();
    for number in 0..FILES {
        let at = random.below(WRITTEN_BY_MS);
        let within = match number % 3 {
            0 => TOGETHER_MS - at,
            _ => SOONEST_MS + random.below(150_000),
        };
        let is_due = number % 20 != 9;
        plan.push((at, number, Deed::Write(is_due.then_some(within))));
        let before_due = at + within - 1 - random.below(20_000);
        match number % 10 {
            3 => plan.push((before_due, number, Deed::Remove)),
            7 => {
                let within = SOONEST_MS + random.below(60_000);
                plan.push((before_due, number, Deed::Write(Some(within))));
            }
            _ => {}
        }
    }
    plan.sort_by_key(|(at, number, _)| Reverse((*at, *number)));
    plan
}

/// How many blocks a file has.
fn blocks(number: u64) -> u64 {
    1 + number % 4
}

fn create(rig: &mut Rig, name: &str) -> FileId {
    let opened = rig.create(&Caller::root(), FileId::ROOT, name).unwrap();
    rig.close(opened.open).unwrap();
    opened.file.after.file
}

/// The server's driver, which nobody wakes: it is polled at each time at which something happens.
struct Driver {
    first_due: watch::Sender<Option<Instant>>,
    events: mpsc::Receiver<Event>,
    /// The driver ends when this is gone.
    _queue: mpsc::Sender<Event>,
    runs: Pin<Box<dyn Future<Output = ()>>>,
}

impl Driver {
    fn new(rig: &Rig) -> Driver {
        let first_due = watch::Sender::new(None);
        let (queue, events) = mpsc::channel(1);
        let clock = Arc::clone(&rig.clock) as Arc<dyn Clock>;
        let runs = Box::pin(drive(clock, first_due.subscribe(), queue.downgrade()));
        Driver { first_due, events, _queue: queue, runs }
    }

    /// Lets it and the committer work until it sleeps.
    fn work(&mut self, rig: &mut Rig) {
        loop {
            let due = rig.due_in().map(|time| rig.clock.instant() + time);
            self.first_due.send_replace(due);
            let mut context = Context::from_waker(Waker::noop());
            assert!(self.runs.as_mut().poll(&mut context).is_pending(), "it has ended");
            match self.events.try_recv() {
                Ok(event) => rig.event(event),
                Err(_) => return,
            }
        }
    }
}

/// What a file has in memory.
#[derive(Clone, Copy, Debug)]
struct Has {
    file: FileId,
    blocks: u64,
    written_ms: u64,
    due_ms: u64,
}

/// A round of copies in progress.
struct Round {
    ends_ms: u64,
    /// What is copied.
    copied: BTreeSet<u64>,
}

/// Times are ms since the start.
struct Scene {
    rig: Rig,
    driver: Driver,
    start: Instant,
    plan: Plan,
    files: Vec<FileId>,
    /// What each file was written with last: a number that nothing else has.
    last: BTreeMap<FileId, u64>,
    /// What is in memory, and to be there or due later.
    in_memory: BTreeMap<u64, Has>,
    /// What was ever on the disk, as far as it was looked at.
    on_disk: BTreeSet<u64>,
    round: Option<Round>,
    next: u64,
    moved: usize,
    moved_bytes: u64,
    late_max_ms: u64,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let mut rig = Rig::new(4096);
        assert_eq!(rig.enrol(memory(4096), Joining::Anywhere).unwrap(), MEMORY);
        rig.disks.restart(MEMORY);
        wait(&mut rig, Duration::from_secs(1));
        let files = (0..FILES).map(|number| create(&mut rig, &format!("f{number}"))).collect();
        let (driver, start, plan) =
            (Driver::new(&rig), rig.clock.instant(), plan(&mut Random(seed)));
        let (last, in_memory, on_disk) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (round, next, moved, moved_bytes, late_max_ms) = (None, 0, 0, 0, 0);
        Scene {
            rig,
            driver,
            start,
            plan,
            files,
            last,
            in_memory,
            on_disk,
            round,
            next,
            moved,
            moved_bytes,
            late_max_ms,
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap()
    }

    fn now_ms(&self) -> u64 {
        self.ms(self.rig.clock.instant())
    }

    /// When something happens next: a deed, the end of a round, or the driver's waking.
    fn next_ms(&self) -> Option<u64> {
        let deed = self.plan.last().map(|(at, ..)| *at);
        let round = self.round.as_ref().map(|round| round.ends_ms);
        let driver = self.rig.clock.next_wake().map(|at| self.ms(at));
        [deed, round, driver].into_iter().flatten().min()
    }

    /// Lets all happen at its time.
    fn go(&mut self) {
        loop {
            self.driver.work(&mut self.rig);
            if self.round.is_none() {
                self.begin_round();
            }
            let Some(next_ms) = self.next_ms() else { return };
            let pass_ms = next_ms.saturating_sub(self.now_ms()).min(RENEWAL_MS);
            wait(&mut self.rig, Duration::from_millis(pass_ms));
            let now_ms = self.now_ms();
            if let Some(round) = self.round.take_if(|round| round.ends_ms <= now_ms) {
                self.end_round(&round);
            }
            while let Some((_, number, deed)) = self.plan.pop_if(|(at, ..)| *at <= now_ms) {
                self.carry_out(number, deed);
            }
        }
    }

    fn carry_out(&mut self, number: u64, deed: Deed) {
        let file = self.files[usize::try_from(number).unwrap()];
        let now_ms = self.now_ms();
        if let Some(before) = self.last.remove(&file) {
            self.in_memory.remove(&before).expect("it is done before that is due");
        }
        match deed {
            Deed::Remove => {
                self.rig.remove(FileId::ROOT, &format!("f{number}")).unwrap();
            }
            Deed::Write(within_ms) => {
                self.next += 1;
                let within = within_ms.map(Duration::from_millis);
                write(&mut self.rig, file, blocks(number), self.next, within);
                let due_ms = within_ms.map_or(NEVER_MS, |within_ms| now_ms + within_ms);
                let has = Has { file, blocks: blocks(number), written_ms: now_ms, due_ms };
                self.in_memory.insert(self.next, has);
                self.last.insert(file, self.next);
            }
        }
        // Other load: a file on the disk.
        let other = create(&mut self.rig, &format!("other{}", self.plan.len()));
        self.rig.write(other, 0..4 * B).unwrap();
    }

    /// What is due, those first that were due first, as much as is moved at a time.
    fn due(&self) -> BTreeSet<u64> {
        let now_ms = self.now_ms();
        let due = self.in_memory.iter().filter(|(_, has)| has.due_ms <= now_ms);
        let mut due: Vec<_> = due.map(|(what, has)| (has.due_ms, has.file, *what)).collect();
        due.sort_unstable();
        due.into_iter().take(AT_ONCE).map(|(.., what)| what).collect()
    }

    /// The disks begin to copy what they are asked for: what is due, and nothing else.
    fn begin_round(&mut self) {
        let now_ms = self.now_ms();
        let copies = self.rig.copy_moves();
        let on_disk = self.rig.disks.ever_written(DISK);
        let copied: BTreeSet<u64> = on_disk.difference(&self.on_disk).copied().collect();
        assert_eq!(copied, self.due(), "after {now_ms} ms");
        assert_eq!(copies, copied.len(), "after {now_ms} ms");
        self.on_disk = on_disk;
        if !copied.is_empty() {
            let ends_ms = now_ms + ROUND_MS + COPY_MS * copied.len() as u64;
            self.round = Some(Round { ends_ms, copied });
        }
    }

    /// The server learns that the copies are made: the files are on the disk, in time.
    fn end_round(&mut self, round: &Round) {
        self.rig.end_moves();
        let now_ms = self.now_ms();
        for what in &round.copied {
            let has = self.in_memory.remove(what).unwrap();
            self.last.remove(&has.file);
            self.is_on(DISK, *what, has);
            let (late_ms, within_ms) = (now_ms - has.due_ms, has.due_ms - has.written_ms);
            assert!(late_ms * 10 <= within_ms, "{late_ms} ms late after {within_ms} ms: {has:?}");
            self.late_max_ms = self.late_max_ms.max(late_ms);
            self.moved += 1;
            self.moved_bytes += has.blocks * B;
        }
    }

    /// A file has all its bytes there.
    fn is_on(&mut self, disk: DiskId, what: u64, has: Has) {
        let extents = self.rig.layout(has.file, Mode::Read).unwrap().layout.extents.0;
        assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), has.blocks * B);
        for extent in extents {
            assert_eq!(extent.disk, disk, "{has:?}");
            assert_eq!(self.rig.disks.block(disk, extent.position), what, "{has:?}");
        }
    }

    /// What the server's status shows.
    fn told(&mut self) -> Destaging {
        let (asked, mut answer) = oneshot::channel();
        self.rig.event(Event::Activity(asked));
        answer.try_recv().unwrap().destaging
    }

    /// At the end: all that was due has moved and the rest is in memory. The server tells how late
    /// it was, to the millisecond.
    fn check(mut self) {
        let told = self.told();
        assert_eq!(told.late_max, Duration::from_millis(self.late_max_ms));
        assert_eq!((told.files, told.moved_bytes), (0, self.moved_bytes));
        let full_round_ms = ROUND_MS + COPY_MS * AT_ONCE as u64;
        assert!(self.late_max_ms > full_round_ms, "more files were due at once than are moved");
        let (kept, removed) = (FILES / 20, FILES / 10);
        assert_eq!(self.moved as u64, FILES - kept - removed);
        assert_eq!((self.on_disk.len(), self.in_memory.len() as u64), (self.moved, kept));
        for (what, has) in std::mem::take(&mut self.in_memory) {
            assert_eq!(has.due_ms, NEVER_MS);
            self.is_on(MEMORY, what, has);
        }
        assert_eq!(self.rig.disks.ever_written(DISK), self.on_disk);
        self.rig.check();
    }
}

/// Files are copied as soon as they are due, those first that were due first, and nothing else ever
/// is. Each is on the disk before a tenth of its time more has passed, and the greatest lateness
/// that the server tells is the one that was measured.
#[test]
fn what_is_due_is_on_the_disk_within_a_tenth_of_its_time_and_not_before() {
    for seed in 1..=8 {
        println!("seed {seed}");
        let mut scene = Scene::new(seed);
        scene.go();
        scene.check();
    }
}
