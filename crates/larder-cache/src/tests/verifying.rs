//! Verifying a large file, or comparing it with what it was, while others use it.

use std::sync::mpsc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::watched::{Watched, Watcher};
use super::*;
use crate::BackingFile;

/// Whether reads of data wait, and how many do.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        crate::lock(&self.state).0 = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = crate::lock(&self.state);
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(is_shut, _)| *is_shut));
    }

    fn wait_until_a_thread_waits(&self) {
        let state = crate::lock(&self.state);
        drop(self.changed.wait_while(state, |(_, passed)| *passed == 0));
    }
}

impl Watcher for Gate {
    fn hear(&self, call: &'static str) {
        if call == "read" {
            self.pass();
        }
    }
}

/// A disk whose reads of cached data wait at a gate.
type SlowDisk = Watched<Gate>;

/// A file of some chunks that an earlier run has left, and of which none is verified.
fn left_over(chunks: u64, damage: impl FnOnce(&SimDisk)) -> (SlowDisk, Cache, Arc<CachedFile>) {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let no = filled(&cache, b"v1", 1, chunks * CHUNK).number();
    cache.checkpoint().unwrap();
    damage(&disk);
    // That run was killed: what it left is not trusted unread.
    let left = Arc::new(disk.crash(larder_io::Image::Written));
    let disk = SlowDisk { disk: left, watcher: Arc::default() };
    let cache = try_open(&disk).unwrap();
    let file = cache.file(no);
    (disk, cache, file)
}

/// Runs `work` while the file is being verified and the disk's reads are blocked. Then they are
/// released.
fn meanwhile<T: Send + 'static>(
    disk: &SlowDisk,
    file: &Arc<CachedFile>,
    work: impl FnOnce(&CachedFile) -> T + Send + 'static,
) -> T {
    meanwhile_of(CachedFile::verify_ahead, disk, file, work)
}

/// The same of other work that reads all of the file.
fn meanwhile_of<T: Send + 'static>(
    reads: impl FnOnce(&CachedFile) + Send + 'static,
    disk: &SlowDisk,
    file: &Arc<CachedFile>,
    work: impl FnOnce(&CachedFile) -> T + Send + 'static,
) -> T {
    disk.watcher.set(true);
    let reader = Arc::clone(file);
    let verifying = std::thread::spawn(move || reads(&reader));
    disk.watcher.wait_until_a_thread_waits();
    let (tell, told) = mpsc::channel();
    let other = Arc::clone(file);
    let working = std::thread::spawn(move || tell.send(work(&other)));
    let answer = told.recv_timeout(Duration::from_secs(20));
    disk.watcher.set(false);
    verifying.join().unwrap();
    working.join().unwrap().unwrap();
    answer.expect("nobody waits for whoever reads the whole file")
}

/// A file of some chunks that the kernel writes.
fn bypassed(chunks: u64) -> (SlowDisk, Cache, Arc<CachedFile>, Arc<BackingFile>) {
    let memory = Arc::new(larder_io::MemDisk::default());
    let disk = SlowDisk { disk: memory, watcher: Arc::default() };
    let cache = try_open(&disk).unwrap();
    let file = filled(&cache, b"v1", 1, chunks * CHUNK);
    let (kernel, _) = file.begin_bypass().unwrap();
    crate::lock(&disk.watcher.state).1 = 0;
    (disk, cache, file, kernel)
}

#[test]
fn no_caller_waits_while_what_the_kernel_wrote_is_looked_for() {
    let (disk, _cache, file, kernel) = bypassed(3000);
    for at in [5, 2000 * CHUNK, 3000 * CHUNK - 1] {
        kernel.write_at(b"!", at).unwrap();
    }
    let collects = |file: &CachedFile| {
        file.collect_bypass().unwrap();
    };
    let seen = meanwhile_of(collects, &disk, &file, |file| (file.version(), file.dirty()));
    assert_eq!(seen, (Some(b"v1".to_vec()), vec![]));
    // To the byte where the earlier bytes are known.
    let chunks = [2000, 2999].map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK);
    assert_eq!(file.dirty(), [5..6, chunks[0].clone(), chunks[1].clone()]);
}

/// What the kernel writes, and what is written and truncated here, while the kernel's writes are
/// looked for: in the end all of it was dirty and thus sent to the server, and every chunk has the
/// sum of its bytes.
#[test]
fn what_is_changed_while_the_kernels_writes_are_looked_for_is_found() {
    let name = "what_is_changed_while_the_kernels_writes_are_looked_for_is_found";
    let mut random = Random(seed(name, 3));
    for _ in 0..10 {
        let (_disk, cache, file, kernel) = bypassed(64);
        let mut expected = bytes(1, 0..64 * CHUNK);
        let mut server = expected.clone();
        let collector = Arc::clone(&file);
        let collecting = std::thread::spawn(move || {
            for _ in 0..10 {
                collector.collect_bypass().unwrap();
            }
        });
        for round in 0..40 {
            let at = random.below(expected.len() as u64);
            let data = bytes(round + 2, 0..random.below(3 * CHUNK));
            match random.below(6) {
                0 => {
                    file.truncate(at).unwrap();
                    expected.truncate(at as usize);
                    server.truncate(at as usize);
                    continue;
                }
                1..=2 => file.write(at, &data).unwrap(),
                _ => kernel.write_at(&data, at).unwrap(),
            }
            expected.resize(expected.len().max(at as usize + data.len()), 0);
            expected[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        collecting.join().unwrap();
        file.collect_bypass().unwrap();
        server.resize(expected.len(), 0);
        for range in file.dirty() {
            let range = range.start as usize..range.end as usize;
            server[range.clone()].copy_from_slice(&expected[range]);
        }
        assert!(server == expected);
        assert!(read(&file, 0..expected.len() as u64) == Some(expected));
        assert_eq!(cache.usage().bad_chunks, 0);
        file.end_bypass().unwrap();
    }
}

#[test]
fn no_caller_waits_while_a_file_is_verified() {
    let (disk, _cache, file) = left_over(3000, |_| ());
    let seen = meanwhile(&disk, &file, |file| {
        (
            file.version(),
            file.size(),
            file.held(0..u64::MAX),
            file.dirty(),
            file.is_ready(b"v1", false),
        )
    });
    let size = 3000 * CHUNK;
    assert_eq!(seen, (Some(b"v1".to_vec()), size, vec![0..size], vec![], false));
    // All is verified: nothing is read before the file is handed out.
    disk.watcher.set(true);
    assert!(file.is_ready(b"v1", false));
    assert!(whole(&file).is_some());
    disk.watcher.set(false);
}

#[test]
fn what_is_changed_while_a_file_is_verified_stays_right() {
    let mut random = Random(seed("what_is_changed_while_a_file_is_verified_stays_right", 11));
    for _ in 0..20 {
        let (_disk, cache, file) = left_over(64, |_| ());
        let mut expected = bytes(1, 0..64 * CHUNK);
        let verifier = Arc::clone(&file);
        let verifying = std::thread::spawn(move || verifier.verify_ahead());
        for round in 0..20 {
            let at = random.below(expected.len() as u64);
            if random.below(5) == 0 {
                file.truncate(at).unwrap();
                expected.truncate(at as usize);
            } else {
                let data = bytes(round + 2, 0..random.below(3 * CHUNK));
                file.write(at, &data).unwrap();
                expected.resize(expected.len().max(at as usize + data.len()), 0);
                expected[at as usize..at as usize + data.len()].copy_from_slice(&data);
            }
        }
        verifying.join().unwrap();
        assert!(read(&file, 0..expected.len() as u64) == Some(expected));
        assert_eq!(cache.usage().bad_chunks, 0);
    }
}

#[test]
fn a_damaged_chunk_is_found_ahead_and_forgotten() {
    let path = std::cell::RefCell::new(String::new());
    let (_disk, cache, file) = left_over(2000, |disk| {
        let found =
            disk.files().into_iter().find(|(path, len)| path.starts_with("data/") && *len > 0);
        *path.borrow_mut() = found.unwrap().0;
        disk.corrupt(&path.borrow(), 1500 * CHUNK + 3, 2);
    });
    file.verify_ahead();
    assert_eq!(cache.usage().bad_chunks, 1);
    assert_eq!(file.held(0..u64::MAX), [0..1500 * CHUNK, 1501 * CHUNK..2000 * CHUNK]);
    assert!(whole(&file).is_none());
    fill(&file, b"v1", 1, 1500 * CHUNK..1501 * CHUNK);
    assert!(whole(&file).is_some());
    assert!(read(&file, 0..2000 * CHUNK) == Some(bytes(1, 0..2000 * CHUNK)));
}

/// Of a comparison at an interval: what is wrong is forgotten, also if this run has verified it. A
/// file of which the server lacks something is left alone, so no byte of that is dropped.
#[test]
fn a_comparison_finds_what_was_damaged_since_and_leaves_local_changes_alone() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let file = filled(&cache, b"v1", 1, 4 * CHUNK);
    cache.checkpoint().unwrap();
    assert_eq!(file.verify_again(0..u64::MAX), (4, 0));
    let damage = |at: u64| {
        let path = crate::pool::data_path(file.number(), file.local_number());
        let local = disk.open(&path, larder_io::OpenMode::Existing).unwrap();
        local.write_at(b"damaged", at).unwrap();
    };
    damage(2 * CHUNK + 9);
    assert_eq!(file.verify_again(0..2 * CHUNK), (2, 0));
    assert_eq!(file.verify_again(2 * CHUNK..4 * CHUNK), (2, 1));
    assert_eq!(read(&file, 2 * CHUNK..3 * CHUNK), None, "it is to be fetched");
    assert_eq!(read(&file, 0..2 * CHUNK), Some(bytes(1, 0..2 * CHUNK)));
    fill(&file, b"v1", 1, 2 * CHUNK..3 * CHUNK);
    assert_eq!(file.verify_again(0..u64::MAX), (4, 0));

    file.write(5, b"edit").unwrap();
    damage(20);
    damage(CHUNK);
    assert_eq!(file.verify_again(0..u64::MAX), (0, 0));
    let mut edit = [0; 4];
    file.read_dirty(5, &mut edit).unwrap();
    assert_eq!((&edit, file.dirty()), (b"edit", vec![5..9]));
}
