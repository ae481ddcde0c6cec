//! Paths of files, as far as the index knows them.

use std::path::PathBuf;

use larder_cache::{Cache, FileNo};
use larder_vfs::Ino;

use crate::journal::{Known, Record};

/// Deepest path that is reported.
const DEPTH_MAX: usize = 256;

/// The directory in which a file was last seen, from its record in the cache: for
/// [`larder_cache::Config::parent_in_record`].
pub fn parent_in_record(record: &[u8]) -> Option<FileNo> {
    Known::decode(record)?.hint.map(|(parent, _)| FileNo(parent.0))
}

/// Where a file was last seen below the root of its mount; `None` if that is not known. Other
/// clients may have renamed it since.
pub fn last_path(cache: &Cache, file: FileNo) -> Option<PathBuf> {
    let (mut names, mut at) = (Vec::new(), Ino(file.0));
    while at != Ino::ROOT && names.len() < DEPTH_MAX {
        let known = Known::decode(&cache.node(FileNo(at.0))?)?;
        let (parent, name) = known.hint?;
        names.push(name);
        at = parent;
    }
    (at == Ino::ROOT).then(|| names.iter().rev().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use larder_cache::Limits;
    use larder_io::{Monotonic, SimClock};
    use larder_vfs::Time;

    use super::*;
    use crate::fixtures::file_of;

    fn put(cache: &Cache, no: u64, hint: Option<(u64, &str)>) {
        let begun = Monotonic::from_nanos(0);
        let known = Known::described(file_of(Time::default()), 1, begun, Duration::ZERO);
        let hint = hint.map(|(parent, name)| (Ino(parent), name.into()));
        cache.put_node(FileNo(no), &Known { hint, ..known }.encode());
    }

    #[test]
    fn a_path_leads_from_the_root_to_where_a_file_was_last_seen() {
        let cache = Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap();
        put(&cache, 1, None);
        put(&cache, 2, Some((1, "a")));
        put(&cache, 3, Some((2, "b")));
        let path = |no| last_path(&cache, FileNo(no));
        assert_eq!(path(1), Some(PathBuf::new()));
        assert_eq!((path(2), path(3)), (Some("a".into()), Some("a/b".into())));
        assert_eq!(path(9), None, "it is not known");
        put(&cache, 4, Some((9, "c")));
        assert_eq!(path(4), None, "nor is where it lies");
        put(&cache, 5, None);
        assert_eq!(path(5), None, "it was found by its handle alone");
        // Two directories of which each was last seen inside the other, because they were
        // exchanged.
        put(&cache, 6, Some((7, "d")));
        put(&cache, 7, Some((6, "e")));
        assert_eq!(path(6), None, "it goes round");
    }

    #[test]
    fn paths_have_an_end() {
        let cache = Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap();
        put(&cache, 1, None);
        for no in 2..DEPTH_MAX as u64 + 3 {
            put(&cache, no, Some((no - 1, "d")));
        }
        let path = |no| last_path(&cache, FileNo(no));
        let longest = DEPTH_MAX as u64 + 1;
        assert_eq!(path(longest).map(|path| path.iter().count()), Some(DEPTH_MAX));
        assert_eq!(path(longest + 1), None);
    }

    #[test]
    fn a_record_tells_its_directory() {
        let cache = Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap();
        put(&cache, 2, Some((1, "a")));
        put(&cache, 3, None);
        let parent = |no| parent_in_record(&cache.node(FileNo(no)).unwrap());
        assert_eq!((parent(2), parent(3)), (Some(FileNo::ROOT), None));
        assert_eq!(parent_in_record(b"damaged"), None);
    }
}
