//! What the client knows of one file, and how replies change it.
//!
//! Synchronous and without I/O: every function takes what a reply said and when it was asked for, so
//! coherence is tested without a server. Two rules keep answers that arrive out of order from
//! turning time back:
//! - a description counts only if it was asked for after the newest one that we hold was;
//! - while changes of our own are under way, and for calls made before they ended, only what the
//!   changes' own replies say counts.
//!
//! A group of changes is *ours* if the server's replies prove that nobody else made one meanwhile
//! ([`crate::node::changes`]): then what we hold stays valid under the new version. If they prove the
//! contrary, names and data that belong to the old version are not used again. If they prove neither,
//! because the server does not tell, data is *doubtful*: who has the file open goes on with it, and
//! the next open gives it up ([`State::start_over`]).
//!
//! Doubtful is also what was read of a version that was too young to vouch for it ([`crate::node::server_times`]), or what a
//! change of ours left on such a server. Of a directory, names and listing are given up by the next description
//! that is asked for when they have aged, or when the version has.

use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Attr, Change, Handle, Ino, Kind, Lease, Validator};

use super::changes::{Changes, Proof, Settled, follow, have_same_bytes, prove, recency};
use super::privileges::Dropped;
use super::rights::Rights;
use crate::journal::{Known, Unfinished, Version};
use crate::names::Listed;
use crate::open::Opens;
use crate::options::TtlRange;
use crate::read::Shown;
use crate::write::Unsent;

/// Everything that is known of a file, guarded by its node's lock.
pub(crate) struct State {
    /// The server's name for it.
    pub(crate) handle: Handle,
    /// What is kept in the index too.
    pub(crate) known: Known,
    /// The server's promise to tell us first, if it gave one with the attributes.
    pub(crate) lease: Option<Lease>,
    /// When it was asked for one and gave none.
    pub(crate) lease_refused: Option<Monotonic>,
    /// It is being asked for one that nobody waits for.
    pub(crate) lease_asked: bool,
    /// The server has confirmed what is known, and the index does not have the time of that yet.
    pub(crate) confirmed: bool,
    /// Our own changes that are under way.
    changes: Changes,
    /// What the server lets whom do.
    pub(crate) rights: Rights,
    /// Open files, by their modes.
    pub(crate) opens: Opens,
    /// The version that the kernel's page cache holds pages of.
    pub(crate) pages: Option<Version>,
    /// What the server lacks of it.
    pub(crate) unsent: Unsent,
    /// The name that stands for an open file whose last name was removed.
    pub(crate) silly: Option<(Ino, std::ffi::OsString)>,
    /// Directories: names in it that stand for open files, until the server has removed them.
    pub(crate) hidden_names: u32,
    /// The hidden name that the server is being asked to give it.
    pub(crate) hiding: Option<(Ino, std::ffi::OsString)>,
    /// What is recorded of what is to be done about it.
    pub(crate) noted: Unfinished,
    /// Removed for good: nothing is to be uploaded or found again.
    pub(crate) removed: bool,
    /// The process whose lookup just brought the attributes: its open need not ask again.
    pub(crate) looked_up_by: Option<(u32, Monotonic)>,
    /// Directories: what is remembered of those who list it.
    pub(crate) listed: Listed,
    /// Directories: programs sync files of it again and again while they write them.
    pub(crate) synced_here: bool,
    /// We renamed it or changed its link count, which moves its ctime without telling us.
    pub(crate) ctime_may_move: bool,
    /// When we last did so and were not told: a description from before has an old ctime.
    ctime_moved: Option<Monotonic>,
    /// Bits of the mode that a writer drops.
    pub(crate) dropped: Dropped,
}

/// What a description of a file told us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is older than what we hold.
    Older,
    /// The version that we hold.
    Same,
    /// Only our own rename or link shows in it: what we hold is valid under the new version.
    Moved {
        /// The version before.
        from: Validator,
    },
    /// Another version: somebody else changed the file.
    Changed,
}

impl State {
    /// A file of which we have read a record, or that a reply has just described.
    pub(crate) fn new(handle: Handle, known: Known) -> State {
        State {
            handle,
            known,
            lease: None,
            lease_refused: None,
            lease_asked: false,
            confirmed: false,
            changes: Changes::default(),
            rights: Rights::default(),
            opens: Opens::default(),
            pages: None,
            unsent: Unsent::default(),
            silly: None,
            hidden_names: 0,
            hiding: None,
            noted: Unfinished::default(),
            removed: false,
            looked_up_by: None,
            listed: Listed::default(),
            synced_here: false,
            ctime_may_move: false,
            ctime_moved: None,
            dropped: Dropped::default(),
        }
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.known.attr.kind == Kind::Directory
    }

    /// Whether the kernel may hold attributes or pages of it: somebody has asked about the file since the mount
    /// began. Of directories it is told otherwise (by epochs), and their attributes age.
    pub(crate) fn is_shown(&self, session: u64) -> bool {
        self.known.session == session && self.known.attr.kind == Kind::File
    }

    /// For how long the attributes may still be trusted; zero if they may not.
    pub(crate) fn fresh_for(&self, session: u64, now: Monotonic) -> Duration {
        if self.known.session != session {
            return Duration::ZERO;
        }
        if self.is_vouched_for() {
            return self.known.ttl;
        }
        self.known.ttl.saturating_sub(now.since(self.known.asked))
    }

    /// We renamed it or changed its link count, and the reply did not describe it.
    pub(crate) fn move_ctime(&mut self, now: Monotonic) {
        self.ctime_may_move = true;
        self.ctime_moved = Some(now);
    }

    /// A name was removed or replaced that was last known to be the file's: its link count and its ctime are to be
    /// asked for.
    pub(crate) fn doubt(&mut self, now: Monotonic) {
        self.ctime_moved = Some(now);
    }

    /// Whether all that is shown of the file is what the server has said.
    pub(crate) fn is_settled(&self) -> bool {
        let as_told = self.dropped.is_none() && !self.ctime_is_old();
        as_told && !self.has_unsent()
    }

    /// Whether the ctime that is held is from before a change of ours. Who does not look at it may use
    /// the other attributes.
    pub(crate) fn ctime_is_old(&self) -> bool {
        self.ctime_moved.is_some_and(|moved| self.known.asked < moved)
    }

    /// Attributes as applications see them: the server's, with what it does not know yet.
    pub(crate) fn attr(&self) -> Attr {
        let mut attr = self.known.attr;
        attr.mode = self.dropped.shown(attr.mode);
        if self.removed {
            attr.nlink = 0;
        } else if self.silly.is_some() {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        if let Some(local) = self.unsent.end() {
            attr.size = local.size;
            attr.used = attr.used.max(local.size);
            attr.mtime = local.mtime.max(attr.mtime);
            attr.ctime = local.mtime.max(attr.ctime);
        } else if let Some(size) = self.opens.written_size() {
            attr.size = size;
        }
        attr
    }

    /// What bytes that are held now are held for.
    pub(crate) fn version(&self) -> Version {
        Version { validator: self.known.attr.validator(), rereads: self.known.rereads }
    }

    /// What who reads the file now is shown.
    pub(crate) fn shown(&self) -> Shown {
        Shown { version: self.known.attr.validator(), epoch: Some(self.known.epoch) }
    }

    /// The version that bytes are fetched for, and what their reader is shown.
    pub(crate) fn version_shown(&self) -> (Version, Shown) {
        (self.version(), self.shown())
    }

    /// Gives up what is held of a file if it is doubtful: it is of no version from now on. Answers whether
    /// it was.
    pub(crate) fn start_over(&mut self) -> bool {
        let was_doubtful = std::mem::take(&mut self.known.doubtful);
        self.known.rereads += u64::from(was_doubtful);
        was_doubtful
    }

    /// Takes in a description that came with the reply to a call made at `asked`. The version that it tells may be too
    /// young to vouch for what is read from then on.
    pub(crate) fn observe(
        &mut self,
        attr: Attr,
        session: u64,
        asked: Monotonic,
        ttl: TtlRange,
        is_young: bool,
    ) -> Seen {
        let newer = self.known.session != session || asked >= self.known.asked;
        if !newer || self.changes.in_flight > 0 || asked < self.changes.ended {
            return Seen::Older;
        }
        let was_fresh = !self.fresh_for(session, asked).is_zero();
        let seen = self.compare(&attr);
        self.known.ttl = match seen {
            Seen::Same => (self.known.ttl * 2).clamp(ttl.min, ttl.max),
            _ => ttl.min,
        };
        if seen == Seen::Changed {
            self.unsent.foreign_change(self.opens.is_bypassed());
            // Times may come back to what they were (a coarse clock that is set back, replies that a server puts together
            // from two moments): what was doubtful of that version stays given up.
            self.start_over();
            // To who reads a file it is the same one if its bytes are.
            match have_same_bytes(&self.known.attr.validator(), &attr.validator()) {
                true if !self.is_directory() => self.rights.clear(),
                _ => self.forget_contents(),
            }
        }
        self.judge_age(seen, was_fresh, is_young);
        self.adopt(attr, session, asked);
        seen
    }

    /// Draws the conclusions from the age of a version that was `seen`, and is not taken in yet. Bytes of a file are
    /// judged when they come.
    fn judge_age(&mut self, seen: Seen, was_fresh: bool, is_young: bool) {
        if !self.is_directory() {
            self.known.doubtful |= is_young && matches!(seen, Seen::Moved { .. });
            return;
        }
        if self.known.doubtful && !(is_young && was_fresh) {
            self.known.doubtful = false;
            self.forget_contents();
        }
        self.known.doubtful |= is_young;
    }

    fn compare(&mut self, attr: &Attr) -> Seen {
        let held = self.known.attr.validator();
        if held.same(&attr.validator()) {
            return Seen::Same;
        }
        let moved = std::mem::take(&mut self.ctime_may_move);
        let only_ctime = held.size == attr.size && held.mtime == attr.mtime;
        if moved && only_ctime && attr.ctime >= held.ctime {
            return Seen::Moved { from: held };
        }
        Seen::Changed
    }

    /// Before a change of our own is sent.
    pub(crate) fn begin_change(&mut self) {
        if self.changes.in_flight == 0 {
            self.changes.replies.clear();
            self.changes.lease = self.lease.clone().filter(Lease::holds);
        }
        self.changes.in_flight += 1;
    }

    /// After it was answered, by one reply or several, or failed (by none): when the last one of a group
    /// has ended, tells what became of the file. On a coarse clock somebody else's change may hide behind ours.
    pub(crate) fn end_change(
        &mut self,
        replies: impl IntoIterator<Item = Change>,
        session: u64,
        now: Monotonic,
        ttl: TtlRange,
        is_coarse: bool,
    ) -> Option<Settled> {
        assert!(self.changes.in_flight > 0, "a change ends that did not begin");
        self.changes.in_flight -= 1;
        self.changes.replies.extend(replies);
        self.changes.ended = now;
        if self.changes.in_flight > 0 || self.changes.replies.is_empty() {
            return None;
        }
        let from = self.known.attr.validator();
        let replies = std::mem::take(&mut self.changes.replies);
        let leased = self.changes.lease.take().is_some_and(|lease| lease.holds());
        let newest = replies.iter().filter_map(|change| change.after).max_by_key(recency);
        let proof = match self.known.attr.kind {
            _ if leased => newest.map_or(Proof::Untold, Proof::Ours),
            Kind::File => prove(from, &replies),
            _ if follow(from, &replies) => newest.map_or(Proof::Foreign, Proof::Ours),
            _ => Proof::Foreign,
        };
        let (ours, after) = match proof {
            Proof::Ours(attr) => (true, Some(attr)),
            Proof::Moved(attr) => (std::mem::take(&mut self.ctime_may_move), Some(attr)),
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
        let nothing_held = !ours || after.is_some_and(|attr| attr.size == 0);
        self.known.doubtful &= !nothing_held;
        self.known.doubtful |= proof == Proof::Untold;
        self.known.doubtful |= is_coarse && (self.is_directory() || !nothing_held);
        match after {
            Some(attr) => {
                self.known.ttl = ttl.min;
                self.adopt(attr, session, now);
            }
            None => self.known.ttl = Duration::ZERO,
        }
        Some(Settled { from, ours: ours && after.is_some() })
    }

    /// Whether a change of ours may have come between a question `asked` and its answer, which then may
    /// tell what was before the change.
    pub(crate) fn changed_since(&self, asked: Monotonic) -> bool {
        self.changes.in_flight > 0 || self.changes.ended > asked
    }

    /// Whether changes of our own are under way.
    pub(crate) fn changing(&self) -> bool {
        self.changes.in_flight > 0
    }

    fn adopt(&mut self, attr: Attr, session: u64, asked: Monotonic) {
        let old = &self.known.attr;
        let same_judgement = (old.mode, old.uid, old.gid) == (attr.mode, attr.uid, attr.gid);
        if !same_judgement {
            self.rights.clear();
        }
        self.known.attr = attr;
        self.known.session = session;
        self.known.asked = asked;
    }

    /// Somebody else changed the file: names, listing and rights are no longer known.
    pub(crate) fn forget_contents(&mut self) {
        self.known.epoch = self.known.epoch.wrapping_add(1);
        self.known.listing = None;
        self.listed.last_page = None;
        self.known.target = None;
        self.rights.clear();
    }

    /// Whether nothing would be lost by forgetting everything but [`State::known`].
    pub(crate) fn is_idle(&self) -> bool {
        self.changes.in_flight == 0
            && self.opens.is_empty()
            && self.unsent.end().is_none()
            && self.silly.is_none()
            && self.hidden_names == 0
            && self.hiding.is_none()
            && self.unsent.failure().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::file_of;
    use larder_vfs::{Before, Time};

    const TTL: TtlRange = TtlRange { min: Duration::from_secs(5), max: Duration::from_secs(20) };
    const SESSION: u64 = 7;

    fn attr(version: u32) -> Attr {
        let file = file_of(Time { sec: 100, nsec: version });
        Attr { kind: Kind::Directory, mode: 0o755, nlink: 2, size: 4096, used: 4096, ..file }
    }

    fn state() -> State {
        let known = Known::described(attr(0), SESSION, at(10), TTL.min);
        State::new(Handle::new(b"h"), known)
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    fn change(before: u32, after: u32) -> Change {
        let seen = attr(before);
        let before = Before { size: seen.size, mtime: seen.mtime, ctime: seen.ctime, change: None };
        Change { before: Some(before), after: Some(attr(after)) }
    }

    #[test]
    fn attributes_are_fresh_for_their_timeout_in_this_session_only() {
        let state = state();
        assert_eq!(state.fresh_for(SESSION, at(12)), Duration::from_secs(3));
        assert_eq!(state.fresh_for(SESSION, at(15)), Duration::ZERO);
        assert_eq!(state.fresh_for(SESSION + 1, at(12)), Duration::ZERO);
    }

    #[test]
    fn timeout_doubles_while_nothing_changes() {
        let mut state = state();
        for (asked, seconds) in [(20, 10), (30, 20), (40, 20)] {
            assert_eq!(state.observe(attr(0), SESSION, at(asked), TTL, false), Seen::Same);
            assert_eq!(state.known.ttl, Duration::from_secs(seconds));
        }
        assert_eq!(state.observe(attr(1), SESSION, at(50), TTL, false), Seen::Changed);
        assert_eq!(state.known.ttl, TTL.min);
        assert_eq!(state.known.epoch, 1);
    }

    #[test]
    fn an_older_answer_does_not_turn_time_back() {
        let mut state = state();
        assert_eq!(state.observe(attr(2), SESSION, at(20), TTL, false), Seen::Changed);
        assert_eq!(state.observe(attr(1), SESSION, at(19), TTL, false), Seen::Older);
        assert_eq!(state.known.attr, attr(2));
    }

    #[test]
    fn answers_asked_for_before_our_change_ended_do_not_count() {
        let mut state = state();
        state.begin_change();
        assert_eq!(state.observe(attr(1), SESSION, at(20), TTL, false), Seen::Older);
        let settled = state.end_change([change(0, 1)], SESSION, at(30), TTL, false).unwrap();
        assert!(settled.ours);
        assert_eq!(state.observe(attr(0), SESSION, at(25), TTL, false), Seen::Older);
        assert_eq!((state.known.attr, state.known.epoch), (attr(1), 0));
    }

    #[test]
    fn a_change_of_ours_overlaps_what_was_asked_before_it_ended() {
        let mut state = state();
        assert!(!state.changed_since(at(10)));
        state.begin_change();
        assert!(state.changed_since(at(10)) && state.changed_since(at(25)), "it is under way");
        state.end_change([change(0, 1)], SESSION, at(30), TTL, false);
        assert!(state.changed_since(at(25)));
        assert!(!state.changed_since(at(30)));
    }

    /// (changes in the order of their replies, whether they are ours)
    #[test]
    fn changes_are_ours_if_they_follow_on_each_other() {
        for (changes, ours) in [
            (vec![change(0, 1)], true),
            (vec![change(1, 2), change(0, 1)], true),
            (vec![change(0, 2), change(0, 2)], true),
            (vec![change(5, 6)], false),
            (vec![change(0, 1), change(5, 6)], false),
            (vec![Change { before: None, ..change(0, 1) }], false),
        ] {
            let mut state = state();
            changes.iter().for_each(|_| state.begin_change());
            let mut ends =
                changes.iter().map(|c| state.end_change([*c], SESSION, at(20), TTL, false));
            let settled = ends.by_ref().find_map(|end| end).unwrap();
            assert_eq!(settled.ours, ours, "{changes:?}");
            drop(ends);
            assert_eq!(state.known.epoch, u64::from(!ours));
            let newest = changes.iter().filter_map(|c| c.after).max_by_key(recency);
            assert_eq!(Some(state.known.attr), newest);
        }
    }

    /// (what kind of file, whether what is held goes on, whether it is doubtful then)
    #[test]
    fn what_the_server_does_not_tell_of_a_change_leaves_doubt() {
        for (kind, ours, doubtful) in [(Kind::File, true, true), (Kind::Directory, false, false)] {
            let mut state = state();
            state.known.attr.kind = kind;
            state.begin_change();
            let untold = Change { before: None, after: Some(Attr { kind, ..attr(1) }) };
            let settled = state.end_change([untold], SESSION, at(20), TTL, false).unwrap();
            assert_eq!((settled.ours, state.known.doubtful), (ours, doubtful), "{kind:?}");
            assert_eq!(state.start_over(), doubtful);
            assert!(!state.start_over());
            assert_eq!(state.version().rereads, u64::from(doubtful));
        }
    }

    /// (when it is described once more, whether it is young then, whether names go on, whether they are doubtful then)
    #[test]
    fn names_of_a_young_directory_go_when_they_or_it_have_aged() {
        for (asked, young, go_on, doubtful) in [
            (21, true, true, true),
            (21, false, false, false),
            (26, true, false, true),
            (26, false, false, false),
        ] {
            let mut state = state();
            state.observe(attr(1), SESSION, at(20), TTL, true);
            let epoch = state.known.epoch;
            assert_eq!(state.observe(attr(1), SESSION, at(asked), TTL, young), Seen::Same);
            assert_eq!(state.known.epoch == epoch, go_on, "{asked} {young}");
            assert_eq!(state.known.doubtful, doubtful, "{asked} {young}");
        }
    }

    /// (what kind of file, its size afterwards, whether it is doubtful)
    #[test]
    fn a_change_of_ours_on_a_coarse_clock_leaves_doubt() {
        for (kind, size, doubtful) in
            [(Kind::File, 4096, true), (Kind::File, 0, false), (Kind::Directory, 0, true)]
        {
            let mut state = state();
            state.known.attr.kind = kind;
            state.begin_change();
            let after = Some(Attr { kind, size, ..attr(1) });
            state.end_change([Change { after, ..change(0, 1) }], SESSION, at(20), TTL, true);
            assert_eq!(state.known.doubtful, doubtful, "{kind:?} {size}");
        }
    }

    #[test]
    fn doubtful_bytes_do_not_come_back_with_their_version() {
        for doubtful in [true, false] {
            let mut state = state();
            state.known.attr.kind = Kind::File;
            state.known.doubtful = doubtful;
            let held = state.version();
            for (version, asked) in [(1, 20), (0, 21)] {
                let attr = Attr { kind: Kind::File, ..attr(version) };
                assert_eq!(state.observe(attr, SESSION, at(asked), TTL, false), Seen::Changed);
            }
            assert_eq!(state.version().same(&held), !doubtful);
        }
    }

    #[test]
    fn foreign_change_under_local_changes_makes_a_mixture() {
        let mut state = state();
        state.known.attr.kind = Kind::File;
        state.unsent = Unsent::of_size(1);
        state.observe(Attr { kind: Kind::File, ..attr(1) }, SESSION, at(20), TTL, false);
        assert!(state.unsent.is_mixed());
    }

    #[test]
    fn a_failed_change_changes_nothing() {
        let mut state = state();
        state.begin_change();
        assert!(state.end_change([], SESSION, at(20), TTL, false).is_none());
        assert_eq!((state.known.attr, state.known.epoch), (attr(0), 0));
    }

    #[test]
    fn our_rename_moves_ctime_only() {
        let mut state = state();
        let moved = Attr { ctime: Time { sec: 200, nsec: 0 }, ..attr(0) };
        state.ctime_may_move = true;
        let from = attr(0).validator();
        assert_eq!(state.observe(moved, SESSION, at(20), TTL, false), Seen::Moved { from });
        let again = Attr { ctime: Time { sec: 300, nsec: 0 }, ..attr(0) };
        assert_eq!(state.observe(again, SESSION, at(30), TTL, false), Seen::Changed);
    }
}
