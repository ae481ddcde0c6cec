//! Contestants of suite `mbfs`: the classes of durability, and what they are compared with.
//!
//! A server with a slow disk carries out some tens of changes a second. So contestants whose names
//! wait for it are measured at the fewest and the most clients, and those that differ in little
//! from another one at the most clients, with the short works.

use std::time::Duration;

use super::{Contestant, LARDER, Names, PLAIN, Server};
use crate::target::Chosen;

/// The fewest and the most clients, in each size of the suite.
const ENDS: &[u32] = &[1, 3, 10];
/// The most clients.
const MOST: &[u32] = &[3, 10];
/// The fewest and the most, and some between them.
const SOME: &[u32] = &[1, 3, 4, 10];

/// The published tests.
const PUBLISHED: &[&str] = &["large-write", "small-file", "untar", "edit", "andrew"];
/// Those of them that cost a slow server the least.
const SHORT: &[&str] = &["large-write", "small-file", "edit"];

const SMALL_WRITES: Chosen = Chosen { names: &["small-writes"], copies: &[] };
const FSYNC: Chosen = Chosen { names: &["fsync"], copies: &[] };
const FAR: &[Chosen] = &[Chosen { names: &["untar-far"], copies: &[] }];

/// Two tests at every number of clients, and the longer ones at some.
const CURVES: Chosen = Chosen { names: &["large-write", "small-file"], copies: &[] };
const LONG: Chosen = Chosen { names: &["untar", "edit", "andrew"], copies: SOME };
const ALL: &[Chosen] = &[CURVES, LONG];
const AT_ENDS: &[Chosen] = &[Chosen { names: PUBLISHED, copies: ENDS }];
const SHORT_AT_MOST: &[Chosen] = &[Chosen { names: SHORT, copies: MOST }];
const OF_PLAIN: &[Chosen] = &[CURVES, LONG, SMALL_WRITES];
const OF_SYNC: &[Chosen] =
    &[Chosen { names: &["large-write", "small-file"], copies: ENDS }, SMALL_WRITES];
const OF_GENERATED: &[Chosen] = &[CURVES, LONG, SMALL_WRITES, FSYNC];
const OF_EDITED: &[Chosen] = &[Chosen { names: PUBLISHED, copies: ENDS }, SMALL_WRITES, FSYNC];

/// Half of a round trip of 1 ms.
const FAR_DELAY: Duration = Duration::from_micros(500);
/// Size of the memory disk.
const MEMORY: &str = "2G";

/// Mounts of our export, with names that are made on this machine and at the server.
const CLASSES: [(&str, &[&str], &[Chosen]); 10] = [
    ("larder scratch exclusive", &["class=scratch", "exclusive"], ALL),
    ("larder scratch", &["class=scratch"], SHORT_AT_MOST),
    ("larder volatile exclusive", &["class=volatile", "exclusive"], ALL),
    ("larder volatile", &["class=volatile"], SHORT_AT_MOST),
    ("larder generated exclusive", &["class=generated", "exclusive"], OF_GENERATED),
    ("larder generated", &["class=generated"], SHORT_AT_MOST),
    ("larder edited exclusive", &["class=edited", "exclusive"], SHORT_AT_MOST),
    ("larder edited", &["class=edited"], OF_EDITED),
    ("larder critical exclusive", &["class=critical", "exclusive"], SHORT_AT_MOST),
    ("larder critical", &["class=critical"], SHORT_AT_MOST),
];

/// Mounts of a volume with a memory disk. Where one is exclusive, names are made on its machine
/// under leases of their directories.
const VOLUME: [(&str, &[&str], &[Chosen]); 6] = [
    ("larder volume scratch", &["class=scratch"], AT_ENDS),
    ("larder volume volatile", &["class=volatile"], ALL),
    ("larder volume volatile exclusive", &["class=volatile", "exclusive"], AT_ENDS),
    ("larder volume generated", &["class=generated"], SHORT_AT_MOST),
    ("larder volume edited", &["class=edited"], SHORT_AT_MOST),
    ("larder volume critical", &["class=critical"], SHORT_AT_MOST),
];

pub(super) fn contestants() -> Vec<Contestant> {
    let plain = |name, options, tests, server| Contestant { name, options, tests, server, ..PLAIN };
    let classes =
        CLASSES.map(|(name, options, tests)| Contestant { name, options, tests, ..LARDER });
    let volume = VOLUME.map(|(name, options, tests)| Contestant {
        name,
        options,
        tests,
        server: Server::Memory(MEMORY),
        ..LARDER
    });
    let far = Contestant {
        name: "larder generated exclusive far",
        options: &["class=generated", "exclusive"],
        tests: FAR,
        server: Server::Far(FAR_DELAY),
        ..LARDER
    };
    let plain = [
        plain("plain", &[], OF_PLAIN, Server::Own),
        plain("plain sync", &["sync"], OF_SYNC, Server::Own),
        plain("plain async names", &[], AT_ENDS, Server::Asynchronous),
        plain("plain ganesha", &[], AT_ENDS, Server::Ganesha(Names::Asynchronous)),
    ];
    classes.into_iter().chain(volume).chain([far]).chain(plain).collect()
}
