//! Records by number, key and name.

use larder_io::Image;

use super::*;
use crate::index::{PENDING_BYTES_MAX, PENDING_ENTRIES_MAX, PENDING_STALL_FACTOR};

#[test]
fn records_are_kept_and_dropped() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let root = cache.assign_root(b"root");
    assert_eq!(root, FileNo::ROOT);
    let no = cache.assign(b"key");
    cache.put_node(no, b"node");
    cache.put_name(root, b"name", b"record");
    for page in 0..3 {
        cache.put_listing(root, page, &[page as u8]);
    }
    for commits in [false, true] {
        if commits {
            cache.checkpoint().unwrap();
        }
        assert_eq!(cache.key_of(no).unwrap(), b"key");
        assert_eq!(cache.number_of(b"root"), Some(root));
        assert_eq!(cache.node(no).unwrap(), b"node");
        assert_eq!(cache.name(root, b"name").unwrap(), b"record");
        assert_eq!(cache.name(root, b"nam"), None);
        assert_eq!(cache.listing(root, 2).unwrap(), [2]);
    }
    cache.drop_name(root, b"name");
    cache.put_listing(root, 3, b"late");
    cache.drop_listing(root);
    cache.drop_node(no);
    let check = |cache: &Cache| {
        assert_eq!(cache.name(root, b"name"), None);
        assert!((0..5).all(|page| cache.listing(root, page).is_none()));
        assert_eq!((cache.node(no), cache.key_of(no)), (None, None));
        assert_eq!(cache.number_of(b"key"), None);
    };
    check(&cache);
    cache.checkpoint().unwrap();
    check(&cache);
    check(&open(&disk.crash(Image::Synced)));
}

#[test]
fn a_number_may_get_another_key() {
    let cache = open(&SimDisk::new());
    let (no, other) = (cache.assign(b"old"), cache.assign(b"new"));
    cache.rekey(no, b"new");
    assert_eq!(cache.number_of(b"new"), Some(no));
    assert_eq!(cache.number_of(b"old"), None);
    assert_eq!(cache.key_of(other), None);
    assert_eq!(cache.assign_root(b"new"), FileNo::ROOT);
    assert_eq!((cache.key_of(no), cache.number_of(b"new")), (None, Some(FileNo::ROOT)));
}

#[test]
fn a_number_may_lose_its_key_to_another_file() {
    let cache = open(&SimDisk::new());
    let no = cache.assign(b"key");
    cache.put_node(no, b"record");
    cache.drop_key(no);
    assert_eq!((cache.key_of(no), cache.number_of(b"key")), (None, None));
    assert_eq!(cache.node(no).unwrap(), b"record");
    let next = cache.assign(b"key");
    assert_ne!(next, no);
    // The key belongs to another file now: neither loses anything when the first is dropped.
    cache.drop_key(no);
    cache.drop_node(no);
    assert_eq!(
        (cache.key_of(next).unwrap(), cache.number_of(b"key")),
        (b"key".to_vec(), Some(next))
    );
}

#[test]
fn what_waits_in_memory_is_bounded() {
    let cache = open(&SimDisk::new());
    let mut most = (0, 0);
    for number in 0..100_000u64 {
        let key = [number.to_le_bytes(), number.reverse_bits().to_le_bytes()].concat();
        let no = cache.assign(&key);
        cache.put_node(no, &[7; 150]);
        cache.put_name(FileNo::ROOT, &key, &[8; 20]);
        let usage = cache.usage_of_overlay();
        most = (most.0.max(usage.0), most.1.max(usage.1));
    }
    // One call may go past the limit before the next one commits.
    assert!(most.0 <= PENDING_ENTRIES_MAX * PENDING_STALL_FACTOR + 2, "{most:?}");
    assert!(most.1 <= PENDING_BYTES_MAX * PENDING_STALL_FACTOR + 1000, "{most:?}");
    let key = [5u64.to_le_bytes(), 5u64.reverse_bits().to_le_bytes()].concat();
    assert_eq!(cache.node(cache.number_of(&key).unwrap()).unwrap(), [7; 150]);
}

#[test]
fn equal_keys_get_equal_numbers_from_many_threads() {
    let cache = open(&SimDisk::new());
    let assign = |cache: &Cache| -> Vec<FileNo> {
        (0..500u32).map(|key| cache.assign(&key.to_le_bytes())).collect()
    };
    let numbers = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| assign(&cache))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(numbers.iter().all(|list| *list == numbers[0]));
    let distinct: std::collections::BTreeSet<_> = numbers[0].iter().collect();
    assert_eq!(distinct.len(), 500);
}

impl Cache {
    fn usage_of_overlay(&self) -> (usize, usize) {
        self.file(number(u64::MAX)).store.index.waiting()
    }
}
