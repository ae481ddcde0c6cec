//! Fills at the same time as everything else that happens to a file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use larder_io::{Image, MemDisk};

use super::watched::{Watched, Watcher};
use super::*;

const SIZE: u64 = 3 * CHUNK + 100;
/// Two fills that overlap, and share a chunk besides.
const FIRST: std::ops::Range<u64> = 0..CHUNK + 500;
const SECOND: std::ops::Range<u64> = CHUNK + 200..SIZE;

/// Holds the first write after it was armed, until it is let go.
#[derive(Debug, Default)]
struct Holding {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Off,
    Armed,
    Waiting,
}

impl Holding {
    fn arm(&self) {
        *crate::lock(&self.state) = Held::Armed;
    }

    fn wait_until_held(&self) {
        drop(self.changed.wait_while(crate::lock(&self.state), |held| *held != Held::Waiting));
    }

    fn let_go(&self) {
        *crate::lock(&self.state) = Held::Off;
        self.changed.notify_all();
    }
}

impl Watcher for Holding {
    fn hear(&self, call: &'static str) {
        let mut state = crate::lock(&self.state);
        if call == "write" && *state == Held::Armed {
            *state = Held::Waiting;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |held| *held == Held::Waiting));
        }
    }
}

#[test]
fn no_reader_waits_for_a_fill() {
    let disk = Watched { disk: Arc::new(MemDisk::new()), watcher: Arc::<Holding>::default() };
    let cache = open_with(&disk, at_once());
    let file = cache.file(cache.assign(b"key"));
    file.reset(b"v1", SIZE);
    fill(&file, b"v1", 1, 3 * CHUNK..SIZE);
    disk.watcher.arm();
    let (tell, told) = mpsc::channel();
    let (filler, worker, culled) = (Arc::clone(&file), Arc::clone(&file), cache.clone());
    let filling = std::thread::spawn(move || fill(&filler, b"v1", 1, FIRST));
    disk.watcher.wait_until_held();
    let working = std::thread::spawn(move || {
        let file = &worker;
        let held = (file.held(0..SIZE), file.version(), file.size());
        let seen = (read(file, 3 * CHUNK..SIZE), held);
        culled.checkpoint().unwrap();
        tell.send((seen, culled.cull(0).files, file.writes_quickly(), file.is_ready(b"v1", true)))
    });
    let told = told.recv_timeout(Duration::from_secs(20));
    disk.watcher.let_go();
    filling.join().unwrap();
    working.join().unwrap().unwrap();
    let ((last, held), culled, writes_quickly, is_ready) = told.expect("nobody waits for a fill");
    assert!(last.unwrap() == bytes(1, 3 * CHUNK..SIZE));
    assert_eq!(held, (vec![3 * CHUNK..SIZE], Some(b"v1".to_vec()), SIZE));
    // A file that is being filled is not culled, and a caller that wants to change it would wait.
    assert_eq!((culled, writes_quickly, is_ready), (0, false, false));
    assert!(read(&file, FIRST).unwrap() == bytes(1, FIRST));
}

/// Bytes of the version that is filled in every order.
fn content(range: std::ops::Range<u64>) -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    &CONTENT.get_or_init(|| bytes(1, 0..SIZE))[range.start as usize..range.end as usize]
}

/// What happens to a file between the steps of two fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    First,
    Second,
    Between(Event),
}

/// Steps that do not wait for fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Checkpoint,
    Cull,
    Verify,
    /// A disk that does not sync makes all that is clean untrustworthy.
    Distrust,
    /// The disk has lost a chunk that is held.
    BadChunk,
    /// The version is also known by another name.
    Renamed,
}

/// All orders of these steps.
fn orders(left: &[(Step, usize)], so_far: &mut Vec<Step>, all: &mut Vec<Vec<Step>>) {
    if left.iter().all(|(_, count)| *count == 0) {
        return all.push(so_far.clone());
    }
    for at in 0..left.len() {
        if left[at].1 > 0 {
            let mut rest = left.to_vec();
            rest[at].1 -= 1;
            so_far.push(left[at].0);
            orders(&rest, so_far, all);
            so_far.pop();
        }
    }
}

/// Every order of the three steps of two fills that overlap, with one event between them: what is
/// held is right after every step, and after a crash, and so are the accounts; with the local file
/// only in memory at first, or not. Each order has a file of its own.
#[test]
fn two_fills_and_an_event_in_every_order_leave_right_bytes() {
    use Event::*;
    let mut count = 0;
    let events = [Checkpoint, Cull, Verify, Distrust, BadChunk, Renamed];
    for (event, config) in events.iter().flat_map(|event| [(event, config()), (event, at_once())]) {
        let steps = [(Step::First, 3), (Step::Second, 3), (Step::Between(*event), 1)];
        let mut all = Vec::new();
        orders(&steps, &mut Vec::new(), &mut all);
        count += all.len();
        let disk = SimDisk::new();
        let cache = open_with(&disk, config);
        let files: Vec<_> = all.iter().map(|order| in_order(&cache, order)).collect();
        let charged: u64 = files.iter().map(|file| file.state().presence().charged() * CHUNK).sum();
        assert_eq!(cache.usage().bytes, charged, "what is reserved is what is held: {event:?}");
        cache.checkpoint().unwrap();
        let after = open(&disk.crash(Image::Synced));
        for (file, order) in files.iter().zip(&all) {
            let is_right =
                read(&after.file(file.number()), 0..SIZE).map(|it| it == content(0..SIZE));
            let may_miss = *event == Cull;
            assert!(is_right.unwrap_or(may_miss), "after a crash: {order:?}");
        }
    }
    assert_eq!(count, 2 * 840);
}

/// A fill by its steps.
enum Filling<'a> {
    Before(std::ops::Range<u64>),
    Begun(Option<crate::fill::Fill<'a>>, std::ops::Range<u64>),
    Written(Option<(crate::fill::Fill<'a>, crate::fill::Summed)>),
    Over,
}

impl<'a> Filling<'a> {
    fn step(self, file: &'a CachedFile) -> Filling<'a> {
        match self {
            Filling::Before(range) => Filling::Begun(file.begin_fill(b"v1", range.clone()), range),
            Filling::Begun(fill, range) => Filling::Written(fill.map(|fill| {
                let sums = fill.write(range.start, content(range.clone())).unwrap();
                (fill, sums)
            })),
            Filling::Written(fill) => {
                fill.map(|(fill, sums)| file.end_fill(fill, Ok(sums)));
                Filling::Over
            }
            Filling::Over => panic!("three steps"),
        }
    }
}

fn in_order(cache: &Cache, order: &[Step]) -> Arc<CachedFile> {
    let file = cache.file(cache.assign(format!("{order:?}").as_bytes()));
    file.reset(b"v1", SIZE);
    let (mut first, mut second) = (Filling::Before(FIRST), Filling::Before(SECOND));
    for step in order {
        match step {
            Step::First => first = first.step(&file),
            Step::Second => second = second.step(&file),
            Step::Between(event) => happen(*event, cache, &file),
        }
        check_held(&file, order);
    }
    assert!(file.filling().is_idle(), "{order:?}");
    let is_lost = |step: &Step| {
        let losing = [Event::Cull, Event::Distrust, Event::BadChunk, Event::Renamed];
        losing.map(Step::Between).contains(step)
    };
    if !order.iter().any(is_lost) {
        assert_eq!(file.held(0..SIZE), [0..SIZE], "{order:?}");
    }
    // Whatever it came to, it is filled the next time.
    let version = file.version().unwrap();
    for range in [FIRST, SECOND] {
        assert_eq!(file.fill(&version, range.start, content(range.clone())), Filled::Stored);
    }
    assert_eq!(file.held(0..SIZE), [0..SIZE], "{order:?}");
    drop((first, second));
    Arc::clone(&file)
}

fn happen(event: Event, cache: &Cache, file: &CachedFile) {
    match event {
        Event::Checkpoint => cache.checkpoint().unwrap(),
        Event::Cull => drop(cache.cull(0)),
        Event::Verify => assert_eq!(file.verify().1, []),
        Event::Distrust => file.drop_content(&mut file.state()),
        Event::BadChunk => file.forget_chunk(&mut file.state(), 1),
        Event::Renamed => {
            file.state().vouch(b"v2");
        }
    }
}

fn check_held(file: &CachedFile, order: &[Step]) {
    file.state().check();
    for range in file.held(0..SIZE) {
        assert!(read(file, range.clone()).unwrap() == content(range), "{order:?}");
    }
}

/// Lets other threads run before each write.
#[derive(Debug, Default)]
struct Yielding;

impl Watcher for Yielding {
    fn hear(&self, call: &'static str) {
        if call == "write" {
            (0..3).for_each(|_| std::thread::yield_now());
        }
    }
}

/// Two threads fill a file while a third changes it: the last write is there, in whatever order
/// they run.
#[test]
fn fills_never_cover_what_is_written_beside_them() {
    let seed = seed("fills_never_cover_what_is_written_beside_them", 12);
    let disk = Watched { disk: Arc::new(MemDisk::new()), watcher: Arc::new(Yielding) };
    let cache = open_with(&disk, at_once());
    for round in 0..10 {
        let mut random = Random(seed + round);
        let file = cache.file(cache.assign(&round.to_le_bytes()));
        file.reset(b"v1", SIZE);
        let mut local = bytes(1, 0..SIZE);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for filler in 0..2 {
                let (file, is_over, mut random) = (&file, &is_over, Random(seed ^ filler));
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let start = random.below(SIZE);
                        let range = start..(start + random.below(CHUNK)).min(SIZE);
                        file.fill(b"v1", start, &bytes(1, range));
                    }
                });
            }
            for _ in 0..20 {
                let start = random.below(SIZE);
                let range = start..(start + 1 + random.below(2 * CHUNK)).min(SIZE);
                let data = bytes(random.next(), range.clone());
                file.write(start, &data).unwrap();
                local[range.start as usize..range.end as usize].copy_from_slice(&data);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for range in file.held(0..SIZE) {
            let expected = &local[range.start as usize..range.end as usize];
            assert!(read(&file, range.clone()).unwrap() == expected, "round {round}, {range:?}");
        }
        file.discard_dirty();
    }
}

/// Two threads fill versions while a third begins new ones: a reader of a version gets its bytes.
#[test]
fn fills_of_a_version_never_reach_the_next_one() {
    let disk = Watched { disk: Arc::new(MemDisk::new()), watcher: Arc::new(Yielding) };
    let cache = open_with(&disk, at_once());
    let file = cache.file(cache.assign(b"key"));
    file.reset(&0_u64.to_le_bytes(), SIZE);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let version = file.version().unwrap();
                    let seed = u64::from_le_bytes(version.clone().try_into().unwrap());
                    for range in [FIRST, SECOND] {
                        file.fill(&version, range.start, &bytes(seed, range));
                    }
                }
            });
        }
        for version in 1..200_u64 {
            let held = file.held(0..SIZE);
            let found: Vec<_> = held.iter().map(|range| read(&file, range.clone())).collect();
            for (range, found) in held.into_iter().zip(found) {
                assert!(found.unwrap() == bytes(version - 1, range), "version {version}");
            }
            assert!(file.reset(&version.to_le_bytes(), SIZE));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A file of two pieces that were filled ahead, both of which are in memory.
fn filled_ahead(cache: &Cache) -> Arc<CachedFile> {
    let file = cache.file(cache.assign(b"ahead"));
    file.reset(b"v", SIZE);
    for range in [0..CHUNK, CHUNK..SIZE] {
        let data = bytes(1, range.clone()).into();
        assert_eq!(file.fill_ahead(b"v", range.start, &data), Filled::Stored);
    }
    file
}

fn with_recent() -> Config {
    Config { recent_piece_bytes_min: 1, ..at_once() }
}

#[test]
fn what_was_filled_ahead_is_read_once_without_the_disk() {
    let disk = SimDisk::new();
    let cache = open_with(&disk, with_recent());
    let file = filled_ahead(&cache);
    let operations = disk.operations();
    assert_eq!(file.read_recent(&(10..20)).as_deref(), Some(&bytes(1, 10..20)[..]));
    assert_eq!(file.read_recent(&(CHUNK - 10..CHUNK + 10)), None, "of two pieces");
    assert_eq!(file.read_recent(&(0..CHUNK)).as_deref(), Some(&bytes(1, 0..CHUNK)[..]));
    assert_eq!(disk.operations(), operations);
    assert_eq!(file.read_recent(&(10..20)), None, "it was read to its end");
    let (rest, last) = (CHUNK..SIZE, SIZE - 1..SIZE);
    assert_eq!(file.read_recent(&last).as_deref(), Some(&bytes(1, last.clone())[..]));
    assert_eq!(file.read_recent(&rest), None);
    assert_eq!(read(&file, 0..SIZE), Some(bytes(1, 0..SIZE)));
}

#[test]
fn what_was_held_in_part_does_not_stay_in_memory() {
    let cache = open_with(&SimDisk::new(), with_recent());
    let file = cache.file(cache.assign(b"part"));
    file.reset(b"v", SIZE);
    file.write(5, b"mine").unwrap();
    assert_eq!(file.fill_ahead(b"v", 0, &bytes(1, 0..CHUNK).into()), Filled::Stored);
    assert_eq!(file.read_recent(&(0..20)), None);
    assert_eq!(&read(&file, 0..20).unwrap()[5..9], b"mine");
}

/// Every change of a file drops what is in memory of it, and of no other file.
#[test]
fn a_change_of_a_file_forgets_its_recent_bytes() {
    type Change = fn(&CachedFile);
    let changes: [(&str, Change); 9] = [
        ("write", |file| file.write(SIZE - 1, b"x").unwrap()),
        ("truncate", |file| file.truncate(SIZE - 1).unwrap()),
        ("reset", |file| assert!(file.reset(b"w", SIZE))),
        ("give up", |file| assert!(file.give_up())),
        ("new version", |file| assert!(file.set_version(b"w", SIZE))),
        ("bypass", |file| drop(begin_bypass(file).unwrap())),
        ("forget", |file| file.forget()),
        ("cull", |file| assert!(file.cull(true).is_some())),
        ("start over", |file| file.start_over(b"v", SIZE)),
    ];
    for (name, change) in changes {
        let cache = open_with(&SimDisk::new(), with_recent());
        let file = filled_ahead(&cache);
        let other = cache.file(cache.assign(b"other"));
        other.reset(b"v", 100);
        other.fill_ahead(b"v", 0, &bytes(2, 0..100).into());
        change(&file);
        assert_eq!(file.read_recent(&(0..10)), None, "{name}");
        assert_eq!(other.read_recent(&(0..9)).as_deref(), Some(&bytes(2, 0..9)[..]), "{name}");
    }
}

#[test]
fn recent_bytes_go_with_the_last_open_of_the_file() {
    let cache = open_with(&SimDisk::new(), with_recent());
    let file = filled_ahead(&cache);
    let (one, two) = (file.hold(), file.hold());
    drop(one);
    assert!(file.read_recent(&(0..10)).is_some());
    drop(two);
    assert_eq!(file.read_recent(&(0..10)), None);
}
