//! What is left when the process dies and the machine keeps running: everything that was
//! acknowledged.
//!
//! Random work on a recording disk, and a kill at each of its changes: the image has everything
//! that was written, and the boot is the same. What a call had put or written when it returned is
//! there; the effect of an interrupted call may be there.

use std::collections::BTreeMap;

use larder_io::{BootId, DiskFile, Fault, Image};

use super::*;

const FILES: u64 = 3;
const END: u64 = 4 * CHUNK + 100;

pub(super) fn booted(boot: u128) -> Config {
    Config { boot: Some(BootId(boot)), ..config() }
}

pub(super) fn open_in(disk: &SimDisk, boot: u128) -> Cache {
    Cache::open(Arc::new(disk.clone()), Arc::new(SimClock::new()), booted(boot)).unwrap()
}

/// One file as an application and the server see it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Truth {
    version: Vec<u8>,
    local: Vec<u8>,
    /// Bytes that no server has.
    dirty: Vec<bool>,
    bypassed: bool,
}

impl Truth {
    fn resize(&mut self, size: u64) {
        self.local.resize(size as usize, 0);
        self.dirty.resize(size as usize, false);
    }
}

/// What must be there after a kill.
#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    files: BTreeMap<u64, Truth>,
    nodes: BTreeMap<u64, Vec<u8>>,
    numbers: BTreeMap<Vec<u8>, FileNo>,
    session: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Work {
    disk: SimDisk,
    cache: Cache,
    random: Random,
    /// Every version's bytes at the server, for what is clean.
    contents: BTreeMap<Vec<u8>, Vec<u8>>,
    versions: u64,
    files: Vec<Arc<CachedFile>>,
    bypasses: BTreeMap<u64, Arc<dyn DiskFile>>,
    world: World,
    /// The world after each step, with the point of the log reached.
    history: Vec<(usize, World)>,
}

impl Work {
    fn new(seed: u64) -> Work {
        let disk = SimDisk::recording();
        let cache = open_in(&disk, 1);
        let files: Vec<_> =
            (0..FILES).map(|key| cache.file(cache.assign(&key.to_le_bytes()))).collect();
        let numbers = (0u64..).zip(&files).map(|(key, file)| {
            let key = key.to_le_bytes().to_vec();
            (key, file.number())
        });
        let world = World { numbers: numbers.collect(), ..World::default() };
        let history = vec![(disk.logged(), world.clone())];
        let (contents, bypasses, random) = (BTreeMap::new(), BTreeMap::new(), Random(seed));
        Work { disk, cache, random, contents, versions: 0, files, bypasses, world, history }
    }

    fn run(mut self, steps: u64) -> Work {
        for _ in 0..steps {
            self.step();
            self.history.push((self.disk.logged(), self.world.clone()));
        }
        self
    }

    fn step(&mut self) {
        let at = self.random.below(FILES);
        let file = Arc::clone(&self.files[at as usize]);
        if !self.world.files.contains_key(&at) {
            return self.reset(at, &file);
        }
        match self.random.below(16) {
            0..=4 => self.write(at, &file),
            5 => self.truncate(at, &file),
            6..=7 => self.acknowledge(at, &file),
            8 => self.reset(at, &file),
            9 => self.fill(at, &file),
            10 => self.toggle_bypass(at, &file),
            11 => self.kernel_writes(at),
            12 => self.put(at),
            13 => self.discard(at, &file),
            14 => {
                self.cache.checkpoint().unwrap();
                if self.random.below(2) == 0 {
                    self.cache.store.index.shed();
                }
            }
            _ => {
                let key = self.random.next().to_le_bytes().to_vec();
                let no = self.cache.assign(&key);
                self.world.numbers.insert(key, no);
            }
        }
    }

    fn next_version(&mut self) -> Vec<u8> {
        self.versions += 1;
        format!("v{}", self.versions).into_bytes()
    }

    fn truth(&mut self, at: u64) -> &mut Truth {
        self.world.files.get_mut(&at).unwrap()
    }

    fn reset(&mut self, at: u64, file: &CachedFile) {
        self.bypasses.remove(&at);
        let version = self.next_version();
        let local = bytes(self.versions, 0..self.random.below(END));
        self.contents.insert(version.clone(), local.clone());
        file.start_over(&version, local.len() as u64);
        let dirty = vec![false; local.len()];
        self.world.files.insert(at, Truth { version, local, dirty, bypassed: false });
    }

    fn write(&mut self, at: u64, file: &CachedFile) {
        let start = self.random.below(END);
        let len = if self.random.below(2) == 0 { 1 + self.random.below(30) } else { CHUNK + 1 };
        let data = bytes(self.random.next(), start..start + len);
        file.write(start, &data).unwrap();
        let truth = self.truth(at);
        truth.resize((truth.local.len() as u64).max(start + len));
        truth.local[start as usize..][..data.len()].copy_from_slice(&data);
        truth.dirty[start as usize..][..data.len()].fill(true);
    }

    fn truncate(&mut self, at: u64, file: &CachedFile) {
        let size = self.random.below(END);
        file.truncate(size).unwrap();
        self.truth(at).resize(size);
    }

    /// All of it or the first range reaches the server.
    fn acknowledge(&mut self, at: u64, file: &CachedFile) {
        file.collect_bypass().unwrap();
        let all = self.random.below(3) > 0;
        let ranges = file.dirty();
        for range in ranges.iter().take(if all { usize::MAX } else { 1 }) {
            file.mark_clean(range.clone());
            self.truth(at).dirty[range.start as usize..range.end as usize].fill(false);
        }
        if self.truth(at).dirty.iter().any(|dirty| *dirty) {
            return;
        }
        let version = self.next_version();
        let truth = self.truth(at);
        truth.version.clone_from(&version);
        let local = truth.local.clone();
        file.set_version(&version, local.len() as u64);
        self.contents.insert(version, local);
    }

    fn fill(&mut self, at: u64, file: &CachedFile) {
        let truth = self.truth(at).clone();
        if !truth.dirty.contains(&true) && self.contents[&truth.version] == truth.local {
            file.fill(&truth.version, 0, &truth.local);
        }
    }

    fn discard(&mut self, at: u64, file: &CachedFile) {
        if self.truth(at).dirty.contains(&true) {
            file.discard_dirty();
            self.bypasses.remove(&at);
            self.world.files.remove(&at);
        }
    }

    fn toggle_bypass(&mut self, at: u64, file: &CachedFile) {
        if self.bypasses.remove(&at).is_some() {
            file.end_bypass().unwrap();
            self.truth(at).bypassed = false;
        } else if let Some(local) = begin_bypass(file) {
            self.bypasses.insert(at, local);
            self.truth(at).bypassed = true;
        }
    }

    fn kernel_writes(&mut self, at: u64) {
        let Some(kernel) = self.bypasses.get(&at) else { return };
        let start = self.random.below(END);
        let data = bytes(self.random.next(), start..start + 1 + self.random.below(CHUNK));
        kernel.write_at(&data, start).unwrap();
        let truth = self.truth(at);
        truth.resize((truth.local.len() as u64).max(start + data.len() as u64));
        truth.local[start as usize..][..data.len()].copy_from_slice(&data);
        truth.dirty[start as usize..][..data.len()].fill(true);
    }

    fn put(&mut self, at: u64) {
        let value = self.random.next().to_le_bytes().to_vec();
        self.cache.put_node(FileNo(1000 + at), &value);
        self.world.nodes.insert(at, value.clone());
        let key = value[..1].to_vec();
        if value[1] & 1 == 0 {
            self.cache.put_session(&key, &value);
            self.world.session.insert(key, value);
        } else {
            self.cache.drop_session(&key);
            self.world.session.remove(&key);
        }
    }

    /// The world before and after the step that made the change `at`: either may be found.
    fn worlds(&self, at: usize) -> [&World; 2] {
        let before = self.history.iter().rev().find(|(logged, _)| *logged <= at);
        let after = self.history.iter().find(|(logged, _)| *logged >= at);
        let first = &self.history[0];
        [&before.unwrap_or(first).1, &after.unwrap_or(first).1]
    }

    /// Opens the image in the same boot and compares. Returns the dirty bytes found.
    fn check_killed(&self, image: &SimDisk, at: usize) -> u64 {
        let worlds = self.worlds(at);
        let cache = open_in(image, 1);
        assert_eq!(cache.usage().dirty_dropped, 0, "{at}");
        let session: BTreeMap<_, _> = cache.session_records().into_iter().collect();
        assert!(worlds.iter().any(|world| world.session == session), "{at}");
        for (key, no) in &worlds[0].numbers {
            assert_eq!(cache.number_of(key), Some(*no), "{at}");
            assert_eq!(cache.key_of(*no).as_ref(), Some(key), "{at}");
        }
        let highest = worlds[0].numbers.values().max().unwrap();
        assert!(cache.assign(b"a new one") > *highest, "{at}");
        for n in 0..FILES {
            let node = cache.node(FileNo(1000 + n));
            assert!(worlds.iter().any(|world| world.nodes.get(&n) == node.as_ref()), "{at}");
        }
        let mut found = 0;
        for n in 0..FILES {
            let file = cache.file(self.files[n as usize].number());
            let [before, after] = worlds.map(|world| world.files.get(&n));
            let fit = self.fits(&file, before, after);
            assert!(fit.is_some(), "{at} {n} dirty {:?} size {}", file.dirty(), file.size());
            found += fit.unwrap_or(0);
        }
        // What is left over is removed, what is needed stays.
        for _ in 0..16 {
            cache.checkpoint().unwrap();
        }
        for n in 0..FILES {
            let file = cache.file(self.files[n as usize].number());
            let [before, after] = worlds.map(|world| world.files.get(&n));
            assert!(self.fits(&file, before, after).is_some(), "{at} {n} after the sweep");
        }
        found
    }

    /// Whether the file has all that was dirty both before and after the interrupted step, and no
    /// byte that neither has; the given bytes must be dirty.
    fn fits(
        &self,
        file: &CachedFile,
        before: Option<&Truth>,
        after: Option<&Truth>,
    ) -> Option<u64> {
        let (Some(before), Some(after)) = (before, after) else {
            let one = before.or(after);
            return match one {
                Some(one) if !file.dirty().is_empty() => self.fits(file, Some(one), Some(one)),
                _ => Some(0),
            };
        };
        let known = |at: u64, byte: u8| {
            [before, after].iter().any(|truth| truth.local.get(at as usize) == Some(&byte))
        };
        let dirty = file.dirty();
        for range in &dirty {
            let mut found = vec![0; (range.end - range.start) as usize];
            file.read_dirty(range.start, &mut found).ok()?;
            if !range.clone().zip(found).all(|(at, byte)| known(at, byte)) {
                return None;
            }
        }
        let is_dirty = |at: u64| dirty.iter().any(|range| range.contains(&at));
        let must = before.dirty.iter().zip(&after.dirty).map(|(before, after)| *before && *after);
        let must: Vec<u64> =
            (0..).zip(must).filter(|(_, dirty)| *dirty).map(|(at, _)| at).collect();
        if !must.iter().all(|at| is_dirty(*at)) {
            return None;
        }
        let sizes = [before.local.len() as u64, after.local.len() as u64];
        if !must.is_empty() && !sizes.contains(&file.size()) {
            return None;
        }
        if [before, after].iter().any(|truth| Some(&truth.version) == file.version().as_ref()) {
            for range in file.held(0..u64::MAX) {
                let found = read(file, range.clone())?;
                if !range.zip(found).all(|(at, byte)| known(at, byte)) {
                    return None;
                }
            }
        }
        Some(must.len() as u64)
    }

    /// Opens the image in another boot: nothing but what is durable and clean.
    fn check_rebooted(&self, image: &SimDisk, at: usize) -> u64 {
        let cache = open_in(image, 2);
        assert_eq!((cache.unsent(), cache.session_records()), (vec![], vec![]), "{at}");
        assert!(image.files().iter().all(|(path, len)| !path.starts_with("log.") || *len < 200));
        let mut held_bytes = 0;
        for file in &self.files {
            let file = cache.file(file.number());
            assert_eq!(file.dirty(), [], "{at}");
            let Some(version) = file.version() else { continue };
            for range in file.held(0..u64::MAX) {
                let expected = &self.contents[&version][range.start as usize..range.end as usize];
                assert!(read(&file, range.clone()).as_deref() == Some(expected), "{at} {range:?}");
                held_bytes += range.end - range.start;
            }
        }
        assert_eq!(cache.verify(&mut |_| true).bad, [], "{at}");
        held_bytes
    }
}

#[test]
fn kill_at_every_change_loses_nothing_acknowledged() {
    let seed = seed("kill_at_every_change", 1);
    let mut dirty_bytes = 0;
    for round in 0..2 {
        let work = Work::new(seed.wrapping_mul(1_000_003) + round).run(50);
        let first = work.history[0].0;
        for point in work.disk.crash_points().filter(|point| point.logged() >= first) {
            let image = point.image(Image::Written);
            dirty_bytes += work.check_killed(&image, point.logged());
        }
    }
    println!("{dirty_bytes} dirty bytes found");
    assert!(dirty_bytes > 0, "the work leaves something dirty");
}

#[test]
fn reboot_at_every_change_serves_nothing_wrong() {
    let seed = seed("reboot_at_every_change", 1);
    let mut held_bytes = 0;
    for round in 0..2 {
        let work = Work::new(seed.wrapping_mul(1_000_003) + round).run(50);
        for point in work.disk.crash_points() {
            let at = point.logged();
            for kind in [Image::Synced, Image::Written, Image::Torn(at as u64)] {
                held_bytes += work.check_rebooted(&point.image(kind), at);
            }
        }
    }
    println!("{held_bytes} bytes held");
    assert!(held_bytes > 0, "the work keeps something");
}

/// A kill while the start after a kill takes the log over, at each of its changes.
#[test]
fn kill_while_starting_loses_nothing() {
    let work = Work::new(seed("kill_while_starting", 1)).run(50);
    let at = work.disk.logged();
    let mut dirty_bytes = 0;
    let mut disk = work.disk.crash(Image::Written);
    for _ in 0..2 {
        let starting = SimDisk::recording();
        copy(&disk, &starting);
        drop(open_in(&starting, 1));
        for point in starting.crash_points().skip(starting_len(&disk)) {
            dirty_bytes += work.check_killed(&point.image(Image::Written), at);
        }
        disk = starting.crash(Image::Written);
    }
    assert!(dirty_bytes > 0);
}

/// Changes that [`copy`] makes.
fn starting_len(disk: &SimDisk) -> usize {
    let copied = SimDisk::recording();
    copy(disk, &copied);
    copied.logged()
}

fn copy(from: &SimDisk, to: &SimDisk) {
    for (path, len) in from.files() {
        let mut content = vec![0; len as usize];
        let file = from.open(&path, larder_io::OpenMode::Existing).unwrap();
        file.read_exact_at(&mut content, 0).unwrap();
        if let Some((dir, _)) = path.rsplit_once('/') {
            to.create_dir_all(dir).unwrap();
        }
        let file = to.open(&path, larder_io::OpenMode::Create).unwrap();
        file.write_at(&content, 0).unwrap();
    }
}

/// Random single bytes: each costs one record, and neighbours merge.
#[test]
fn a_random_write_is_noted_by_one_record() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"file"));
    file.reset(b"v1", 100_000);
    let len = || {
        let files = disk.files();
        let logs = files.iter().filter(|(path, _)| path.starts_with("log."));
        logs.map(|(_, len)| len).max().copied().unwrap()
    };
    file.write(0, b"x").unwrap();
    let mut at = len();
    for n in 1..2000 {
        file.write(n * 7 % 100_000, b"x").unwrap();
        assert!(len() - at < 60, "{n}");
        at = len();
    }
    file.write(0, &[1; 20_000]).unwrap();
    let cache = open_in(&disk.crash(Image::Written), 1);
    let after = cache.file(file.number());
    assert_eq!(after.dirty(), file.dirty());
    assert_eq!(after.size(), 100_000);
}

/// A file of this size, as the next run finds it after one that died while the kernel was writing
/// it, and had changed its third chunk; and the number of its local file in that run.
fn died_in_a_bypass(size: u64) -> (Cache, Arc<CachedFile>, u64) {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = filled(&cache, b"v1", 1, size);
    cache.checkpoint().unwrap();
    let serial = file.local_number();
    let kernel = begin_bypass(&file).unwrap();
    kernel.write_at(b"before", 2 * CHUNK).unwrap();
    let cache = open_in(&disk.crash(Image::Written), 1);
    let after = cache.file(file.number());
    (cache, after, serial)
}

/// The kernel continues with the same file that it had, and chunks that it did not change stay
/// clean.
#[test]
fn a_bypass_goes_on_with_the_same_local_file() {
    let (_cache, after, serial) = died_in_a_bypass(4 * CHUNK);
    assert_eq!(after.local_number(), serial);
    assert_eq!(after.dirty(), [2 * CHUNK..3 * CHUNK], "the rest is what was saved");
    let kernel = begin_bypass(&after).unwrap();
    assert_eq!(after.local_number(), serial);
    kernel.write_at(b"more", 4 * CHUNK).unwrap();
    after.collect_bypass().unwrap();
    assert_eq!(after.dirty(), [2 * CHUNK..3 * CHUNK, 4 * CHUNK..4 * CHUNK + 4]);
}

/// The kernel writes on while the next process takes the file up: behind its end, over what was
/// changed before, and over what was not. Nothing of that is lost, and all of it is sent.
#[test]
fn what_the_kernel_writes_while_a_bypass_is_taken_up_stays() {
    for size in [4 * CHUNK, 4 * CHUNK - 100] {
        for at in [size, size + CHUNK, 2 * CHUNK + 7, 10] {
            let (_cache, after, _) = died_in_a_bypass(size);
            assert_eq!(after.dirty(), [2 * CHUNK..3 * CHUNK]);
            let kernel = after.local(&after.state()).unwrap();
            kernel.write_at(b"amidst", at).unwrap();
            let kernel = go_on_bypassing(&after).unwrap();
            let end = (at + 6).max(size);
            assert_eq!(kernel.len().unwrap(), end, "{at}");
            // It shows before anybody syncs or closes the file.
            assert!(after.unsent().is_bound, "{at} of {size}");
            assert!(after.was_bypassed().unwrap(), "{at} of {size}");
            after.collect_bypass().unwrap();
            let mut found = vec![0; 6];
            kernel.read_exact_at(&mut found, at).unwrap();
            assert_eq!((found.as_slice(), after.size()), (&b"amidst"[..], end), "{at}");
            let covers = |range: &std::ops::Range<u64>| range.start <= at && at + 6 <= range.end;
            let dirty = after.dirty();
            assert!(dirty.iter().any(covers), "{at} of {size}: {dirty:?}");
            assert!(dirty.contains(&(2 * CHUNK..3 * CHUNK)), "{at} of {size}: {dirty:?}");
        }
    }
}

/// The kernel has a file for writing, and writes nothing after a process has died. What it wrote
/// before is known exactly. A page may be mapped and dirty from before, so that a store changes no
/// time: the file is compared once when it is looked after, and not again.
#[test]
fn a_bypass_that_is_taken_up_is_compared_once() {
    let (_cache, after, _) = died_in_a_bypass(4 * CHUNK);
    go_on_bypassing(&after).unwrap();
    let found = crate::Unsent { bytes: CHUNK, is_bound: false };
    assert_eq!(after.unsent(), found);
    assert!(after.was_bypassed().unwrap());
    after.collect_bypass().unwrap();
    assert_eq!(after.unsent(), found);
    assert!(!after.was_bypassed().unwrap());
}

/// Once the index has failed, the log has no base: it is removed, and the next start is one after a
/// crash. Whatever fails, no call hangs.
#[test]
fn a_failed_index_ends_the_log() {
    let mut poisoned_count = 0;
    for step in 0..40 {
        let disk = SimDisk::new();
        let cache = open_in(&disk, 1);
        let file = filled(&cache, b"v1", 1, CHUNK);
        cache.checkpoint().unwrap();
        cache.put_session(b"key", b"value");
        cache.checkpoint().unwrap();
        disk.inject(Fault::EioAt(disk.operations() + 1 + step));
        // The write may fail, and the version may be lost with it.
        let _ = file.write(0, b"unsent");
        cache.drop_session(b"key");
        cache.put_session(b"other", b"value");
        let _ = cache.checkpoint();
        file.discard_dirty();
        let poisoned = cache.usage().poisoned;
        poisoned_count += u32::from(poisoned);
        disk.heal();
        cache.drop_session(b"other");
        let after = open_in(&disk.crash(Image::Written), 1);
        if poisoned {
            assert_eq!((after.unsent(), after.session_records()), (vec![], vec![]), "{step}");
        }
        let file = after.file(file.number());
        let held = file.held(0..CHUNK);
        assert!(held.iter().all(|range| read(&file, range.clone()).is_some()), "{step}");
    }
    assert!(poisoned_count > 0, "some of the faults hit the index");
}
