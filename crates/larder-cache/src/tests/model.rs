//! Random operations on a file against a model in memory: what is read is what the model has, or
//! a miss; and what must be held is held.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_io::{DiskFile, Fault, Image};

use super::*;

const END: u64 = 3 * CHUNK + 500;

/// What the application would see, and what the server has.
struct Model {
    version: u64,
    /// Content of the version on the server.
    remote: Vec<u8>,
    /// With local changes.
    local: Vec<u8>,
    /// Bytes that must be held while the disk works.
    must_hold: Vec<bool>,
    dirty: Vec<bool>,
}

impl Model {
    fn new(version: u64, size: u64) -> Model {
        let remote = bytes(version, 0..size);
        let none = vec![false; remote.len()];
        Model { version, local: remote.clone(), remote, must_hold: none.clone(), dirty: none }
    }

    fn name(&self) -> Vec<u8> {
        format!("v{}", self.version).into_bytes()
    }

    fn resize(&mut self, size: u64) {
        let size = usize::try_from(size).unwrap();
        self.local.resize(size, 0);
        self.must_hold.resize(size, true);
        self.dirty.resize(size, false);
    }

    fn dirty_ranges(&self) -> Vec<std::ops::Range<u64>> {
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        for (at, _) in self.dirty.iter().enumerate().filter(|(_, dirty)| **dirty) {
            let at = at as u64;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
        ranges
    }
}

/// In every other cache no file waits in memory to be written. Recent bytes of any length are kept.
fn with_short_pieces(seed: u64) -> Config {
    let config = if seed.is_multiple_of(2) { config() } else { at_once() };
    Config { recent_bytes_max: END, recent_piece_bytes_min: 1, ..config }
}

struct Run {
    disk: SimDisk,
    cache: Cache,
    file: Arc<CachedFile>,
    model: Model,
    random: Random,
    versions: u64,
    /// The disk fails now and then, so nothing must be held.
    faulty: bool,
    bypass: Option<Arc<dyn DiskFile>>,
    /// What the run covered, so that a test of nothing is noticed.
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    read_bytes: u64,
    recent_bytes: u64,
    restarts_with_data: u64,
    bypass_writes: u64,
    dirty_sent: u64,
    zeroed_bytes: u64,
    copied_bytes: u64,
    dirty_kept: u64,
}

impl Run {
    fn new(seed: u64, faulty: bool) -> Run {
        let disk = SimDisk::new();
        let cache = open_with(&disk, with_short_pieces(seed));
        let file = cache.file(cache.assign(b"file"));
        let model = Model::new(1, END / 2);
        file.reset(&model.name(), END / 2);
        let random = Random(seed);
        Run {
            disk,
            cache,
            file,
            model,
            random,
            versions: 1,
            faulty,
            bypass: None,
            seen: Seen::default(),
        }
    }

    fn range(&mut self, end: u64) -> std::ops::Range<u64> {
        let start = self.random.below(end);
        let len = match self.random.below(3) {
            0 => self.random.below(20),
            1 => self.random.below(CHUNK),
            _ => self.random.below(4) * CHUNK,
        };
        let start = if self.random.below(3) == 0 { start / CHUNK * CHUNK } else { start };
        start..(start + len).min(end)
    }

    fn step(&mut self) {
        if self.faulty && self.random.below(4) == 0 {
            self.disk.inject(Fault::EioAt(self.disk.operations() + self.random.below(8)));
        }
        match self.random.below(20) {
            0..=3 => self.fill(),
            4..=6 => self.write(),
            7 => self.truncate(),
            8 => self.acknowledge(),
            9 => self.reset(),
            10 => drop(self.cache.checkpoint()),
            11 => self.restart(),
            12 => self.toggle_bypass(),
            13..=15 => self.kernel_writes(),
            16 => self.zero(),
            17 => self.copy(true),
            18 => self.copy(false),
            _ => self.write_elsewhere(),
        }
        self.check();
    }

    fn fill(&mut self) {
        let range = self.range(self.model.remote.len() as u64);
        let data = &self.model.remote[range.start as usize..range.end as usize];
        let (version, is_ahead) = (self.model.name(), self.random.below(2) == 0);
        let filled = match is_ahead {
            true => self.file.fill_ahead(&version, range.start, &Bytes::copy_from_slice(data)),
            false => self.file.fill(&version, range.start, data),
        };
        if filled == Filled::Stored {
            let end = range.end.min(self.model.local.len() as u64);
            // Bytes past a local truncation are no longer the server's; the model fills only where
            // the file was not truncated, see `truncate`.
            self.model.must_hold[range.start.min(end) as usize..end as usize].fill(true);
        }
    }

    fn write(&mut self) {
        let range = self.range(END);
        let data = bytes(self.random.next(), range.clone());
        let before = self.model.local.len() as u64;
        let written = self.file.write(range.start, &data).is_ok();
        if !written {
            assert!(self.faulty, "a working disk takes writes");
            self.resync();
            return;
        }
        if range.is_empty() {
            return;
        }
        if range.end > before {
            self.model.resize(range.end);
        }
        for at in range.clone() {
            self.model.local[at as usize] = data[(at - range.start) as usize];
            self.model.must_hold[at as usize] = true;
            self.model.dirty[at as usize] = true;
        }
    }

    /// After a failed local change nothing is promised: the client gives the file up.
    fn resync(&mut self) {
        self.disk.heal();
        self.bypass = None;
        self.reset();
    }

    fn truncate(&mut self) {
        let size = self.random.below(END);
        if self.file.truncate(size).is_err() {
            assert!(self.faulty);
            self.resync();
            return;
        }
        self.model.resize(size);
        // The client sends the new size at once, so the server's bytes follow.
        self.model.remote.resize(size as usize, 0);
        if self.bypass.is_some() {
            self.after_collect();
        }
    }

    fn zero(&mut self) {
        let range = self.range(END);
        if self.file.zero(range.clone()).is_err() {
            assert!(self.faulty);
            self.resync();
            return;
        }
        // The server did it first.
        for content in [&mut self.model.local, &mut self.model.remote] {
            let end = content.len().min(range.end as usize);
            content[end.min(range.start as usize)..end].fill(0);
        }
        self.seen.zeroed_bytes += range.end - range.start;
        if self.bypass.is_some() {
            self.after_collect();
        }
    }

    /// The server copies bytes to a range, and they are known here; or not.
    fn copy(&mut self, is_known: bool) {
        let range = self.range(self.model.remote.len() as u64);
        let data = bytes(self.random.next(), range.clone());
        if !is_known && self.bypass.is_some() {
            return;
        }
        let done = match is_known {
            true => self.file.take_copied(range.start, &data),
            false => self.file.forget_range(range.clone()),
        };
        if done.is_err() {
            assert!(self.faulty);
            self.resync();
            return;
        }
        for (at, byte) in (range.start as usize..range.end as usize).zip(data) {
            self.model.remote[at] = byte;
            // Local writes are applied over it.
            if at < self.model.local.len() && !self.model.dirty[at] {
                (self.model.local[at], self.model.must_hold[at]) = (byte, is_known);
            }
        }
        self.seen.copied_bytes += range.end - range.start;
        if self.bypass.is_some() {
            self.after_collect();
        }
    }

    /// Another client writes the file anew, and only what is dirty here stays.
    fn write_elsewhere(&mut self) {
        if self.bypass.is_some() {
            return;
        }
        let (before, size) = (self.model.name(), self.model.remote.len() as u64);
        self.versions += 1;
        self.model.version = self.versions;
        if self.file.keep_dirty_alone(&self.model.name(), size).is_err() {
            assert!(self.faulty);
            self.resync();
            return;
        }
        let late = self.file.fill(&before, 0, &self.model.remote);
        assert_eq!(late, Filled::Declined, "of the version before");
        self.model.remote = bytes(self.random.next(), 0..size);
        for at in (0..self.model.local.len()).filter(|at| !self.model.dirty[*at]) {
            self.model.local[at] = self.model.remote.get(at).copied().unwrap_or(0);
            self.model.must_hold[at] = false;
        }
        self.seen.dirty_kept += self.file.dirty_bytes();
    }

    fn acknowledge(&mut self) {
        if self.bypass.is_some() {
            self.collect();
        }
        let mut sent = self.model.remote.clone();
        sent.resize(self.model.local.len(), 0);
        for range in self.file.dirty() {
            let mut buf = vec![0; (range.end - range.start) as usize];
            if self.file.read_dirty(range.start, &mut buf).is_err() {
                assert!(self.faulty);
                self.resync();
                return;
            }
            assert_eq!(buf, self.model.local[range.start as usize..range.end as usize]);
            self.seen.dirty_sent += 1;
            sent[range.start as usize..range.end as usize].copy_from_slice(&buf);
            self.file.mark_clean(range);
        }
        self.versions += 1;
        self.model.version = self.versions;
        self.file.set_version(&self.model.name(), self.model.local.len() as u64);
        assert_eq!(sent, self.model.local, "the server has what the application wrote");
        self.model.remote = sent;
        self.model.dirty.fill(false);
    }

    fn reset(&mut self) {
        self.bypass = None;
        self.versions += 1;
        let size = self.random.below(END);
        self.model = Model::new(self.versions, size);
        self.file.start_over(&self.model.name(), size);
    }

    fn restart(&mut self) {
        self.disk.heal();
        if self.bypass.is_some() {
            self.toggle_bypass();
        }
        self.acknowledge();
        let no = self.file.number();
        if self.random.below(3) > 0 && self.cache.checkpoint().is_err() {
            assert!(self.faulty, "a working disk takes checkpoints");
        }
        if self.random.below(2) == 0 {
            self.disk = self.disk.crash(Image::Torn(self.random.next()));
        } else if self.cache.clone().close().is_err() {
            assert!(self.faulty, "a working disk lets the cache close");
        }
        self.cache = open_with(&self.disk, with_short_pieces(self.versions));
        self.file = self.cache.file(no);
        self.model.must_hold.fill(false);
        self.seen.restarts_with_data += u64::from(!self.file.held(0..u64::MAX).is_empty());
        if self.file.version().as_deref() != Some(&self.model.name()[..]) {
            self.reset();
        }
    }

    fn toggle_bypass(&mut self) {
        if self.bypass.take().is_some() {
            if self.file.end_bypass().is_err() {
                self.resync();
            }
            self.after_collect();
            return;
        }
        if self.model.dirty_ranges().is_empty() && self.model.local == self.model.remote {
            // Only a whole file can be written by the kernel.
            self.file.fill(&self.model.name(), 0, &self.model.remote);
        }
        self.bypass = begin_bypass(&self.file);
    }

    fn collect(&mut self) {
        if self.file.collect_bypass().is_err() {
            self.resync();
        }
        self.after_collect();
    }

    /// Chunks that the kernel wrote are dirty as a whole; the model is updated with them.
    fn after_collect(&mut self) {
        let held_dirty = self.file.dirty();
        for range in self.model.dirty_ranges() {
            assert!(
                self.bypass.is_some()
                    || held_dirty
                        .iter()
                        .any(|held| held.start <= range.start && range.end <= held.end),
                "{range:?} was written and is not dirty: {held_dirty:?}"
            );
        }
        for range in held_dirty {
            for at in range {
                self.model.dirty[at as usize] = true;
            }
        }
    }

    fn kernel_writes(&mut self) {
        let range = self.range(END);
        let data = bytes(self.random.next(), range.clone());
        let Some(kernel) = &self.bypass else { return };
        if range.is_empty() || kernel.write_at(&data, range.start).is_err() {
            return;
        }
        self.seen.bypass_writes += 1;
        if range.end > self.model.local.len() as u64 {
            self.model.resize(range.end);
        }
        self.model.local[range.start as usize..range.end as usize].copy_from_slice(&data);
        self.model.must_hold[range.start as usize..range.end as usize].fill(true);
        self.model.dirty[range.start as usize..range.end as usize].fill(true);
        self.collect();
    }

    fn check(&mut self) {
        let size = self.model.local.len() as u64;
        if !self.faulty {
            assert_eq!(self.file.size(), size);
        }
        let held = self.file.held(0..u64::MAX);
        assert!(held.is_sorted_by(|a, b| a.end < b.start));
        let wanted = self.range(END);
        if let Some(found) = self.file.read_recent(&wanted) {
            let expected = &self.model.local[wanted.start as usize..wanted.end as usize];
            assert!(found == expected, "wrong bytes in {wanted:?}, from memory");
            self.seen.recent_bytes += found.len() as u64;
        }
        for range in &held {
            match read(&self.file, range.clone()) {
                Some(found) => {
                    let expected = &self.model.local[range.start as usize..range.end as usize];
                    assert!(found == expected, "wrong bytes in {range:?}");
                    self.seen.read_bytes += range.end - range.start;
                }
                None => assert!(self.faulty, "what is held is read"),
            }
        }
        if !self.faulty {
            let is_held = |at: u64| held.iter().any(|range| range.contains(&at));
            for at in (0..size).step_by(997) {
                assert!(!self.model.must_hold[at as usize] || is_held(at), "{at} is not held");
            }
            for range in self.model.dirty_ranges() {
                assert!(
                    self.file
                        .dirty()
                        .iter()
                        .any(|dirty| dirty.start <= range.start && range.end <= dirty.end)
                );
            }
        }
    }
}

fn run(test: &str, faulty: bool) {
    let seed = seed(test, 1);
    let mut all = Seen::default();
    for round in 0..40 {
        let mut run = Run::new(seed.wrapping_mul(1_000_003) + round, faulty);
        for _ in 0..60 {
            run.step();
        }
        all.read_bytes += run.seen.read_bytes;
        all.recent_bytes += run.seen.recent_bytes;
        all.restarts_with_data += run.seen.restarts_with_data;
        all.bypass_writes += run.seen.bypass_writes;
        all.dirty_sent += run.seen.dirty_sent;
        all.zeroed_bytes += run.seen.zeroed_bytes;
        all.copied_bytes += run.seen.copied_bytes;
        all.dirty_kept += run.seen.dirty_kept;
    }
    println!("{} bytes read, {} restarts with data", all.read_bytes, all.restarts_with_data);
    println!("{} bypass writes, {} dirty ranges sent", all.bypass_writes, all.dirty_sent);
    println!("{} bytes read from memory", all.recent_bytes);
    assert!(all.recent_bytes > 0);
    assert!(all.read_bytes > 0 && all.restarts_with_data > 0);
    assert!(all.bypass_writes > 0 && all.dirty_sent > 0 && all.zeroed_bytes > 0);
    assert!(all.copied_bytes > 0 && all.dirty_kept > 0);
}

#[test]
fn file_agrees_with_model() {
    run("file_agrees_with_model", false);
}

#[test]
fn file_agrees_with_model_on_a_failing_disk() {
    run("file_agrees_with_model_on_a_failing_disk", true);
}

#[test]
fn records_agree_with_model() {
    let seed = seed("records_agree_with_model", 1);
    let mut random = Random(seed);
    let mut disk = SimDisk::new();
    let mut cache = open(&disk);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    for step in 0..3000 {
        let name = random.below(50);
        match random.below(10) {
            0..=4 => {
                cache.put_name(FileNo::ROOT, &name.to_le_bytes(), &step_bytes(step));
                model.insert(name, step);
            }
            5..=6 => {
                cache.drop_name(FileNo::ROOT, &name.to_le_bytes());
                model.remove(&name);
            }
            7 if random.below(20) == 0 => {
                cache.checkpoint().unwrap();
                disk = disk.crash(Image::Torn(random.next()));
                cache = open(&disk);
            }
            7 if random.below(20) == 0 => cache.checkpoint().unwrap(),
            _ => {
                let found = cache.name(FileNo::ROOT, &name.to_le_bytes());
                assert_eq!(found, model.get(&name).map(|&step| step_bytes(step)));
            }
        }
    }
}

fn step_bytes(step: u64) -> Vec<u8> {
    bytes(step, 0..step % 300)
}
