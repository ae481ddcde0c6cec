//! Random work on several files of a cache against a model: what may be dropped is dropped, what
//! may not stays, over ends and deaths of the process, and the counts are right.

use larder_io::{BootId, Disk, Image, OpenMode};

use super::*;
use crate::pool::data_path;
use crate::{Culled, InUse};

const FILES: usize = 5;
const CHUNKS_MAX: u64 = 4;
const ROUNDS: u64 = 15;
const STEPS: usize = 60;

/// A file as it should be.
struct Member {
    file: Arc<CachedFile>,
    /// 0: nothing is known of it.
    version: u64,
    content: Vec<u8>,
    /// All of it must be held.
    is_whole: bool,
    dirty: Vec<std::ops::Range<u64>>,
    is_pinned: bool,
    /// It is open.
    open: Option<InUse>,
}

impl Member {
    fn new(file: Arc<CachedFile>) -> Member {
        let (content, dirty) = (Vec::new(), Vec::new());
        let (is_whole, is_pinned) = (false, false);
        Member { file, version: 0, content, is_whole, dirty, is_pinned, open: None }
    }

    fn name(&self) -> Vec<u8> {
        format!("v{}", self.version).into_bytes()
    }

    fn size(&self) -> u64 {
        self.content.len() as u64
    }

    fn forget(&mut self) {
        (self.version, self.is_whole) = (0, false);
        self.content.clear();
        self.dirty.clear();
    }

    /// Whether culling may take its data.
    fn may_go(&self, even_pinned: bool) -> bool {
        self.dirty.is_empty() && self.open.is_none() && (even_pinned || !self.is_pinned)
    }

    fn chunks_held(&self) -> u64 {
        let held = self.file.held(0..u64::MAX);
        let chunks = held.iter().flat_map(|range| range.start / CHUNK..range.end.div_ceil(CHUNK));
        chunks.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// Chunks of which all bytes are held: those that are saved.
    fn chunks_complete(&self) -> u64 {
        let held = self.file.held(0..u64::MAX);
        let chunks = (0..self.size().div_ceil(CHUNK)).map(|chunk| chunk * CHUNK);
        let is_held = |start: &u64| {
            let end = (start + CHUNK).min(self.size());
            held.iter().any(|range| range.start <= *start && end <= range.end)
        };
        chunks.filter(is_held).count() as u64
    }

    fn check(&self) {
        let (file, no) = (&self.file, self.file.number());
        if self.version == 0 {
            assert_eq!((file.version(), file.size(), file.held(0..u64::MAX)), (None, 0, vec![]));
            return;
        }
        assert_eq!(file.version(), Some(self.name()), "{no}");
        assert_eq!((file.size(), file.dirty()), (self.size(), self.dirty.clone()), "{no}");
        let held = file.held(0..u64::MAX);
        for range in &held {
            let found = read(file, range.clone());
            let found = found.unwrap_or_else(|| panic!("{no}: {range:?} is held and not read"));
            let wanted = &self.content[range.start as usize..range.end as usize];
            assert!(found == wanted, "{no}: wrong bytes in {range:?}");
        }
        assert!(!self.is_whole || held == [0..self.size()], "{no}: {held:?}");
        let is_held = |wanted: &std::ops::Range<u64>| {
            held.iter().any(|range| range.start <= wanted.start && wanted.end <= range.end)
        };
        assert!(self.dirty.iter().all(is_held), "{no}: {:?} in {held:?}", self.dirty);
    }
}

struct Run {
    disk: SimDisk,
    cache: Cache,
    members: Vec<Member>,
    random: Random,
    versions: u64,
    /// Chunks that were found bad in this run: that is saved with the next checkpoint.
    found_bad: Vec<(FileNo, u64)>,
    culled: u64,
    bad: u64,
    lives: u64,
}

fn open_logged(disk: &SimDisk) -> Cache {
    open_with(disk, Config { boot: Some(BootId(1)), ..config() })
}

impl Run {
    fn new(seed: u64) -> Run {
        let disk = SimDisk::new();
        let cache = open_logged(&disk);
        let members = (0..FILES).map(|key| cache.file(cache.assign(&key.to_le_bytes())));
        let members = members.map(Member::new).collect();
        let (random, found_bad) = (Random(seed), Vec::new());
        let [versions, culled, bad, lives] = [0; 4];
        Run { disk, cache, members, random, versions, found_bad, culled, bad, lives }
    }

    fn step(&mut self) {
        let at = self.random.below(FILES as u64) as usize;
        match self.random.below(20) {
            0..=4 => self.fetch(at),
            5..=7 => self.write(at),
            8 | 9 => self.acknowledge(at),
            10 => self.pin(at),
            11 => self.open_or_close(at),
            12 => self.cull(),
            13 => self.drop(at),
            14 => self.damage(at),
            15 => self.set_aside(at),
            16 => self.live_on(false),
            17 => self.live_on(true),
            _ => self.cache.checkpoint().unwrap(),
        }
        self.check();
    }

    /// The server has another version, and all of it comes.
    fn fetch(&mut self, at: usize) {
        let size = 1 + self.random.below(CHUNKS_MAX * CHUNK);
        self.versions += 1;
        let (version, member) = (self.versions, &mut self.members[at]);
        let name = format!("v{version}");
        if !member.dirty.is_empty() {
            assert!(!member.file.reset(name.as_bytes(), size), "changes stay");
            return;
        }
        assert!(member.file.reset(name.as_bytes(), size));
        (member.version, member.content) = (version, bytes(version, 0..size));
        fill(&member.file, name.as_bytes(), version, 0..size);
        member.is_whole = true;
    }

    fn write(&mut self, at: usize) {
        let seed = self.random.next();
        let member = &mut self.members[at];
        let size = member.size();
        if member.version == 0 {
            assert!(member.file.write(0, b"x").is_err(), "over which version?");
            return;
        }
        let start = self.random.below(size);
        let end = (start + 1 + self.random.below(2 * CHUNK)).min(CHUNKS_MAX * CHUNK);
        let data = bytes(seed, start..end);
        member.file.write(start, &data).unwrap();
        if end > size {
            member.content.resize(end as usize, 0);
        }
        member.content[start as usize..end as usize].copy_from_slice(&data);
        member.dirty.push(start..end);
        member.dirty.sort_by_key(|range| range.start);
        let ranges = std::mem::take(&mut member.dirty);
        for range in ranges {
            match member.dirty.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => member.dirty.push(range),
            }
        }
    }

    /// The server has taken the changes.
    fn acknowledge(&mut self, at: usize) {
        let member = &mut self.members[at];
        if member.dirty.is_empty() {
            return;
        }
        for range in member.file.begin_sending() {
            let mut sent = vec![0; (range.end - range.start) as usize];
            member.file.read_dirty(range.start, &mut sent).unwrap();
            assert!(sent == member.content[range.start as usize..range.end as usize]);
            assert!(!member.file.set_version(b"early", member.size()), "some are dirty");
            member.file.mark_clean(range);
        }
        self.versions += 1;
        member.version = self.versions;
        member.dirty.clear();
        assert!(member.file.set_version(&member.name(), member.size()));
    }

    fn pin(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.is_pinned = !member.is_pinned;
        self.cache.pin(member.file.number(), member.is_pinned);
    }

    fn open_or_close(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.open = match member.open.take() {
            None => Some(member.file.hold()),
            Some(_) => None,
        };
    }

    /// On request, for a target or for all: what may be dropped is dropped, and nothing else is.
    fn cull(&mut self) {
        let before: Vec<u64> = self.members.iter().map(Member::chunks_held).collect();
        let (bytes_before, is_all) = (self.cache.usage().bytes, self.random.below(3) == 0);
        let target = self.random.below(8) * CHUNK;
        let culled = if is_all {
            self.cache.drop_all();
            None
        } else {
            Some(self.cache.cull(target))
        };
        let (mut files, mut left_to_go) = (0, 0);
        for (member, before) in self.members.iter_mut().zip(before) {
            let after = member.chunks_held();
            if !member.may_go(is_all) {
                assert_eq!(after, before, "{}: it may not go", member.file.number());
            } else if after == 0 {
                member.is_whole = false;
                files += u64::from(before > 0);
            } else {
                // Parts of chunks are dropped when the file's last handle is.
                left_to_go += u64::from(member.chunks_complete() > 0);
            }
        }
        let bytes = self.cache.usage().bytes;
        match culled {
            None => assert_eq!(left_to_go, 0, "all goes that may"),
            Some(culled) => {
                assert!(bytes <= target || left_to_go == 0, "{bytes} {target} {left_to_go}");
                assert_eq!(culled, Culled { files, bytes: bytes_before - bytes });
                self.culled += files;
            }
        }
    }

    /// Its data is given up: all of it, or if it has changes.
    fn drop(&mut self, at: usize) {
        let member = &mut self.members[at];
        if self.random.below(2) == 0 {
            self.cache.drop_file(member.file.number());
            member.forget();
        } else {
            member.file.discard_dirty();
            if !member.dirty.is_empty() {
                member.forget();
            }
        }
    }

    /// A bit flips on the disk, and everything is verified.
    fn damage(&mut self, at: usize) {
        self.cache.checkpoint().unwrap();
        let member = &mut self.members[at];
        let is_damaged = member.is_whole && member.dirty.is_empty();
        let place = self.random.below(member.size());
        if is_damaged {
            let path = data_path(member.file.number(), member.file.local_number());
            self.disk.corrupt(&path, place, self.random.below(8) as u8);
            member.is_whole = false;
        }
        let report = self.cache.verify(&mut |_| true);
        let bad = [(member.file.number(), place / CHUNK)];
        assert_eq!(report.bad, bad[..usize::from(is_damaged)]);
        self.bad += report.bad.len() as u64;
        self.found_bad.extend(report.bad);
    }

    fn set_aside(&mut self, at: usize) {
        let member = &mut self.members[at];
        let before = self.cache.usage().set_aside;
        let kept = member.file.set_aside("dir/name", ConflictKind::Written, "changed").unwrap();
        assert_eq!(kept.is_some(), !member.dirty.is_empty());
        assert_eq!(self.cache.usage().set_aside, before + u64::from(kept.is_some()));
        if let Some(path) = kept {
            let file = self.disk.open(&path, OpenMode::Existing).unwrap();
            assert_eq!(file.len().unwrap(), member.size());
            for range in &member.dirty {
                let mut found = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut found, range.start).unwrap();
                assert!(found == member.content[range.start as usize..range.end as usize]);
            }
        }
        member.forget();
    }

    /// The process ends in order, or dies, and the next one continues in the same boot.
    fn live_on(&mut self, dies: bool) {
        self.members.iter_mut().for_each(|member| member.open = None);
        if dies {
            self.disk = self.disk.crash(Image::Written);
        } else {
            self.cache.clone().close().unwrap();
            let after = read(&self.members[0].file, 0..1);
            assert_eq!(after, None, "it may be another process's");
        }
        self.cache = open_logged(&self.disk);
        self.lives += 1;
        if !dies {
            self.found_bad.clear();
        }
        if !self.found_bad.is_empty() {
            let report = self.cache.verify(&mut |_| true);
            assert!(report.bad.iter().all(|bad| self.found_bad.contains(bad)), "{report:?}");
        }
        let unsent = self.cache.unsent();
        for member in &mut self.members {
            let no = member.file.number();
            member.file = self.cache.file(no);
            assert_eq!(unsent.contains(&no), !member.dirty.is_empty(), "{no}");
            if !member.dirty.is_empty() || dies {
                // Beside local changes the record is not valid; without a checkpoint nothing else
                // was recorded.
                member.is_whole = false;
            }
            if member.dirty.is_empty() && member.file.version() != Some(member.name()) {
                assert!(dies || !member.is_whole, "{no} was saved");
                self.cache.drop_file(no);
                member.forget();
            }
            if dies {
                // Pins are saved with the next checkpoint.
                self.cache.pin(no, member.is_pinned);
            }
        }
    }

    fn check(&mut self) {
        self.members.iter().for_each(Member::check);
        let chunks: u64 = self.members.iter().map(Member::chunks_held).sum();
        let files = self.members.iter().filter(|member| member.file.local_number() != 0).count();
        let usage = self.cache.usage();
        assert_eq!((usage.bytes, usage.files), (chunks * CHUNK, files as u64));
        if self.random.below(4) == 0 {
            self.check_list();
        }
    }

    /// The list of files, a few at a time, after a checkpoint.
    fn check_list(&mut self) {
        self.cache.checkpoint().unwrap();
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = self.cache.list(after, 1 + self.random.below(3) as usize);
            let Some(last) = page.last() else { break };
            after = Some(last.no);
            listed.extend(page);
        }
        assert!(listed.is_sorted_by_key(|file| file.no));
        for member in &self.members {
            let no = member.file.number();
            let found = listed.iter().find(|file| file.no == no);
            let held = member.chunks_held();
            let is_clean = member.dirty.is_empty();
            let Some(found) = found else {
                // With changes it is saved once those are sent.
                let is_saved = member.chunks_complete() > 0 || member.is_pinned;
                assert!(!is_clean || !is_saved, "{no} is not listed");
                continue;
            };
            assert!(!is_clean || found.pinned == member.is_pinned, "{no}");
            assert_eq!(found.dirty, !is_clean, "{no}");
            assert_eq!(found.key, self.cache.key_of(no), "{no}");
            if is_clean && held > 0 {
                let saved = (member.chunks_complete() * CHUNK, member.size());
                assert_eq!((found.held_bytes, found.size), saved, "{no}");
            }
        }
    }
}

#[test]
fn several_files_agree_with_a_model() {
    let seed = seed("several_files_agree_with_a_model", 1);
    let (mut culled, mut bad, mut lives) = (0, 0, 0);
    for round in 0..ROUNDS {
        let mut run = Run::new(seed.wrapping_mul(1_000_003) + round);
        for _ in 0..STEPS {
            run.step();
        }
        (culled, bad, lives) = (culled + run.culled, bad + run.bad, lives + run.lives);
    }
    println!("{culled} files culled, {bad} damaged chunks found, {lives} further lives");
    assert!(culled > 9 && bad > 3 && lives > 50, "a test of nothing");
}
