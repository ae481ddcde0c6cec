//! One large file, read whole (S. Jayaraman, SUSE, 2010). The published rows are these tests on
//! these targets: None is COLD of the plain client, COLD and HOT and PGCACHE are those of the
//! caching one, Server is PGCACHE of the local disk.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::{Before, Outcome, Place, Size, Suite, Test};
use crate::data::Pattern;

/// What the file is called.
const FILE: &str = "file";
const SEED: u64 = 0xf5_cace;
const PIECE_BYTES: usize = 1 << 20;

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let bytes: u64 = size.pick_of(4 << 20, 50_000_000, 200_000_000);
    let test = |name, before| {
        Test::timed(name, 1, before, Arc::new(move |place: &Place| read(place, bytes)))
    };
    Suite {
        name: "fscache",
        method: vec![
            format!("One file of {} MB is read from beginning to end in pieces of 1 MiB; open to end of file is timed, then every byte is compared.", bytes / 1_000_000),
            "COLD: fresh mount, empty disk cache, nothing in memory. HOT: fresh mount, what was read before is on the cache's disk, nothing in memory. PGCACHE: read once untimed, then again at once.".to_owned(),
            "A target that cannot be mounted again (the local disk, a directory that was given) has its memory dropped instead.".to_owned(),
        ],
        tests: vec![
            test("COLD", Before::RestartEmpty),
            test("HOT", Before::Restart),
            test("PGCACHE", Before::Nothing).prepared(move |place| {
                // Another target's turn has dropped memory meanwhile, and this one's with it.
                read(place, bytes)?;
                Ok("read once just before")
            }),
        ],
        furnish: Arc::new(move |place| {
            let mut file = File::create(place.at(FILE))?;
            super::write_pattern(&mut file, Pattern(SEED), bytes)?;
            Ok(file.sync_all()?)
        }),
        link_bits_per_s: Some(100_000_000),
        own_mounts: false,
        confinement: None,
    }
}

/// Reads as `cat` does, and counts. The check reads again: the same pages, which are in memory now.
fn read(place: &Place, bytes: u64) -> Result<Outcome> {
    let path = place.at(FILE);
    let mut file = File::open(&path)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    Outcome::checked(move || {
        ensure!(total == bytes, "read {total} of {bytes} bytes");
        let mut file = File::open(&path)?;
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let count = usize::try_from(bytes - offset)?.min(PIECE_BYTES);
            file.read_exact(&mut buffer[..count])?;
            Pattern(SEED).check(offset, &buffer[..count])?;
        }
        Ok(())
    })
}
