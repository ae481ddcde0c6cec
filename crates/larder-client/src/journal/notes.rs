//! Records what must survive the process ([`super::session`]), and removes the records again.

use std::sync::atomic::Ordering;

use larder_vfs::{Ino, LockOwner, OpenId};

use super::record::Record;
use super::session::{
    LOCK, LockRecord, OPEN, OPEN_BLOCK, OpenRecord, REQUESTS, RUN, Run, UNFINISHED, Unfinished,
    key, lock_kind_code,
};
use crate::core::Core;
use crate::locks::Table;
use crate::node::State;
use crate::options::Keeps;

impl Core {
    /// Records the run. Must be called before a number of an open file from `next_open` on is
    /// assigned.
    pub(crate) fn note_run(&self, next_open: u64) {
        debug_assert!(
            next_open.is_multiple_of(OPEN_BLOCK),
            "the bound is raised by the number that begins a block"
        );
        let run = Run { session: self.session, next_open };
        self.cache.put_session(RUN, &run.encode());
    }

    pub(crate) fn note_open(&self, id: OpenId, open: &OpenRecord) {
        debug_assert!(
            open.mode.passes_through() || open.local == 0,
            "the kernel has a local file only for an open that passes through"
        );
        self.cache.put_session(&key(OPEN, id.0), &open.encode());
    }

    /// Brings the class of an open file on record up to date.
    pub(crate) fn note_class(&self, id: OpenId, class: &str) {
        let record = self.cache.session_record(&key(OPEN, id.0));
        if let Some(open) = record.as_deref().and_then(OpenRecord::decode) {
            let class = Some(class.to_owned());
            self.note_open(id, &OpenRecord { class, ..open });
        }
    }

    pub(crate) fn forget_open(&self, id: OpenId) {
        self.cache.drop_session(&key(OPEN, id.0));
    }

    /// Updates the record of what an owner has locked.
    pub(crate) fn note_locks(&self, ino: Ino, locks: &Table, owner: LockOwner) {
        let kind = vec![lock_kind_code(owner.kind)];
        let key = [key(LOCK, ino.0), kind, owner.id.to_be_bytes().to_vec()].concat();
        match locks.holder(owner) {
            Some(holder) => {
                let record = LockRecord { ino, holder: holder.clone() };
                self.cache.put_session(&key, &record.encode());
            }
            None => self.cache.drop_session(&key),
        }
    }

    pub(crate) fn forget_unfinished(&self, ino: Ino) {
        self.cache.drop_session(&key(UNFINISHED, ino.0));
    }

    /// Updates the record of the work that is left for a file. Call it with the node's lock held,
    /// after each change of a part of [`Unfinished`].
    pub(crate) fn note_unfinished(&self, ino: Ino, state: &mut State) {
        let left = Unfinished {
            hidden: state.hidden().names_to_remove(),
            removed: state.is_gone() && !state.opens().is_empty(),
            write_error: state.unsent().failure(),
            writer: state.unsent().end().and_then(|_| state.unsent().writer().cloned()),
            has_requests: state.has_unsent() && state.unsent().requests().are_made(),
        };
        if !state.note(left.clone()) {
            return;
        }
        if left == Unfinished::default() {
            self.forget_unfinished(ino);
        } else {
            self.cache.put_session(&key(UNFINISHED, ino.0), &left.encode());
        }
    }

    /// Whether requests that may change a file with unsent data are on record before they are made.
    pub(crate) fn tells_requests(&self) -> bool {
        self.options.keeps != Keeps::Empty && self.remote.deferring().is_none()
    }

    /// From now on the records of all files say whether requests were made, also of files that an
    /// earlier process left; or they do not say that any more.
    pub(crate) fn note_requests_told(&self, are_told: bool) {
        match are_told {
            true => self.cache.put_session(REQUESTS, &[1]),
            false => self.cache.drop_session(REQUESTS),
        }
    }

    /// The mount is over: forgets what only a run that continues it would need. Hidden files that
    /// still exist are left to the next mount.
    pub(crate) fn end_session(&self) {
        // First: without the other records it would not be true.
        self.cache.drop_session(REQUESTS);
        for (key, value) in self.cache.session_records() {
            let hidden = key.first() == Some(&UNFINISHED)
                && Unfinished::decode(&value).is_some_and(|left| !left.hidden.is_empty());
            if !hidden {
                self.cache.drop_session(&key);
            }
        }
    }

    pub(crate) fn next_open_id(&self) -> OpenId {
        OpenId(self.next_number())
    }

    /// A number that no open file or hidden name of this mount has had, in any process.
    pub(crate) fn next_number(&self) -> u64 {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(OPEN_BLOCK) {
            self.note_run(number + 2 * OPEN_BLOCK);
        }
        number
    }
}
