//! The effects of calls, and of ending sessions and files, on locks.

use std::time::Instant;

use larder_wire::meta::Status;
use larder_wire::meta::calls::{
    AwaitLock, ForgoLock, Lock, LockAwaited, LockChanges, LockTested, TestLock,
};
use larder_wire::meta::recall::LockFree;
use larder_wire::meta::words::{Attributes, FileId, SessionId};

use super::{Live, Moment};
use crate::inode;
use crate::leases;
use crate::locks::{Asked, Change};
use crate::request::Request;
use crate::rights::{READ, WRITE};
use crate::store::Txn;

impl Live {
    pub(super) fn lock(
        &mut self,
        txn: &Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &Lock,
    ) -> Result<Attributes, Status> {
        let attributes = inode::regular(txn, call.file)?.attributes;
        let locks_some = call.changes.0.iter().any(|change| change.mode.is_some());
        let may = |bits| request.caller.need_data(&attributes, bits);
        if locks_some {
            may(READ).or_else(|_| may(WRITE))?;
        }
        let changes = changes(&call.changes)?;
        let asked = Asked { session: request.session, file: call.file, claim: call.claim };
        self.locks.change(asked, &changes, moment.instant)?;
        Ok(attributes)
    }

    pub(super) fn test_lock(&self, txn: &Txn<'_>, call: &TestLock) -> Result<LockTested, Status> {
        inode::regular(txn, call.file)?;
        self.locks.need_no_grace()?;
        let range = call.range.lockable().ok_or(Status::Invalid)?;
        Ok(LockTested { found: self.locks.conflict(call.session, call.file, &range, call.mode) })
    }

    pub(super) fn await_lock(
        &mut self,
        txn: &Txn<'_>,
        moment: Moment,
        call: &AwaitLock,
    ) -> Result<LockAwaited, Status> {
        if !self.recaller.reaches(call.session) {
            return Err(Status::NotSupported);
        }
        inode::regular(txn, call.file)?;
        let (session, changes) = (call.session, changes(&call.changes)?);
        let waits = self.locks.wait(session, call.file, call.number, changes, moment.instant);
        waits.map(|is_free| LockAwaited { is_free })
    }

    pub(super) fn forgo_lock(&mut self, moment: Moment, call: &ForgoLock) -> Result<(), Status> {
        self.locks.forgo(call.session, call.file, call.number, moment.instant);
        Ok(())
    }

    /// The time in which clients claim what they had before the server was restarted is over.
    pub(crate) fn end_grace(&mut self) {
        self.locks.end_grace();
    }

    /// The notifications about reserved locks, since the last call of this.
    pub(crate) fn take_free_locks(&mut self) -> Vec<LockFree> {
        self.locks.take_free()
    }

    /// A session can be called by another connection.
    pub(crate) fn session_is_reached(&mut self, session: SessionId) {
        self.on_lease(leases::Event::Reached { session });
        self.locks.reached(session);
    }

    /// Some time has passed.
    pub(crate) fn time_has_passed(&mut self, now: Instant) {
        self.issued.expire(now);
        self.on_lease(leases::Event::Ticked { now });
        self.locks.ticked(now);
    }

    /// A session is over, and its capabilities are revoked: nothing that it sent to a disk under a
    /// lock arrives any more.
    pub(crate) fn session_is_over(&mut self, session: SessionId, now: Instant) {
        self.on_lease(leases::Event::Ended { session });
        self.locks.end(session, now);
    }

    /// A file is removed.
    pub(crate) fn file_is_gone(&mut self, file: FileId) {
        self.on_lease(leases::Event::Gone { file });
        self.locks.forget(file);
        self.in_place.gone(file);
        self.destage.forget(file);
        self.leaving.forget(file);
    }
}

/// The changes that a call requests.
fn changes(changes: &LockChanges) -> Result<Vec<Change>, Status> {
    changes.0.iter().map(Change::of).collect()
}
