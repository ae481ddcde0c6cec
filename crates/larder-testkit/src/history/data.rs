//! Bytes: close-to-open, and what is durable stays.
//!
//! A *place* is a few bytes of a file that are written and read together; each write has a value of
//! its own, and a place has the value 0 at first. A client shows its own processes what one of them
//! has written at once, and all others what is *public*: what was closed, synced, or unlocked by
//! the process that had locked it. A reader sees what was public when it opened the file (or locked
//! it), or something later; never what one of those had overwritten. Of writes at the same time any
//! may be the last one.
//!
//! A client that has unsent writes of a file continues with its own copy: a process that opens the
//! file there sees what was public when the file was opened for the first of those writes. This
//! does not hold under a lock.

use std::collections::BTreeMap;

/// A file and the number of a place in it.
pub type Place = (u64, u32);

/// A write of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The place that was written.
    pub place: Place,
    /// The value written. It is unique among the writes of a history, and never 0.
    pub value: u64,
    /// The life of the client that wrote.
    pub client: u64,
    /// When the file's open was asked for, in ticks.
    pub opened: u64,
    /// When write(2) was called.
    pub made: u64,
    /// When write(2) had returned; `None`: it did not.
    pub written: Option<u64>,
    /// Since when the value is public and durable; `None`: perhaps never.
    pub public: Option<u64>,
}

/// A read of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The place that was read.
    pub place: Place,
    /// The value that the read returned.
    pub value: u64,
    /// The life of the client that read.
    pub client: u64,
    /// When the file's open, or the lock on the place, was asked for.
    pub opened: u64,
    /// Whether the reader has locked the place.
    pub is_locked: bool,
    /// When read(2) was called.
    pub asked: u64,
    /// When read(2) returned.
    pub answered: u64,
}

fn is_before(one: Option<u64>, other: u64) -> bool {
    one.is_some_and(|one| one < other)
}

impl Write {
    /// Whether this write had ended before `later` began, for every reader that sees this one.
    fn is_before(&self, later: &Write) -> bool {
        let is_own = self.client == later.client;
        is_before(self.public, later.made) || is_own && is_before(self.written, later.made)
    }

    /// Whether a reader must see this write, or a write that came after it.
    fn is_seen_by(&self, read: &Read) -> bool {
        let is_own = self.client == read.client;
        is_before(self.public, read.opened) || is_own && is_before(self.written, read.asked)
    }
}

impl Read {
    /// What was public at this tick must be seen: when the file was opened or, while the client has
    /// unsent writes, when it was opened for the earliest of them.
    fn since(&self, writes: &[Write]) -> u64 {
        let is_own = |write: &&Write| {
            write.client == self.client && write.place.0 == self.place.0 && !self.is_locked
        };
        let (mut since, mut until) = (self.opened, self.asked);
        loop {
            let own = writes.iter().filter(is_own);
            let mut unsent =
                own.filter(|write| write.made < until && !is_before(write.public, since));
            let Some(earlier) = unsent.find(|write| write.opened < since) else { return since };
            (since, until) = (earlier.opened, earlier.made);
        }
    }
}

/// Describes every read that returned a value which it must not see.
pub fn wrong(writes: &[Write], reads: &[Read]) -> Vec<String> {
    let mut by_place: BTreeMap<Place, Vec<Write>> = BTreeMap::new();
    for write in writes {
        by_place.entry(write.place).or_default().push(*write);
    }
    let none = Vec::new();
    let all = |place: &Place| by_place.get(place).unwrap_or(&none);
    let see = |read: &Read| Read { opened: read.since(writes), ..*read };
    reads.iter().map(see).filter_map(|read| wrong_read(all(&read.place), &read)).collect()
}

fn wrong_read(writes: &[Write], read: &Read) -> Option<String> {
    let mut seen = writes.iter().filter(|write| write.is_seen_by(read));
    if read.value == 0 {
        return seen.next().map(|write| format!("{read:?} saw nothing of {write:?}"));
    }
    let Some(source) = writes.iter().find(|write| write.value == read.value) else {
        return Some(format!("{read:?} saw what nobody wrote there"));
    };
    if source.made > read.answered {
        return Some(format!("{read:?} saw what was written later, {source:?}"));
    }
    let mut seen = seen.filter(|write| source.is_before(write));
    seen.next().map(|later| format!("{read:?} saw {source:?}, which {later:?} had overwritten"))
}

/// Describes every place about which the last reads disagree. Only reads that began after all
/// writes had ended count. A value that only one client sees, because it could not send it, does
/// not count.
pub fn disagree(writes: &[Write], last: &[Read]) -> Vec<String> {
    let is_unsent = |read: &&Read| {
        let own = writes.iter().find(|write| write.value == read.value);
        own.is_some_and(|write| write.client == read.client && write.public.is_none())
    };
    let mut first: BTreeMap<Place, &Read> = BTreeMap::new();
    let mut wrong = Vec::new();
    for read in last.iter().filter(|read| !is_unsent(read)) {
        let other = first.entry(read.place).or_insert(read);
        if other.value != read.value {
            wrong.push(format!("at the end {other:?}, and {read:?}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = (1, 0);

    /// A write by `client`: opened at one tick, written at the next, public at the one after.
    fn write(value: u64, client: u64, made: u64, public: Option<u64>) -> Write {
        let (opened, written) = (made, Some(made + 1));
        Write { place: PLACE, value, client, opened, made, written, public }
    }

    fn read(value: u64, client: u64, opened: u64) -> Read {
        let (asked, answered) = (opened + 1, opened + 2);
        Read { place: PLACE, value, client, opened, is_locked: false, asked, answered }
    }

    fn sees(writes: &[Write], client: u64, opened: u64) -> Vec<u64> {
        let sees = |value: &u64| wrong(writes, &[read(*value, client, opened)]).is_empty();
        (0..5).filter(sees).collect()
    }

    #[test]
    fn what_was_closed_is_seen_by_later_opens() {
        let writes = [write(1, 1, 10, Some(20))];
        assert_eq!(sees(&writes, 2, 5), [0]);
        assert_eq!(sees(&writes, 2, 15), [0, 1], "not before it is closed, or before");
        assert_eq!(sees(&writes, 1, 15), [1], "his own at once");
        assert_eq!(sees(&writes, 2, 21), [1]);
    }

    #[test]
    fn what_was_overwritten_is_not_seen_again() {
        let writes = [write(1, 1, 10, Some(20)), write(2, 2, 30, Some(40))];
        assert_eq!(sees(&writes, 3, 25), [1]);
        assert_eq!(sees(&writes, 3, 35), [1, 2]);
        assert_eq!(sees(&writes, 3, 41), [2]);
        assert_eq!(sees(&writes, 1, 41), [2]);
    }

    #[test]
    fn of_writes_at_the_same_time_any_may_be_the_last() {
        let writes = [write(1, 1, 10, Some(40)), write(2, 2, 20, Some(30))];
        assert_eq!(sees(&writes, 3, 50), [1, 2]);
        assert_eq!(sees(&writes, 3, 35), [1, 2]);
        let own = [write(1, 1, 10, Some(50)), write(2, 1, 20, Some(40))];
        assert_eq!(sees(&own, 3, 60), [2], "of one client the later one");
    }

    /// A client that dies may lose what it had not synced, and nothing else.
    #[test]
    fn what_was_synced_stays_when_its_writer_dies() {
        let writes = [write(1, 1, 10, Some(15)), write(2, 1, 20, None)];
        assert_eq!(sees(&writes, 2, 100), [1, 2]);
        assert_eq!(sees(&writes, 1, 100), [2], "as long as it lives it shows what it has");
        assert_eq!(sees(&[write(2, 1, 20, None)], 2, 100), [0, 2]);
    }

    /// Without a lock, a reader must see what was public when its file was opened for writing;
    /// under a lock, what is public now.
    #[test]
    fn a_client_with_unsent_writes_keeps_reading_its_own_version() {
        let elsewhere = Write { place: (1, 1), opened: 25, ..write(7, 3, 50, Some(100)) };
        let writes = [
            write(1, 1, 10, Some(20)),
            write(2, 2, 30, Some(40)),
            elsewhere,
            write(3, 1, 110, Some(120)),
        ];
        assert_eq!(sees(&writes, 3, 60), [1, 2]);
        assert_eq!(sees(&writes, 4, 60), [2], "client 1 alone");
        assert_eq!(sees(&writes, 3, 105), [2], "until client 1 has closed");
        let locked = |value| Read { is_locked: true, ..read(value, 3, 60) };
        assert!(!wrong(&writes, &[locked(1)]).is_empty());
        assert!(wrong(&writes, &[locked(2)]).is_empty());
    }

    #[test]
    fn a_value_that_was_never_written_there_is_wrong() {
        let elsewhere = Write { place: (1, 1), ..write(3, 1, 1, Some(2)) };
        assert_eq!(sees(&[elsewhere], 2, 10), [0]);
        let lost = Write { written: None, ..write(4, 1, 10, None) };
        assert_eq!(sees(&[lost], 1, 20), [0, 4]);
    }

    #[test]
    fn the_last_reads_agree() {
        let writes = [write(1, 1, 10, Some(20)), write(2, 2, 30, None)];
        let disagree = |last: &[Read]| disagree(&writes, last).len();
        assert_eq!(disagree(&[read(1, 1, 50), read(1, 2, 60)]), 0);
        assert_eq!(disagree(&[read(1, 1, 50), read(2, 3, 60)]), 1);
        assert_eq!(disagree(&[read(1, 1, 50), read(2, 2, 60)]), 0, "he could not send it");
    }
}
