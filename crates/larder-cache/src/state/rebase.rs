//! Local changes that stay while the file beneath them becomes another one.

use super::State;
use crate::kept_record::Keeping;

impl State {
    /// Only dirty bytes stay, and were written over this version. What is kept to be sent later
    /// stays over its own: it is not sent over another client's change.
    pub(crate) fn rebase(&mut self, version: &[u8]) {
        debug_assert!(!self.is_bypassed(), "the kernel has a whole file");
        self.presence.forget_clean(0..self.size());
        if self.keeping() == Keeping::Nothing {
            self.version = Some(version.to_vec());
        }
    }

    /// The version below the changes has got another validator.
    pub(crate) fn carry_changes(&mut self, version: &[u8]) {
        debug_assert!(!self.is_bypassed(), "its chunks are compared with a saved version");
        self.version = Some(version.to_vec());
    }
}
