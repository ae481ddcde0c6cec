//! Work that waits until leases of other sessions are returned: calls; and new data versions of
//! files that a writer changed in place and will no longer commit ([`crate::in_place`]), after its
//! capabilities are revoked and the disks have made durable what it wrote.

use std::collections::BTreeMap;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, LeaseKind, SessionId};

use super::{Aside, Committer, Event, Group, Pending, answer, wall};
use crate::change::Reply;
use crate::engine::View;
use crate::in_place::Mark;
use crate::leases::{CallNumber, Claim, claims};
use crate::store::Txn;

/// Whoever left something has no leases any more, or is to ask again like the others.
const NOBODY: SessionId = SessionId([0; 16]);

impl Committer {
    /// A number for something that may have to wait.
    pub(super) fn next_number(&mut self) -> CallNumber {
        let number = self.next_call;
        self.next_call = CallNumber(number.0 + 1);
        number
    }

    /// Carries out what waits no more.
    pub(super) fn go_on(&mut self, view: &dyn View, group: &mut Group) {
        while let Some(number) = self.ready.pop_front() {
            let pending = match self.aside.remove(&number) {
                Some(Aside::Call(pending)) => *pending,
                Some(Aside::Mend(mark)) => {
                    self.mend_now(view, group, mark);
                    continue;
                }
                None => continue,
            };
            let session = pending.called.change.bearer().session();
            match session.map(|session| self.sessions.is_there(session)) {
                _ if self.failed.is_some() => {
                    let status = self.failed.unwrap_or(Status::Io);
                    answer(pending.called.waiter, Reply::refused(status));
                }
                Some(false) => answer(pending.called.waiter, Reply::refused(Status::BadSession)),
                _ => self.begin(view, group, number, pending),
            }
        }
        self.flush_left(view, group);
    }

    /// Carries a call out, or puts it aside until leases of others are given back.
    pub(super) fn begin(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        number: CallNumber,
        pending: Pending,
    ) {
        let change = &pending.called.change;
        let session = change.bearer().session();
        if let Some(session) = session.filter(|session| self.live.others_have_leases(*session)) {
            // What cannot be read fails again when it is carried out.
            let claims = claims::of(&Txn::new(view, &group.writes), change).unwrap_or_default();
            let goes = self.live.claim(number, session, claims, self.clock.instant());
            self.act();
            if !goes {
                self.aside.insert(number, Aside::Call(Box::new(pending)));
                return;
            }
        }
        self.carry_out(view, group, pending);
    }

    /// Has the disks make durable what was left.
    pub(super) fn flush_left(&mut self, view: &dyn View, group: &Group) {
        let mut by_disks: BTreeMap<Vec<DiskId>, Vec<Mark>> = BTreeMap::new();
        for mark in std::mem::take(&mut self.left) {
            match self.live.disks_with(&Txn::new(view, &group.writes), mark.0) {
                Ok(disks) => by_disks.entry(disks).or_default().push(mark),
                // What cannot be read now is tried again with the next event.
                Err(_) => drop(self.left.insert(mark)),
            }
        }
        for (disks, marks) in by_disks {
            (self.await_disks)(self.disks.flush(disks), Event::Flushed(marks));
        }
    }

    /// Gives a file another version, now or when others have given their leases back.
    pub(super) fn mend(&mut self, view: &dyn View, group: &mut Group, mark: Mark) {
        let number = self.next_number();
        if self.live.others_have_leases(NOBODY) {
            let claims = vec![Claim { file: mark.0, keep: LeaseKind::None }];
            let goes = self.live.claim(number, NOBODY, claims, self.clock.instant());
            self.act();
            if !goes {
                self.aside.insert(number, Aside::Mend(mark));
                return;
            }
        }
        self.mend_now(view, group, mark);
    }

    pub(super) fn mend_now(&mut self, view: &dyn View, group: &mut Group, mark: Mark) {
        let now = wall(&*self.clock);
        if self.failed.is_none()
            && !self.internal(view, group, |live, txn| live.mend(txn, mark, now))
        {
            self.left.insert(mark);
        }
    }
}
