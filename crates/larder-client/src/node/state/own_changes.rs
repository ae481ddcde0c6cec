//! Our own changes of a file that are under way, and what their replies say in the end.

use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Change, Kind, Lease};

use super::State;
use crate::node::changes::{Ended, Proof, prove, prove_names, recency};
use crate::options::TtlRange;

impl State {
    /// Before a change of our own is sent.
    pub(crate) fn begin_change(&mut self) {
        if self.changes.in_flight == 0 {
            debug_assert!(self.changes.replies.is_empty(), "those of the last group were judged");
            self.changes.lease = self.leasing.held().cloned();
        }
        self.changes.in_flight += 1;
    }

    /// During a change of ours: the server has the bytes that we wrote up to `end`, and the kernel
    /// knows of them. The reply perhaps does not describe the file.
    pub(crate) fn wrote(&mut self, end: u64) {
        assert!(self.changes.in_flight > 0, "bytes are sent outside of a change");
        self.changes.written_end = self.changes.written_end.max(end);
        self.opens.raise_believed_end(end);
    }

    /// Where the file ends at the server, as far as is known: all behind it are zeros or nothing.
    pub(crate) fn server_end(&self) -> u64 {
        self.known.attr.size.max(self.changes.written_end)
    }

    /// Ends a change that was answered, by one reply or several, or failed (no reply). When the
    /// last one of a group ends, decides what became of the file. On a coarse clock another
    /// client's change may have the same time as ours.
    pub(crate) fn end_change(
        &mut self,
        replies: impl IntoIterator<Item = Change>,
        session: u64,
        now: Monotonic,
        ttl: TtlRange,
        is_coarse: bool,
    ) -> Option<Ended> {
        assert!(self.changes.in_flight > 0, "a change ends that did not begin");
        debug_assert!(now >= self.changes.ended, "changes end in the order of their times");
        self.changes.in_flight -= 1;
        self.take_in(replies);
        self.changes.ended = now;
        if self.changes.in_flight > 0 || self.changes.replies.is_empty() {
            return None;
        }
        let from = self.known.attr.validator();
        let replies = std::mem::take(&mut self.changes.replies);
        let lease = self.changes.lease.take().filter(|lease| !lease.ends_late());
        let leased = lease.as_ref().is_some_and(Lease::holds);
        let newest = replies.iter().filter_map(|change| change.after).max_by_key(recency);
        // A directory's lease vouches for its names; its times have moved.
        let vouched = lease.filter(|_| leased && self.is_directory() && newest.is_none());
        let proof = match self.known.attr.kind {
            _ if leased => newest.map_or(Proof::Untold, Proof::Ours),
            Kind::File => prove(from, &replies),
            _ => prove_names(from, &replies, newest),
        };
        // A change that no reply describes may have made the file longer than all of them say.
        let is_untold = replies.iter().any(|change| change.after.is_none());
        let written_end = if is_untold { self.changes.written_end } else { 0 };
        let (ours, after) = match proof {
            Proof::Ours(attr) => (true, Some(attr)),
            Proof::Moved(attr) => {
                (std::mem::take(&mut self.ctime_may_move) || attr.data_change.is_some(), Some(attr))
            }
            Proof::Untold => (true, newest),
            Proof::Foreign => (false, newest),
        };
        if !ours {
            tracing::debug!(?from, ?replies, "somebody else changed the file too");
            match proof {
                Proof::Moved(_) => self.rights.clear(),
                _ => self.forget_contents(),
            }
            self.unsent.foreign_change(self.opens.bypassing());
        }
        if proof == Proof::Untold {
            tracing::debug!(?from, ?replies, leased, "somebody else may have changed the file");
        }
        let nothing_held = !ours || after.is_some_and(|attr| attr.size == 0);
        self.known.doubtful &= !nothing_held;
        self.known.doubtful |= proof == Proof::Untold && vouched.is_none();
        self.known.doubtful |= is_coarse && (self.is_directory() || !nothing_held);
        match after {
            Some(attr) => {
                self.known.ttl = ttl.min;
                self.adopt(attr, session, now);
            }
            None if vouched.is_some() => self.ctime_moved = Some(now),
            None => self.known.ttl = Duration::ZERO,
        }
        self.changes.vouched = vouched;
        self.changes.written_end = written_end;
        Some(Ended { from, ours: ours && after.is_some() })
    }

    fn take_in(&mut self, replies: impl IntoIterator<Item = Change>) {
        let earlier = self.changes.replies.len();
        self.changes.replies.extend(replies);
        let told = &self.changes.replies[earlier..];
        if told.is_empty() || told.iter().any(|change| change.after.is_none()) {
            self.is_told_in_part();
        }
    }

    /// Whether a change of ours may have come between a question sent at `asked` and its answer,
    /// which then may describe the state before.
    pub(crate) fn changed_since(&self, asked: Monotonic) -> bool {
        self.changes.in_flight > 0 || self.changes.ended > asked
    }

    /// The server may have carried out more of a change of ours than its replies describe.
    pub(crate) fn is_told_in_part(&mut self) {
        self.changes.is_untold = true;
    }

    /// Whether the server's version may be one of ours that we do not know.
    pub(crate) fn may_be_moved(&self) -> bool {
        self.changing() || self.changes.is_untold
    }

    /// Whether changes of our own are in flight.
    pub(crate) fn changing(&self) -> bool {
        self.changes.in_flight > 0
    }
}
