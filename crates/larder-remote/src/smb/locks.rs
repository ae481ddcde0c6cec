//! Locks on ranges of files (MS-SMB2, 2.2.26), held for the whole mount.
//!
//! The server ties a lock to an open, and prevents all others, including our other opens, from
//! reading and writing what is locked. So a file with locked ranges has one open that has all of
//! its locks ([`super::pieces`]), and reads and writes of the file use that open
//! ([`Share::lock_open`]).
//!
//! Invariants:
//! - The recorded locks are those that the server has, as long as the open can be used. Once the
//!   connection is lost, or an unlock was not answered, there is no such open, and the next use of
//!   the file, including a read or write, first takes all of them again.
//! - If that is refused, all locks of the file are given up, and the watcher is notified before any
//!   caller gets an answer.
//!
//! A server that lost the connection may have given the range to another client, which has released
//! it by the time it is taken again: the server does not report that. Waiting for others is left to
//! the caller: no request stays at the server that could be granted later.

use super::attr::Info;
use super::files::ServerOpen;
use super::link::{Link, Op, garbled};
use super::locked::{HeldLocks, LockedFile};
use super::pieces::{Piece, Steps};
use super::share::Share;
use super::status::{self, Failure};
use super::wire;
use larder_vfs::{Attr, Error, Handle, LockChange, LockMode};
use smb2::msg::lock::{
    SMB2_LOCKFLAG_EXCLUSIVE_LOCK, SMB2_LOCKFLAG_FAIL_IMMEDIATELY, SMB2_LOCKFLAG_SHARED_LOCK,
    SMB2_LOCKFLAG_UNLOCK,
};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::FileId;
use smb2::types::status::NtStatus;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Whether the failure means that another client has a range.
fn is_refusal(failure: &Failure) -> bool {
    matches!(failure, Failure::Status(NtStatus::FILE_LOCK_CONFLICT | status::LOCK_NOT_GRANTED))
}

/// Whether a read or write was refused because of a lock.
pub(super) fn is_conflict<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Err(Failure::Status(NtStatus::FILE_LOCK_CONFLICT)))
}

/// LOCK of all ranges or none, without waiting.
fn locking(id: FileId, pieces: &[Piece]) -> Op {
    let elements = pieces.iter().map(|piece| {
        let mode = match piece.mode {
            LockMode::Shared => SMB2_LOCKFLAG_SHARED_LOCK,
            LockMode::Exclusive => SMB2_LOCKFLAG_EXCLUSIVE_LOCK,
        };
        (piece.range.clone(), mode | SMB2_LOCKFLAG_FAIL_IMMEDIATELY)
    });
    wire::lock(id, elements.collect())
}

/// LOCK that unlocks ranges exactly as they were locked.
fn unlocking(id: FileId, pieces: &[Piece]) -> Op {
    let elements = pieces.iter().map(|piece| (piece.range.clone(), SMB2_LOCKFLAG_UNLOCK));
    wire::lock(id, elements.collect())
}

impl ServerOpen {
    /// Locks all of it or nothing, and does not wait.
    async fn lock(&self, pieces: &[Piece]) -> Result<(), Failure> {
        if pieces.is_empty() {
            return Ok(());
        }
        let locked = self.link.ask(locking(self.id, pieces)).await?.check();
        tracing::debug!(?pieces, ?locked, "LOCK");
        locked
    }

    /// Unlocks ranges exactly as they were locked.
    async fn unlock(&self, pieces: &[Piece]) -> Result<(), Failure> {
        if pieces.is_empty() {
            return Ok(());
        }
        let unlocked = self.link.ask(unlocking(self.id, pieces)).await?.check();
        tracing::debug!(?pieces, ?unlocked, "unlock by LOCK");
        unlocked
    }

    /// Unlocks, and locks other ranges directly afterwards, as far as the protocol allows: in one
    /// message. Returns the result of the lock if the unlock was made.
    async fn exchange(
        &self,
        unlock: &[Piece],
        lock: &[Piece],
    ) -> Result<Result<(), Failure>, Failure> {
        if unlock.is_empty() || lock.is_empty() {
            self.unlock(unlock).await?;
            return Ok(self.lock(lock).await);
        }
        let ops = vec![unlocking(self.id, unlock), locking(self.id, lock)];
        let mut replies = self.link.chain(ops).await?.into_iter();
        replies.next().ok_or(Failure::Lost)?.check()?;
        let locked = replies.next().ok_or(Failure::Lost)?.check();
        tracing::debug!(?unlock, ?lock, ?locked, "unlock and lock by LOCK");
        Ok(locked)
    }

    /// How the file is.
    pub(super) async fn info(&self) -> Result<Info, Failure> {
        let seen = self.link.ask(wire::query(self.id)).await?.read::<QueryInfoResponse>()?;
        Info::parse(&seen.output_buffer).map_err(garbled)
    }
}

/// How steps ended that did not come to their end.
enum Undone {
    /// All is as before.
    Refused,
    /// The server's locks are neither those recorded before nor those after.
    Unknown(Failure),
    /// Another client has a part of what was held.
    Lost,
}

/// Takes the steps.
async fn take(open: &ServerOpen, steps: &Steps) -> Result<(), Undone> {
    open.lock(&steps.first).await.map_err(|failure| match is_refusal(&failure) {
        true => Undone::Refused,
        false => Undone::Unknown(failure),
    })?;
    match open.exchange(&steps.unlock, &steps.again).await.map_err(Undone::Unknown)? {
        Err(failure) if is_refusal(&failure) => (),
        done => return done.map_err(Undone::Unknown),
    }
    open.unlock(&steps.first).await.map_err(Undone::Unknown)?;
    match open.lock(&steps.unlock).await {
        Ok(()) => Err(Undone::Refused),
        Err(failure) if is_refusal(&failure) => Err(Undone::Lost),
        Err(failure) => Err(Undone::Unknown(failure)),
    }
}

impl Share {
    /// Locks and unlocks; see [`larder_vfs::Remote::lock`].
    pub(super) async fn lock(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        changes: &[LockChange],
    ) -> Result<Attr, Failure> {
        let entry = self.locks.enter(file);
        let mut held = entry.held.lock().await;
        let changed = self.change_locks(link, &entry, &mut held, changes).await;
        drop(held);
        self.locks.leave(&entry);
        changed
    }

    async fn change_locks(
        &self,
        link: &Arc<Link>,
        entry: &LockedFile,
        held: &mut HeldLocks,
        changes: &[LockChange],
    ) -> Result<Attr, Failure> {
        let unlocks = changes.iter().all(|change| change.mode.is_none());
        if unlocks && held.pieces.is_empty() {
            return Ok(self.look_at(link, &entry.handle, false).await?.info.attr(&self.shape));
        }
        let since = self.files.get(&entry.handle).map(|known| (known.moment(), known));
        let open = self.usable(link, entry, held).await?;
        let steps = held.pieces.steps(changes);
        if steps.after.is_empty() {
            // Its locks end with it.
            held.open = None;
            let info = open.finish(Vec::new()).await?;
            held.pieces = steps.after;
            return Ok(info.attr(&self.shape));
        }
        match take(&open, &steps).await {
            Ok(()) => held.pieces = steps.after,
            Err(Undone::Refused) => {
                if held.pieces.is_empty() {
                    close(held).await;
                }
                return Err(Failure::Is(Error::Locked));
            }
            Err(Undone::Unknown(failure)) => {
                // It is taken again by another open, as it is on record.
                held.open = None;
                open.close().await;
                return Err(failure);
            }
            Err(Undone::Lost) => {
                self.lose(entry, held);
                return Err(Failure::Is(Error::Io));
            }
        }
        let info = open.info().await?;
        if let Some((since, known)) = since {
            known.saw(since, info);
        }
        Ok(info.attr(&self.shape))
    }

    /// Ranges count as unlocked although the server could not be told: they are not locked again.
    pub(super) async fn forget_locks(&self, file: &Handle, changes: &[LockChange]) {
        let Some(entry) = self.locks.get(file) else { return };
        let mut held = entry.held.lock().await;
        held.pieces = held.pieces.without(changes);
        // The server may have them still.
        close(&mut held).await;
        drop(held);
        self.locks.leave(&entry);
    }

    /// The open that has the locks of a file, for its reads and writes; `None` if nothing of it is
    /// locked.
    ///
    /// # Errors
    /// [`Error::Io`] if the locks are lost.
    pub(super) async fn lock_open(
        &self,
        link: &Arc<Link>,
        file: &Handle,
    ) -> Result<Option<Arc<ServerOpen>>, Failure> {
        let Some(entry) = self.locks.get(file) else { return Ok(None) };
        let mut held = entry.held.lock().await;
        if held.pieces.is_empty() {
            drop(held);
            self.locks.leave(&entry);
            return Ok(None);
        }
        self.usable(link, &entry, &mut held).await.map(Some)
    }

    /// An open that has all that is on record, and can be used.
    async fn usable(
        &self,
        link: &Arc<Link>,
        entry: &LockedFile,
        held: &mut HeldLocks,
    ) -> Result<Arc<ServerOpen>, Failure> {
        if let Some(open) = held.open.as_ref().filter(|open| open.is_on(link)) {
            return Ok(Arc::clone(open));
        }
        held.open = None;
        held.pieces = held.pieces.anew();
        let access = wire::WRITE | wire::READ;
        let opened =
            match self.open_file(link, &entry.handle, access, wire::NON_DIRECTORY_FILE).await {
                Err(Failure::Status(NtStatus::ACCESS_DENIED)) => {
                    self.open_file(link, &entry.handle, wire::READ, wire::NON_DIRECTORY_FILE).await
                }
                opened => opened,
            };
        let taken = match opened {
            Ok(opened) => {
                let open = Arc::new(opened.open);
                open.lock(held.pieces.all()).await.map(|()| open)
            }
            Err(failure) => Err(failure),
        };
        match taken {
            Ok(open) => {
                if !held.pieces.is_empty() {
                    tracing::warn!(file = ?entry.handle, "locks were taken again after the connection was lost");
                }
                held.open = Some(Arc::clone(&open));
                Ok(open)
            }
            Err(failure) if held.pieces.is_empty() || !is_lost(&failure) => Err(failure),
            Err(failure) => {
                tracing::warn!(file = ?entry.handle, ?failure, "locks are lost");
                self.lose(entry, held);
                Err(Failure::Is(Error::Io))
            }
        }
    }

    /// Another client has some of it, or the file is gone: all of its locks are given up, and their
    /// holders are notified.
    fn lose(&self, entry: &LockedFile, held: &mut HeldLocks) {
        *held = HeldLocks::default();
        if let Some(watcher) = self.watcher.get().and_then(Weak::upgrade) {
            watcher.locks_lost(&entry.handle);
        }
    }

    /// Locks these files again over a new connection, before another client does.
    pub(super) async fn renew_locks(&self, link: &Arc<Link>, files: Vec<Handle>) {
        for file in files {
            // The next read or write tries again, if the connection was the cause.
            let _ = self.lock_open(link, &file).await;
        }
    }

    /// Closes the open that has the locks of a file, before its name or its directory's is changed.
    /// [`Share::renew_locks`] opens and locks it again.
    pub(super) async fn close_locked(&self, file: &Handle) {
        let Some(entry) = self.locks.get(file) else { return };
        close(&mut *entry.held.lock().await).await;
    }

    /// How another client holds some of a range; see [`larder_vfs::Remote::test_lock`].
    pub(super) async fn test_lock(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        range: &Range<u64>,
        mode: LockMode,
    ) -> Result<Option<LockMode>, Failure> {
        let entry = self.locks.enter(file);
        let mut held = entry.held.lock().await;
        let found = match self.usable(link, &entry, &mut held).await {
            // The server cannot be asked about ranges that are locked here.
            Ok(open) => probe(&open, &held.pieces.unknown(range), mode).await,
            Err(failure) => Err(failure),
        };
        if held.pieces.is_empty() {
            close(&mut held).await;
        }
        drop(held);
        self.locks.leave(&entry);
        found
    }
}

/// Closes the open, and waits until it is.
async fn close(held: &mut HeldLocks) {
    if let Some(open) = held.open.take() {
        open.close().await;
    }
}

/// Whether a failure to lock again means that the locks are lost, and not only unavailable for now.
fn is_lost(failure: &Failure) -> bool {
    match failure {
        Failure::Status(_) => true,
        Failure::Is(error) => *error == Error::Stale,
        Failure::Lost => false,
    }
}

/// Tries to lock, and unlocks at once.
async fn probe(
    open: &ServerOpen,
    ranges: &[Range<u64>],
    mode: LockMode,
) -> Result<Option<LockMode>, Failure> {
    let mut tried = Err(mode);
    for one in [LockMode::Exclusive, LockMode::Shared].into_iter().filter(|one| *one <= mode) {
        let pieces: Vec<_> =
            ranges.iter().map(|range| Piece { range: range.clone(), mode: one }).collect();
        match open.lock(&pieces).await {
            Ok(()) => {
                open.unlock(&pieces).await?;
                tried = Ok(one);
                break;
            }
            Err(failure) if is_refusal(&failure) => (),
            Err(failure) => return Err(failure),
        }
    }
    Ok(match tried {
        Ok(had) if had == mode => None,
        // Another client shares it.
        Ok(_) => Some(LockMode::Shared),
        Err(_) => Some(LockMode::Exclusive),
    })
}
