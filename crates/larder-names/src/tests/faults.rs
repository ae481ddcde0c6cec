//! The cache's disk fails or fills up, at every operation of a history: what was acknowledged as
//! kept is there in the next process and the next boot, what cannot be kept is refused, and work
//! goes on when the disk does.

use larder_io::{Disk, Fault, OpenMode, many_histories};
use larder_vfs::Error;

use super::model::{History, check_names};
use super::*;

/// What happens to the disk.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The operation with this number fails (EIO).
    Once(u64),
    /// All operations from this number on fail (EIO).
    From(u64),
    /// This many bytes are left when the history begins (ENOSPC), and no reserve.
    Left(u64),
    /// The same with the cache's reserve; other programs take all that gets free.
    Contended(u64),
}

/// How the process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is killed; the disk works again before the next one begins.
    Killed,
    /// It is killed, and the disk is as it was when the next one begins.
    KilledMeanwhile,
    /// The machine crashes.
    Crashed(Image),
}

/// What the caller was told.
#[derive(Default)]
struct Told {
    /// The names since all was last acknowledged as kept, with those of that moment.
    since: Vec<Tree>,
    /// Of these, the first that a killed process may leave: what is acknowledged outlives it. Once
    /// the disk has refused something, that is certain only of what is kept.
    first_killed: usize,
    has_refused: bool,
    refused: u32,
}

impl Told {
    async fn see(&mut self, rig: &Rig, told: std::result::Result<bool, Error>) {
        match told {
            Ok(true) => {
                *self = Told { refused: self.refused, ..Told::default() };
            }
            Ok(false) if !self.has_refused => self.first_killed = self.since.len(),
            Ok(false) => {}
            Err(_) => {
                self.refused += 1;
                (self.has_refused, self.first_killed) = (true, 0);
            }
        }
        self.since.push(tree(rig.remote()).await);
    }

    /// Each name stands for what it stood for at one of the moments. A change of attributes may
    /// have been made at the server when the name was not: these are those of any moment. How many
    /// names an object has, and which is its first, follows from which names there are.
    fn check(&self, end: End, found: &Tree, what: &str) {
        let first = if matches!(end, End::Crashed(_)) { 0 } else { self.first_killed };
        let since = &self.since[first..];
        let object = |leaf: &Leaf| (leaf.kind, leaf.target.clone());
        for path in since.iter().flat_map(Tree::keys).chain(found.keys()) {
            let found = found.get(path);
            let is_one = since.iter().any(|tree| tree.get(path).map(object) == found.map(object));
            let attributes = |leaf: &Leaf| (object(leaf), leaf.mode, leaf.mtime);
            let mut seen = since.iter().flat_map(Tree::values).map(attributes);
            let is_known = found.is_none_or(|leaf| seen.any(|seen| seen == attributes(leaf)));
            assert!(is_one && is_known, "{what}: {path} is {found:?}, of {since:#?}");
        }
    }
}

/// Of a small disk; a 64th of it is the cache's reserve.
const DISK_BYTES: u64 = 12 << 20;
const STEPS: u64 = 18;
/// So many need more than the pages that the log has.
const STEPS_TO_FILL: u64 = 100;

/// Other programs leave so many bytes.
fn fill_up(disk: &SimDisk, left: u64) {
    let others = disk.open("data/others", OpenMode::Create).unwrap();
    let free = disk.space().unwrap().free_bytes;
    others.allocate(others.len().unwrap() + free.saturating_sub(left) / 4096 * 4096).unwrap();
}

/// One history on a disk in trouble. Returns the number of operations, and what was told.
async fn live(seed: u64, steps: u64, trouble: Option<Trouble>, end: End) -> (u64, Told) {
    let what = format!("{seed} {trouble:?} {end:?}");
    let disk = SimDisk::new();
    if let Some(Trouble::Contended(_)) = trouble {
        disk.inject(Fault::SpaceBytes(DISK_BYTES));
    }
    let mut rig = Rig::on(disk).await;
    rig.deferring().keep().await.unwrap();
    let begin = rig.disk.operations();
    match trouble {
        None => {}
        Some(Trouble::Once(no)) => rig.disk.inject(Fault::EioAt(begin + no)),
        Some(Trouble::From(no)) => rig.disk.inject(Fault::EioFrom(begin + no)),
        Some(Trouble::Left(bytes)) => {
            let space = rig.disk.space().unwrap();
            let used = space.total_bytes - space.free_bytes;
            rig.disk.inject(Fault::SpaceBytes(used + bytes));
        }
        Some(Trouble::Contended(bytes)) => fill_up(&rig.disk, bytes),
    }
    let (mut history, mut told) = (History::new(seed), Told::default());
    told.see(&rig, Ok(true)).await;
    for step in 0..steps {
        if let Some(Trouble::Contended(_)) = trouble {
            fill_up(&rig.disk, 0);
        }
        let answer = match step % 6 {
            2 | 4 => rig.deferring().keep().await.map(|()| true),
            5 => rig.deferring().replay(None).await.map(|()| true),
            _ => history.step(&rig).await.map_or(Ok(false), Err),
        };
        if let Err(error) = answer {
            let is_known = matches!(error, Error::Io | Error::NoSpace | Error::TimedOut);
            assert!(is_known, "{what}: {step}: {error}");
        }
        told.see(&rig, answer).await;
    }
    let operations = rig.disk.operations() - begin;
    if !matches!(end, End::KilledMeanwhile) {
        rig.disk.heal();
    }
    rig = rig.crash(match end {
        End::Killed | End::KilledMeanwhile => None,
        End::Crashed(image) => Some(image),
    });
    told.check(end, &tree(rig.remote()).await, &what);
    rig.disk.heal();
    rig.be_seen().await;
    for step in 0..6 {
        assert_eq!(history.step(&rig).await, None, "{what}: {step} afterwards");
    }
    rig.deferring().keep().await.unwrap();
    check_names(&rig).await;
    (operations, told)
}

#[tokio::test]
async fn whenever_the_disk_fails_what_was_kept_is_there() {
    let (seed, rounds) = seed("whenever_the_disk_fails", 1);
    let (mut lives, mut refused) = (0, 0);
    for round in 0..rounds {
        let seed = seed.wrapping_mul(3_000_017) + round;
        let (operations, told) = live(seed, STEPS, None, End::Killed).await;
        assert_eq!(told.refused, 0);
        println!("{operations} operations");
        for no in 1..=operations {
            let torn = End::Crashed(Image::Torn(no));
            let ends = [End::Killed, End::Crashed(Image::Synced), torn];
            for (trouble, shift) in [(Trouble::Once(no), 0), (Trouble::From(no), 1)] {
                let end = ends[((no + round + shift) % 3) as usize];
                refused += live(seed, STEPS, Some(trouble), end).await.1.refused;
                lives += 1;
            }
        }
    }
    println!("{lives} lives, {refused} refusals");
    assert!(refused > 0);
}

/// The same over many short histories: in each the disk fails once, or from one operation on. The
/// seed of one that fails is the number in the message divided by 3,000,017.
#[tokio::test]
async fn a_disk_that_fails_in_each_of_many_histories_has_what_was_kept() {
    const STEPS: u64 = 9;
    // Few histories of so many steps make more operations of the disk.
    const OPERATIONS: u64 = 16;
    const HISTORIES: u64 = 200;
    let (mut lives, mut reached, mut refused) = (0, 0, 0);
    let (first, _) = seed("a_disk_that_fails_in_each_of_many_histories", HISTORIES);
    for seed in first..first + many_histories(HISTORIES) {
        let mut random = Random(!seed);
        let no = 1 + random.below(OPERATIONS);
        let trouble = [Trouble::Once(no), Trouble::From(no)][random.below(2) as usize];
        let torn = End::Crashed(Image::Torn(no));
        let ends = [End::Killed, End::Crashed(Image::Synced), torn];
        let end = ends[random.below(3) as usize];
        let number = seed.wrapping_mul(3_000_017);
        let (operations, told) = live(number, STEPS, Some(trouble), end).await;
        lives += 1;
        reached += u64::from(operations >= no);
        refused += told.refused;
    }
    println!("{lives} lives, {reached} with a failure, {refused} refusals");
    assert!(reached > lives / 4 && refused > 0);
}

#[tokio::test]
async fn however_full_the_disk_is_what_was_kept_is_there() {
    let (seed, rounds) = seed("however_full_the_disk", 1);
    let (mut lives, mut refused) = (0, 0);
    for round in 0..rounds {
        let seed = seed.wrapping_mul(3_000_017) + round;
        for bytes in (0..6).map(|step| step * 4096) {
            let torn = End::Crashed(Image::Torn(bytes));
            let ends = [End::Killed, End::Crashed(Image::Synced), torn];
            let left = ends.map(|end| (Trouble::Left(bytes), end));
            let contended = ends.into_iter().chain([End::KilledMeanwhile]);
            let contended = contended.map(|end| (Trouble::Contended(bytes), end));
            for (trouble, end) in left.into_iter().chain(contended) {
                let told = live(seed, STEPS_TO_FILL, Some(trouble), end).await.1;
                lives += 1;
                refused += told.refused;
            }
        }
    }
    println!("{lives} lives, {refused} refusals");
    assert!(refused > 0);
}

/// Two names are exchanged, and the disk fails at each operation of sending that to the server,
/// where one of them gets a temporary name for a moment. The process dies, or the machine crashes;
/// then one of the two is removed, so that they wait for each other no more.
#[tokio::test]
async fn no_temporary_name_is_seen_or_stays_at_the_server() {
    let mut seen_at_server = 0;
    for end in [End::Killed, End::Crashed(Image::Synced), End::Crashed(Image::Written)] {
        for removed in ["a", "b"] {
            let mut no = 0;
            loop {
                no += 1;
                let mut rig = Rig::new().await;
                let top = rig.top().await;
                for name in ["a", "b"] {
                    rig.made(&top, name, New::FileExclusive).await.unwrap();
                }
                rig.deferring().replay(None).await.unwrap();
                for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
                    let (from, to) = (OsStr::new(from), OsStr::new(to));
                    rig.remote().rename(&user(), (&top, from), (&top, to)).await.unwrap();
                }
                rig.deferring().keep().await.unwrap();
                rig.disk.inject(Fault::EioFrom(rig.disk.operations() + no));
                let is_done = rig.deferring().replay(None).await.is_ok();
                rig.disk.heal();
                rig = rig.crash(match end {
                    End::Crashed(image) => Some(image),
                    End::Killed | End::KilledMeanwhile => None,
                });
                let what = format!("{no} {end:?} {removed}");
                let is_temporary = |path: &String| path.starts_with("/.larder-");
                let at_server = tree(&*rig.server).await;
                seen_at_server += u32::from(at_server.keys().any(is_temporary));
                let here: Vec<_> = tree(rig.remote()).await.into_keys().collect();
                assert_eq!(here, ["/a", "/b"], "{what}");
                let top = rig.top().await;
                rig.remove(&top, removed, Removal::File).await.unwrap();
                check_names(&rig).await;
                let left = if removed == "a" { "/b" } else { "/a" };
                let at_server: Vec<_> = tree(&*rig.server).await.into_keys().collect();
                assert_eq!(at_server, [left], "{what}");
                if is_done {
                    break;
                }
            }
        }
    }
    assert!(seen_at_server > 0);
}
