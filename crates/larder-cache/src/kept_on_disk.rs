//! Of which files the disk may have a record of kept changes, also when the index has failed.

use std::collections::HashMap;

use crate::FileNo;
use crate::marks::Mark;

/// Fewest records at which those whose removal is durable are forgotten.
const FORGET_MIN: usize = 1024;

/// The records.
#[derive(Debug)]
pub(crate) struct KeptOnDisk {
    of: HashMap<FileNo, OnDisk>,
    /// With so many, those whose removal is durable are forgotten. Twice as many as were left
    /// then: each removal costs the same, however many there are.
    forget_at: usize,
}

#[derive(Debug)]
struct OnDisk {
    /// Of the file.
    key: Option<Vec<u8>>,
    /// After its last change by this run.
    put: Option<Mark>,
    /// After its removal, if it was removed.
    gone: Option<Mark>,
}

impl Default for KeptOnDisk {
    fn default() -> KeptOnDisk {
        KeptOnDisk { of: HashMap::new(), forget_at: FORGET_MIN }
    }
}

impl KeptOnDisk {
    /// A file with this key has a record, which this run has changed at `put`.
    pub(crate) fn put(&mut self, no: FileNo, key: Option<Vec<u8>>, put: Option<Mark>) {
        self.of.insert(no, OnDisk { key, put, gone: None });
    }

    /// After the record was put, if this run did, and it was not removed.
    pub(crate) fn mark(&self, no: FileNo) -> Option<Mark> {
        self.of.get(&no).filter(|on_disk| on_disk.gone.is_none())?.put
    }

    /// The record was removed at `gone`.
    pub(crate) fn remove(&mut self, no: FileNo, gone: Mark, is_durable: impl Fn(Mark) -> bool) {
        if self.of.len() >= self.forget_at {
            self.of.retain(|_, on_disk| !on_disk.gone.is_some_and(&is_durable));
            self.forget_at = (2 * self.of.len()).max(FORGET_MIN);
        }
        if let Some(on_disk) = self.of.get_mut(&no) {
            on_disk.gone = Some(gone);
        }
    }

    /// The removal of the record of this file, or else of one with the same key; `None` if there is
    /// no record.
    pub(crate) fn removal(
        &self,
        no: FileNo,
        key: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Option<Mark>> {
        let same = || {
            let key = key()?;
            self.of.values().find(|on_disk| on_disk.key.as_deref() == Some(&*key))
        };
        self.of.get(&no).or_else(same).map(|on_disk| on_disk.gone)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::marks::Marks;

    #[test]
    fn removals_look_at_few_records_however_many_there_are() {
        const COUNT: u64 = 100_000;
        let (mut kept, marks, looked) = (KeptOnDisk::default(), Marks::default(), Cell::new(0));
        for no in 0..COUNT {
            kept.put(FileNo(no), None, Some(marks.now()));
        }
        for no in 0..COUNT {
            marks.put();
            let is_durable = |mark| {
                looked.set(looked.get() + 1);
                marks.has_reached(mark)
            };
            kept.remove(FileNo(no), marks.now(), is_durable);
            if no % 1000 == 0 {
                marks.reach(marks.now());
            }
        }
        assert!(looked.get() < 3 * COUNT, "{} looks", looked.get());
    }

    #[test]
    fn a_record_is_forgotten_once_its_removal_is_durable() {
        let (mut kept, marks) = (KeptOnDisk::default(), Marks::default());
        let start = marks.now();
        let last = FORGET_MIN as u64 - 1;
        let mut put = |no| kept.put(FileNo(no), Some(vec![no as u8]), Some(start));
        (0..last).for_each(&mut put);
        marks.put();
        let (early, is_durable) = (marks.now(), |mark| marks.has_reached(mark));
        kept.remove(FileNo(0), early, is_durable);
        marks.reach(early);
        kept.put(FileNo(last), None, Some(start));
        marks.put();
        let late = marks.now();
        kept.remove(FileNo(1), late, is_durable);
        assert_eq!(kept.removal(FileNo(0), || None), None, "nothing comes back");
        assert_eq!(kept.removal(FileNo(1), || None), Some(Some(late)));
        assert_eq!((kept.mark(FileNo(1)), kept.mark(FileNo(2))), (None, Some(start)));
        let by_key = |key| kept.removal(FileNo(last + 1), || key);
        assert_eq!((by_key(Some(vec![2])), by_key(None)), (Some(None), None));
    }
}
