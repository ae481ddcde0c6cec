//! Sessions that may have written over committed blocks of a file without committing.
//!
//! With one copy, committed blocks are written in place: before the commit, and so under the old
//! data version. Clients that read meanwhile may hold new bytes, and others old ones, of one
//! version. The commit ends that with a new version. If the writer will never commit, the file gets
//! a new version then, after the writer's capabilities are revoked and the disks have made durable
//! what it wrote.
//!
//! A *mark* stands for a session that was granted to write in place. It is stored before the grant
//! is returned, so it survives the server. A commit after which the session has nothing else of the
//! file in flight makes it clean in memory; the stored mark stays for some time, because the next
//! write needs it again, so alternating writes and syncs cost no more commits. A server that starts
//! treats all stored marks as not clean: at worst a client reads a file again.

use std::collections::BTreeMap;

use larder_wire::meta::words::{FileId, SessionId};

/// A file, and a session that was granted to write committed blocks of it.
pub(crate) type Mark = (FileId, SessionId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may have written what it has not committed.
    Writing,
    /// It has not, and does not use any grant at present.
    Clean,
    /// It may have, and will not commit it.
    Left,
}

/// All marks, as they are on record.
#[derive(Debug, Default)]
pub(crate) struct InPlace(BTreeMap<Mark, State>);

impl InPlace {
    /// A mark was stored before the server's start; `is_there` says whether its session exists.
    pub(crate) fn load(&mut self, mark: Mark, is_there: bool) {
        self.0.insert(mark, if is_there { State::Writing } else { State::Left });
    }

    /// A session is granted to write in place. Returns whether a mark must be stored.
    pub(crate) fn granted(&mut self, mark: Mark) -> bool {
        self.0.insert(mark, State::Writing).is_none()
    }

    /// A session has committed all that it has written of a file.
    pub(crate) fn committed(&mut self, mark: Mark) {
        if let Some(state) = self.0.get_mut(&mark) {
            *state = State::Clean;
        }
    }

    /// A session will not commit what it may have written of a file. Returns whether there is
    /// anything.
    pub(crate) fn left(&mut self, mark: Mark) -> bool {
        let writing = self.0.get_mut(&mark).filter(|state| **state == State::Writing);
        writing.map(|state| *state = State::Left).is_some()
    }

    /// The marks of a session that may have written what it has not committed.
    pub(crate) fn writing(&self, session: SessionId) -> Vec<Mark> {
        let is_meant =
            |((_, of), state): &(&Mark, &State)| *of == session && **state == State::Writing;
        self.0.iter().filter(is_meant).map(|(mark, _)| *mark).collect()
    }

    /// There is no such file any more.
    pub(crate) fn gone(&mut self, file: FileId) {
        let of_file = (file, SessionId([0; 16]))..=(file, SessionId([0xff; 16]));
        self.0.range_mut(of_file).for_each(|(_, state)| *state = State::Clean);
    }

    /// Whether a session was granted to write committed blocks of a file, and is not known to have
    /// ended that.
    pub(crate) fn has(&self, mark: Mark) -> bool {
        self.0.contains_key(&mark)
    }

    /// Whether bytes of a file may be others than its data version says: some session may have
    /// written what it has not committed.
    pub(crate) fn is_unsettled(&self, file: FileId) -> bool {
        let of_file = (file, SessionId([0; 16]))..=(file, SessionId([0xff; 16]));
        self.0.range(of_file).any(|(_, state)| *state != State::Clean)
    }

    /// Whether a session may have written something of a file that it will not commit.
    pub(crate) fn is_left(&self, mark: Mark) -> bool {
        self.0.get(&mark) == Some(&State::Left)
    }

    /// All marks because of which the file must get a new version.
    pub(crate) fn all_left(&self) -> Vec<Mark> {
        let left = self.0.iter().filter(|(_, state)| **state == State::Left);
        left.map(|(mark, _)| *mark).collect()
    }

    /// The file has got a new version. Returns whether the stored mark is removed: its session may
    /// have been granted to write again.
    pub(crate) fn mended(&mut self, mark: Mark) -> bool {
        self.is_left(mark) && self.0.remove(&mark).is_some()
    }

    /// Forgets all marks that are clean. Returns the stored marks to remove.
    pub(crate) fn forget_clean(&mut self) -> Vec<Mark> {
        self.0.extract_if(.., |_, state| *state == State::Clean).map(|(mark, _)| mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([1; 16]);
    const MARK: Mark = (FileId(7), SESSION);

    #[test]
    fn a_mark_is_on_record_while_something_may_be_uncommitted() {
        let mut all = InPlace::default();
        assert!(all.granted(MARK) && !all.granted(MARK), "once");
        assert_eq!(all.writing(SESSION), [MARK]);
        assert_eq!(all.writing(SessionId([2; 16])), []);
        assert_eq!(all.forget_clean(), []);
        all.committed(MARK);
        assert_eq!(all.writing(SESSION), []);
        assert!(!all.left(MARK), "nothing is left of what is committed");
        assert!(!all.granted(MARK), "it is on record still");
        all.committed(MARK);
        assert_eq!(all.forget_clean(), [MARK]);
        assert!(all.granted(MARK));
    }

    #[test]
    fn what_is_left_is_mended_unless_it_is_written_again() {
        let mut all = InPlace::default();
        all.load(MARK, false);
        assert_eq!(all.all_left(), [MARK]);
        assert!(all.mended(MARK) && !all.mended(MARK));
        all.load(MARK, true);
        assert!(all.all_left().is_empty() && all.left(MARK));
        assert!(!all.granted(MARK), "it writes again meanwhile");
        assert!(!all.mended(MARK), "so it may leave something again");
        all.gone(MARK.0);
        assert_eq!(all.forget_clean(), [MARK]);
    }
}
