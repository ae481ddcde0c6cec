//! A change of names, for as long as its caller waits ([`crate::crossing`]).

use std::ffi::OsStr;

use larder_vfs::Handle;

use crate::crossing::Part;
use crate::shared::Shared;
use crate::state::State;

/// A change that is under way until this is dropped.
pub(crate) struct UnderWay<'a> {
    shared: &'a Shared,
    no: u64,
}

impl Shared {
    /// A change of names begins.
    pub(crate) fn begin_change(&self) -> UnderWay<'_> {
        UnderWay { shared: self, no: self.state().changes_mut().begin() }
    }
}

impl UnderWay<'_> {
    /// It depends on this, which is found out after that.
    pub(crate) fn add(&self, state: &mut State, part: Part) {
        state.changes_mut().add(self.no, part);
    }

    /// It is about this name.
    pub(crate) fn add_name(&self, dir: &Handle, name: &OsStr) {
        let mut state = self.shared.state();
        let dentry = state.dentry(dir, name);
        self.add(&mut state, Part::Within(dentry.dir.clone()));
        self.add(&mut state, Part::Name(dentry));
    }

    /// Whether it crosses another one. To be asked in the step in which it is recorded.
    pub(crate) fn crosses(&self, state: &State) -> bool {
        state.changes().crosses(self.no)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.shared.state().changes_mut().end(self.no);
    }
}
