//! Reports to users on what waits.

use std::ffi::OsString;

use larder_vfs::Deferred;

use crate::object::ObjectNo;
use crate::shared::Shared;
use crate::state::State;

impl Shared {
    /// The report on an object that waits.
    pub(crate) fn tell(&self, state: &State, no: ObjectNo) -> Option<Deferred> {
        if let Some(altered) = state.journal().get_altered(no) {
            let made = state.journal().of_server(&altered.handle);
            let handle = || altered.handle.clone();
            return Some(Deferred {
                file: made.map_or_else(handle, |no| state.journal().handle(no)),
                name: OsString::new(),
                dir: None,
                due: state.due(no),
                is_kept: self.cache.has_kept_names(state.recorded()),
                failure: state.failure(no),
            });
        }
        if let Some(linked) = state.journal().links().get(no) {
            return Some(Deferred {
                file: state.journal().client_handle(&linked.file),
                name: linked.dentry.name.clone(),
                dir: Some(state.journal().client_handle(&linked.dentry.dir)),
                due: state.due(no),
                is_kept: self.cache.has_kept_names(state.recorded()),
                failure: state.failure(no),
            });
        }
        if let Some(taken) = state.journal().taken().get(no) {
            if taken.is_unseen() {
                return None;
            }
            let made = state.journal().of_server(&taken.handle);
            let dentry = taken.dentry.as_ref().unwrap_or(&taken.origin);
            return Some(Deferred {
                file: made.map_or_else(|| taken.handle.clone(), |no| state.journal().handle(no)),
                name: dentry.name.clone(),
                dir: Some(state.journal().client_handle(&dentry.dir)),
                due: state.due(no),
                is_kept: self.cache.has_kept_names(state.recorded()),
                failure: state.failure(no),
            });
        }
        let (dentry, _) = state.journal().waiting(no)?;
        Some(Deferred {
            file: state.journal().handle(no),
            name: dentry.name.clone(),
            dir: Some(state.journal().client_handle(&dentry.dir)),
            due: state.due(no),
            is_kept: self.cache.has_kept_names(state.recorded()),
            failure: state.failure(no),
        })
    }
}
