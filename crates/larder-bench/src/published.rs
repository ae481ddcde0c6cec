//! Results that the published texts reported, as constants, to be shown beside what is measured
//! here.
//!
//! Only results that the texts state in words or tables are here. Elapsed times and RPC counts that
//! were published as pictures have no number, and none is estimated from a picture.

/// Where a suite was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the suite.
    pub suite: &'static str,
    /// The subject of the text.
    pub title: &'static str,
    /// The authors, and where it appeared.
    pub authors: &'static str,
    /// Year of publication.
    pub year: u16,
}

/// The published texts, in the order of the suites.
pub const SOURCES: [Source; 5] = [
    Source {
        suite: "badros",
        title: "The disk-caching NFS client",
        authors: "G. Badros, University of Washington",
        year: 1998,
    },
    Source {
        suite: "fscache",
        title: "Persistent local caching for CIFS/SMB",
        authors: "S. Jayaraman, SUSE",
        year: 2010,
    },
    Source {
        suite: "mbfs",
        title: "Application-chosen persistence (MBFS)",
        authors: "T. Anderson, J. Griffioen, USENIX",
        year: 1999,
    },
    Source {
        suite: "basic5",
        title: "Baseline read and write of the RPC layer",
        authors: "CITI, University of Michigan",
        year: 2001,
    },
    Source {
        suite: "snapdragon",
        title: "Network-attached disks under capabilities",
        authors: "Aguilera et al., FAST",
        year: 2003,
    },
];

/// Where a suite was published; `None` if it is not one of the five.
pub fn source(suite: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| source.suite == suite)
}

/// A sentence of a published text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fact {
    /// Test that it is about; empty if it is about the suite.
    pub test: &'static str,
    /// Copies of the test that it is about, if it names them.
    pub copies: Option<u32>,
    /// The reported result.
    pub text: &'static str,
    /// How many times as long as the standard client it took, where the text gives the number.
    pub ratio: Option<f64>,
}

const fn fact(test: &'static str, copies: Option<u32>, text: &'static str) -> Fact {
    Fact { test, copies, text, ratio: None }
}

/// Reported results of the disk-caching NFS client.
pub const BADROS: [Fact; 9] = [
    fact(
        "",
        None,
        "Elapsed times and RPC counts were published as pictures only: no number stands beside ours except where the text gives one.",
    ),
    fact("", None, "Never more RPCs than the standard client in any of the 26 runs."),
    fact(
        "",
        None,
        "All READ RPCs gone whenever a cached file was reread; up to 14 times faster on reading cached files.",
    ),
    fact("small-writes", Some(4), "Almost 100 times faster on small-writes x4."),
    fact("andrew-cpu", Some(4), "More than 10 % faster on andrew-cpu x4."),
    Fact {
        ratio: Some(1.03),
        ..fact("andrew-copy", Some(4), "Slower in two runs only: one was andrew-copy x4, by 3 %.")
    },
    Fact {
        ratio: Some(1.08),
        ..fact(
            "random-reads",
            Some(4),
            "Slower in two runs only: the other was random-reads x4, by 8 %.",
        )
    },
    fact(
        "",
        None,
        "Much of the gain outside cached reads came from a larger attribute cache and from using the attributes that ride on other replies.",
    ),
    fact(
        "",
        None,
        "Network: shared Ethernet of 10 Mbit/s, mean round trip 0.7 ms, worst 4 ms. The disk cache was not emptied between tests.",
    ),
];

/// A row of the 2010 table: a file of 200 MB read over 100 Mbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Name in the table.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// Seconds of the first run and of the second, as printed.
    pub printed_s: [&'static str; 2],
    /// The same as numbers.
    pub runs_s: [f64; 2],
}

/// The 2010 table, in its order of states: None, COLD, HOT, PGCACHE, Server.
pub const FSCACHE_STATES: [State; 5] = [
    State {
        name: "None",
        meaning: "client without a cache",
        printed_s: ["26.042", "26.576"],
        runs_s: [26.042, 26.576],
    },
    State {
        name: "COLD",
        meaning: "client with an empty cache: what filling costs",
        printed_s: ["26.703", "26.787"],
        runs_s: [26.703, 26.787],
    },
    State {
        name: "HOT",
        meaning: "client rebooted, disk cache populated",
        printed_s: ["5.115", "5.147"],
        runs_s: [5.115, 5.147],
    },
    State {
        name: "PGCACHE",
        meaning: "read again, page cache valid",
        printed_s: ["0.091", "0.092"],
        runs_s: [0.091, 0.092],
    },
    State {
        name: "Server",
        meaning: "read on the server itself, from its memory",
        printed_s: ["0.104", "0.107"],
        runs_s: [0.104, 0.107],
    },
];

/// Reported results of the persistent cache for CIFS.
pub const FSCACHE: [Fact; 3] = [
    fact("", None, "cat of one file of 200 MB to nowhere over 100 Mbit/s; netcat saw 89.6 Mbit/s."),
    fact(
        "",
        None,
        "HOT was 5.1 times as fast as None, the speed of that disk. COLD cost 0.8 to 2.5 % over None.",
    ),
    fact("", None, "Measured with one client: the relief of the server was left unmeasured."),
];

/// Reported results of application-chosen persistence.
pub const MBFS: [Fact; 7] = [
    fact(
        "large-write",
        None,
        "Faster than asynchronous NFS; 91 % of the saving in WRITE, 9 % from the COMMIT that is not needed.",
    ),
    fact("small-file", None, "At 10 clients 313 files/s, where NFS did 13."),
    fact("untar", None, "Visibly faster; published as a picture only."),
    fact("edit", None, "No or minimal gain, as it must be: everything has to be durable."),
    fact(
        "andrew",
        None,
        "40 % less time at 1 client, up to 64 %; all of it in mkdir, create, write, setattr, commit. The compiler's CPU time was subtracted.",
    ),
    fact(
        "",
        None,
        "Faster than NFS and than the local disk (UFS) in every test, and often near tmpfs.",
    ),
    fact("", None, "The prototype had no callbacks and no reconstruction of lost files."),
];

/// A published point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The target measured then.
    pub who: &'static str,
    /// Test.
    pub test: &'static str,
    /// PublishedMark on the swept axis, in [`Point::x_unit`].
    pub x: f64,
    /// The swept parameter: `clients`, `MB`.
    pub x_unit: &'static str,
    /// The measured quantity, in [`Point::unit`].
    pub y: f64,
    /// Unit of a record: `files/s`, `B/s`.
    pub unit: &'static str,
}

/// Small files at 10 clients (1999).
pub const MBFS_POINTS: [Point; 2] = [
    Point {
        who: "MBFS",
        test: "small-file",
        x: 10.0,
        x_unit: "clients",
        y: 313.0,
        unit: "files/s",
    },
    Point { who: "NFS", test: "small-file", x: 10.0, x_unit: "clients", y: 13.0, unit: "files/s" },
];

/// Writing 20 MB to a Linux server over UDP (2001).
pub const BASIC5_POINTS: [Point; 1] = [Point {
    who: "Linux server over UDP",
    test: "write",
    x: 20.0,
    x_unit: "MB",
    y: 26e6,
    unit: "B/s",
}];

/// A published value on a swept axis at which something changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedMark {
    /// Test.
    pub test: &'static str,
    /// Where, in [`PublishedMark::unit`]: the same twice, or from and to.
    pub at: (f64, f64),
    /// Unit of size as printed.
    pub unit: &'static str,
    /// The change.
    pub text: &'static str,
}

/// Knees of the rates (2001).
pub const BASIC5_MARKS: [PublishedMark; 3] = [
    PublishedMark {
        test: "write",
        at: (60.0, 60.0),
        unit: "MB",
        text: "write rate of the filer fell at about 60 MB (it had 64 MB of NVRAM) on a two-disk volume",
    },
    PublishedMark {
        test: "read",
        at: (180.0, 180.0),
        unit: "MB",
        text: "read rates fell at about 180 MB",
    },
    PublishedMark {
        test: "read",
        at: (400.0, 420.0),
        unit: "MB",
        text: "read rates fell again at about 400 to 420 MB",
    },
];

/// Reported results of the RPC layer.
pub const BASIC5: [Fact; 6] = [
    fact("write", None, "26e6 B/s writing 20 MB to a Linux server over UDP."),
    fact(
        "write",
        None,
        "The filer's write rate fell at about 60 MB (it had 64 MB of NVRAM) on a two-disk volume.",
    ),
    fact("read", None, "Read rates fell at about 180 MB and at about 400 to 420 MB."),
    fact("", None, "UDP slightly above TCP."),
    fact(
        "",
        None,
        "Means hide what a time series shows: a congestion window that flips between 1 and 2.",
    ),
    fact("", None, "Sampling the RPC layer every 0.15 ms cost a whole CPU."),
];

/// Up to here secure equalled non-secure; above it was slower (2003).
pub const SNAPDRAGON_MARK: PublishedMark = PublishedMark {
    test: "",
    at: (256.0, 256.0),
    unit: "KB",
    text: "secure equalled non-secure up to 256 KB and was up to 16 % slower above",
};

/// Reported results of network-attached disks.
pub const SNAPDRAGON: [Fact; 10] = [
    fact(
        "size",
        None,
        "Secure equalled non-secure up to 256 KB; up to 16 % slower above, by CPU time for MACs.",
    ),
    fact("size", None, "An unlimited data cache was markedly faster; the other setups had 2 MB."),
    fact(
        "size",
        None,
        "6 clients, 1 disk; each file touched once, in pieces of 64 KB. Runs of 4 KB and 16 KB touched more than 10,000 files and so triggered group invalidation.",
    ),
    fact("disks", None, "Bandwidth scaled linearly to 7 disks for reads and writes."),
    fact("disks", None, "2 to 7 disks, each used by one client, 600 files of 256 KB."),
    fact("disks", None, "The metadata server was 86 to 92 % idle."),
    fact("latency", None, "Security cost less than 0.5 ms per operation, 5 %."),
    fact(
        "latency",
        None,
        "700 files of 4 KB in random order, one operation per file; reads on an empty cache, writes synchronous.",
    ),
    fact("", None, "A revoked capability costs the next request two extra round trips."),
    fact(
        "andrew",
        None,
        "Andrew on 690 directories, 10,528 files, 127 MB: secure about equal to non-secure in all phases.",
    ),
];

/// Reported results of a suite, in the order in which they are shown.
pub fn facts(suite: &str) -> &'static [Fact] {
    match suite {
        "badros" => &BADROS,
        "fscache" => &FSCACHE,
        "mbfs" => &MBFS,
        "basic5" => &BASIC5,
        "snapdragon" => &SNAPDRAGON,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_seconds_are_the_numbers() {
        for state in FSCACHE_STATES {
            let parsed = state.printed_s.map(|text| text.parse::<f64>().unwrap());
            assert_eq!(parsed, state.runs_s, "{}", state.name);
        }
    }

    #[test]
    fn every_source_has_facts() {
        assert!(SOURCES.iter().all(|source| !facts(source.suite).is_empty()));
        assert!(source("badros").is_some_and(|source| source.year == 1998));
        assert!(facts("another").is_empty() && source("another").is_none());
    }

    #[test]
    fn statements_about_the_table_follow_from_it() {
        let [none, cold, hot, ..] = FSCACHE_STATES.map(|state| state.runs_s);
        assert!((none[0] / hot[0] - 5.1).abs() < 0.05);
        assert!((none[1] / hot[1] - 5.1).abs() < 0.1);
        assert!((cold[0] / none[0] - 1.025).abs() < 0.001);
        assert!((cold[1] / none[1] - 1.008).abs() < 0.001);
    }
}
