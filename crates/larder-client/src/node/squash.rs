//! Whether the server squashes root, that is, treats user 0 as nobody. Derived from what it allows
//! user 0.

use std::sync::atomic::{AtomicU8, Ordering};

use larder_vfs::{Access, Attr, Cred};

use super::verdicts::by_mode;

/// What is known of how the server treats user 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootSquash {
    Unknown,
    No,
    Yes,
}

/// The judgement so far.
pub(crate) struct Squash(AtomicU8);

impl Default for Squash {
    fn default() -> Squash {
        Squash(AtomicU8::new(RootSquash::Unknown as u8))
    }
}

impl Squash {
    /// What is known.
    pub(crate) fn known(&self) -> RootSquash {
        match self.0.load(Ordering::Relaxed) {
            x if x == RootSquash::No as u8 => RootSquash::No,
            x if x == RootSquash::Yes as u8 => RootSquash::Yes,
            _ => RootSquash::Unknown,
        }
    }

    /// Learns from the server's decision on user 0 whether it squashes root: it does not if user 0
    /// is allowed what only the superuser may do. An export may begin to squash root, so the first
    /// decision against user 0 counts, even after decisions in its favour.
    pub(super) fn judge(&self, attr: &Attr, cred: &Cred, granted: Access) {
        if cred.uid != 0 || self.known() == RootSquash::Yes {
            return;
        }
        let nobody = Cred::new(u32::MAX - 1, u32::MAX - 1, &[]);
        let unprivileged = by_mode(attr, &nobody, false);
        let privileged = by_mode(attr, cred, true);
        let search = Access::LOOKUP | Access::READ;
        let telling = privileged & !unprivileged & search;
        if telling == Access::NONE {
            return;
        }
        let verdict = if granted & telling == telling { RootSquash::No } else { RootSquash::Yes };
        self.0.store(verdict as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::{Kind, Time};

    use super::*;
    use crate::fixtures::file_of;

    const ALL: Access = Access::READ;

    fn attr(kind: Kind, mode: u32, uid: u32) -> Attr {
        Attr { kind, mode, uid, gid: uid, ..file_of(Time::default()) }
    }

    /// Over all modes of a file and a directory of root and of another user: a right that every
    /// user has proves nothing; a right that only root has proves whether root is squashed.
    #[test]
    fn only_what_root_alone_may_do_tells_of_root() {
        for kind in [Kind::File, Kind::Directory] {
            for (mode, uid) in (0..0o1000).flat_map(|mode| [(mode, 0), (mode, 1000)]) {
                let attr = attr(kind, mode, uid);
                let others_read = mode & 0o4 != 0;
                let others_search = kind != Kind::Directory || mode & 0o1 != 0;
                let is_telling = !others_read || !others_search;
                for (granted, verdict) in [
                    (Access::NONE, RootSquash::Yes),
                    (by_mode(&attr, &Cred::root(), true), RootSquash::No),
                ] {
                    let squash = Squash::default();
                    squash.judge(&attr, &Cred::new(1000, 1000, &[]), granted);
                    assert_eq!(squash.known(), RootSquash::Unknown, "of another user");
                    squash.judge(&attr, &Cred::root(), granted);
                    let expected = if is_telling { verdict } else { RootSquash::Unknown };
                    assert_eq!(squash.known(), expected, "{kind:?} {mode:o} {uid}");
                }
            }
        }
    }

    /// An export may begin to squash root: over all sequences of decisions, the first one against
    /// root counts from then on.
    #[test]
    fn the_first_judgement_against_root_stays() {
        let private = attr(Kind::File, 0o600, 1000);
        for sequence in 0..1_u32 << 5 {
            let squash = Squash::default();
            let mut expected = RootSquash::Unknown;
            for step in 0..5 {
                let is_granted = sequence >> step & 1 == 1;
                squash.judge(&private, &Cred::root(), if is_granted { ALL } else { Access::NONE });
                expected = match (is_granted, expected) {
                    (true, RootSquash::Unknown | RootSquash::No) => RootSquash::No,
                    _ => RootSquash::Yes,
                };
                assert_eq!(squash.known(), expected, "{sequence:b} {step}");
            }
        }
    }
}
