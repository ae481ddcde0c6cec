//! What a mount must know of its server before it has reached it, stored in its cache (JSON).

use larder_cache::Cache;
use larder_remote::later::Remembered;
use larder_vfs::RemoteLimits;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Record {
    read_max: u32,
    write_max: u32,
    readdir_preferred: u32,
    file_size_max: u64,
    name_max: u32,
    time_delta_ns: u64,
    links: bool,
    symlinks: bool,
    case_insensitive: bool,
    /// Records of earlier versions lack it.
    #[serde(default)]
    by_name: bool,
    /// Records of earlier versions lack it.
    #[serde(default)]
    opens: bool,
    gives_leases: bool,
    /// A user wants to work without it. Records of earlier versions lack it.
    #[serde(default)]
    offline: bool,
    /// The limit that a user has set since the mount was made, in bytes per second; 0: none.
    /// Records of earlier versions lack it.
    #[serde(default)]
    bytes_per_second: Option<u64>,
}

/// What `cache` knows of its server, if it was ever reached.
pub(crate) fn of(cache: &Cache) -> Option<Remembered> {
    let record = record(cache)?;
    let limits = RemoteLimits {
        read_max: record.read_max,
        write_max: record.write_max,
        readdir_preferred: record.readdir_preferred,
        file_size_max: record.file_size_max,
        name_max: record.name_max,
        time_delta_ns: record.time_delta_ns,
        links: record.links,
        symlinks: record.symlinks,
        case_insensitive: record.case_insensitive,
        opens: record.opens,
        by_name: record.by_name,
    };
    Some(Remembered { limits, gives_leases: record.gives_leases })
}

fn record(cache: &Cache) -> Option<Record> {
    serde_json::from_slice(&cache.volume()?).ok()
}

fn put(cache: &Cache, record: &Record) {
    cache.put_volume(&serde_json::to_vec(record).expect("numbers and words"));
}

/// Whether a user wants to work without the server.
pub(crate) fn is_offline(cache: &Cache) -> bool {
    record(cache).is_some_and(|record| record.offline)
}

/// Records whether a user wants to, for the next mount too.
pub(crate) fn keep_offline(cache: &Cache, offline: bool) {
    if let Some(record) = record(cache) {
        put(cache, &Record { offline, ..record });
    }
}

/// The limit on bytes per second that a user has set for the present mount, if one was set.
pub(crate) fn limit(cache: &Cache) -> Option<Option<u64>> {
    let set = record(cache)?.bytes_per_second?;
    Some(Some(set).filter(|rate| *rate > 0))
}

/// Records it, for the next process of the same mount; `None`: the mount's options say it.
pub(crate) fn keep_limit(cache: &Cache, set: Option<Option<u64>>) {
    if let Some(record) = record(cache) {
        put(cache, &Record { bytes_per_second: set.map(Option::unwrap_or_default), ..record });
    }
}

/// Keeps it. A cache that cannot is no worse than before.
pub(crate) fn keep(cache: &Cache, Remembered { limits, gives_leases }: &Remembered) {
    let record = Record {
        read_max: limits.read_max,
        write_max: limits.write_max,
        readdir_preferred: limits.readdir_preferred,
        file_size_max: limits.file_size_max,
        name_max: limits.name_max,
        time_delta_ns: limits.time_delta_ns,
        links: limits.links,
        symlinks: limits.symlinks,
        case_insensitive: limits.case_insensitive,
        opens: limits.opens,
        by_name: limits.by_name,
        gives_leases: *gives_leases,
        offline: is_offline(cache),
        bytes_per_second: record(cache).and_then(|record| record.bytes_per_second),
    };
    put(cache, &record);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_cache::Limits;
    use larder_io::RealClock;

    use super::*;

    #[test]
    fn what_is_kept_is_found_again() {
        let cache = Cache::in_memory(Arc::new(RealClock), Limits::in_memory()).unwrap();
        assert!(of(&cache).is_none());
        let limits = RemoteLimits {
            read_max: 1,
            write_max: 2,
            readdir_preferred: 3,
            file_size_max: u64::MAX,
            name_max: 5,
            time_delta_ns: 6,
            links: true,
            symlinks: false,
            case_insensitive: true,
            opens: true,
            by_name: true,
        };
        let known = Remembered { limits, gives_leases: true };
        keep(&cache, &known);
        assert_eq!(format!("{:?}", of(&cache).unwrap()), format!("{known:?}"));
        keep_offline(&cache, true);
        keep(&cache, &known);
        assert!(is_offline(&cache), "as long as nobody wants otherwise");
        keep_offline(&cache, false);
        assert!(!is_offline(&cache) && of(&cache).is_some());
        assert_eq!(limit(&cache), None);
        for set in [Some(None), Some(Some(7)), None] {
            keep_limit(&cache, set);
            keep(&cache, &known);
            assert_eq!(limit(&cache), set);
        }
        cache.put_volume(b"something else");
        assert!(of(&cache).is_none());
    }
}
