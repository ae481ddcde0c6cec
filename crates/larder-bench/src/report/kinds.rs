//! The kinds of tests, by what bounds them: ratios are averaged within one kind only.
//!
//! A test whose bytes cross the link takes as long as the link does, whatever the reader; one whose
//! bytes are cached here does not. Their mean would only say how many of each a suite has.

use crate::record::Test;

/// The bottleneck of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Bytes that were not read before: the link.
    Cold,
    /// Bytes that were read or written before: what the client caches.
    Warm,
    /// Bytes that are written, and read in between.
    Written,
    /// Names and attributes.
    Names,
    /// Several of these, with programs between, or a test that is not known here.
    Mixed,
}

impl Kind {
    /// All, in the order of reports.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Cold, Kind::Warm, Kind::Written, Kind::Names, Kind::Mixed];

    /// Of a test of a suite.
    pub(crate) fn of(suite: &str, test: &Test) -> Kind {
        match (suite, test.name.as_str()) {
            ("badros", "read-big" | "random-reads") => Kind::Cold,
            ("badros", "andrew-read" | "read-big-again") => Kind::Warm,
            ("badros", "andrew-mkdir" | "andrew-stat" | "ls") => Kind::Names,
            ("badros", "andrew-cpu") | ("mbfs", "andrew") | ("snapdragon", "andrew-large") => {
                Kind::Mixed
            }
            ("badros" | "mbfs", _) => Kind::Written,
            ("fscache", "HOT" | "PGCACHE" | "Server") => Kind::Warm,
            ("fscache", _) => Kind::Cold,
            ("lan", "stream-cold" | "small-cold") => Kind::Cold,
            ("lan", "small-warm") => Kind::Warm,
            ("lan", "open-close" | "rm-r") => Kind::Names,
            ("lan", "untar" | "cp-r" | "create-unlink") => Kind::Written,
            ("snapdragon", "latency-chmod" | "latency-revocation") => Kind::Names,
            ("snapdragon", "latency-again" | "latency-revoked") => Kind::Cold,
            (_, name) if name.contains("write") => Kind::Written,
            ("basic5" | "snapdragon", name) if name.contains("read") => Kind::Cold,
            ("snapdragon", "disk-share") => Kind::Cold,
            _ => Kind::Mixed,
        }
    }

    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Kind::Cold => "cold reads",
            Kind::Warm => "warm reads",
            Kind::Written => "writes",
            Kind::Names => "names and attributes",
            Kind::Mixed => "mixed work",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_bound_and_warm_tests_are_of_different_kinds() {
        let kind = |suite: &str, name: &str| {
            Kind::of(suite, &Test { name: name.to_owned(), ..Test::default() })
        };
        assert_eq!(kind("badros", "read-big"), Kind::Cold);
        assert_eq!(kind("badros", "read-big-again"), Kind::Warm);
        assert_eq!(kind("fscache", "COLD"), Kind::Cold);
        assert_eq!(kind("fscache", "HOT"), Kind::Warm);
        assert_eq!(kind("basic5", "read-tcp"), Kind::Cold);
        assert_eq!(kind("snapdragon", "latency-write"), Kind::Written);
        assert_eq!(kind("another", "x"), Kind::Mixed);
    }
}
