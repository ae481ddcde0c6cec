//! What the client knows of one file, and how replies change it.
//!
//! Synchronous and without I/O: every function takes a reply's content and the time of its request,
//! so coherence is tested without a server. Two rules keep answers that arrive out of order from
//! turning time back:
//! - a description counts only if it was asked for after the newest one that we hold was;
//! - while changes of our own are under way, and for calls made before they ended, only what the
//!   changes' own replies say counts.
//!
//! A group of changes is *ours* if the server's replies prove that no other client made one
//! meanwhile ([`crate::node::changes`]): then what we hold stays valid under the new version. If
//! they prove the contrary, names and data that belong to the old version are not used again. If
//! they prove neither, because the server does not report enough, data is *doubtful*: open files
//! continue with it, and the next open drops it ([`State::start_over`]).
//!
//! Data is also doubtful if it was read of a version that was too young to vouch for it
//! ([`crate::node::server_times`]), or left by a change of ours on such a server. The names and
//! listing of a directory are dropped by the next description that is requested after they, or the
//! version, have aged.

use std::ffi::OsString;
use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Attr, Error, Handle, Kind, Result};

use super::changes::{Changes, Seen, have_same_bytes};
use super::dropped::Dropped;
use super::leasing::Leasing;
use super::server_times::Age;
use super::verdicts::Rights;
use crate::journal::{Known, ListingState, Unfinished, Version};
use crate::names::{Dentry, Hidden, Listed, Whole};
use crate::open::Opens;
use crate::options::TtlRange;
use crate::read::Shown;
use crate::write::Unsent;

/// Everything that is known of a file, guarded by its node's lock. Each part is changed by its
/// owner alone.
pub(crate) struct State {
    identity: Identity,
    /// What is recorded in the index too.
    known: Known,
    /// The server has confirmed what is known, and the index does not have the time of that yet.
    is_confirmed: bool,
    leasing: Leasing,
    /// When the server last withdrew a lease.
    withdrawn: Option<Monotonic>,
    /// Our own changes that are in flight.
    changes: Changes,
    /// The rights that the server grants each user.
    rights: Rights,
    /// Open files, by their modes, and what the kernel shows of the file.
    opens: Opens,
    /// What the server lacks of the file.
    unsent: Unsent,
    hidden: Hidden,
    /// The work that is left for the file, as last recorded.
    noted: Unfinished,
    /// The process whose lookup just brought the attributes: its open need not ask again.
    looked_up_by: Option<(u32, Monotonic)>,
    /// Directories: what is remembered of their readers.
    listed: Listed,
    /// Directories: their names, if all are known.
    whole: Whole,
    /// We renamed it or changed its link count, which moves its ctime without telling us.
    ctime_may_move: bool,
    /// When we last did so without a description in the reply: an older description has an old
    /// ctime.
    ctime_moved: Option<Monotonic>,
    /// Bits of the mode that a writer drops.
    dropped: Dropped,
    /// The root directory: of all directories, the names that an fsync has to bring to the server.
    owed_names: Option<Box<owed_names::OwedNames>>,
}

/// Which file of the server it is.
#[derive(Clone, Debug, PartialEq)]
enum Identity {
    /// The server knows the file by this handle.
    Server(Handle),
    /// None any more: the server may have given the name to another one.
    Gone,
}

impl State {
    /// A file of which we have read a record, or that a reply has just described.
    pub(crate) fn new(handle: Handle, known: Known) -> State {
        State::of(Identity::Server(handle), known)
    }

    /// A file that was gone already when an earlier process recorded it.
    pub(crate) fn gone(known: Known) -> State {
        State::of(Identity::Gone, known)
    }

    fn of(identity: Identity, known: Known) -> State {
        State {
            identity,
            known,
            is_confirmed: false,
            leasing: Leasing::default(),
            withdrawn: None,
            changes: Changes::default(),
            rights: Rights::default(),
            opens: Opens::default(),
            unsent: Unsent::default(),
            hidden: Hidden::default(),
            noted: Unfinished::default(),
            looked_up_by: None,
            listed: Listed::default(),
            whole: Whole::default(),
            ctime_may_move: false,
            ctime_moved: None,
            dropped: Dropped::default(),
            owed_names: None,
        }
    }

    /// What is recorded in the index too.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// The server's name for the file.
    ///
    /// # Errors
    /// [`Error::Stale`] if the file is gone: the server may have given its name to another one.
    pub(crate) fn handle(&self) -> Result<Handle> {
        match &self.identity {
            Identity::Server(handle) => Ok(handle.clone()),
            Identity::Gone => Err(Error::Stale),
        }
    }

    /// Whether it is removed for good: nothing is to be uploaded or found again.
    pub(crate) fn is_gone(&self) -> bool {
        self.identity == Identity::Gone
    }

    /// Whether it is a directory that is removed for good.
    pub(crate) fn is_removed_directory(&self) -> bool {
        self.is_gone() && self.is_directory()
    }

    /// It is from now on.
    pub(crate) fn go(&mut self) {
        self.identity = Identity::Gone;
    }

    /// The server knows the file by this handle from now on.
    ///
    /// # Errors
    /// [`Error::Stale`] if it was removed for good: then what was found is another file.
    pub(crate) fn found_again(&mut self, handle: Handle) -> Result<()> {
        self.handle()?;
        self.identity = Identity::Server(handle);
        Ok(())
    }

    pub(crate) fn opens(&self) -> &Opens {
        &self.opens
    }

    pub(crate) fn opens_mut(&mut self) -> &mut Opens {
        &mut self.opens
    }

    pub(crate) fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    pub(crate) fn unsent_mut(&mut self) -> &mut Unsent {
        &mut self.unsent
    }

    /// The hidden name that stands for it while it is open and removed; of a directory, those in
    /// it.
    pub(crate) fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    pub(crate) fn hidden_mut(&mut self) -> &mut Hidden {
        &mut self.hidden
    }

    pub(crate) fn listed(&self) -> &Listed {
        &self.listed
    }

    pub(crate) fn listed_mut(&mut self) -> &mut Listed {
        &mut self.listed
    }

    pub(crate) fn whole(&self) -> &Whole {
        &self.whole
    }

    pub(crate) fn whole_mut(&mut self) -> &mut Whole {
        &mut self.whole
    }

    pub(crate) fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    pub(crate) fn dropped_mut(&mut self) -> &mut Dropped {
        &mut self.dropped
    }

    pub(super) fn rights(&self) -> &Rights {
        &self.rights
    }

    pub(super) fn rights_mut(&mut self) -> &mut Rights {
        &mut self.rights
    }

    /// Remembers the work that is on record for the file. Returns whether that is new.
    pub(crate) fn note(&mut self, left: Unfinished) -> bool {
        let is_new = self.noted != left;
        self.noted = left;
        is_new
    }

    /// Whether the server confirmed what is known since the index was written, as it is now.
    pub(super) fn take_confirmed(&mut self) -> bool {
        std::mem::take(&mut self.is_confirmed)
    }

    /// The server has reported what is known already.
    pub(crate) fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// A lookup by this process brought the attributes.
    pub(crate) fn looked_up(&mut self, pid: u32, now: Monotonic) {
        self.looked_up_by = Some((pid, now));
    }

    /// Which process's lookup brought the attributes, and when, for the open that may follow.
    pub(crate) fn take_lookup(&mut self) -> Option<(u32, Monotonic)> {
        self.looked_up_by.take()
    }

    /// It was seen in this directory under this name. Returns whether that is another name.
    pub(crate) fn seen_at(&mut self, dentry: Dentry) -> bool {
        let dentry = Some(dentry);
        let is_moved = self.known.hint != dentry;
        self.known.hint = dentry;
        is_moved
    }

    /// The attributes are to be asked for before they are used again.
    pub(crate) fn distrust(&mut self) {
        self.known.ttl = Duration::ZERO;
    }

    /// The same for replies to questions from before `now`: the server withdrew its promise.
    pub(crate) fn withdraw(&mut self, now: Monotonic) {
        self.distrust();
        self.withdrawn = Some(now);
    }

    /// It has lost a name, and not its last one.
    pub(crate) fn lose_link(&mut self) {
        self.known.attr.nlink = self.known.attr.nlink.saturating_sub(1).max(1);
    }

    /// It had so many names when it was given the last one.
    pub(crate) fn has_links(&mut self, links: u32) {
        self.known.attr.nlink = self.known.attr.nlink.max(links);
    }

    /// It has got a name of which the server does not know yet.
    pub(crate) fn gain_link(&mut self) {
        self.known.attr.nlink = self.known.attr.nlink.saturating_add(1);
    }

    /// It was given another name: that moves its ctime.
    pub(crate) fn linked(&mut self) {
        self.ctime_may_move = true;
    }

    /// Where a symbolic link leads.
    pub(crate) fn leads_to(&mut self, target: OsString) {
        self.known.target = Some(target);
    }

    /// What is cached may lack a change by another client. Returns whether that is new.
    pub(crate) fn doubt_what_is_held(&mut self) -> bool {
        !std::mem::replace(&mut self.known.doubtful, true)
    }

    /// We have replaced all of the contents: nothing is left of what any client wrote before.
    pub(crate) fn replaced_whole(&mut self) {
        self.known.doubtful = false;
    }

    /// Directories: the cached listing is no longer what the server would return.
    pub(crate) fn end_listing(&mut self) {
        self.known.listing = None;
        self.listed.drop_pages();
    }

    /// Directories: names were changed here, each of which is on record. Readers need another
    /// listing; a whole one still tells which other names there are.
    pub(crate) fn change_listing(&mut self) {
        let epoch = self.known.epoch;
        let whole = self.known.listing.filter(|head| head.complete && head.epoch == epoch);
        self.known.listing = whole.map(|head| ListingState { is_changed: true, ..head });
        self.listed.drop_pages();
    }

    /// Directories: the listing that readers are given.
    pub(crate) fn listing(&self) -> Option<ListingState> {
        self.known.listing.filter(|head| head.epoch == self.known.epoch && !head.is_changed)
    }

    /// Directories: this much of the listing is cached.
    pub(crate) fn set_listing(&mut self, head: ListingState) {
        debug_assert!(head.pages > 0, "a listing has a first page");
        debug_assert_eq!(head.epoch, self.known.epoch, "a listing is of the present epoch");
        self.known.listing = Some(head);
    }

    /// Directories: the server gave this verifier for positions. Returns whether it is another one.
    pub(crate) fn set_cookie_verifier(&mut self, verifier: u64) -> bool {
        std::mem::replace(&mut self.known.cookie_verifier, verifier) != verifier
    }

    #[cfg(test)]
    pub(crate) fn known_mut(&mut self) -> &mut Known {
        &mut self.known
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.known.attr.kind == Kind::Directory
    }

    /// Whether the kernel may hold attributes or pages of the file: it has asked about the file
    /// since the mount began. For directories the kernel is notified in another way (by epochs),
    /// and their attributes expire.
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

    /// Whether the server was asked for the attributes at that time or later, and has not withdrawn
    /// a promise since. They may be shown, however long they are trusted.
    pub(crate) fn is_described_since(&self, session: u64, asked: Monotonic) -> bool {
        let is_withdrawn = self.withdrawn.is_some_and(|when| self.known.asked < when);
        self.known.session == session && self.known.asked >= asked && !is_withdrawn
    }

    /// We renamed it or changed its link count, and the reply did not describe it.
    pub(crate) fn move_ctime(&mut self, now: Monotonic) {
        self.ctime_may_move = true;
        self.ctime_moved = Some(now);
    }

    /// The file has lost a name: its link count and ctime must be requested.
    pub(crate) fn doubt(&mut self, now: Monotonic) {
        self.ctime_moved = Some(now);
    }

    /// We set its mode or owner: rights are asked for again, and no bit of the mode counts as
    /// dropped.
    pub(crate) fn mode_was_set(&mut self) {
        self.rights.clear();
        self.dropped.end();
    }

    /// Whether the file may have bytes that the server lacks.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.may_exist(self.opens.bypassing())
    }

    /// The same; a release may also still be looking for what the kernel wrote last.
    pub(crate) fn may_have_unsent(&self) -> bool {
        self.has_unsent() || self.opens.is_bypassed()
    }

    /// Whether all that is shown of the file is what the server has reported.
    pub(crate) fn is_as_reported(&self) -> bool {
        let as_told = self.dropped.is_none() && !self.ctime_is_old();
        as_told && !self.has_unsent()
    }

    /// Whether the known ctime is from before a change of ours. The other attributes may be used.
    pub(crate) fn ctime_is_old(&self) -> bool {
        self.ctime_moved.is_some_and(|moved| self.known.asked < moved)
    }

    /// Attributes as applications see them: the server's, with changes that it does not know yet.
    pub(crate) fn attr(&self) -> Attr {
        let mut attr = Attr { size: self.server_end(), ..self.known.attr };
        attr.mode = self.dropped.shown(attr.mode);
        if self.is_gone() {
            attr.nlink = 0;
        } else if self.hidden.name().is_some() {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        attr.mtime = self.unsent.time_on_way().unwrap_or(attr.mtime);
        if let Some(local) = self.unsent.end() {
            attr.size = local.size;
            attr.used = attr.used.max(local.size);
            let given = self.unsent.given_time();
            attr.mtime = given.unwrap_or(local.mtime.max(attr.mtime));
            attr.ctime = local.mtime.max(attr.ctime);
        } else if let Some(size) = self.opens.written_size() {
            attr.size = size;
        }
        attr
    }

    /// What the kernel shows of the version `from` belongs to the present one too.
    pub(crate) fn carry_shown(&mut self, from: Version) {
        self.opens.carry(from, self.version());
    }

    /// The version under which bytes that are cached now are recorded.
    pub(crate) fn version(&self) -> Version {
        Version { validator: self.known.attr.validator(), rereads: self.known.rereads }
    }

    /// What a reader of the file is shown now.
    pub(crate) fn shown(&self) -> Shown {
        Shown { version: self.known.attr.validator(), epoch: Some(self.known.epoch) }
    }

    /// The version that bytes are fetched for, and what their reader is shown.
    pub(crate) fn version_shown(&self) -> (Version, Shown) {
        (self.version(), self.shown())
    }

    /// Gives up what is cached of a file if it is doubtful: it belongs to no version from now on.
    /// Returns whether it was.
    pub(crate) fn start_over(&mut self) -> bool {
        let was_doubtful = std::mem::take(&mut self.known.doubtful);
        self.known.rereads += u64::from(was_doubtful);
        was_doubtful
    }

    /// Whether a description that was asked for then is newer than the known one.
    pub(crate) fn is_newest(&self, asked: Monotonic, session: u64) -> bool {
        let newer = self.known.session != session || asked >= self.known.asked;
        newer && self.changes.in_flight == 0 && asked >= self.changes.ended
    }

    /// Processes a description from the reply to a call made at `asked`. The version in it may be
    /// too young for what is read from `asked` on to be reliable.
    pub(crate) fn observe(
        &mut self,
        attr: Attr,
        session: u64,
        asked: Monotonic,
        ttl: TtlRange,
        age: Age,
    ) -> Seen {
        if !self.is_newest(asked, session) {
            return Seen::Older;
        }
        let was_fresh = !self.fresh_for(session, asked).is_zero();
        let seen = self.compare(&attr);
        self.known.ttl = match seen {
            Seen::Same => (self.known.ttl * 2).clamp(ttl.min, ttl.max),
            _ => ttl.min,
        };
        if self.withdrawn.is_some_and(|when| asked < when) {
            self.distrust();
        }
        if seen == Seen::Changed {
            self.unsent.foreign_change(self.opens.is_bypassed());
            // Times may return to an earlier value (a coarse clock that is set back, replies that a
            // server puts together from two moments): what is cached of that version stays given
            // up.
            let is_another = self.start_over();
            self.known.rereads += u64::from(!is_another && !self.is_directory());
            // For readers of a file it is the same version if its bytes are.
            match have_same_bytes(&self.known.attr.validator(), &attr.validator()) {
                true if !self.is_directory() => self.rights.clear(),
                _ => self.forget_contents(),
            }
        }
        self.judge_age(seen, was_fresh, age);
        self.adopt(attr, session, asked);
        self.changes.is_untold = false;
        seen
    }

    /// Draws the conclusions from the age of a version that was `seen`, and is not recorded yet.
    /// Bytes of a file are judged when they arrive, and again if the server's clock was set back.
    fn judge_age(&mut self, seen: Seen, was_fresh: bool, age: Age) {
        let is_young = age.is_young();
        if !self.is_directory() {
            self.known.doubtful |= match seen {
                Seen::Moved { .. } => is_young,
                Seen::Same => age == Age::OfTheFuture,
                Seen::SameData { .. } | Seen::Changed | Seen::Older => false,
            };
            return;
        }
        // While a lease vouches for the names, they need not be asked for.
        let is_vouched = self.early_lease().is_some();
        if self.known.doubtful && !(is_young && was_fresh) && !is_vouched {
            self.known.doubtful = false;
            self.forget_contents();
        }
        self.known.doubtful |= is_young;
    }

    fn compare(&mut self, attr: &Attr) -> Seen {
        let held = self.known.attr.validator();
        let is_vouched = self.take_vouched();
        if held.same(&attr.validator()) {
            return Seen::Same;
        }
        if is_vouched {
            return Seen::Moved { from: held };
        }
        let moved = std::mem::take(&mut self.ctime_may_move);
        let only_ctime = held.size == attr.size && held.mtime == attr.mtime;
        if moved && only_ctime && attr.ctime >= held.ctime {
            return Seen::Moved { from: held };
        }
        let tells_data = held.data_change.is_some() && !self.is_directory();
        match tells_data && held.same_data(&attr.validator()) {
            true => Seen::SameData { from: held },
            false => Seen::Changed,
        }
    }

    fn adopt(&mut self, attr: Attr, session: u64, asked: Monotonic) {
        debug_assert!(
            self.known.session != session || asked >= self.known.asked,
            "no description replaces one that was asked for later"
        );
        debug_assert!(self.changes.in_flight == 0, "changes of ours in flight are described first");
        let old = &self.known.attr;
        let same_judgement = (old.mode, old.uid, old.gid) == (attr.mode, attr.uid, attr.gid);
        if !same_judgement {
            self.rights.clear();
        }
        self.known.attr = attr;
        self.known.session = session;
        self.known.asked = asked;
        self.changes.written_end = 0;
    }

    /// Another client changed the file: names, listing and rights are no longer known.
    pub(crate) fn forget_contents(&mut self) {
        self.known.epoch = self.known.epoch.wrapping_add(1);
        self.end_listing();
        self.whole.end();
        self.known.target = None;
        self.rights.clear();
    }

    /// Whether nothing would be lost by forgetting everything but [`State::known`].
    pub(crate) fn is_idle(&self) -> bool {
        self.changes.in_flight == 0
            && self.opens.is_empty()
            && self.unsent.end().is_none()
            && self.hidden.is_none()
            && self.unsent.failure().is_none()
            && self.owed_names.is_none()
    }
}

mod leased;
mod owed_names;
mod own_changes;
#[cfg(test)]
mod tests;
