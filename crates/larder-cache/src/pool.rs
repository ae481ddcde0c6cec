//! A bounded set of open data files, reopened by number when needed.
//!
//! One descriptor for each cached file would exceed the descriptor limit. The bound shrinks when
//! the process runs out of descriptors anyway. A file in use elsewhere stays open there.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use larder_io::{Disk, DiskFile, OpenMode};
use rustix::io::Errno;

use crate::{FileNo, lock};

/// Below this the bound does not shrink.
const OPEN_FILES_MIN: usize = 4;

#[derive(Debug)]
struct Open {
    file: Arc<dyn DiskFile>,
    used_at: u64,
}

#[derive(Debug, Default)]
struct Files {
    open: HashMap<(FileNo, u64), Open>,
    time: u64,
    max: usize,
}

/// Open data files by number of the file and number of its local file.
#[derive(Debug)]
pub(crate) struct Pool {
    files: Mutex<Files>,
}

/// Directory of a data file.
pub(crate) fn data_dir(no: FileNo) -> String {
    format!("data/{:02x}", no.0 & 0xff)
}

/// Path of a data file.
pub(crate) fn data_path(no: FileNo, serial: u64) -> String {
    format!("data/{:02x}/{:x}.{serial:x}", no.0 & 0xff, no.0)
}

/// Numbers in the name of a data file.
pub(crate) fn parse_data_name(name: &str) -> Option<(FileNo, u64)> {
    let (no, serial) = name.split_once('.')?;
    let no = u64::from_str_radix(no, 16).ok()?;
    Some((FileNo(no), u64::from_str_radix(serial, 16).ok()?))
}

/// Writes bytes that were not readable before. Chunks of zeros become holes: they take no blocks.
pub(crate) fn write_with_holes(file: &dyn DiskFile, data: &[u8], offset: u64) -> io::Result<()> {
    let at = |position: u64| usize::try_from(position - offset).unwrap_or(usize::MAX);
    let is_zero = |from: u64, to: u64| data[at(from)..at(to)].iter().all(|byte| *byte == 0);
    let end = offset + data.len() as u64;
    let chunk_end = |at: u64| ((at / crate::CHUNK_BYTES + 1) * crate::CHUNK_BYTES).min(end);
    let mut from = offset;
    while from < end {
        let is_hole = is_zero(from, chunk_end(from));
        let mut to = chunk_end(from);
        while to < end && is_zero(to, chunk_end(to)) == is_hole {
            to = chunk_end(to);
        }
        let bytes = &data[at(from)..at(to)];
        // What a failed write has left there must be removed, too.
        if !is_hole || file.punch_hole(from..to).is_err() {
            file.write_at(bytes, from)?;
        }
        from = to;
    }
    Ok(())
}

impl Pool {
    pub(crate) fn new(max: usize) -> Pool {
        let max = max.max(OPEN_FILES_MIN);
        Pool { files: Mutex::new(Files { max, ..Files::default() }) }
    }

    /// Opens a data file, or takes it from the pool. With `CreateNew` it must not exist.
    pub(crate) fn get(
        &self,
        disk: &dyn Disk,
        no: FileNo,
        serial: u64,
        mode: OpenMode,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = lock(&self.files);
        files.time += 1;
        let used_at = files.time;
        if let Some(open) = files.open.get_mut(&(no, serial)) {
            open.used_at = used_at;
            return Ok(Arc::clone(&open.file));
        }
        // Opening outside the lock would let two callers open the same file; an open is short.
        let path = data_path(no, serial);
        let file = match disk.open(&path, mode) {
            Err(error) if is_out_of_descriptors(&error) => {
                files.max = (files.open.len() / 2).max(OPEN_FILES_MIN);
                files.shrink(OPEN_FILES_MIN / 2);
                disk.open(&path, mode)?
            }
            other => other?,
        };
        files.open.insert((no, serial), Open { file: Arc::clone(&file), used_at });
        if files.open.len() > files.max {
            // An eighth at a time, so that the search for the oldest is rare.
            let keep = files.max - files.max / 8;
            files.shrink(keep.max(1));
            debug_assert!(files.open.len() <= files.max, "no more files are open than the bound");
        }
        Ok(file)
    }

    pub(crate) fn forget(&self, no: FileNo, serial: u64) {
        lock(&self.files).open.remove(&(no, serial));
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.files).open.len()
    }

    pub(crate) fn clear(&self) {
        lock(&self.files).open.clear();
    }
}

impl Files {
    fn shrink(&mut self, keep: usize) {
        let mut times: Vec<u64> = self.open.values().map(|open| open.used_at).collect();
        times.sort_unstable();
        let Some(&oldest_kept) = times.len().checked_sub(keep).and_then(|at| times.get(at)) else {
            return;
        };
        self.open.retain(|_, open| open.used_at >= oldest_kept);
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use larder_io::{Fault, MemDisk, SimDisk};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_parsed_back() {
        let path = data_path(FileNo(0x1234), 0xab);
        assert_eq!(path, "data/34/1234.ab");
        assert_eq!(parse_data_name("1234.ab"), Some((FileNo(0x1234), 0xab)));
        assert_eq!(parse_data_name("lost+found"), None);
    }

    #[test]
    fn pool_stays_below_its_bound_and_shrinks_without_descriptors() {
        let disk = SimDisk::new();
        let pool = Pool::new(16);
        for serial in 0..100 {
            pool.get(&disk, FileNo(1), serial, OpenMode::Create).unwrap();
            assert!(lock(&pool.files).open.len() <= 16);
        }
        disk.inject(Fault::OpenFiles(10));
        for serial in 0..100 {
            pool.get(&disk, FileNo(1), serial, OpenMode::Existing).unwrap();
            assert!(lock(&pool.files).open.len() <= 16);
        }
        assert!(lock(&pool.files).max < 16);
    }

    const CHUNK: u64 = crate::CHUNK_BYTES;

    /// In quarters of a chunk.
    const QUARTER: u64 = CHUNK / 4;

    proptest! {
        /// Whatever a failed write has left there: afterwards the bytes are there, and chunks of
        /// zeros take no blocks.
        #[test]
        fn what_is_written_with_holes_is_read_back(
            start in 0..6_u64, zeros in proptest::collection::vec(any::<bool>(), 1..16), dirt: bool,
        ) {
            let file = MemDisk::new().open("file", OpenMode::Create).unwrap();
            let quarter = usize::try_from(QUARTER).unwrap();
            if dirt {
                file.write_at(&vec![0xee; quarter * 24], 0).unwrap();
            }
            let data: Vec<u8> =
                zeros.iter().flat_map(|zero| vec![if *zero { 0 } else { 7 }; quarter]).collect();
            let offset = start * QUARTER;
            write_with_holes(&*file, &data, offset).unwrap();
            let end = offset + data.len() as u64;
            file.set_len(file.len().unwrap().max(end)).unwrap();
            let mut found = vec![1; data.len()];
            file.read_exact_at(&mut found, offset).unwrap();
            prop_assert!(found == data);
            let held = file.data_ranges(offset..end).unwrap();
            for at in (offset / CHUNK * CHUNK..end).step_by(CHUNK as usize) {
                let chunk = at.max(offset)..(at + CHUNK).min(end);
                let bytes = (chunk.start - offset) as usize..(chunk.end - offset) as usize;
                let is_hole = held.iter().all(|it| it.end <= chunk.start || chunk.end <= it.start);
                let is_zero = data[bytes].iter().all(|byte| *byte == 0);
                prop_assert!(!is_zero || is_hole, "{chunk:?} {held:?}");
            }
        }
    }

    /// The files used last stay open.
    #[test]
    fn the_pool_closes_what_was_not_used_for_longest() {
        let (disk, pool) = (SimDisk::new(), Pool::new(8));
        for serial in 0..8 {
            pool.get(&disk, FileNo(1), serial, OpenMode::Create).unwrap();
        }
        pool.get(&disk, FileNo(1), 0, OpenMode::Existing).unwrap();
        pool.get(&disk, FileNo(1), 8, OpenMode::Create).unwrap();
        let is_open = |serial: u64| lock(&pool.files).open.contains_key(&(FileNo(1), serial));
        assert!(is_open(0) && is_open(8) && !is_open(1), "an eighth is closed at a time");
        pool.forget(FileNo(1), 0);
        assert!(!is_open(0));
        pool.clear();
        assert_eq!(pool.count(), 0);
        assert!(pool.get(&disk, FileNo(1), 8, OpenMode::CreateNew).is_err(), "it is there");
    }
}
