//! Locks of the model: each connection is one holder. They do not prevent reading and writing.

use std::collections::HashMap;
use std::ops::Range;

use crate::{Error, Handle, LockChange, LockMap, LockMode, Result};

/// The locked ranges of each file, by connection number.
#[derive(Default)]
pub(super) struct Locks(HashMap<Handle, HashMap<u64, LockMap>>);

impl Locks {
    /// The strongest mode in which another connection has part of `range`, if that conflicts with
    /// `mode`.
    pub(super) fn conflict(
        &self,
        connection: u64,
        file: &Handle,
        range: &Range<u64>,
        mode: LockMode,
    ) -> Option<LockMode> {
        let holders = self.0.get(file).into_iter().flatten();
        let others = holders.filter(|(holder, _)| **holder != connection);
        let held = others.flat_map(|(_, held)| held.within(range)).map(|(_, held)| held);
        held.filter(|held| !mode.allows(*held)).max()
    }

    /// Locks and unlocks all of it, or nothing.
    pub(super) fn change(
        &mut self,
        connection: u64,
        file: &Handle,
        changes: &[LockChange],
    ) -> Result<()> {
        let is_refused = |change: &LockChange| {
            let mode = change.mode?;
            self.conflict(connection, file, &change.range, mode)
        };
        if changes.iter().any(|change| is_refused(change).is_some()) {
            return Err(Error::Locked);
        }
        let held = self.0.entry(file.clone()).or_default().entry(connection).or_default();
        for change in changes {
            held.set(change.range.clone(), change.mode);
        }
        Ok(())
    }

    /// Ends all locks of the connection. Returns the files on which it had some.
    pub(super) fn end(&mut self, connection: u64) -> Vec<Handle> {
        let ended = self.0.iter_mut().filter_map(|(file, holders)| {
            let held = holders.remove(&connection)?;
            (!held.is_empty()).then(|| file.clone())
        });
        ended.collect()
    }
}
