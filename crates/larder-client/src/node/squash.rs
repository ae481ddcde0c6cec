//! Whether the server squashes root: makes user 0 nobody. Judged by what it lets user 0 do.

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

    /// Learns from the server's judgement of user 0 whether it squashes root: it does not if root
    /// may do what only user 0 being user 0 explains. An export may begin to squash root,
    /// so the first judgement against user 0 counts, and not the first one at all.
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
