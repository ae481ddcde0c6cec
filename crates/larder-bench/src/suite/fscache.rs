//! One large file, read whole (S. Jayaraman, SUSE, 2010). The published rows are these tests on
//! these targets: None is COLD of the plain client, COLD and HOT and PGCACHE are those of the
//! caching one, Server is PGCACHE of the local disk.

use std::fs::File;
use std::sync::Arc;

use anyhow::Result;

use super::{Before, Outcome, ROUNDS, Size, Suite, Test, WorkDir, read_pattern, write_pattern};
use crate::data::Pattern;

/// The file's name.
const FILE: &str = "file";
const SEED: u64 = 0xf5_cace;

/// The suite.
pub(super) fn suite(size: Size) -> Suite {
    let bytes: u64 = size.pick_of(4 << 20, 50_000_000, 200_000_000);
    let test = |name, before| {
        Test::timed(name, 1, before, Arc::new(move |place: &WorkDir| read(place, bytes)))
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
                // Another target's turn has dropped memory in the meantime, including this one's.
                read(place, bytes)?;
                Ok("read once just before")
            }),
        ],
        furnish: Arc::new(move |place| {
            let mut file = File::create(place.at(FILE))?;
            write_pattern(&mut file, Pattern(SEED), bytes)?;
            Ok(file.sync_all()?)
        }),
        link_bits_per_s: Some(100_000_000),
        own_mounts: false,
        confinement: None,
        disk_latency: None,
        rounds: ROUNDS,
    }
}

fn read(place: &WorkDir, bytes: u64) -> Result<Outcome> {
    read_pattern(place.at(FILE), Pattern(SEED), bytes)
}
