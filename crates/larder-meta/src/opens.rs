//! Which files are open, in which session.
//!
//! In memory only: a client opens its files again after a restart of the server. Until it has had
//! the time to do so, any file may be open: the *grace period* (RFC 8881, 8.4.2, which has it for
//! locks). Clients need do nothing in it, and no call waits for it: a call that removes a file then
//! is answered, and the file is removed when the time is over, if no client has opened it again by
//! then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use larder_wire::meta::words::{FileId, Mode, OpenId, SessionId};

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) file: FileId,
    pub(crate) mode: Mode,
}

/// All open files.
#[derive(Debug)]
pub(crate) struct Opens {
    open: HashMap<(SessionId, OpenId), Open>,
    /// How often each file is open.
    counts: HashMap<FileId, u32>,
    /// How often each file is open for writing in each session.
    writers: HashMap<(SessionId, FileId), u32>,
    next: u64,
    /// Clients from before the server's start may not have opened their files again.
    are_missing: bool,
}

impl Opens {
    /// No open files. `epoch`: different in each life of the volume's server, so that an open of an
    /// earlier one is not known.
    pub(crate) fn new(epoch: u64) -> Opens {
        Opens {
            open: HashMap::new(),
            counts: HashMap::new(),
            writers: HashMap::new(),
            next: epoch << 32 | 1,
            are_missing: false,
        }
    }

    /// There is a client from before the server's start: any file may be open.
    pub(crate) fn expect_claims(&mut self) {
        self.are_missing = true;
    }

    /// The time is over in which clients open their files again.
    pub(crate) fn end_grace(&mut self) {
        self.are_missing = false;
    }

    /// Opens a file.
    pub(crate) fn open(&mut self, session: SessionId, file: FileId, mode: Mode) -> OpenId {
        let id = OpenId(self.next);
        self.next += 1;
        self.open.insert((session, id), Open { file, mode });
        *self.counts.entry(file).or_default() += 1;
        if mode.writes() {
            *self.writers.entry((session, file)).or_default() += 1;
        }
        id
    }

    /// An open file.
    pub(crate) fn get(&self, session: SessionId, id: OpenId) -> Option<Open> {
        self.open.get(&(session, id)).copied()
    }

    /// Closes an open file.
    pub(crate) fn close(&mut self, session: SessionId, id: OpenId) -> Option<Open> {
        let open = self.open.remove(&(session, id))?;
        take_one(&mut self.counts, open.file);
        if open.mode.writes() {
            take_one(&mut self.writers, (session, open.file));
        }
        Some(open)
    }

    /// Whether any client has a file open, as far as is known, or may have it open without having
    /// reported it yet.
    pub(crate) fn may_be_open(&self, file: FileId) -> bool {
        self.are_missing || self.is_open(file)
    }

    /// Whether a client is known to have a file open.
    pub(crate) fn is_open(&self, file: FileId) -> bool {
        self.counts.contains_key(&file)
    }

    /// Whether a session has a file open for writing.
    pub(crate) fn is_written(&self, session: SessionId, file: FileId) -> bool {
        self.writers.contains_key(&(session, file))
    }

    /// The open files of a session.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<OpenId> {
        self.open.keys().filter(|(of, _)| *of == session).map(|(_, id)| *id).collect()
    }
}

fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_open_until_its_last_close() {
        let (one, two, file) = (SessionId([1; 16]), SessionId([2; 16]), FileId(7));
        let mut opens = Opens::new(3);
        let first = opens.open(one, file, Mode::Read);
        let second = opens.open(two, file, Mode::ReadWrite);
        assert_ne!(first, second);
        assert!(opens.is_written(two, file) && !opens.is_written(one, file));
        assert_eq!(opens.close(two, first), None, "another session's");
        assert_eq!(opens.close(one, first), Some(Open { file, mode: Mode::Read }));
        assert_eq!(opens.close(one, first), None, "closed already");
        assert!(opens.may_be_open(file));
        assert_eq!(opens.of_session(two), [second]);
        assert!(opens.close(two, second).is_some());
        assert!(!opens.may_be_open(file));
    }

    #[test]
    fn open_files_of_another_life_are_not_known() {
        let (session, file) = (SessionId([1; 16]), FileId(7));
        let old = Opens::new(3).open(session, file, Mode::Read);
        let mut opens = Opens::new(4);
        opens.open(session, file, Mode::Read);
        assert_eq!(opens.get(session, old), None);
    }
}
