//! Works beside the published ones of 1999, for what is promised of the classes: an archive
//! unpacked far from the server, appends of a few bytes, and what an fsync costs in a large file.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::data::Pattern;
use crate::suite::archive::{self, Archive};
use crate::suite::badros::small_writes;
use crate::suite::{Before, Outcome, Size, Test, WorkDir, write_pattern};

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Further {
    archive: Archive,
    small_writes: u32,
    /// Sizes of the files that are synced.
    synced_mib: [u64; 2],
    syncs: u32,
}

/// Clients of small-writes, as it was published in 1998.
const WRITERS: u32 = 4;

const SYNCED: Pattern = Pattern(0xf5);
const CHANGED: Pattern = Pattern(0xf6);
const CHANGED_BYTES: usize = 4096;
/// The swept parameter.
const SIZE: &str = "file size MiB";

/// Where an archive is unpacked that is not that of the published test.
fn far(place: &WorkDir) -> WorkDir {
    WorkDir { dir: place.at("far"), ..place.clone() }
}

impl Further {
    pub(super) fn of(size: Size) -> Further {
        Further {
            archive: Archive::of_files(
                size.pick_of(20, 1000, 5000),
                size.pick_of(1000, 5000, 5000),
            ),
            small_writes: size.pick_of(20, 300, 500),
            synced_mib: [1, size.pick_of(4, 256, 1024)],
            syncs: size.pick_of(3, 10, 20),
        }
    }

    pub(super) fn method(self) -> [String; 3] {
        [
            format!(
                "fsync: in a file of {} MiB and in one of {} MiB, each synced and read once before, {} times {CHANGED_BYTES} bytes are written in place and fsynced; the result is the mean time of an fsync, and first_fsync_us beside it that of the first.",
                self.synced_mib[0], self.synced_mib[1], self.syncs
            ),
            format!(
                "untar-far unpacks {}, which was read once before, on a mount whose round trip to the server is 1 ms longer (a proxy), on the local disk, which syncs nothing, and on passthrough: the least that any file system behind FUSE takes.",
                self.archive.shown()
            ),
            format!(
                "small-writes x{WRITERS}, of suite badros: {} integers are appended to a file, each by a write of its own (published: 2,000).",
                self.small_writes
            ),
        ]
    }

    pub(super) fn tests(self) -> Vec<Test> {
        let Further { archive, small_writes: count, .. } = self;
        let mut tests = self.synced_mib.map(|mib| self.fsync(mib)).to_vec();
        tests.extend([
            Test::timed(
                "untar-far",
                1,
                Before::Nothing,
                Arc::new(move |place| archive.unpack(&far(place))),
            )
            .furnished(move |place| {
                fs::create_dir(far(place).dir)?;
                archive.furnish(&far(place))
            })
            .prepared(|place| archive::read(&far(place))),
            Test::timed(
                "small-writes",
                WRITERS,
                Before::DropMemory,
                Arc::new(move |place| small_writes(place, count)),
            ),
        ]);
        tests
    }

    fn fsync(self, mib: u64) -> Test {
        let name = move |place: &WorkDir| place.at(&format!("synced-{mib}"));
        let work = move |place: &WorkDir| self.sync(&name(place), mib);
        let mut test = Test::timed("fsync", 1, Before::Nothing, Arc::new(work));
        test.unit = "us";
        test.at(SIZE, mib as f64)
            .furnished(move |place| {
                let mut file = File::create(name(place))?;
                write_pattern(&mut file, SYNCED, mib << 20)?;
                // Otherwise the first fsync would write what the file was made of.
                Ok(file.sync_all()?)
            })
            .prepared(move |place| {
                std::io::copy(&mut File::open(name(place))?, &mut std::io::sink())?;
                Ok("the file read")
            })
    }

    /// Writes in place and syncs, at places that are spread over the file.
    fn sync(self, path: &std::path::Path, mib: u64) -> Result<Outcome> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let places: Vec<u64> = (0..u64::from(self.syncs))
            .map(|number| {
                let at = (mib << 20) / u64::from(self.syncs) * number;
                at / CHANGED_BYTES as u64 * CHANGED_BYTES as u64
            })
            .collect();
        let content = CHANGED.bytes(CHANGED_BYTES);
        let mut times_us = Vec::new();
        for at in &places {
            file.write_all_at(&content, *at)?;
            let started = Instant::now();
            file.sync_all()?;
            times_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        drop(file);
        let mean = times_us.iter().sum::<f64>() / times_us.len() as f64;
        let mut outcome = Outcome { value: Some(mean), ..Outcome::default() };
        outcome.extra.insert("first_fsync_us".to_owned(), times_us[0]);
        let path = path.to_owned();
        Ok(outcome.and_check_at_end(move || {
            let file = File::open(&path)?;
            let len = fs::metadata(&path)?.len();
            ensure!(len == mib << 20, "{len} bytes in {}", path.display());
            let mut read = vec![0; CHANGED_BYTES];
            for at in places {
                file.read_exact_at(&mut read, at)?;
                ensure!(read == content, "wrong bytes at {at} in {}", path.display());
            }
            let last = (mib << 20) - CHANGED_BYTES as u64;
            file.read_exact_at(&mut read, last)?;
            SYNCED.check(last, &read).with_context(|| path.display().to_string())
        }))
    }
}
