//! Records of the index are lost, as those with a wrong checksum are: any of them, in any
//! combination. What is read is right or a miss, what is known to be unsent is what was written,
//! and the files can be used normally.

use std::collections::{BTreeMap, BTreeSet};

use larder_io::{BootId, Image};

use super::*;

/// All kinds of records there are.
const TAGS: &[u8] = b"mknaelfgdwxsvp";
const SIZE: u64 = 2 * CHUNK + 700;
const ROUNDS: u64 = 40;

/// A file, with what the server has and what was written here.
struct Truth {
    no: FileNo,
    at_server: Vec<u8>,
    local: Vec<u8>,
}

impl Truth {
    fn write(&mut self, file: &CachedFile, range: std::ops::Range<u64>) {
        let data = bytes(99, range.clone());
        file.write(range.start, &data).unwrap();
        if self.local.len() < range.end as usize {
            self.local.resize(range.end as usize, 0);
        }
        self.local[range.start as usize..range.end as usize].copy_from_slice(&data);
    }
}

fn open_in(disk: &SimDisk, boot: u128) -> Cache {
    open_with(disk, Config { boot: Some(BootId(boot)), ..config() })
}

/// Files in every state that a record describes.
fn work(disk: &SimDisk) -> (Cache, Vec<Truth>) {
    let cache = open_in(disk, 1);
    let truth = |seed: u64| {
        let file = filled(&cache, b"v1", seed, SIZE);
        let at_server = bytes(seed, 0..SIZE);
        (Truth { no: file.number(), local: at_server.clone(), at_server }, file)
    };
    let [saved, changed, over_saved, longer, sent, young] = [1, 2, 3, 4, 5, 6].map(truth);
    let mut truths = [saved, changed, over_saved, longer, sent];
    let (_, changes) = truths.split_at_mut(1);
    changes[0].0.write(&changes[0].1, 10..20);
    cache.checkpoint().unwrap();
    changes[0].0.write(&changes[0].1, CHUNK - 5..CHUNK + 5);
    changes[1].0.write(&changes[1].1, 100..CHUNK + 100);
    changes[1].0.write(&changes[1].1, 2 * CHUNK + 50..2 * CHUNK + 60);
    changes[2].0.write(&changes[2].1, SIZE..SIZE + CHUNK);
    changes[3].0.write(&changes[3].1, 0..300);
    let sent = &changes[3].1;
    sent.begin_sending().into_iter().for_each(|range| sent.mark_clean(range));
    cache.pin(truths[0].0.no, true);
    cache.pin_tree(FileNo::ROOT, Some(b""));
    cache.put_volume(b"volume record");
    cache.put_session(b"open file", b"session record");
    for (truth, _) in &truths {
        cache.put_node(truth.no, b"node record");
        cache.put_name(FileNo::ROOT, &truth.no.0.to_be_bytes(), b"name record");
    }
    cache.put_listing(FileNo::ROOT, 0, b"listing record");
    let all = truths.into_iter().chain([young]).map(|(truth, _)| truth).collect();
    (cache, all)
}

/// What is there is right. Returns how many bytes were read.
fn check(cache: &Cache, truths: &[Truth], is_same_boot: bool) -> u64 {
    let mut read_bytes = 0;
    for Truth { no, at_server, local } in truths {
        let file = cache.file(*no);
        let dirty = file.dirty();
        assert!(is_same_boot || dirty.is_empty(), "{no}: changes outlive a boot only by a stop");
        if file.version().is_none() {
            assert_eq!((file.size(), file.held(0..u64::MAX)), (0, vec![]), "{no}");
            continue;
        }
        for range in file.held(0..u64::MAX) {
            let Some(found) = read(&file, range.clone()) else { continue };
            read_bytes += found.len() as u64;
            for (at, byte) in range.zip(found) {
                let index = at as usize;
                let is_dirty = dirty.iter().any(|range| range.contains(&at));
                // Bytes that the server has acknowledged belong to no version that is known.
                let is_local = is_dirty || at_server.get(index).is_none();
                let right = if is_local { local.get(index) } else { at_server.get(index) };
                assert!(
                    right == Some(&byte) || (is_same_boot && local.get(index) == Some(&byte)),
                    "{no}: byte {at}, dirty: {is_dirty}"
                );
            }
        }
        for range in dirty {
            let mut found = vec![0; (range.end - range.start) as usize];
            file.read_dirty(range.start, &mut found).unwrap();
            let wanted = local.get(range.start as usize..range.end as usize);
            assert_eq!(Some(&found[..]), wanted, "{no}: would be sent");
        }
    }
    read_bytes
}

/// Everything works: bytes from the server are held, even after a restart.
fn go_on(disk: &SimDisk, cache: Cache, truths: &[Truth]) {
    let used: BTreeSet<FileNo> = truths.iter().map(|truth| truth.no).collect();
    assert!(!used.contains(&cache.assign(b"a new key")), "a number is given once");
    for Truth { no, .. } in truths {
        let file = cache.file(*no);
        file.discard_dirty();
        assert!(file.reset(b"v2", SIZE), "{no}");
        fill(&file, b"v2", 50, 0..SIZE);
        assert!(read(&file, 0..SIZE) == Some(bytes(50, 0..SIZE)), "{no}");
    }
    cache.checkpoint().unwrap();
    cache.close().unwrap();
    let cache = open_in(disk, 1);
    assert_eq!(cache.unsent(), []);
    for Truth { no, .. } in truths {
        let file = cache.file(*no);
        assert_eq!(file.version().as_deref(), Some(&b"v2"[..]), "{no}");
        assert!(read(&file, 0..SIZE) == Some(bytes(50, 0..SIZE)), "{no}");
    }
}

#[test]
fn any_lost_records_cost_misses_and_nothing_else() {
    let seed = seed("any_lost_records_cost_misses_and_nothing_else", 1);
    let disk = SimDisk::new();
    let (cache, truths) = work(&disk);
    let all: Vec<Vec<u8>> = TAGS
        .iter()
        .flat_map(|tag| cache.store.index.scan_all(&[*tag]))
        .map(|(key, _)| key)
        .collect();
    let tags: BTreeMap<u8, usize> = all.iter().fold(BTreeMap::new(), |mut tags, key| {
        *tags.entry(key[0]).or_default() += 1;
        tags
    });
    assert_eq!(tags.len(), TAGS.len(), "not every kind is there: {tags:?}");
    // Before the others, a kind at a time; and nothing at all.
    let kinds = TAGS.iter().map(|tag| all.iter().filter(|key| key[0] == *tag).collect());
    let mut choices: Vec<Vec<&Vec<u8>>> = kinds.chain([vec![], all.iter().collect()]).collect();
    let mut random = Random(seed);
    for _ in 0..ROUNDS {
        let share = 2 + random.below(12);
        choices.push(all.iter().filter(|_| random.below(share) == 0).collect());
    }
    drop(cache);
    let mut read_bytes = 0;
    for lost in choices {
        for boot in [1, 2] {
            let left = disk.crash(Image::Written);
            // As if they could not be read.
            let last = open_in(&left, 1);
            last.store.index.put_all(lost.iter().map(|key| ((*key).clone(), None)).collect());
            last.checkpoint_index();
            drop(last);
            let left = left.crash(Image::Written);
            let cache = open_in(&left, boot);
            read_bytes += check(&cache, &truths, boot == 1);
            drop(cache);
            let cache = open_in(&left, 1);
            go_on(&left, cache, &truths);
        }
    }
    println!("{read_bytes} bytes read");
    assert!(read_bytes > 100 * SIZE, "a test of nothing");
}

impl Cache {
    /// Makes the records durable, and saves no file.
    fn checkpoint_index(&self) {
        self.store.index.commit().unwrap();
    }
}
