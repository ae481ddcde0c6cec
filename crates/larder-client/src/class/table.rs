//! The classes that were set for single files and directories.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use larder_cache::codec::{Reader, Writer};
use larder_cache::{Cache, FileNo};
use larder_vfs::{Error, Ino, Result};

use crate::journal::Record;

/// Most files and directories that have a class of their own: all of them are in memory.
const SET_MAX: usize = 65_536;

/// Directories above a file; a longer path is taken for a cycle.
const DEPTH_MAX: usize = 256;

/// The name of a class, as the cache keeps it for a file or directory.
#[derive(Debug, PartialEq, Eq)]
struct ClassRecord(String);

impl Record for ClassRecord {
    const FORMAT: u8 = 1;

    fn put(&self, out: &mut Writer) {
        out.raw(self.0.as_bytes());
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<ClassRecord> {
        let name = input.rest();
        if format != ClassRecord::FORMAT {
            return None;
        }
        String::from_utf8(name.to_vec()).ok().map(ClassRecord)
    }
}

/// The classes that were set, in memory. A record of the cache follows each change
/// ([`SetClasses::keep`]).
#[derive(Debug, Default)]
pub(crate) struct SetClasses(RwLock<HashMap<Ino, String>>);

impl SetClasses {
    /// Reads the records of the cache. A record that does not decode counts as missing.
    pub(crate) fn read(cache: &Cache) -> SetClasses {
        let decode = |(no, record): (FileNo, Vec<u8>)| {
            ClassRecord::decode(&record).map(|ClassRecord(name)| (Ino(no.0), name))
        };
        let set = cache.classes().into_iter().filter_map(decode).collect();
        SetClasses(RwLock::new(set))
    }

    /// Whether none was ever set, or all were taken back.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The class that was set for this file or directory itself.
    pub(super) fn of(&self, ino: Ino) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned()
    }

    /// The nearest directory above a file for which a class was set, as far as the index knows
    /// where the file is.
    pub(super) fn above(&self, cache: &Cache, ino: Ino) -> Option<(Ino, String)> {
        if self.is_empty() {
            return None;
        }
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            let parent = crate::parent_in_record(&cache.node(FileNo(at.0))?)?;
            at = Ino(parent.0);
            if let Some(name) = self.of(at) {
                return Some((at, name));
            }
        }
        None
    }

    /// Sets a class, or removes it. Returns the class that was set before.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the table is full.
    pub(super) fn set(&self, ino: Ino, name: Option<String>) -> Result<Option<String>> {
        let mut set = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match name {
            Some(_) if set.len() >= SET_MAX && !set.contains_key(&ino) => Err(Error::NoSpace),
            Some(name) => Ok(set.insert(ino, name)),
            None => Ok(set.remove(&ino)),
        }
    }

    /// Records what is set for this file or directory: durable on return. Waits for the disk.
    ///
    /// # Errors
    /// [`Error::Io`] if the cache has failed.
    pub(super) fn keep(&self, cache: &Cache, ino: Ino) -> Result<()> {
        let record = self.of(ino).map(|name| ClassRecord(name).encode());
        cache.put_class(FileNo(ino.0), record.as_deref());
        cache.checkpoint().map_err(|error| {
            tracing::error!(ino = ino.0, %error, "the class is not on record");
            Error::Io
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_cache::Limits;
    use larder_io::SimClock;

    use super::*;

    fn cache() -> Cache {
        Cache::in_memory(Arc::new(SimClock::new()), Limits::default()).unwrap()
    }

    #[test]
    fn what_was_set_is_on_record() {
        let cache = cache();
        let set = SetClasses::read(&cache);
        assert!(set.is_empty());
        let (file, other) = (Ino(7), Ino(8));
        assert_eq!(set.set(file, Some("critical".into())), Ok(None));
        assert_eq!(set.set(other, Some("edited".into())), Ok(None));
        assert!(SetClasses::read(&cache).is_empty(), "not yet");
        set.keep(&cache, file).unwrap();
        set.keep(&cache, other).unwrap();
        assert_eq!(set.set(other, None), Ok(Some("edited".into())));
        set.keep(&cache, other).unwrap();
        cache.put_class(FileNo(9), Some(b"\x02later format"));
        cache.put_class(FileNo(10), Some(b""));
        cache.put_class(FileNo(11), Some(b"\x01\xff no text"));
        let read = SetClasses::read(&cache);
        assert_eq!(read.of(file).as_deref(), Some("critical"));
        let others = [other, Ino(9), Ino(10), Ino(11)];
        assert!(others.into_iter().all(|ino| read.of(ino).is_none()));
        cache.drop_node(FileNo(7));
        assert_eq!(SetClasses::read(&cache).of(file), None, "it goes with its file");
    }

    /// The bytes of `docs/formats/cache.md`.
    #[test]
    fn a_class_record_is_its_format_and_its_name() {
        let record = ClassRecord("edited".into());
        assert_eq!(record.encode(), b"\x01edited");
        assert_eq!(ClassRecord::decode(b"\x01edited"), Some(record));
        assert_eq!(ClassRecord::decode(b"\x02edited"), None);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let set = SetClasses::default();
        for no in 0..SET_MAX as u64 {
            set.set(Ino(no), Some("a".into())).unwrap();
        }
        assert_eq!(set.set(Ino(SET_MAX as u64), Some("a".into())), Err(Error::NoSpace));
        assert_eq!(set.set(Ino(0), Some("b".into())), Ok(Some("a".into())), "it has its place");
        assert_eq!(set.set(Ino(1), None), Ok(Some("a".into())));
        assert_eq!(set.set(Ino(SET_MAX as u64), Some("a".into())), Ok(None));
    }
}
