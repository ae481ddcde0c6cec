//! Crash images at every change of the disk under a random workload.
//!
//! Every version of a file has content of its own, so a crash image may hold any version that ever
//! was, but under its name only its bytes. What a checkpoint saved and no call has touched since
//! must still be there.

use std::collections::BTreeMap;

use larder_io::{Image, many_histories};

use super::*;

const FILES: u64 = 3;

type Contents = BTreeMap<(FileNo, Vec<u8>), Vec<u8>>;

/// What is certain from one point of the log to another.
struct Certain {
    no: FileNo,
    version: Vec<u8>,
    held: Vec<std::ops::Range<u64>>,
    from: usize,
    until: usize,
}

struct Workload {
    disk: SimDisk,
    cache: Cache,
    random: Random,
    contents: Contents,
    versions: u64,
    certain: Vec<Certain>,
    nos: Vec<FileNo>,
    /// Handles in use: a file without handles that holds nothing is forgotten.
    files: Vec<Arc<CachedFile>>,
}

impl Workload {
    fn new(seed: u64) -> Workload {
        let disk = SimDisk::recording();
        let cache = open_with(&disk, if seed.is_multiple_of(2) { config() } else { at_once() });
        let nos: Vec<_> = (0..FILES).map(|key| cache.assign(&key.to_le_bytes())).collect();
        let files = nos.iter().map(|&no| cache.file(no)).collect();
        let (contents, certain, random) = (Contents::new(), Vec::new(), Random(seed));
        Workload { disk, cache, random, contents, versions: 0, certain, nos, files }
    }

    fn next_version(&mut self) -> Vec<u8> {
        self.versions += 1;
        format!("version {}", self.versions).into_bytes()
    }

    fn step(&mut self) {
        let at = self.random.below(FILES) as usize;
        let file = Arc::clone(&self.files[at]);
        if file.version().is_none() {
            self.reset(&file);
        }
        match self.random.below(9) {
            0..=2 => self.fill(&file),
            3 => self.change(&file),
            4 => self.truncate(&file),
            5 => self.reset(&file),
            6 => drop(whole(&file)),
            7 => {
                // The state is dropped and loaded again, if it is saved.
                let no = file.number();
                drop((
                    file,
                    std::mem::replace(&mut self.files[at], self.cache.file(number(u64::MAX))),
                ));
                self.files[at] = self.cache.file(no);
            }
            _ => self.checkpoint(),
        }
    }

    /// From now on nothing is certain about a file.
    fn touch(&mut self, file: &CachedFile) {
        let now = self.disk.logged();
        for certain in self.certain.iter_mut().filter(|certain| certain.no == file.number()) {
            certain.until = certain.until.min(now);
        }
    }

    fn content(&self, file: &CachedFile) -> Option<(Vec<u8>, Vec<u8>)> {
        let version = file.version()?;
        let content = self.contents.get(&(file.number(), version.clone()))?;
        Some((version, content.clone()))
    }

    fn fill(&mut self, file: &CachedFile) {
        let Some((version, content)) = self.content(file) else { return };
        let start = self.random.below(content.len() as u64 + 1) / 4096 * 4096;
        let end = (start + self.random.below(3 * CHUNK)).min(content.len() as u64);
        let data = &content[start as usize..end.max(start) as usize];
        assert_eq!(file.fill(&version, start, data), Filled::Stored);
    }

    fn change(&mut self, file: &CachedFile) {
        let Some((_, mut content)) = self.content(file) else { return };
        self.touch(file);
        let start = self.random.below(content.len() as u64 + 1);
        let data = bytes(self.random.next(), start..start + self.random.below(CHUNK) + 1);
        let end = start as usize + data.len();
        content.resize(content.len().max(end), 0);
        content[start as usize..end].copy_from_slice(&data);
        file.write(start, &data).unwrap();
        if self.random.below(3) == 0 {
            // Between the write and its acknowledgement.
            self.cache.checkpoint().unwrap();
        }
        file.mark_clean(0..u64::MAX);
        self.acknowledge(file, content);
    }

    fn truncate(&mut self, file: &CachedFile) {
        let Some((_, mut content)) = self.content(file) else { return };
        self.touch(file);
        content.resize(self.random.below(5 * CHUNK) as usize, 0);
        file.truncate(content.len() as u64).unwrap();
        self.acknowledge(file, content);
    }

    fn acknowledge(&mut self, file: &CachedFile, content: Vec<u8>) {
        let version = self.next_version();
        let size = content.len() as u64;
        self.contents.insert((file.number(), version.clone()), content);
        file.set_version(&version, size);
    }

    fn reset(&mut self, file: &CachedFile) {
        self.touch(file);
        let version = self.next_version();
        let size = self.random.below(5 * CHUNK);
        let content = bytes(self.versions, 0..size);
        self.contents.insert((file.number(), version.clone()), content);
        file.start_over(&version, size);
    }

    fn checkpoint(&mut self) {
        self.cache.checkpoint().unwrap();
        if self.random.below(2) == 0 {
            self.cache.store.index.shed();
        }
        for &no in &self.nos {
            let file = self.cache.file(no);
            let Some(version) = file.version() else { continue };
            let held = file.held(0..u64::MAX).into_iter().map(|range| {
                let end =
                    if range.end == file.size() { range.end } else { range.end / CHUNK * CHUNK };
                range.start.div_ceil(CHUNK) * CHUNK..end
            });
            let held: Vec<_> = held.filter(|range| range.start < range.end).collect();
            if held.is_empty() {
                continue;
            }
            let (from, until) = (self.disk.logged(), usize::MAX);
            self.certain.push(Certain { no, version, held, from, until });
        }
    }

    /// Returns the bytes read, and the certain ranges found.
    fn check_image(&self, image: &SimDisk, at: usize, kind: Image) -> (u64, u64) {
        let (mut read_bytes, mut certain_ranges) = (0, 0);
        let cache = open(image);
        for &no in &self.nos {
            let file = cache.file(no);
            let Some(version) = file.version() else { continue };
            let content = &self.contents[&(no, version.clone())];
            assert_eq!(file.size(), content.len() as u64, "{at} {kind:?}");
            for range in file.held(0..u64::MAX) {
                let found = read(&file, range.clone());
                let expected = &content[range.start as usize..range.end as usize];
                assert!(found.as_deref() == Some(expected), "{at} {kind:?} {no} {range:?}");
                read_bytes += range.end - range.start;
            }
            if let Some(local) = whole(&file) {
                let mut found = vec![0; content.len()];
                local.read_exact_at(&mut found, 0).unwrap();
                assert!(found == *content && local.len().unwrap() == content.len() as u64);
            }
        }
        assert_eq!(cache.verify(&mut |_| true).bad, [], "{at} {kind:?}");
        for certain in self.certain.iter().filter(|it| (it.from..=it.until).contains(&at)) {
            let file = cache.file(certain.no);
            assert_eq!(file.version().as_ref(), Some(&certain.version), "{at} {kind:?}");
            for range in &certain.held {
                let held = file.held(range.clone());
                assert!(held == std::slice::from_ref(range), "{at} {kind:?} {range:?} {held:?}");
                certain_ranges += 1;
            }
        }
        (read_bytes, certain_ranges)
    }
}

/// Images, bytes that were read from them, and certain ranges that were found there.
#[derive(Default)]
struct Seen {
    histories: u64,
    images: u64,
    read_bytes: u64,
    certain_ranges: u64,
}

impl Seen {
    /// A history of so many steps and a checkpoint. The machine crashes at every change of the
    /// disk, and each crash leaves three images; or at a few of them, and each leaves one.
    fn see(&mut self, seed: u64, steps: usize, few: Option<usize>) {
        let mut workload = Workload::new(seed);
        let begun = if few.is_some() { workload.disk.logged() } else { 0 };
        for _ in 0..steps {
            workload.step();
        }
        workload.checkpoint();
        for point in workload.disk.crash_points_from(begun, few, seed) {
            let at = point.logged();
            let all = [Image::Synced, Image::Written, Image::Torn(at as u64)];
            let one = (seed as usize ^ at) % 3;
            for kind in if few.is_some() { &all[one..=one] } else { &all[..] } {
                let (read_bytes, certain_ranges) =
                    workload.check_image(&point.image(*kind), at, *kind);
                self.images += 1;
                self.read_bytes += read_bytes;
                self.certain_ranges += certain_ranges;
            }
        }
        self.histories += 1;
    }

    fn tell(&self) {
        let Seen { histories, images, read_bytes, certain_ranges } = self;
        println!(
            "{histories} histories, {images} images: {certain_ranges} certain ranges, 0 lost; \
             {read_bytes} bytes read, 0 wrong"
        );
        assert!(*read_bytes > 0 && *certain_ranges > 0, "the workloads store something");
    }
}

/// The number of the first history of a seed.
fn first_of(seed: u64) -> u64 {
    seed.wrapping_mul(1_000_003)
}

#[test]
fn crash_at_every_change_loses_nothing_certain_and_serves_nothing_wrong() {
    let (first, mut seen) = (first_of(seed("crash_at_every_change", 1)), Seen::default());
    (0..rounds(4)).for_each(|round| seen.see(first + round, 40, None));
    seen.tell();
}

/// The seed of a history; it is printed if a check fails.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("LARDER_SEED={}", self.0);
        }
    }
}

/// The same over many histories, each with a few crashes. With the seed of one that fails, the test
/// above begins with the same steps, and crashes after each.
#[test]
fn crash_in_each_of_many_histories_loses_nothing_certain_and_serves_nothing_wrong() {
    const STEPS: usize = 14;
    const CRASHES: usize = 2;
    let (first, mut seen) = (seed("crash_in_each_of_many_histories", 1), Seen::default());
    for seed in first..first + many_histories(1000) {
        let told = Told(seed);
        seen.see(first_of(told.0), STEPS, Some(CRASHES));
    }
    seen.tell();
}
