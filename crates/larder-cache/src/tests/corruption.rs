//! Flipped bits anywhere in a closed cache: right bytes or a miss, never wrong ones, never a
//! failure of the mount. The label is the exception: if both its copies are damaged, the cache is
//! refused with a message.

use larder_io::Image;

use super::*;

const FILES: u64 = 3;

/// A small cache, closed.
fn closed_cache() -> (SimDisk, Vec<FileNo>) {
    let disk = SimDisk::new();
    let cache = open(&disk);
    let mut nos = Vec::new();
    for seed in 0..FILES {
        let no = filled(&cache, b"v1", seed, CHUNK + 100 * seed).number();
        cache.put_node(no, &bytes(seed, 0..60));
        cache.put_name(FileNo::ROOT, &[seed as u8], &no.0.to_le_bytes());
        nos.push(no);
    }
    cache.close().unwrap();
    (disk, nos)
}

/// Whether everything is right that is not a miss.
fn check(disk: &SimDisk, nos: &[FileNo], context: &str) {
    let cache = match try_open(disk) {
        Ok(cache) => cache,
        Err(OpenError::DamagedHead) if context.contains("larder-cache") => return,
        Err(error) => panic!("{context}: {error}"),
    };
    for (seed, &no) in (0..FILES).zip(nos) {
        let file = cache.file(no);
        let size = CHUNK + 100 * seed;
        if let Some(version) = file.version() {
            assert_eq!((&version[..], file.size()), (&b"v1"[..], size), "{context}");
        }
        for at in (0..size).step_by(CHUNK as usize) {
            let range = at..(at + CHUNK).min(size);
            if let Some(found) = read(&file, range.clone()) {
                assert!(found == bytes(seed, range), "{context}: wrong bytes");
            }
        }
        if let Some(node) = cache.node(no) {
            assert_eq!(node, bytes(seed, 0..60), "{context}");
        }
        if let Some(name) = cache.name(FileNo::ROOT, &[seed as u8]) {
            assert_eq!(name, no.0.to_le_bytes(), "{context}");
        }
        let key = seed.to_le_bytes();
        assert!(cache.number_of(&key).is_none_or(|found| found == no), "{context}");
        // A new key never gets a number that is taken.
        assert!(!nos.contains(&cache.assign(b"new key")), "{context}");
    }
    cache.put_node(nos[0], b"new");
    // The index may find out only now; that must do no harm.
    let _ = cache.checkpoint();
}

#[test]
fn flipped_bits_give_right_bytes_or_a_miss() {
    let (disk, nos) = closed_cache();
    let seed = seed("flipped_bits", 1);
    let mut random = Random(seed);
    for (path, len) in disk.files() {
        // Every byte of the small files, a sample of the data. The bytes of the index's reserve
        // mean nothing.
        let step = match path.as_str() {
            "reserve" => 1 << 20,
            "index.redb" => 1,
            _ if len < 200 => 1,
            _ => 131,
        };
        let mut flips = 0;
        for offset in (0..len).step_by(step) {
            if path == "index.redb" && !is_index_sample(&disk, offset, &mut random) {
                continue;
            }
            let image = disk.crash(Image::Written);
            image.corrupt(&path, offset, random.below(8) as u8);
            check(&image, &nos, &format!("{path} byte {offset}"));
            flips += 1;
        }
        println!("{path}: {flips} of {len} bytes flipped");
    }
}

/// All of the header; of the rest, bytes in use often and empty ones rarely.
fn is_index_sample(disk: &SimDisk, offset: u64, random: &mut Random) -> bool {
    let is_used = disk.byte("index.redb", offset) != 0;
    offset < 320 || random.below(if is_used { 40 } else { 20_000 }) == 0
}

#[test]
fn a_flip_that_moves_the_stamp_is_found_by_the_integrity_check() {
    use larder_io::{Disk, OpenMode};
    let (disk, nos) = closed_cache();
    let mut random = Random(seed("integrity_check", 2));
    for _ in 0..60 {
        let image = disk.crash(Image::Written);
        let index = image.open("index.redb", OpenMode::Existing).unwrap();
        let offset = random.below(index.len().unwrap());
        index.write_at(&[random.next() as u8], offset).unwrap();
        drop(index);
        check(&image, &nos, &format!("index.redb written at {offset}"));
    }
}

#[test]
fn missing_files_are_misses() {
    use larder_io::Disk;
    let (disk, nos) = closed_cache();
    for (path, _) in disk.files() {
        if path != "larder-cache" {
            let image = disk.crash(Image::Written);
            image.remove(&path).unwrap();
            check(&image, &nos, &format!("{path} removed"));
        }
    }
}
