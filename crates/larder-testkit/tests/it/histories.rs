//! Many histories on one volume at once, under kills, and what the checkers say of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use larder_io::Image;
use larder_testkit::history::linear::Verdict;
use larder_testkit::history::{Timed, data, locks, names};
use tokio::task::JoinSet;

use crate::player::{History, Player, Random, Record};
use crate::world::World;

/// The number of histories, unless `LARDER_HISTORIES` sets another.
const HISTORIES: u64 = 1000;

/// This many histories run at once, on one volume, so that a kill hits all of them.
const AT_ONCE: u64 = 125;

/// One game in this many runs on a volume that keeps two copies.
const COPIES_EVERY: u64 = 4;

const CLIENTS: usize = 3;
const PLAYERS: u64 = 3;
const STEPS: u64 = 10;
const KILLS: u64 = 6;

/// The most states that the search for an order may visit.
const STATES_MAX: usize = 1_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Counts of what was done, to be printed.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    histories: u64,
    names: usize,
    locks: usize,
    writes: usize,
    reads: usize,
    unknown: u64,
    kills: [u64; 3],
}

impl Counts {
    fn add(&mut self, more: Counts) {
        self.histories += more.histories;
        self.names += more.names;
        self.locks += more.locks;
        self.writes += more.writes;
        self.reads += more.reads;
        self.unknown += more.unknown;
        (0..3).for_each(|kind| self.kills[kind] += more.kills[kind]);
    }
}

/// Prints the calls about names in order, and marks those that no order explains.
fn tell(record: &Record, verdict: &Verdict) -> String {
    let Verdict::Wrong { reached } = verdict else { return "not decided".to_owned() };
    let mut all: Vec<usize> = (0..record.names.len()).collect();
    all.sort_by_key(|at| record.names[*at].span.made);
    let lines = all.into_iter().map(|at| {
        let Timed { span, call } = &record.names[at];
        let mark = if reached.contains(&at) { "" } else { "! " };
        let (by, end) = (record.by[at], span.answered.map_or("-".into(), |end| end.to_string()));
        format!("\n  {mark}{}-{end} client {by}: {call:?}", span.made)
    });
    lines.collect()
}

/// The faults of a history.
fn faults(history: &History, last: &[data::Read]) -> Vec<String> {
    let record = history.record.lock().unwrap();
    let mut faults = record.odd.clone();
    let names = names::Names { root: history.root }.explain(&record.names, STATES_MAX);
    if names != Verdict::Explained {
        faults.push(format!("names: {}", tell(&record, &names)));
    }
    let locks = locks::explain(&record.locks, STATES_MAX);
    if locks != Verdict::Explained {
        faults.push(format!("locks: {locks:?} of {:#?}", record.locks));
    }
    for wrong in data::wrong(&record.writes, &record.reads)
        .into_iter()
        .chain(data::disagree(&record.writes, last))
    {
        faults.push(format!("data: {wrong}"));
    }
    faults
}

/// Kills a client or a server, which starts again.
fn kill(world: &mut World, histories: &[Arc<History>], random: &mut Random, counts: &mut Counts) {
    let mut image = || match random.below(3) {
        0 => Image::Written,
        1 => Image::Synced,
        _ => Image::Torn(random.below(1 << 32)),
    };
    let images = [image(), image()];
    let victim = random.below(5);
    if victim < 2 {
        let client = usize::try_from(random.below(CLIENTS as u64)).unwrap();
        let life = world.kill_client(client, images[0]);
        histories.iter().for_each(|history| history.died(life));
        world.begin(client);
        counts.kills[0] += 1;
        return;
    }
    if victim != 3 {
        world.volume.kill_meta(images[0]);
        assert_eq!(world.volume.check(), Vec::<String>::new());
        counts.kills[1] += 1;
    }
    if victim != 2 {
        // Kill one of several disks, or all.
        match random.below(world.volume.disks() as u64 + 1) {
            0 => world.volume.kill_disks(images[1]),
            one => world.volume.kill_disk(usize::try_from(one).unwrap() - 1, images[1]),
        }
        counts.kills[2] += 1;
    }
    world.volume.start();
}

/// Plays this many histories at once.
fn game(seed: u64, count: u64) -> (Counts, Vec<String>) {
    let mut random = Random(seed);
    let copies = if seed.is_multiple_of(COPIES_EVERY) { 2 } else { 1 };
    let mut world = World::with_copies(CLIENTS, copies);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let first = world.lives(0).borrow().clone().unwrap();
    let ticks = world.ticks.clone();
    let histories: Vec<Arc<History>> = (0..count)
        .map(|number| runtime.block_on(History::begin(number, ticks.clone(), &first)))
        .collect();
    drop(first);
    let mut players = JoinSet::new();
    for history in &histories {
        for number in 1..=PLAYERS {
            let client = usize::try_from(random.below(CLIENTS as u64)).unwrap();
            let lives = world.lives(client);
            let player = Player::new(Arc::clone(history), number, lives, random.below(u64::MAX));
            players.spawn_on(player.play(STEPS), runtime.handle());
        }
    }
    let mut counts = Counts { histories: count, ..Counts::default() };
    let all = count * PLAYERS * STEPS;
    let mut moments: Vec<u64> = (0..KILLS).map(|_| random.below(all * 2)).collect();
    moments.sort_unstable();
    let begun = ticks.next();
    let moments = moments.into_iter().map(|moment| begun + moment);
    runtime.block_on(async {
        let all_over = players.join_all();
        tokio::pin!(all_over);
        for moment in moments {
            tokio::select! {
                () = ticks.reach(moment) => {}
                _ = &mut all_over => return,
            }
            tokio::task::block_in_place(|| kill(&mut world, &histories, &mut random, &mut counts));
        }
        all_over.await;
    });
    // All files are closed. Data that a client recovered from its life before may still be unsent.
    runtime.block_on(world.all_is_sent());
    // What was acknowledged is there after a power failure.
    world.volume.kill_meta(Image::Synced);
    world.volume.kill_disks(Image::Synced);
    assert_eq!(world.volume.check(), Vec::<String>::new());
    world.volume.start();
    let new = world.add();
    let mut wrong = Vec::new();
    for history in &histories {
        let player = |client| Player::new(Arc::clone(history), 9, world.lives(client), 1);
        let (mut old, mut new) = (player(random.one_of(&[0, 1, 2])), player(new));
        let last = runtime.block_on(async {
            new.look_at_names().await;
            [old.read_places().await, new.read_places().await].concat()
        });
        let record = history.record.lock().unwrap();
        counts.names += record.names.len();
        counts.locks += record.locks.len();
        counts.writes += record.writes.len();
        counts.reads += record.reads.len();
        counts.unknown += record.unknown;
        drop(record);
        let faults = faults(history, &last);
        wrong.extend(faults.iter().map(|fault| format!("seed {seed}, {}: {fault}", history.dir)));
    }
    (counts, wrong)
}

/// `LARDER_HISTORIES` and `LARDER_SEED` run more of them.
#[test]
fn histories_of_several_clients_under_kills_are_explained() {
    let (wanted, seed) =
        (number("LARDER_HISTORIES").unwrap_or(HISTORIES), number("LARDER_SEED").unwrap_or(1));
    let begin = Instant::now();
    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    let next = AtomicU64::new(0);
    let play = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, SeqCst);
            let left = wanted.saturating_sub(at * AT_ONCE).min(AT_ONCE);
            if left == 0 {
                return done;
            }
            done.push(game(seed + at, left));
        }
    };
    let done = std::thread::scope(|scope| {
        let players = [scope.spawn(play), scope.spawn(play)];
        players.map(|player| player.join().unwrap())
    });
    for (more, faults) in done.into_iter().flatten() {
        counts.add(more);
        wrong.extend(faults);
    }
    println!("{counts:?} in {:?}", begin.elapsed());
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
