//! Within which time files are to be in the archive, as the client said before it wrote them.
//!
//! A write takes the time with it, and its commit says it. What was said long before the last
//! writes is forgotten: the client says it again before the next one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use larder_wire::meta::words::FileId;

/// So many files are remembered at least: far more than are written at a time.
const FILES_MIN: usize = 8192;

/// The times of the last files: those of one generation, and of the one before.
#[derive(Debug, Default)]
pub(super) struct Archived(Mutex<[HashMap<FileId, Duration>; 2]>);

impl Archived {
    /// The client has said so.
    pub(super) fn set(&self, file: FileId, within: Duration) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [now, before] = &mut *generations;
        if now.len() >= FILES_MIN && !now.contains_key(&file) {
            *before = std::mem::take(now);
        }
        now.insert(file, within);
    }

    /// Within which time what is written now is to be there.
    pub(super) fn within(&self, file: FileId) -> Option<Duration> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().find_map(|one| one.get(&file)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_files_are_remembered_and_not_all() {
        let archived = Archived::default();
        let second = Duration::from_secs;
        for file in 0..100_000 {
            archived.set(FileId(file), second(file));
            archived.set(FileId(file), second(file + 1));
            let since = file.saturating_sub(FILES_MIN as u64 - 1);
            assert_eq!(archived.within(FileId(since)), Some(second(since + 1)));
        }
        let kept: usize = archived.0.lock().unwrap().iter().map(HashMap::len).sum();
        assert!(kept <= 2 * FILES_MIN);
        assert_eq!(archived.within(FileId(0)), None);
    }
}
