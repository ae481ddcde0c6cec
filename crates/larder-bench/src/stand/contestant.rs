//! The contestants: each is a client of ours, and the server that it mounts.

mod mbfs;

use super::served::{Names, Protocol};
use super::volume::Parts;
use std::time::Duration;

use crate::target::Chosen;

/// A client of ours that is to be measured.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Name in the report.
    pub name: &'static str,
    /// With a cache on disk, or the reference client without.
    pub cached: bool,
    /// Further mount options.
    pub options: &'static [&'static str],
    /// The tests that it runs.
    pub tests: &'static [Chosen],
    /// Whose export it mounts.
    pub server: Server,
}

impl Contestant {
    /// Whether a share cannot offer what it mounts, or how.
    fn is_of_nfs_alone(&self) -> bool {
        matches!(self.server, Server::Asynchronous | Server::Far(_))
            || self.options.contains(&"exclusive")
    }

    /// Whether what its clients make or write may be on their machines alone for a while.
    pub(super) fn lets_changes_wait(&self) -> bool {
        let class = self.options.iter().find_map(|option| option.strip_prefix("class="));
        self.options.contains(&"exclusive")
            || class.is_some_and(|class| !["edited", "critical"].contains(&class))
    }

    /// Whether its server is made slow.
    pub fn is_slowed(&self) -> bool {
        matches!(self.server, Server::Volume(Parts { rate: Some(_), .. }))
    }
}

/// Whose export is mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Server {
    /// The stand's.
    #[default]
    Own,
    /// Ours, beside it, with names that may not be on the disk yet when it answers.
    Asynchronous,
    /// An nfs-ganesha's of its own, beside it, of the same disk.
    Ganesha(Names),
    /// A volume of its own, of the same disk.
    Volume(Parts),
    /// A volume that all contestants with this server share, on a disk as slow as the stand's, with
    /// a memory disk of this size, as `larder serve --memory` takes it.
    Memory(&'static str),
    /// Ours, of a directory of its own, with this delay each way between it and its clients.
    Far(Duration),
}

/// Through the persistent cache.
pub const LARDER: Contestant =
    Contestant { name: "larder", cached: true, options: &[], tests: &[], server: Server::Own };
/// The reference client: the same code, timeouts and memory, no cache on disk.
pub const PLAIN: Contestant = Contestant { name: "plain", cached: false, ..LARDER };

/// The default of a mount; given where transports are compared, so that records contain it.
const TCP: &[&str] = &["proto=tcp"];
/// Instead of it.
const UDP: &[&str] = &["proto=udp"];

/// Clients of ours that a suite measures by default, with a server behind `protocol`. The local
/// disk is added to all.
pub fn contestants(suite: &str, protocol: Protocol) -> Vec<Contestant> {
    let plain = |name, options, server| Contestant { name, options, server, ..PLAIN };
    let volume = |name, setup| {
        let parts = Parts { setup, disks: 1, rate: None };
        plain(name, &[], Server::Volume(parts))
    };
    const SMALL_WRITES: &[Chosen] = &[Chosen { names: &["small-writes"], copies: &[] }];
    let tests = SMALL_WRITES;
    let synchronous = Contestant { name: "plain-sync", options: &["sync"], tests, ..PLAIN };
    match suite {
        "badros" => vec![LARDER, PLAIN, synchronous],
        "basic5" => vec![
            Contestant { options: TCP, ..LARDER },
            plain("plain", TCP, Server::Own),
            plain("plain-udp", UDP, Server::Own),
            plain("plain-ganesha", TCP, Server::Ganesha(Names::Asynchronous)),
            plain("plain-ganesha-udp", UDP, Server::Ganesha(Names::Asynchronous)),
            plain("plain-ganesha-udp", UDP, Server::Ganesha(Names::Asynchronous)),
        ],
        "snapdragon" => vec![
            volume("secure", "secure"),
            Contestant { tests: WITHOUT_ENTRIES, ..volume("off", "off") },
            Contestant { tests: WITHOUT_ENTRIES, ..volume("private", "private") },
            plain("nfs", &[], DURABLE),
            small(volume("secure 2 MB", "secure")),
            small(volume("off 2 MB", "off")),
            small(plain("nfs 2 MB", &[], DURABLE)),
        ],
        "mbfs" => {
            let mut all = mbfs::contestants();
            all.retain(|one| protocol == Protocol::Nfs || !one.is_of_nfs_alone());
            all
        }
        "disks" => DISKS.map(|(name, disks, tests)| several(name, disks, tests)).to_vec(),
        _ => vec![LARDER, PLAIN],
    }
}

/// An nfs-ganesha with names as durable as a volume's.
const DURABLE: Server = Server::Ganesha(Names::Durable);

/// Tests of suite `snapdragon` but those of many entries, which are made one million times.
const WITHOUT_ENTRIES: &[Chosen] = &[
    Chosen { names: &["read", "write", "andrew", "andrew-large"], copies: &[] },
    Chosen { names: &["latency-read", "latency-write", "latency-again"], copies: &[] },
    Chosen { names: &["latency-revoked", "latency-chmod", "latency-revocation"], copies: &[] },
    Chosen { names: &["latency-getcaps"], copies: &[] },
    Chosen { names: &["create", "stat", "open-again", "unlink", "small-file"], copies: &[] },
];

/// A client with as little memory as the published ones, for the tests in which that counted.
fn small(contestant: Contestant) -> Contestant {
    const TESTS: &[Chosen] = &[Chosen { names: &["read", "write"], copies: &[] }];
    Contestant { options: &["memory=2M"], tests: TESTS, ..contestant }
}

/// Volumes of suite `disks`: as many disks as clients.
const DISKS: [(&str, u16, &[Chosen]); 7] = [
    ("1 disk", 1, &[Chosen { names: &[], copies: &[1] }]),
    ("2 disks", 2, &[Chosen { names: &[], copies: &[2] }]),
    ("3 disks", 3, &[Chosen { names: &[], copies: &[3] }]),
    ("4 disks", 4, &[Chosen { names: &[], copies: &[4] }]),
    ("5 disks", 5, &[Chosen { names: &[], copies: &[5] }]),
    ("6 disks", 6, &[Chosen { names: &[], copies: &[6] }]),
    ("7 disks", 7, &[Chosen { names: &[], copies: &[7] }]),
];
/// As fast as one of their disks: so slow that seven, on one machine, are no faster together.
const DISKS_RATE: &str = "8MB/s";

fn several(name: &'static str, disks: u16, tests: &'static [Chosen]) -> Contestant {
    let server = Server::Volume(Parts { setup: "secure", disks, rate: Some(DISKS_RATE) });
    Contestant { name, server, tests, ..PLAIN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{SUITES, Size, by_name};
    use crate::target::includes;

    /// A name that no test has would leave one out silently.
    #[test]
    fn contestants_choose_tests_that_there_are() {
        for (name, _) in SUITES {
            let suite = by_name(name, Size::Full).unwrap();
            for contestant in contestants(name, Protocol::Nfs) {
                let chosen = contestant.tests.iter().flat_map(|chosen| chosen.names);
                for of in chosen {
                    let is_there = suite.tests.iter().any(|test| test.name == *of);
                    assert!(is_there, "{name}: {} chooses {of}", contestant.name);
                }
                let runs = suite.tests.iter().any(|test| includes(contestant.tests, test));
                assert!(runs, "{name}: {} runs nothing", contestant.name);
            }
        }
        let suite = by_name("snapdragon", Size::Full).unwrap();
        let left_out = suite.tests.iter().filter(|test| !includes(WITHOUT_ENTRIES, test));
        let left_out: Vec<&str> = left_out.map(|test| test.name).collect();
        assert_eq!(left_out, ["entries-create", "entries-list", "entries-remove"]);
    }
}
