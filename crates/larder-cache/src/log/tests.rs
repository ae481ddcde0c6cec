//! Tests of the log alone.

use larder_io::{Fault, SimDisk};

use super::*;

const BOOT: BootId = BootId(7);

fn change(n: u8) -> Change {
    (vec![b'a', n], (!n.is_multiple_of(3)).then(|| vec![n; usize::from(n)]))
}

fn open(disk: &SimDisk, boot: BootId, generation: u64) -> (Log, Left) {
    Log::open(Arc::new(disk.clone()), boot, Some(generation))
}

/// A log whose segments 1 and 2 are live.
fn written(disk: &SimDisk) -> Log {
    let mut log = open(disk, BOOT, 0).0;
    for (generation, first) in [(1, 0), (2, 10)] {
        assert_eq!(log.next(), generation);
        log.append(&[change(first), change(first + 1)]);
        log.append(&[change(first + 2)]);
    }
    log
}

#[test]
fn segments_are_replayed_in_order_from_the_generation_that_the_index_names() {
    let disk = SimDisk::new();
    written(&disk);
    let second: Vec<_> = [10, 11, 12].map(change).into();
    let both: Vec<_> = [0, 1, 2, 10, 11, 12].map(change).into();
    assert_eq!(open(&disk, BOOT, 1).1, Left::All(both));
    assert_eq!(open(&disk, BOOT, 2).1, Left::All(second));
    let mut log = open(&disk, BOOT, 1).0;
    assert_eq!(log.next(), 3);
    log.retire();
    assert_eq!(open(&disk, BOOT, 3).1, Left::All(vec![]));
    assert_eq!(open(&disk, BOOT, 1).1, Left::Nothing, "retired");
    assert_eq!(disk.files(), [], "and removed, as nothing can be made of it");
}

/// What happens to be on the disk. A process that does not know its boot is in another one.
#[test]
fn another_boot_gets_a_beginning() {
    let disk = SimDisk::new();
    written(&disk);
    let both: Vec<_> = [0, 1, 2, 10, 11, 12].map(change).into();
    for boot in [BootId(8), NO_BOOT] {
        assert_eq!(open(&disk, boot, 1).1, Left::Beginning(both.clone()));
    }
}

/// Of format 1 nothing was synced, so it is of one boot.
#[test]
fn the_format_before_is_read_in_its_boot() {
    for (boot, expected) in
        [(BOOT, Left::All([0, 1, 10].map(change).into())), (BootId(8), Left::Nothing)]
    {
        let disk = SimDisk::new();
        for (generation, changes) in [(1, &[0, 1][..]), (2, &[10])] {
            let file = disk.open(&path(generation), OpenMode::Create).unwrap();
            let mut tail = Tail::new(file);
            let header = Header { boot: BOOT, generation, previous_bytes: None };
            tail.append(&header.encode()).unwrap();
            assert_eq!(tail.len_bytes(), 44);
            for n in changes {
                let mut body = Writer::default();
                let (key, value) = change(*n);
                body.bytes(&key);
                body.flag(value.is_some());
                body.bytes(&value.unwrap_or_default());
                let body = body.into_bytes();
                let mut group = Writer::default();
                group.u32(body.len() as u32);
                group.u32(checksum(generation, tail.len_bytes(), &body));
                group.raw(&body);
                tail.append(&group.into_bytes()).unwrap();
            }
        }
        let (mut log, left) = open(&disk, boot, 1);
        assert_eq!(left, expected);
        // A segment of today follows it.
        if boot == BOOT {
            assert_eq!(log.next(), 3);
        }
    }
}

/// At every length, a segment gives the groups that are whole.
#[test]
fn a_cut_segment_gives_whole_groups() {
    let whole = SimDisk::new();
    written(&whole);
    let len = whole.files().iter().find(|(path, _)| path == "log.2").unwrap().1;
    let mut counts = Vec::new();
    for cut in 0..=len {
        let disk = SimDisk::new();
        written(&disk);
        disk.open("log.2", OpenMode::Existing).unwrap().set_len(cut).unwrap();
        counts.push(match open(&disk, BOOT, 2).1 {
            Left::All(changes) => Some(changes.len()),
            _ => None,
        });
    }
    counts.dedup();
    assert_eq!(counts, [None, Some(0), Some(2), Some(3)]);
}

/// The space beyond the last group is allocated already: a part of an interrupted group may be
/// there.
#[test]
fn a_group_that_is_there_in_part_ends_the_replay() {
    let disk = SimDisk::new();
    let mut log = written(&disk);
    let file = disk.open("log.2", OpenMode::Existing).unwrap();
    let before = file.len().unwrap();
    log.append(&[change(13), change(14)]);
    let mut group = vec![0; (file.len().unwrap() - before) as usize];
    file.read_exact_at(&mut group, before).unwrap();
    for len in 0..=group.len() {
        let part = [&group[..len], &vec![0; group.len() - len + 100]].concat();
        file.write_at(&part, before).unwrap();
        let left = open(&disk.crash(larder_io::Image::Written), BOOT, 2).1;
        let expected = if len == group.len() { 5 } else { 3 };
        let Left::All(changes) = left else { panic!("{len}: {left:?}") };
        assert_eq!(changes.len(), expected, "{len}");
    }
}

/// No flipped bit brings a change that was not made.
#[test]
fn damage_ends_the_replay() {
    let whole = SimDisk::new();
    written(&whole);
    let expected: Vec<_> = [10, 11, 12].map(change).into();
    let len = whole.files().iter().find(|(path, _)| path == "log.2").unwrap().1;
    for at in 0..len {
        let disk = SimDisk::new();
        written(&disk);
        disk.corrupt("log.2", at, 3);
        match open(&disk, BOOT, 2).1 {
            Left::Nothing => {}
            Left::All(found) | Left::Beginning(found) => {
                assert!(found.len() < 3 && expected.starts_with(&found), "{at}");
            }
        }
    }
}

#[test]
fn a_failed_append_breaks_the_log_until_the_next_segment() {
    let disk = SimDisk::new();
    let mut log = written(&disk);
    disk.inject(Fault::EioAt(disk.operations() + 1));
    log.append(&[change(20)]);
    log.append(&[change(21)]);
    assert!(log.wants_commit());
    assert_eq!(log.next(), 3);
    log.append(&[change(22)]);
    assert!(!log.wants_commit());
    assert_eq!(open(&disk, BOOT, 3).1, Left::All(vec![change(22)]));
    let before = [10, 11, 12].map(change).into();
    assert_eq!(open(&disk, BOOT, 2).1, Left::Beginning(before), "not all of that time");
}

/// What may happen to a log, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Append,
    /// The disk refuses a change.
    AppendInVain,
    /// A commit begins, if none is under way.
    Begin,
    /// It is durable.
    End,
    Sync,
    /// A sync begins, which ends after the next step.
    SyncSlowly,
    /// The disk refuses a sync.
    SyncInVain,
}

const STEPS: [Step; 7] = [
    Step::Append,
    Step::AppendInVain,
    Step::Begin,
    Step::End,
    Step::Sync,
    Step::SyncSlowly,
    Step::SyncInVain,
];
const LENGTH_MAX: u32 = 6;

/// A log under an index that is only a count of changes and a generation.
struct World {
    disk: SimDisk,
    log: Log,
    put: u8,
    /// How many changes the index has, and the generation that it names.
    index: (u8, u64),
    commit: Option<(u8, u64)>,
    /// How many are acknowledged as durable.
    acknowledged: u8,
    slow: Option<(u8, Unsynced)>,
    is_all_logged: bool,
}

impl World {
    fn new() -> World {
        let disk = SimDisk::new();
        let mut log = open(&disk, BOOT, 0).0;
        assert!(log.unsynced().is_none(), "the index does not name it");
        let generation = log.next();
        log.retire();
        let (index, commit, slow) = ((0, generation), None, None);
        World { disk, log, put: 0, index, commit, acknowledged: 0, slow, is_all_logged: true }
    }

    fn apply(&mut self, step: Step) {
        let ending = self.slow.take();
        match step {
            Step::Append => self.put(),
            Step::AppendInVain => {
                self.disk.inject(Fault::EioAt(self.disk.operations() + 1));
                self.put();
                self.disk.heal();
            }
            Step::Begin if self.commit.is_none() => {
                self.commit = Some((self.put, self.log.next()));
            }
            Step::End => {
                if let Some(index) = self.commit.take() {
                    self.index = index;
                    self.acknowledged = self.acknowledged.max(index.0);
                    self.log.retire();
                    self.is_all_logged = self.log.is_whole();
                }
            }
            Step::Sync => {
                if let Some(unsynced) = self.log.unsynced() {
                    self.end_sync((self.put, unsynced));
                }
            }
            Step::SyncSlowly => {
                self.slow = self.log.unsynced().map(|unsynced| (self.put, unsynced));
            }
            Step::SyncInVain => {
                if let Some(unsynced) = self.log.unsynced().filter(|it| !it.files.is_empty()) {
                    self.disk.inject(Fault::EioAt(self.disk.operations() + 1));
                    let error = unsynced.sync(&self.disk).unwrap_err();
                    self.disk.heal();
                    self.log.break_off(&error);
                    self.is_all_logged = false;
                }
            }
            Step::Begin => {}
        }
        if let Some(sync) = ending {
            self.end_sync(sync);
        }
    }

    fn put(&mut self) {
        self.log.append(&[change(self.put)]);
        self.is_all_logged &= self.log.is_whole();
        self.put += 1;
    }

    fn end_sync(&mut self, (put, unsynced): (u8, Unsynced)) {
        unsynced.sync(&self.disk).unwrap();
        self.log.note_synced(&unsynced);
        self.acknowledged = self.acknowledged.max(put);
    }

    /// The changes that are found after all.
    fn found(&self, image: larder_io::Image, boot: BootId) -> (Vec<Change>, bool) {
        let disk = self.disk.crash(image);
        let mut all: Vec<_> = (0..self.index.0).map(change).collect();
        let left = open(&disk, boot, self.index.1).1;
        let is_all = matches!(left, Left::All(_));
        match left {
            Left::Nothing => {}
            Left::All(changes) | Left::Beginning(changes) => all.extend(changes),
        }
        (all, is_all)
    }

    fn check(&self, history: &[Step], seed: u64) {
        let all: Vec<_> = (0..self.put).map(change).collect();
        let images = [larder_io::Image::Synced, larder_io::Image::Torn(seed)];
        for image in images.into_iter().chain([larder_io::Image::Written]) {
            let (found, is_all) = self.found(image, BootId(8));
            assert!(!is_all && all.starts_with(&found), "{history:?} {image:?} {found:?}");
            let count = found.len();
            assert!(count >= usize::from(self.acknowledged), "{history:?} {image:?} {count}");
        }
        let (found, is_all) = self.found(larder_io::Image::Written, BOOT);
        assert!(all.starts_with(&found) && found.len() >= usize::from(self.acknowledged));
        assert!(!is_all || found == all, "{history:?}: it is not all");
        assert!(is_all || !self.is_all_logged, "{history:?}: all was logged");
    }
}

/// Over all histories up to [`LENGTH_MAX`] steps, and a crash after each: what is found is the
/// beginning of what was put, and has all that was acknowledged. What the next process of this boot
/// takes for everything is everything.
#[test]
fn what_was_synced_is_replayed_in_order_whatever_happens() {
    let mut crashes = 0;
    for number in 0..STEPS.len().pow(LENGTH_MAX) {
        let places = 0..LENGTH_MAX;
        let history: Vec<Step> =
            places.map(|at| STEPS[number / STEPS.len().pow(at) % STEPS.len()]).collect();
        let mut world = World::new();
        for (at, step) in history.iter().enumerate() {
            world.apply(*step);
            // The same beginning was checked with the first history that has it.
            if number < STEPS.len().pow(at as u32 + 1) {
                world.check(&history[..=at], number as u64);
                crashes += 4;
            }
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 400_000);
}
