//! The server's verdicts on one file that are still valid.

use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Access, Cred};

use super::state::State;
use super::verdicts::{Rights, by_mode, searchable_by_all};

/// For this long after a directory's timeout, a call may be in flight that walked through the
/// directory before.
const WALK_MAX: Duration = Duration::from_secs(10);

impl State {
    /// Records the server's decision on all rights of `cred`, requested at `asked`.
    pub(crate) fn set_rights(&mut self, cred: &Cred, granted: Access, asked: Monotonic) {
        let by_mode = by_mode(&self.known().attr, cred, true);
        let is_stricter = by_mode.contains(Access::LOOKUP) && !granted.contains(Access::LOOKUP);
        self.rights_mut().judged(cred, (granted, asked), is_stricter);
    }

    /// The server has looked a name up in the directory for `cred`, requested at `asked`.
    pub(crate) fn set_searched(&mut self, cred: &Cred, asked: Monotonic) {
        if self.is_directory() {
            self.rights_mut().searched(cred, asked);
        }
    }

    /// The server's decisions on a directory, to be kept when its node leaves memory. For files the
    /// server is asked at each open in any case.
    pub(super) fn rights_to_keep(&mut self) -> Option<Rights> {
        self.is_directory().then(|| std::mem::take(self.rights_mut()))
    }

    /// Which of the rights in `wanted` the server granted to `cred`; `None` if it did not decide
    /// that, or too long ago.
    pub(crate) fn rights_of(&self, cred: &Cred, wanted: Access, now: Monotonic) -> Option<Access> {
        self.rights().of(cred, wanted, |asked| self.counts(asked, now, Duration::ZERO))
    }

    /// The same, however long ago it was: for a server that is away.
    pub(crate) fn last_rights_of(&self, cred: &Cred, wanted: Access) -> Option<Access> {
        self.rights().of(cred, wanted, |_| true)
    }

    /// Forgets decisions that are too old, before a lease would make them valid again.
    pub(crate) fn forget_old_rights(&mut self, now: Monotonic) {
        let ttl = self.known().ttl;
        self.rights_mut().forget(|asked| now.since(asked) >= ttl);
    }

    fn counts(&self, asked: Monotonic, now: Monotonic, grace: Duration) -> bool {
        self.is_vouched_for() || now.since(asked) < self.known().ttl.saturating_add(grace)
    }

    /// Whether every user may search the directory, as far as we know: then the kernel need not ask
    /// us.
    pub(crate) fn searchable_by_all(&self) -> bool {
        searchable_by_all(&self.known().attr) && !self.rights().is_stricter()
    }
}

/// Whether a user may have walked through a directory by names that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// The user may have, and the server allows it.
    Granted,
    /// He may have; the server did not say yet, or denied it.
    Unknown,
    /// The user cannot have: the kernel's names in the directory are too old, or the kernel itself
    /// denies the search. The caller has a working directory or a mount below it.
    Impossible,
}

impl State {
    /// Whether `cred` may have walked through the directory before `now`.
    pub(super) fn walk(&self, cred: &Cred, session: u64, now: Monotonic) -> Walk {
        let held =
            self.known().session == session && self.counts(self.known().asked, now, WALK_MAX);
        if !held || !by_mode(&self.known().attr, cred, true).contains(Access::LOOKUP) {
            return Walk::Impossible;
        }
        let counts = |asked| self.counts(asked, now, WALK_MAX);
        match self.rights().of(cred, Access::LOOKUP, counts) {
            Some(Access::LOOKUP) => Walk::Granted,
            _ => Walk::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdicts::Departed;
    use super::*;
    use larder_vfs::{Attr, Handle, Ino, Kind, Time};

    use crate::fixtures::file_of;
    use crate::journal::Known;

    fn file(mode: u32) -> Attr {
        Attr { mode, uid: 10, gid: 20, ..file_of(Time::default()) }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    /// A directory that was described at 10 s, for 30 s.
    fn directory(mode: u32) -> State {
        let attr = Attr { kind: Kind::Directory, ..file(mode) };
        let known = Known::described(attr, 1, at(10), Duration::from_secs(30));
        State::new(Handle::new(b"d"), known)
    }

    #[test]
    fn a_verdict_is_of_one_user_and_lives_as_long_as_attributes() {
        let mut state = directory(0o755);
        let (ann, bob) = (Cred::new(1, 1, &[5]), Cred::new(1, 1, &[]));
        state.set_rights(&ann, Access::ALL, at(10));
        assert_eq!(state.rights_of(&ann, Access::READ, at(39)), Some(Access::READ));
        assert_eq!(state.rights_of(&bob, Access::READ, at(39)), None);
        assert_eq!(state.rights_of(&ann, Access::READ, at(40)), None);
        // A later description, requested by another user, says nothing about her rights.
        state.known_mut().asked = at(39);
        assert_eq!(state.rights_of(&ann, Access::READ, at(41)), None);
        assert_eq!(state.last_rights_of(&ann, Access::READ), Some(Access::READ));
        // That she found a name later says nothing about her other rights.
        state.set_searched(&ann, at(41));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(42)), Some(Access::LOOKUP));
        assert_eq!(state.rights_of(&ann, Access::READ, at(42)), None);
        state.rights_mut().clear();
        assert_eq!(state.last_rights_of(&ann, Access::LOOKUP), None);
    }

    #[test]
    fn an_old_verdict_is_not_brought_back_by_a_lease() {
        let (mut state, ann) = (directory(0o755), Cred::new(1, 1, &[]));
        state.set_rights(&ann, Access::ALL, at(10));
        state.forget_old_rights(at(50));
        assert_eq!(state.last_rights_of(&ann, Access::ALL), None);
    }

    #[test]
    fn verdicts_on_directories_outlive_the_memory_of_them_within_a_bound() {
        let (mut departed, ann) = (Departed::default(), Cred::new(1, 1, &[]));
        let judged = |kind| {
            let mut state = directory(0o755);
            state.known_mut().attr.kind = kind;
            state.set_rights(&ann, Access::READ, at(10));
            state
        };
        let is_known = |departed: &mut Departed, ino| {
            let mut state = directory(0o755);
            if let Some(rights) = departed.give_back(Ino(ino)) {
                *state.rights_mut() = rights;
            }
            let said = state.rights_of(&ann, Access::READ, at(12)) == Some(Access::READ);
            assert_eq!(
                said,
                !state.searchable_by_all(),
                "that the server is stricter is known too"
            );
            said
        };
        let keep = |departed: &mut Departed, ino, mut state: State| {
            if let Some(rights) = state.rights_to_keep() {
                departed.keep(Ino(ino), rights);
            }
        };
        keep(&mut departed, 7, judged(Kind::Directory));
        keep(&mut departed, 8, judged(Kind::File));
        assert!(is_known(&mut departed, 7) && !is_known(&mut departed, 8));
        assert!(!is_known(&mut departed, 7), "it is the directory's own again");
        let count = 5 * Departed::DIRECTORIES_MAX as u64;
        (0..count).for_each(|ino| keep(&mut departed, ino, judged(Kind::Directory)));
        let known: Vec<_> = (0..count).filter(|ino| is_known(&mut departed, *ino)).collect();
        assert!(known.len() >= Departed::DIRECTORIES_MAX);
        assert!(known.len() <= 2 * Departed::DIRECTORIES_MAX);
        assert!(known.contains(&(count - 1)), "the last ones are kept");
    }

    /// A denied search after a successful one counts, and the other way round.
    #[test]
    fn the_later_verdict_about_searching_counts() {
        let (mut state, ann) = (directory(0o755), Cred::new(1, 1, &[]));
        state.set_searched(&ann, at(10));
        state.set_rights(&ann, Access::READ, at(11));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(12)), Some(Access::NONE));
        assert!(!state.searchable_by_all(), "an access control list is at work");
        state.set_searched(&ann, at(12));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(12)), Some(Access::LOOKUP));
    }

    /// (mode, user, time, what is known of the walk)
    #[test]
    fn which_users_can_have_walked_through_a_directory() {
        let (ann, bob, root) = (Cred::new(1, 1, &[]), Cred::new(2, 2, &[]), Cred::root());
        for (mode, who, when, expected) in [
            (0o755, &ann, 12, Walk::Granted),
            (0o755, &bob, 12, Walk::Unknown),
            (0o755, &bob, 49, Walk::Unknown),
            (0o755, &bob, 50, Walk::Impossible),
            (0o755, &ann, 49, Walk::Granted),
            (0o700, &bob, 12, Walk::Impossible),
            (0o700, &root, 12, Walk::Unknown),
        ] {
            let mut state = directory(mode);
            state.set_searched(&ann, at(10));
            assert_eq!(state.walk(who, 1, at(when)), expected, "{mode:o} {who:?} {when}");
            assert_eq!(state.walk(who, 2, at(when)), Walk::Impossible, "of an earlier run");
        }
    }
}
