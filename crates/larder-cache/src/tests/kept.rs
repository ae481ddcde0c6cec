//! Local changes that were kept, over crashes of the machine.

use larder_io::{Disk, Fault, Image, many_histories};

use super::killed::open_in;
use super::*;
use crate::{Keeping, Limits};

const FILES: usize = 4;
const SIZE: u64 = 3 * CHUNK;
/// One file is longer than what fits into a record.
const LONG_SIZE: u64 = 7 * CHUNK;

/// Bytes, and where they lie.
type Piece = (u64, Vec<u8>);
/// What a file has to send: its size, and the bytes of each dirty range.
type Changes = (u64, Vec<Piece>);

/// What a file has to send, if it has anything to send.
fn changes_of(cache: &Cache, no: FileNo) -> Option<Changes> {
    if !cache.unsent().contains(&no) {
        return None;
    }
    let file = cache.file(no);
    let found = |range: std::ops::Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_dirty(range.start, &mut bytes).unwrap();
        (range.start, bytes)
    };
    Some((file.size(), file.dirty().into_iter().map(found).collect()))
}

/// An operation on a file, from one length of the disk's log to another.
struct Done {
    from: usize,
    until: usize,
    what: What,
}

enum What {
    Write(u64, Vec<u8>),
    /// Kept, with what the file had to send then.
    Keep(Changes),
    /// The server has it all.
    Send,
}

struct Work {
    disk: SimDisk,
    cache: Cache,
    files: Vec<Arc<CachedFile>>,
    done: Vec<Vec<Done>>,
    random: Random,
    versions: u64,
}

impl Work {
    fn new(seed: u64) -> Work {
        let disk = SimDisk::recording();
        let cache = open_in(&disk, 1);
        let files = (0..FILES as u64).map(|key| cache.file(cache.assign(&key.to_le_bytes())));
        let files: Vec<_> = files.collect();
        for (at, file) in files.iter().enumerate() {
            file.reset(b"v0", if at == 0 { 0 } else { SIZE });
            if at == 1 {
                fill(file, b"v0", 1, 0..SIZE);
            }
        }
        cache.checkpoint().unwrap();
        let done = (0..FILES).map(|_| Vec::new()).collect();
        Work { disk, cache, files, done, random: Random(seed), versions: 0 }
    }

    fn step(&mut self) {
        let at = self.random.below(FILES as u64) as usize;
        let (file, from) = (Arc::clone(&self.files[at]), self.disk.logged());
        let what = match self.random.below(10) {
            0..=3 => {
                let (size, most) =
                    if at == FILES - 1 { (LONG_SIZE, 5 * CHUNK) } else { (SIZE, CHUNK) };
                let offset = self.random.below(size);
                let data = bytes(self.random.next(), 0..1 + self.random.below(most));
                file.write(offset, &data).unwrap();
                What::Write(offset, data)
            }
            4..=6 if !file.dirty().is_empty() => {
                file.keep().unwrap();
                What::Keep(changes_of(&self.cache, file.number()).unwrap())
            }
            7 if !file.dirty().is_empty() => {
                self.versions += 1;
                file.mark_clean(0..u64::MAX);
                file.set_version(format!("v{}", self.versions).as_bytes(), file.size());
                What::Send
            }
            8 => return self.cache.checkpoint().unwrap(),
            _ => {
                let was_kept = file.keeping() != Keeping::Nothing;
                file.keep_until_sent(from.is_multiple_of(2)).unwrap();
                assert_eq!(file.keeping() == Keeping::Sending, was_kept);
                return;
            }
        };
        self.done[at].push(Done { from, until: self.disk.logged(), what });
    }

    /// Whether what a file has to send after a crash at `logged` is permitted: what was kept last,
    /// and not sent, with any of the bytes that were written there since.
    fn check(&self, at: usize, logged: usize, found: Option<&Changes>) -> Result<bool, String> {
        let begun: Vec<_> = self.done[at].iter().filter(|done| done.from < logged).collect();
        let is_over = |done: &Done| done.until <= logged;
        let is_keep = |done: &&Done| matches!(done.what, What::Keep(_));
        let sent = begun.iter().rposition(|done| matches!(done.what, What::Send));
        let kept = begun.iter().rposition(|done| is_keep(done) && is_over(done));
        let must_be_there = kept.is_some() && sent < kept;
        let Some((size, ranges)) = found else {
            return if must_be_there { Err("it is lost".into()) } else { Ok(false) };
        };
        // What was kept last, or is just being kept.
        let candidates = (kept.unwrap_or(0)..begun.len()).filter(|at| is_keep(&begun[*at]));
        for candidate in candidates {
            let What::Keep((kept_size, kept)) = &begun[candidate].what else { unreachable!() };
            let same = |(one, two): (&Piece, &Piece)| (one.0, one.1.len()) == (two.0, two.1.len());
            if size != kept_size || ranges.len() != kept.len() || !ranges.iter().zip(kept).all(same)
            {
                continue;
            }
            let since = &begun[candidate..];
            let is_right = ranges.iter().zip(kept).all(|((start, found), (_, kept))| {
                let mut bytes = found.iter().zip(kept).zip(*start..);
                // Mostly they are the same, which is soon seen.
                found == kept
                    || bytes
                        .all(|((found, kept), at)| found == kept || was_written(since, at, *found))
            });
            return if is_right { Ok(true) } else { Err("bytes that nobody wrote there".into()) };
        }
        Err(format!("{} ranges that were not kept", ranges.len()))
    }
}

fn was_written(since: &[&Done], at: u64, byte: u8) -> bool {
    since.iter().any(|done| match &done.what {
        What::Write(offset, data) => {
            at.checked_sub(*offset).is_some_and(|at| data.get(at as usize) == Some(&byte))
        }
        What::Keep(_) | What::Send => false,
    })
}

/// What was looked at after crashes.
#[derive(Default)]
struct Seen {
    histories: u64,
    crashes: u64,
    files: u64,
    /// Of these, the ones that had something to send.
    there: u64,
}

impl Seen {
    /// A history of so many steps. The machine crashes at every change of the disk, and each crash
    /// leaves two images; or at a few of them, and each leaves one of the two.
    fn see(&mut self, seed: u64, steps: usize, few: Option<usize>) {
        let mut work = Work::new(seed);
        let begun = work.disk.logged();
        (0..steps).for_each(|_| work.step());
        for point in work.disk.crash_points_from(begun, few, seed) {
            let logged = point.logged();
            let both = [Image::Synced, Image::Torn(seed ^ logged as u64)];
            let one = (seed as usize ^ logged) % 2;
            for image in if few.is_some() { &both[one..=one] } else { &both[..] } {
                let cache = open_in(&point.image(*image), 2);
                for (at, file) in work.files.iter().enumerate() {
                    let found = changes_of(&cache, file.number());
                    let checked = work.check(at, logged, found.as_ref());
                    let is_there = checked.unwrap_or_else(|why| {
                        panic!("LARDER_SEED={seed}: file {at} at {logged}, {image:?}: {why}")
                    });
                    self.there += u64::from(is_there);
                    self.files += 1;
                }
                self.crashes += 1;
            }
        }
        self.histories += 1;
    }

    fn tell(&self) {
        let Seen { histories, crashes, files, there } = self;
        println!(
            "{histories} histories, {crashes} crashes: {files} files looked at, {there} had \
             something to send, 0 lost, 0 invented"
        );
        assert!(*crashes > 100 && *there > 100);
    }
}

/// Over random histories of writes, keeping, sending and checkpoints, at every change of the disk:
/// in another boot there is what was kept and not sent, and nothing else.
#[test]
fn what_was_kept_outlives_a_crash_of_the_machine_and_nothing_else_does() {
    let (first, mut seen) = (seed("kept", 1), Seen::default());
    (first..first + rounds(3)).for_each(|seed| seen.see(seed, 40, None));
    seen.tell();
}

/// The same over many histories, each with a few crashes. With the seed of one that fails, the test
/// above begins with the same steps, and crashes after each.
#[test]
fn what_was_kept_outlives_a_crash_in_each_of_many_histories() {
    const STEPS: usize = 16;
    const CRASHES: usize = 2;
    let (first, mut seen) = (seed("kept in many histories", 1), Seen::default());
    (first..first + many_histories(1000)).for_each(|seed| seen.see(seed, STEPS, Some(CRASHES)));
    seen.tell();
}

#[test]
fn what_was_kept_is_there_boot_after_boot_until_it_is_sent() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.keep().unwrap();
    file.write(0, b"kept").unwrap();
    cache.put_session(b"writer", b"ann");
    file.keep().unwrap();
    assert!(file.is_all_kept());
    file.write(2, b"lost").unwrap();
    assert!(!file.is_all_kept());
    file.keep_until_sent(true).unwrap();
    cache.checkpoint().unwrap();
    let no = file.number();
    let mut disk = disk.crash(Image::Synced);
    for boot in 2..5 {
        let cache = open_in(&disk, boot);
        let (size, ranges) = changes_of(&cache, no).unwrap();
        assert_eq!((size, ranges.len(), ranges[0].1.len()), (4, 1, 4), "{boot}");
        assert_eq!(&ranges[0].1[..2], b"ke");
        assert_eq!(cache.usage().dirty_dropped, 0);
        assert_eq!(cache.file(no).keeping(), Keeping::Sending);
        assert_eq!(cache.session_records().len(), 1);
        cache.file(no).write(9, b"lost too").unwrap();
        cache.checkpoint().unwrap();
        disk = disk.crash(Image::Synced);
    }
    let cache = open_in(&disk, 5);
    let file = cache.file(no);
    file.mark_clean(0..4);
    file.set_version(b"v2", 4);
    cache.checkpoint().unwrap();
    assert_eq!(open_in(&disk.crash(Image::Synced), 6).unsent(), []);
}

/// What was given up, or set aside, does not return.
#[test]
fn what_was_kept_and_given_up_does_not_come_back() {
    for how in 0..3 {
        let disk = SimDisk::new();
        let cache = open_in(&disk, 1);
        let file = cache.file(cache.assign(b"new"));
        file.reset(b"v1", 0);
        file.write(0, b"kept").unwrap();
        file.keep().unwrap();
        match how {
            0 => file.discard_dirty(),
            1 => drop(file.set_aside("name", ConflictKind::Written, "changed").unwrap()),
            _ => cache.drop_file(file.number()),
        }
        cache.checkpoint().unwrap();
        let after = open_in(&disk.crash(Image::Synced), 2);
        assert_eq!((after.unsent(), after.usage().dirty_dropped), (vec![], 0), "{how}");
    }
}

/// In the same boot nothing is lost anyway.
#[test]
fn in_the_same_boot_all_changes_are_there() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, b"kept").unwrap();
    file.keep().unwrap();
    file.write(4, b" and more").unwrap();
    let after = open_in(&disk.crash(Image::Written), 1);
    assert_eq!(changes_of(&after, file.number()).unwrap().1[0].1, b"kept and more");
}

#[test]
fn a_disk_that_does_not_keep_says_so() {
    let in_memory = Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap();
    let file = in_memory.file(in_memory.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, b"bytes").unwrap();
    assert_eq!(file.keep().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
    type Make = fn(u64) -> Fault;
    // A single failure is got over: a commit does what the log could not, or the other way round.
    for (make, fails) in [(Fault::EioAt as Make, false), (Fault::EioFrom, true)] {
        let mut failed = 0;
        for operation in 1.. {
            let disk = SimDisk::new();
            let cache = open_in(&disk, 1);
            let file = cache.file(cache.assign(b"new"));
            file.reset(b"v1", 0);
            file.write(0, b"bytes").unwrap();
            let before = disk.operations();
            disk.inject(make(before + operation));
            let kept = file.keep();
            if kept.is_ok() && disk.operations() < before + operation {
                break;
            }
            failed += u32::from(kept.is_err());
            // Whatever it said, it is true.
            let after = open_in(&disk.crash(Image::Synced), 2);
            assert!(kept.is_err() || after.unsent() == [file.number()], "{operation}");
        }
        assert_eq!(failed > 2, fails, "{failed}");
    }
}

/// However little room is left: what is kept is there after a crash, and the rest was refused.
#[test]
fn a_full_disk_refuses_before_anything_is_acknowledged() {
    const TOTAL_BYTES: u64 = 2 << 20;
    let (mut kept, mut refused) = (0, 0);
    for room in (0..100).map(|room| room * 4096) {
        let disk = SimDisk::new();
        // So the reserve is small.
        disk.inject(Fault::SpaceBytes(TOTAL_BYTES));
        let cache = open_in(&disk, 1);
        let files = (0..4_u64).map(|key| {
            let file = cache.file(cache.assign(&key.to_le_bytes()));
            file.reset(b"v1", 0);
            file.write(0, &bytes(key, 0..20_000)).unwrap();
            file
        });
        let files: Vec<_> = files.collect();
        let used = TOTAL_BYTES - disk.space().unwrap().free_bytes;
        disk.inject(Fault::SpaceBytes(used + room));
        let kept_now: Vec<_> = files.iter().filter(|file| file.keep().is_ok()).collect();
        let after = disk.crash(Image::Synced);
        disk.heal();
        let cache = open_in(&after, 2);
        for file in &kept_now {
            let (key, found) =
                (0..4).zip(&files).find(|(_, it)| it.number() == file.number()).unwrap();
            let expected = (20_000, vec![(0, bytes(key, 0..20_000))]);
            assert_eq!(changes_of(&cache, found.number()), Some(expected), "{room} free");
        }
        kept += kept_now.len();
        refused += files.len() - kept_now.len();
    }
    println!("{kept} kept, {refused} refused");
    assert!(kept > 10 && refused > 10);
}

/// Bytes in a record are written into the local file before anything else happens in another boot.
/// If the disk does not take them, the cache does not open, and nothing is lost.
#[test]
fn a_cache_that_cannot_write_what_was_kept_does_not_open() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, &bytes(1, 0..50_000)).unwrap();
    file.keep().unwrap();
    let disk = disk.crash(Image::Synced);
    assert!(disk.files().iter().all(|(path, _)| !path.starts_with("data/")));
    let used: u64 = disk.files().iter().map(|(_, len)| len.next_multiple_of(4096)).sum();
    disk.inject(Fault::SpaceBytes(used + 4096));
    let config = super::killed::booted(2);
    let refused = Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), config);
    assert!(matches!(refused, Err(OpenError::Unwritable(_))), "{refused:?}");
    disk.heal();
    let cache = open_in(&disk, 2);
    let expected = (50_000, vec![(0, bytes(1, 0..50_000))]);
    assert_eq!(changes_of(&cache, file.number()), Some(expected));
}

/// After the first start in another boot the local file is what counts: later changes of it are
/// there when the process dies.
#[test]
fn what_was_kept_is_written_out_once_in_a_boot() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, b"kept").unwrap();
    file.keep().unwrap();
    let no = file.number();
    let disk = disk.crash(Image::Synced);
    let cache = open_in(&disk, 2);
    cache.file(no).write(0, b"more").unwrap();
    let disk = disk.crash(Image::Written);
    let cache = open_in(&disk, 2);
    assert_eq!(changes_of(&cache, no), Some((4, vec![(0, b"more".to_vec())])));
    let cache = open_in(&disk.crash(Image::Synced), 3);
    assert_eq!(changes_of(&cache, no), Some((4, vec![(0, b"kept".to_vec())])), "kept last");
}

/// The index fails after something was kept: the next process of this boot finds it, too.
#[test]
fn what_was_kept_outlives_a_failure_of_the_index() {
    let mut failed = 0;
    for operation in 1..12 {
        let disk = SimDisk::new();
        let cache = open_in(&disk, 1);
        let file = cache.file(cache.assign(b"new"));
        file.reset(b"v1", 0);
        file.write(0, b"kept").unwrap();
        file.keep().unwrap();
        disk.inject(Fault::EioAt(disk.operations() + operation));
        cache.put_node(file.number(), b"record");
        let _ = cache.store.index.commit();
        failed += u32::from(cache.usage().poisoned);
        disk.heal();
        for (image, boot) in [(Image::Written, 1), (Image::Synced, 2)] {
            let after = open_in(&disk.crash(image), boot);
            let found = changes_of(&after, file.number());
            assert_eq!(found, Some((4, vec![(0, b"kept".to_vec())])), "{operation} {boot}");
        }
    }
    assert!(failed > 3);
}

/// What a reader has just had stored in a large file is not synced with a change of it, and one
/// after the other all changes are, also if a sync fails.
#[test]
fn a_change_of_a_large_file_is_kept_without_the_rest() {
    const LARGE: u64 = 40 * CHUNK;
    let long = crate::kept_bytes::OF_A_FILE_MAX + 1;
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"large"));
    file.reset(b"v1", LARGE);
    fill(&file, b"v1", 1, 0..LARGE);
    file.write(20 * CHUNK, &bytes(2, 0..long)).unwrap();
    file.keep().unwrap();
    let local = disk.files().into_iter().find(|(_, len)| *len == LARGE).unwrap().0;
    let byte_after_crash = |at| disk.crash(Image::Synced).byte(&local, at);
    assert_eq!(byte_after_crash(20 * CHUNK), bytes(2, 0..1)[0]);
    assert!((0..CHUNK).all(|at| byte_after_crash(at) == 0), "what was filled is not synced");
    for change in 3..30_u64 {
        // Some are beside each other, some within others, and some too many for a sync of each.
        for piece in 0..change % 7 {
            let at = (change * 7919 * (piece + 1)) % (LARGE - CHUNK);
            file.write(at, &bytes(change, 0..1 + change * 37 % CHUNK)).unwrap();
        }
        if change % 3 == 0 {
            disk.inject(Fault::EioAt(disk.operations() + 1));
            assert!(
                file.keep().is_err() || change % 7 == 0,
                "{change}: its first call is the sync"
            );
            disk.heal();
        }
        file.keep().unwrap();
        let after = open_in(&disk.crash(Image::Synced), 2);
        let (found, kept) = (changes_of(&after, file.number()), changes_of(&cache, file.number()));
        assert!(found == kept && kept.is_some(), "{change}");
    }
}

/// Changes that are carried to another version are over that one in the next process too, and in
/// the next boot if they are kept.
#[test]
fn changes_are_over_the_version_to_which_they_were_carried() {
    for (image, boot) in [(Image::Written, 1), (Image::Synced, 2)] {
        let disk = SimDisk::recording();
        let cache = open_in(&disk, 1);
        let file = cache.file(cache.assign(b"file"));
        file.reset(b"v1", SIZE);
        fill(&file, b"v1", 1, 0..SIZE);
        file.carry_changes(b"v9");
        assert_eq!(file.version(), Some(b"v1".to_vec()), "it has none");
        file.write(3, b"mine").unwrap();
        file.keep().unwrap();
        file.carry_changes(b"v2");
        assert_eq!(file.version(), Some(b"v2".to_vec()));
        // The other file's record makes the one before it durable.
        let other = cache.file(cache.assign(b"other"));
        other.reset(b"v1", SIZE);
        other.write(0, b"other").unwrap();
        other.keep().unwrap();
        let next = open_in(&disk.crash(image), boot).file(file.number());
        assert_eq!((next.version(), next.keeping()), (Some(b"v2".to_vec()), Keeping::Kept));
        assert_eq!(next.dirty(), [3..7], "boot {boot}");
    }
}
