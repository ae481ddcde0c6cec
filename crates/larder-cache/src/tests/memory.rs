//! Local files that lie in memory.

use larder_io::Image;

use super::*;
use crate::{Keeping, MemoryDir};

const ROOM: u64 = 1 << 30;

/// A cache whose memory is a simulated disk too: what is on that is there after a kill, and not
/// after a reboot.
fn open_beside(disk: &SimDisk, memory: &SimDisk, (boot, bytes_max): (u128, u64)) -> Cache {
    let memory = MemoryDir { disk: Arc::new(memory.clone()), bytes_max };
    let config = Config { memory: Some(memory), ..super::killed::booted(boot) };
    open_with(disk, config)
}

fn data_files(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|(path, _)| path.starts_with("data/")).count()
}

fn new_file(cache: &Cache, key: &[u8]) -> Arc<CachedFile> {
    let file = cache.file(cache.assign(key));
    file.reset(b"v1", 0);
    file.prefer_memory(true);
    file
}

fn unsent(file: &CachedFile) -> Vec<u8> {
    let mut found = vec![0; file.size() as usize];
    file.read_dirty(0, &mut found).unwrap();
    found
}

#[test]
fn what_lies_in_memory_outlives_the_process_and_not_the_boot() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let file = new_file(&cache, b"new");
    file.write(0, b"scratch").unwrap();
    cache.checkpoint().unwrap();
    assert!(file.is_in_memory());
    assert_eq!((data_files(&disk), data_files(&memory)), (0, 1));
    assert_eq!(cache.usage().memory_bytes, 4096);
    let no = file.number();
    let (killed, left) = (disk.crash(Image::Written), memory.crash(Image::Written));
    let after = open_beside(&killed, &left, (1, ROOM));
    assert_eq!((unsent(&after.file(no)), after.unsent()), (b"scratch".to_vec(), vec![no]));
    assert!(after.lost_in_memory().is_empty());
    assert_eq!(after.usage().memory_bytes, 4096, "it is counted again");
    // Another boot, in which memory is empty, or (if it is not a tmpfs of this boot) is not.
    for left in [SimDisk::new(), memory.crash(Image::Written)] {
        let after = open_beside(&disk.crash(Image::Written), &left, (2, ROOM));
        assert_eq!((after.unsent(), after.usage().dirty_dropped), (vec![], 1));
        assert!(after.lost_in_memory().contains(&no));
        assert_eq!(read(&after.file(no), 0..7), None);
        assert_eq!(data_files(&left), 0, "what nobody knows any more takes no memory");
    }
}

/// A process that reads an index without a place in memory finds no bytes there, and none that are
/// wrong.
#[test]
fn without_its_memory_nothing_is_read() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let file = new_file(&cache, b"new");
    file.write(0, b"scratch").unwrap();
    let after = super::killed::open_in(&disk.crash(Image::Written), 1);
    let file = after.file(file.number());
    assert_eq!(read(&file, 0..7), None);
    assert!(file.dirty().is_empty());
}

#[test]
fn an_orderly_stop_leaves_nothing_in_memory() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let (unsent_one, sent) = (new_file(&cache, b"unsent"), new_file(&cache, b"sent"));
    unsent_one.write(3 * CHUNK, b"scratch").unwrap();
    sent.write(0, b"scratch").unwrap();
    sent.mark_clean(0..7);
    sent.set_version(b"v2", 7);
    cache.close().unwrap();
    assert_eq!(data_files(&memory), 0);
    for boot in 1..3 {
        let after = open_beside(&disk.crash(Image::Synced), &SimDisk::new(), (boot, ROOM));
        assert_eq!(after.unsent(), [unsent_one.number()], "{boot}");
        let file = after.file(unsent_one.number());
        let mut found = [0; 7];
        file.read_dirty(3 * CHUNK, &mut found).unwrap();
        assert_eq!((&found, file.size()), (b"scratch", 3 * CHUNK + 7));
    }
}

/// A file that the server has takes no memory once it is closed.
#[test]
fn what_was_sent_leaves_memory() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let file = new_file(&cache, b"new");
    file.write(0, b"scratch").unwrap();
    let held = file.hold();
    file.mark_clean(0..7);
    file.set_version(b"v2", 7);
    cache.checkpoint().unwrap();
    assert_eq!(read(&file, 0..7), Some(b"scratch".to_vec()));
    drop(held);
    cache.checkpoint().unwrap();
    assert_eq!((read(&file, 0..7), data_files(&memory)), (None, 0));
    assert_eq!((cache.usage().memory_bytes, cache.usage().files), (0, 0));
}

#[test]
fn what_does_not_fit_into_memory_lies_on_the_disk() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, 8 * CHUNK));
    let first = new_file(&cache, b"first");
    first.write(0, &bytes(1, 0..4 * CHUNK)).unwrap();
    assert!(first.is_in_memory());
    // It grows beyond the limit, and moves with all its bytes.
    first.write(4 * CHUNK, &bytes(1, 4 * CHUNK..9 * CHUNK)).unwrap();
    assert!(!first.is_in_memory());
    assert_eq!(unsent(&first), bytes(1, 0..9 * CHUNK));
    assert_eq!((data_files(&memory), cache.usage().memory_bytes), (0, 0));
    let (second, third) = (new_file(&cache, b"second"), new_file(&cache, b"third"));
    second.write(0, &bytes(2, 0..8 * CHUNK - 1)).unwrap();
    third.write(0, &bytes(3, 0..CHUNK)).unwrap();
    assert_eq!((second.is_in_memory(), third.is_in_memory()), (true, false));
    assert_eq!(cache.usage().turned_away, 1);
    second.discard_dirty();
    let fourth = new_file(&cache, b"fourth");
    fourth.write(0, b"there is room again").unwrap();
    assert!(fourth.is_in_memory());
}

/// A kept file is on the disk, in another boot too. Wherever a kill interrupts this, the bytes are
/// in one place or the other.
#[test]
fn what_is_kept_leaves_memory_first() {
    let (disk, memory) = (SimDisk::recording(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let file = new_file(&cache, b"new");
    file.write(0, &bytes(1, 0..3 * CHUNK)).unwrap();
    let (begun, before) = (disk.logged(), memory.crash(Image::Written));
    file.keep().unwrap();
    assert!(!file.is_in_memory() && file.is_all_kept());
    assert_eq!((data_files(&memory), file.keeping()), (0, Keeping::Kept));
    let after = open_beside(&disk.crash(Image::Synced), &SimDisk::new(), (2, ROOM));
    assert_eq!(unsent(&after.file(file.number())), bytes(1, 0..3 * CHUNK));
    let mut places = [0, 0];
    for point in disk.crash_points().filter(|point| point.logged() >= begun) {
        let left = before.crash(Image::Written);
        let after = open_beside(&point.image(Image::Written), &left, (1, ROOM));
        let found = after.file(file.number());
        assert_eq!(unsent(&found), bytes(1, 0..3 * CHUNK), "{}", point.logged());
        places[usize::from(found.is_in_memory())] += 1;
    }
    assert!(places.iter().all(|count| *count > 0), "{places:?}");
}

/// While the kernel has the local file it stays in memory, and keeping it is refused.
#[test]
fn what_the_kernel_writes_does_not_leave_memory() {
    let (disk, memory) = (SimDisk::new(), SimDisk::new());
    let cache = open_beside(&disk, &memory, (1, ROOM));
    let file = new_file(&cache, b"new");
    let local = begin_bypass(&file).unwrap();
    local.write_at(b"scratch", 0).unwrap();
    file.collect_bypass().unwrap();
    assert_eq!(file.keep().unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    assert!(file.is_in_memory());
    file.end_bypass().unwrap();
    file.keep().unwrap();
    assert_eq!((unsent(&file), file.is_in_memory()), (b"scratch".to_vec(), false));
    // What was never collected is moved at the end as well.
    let other = new_file(&cache, b"other");
    let local = begin_bypass(&other).unwrap();
    local.write_at(b"more scratch", 0).unwrap();
    drop(local);
    cache.close().unwrap();
    let after = open_beside(&disk.crash(Image::Synced), &SimDisk::new(), (2, ROOM));
    assert_eq!(unsent(&after.file(other.number())), b"more scratch");
}
