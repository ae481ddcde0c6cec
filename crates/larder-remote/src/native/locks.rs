//! The locks that this mount has at the metadata server, as far as it knows. This module makes no
//! calls.
//!
//! The mount is one holder at the server, so this is what the server has for all of its processes.
//! If a call's answer is lost, its effect is unknown. Then the mount counts as having what it had
//! both before and after, and the server is told: the whole file is unlocked, and what is held is
//! locked, in one call.
//!
//! Invariants:
//! - a file is in the table as long as some of it is locked, doubtful, or about to be changed;
//! - the table has no more than the server has, unless the server has lost it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_vfs::{Error, LOCK_END, LockChange, LockMap, LockMode, Result};
use larder_wire::meta::LOCK_CHANGES_MAX;
use larder_wire::meta::calls::LockChanges;
use larder_wire::meta::words::{self, FileId, WaiterNumber};
use larder_wire::xdr::Array;
use tokio::sync::Notify;

/// Locks of all files that have some.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: Mutex<HashMap<FileId, File>>,
    /// The waiters that are queued at the server.
    waiters: Mutex<HashMap<WaiterNumber, Arc<Notify>>>,
    next: AtomicU64,
}

/// The locks of one file.
#[derive(Debug)]
struct File {
    /// Whose turn it is to change them at the server.
    turn: Arc<tokio::sync::Mutex<()>>,
    held: LockMap,
    standing: Standing,
    /// A change in flight.
    pending: Option<Pending>,
}

/// What the server has of a file, compared with this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The server may still have what an earlier process of this mount locked.
    New,
    /// The same.
    Good,
    /// More, or nothing.
    Doubtful,
}

/// A change in flight.
#[derive(Debug)]
struct Pending {
    /// The locks after the change.
    after: LockMap,
    /// The comparison with the server before the change.
    standing: Standing,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was made.
    Done,
    /// It was not made.
    Refused,
    /// Unknown.
    Unknown,
}

/// How the locks of a file can be changed: one change after the other.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    locks: &'a Locks,
    file: FileId,
    _turn: tokio::sync::OwnedMutexGuard<()>,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call changes the locks of a file.
    pub(super) async fn turn(&self, file: FileId) -> Turn<'_> {
        let turn = {
            let mut files = self.lock();
            let new = || File {
                turn: Arc::default(),
                held: LockMap::default(),
                standing: Standing::New,
                pending: None,
            };
            Arc::clone(&files.entry(file).or_insert_with(new).turn)
        };
        Turn { locks: self, file, _turn: turn.lock_owned().await }
    }

    /// Files for which the server must be told again what is held.
    pub(super) fn doubtful(&self) -> Vec<FileId> {
        let files = self.lock();
        let doubtful = files.iter().filter(|(_, file)| file.standing == Standing::Doubtful);
        doubtful.map(|(number, _)| *number).collect()
    }

    /// The locks to claim at a server that was restarted, file by file. Locks that are about to be
    /// unlocked are not claimed: perhaps they were unlocked, and another client has got them.
    pub(super) fn claims(&self) -> Vec<(FileId, Vec<LockChanges>)> {
        let mut claims = Vec::new();
        for (number, file) in self.lock().iter_mut() {
            if let Some(pending) = &file.pending {
                file.held = both(&file.held, &pending.after);
            }
            let held: Vec<_> = file
                .held
                .iter()
                .map(|(range, mode)| sent(&LockChange { range, mode: Some(mode) }))
                .collect();
            let parts = held.chunks(LOCK_CHANGES_MAX).map(|part| Array(part.to_vec()));
            claims.push((*number, parts.collect()));
        }
        claims
    }

    /// The server has what is held of a file, as far as it was claimed.
    pub(super) fn was_claimed(&self, file: FileId) {
        if let Some(file) = self.lock().get_mut(&file) {
            file.standing = Standing::Good;
        }
    }

    /// No lock on a file is held any more.
    pub(super) fn lose(&self, number: FileId) {
        let mut files = self.lock();
        let Some(file) = files.get_mut(&number) else { return };
        (file.held, file.standing) = (LockMap::default(), Standing::New);
        // No other call is about to change it, and so would remove it.
        if Arc::strong_count(&file.turn) == 1 {
            files.remove(&number);
        }
    }

    /// The session that had the locks is over.
    pub(super) fn doubt_all(&self) {
        for file in self.lock().values_mut() {
            if !file.held.is_empty() || file.pending.is_some() {
                file.standing = Standing::Doubtful;
            }
        }
    }
}

/// Waiters.
impl Locks {
    fn waiters(&self) -> MutexGuard<'_, HashMap<WaiterNumber, Arc<Notify>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter. Returns its number, and how it is notified.
    pub(super) fn wait(&self) -> (WaiterNumber, Arc<Notify>) {
        let number = WaiterNumber(self.next.fetch_add(1, Ordering::Relaxed));
        let told = Arc::<Notify>::default();
        self.waiters().insert(number, Arc::clone(&told));
        (number, told)
    }

    /// He does not wait any more.
    pub(super) fn wait_no_more(&self, number: WaiterNumber) {
        self.waiters().remove(&number);
    }

    /// A lock is reserved for a waiter. Returns whether it still waits.
    pub(super) fn tell(&self, number: WaiterNumber) -> bool {
        let told = self.waiters().get(&number).cloned();
        told.inspect(|told| told.notify_one()).is_some()
    }

    /// The server knows of no waiters: all of them ask again.
    pub(super) fn tell_all(&self) {
        self.waiters().values().for_each(|told| told.notify_one());
    }

    /// Whether all of this is locked.
    pub(super) fn have(&self, file: FileId, changes: &[LockChange]) -> bool {
        let files = self.lock();
        let Some(file) = files.get(&file) else { return false };
        changes.iter().all(|change| {
            change.mode.is_none_or(|mode| {
                let mut end = change.range.start;
                for (held, held_mode) in file.held.within(&change.range) {
                    if held.start > end || held_mode < mode {
                        return false;
                    }
                    end = held.end;
                }
                end >= change.range.end
            })
        })
    }
}

impl Turn<'_> {
    /// Whether the server must be told again what is held.
    pub(super) fn is_doubtful(&self) -> bool {
        let files = self.locks.lock();
        files.get(&self.file).is_some_and(|file| file.standing == Standing::Doubtful)
    }

    /// The changes to send to the server for these changes to be made.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they do not fit into a call.
    pub(super) fn begin(&self, changes: &[LockChange]) -> Result<LockChanges> {
        let mut files = self.locks.lock();
        let file = files.get_mut(&self.file).ok_or(Error::Io)?;
        let mut sent = Vec::with_capacity(changes.len() + 1);
        if file.standing != Standing::Good {
            sent.push(LockChange { range: 0..LOCK_END, mode: None });
            let held = file.held.iter();
            sent.extend(held.map(|(range, mode)| LockChange { range, mode: Some(mode) }));
        }
        sent.extend_from_slice(changes);
        let sent = all_sent(&sent)?;
        let mut after = file.held.clone();
        changes.iter().for_each(|change| after.set(change.range.clone(), change.mode));
        // Until it is answered; if the session ends in the meantime, it is in doubt again.
        let standing = std::mem::replace(&mut file.standing, Standing::Good);
        file.pending = Some(Pending { after, standing });
        Ok(sent)
    }

    /// The result of the change.
    pub(super) fn end(&self, outcome: Outcome) {
        let mut files = self.locks.lock();
        let Some(file) = files.get_mut(&self.file) else { return };
        let Some(Pending { after, standing }) = file.pending.take() else { return };
        match outcome {
            Outcome::Done => file.held = after,
            Outcome::Refused if file.standing == Standing::Good => file.standing = standing,
            Outcome::Refused => (),
            Outcome::Unknown => {
                file.held = both(&file.held, &after);
                file.standing = Standing::Doubtful;
            }
        }
    }

    /// No lock on the file is held any more.
    pub(super) fn lose(&self) {
        self.locks.lose(self.file);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut files = self.locks.lock();
        let Some(file) = files.get(&self.file) else { return };
        // Two references, ours and the table's, mean that no other call is about to change it.
        let is_idle = file.held.is_empty() && file.standing != Standing::Doubtful;
        if is_idle && Arc::strong_count(&file.turn) <= 2 {
            files.remove(&self.file);
        }
    }
}

/// The locks that both have: for each byte the weaker mode.
fn both(one: &LockMap, other: &LockMap) -> LockMap {
    let mut both = LockMap::default();
    for (range, mode) in one.iter() {
        for (range, other) in other.within(&range) {
            both.set(range, Some(mode.min(other)));
        }
    }
    both
}

/// Changes in the form in which they are sent.
///
/// # Errors
/// [`Error::NoSpace`] if they do not fit into a call.
pub(super) fn all_sent(changes: &[LockChange]) -> Result<LockChanges> {
    if changes.len() > LOCK_CHANGES_MAX {
        return Err(Error::NoSpace);
    }
    Ok(Array(changes.iter().map(sent).collect()))
}

fn sent(change: &LockChange) -> words::LockChange {
    words::LockChange { range: change.range.clone().into(), mode: change.mode.map(sent_mode) }
}

/// A mode as it is sent.
pub(super) fn sent_mode(mode: LockMode) -> words::LockMode {
    match mode {
        LockMode::Shared => words::LockMode::Shared,
        LockMode::Exclusive => words::LockMode::Exclusive,
    }
}

/// A mode as the server sends it.
pub(super) fn mode(mode: words::LockMode) -> LockMode {
    match mode {
        words::LockMode::Shared => LockMode::Shared,
        words::LockMode::Exclusive => LockMode::Exclusive,
    }
}

#[cfg(test)]
mod tests;
