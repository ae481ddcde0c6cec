//! Locks of processes, passed on to the server.
//!
//! This module decides which process of this mount has which lock ([`table`]); to the server, only
//! the mount as a whole is a holder. So a lock that another process of this mount has is refused
//! without a request, and one that is shared with it costs none.
//!
//! - **What a holder sees**: a process that gets a lock from the server sees what was written under
//!   it elsewhere: attributes come with the lock, and cached bytes of an older version are dropped
//!   ([`seeing`]). Before a range is unlocked at the server, what was written here is sent.
//! - **Waiting**: for another process of this mount until it unlocks; for another mount until the
//!   server notifies us. A server that does not notify is asked again, with growing pauses, because
//!   it must not be left with a request that it could grant when it is no longer wanted. The wait
//!   ends when the caller gives up.
//! - **Loss**: if the server gives another client what was locked here (after a connection was
//!   lost), every process that had a lock on the file gets [`Error::Io`] from reads, writes and
//!   further locks, until it has unlocked or closed the file.
//! - **Death of this process**: the locks of each owner are recorded ([`LockRecord`]), and the next
//!   process takes them again.
//!
//! A mount that keeps locks to itself uses none of this: its kernel does not ask.
//!
//! Lock order: the turn of a file, then the table of files, then its table; only the turn is held
//! over a wait.

mod seeing;
mod table;
mod waiting;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_vfs::{
    Attr, Cred, Error, GivenUp, Handle, Ino, LOCK_END, Lock, LockChange, LockOwner, OpenId,
    ReservedLock, Result,
};
use tokio::sync::Notify;

use crate::core::Core;
use crate::journal::LockRecord;
use crate::names::on_handle;
use crate::node::Node;
use crate::open::OpenFile;
pub(crate) use table::{Holder, Table};
use waiting::Waiting;

/// The shortest pause between two attempts to get a lock that another mount has, and the longest: a
/// compromise between the delay after the other mount unlocks, and the number of vain requests.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest wait of a call that does not wait for locks, when the lock's holder has closed a
/// descriptor: the kernel sends the release only after close(2) has returned. If it was not the
/// last descriptor, refusing the lock takes this long.
const RELEASE_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long a lock waits for the end of one whose file is being released: the server is asked.
const UNLOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// For how long the locks of a process that died are requested again: the server may learn of its
/// death later than we do.
const TAKEN_AGAIN_WITHIN: Duration = Duration::from_secs(10);

/// The locks of all files that have some.
#[derive(Default)]
pub(crate) struct Locks {
    files: Mutex<HashMap<Ino, Arc<FileLocks>>>,
    /// Files whose locks are lost.
    lost: AtomicUsize,
    waiting: Mutex<Waiting>,
}

/// The locks of one file.
#[derive(Default)]
struct FileLocks {
    /// One change at a time goes to the server.
    turn: tokio::sync::Mutex<()>,
    table: Mutex<Table>,
    /// Notified when something was unlocked.
    changed: Notify,
}

impl FileLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    fn files(&self) -> MutexGuard<'_, HashMap<Ino, Arc<FileLocks>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, ino: Ino) -> Option<Arc<FileLocks>> {
        self.files().get(&ino).cloned()
    }

    fn enter(&self, ino: Ino) -> Arc<FileLocks> {
        Arc::clone(self.files().entry(ino).or_default())
    }

    /// Forgets a file without locks, unless another call is about to lock it.
    fn leave(&self, ino: Ino, locks: &Arc<FileLocks>) {
        let mut files = self.files();
        // Ours and the table's.
        if Arc::strong_count(locks) <= 2 && locks.table().is_empty() {
            let removed = files.remove(&ino);
            debug_assert!(
                removed.is_none_or(|removed| Arc::ptr_eq(&removed, locks)),
                "a file has one turn"
            );
        }
    }

    /// Whether the owner has locked something of the file.
    pub(crate) fn has(&self, ino: Ino, owner: LockOwner) -> bool {
        self.get(ino).is_some_and(|locks| locks.table().holder(owner).is_some())
    }
}

/// Why a lock was not to be had.
enum Refused {
    /// Another process of this mount has it.
    Here,
    /// Another mount has it; the server was asked for these changes.
    There(Vec<LockChange>),
    /// It cannot be asked for.
    Failed(Error),
}

impl Core {
    /// Locks a range; see [`larder_vfs::FileSystem::lock`].
    pub(crate) async fn lock(
        self: &Arc<Self>,
        ino: Ino,
        open: OpenId,
        lock: Lock,
        wait: Option<GivenUp>,
    ) -> Result<()> {
        let opened = self.open_file(open)?;
        let locks = self.locks.enter(ino);
        let locked = match wait {
            None => self.lock_now(&opened, open, &locks, &lock).await,
            Some(given_up) => self.lock_in_time(&opened, open, &locks, &lock, given_up).await,
        };
        self.locks.leave(ino, &locks);
        locked
    }

    /// Locks without waiting for other holders, except for one that has closed its file already and
    /// whose release has not arrived yet.
    async fn lock_now(
        self: &Arc<Self>,
        opened: &OpenFile,
        open: OpenId,
        locks: &Arc<FileLocks>,
        lock: &Lock,
    ) -> Result<()> {
        let refused = match self.try_lock(opened, open, locks, lock).await {
            Err(Refused::Here) => {
                self.await_release_of(locks, lock).await;
                self.try_lock(opened, open, locks, lock).await
            }
            tried => tried,
        };
        refused.map_err(|refused| match refused {
            Refused::Here | Refused::There(_) => Error::Locked,
            Refused::Failed(error) => error,
        })
    }

    /// Until it is there or the caller gives up.
    async fn lock_in_time(
        self: &Arc<Self>,
        opened: &OpenFile,
        open: OpenId,
        locks: &Arc<FileLocks>,
        lock: &Lock,
        mut given_up: GivenUp,
    ) -> Result<()> {
        let mut pause = PAUSE_MIN;
        let mut kept = None;
        loop {
            let changed = locks.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let tried = self.try_lock(opened, open, locks, lock).await;
            drop(kept.take());
            let changes = match tried {
                Ok(()) => return Ok(()),
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Here) => None,
                Err(Refused::There(changes)) => Some(changes),
            };
            let wake = async {
                match &changes {
                    Some(changes) => self.await_other_mounts(opened, changes, &mut pause).await,
                    None => {
                        changed.await;
                        None
                    }
                }
            };
            let others = locks.table().in_the_way(lock);
            if !self.locks.waiting().begin(lock.owner, others) {
                return Err(Error::Deadlock);
            }
            let woken = tokio::select! {
                biased;
                () = &mut given_up => Err(Error::Interrupted),
                woken = wake => Ok(woken),
            };
            self.locks.waiting().end(lock.owner);
            kept = woken?;
        }
    }

    /// Waits until the server reserves for us what it refused, or, if it does not notify waiters,
    /// until it is time to ask again.
    async fn await_other_mounts(
        &self,
        opened: &OpenFile,
        changes: &[LockChange],
        pause: &mut Duration,
    ) -> Option<ReservedLock> {
        debug_assert!(!changes.is_empty(), "another mount has what it was asked for");
        let (node, cred) = (&*opened.node, &self.caller(&opened.cred));
        let kept =
            on_handle!(self, cred, node, handle => self.remote.await_lock(cred, &handle, changes));
        // Why it cannot be waited for, the next try says.
        if let Ok(Some(kept)) = kept {
            return Some(kept);
        }
        let until = self.clock.instant() + *pause;
        *pause = (*pause * 2).min(PAUSE_MAX);
        self.clock.sleep_until(until).await;
        None
    }

    /// The holder of a conflicting lock may have closed its file, and the release may not have
    /// arrived yet, or not have ended the lock at the server: a flock(2) lock ends with the last
    /// descriptor.
    async fn await_release_of(&self, locks: &Arc<FileLocks>, lock: &Lock) {
        let changed = locks.changed.notified();
        let holders = {
            let table = locks.table();
            let other = table.conflict(lock).and_then(|other| table.holder(other.owner).cloned());
            other.map(|other| other.opens).unwrap_or_default()
        };
        let opens: Vec<_> = holders.iter().filter_map(|open| self.open_file(*open).ok()).collect();
        if holders.is_empty() || !opens.iter().all(|open| open.is_flushed()) {
            return;
        }
        // If a release does not come in time, the descriptor was duplicated.
        let wait = if opens.is_empty() { UNLOCK_WAIT_MAX } else { RELEASE_WAIT_MAX };
        let _ = self.clock.timeout(wait, changed).await;
    }

    async fn try_lock(
        self: &Arc<Self>,
        opened: &OpenFile,
        open: OpenId,
        locks: &Arc<FileLocks>,
        lock: &Lock,
    ) -> Result<(), Refused> {
        let turn = locks.turn.lock().await;
        let (before, after) = {
            let table = locks.table();
            if table.holder(lock.owner).is_some_and(|holder| holder.lost) {
                return Err(Refused::Failed(Error::Io));
            }
            if table.conflict(lock).is_some() {
                return Err(Refused::Here);
            }
            let mut after = table.clone();
            after.set(lock.owner, lock.range.clone(), Some((lock.mode, lock.pid, open)));
            (table.clone(), after)
        };
        let changes = before.changes(&after);
        let asked = self.now();
        let attr = match changes.is_empty() {
            // A process of this mount has it there.
            true => None,
            false => Some(self.change_locks(opened, &changes).await?),
        };
        {
            // Lost meanwhile, it is lost for all.
            let mut table = locks.table();
            table.set(lock.owner, lock.range.clone(), Some((lock.mode, lock.pid, open)));
            self.note_locks(opened.node.ino, &table, lock.owner);
        }
        if before.holder(lock.owner).is_some() {
            // Other waiters may be able to share what was exclusive before.
            locks.changed.notify_waiters();
        }
        drop(turn);
        if let Some(attr) = attr {
            self.see_locked(opened, attr, asked).await;
        }
        Ok(())
    }

    async fn change_locks(
        &self,
        opened: &OpenFile,
        changes: &[LockChange],
    ) -> Result<Attr, Refused> {
        let (node, cred) = (&*opened.node, &self.caller(&opened.cred));
        let answer =
            on_handle!(self, cred, node, handle => self.remote.lock(cred, &handle, changes));
        answer.map_err(|error| match error {
            Error::Locked => Refused::There(changes.to_vec()),
            error => Refused::Failed(error),
        })
    }

    /// Unlocks a range; see [`larder_vfs::FileSystem::unlock`].
    ///
    /// # Errors
    /// Why written data could not be sent, unless the only reason was locks of other holders. The
    /// range is unlocked in any case.
    pub(crate) async fn unlock(&self, ino: Ino, owner: LockOwner, range: Range<u64>) -> Result<()> {
        self.change_table(ino, |table| table.set(owner, range, None)).await
    }

    /// The owner closed a descriptor of the file: all its locks on the file end.
    pub(crate) async fn end_owner(&self, ino: Ino, owner: LockOwner) {
        // The close itself reports an error of sending.
        let _ = self.unlock(ino, owner, 0..LOCK_END).await;
    }

    /// The open file is gone.
    pub(crate) async fn end_open(&self, ino: Ino, open: OpenId) {
        // No caller is left to which an error could be reported; what is unsent is tried again.
        let _ = self.change_table(ino, |table| table.close(open)).await;
    }

    /// Removes locks: what was written under them is sent first, then the server is asked to
    /// unlock. Returns the error if that data could not be sent.
    async fn change_table(&self, ino: Ino, change: impl FnOnce(&mut Table)) -> Result<()> {
        let Some(locks) = self.locks.get(ino) else { return Ok(()) };
        let turn = locks.turn.lock().await;
        let (before, after) = {
            let table = locks.table();
            let mut after = table.clone();
            change(&mut after);
            (table.clone(), after)
        };
        let changes = before.changes(&after);
        let sent = match self.node(ino) {
            Ok(node) if !changes.is_empty() => self.release_locks(&node, &before, &changes).await,
            _ => Ok(()),
        };
        self.put_table(ino, &locks, &before, after);
        drop(turn);
        locks.changed.notify_waiters();
        self.locks.leave(ino, &locks);
        sent
    }

    async fn release_locks(
        &self,
        node: &Arc<Node>,
        before: &Table,
        changes: &[LockChange],
    ) -> Result<()> {
        let ino = node.ino.0;
        let sent = self.upload(node, self.deadline()).await;
        if let Err(error) = &sent {
            tracing::warn!(ino, %error, "unlocked before what was written could be sent");
        }
        let opens = before.holders().iter().flat_map(|holder| &holder.opens);
        let opened = opens.filter_map(|open| self.open_file(*open).ok()).next();
        let cred = opened.map_or_else(Cred::root, |open| open.cred.clone());
        let (cred, asked) = (&self.caller(&cred), self.now());
        let node = &**node;
        let unlocked =
            on_handle!(self, cred, node, handle => self.remote.lock(cred, &handle, changes));
        match unlocked {
            Ok(attr) => drop(self.see_changes(node, attr, asked)),
            Err(error) => tracing::debug!(ino, %error, "the server was not told of an unlock"),
        }
        match sent {
            // SMB locks are mandatory: a lock that is still held prevents these writes (it may be a
            // lock of this mount, if a page around it was written through a mapping). They are sent
            // later.
            Err(Error::Locked) => Ok(()),
            sent => sent,
        }
    }

    /// Applies to the stored table the removals that were made in a copy of it.
    fn put_table(&self, ino: Ino, locks: &FileLocks, before: &Table, mut after: Table) {
        let mut table = locks.table();
        let was_lost = table.holders().iter().any(|holder| holder.lost);
        if was_lost {
            after.lose();
        }
        let is_lost = after.holders().iter().any(|holder| holder.lost);
        let found = usize::from(was_lost && !is_lost);
        let lost = self.locks.lost.fetch_sub(found, Ordering::Relaxed);
        debug_assert!(lost >= found, "a file whose locks are lost is counted once");
        *table = after;
        for holder in before.holders() {
            if table.holder(holder.owner) != Some(holder) {
                self.note_locks(ino, &table, holder.owner);
            }
        }
    }

    /// A lock that conflicts with the one asked for; see [`larder_vfs::FileSystem::test_lock`].
    pub(crate) async fn test_lock(
        &self,
        ino: Ino,
        open: OpenId,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let opened = self.open_file(open)?;
        if let Some(other) = self.locks.get(ino).and_then(|locks| locks.table().conflict(&lock)) {
            return Ok(Some(other));
        }
        let (node, cred) = (&*opened.node, &self.caller(&opened.cred));
        let found = on_handle!(self, cred, node, handle =>
            self.remote.test_lock(cred, &handle, lock.range.clone(), lock.mode))?;
        Ok(found.map(|mode| Lock { pid: 0, mode, ..lock }))
    }

    /// The server has given the locks of a file to another client.
    pub(crate) fn lose_locks(&self, file: &Handle) {
        let Some(no) = self.cache.number_of(file.as_bytes()) else { return };
        let Some(locks) = self.locks.get(Ino(no.0)) else { return };
        let mut table = locks.table();
        let was_lost = table.holders().iter().any(|holder| holder.lost);
        table.lose();
        let is_lost = !table.is_empty();
        self.locks.lost.fetch_add(usize::from(is_lost && !was_lost), Ordering::Relaxed);
        for holder in table.holders() {
            self.note_locks(Ino(no.0), &table, holder.owner);
        }
        let processes: Vec<u32> = table.holders().iter().map(|holder| holder.pid).collect();
        tracing::error!(ino = no.0, ?processes, "locks are lost: somebody else has them");
    }

    /// # Errors
    /// [`Error::Io`] if a process that locked through this open file has lost its locks.
    pub(crate) fn refuse_lost(&self, ino: Ino, open: Option<OpenId>) -> Result<()> {
        if self.locks.lost.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let is_lost = |locks: Arc<FileLocks>| open.is_some_and(|open| locks.table().is_lost(open));
        if self.locks.get(ino).is_some_and(is_lost) { Err(Error::Io) } else { Ok(()) }
    }

    /// Takes up the locks of a process that died.
    pub(crate) fn restore_locks(self: &Arc<Self>, records: &[LockRecord]) {
        for record in records {
            let locks = self.locks.enter(record.ino);
            let mut table = locks.table();
            let was_lost = table.holders().iter().any(|holder| holder.lost);
            let is_lost = was_lost || record.holder.lost;
            self.locks.lost.fetch_add(usize::from(is_lost && !was_lost), Ordering::Relaxed);
            table.restore(record.holder.clone());
        }
        let mut files: Vec<Ino> = records.iter().map(|record| record.ino).collect();
        files.sort_unstable();
        files.dedup();
        for ino in files {
            let core = self.clone();
            self.runtime.spawn(async move { core.take_again(ino).await });
        }
    }

    /// Asks the server for the locks of a process that died. Until they are granted, no other
    /// process of this mount changes them.
    async fn take_again(self: &Arc<Self>, ino: Ino) {
        let Some(locks) = self.locks.get(ino) else { return };
        let _turn = locks.turn.lock().await;
        let changes = Table::default().changes(&locks.table());
        if changes.is_empty() {
            return;
        }
        let begun = self.clock.instant();
        let mut pause = PAUSE_MIN;
        loop {
            let Ok(node) = self.node(ino) else { return };
            let (cred, asked) = (&self.caller(&Cred::root()), self.now());
            let (core, held) = (self, &*node);
            let answer =
                on_handle!(core, cred, held, handle => core.remote.lock(cred, &handle, &changes));
            let waited = self.clock.instant() - begun;
            match answer {
                Ok(attr) => {
                    self.observe(&node, attr, asked);
                    tracing::warn!(
                        ino = ino.0,
                        "locks were taken again after the process that held them ended"
                    );
                    return;
                }
                Err(Error::Shutdown) => return,
                Err(Error::TimedOut) => {}
                Err(Error::Locked) if waited < TAKEN_AGAIN_WITHIN => {}
                Err(error) => {
                    tracing::warn!(ino = ino.0, %error, "locks cannot be taken again");
                    if let Ok(handle) = node.handle() {
                        self.lose_locks(&handle);
                    }
                    return;
                }
            }
            self.clock.sleep_until(self.clock.instant() + pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
