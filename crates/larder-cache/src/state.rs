//! The state of one file's data, without a disk.
//!
//! Each part owns its fields; no other code changes them:
//!
//! | part | owns |
//! |---|---|
//! | [`Presence`] | which bytes are here, which of them are dirty, and their checksums |
//! | [`Changes`] | whether the bytes are those of the version, and since when not |
//! | [`Base`] | what the local file was before the kernel changed it |
//! | [`Bypasses`] | whether the kernel writes the local file, and the file's stamps |
//! | [`LocalFile`] | which local file it is, and how far it is trusted unread |
//! | [`Recorded`] | what the index has of the file, and what it is still to be given |
//!
//! A method here is a step that involves more than one of them, always in the same order.

mod base;
mod bypasses;
mod changes;
mod dirty;
mod local_file;
mod presence;
mod rebase;
mod recorded;
pub(crate) mod syncing;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use larder_io::{Monotonic, Stamp};

use crate::backing::BackingFile;
use crate::kept_record::Keeping;
use crate::local_record::LocalRecord;
use crate::ranges::RangeSet;
use crate::records::FileRecord;
use crate::sums::{Group, Sums};
use crate::unwritten::UnwrittenFile;

pub(crate) use self::base::{BASES_MAX, Base, GAP_BYTES_MIN};
use self::bypasses::Bypasses;
use self::changes::Changes;
use self::dirty::Note;
use self::local_file::LocalFile;
pub(crate) use self::presence::{Presence, SIZE_MAX, ZEROS_MAX};
use self::recorded::Recorded;

/// A use is written to the index if the one there is older than this.
const LAST_USE_STEP_SEC: u64 = 600;

/// The state of a [`crate::CachedFile`].
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The index was asked for this file.
    is_loaded: bool,
    version: Option<Vec<u8>>,
    is_pinned: bool,
    last_use_sec: u64,
    presence: Presence,
    changes: Changes,
    bypasses: Bypasses,
    base: Base,
    local: LocalFile,
    recorded: Recorded,
}

/// What an index records of a file.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: FileRecord,
    /// Groups of sums that it has, of whatever local file.
    pub(crate) numbers: BTreeSet<u32>,
    /// Those of the local file that the record names.
    pub(crate) groups: Vec<(u32, Group)>,
}

/// What must be recorded in the index about local changes.
#[derive(Debug)]
pub(crate) struct Notes {
    /// The record of the changes, or that there are none; `None` if the present record is right.
    pub(crate) record: Option<Option<LocalRecord>>,
    /// Dirty ranges that changed.
    pub(crate) ranges: Vec<Note>,
}

/// Queries.
impl State {
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Validator of the clean bytes.
    pub(crate) fn version(&self) -> Option<&[u8]> {
        self.version.as_deref()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    pub(crate) fn last_use_sec(&self) -> u64 {
        self.last_use_sec
    }

    pub(crate) fn presence(&self) -> &Presence {
        &self.presence
    }

    /// End of file, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.presence.size()
    }

    /// Clean and dirty bytes.
    pub(crate) fn known(&self) -> &RangeSet {
        self.presence.known()
    }

    pub(crate) fn dirty(&self) -> &RangeSet {
        self.presence.dirty()
    }

    pub(crate) fn sums(&self) -> &Sums {
        self.presence.sums()
    }

    /// See [`Presence::data`].
    pub(crate) fn data(&self) -> &RangeSet {
        self.presence.data()
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(crate) fn bypasses(&self) -> &Bypasses {
        &self.bypasses
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Whether the kernel writes the local file.
    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypasses.go_on()
    }

    pub(crate) fn local(&self) -> &LocalFile {
        &self.local
    }

    /// Number of the local file; 0 without one.
    pub(crate) fn serial(&self) -> u64 {
        self.local.serial()
    }

    pub(crate) fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// Whether the index may record these bytes as those of the version.
    pub(crate) fn is_clean(&self) -> bool {
        self.changes.is_current() && !self.has_changes()
    }

    /// Whether there are local changes that no server has acknowledged.
    pub(crate) fn has_changes(&self) -> bool {
        !self.dirty().is_empty() || self.is_bypassed()
    }

    /// Checks the invariants that are cheap to check.
    pub(crate) fn check(&self) {
        self.presence.check();
        debug_assert!(self.local.is_there() || self.known().is_empty(), "bytes are in a file");
        debug_assert!(self.local.is_there() || !self.is_bypassed(), "the kernel writes that");
        debug_assert!(
            self.local.unwritten().is_none() || !self.has_changes(),
            "only clean bytes wait in memory"
        );
    }
}

/// Beginnings and ends.
impl State {
    /// The index was asked: it has this of the file, or knows nothing.
    pub(crate) fn load(&mut self, now_sec: u64, found: Option<Found>) {
        *self = State { is_loaded: true, last_use_sec: now_sec, ..State::default() };
        let Some(Found { record, numbers, groups }) = found else {
            self.local = LocalFile::none();
            return;
        };
        self.local = LocalFile::found(record.serial);
        self.version.clone_from(&record.version);
        self.is_pinned = record.pinned;
        self.last_use_sec = record.last_use_sec;
        self.presence = Presence::saved(record.size, groups);
        self.recorded = Recorded::found(record, numbers);
        self.check();
    }

    /// Replaces what was loaded by the changes of an earlier run; returns what was loaded. To be
    /// followed by a [`State::recharge`].
    pub(crate) fn take_up(
        &mut self,
        record: LocalRecord,
        dirty: &[Range<u64>],
        is_marked: bool,
    ) -> Presence {
        self.local = LocalFile::changed(record.serial);
        self.changes =
            Changes::of_earlier_run(record.acknowledged, record.synced, self.changes.count() + 1);
        self.bypasses = Bypasses::of_earlier_run(record.bypass);
        self.version = Some(record.version.clone());
        let changed = Presence::changed(record.size, dirty, self.presence.charged());
        self.recorded.take_up(record, is_marked);
        std::mem::replace(&mut self.presence, changed)
    }

    /// Drops all data; the version stays, and so does what the index has. Returns whether the index
    /// must be updated.
    pub(crate) fn drop_content(&mut self) -> bool {
        self.presence = Presence::nothing(self.size());
        self.changes = Changes::none(self.changes.count() + 1);
        self.bypasses = Bypasses::default();
        self.base = Base::default();
        self.local = LocalFile::none();
        self.recorded.drop_content();
        self.recorded.is_owed()
    }

    /// Starts again, after [`State::drop_content`], with a version of `size` bytes; or with nothing
    /// known of the file.
    pub(crate) fn start(&mut self, version: Option<&[u8]>, size: u64) {
        debug_assert!(!self.local.is_there(), "a new version starts without a local file");
        self.version = version.map(<[u8]>::to_vec);
        self.presence = Presence::nothing(size);
    }

    /// The local file was checked.
    pub(crate) fn set_checked(&mut self, as_recorded: bool) {
        self.local.set_checked(as_recorded);
    }

    /// The local file was created.
    pub(crate) fn create_local(&mut self, serial: u64) {
        self.local.create(serial);
    }

    /// The local file is another one from now on, with the same bytes.
    pub(crate) fn move_local(&mut self, serial: u64) {
        self.local.move_to(serial);
        self.touch_all();
    }

    /// The local file was created in memory.
    pub(crate) fn create_unwritten(&mut self, serial: u64, file: Arc<UnwrittenFile>) {
        self.local.create_unwritten(serial, file);
    }

    /// The local file is on the disk.
    pub(crate) fn set_written(&mut self) {
        self.local.set_written();
    }

    /// All of the local file was verified. Returns whether the record is to be saved, so that the
    /// next run need not read the file again; `trusts` says whether that run would trust it as it
    /// is.
    pub(crate) fn set_verified(&mut self, trusts: bool) -> bool {
        self.local.set_verified();
        let is_news = self.recorded.is_there() && !trusts;
        if is_news {
            self.recorded.change();
        }
        is_news
    }

    /// The kernel gets the local file.
    pub(crate) fn hand_out(&mut self, backing: &Arc<BackingFile>) {
        self.local.hand_out(backing);
    }

    /// The file is used. Answers whether that is worth being saved.
    pub(crate) fn touch(&mut self, now_sec: u64) -> bool {
        self.last_use_sec = now_sec;
        let last_sec = self.recorded.record().last_use_sec;
        let is_news = self.recorded.is_there() && now_sec >= last_sec + LAST_USE_STEP_SEC;
        if is_news {
            self.recorded.change();
        }
        is_news
    }

    /// Exempts it from culling, or not. Answers whether that is to be saved.
    pub(crate) fn pin(&mut self, is_pinned: bool) -> bool {
        let is_news = std::mem::replace(&mut self.is_pinned, is_pinned) != is_pinned;
        if is_news {
            self.recorded.change();
        }
        is_news
    }
}

/// Steps that survive changes.
impl State {
    /// If there are local changes and the pin in the record is out of date: the record with the
    /// present pin, which the caller puts into the index.
    pub(crate) fn record_beside_changes(&mut self) -> Option<FileRecord> {
        let is_news = !self.is_clean() && self.recorded.record().pinned != self.is_pinned;
        is_news.then(|| self.recorded.pin(self.is_pinned))
    }
}

/// Bytes that come and go.
impl State {
    /// See [`Presence::fill`].
    pub(crate) fn fill(&mut self, parts: &[Range<u64>], sums: Vec<(u64, u32)>) -> u64 {
        debug_assert!(!self.is_bypassed(), "a file that the kernel writes was held whole");
        self.presence.fill(parts, sums)
    }

    /// See [`Presence::set_sum`].
    pub(crate) fn set_sum(&mut self, chunk: u64, sum: u32) {
        self.presence.set_sum(chunk, sum);
    }

    /// See [`Presence::forget_clean`].
    pub(crate) fn forget_clean(&mut self, range: Range<u64>) {
        self.presence.forget_clean(range);
    }

    /// See [`Presence::recharge`].
    pub(crate) fn recharge(&mut self) -> (u64, u64) {
        self.presence.recharge()
    }

    /// A local change begins: the index must not record as valid the bytes that it changes.
    pub(crate) fn begin_change(&mut self, now: Monotonic) {
        debug_assert!(!self.recorded.vouches(), "the dirty mark is durable first");
        debug_assert!(self.local.unwritten().is_none(), "changes outlive the process");
        self.changes.apply(changes::Event::Begun(now));
    }

    /// Bytes were written to the local file.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.presence.write(offset..offset + bytes.len() as u64);
        self.base.write(offset, bytes);
        self.changes.apply(changes::Event::Redirtied);
    }

    /// Bytes were copied to the local file, and at the server.
    pub(crate) fn take_copied(&mut self, offset: u64, bytes: &[u8]) {
        self.presence.take_copied(offset..offset + bytes.len() as u64);
        self.base.write(offset, bytes);
    }

    /// Moves the end of file; new bytes are not known.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.base.cut(size);
        if self.presence.set_size(size) {
            self.changes.apply(changes::Event::Redirtied);
        }
    }

    /// See [`Presence::hold_zeros`].
    pub(crate) fn hold_zeros(&mut self, range: Range<u64>) {
        self.presence.hold_zeros(range);
    }

    /// See [`Presence::zero`].
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        self.presence.zero(range.clone());
        self.base.zero(range);
    }

    /// See [`Presence::begin_sending`].
    pub(crate) fn begin_sending(&mut self) -> Vec<Range<u64>> {
        self.presence.begin_sending()
    }

    /// The server has these bytes, except those written since sending them began: they belong to a
    /// version that is not known yet.
    pub(crate) fn acknowledge(&mut self, range: Range<u64>) {
        self.presence.set_sent(range);
        self.changes.apply(changes::Event::Redirtied);
        self.changes.apply(changes::Event::Acknowledged);
    }

    /// The bytes are those of a version. Answers whether that is news.
    pub(crate) fn vouch(&mut self, version: &[u8]) -> bool {
        debug_assert!(self.dirty().is_empty());
        if self.changes.is_current() && self.version() == Some(version) {
            return false;
        }
        self.version = Some(version.to_vec());
        self.changes.apply(changes::Event::Vouched);
        self.recorded.change();
        true
    }

    /// All of the local file was synced.
    pub(crate) fn set_synced(&mut self) {
        self.changes.apply(changes::Event::Synced);
    }
}

/// The kernel's writes.
impl State {
    /// See [`bypasses::Event::Begun`] and, without a stamp, [`bypasses::Event::GoesOn`].
    pub(crate) fn begin_bypass(&mut self, looks: Option<Stamp>) {
        if !self.is_bypassed() {
            self.presence.all_is_data();
        }
        self.bypasses.apply(looks.map_or(bypasses::Event::GoesOn, bypasses::Event::Begun));
    }

    /// See [`bypasses::Event::Ended`].
    pub(crate) fn end_bypass(&mut self) {
        self.bypasses.apply(bypasses::Event::Ended);
        if !self.is_bypassed() {
            self.base = Base::default();
        }
    }

    /// See [`bypasses::Event::Collected`].
    pub(crate) fn set_collected(&mut self, looked: Stamp) {
        self.bypasses.apply(bypasses::Event::Collected(looked));
    }

    /// Keeps the content of the local file from before the kernel gets it.
    pub(crate) fn begin_base(&mut self, base: Base) {
        debug_assert!(!self.is_bypassed());
        self.base = base;
    }

    /// See [`Base::keep`].
    pub(crate) fn keep_base(&mut self, chunk: u64, bytes: &[u8]) {
        self.base.keep(chunk, bytes);
    }

    /// The local file had data here when it was compared.
    pub(crate) fn note_data(&mut self, data: &RangeSet) {
        self.presence.note_data(data);
    }

    /// See [`bypasses::Event::Flushed`].
    pub(crate) fn set_flushed(&mut self, looks: Stamp) {
        self.bypasses.apply(bypasses::Event::Flushed(looks));
    }

    /// See [`Presence::follow_local`].
    pub(crate) fn follow_local(&mut self, data: Vec<Range<u64>>, len: u64) -> io::Result<()> {
        self.base.cut(len);
        if self.presence.follow_local(data, len)? {
            self.changes.apply(changes::Event::Redirtied);
        }
        Ok(())
    }

    /// A chunk has another sum than before, and these bytes of it must be sent.
    pub(crate) fn find_change(&mut self, chunk: u64, sum: u32, dirty: Vec<Range<u64>>) {
        self.presence.change_sum(chunk, sum);
        dirty.into_iter().for_each(|part| self.presence.set_dirty(part));
        self.changes.apply(changes::Event::Redirtied);
        self.changes.apply(changes::Event::Found);
    }

    /// Everything that a run that died may have changed is dirty.
    pub(crate) fn suspect(&mut self, range: Range<u64>) {
        self.presence.set_dirty(range);
        self.changes.apply(changes::Event::Redirtied);
    }

    /// See [`Presence::know_all`].
    pub(crate) fn know_all(&mut self) {
        self.presence.know_all();
    }
}

/// Records for the index.
impl State {
    /// What must be recorded in the index about local changes now.
    pub(crate) fn take_notes(&mut self) -> Notes {
        let ranges = self.presence.take_unnoted();
        if self.is_noted() {
            return Notes { record: None, ranges };
        }
        if self.is_clean() {
            self.bypasses.end_of_earlier_run();
        }
        let record = (!self.is_clean()).then(|| self.local_record());
        self.recorded.note(record.clone());
        Notes { record: Some(record), ranges }
    }

    /// The record of the local changes as they are now.
    pub(crate) fn local_record(&self) -> LocalRecord {
        LocalRecord {
            serial: self.serial(),
            size: self.size(),
            bypass: self.bypasses.may_go_on(),
            acknowledged: self.changes.is_acknowledged(),
            synced: self.changes.is_synced(),
            version: self.version.clone().unwrap_or_default(),
        }
    }

    /// Whether the index has a record of changes that were kept.
    pub(crate) fn keeping(&self) -> Keeping {
        self.recorded.keeping().0
    }

    /// Sets another keeping, as of this number of `changes`. Returns the previous one.
    pub(crate) fn set_keeping(&mut self, keeping: Keeping, changes: Option<u64>) -> Keeping {
        self.recorded.set_keeping(keeping, changes)
    }

    /// Whether nothing has changed since it was kept.
    pub(crate) fn is_all_kept(&self) -> bool {
        let (keeping, changes) = self.recorded.keeping();
        let is_same = changes == Some(self.changes.count());
        keeping != Keeping::Nothing && is_same && !self.is_bypassed()
    }

    /// Local changes will not be recorded in the index.
    pub(crate) fn forget_notes(&mut self) {
        self.presence.take_unnoted();
    }

    /// Drops what the index has recorded of local changes. Returns whether there was anything.
    pub(crate) fn drop_notes(&mut self) -> bool {
        self.presence.take_unnoted();
        let was_noted = self.recorded.noted().is_some();
        self.recorded.note(None);
        was_noted
    }

    /// Whether the record of local changes is still accurate.
    fn is_noted(&self) -> bool {
        let Some(noted) = self.recorded.noted() else { return self.is_clean() };
        !self.is_clean()
            && noted.serial == self.serial()
            && noted.size.max(self.dirty().end()) == self.size()
            && noted.bypass == self.bypasses.may_go_on()
            && noted.acknowledged == self.changes.is_acknowledged()
            && noted.synced == self.changes.is_synced()
            && self.version.as_ref() == Some(&noted.version)
    }

    /// It waits in the list of files to save.
    pub(crate) fn queue(&mut self) {
        self.recorded.queue();
    }

    /// See [`Recorded::mark`].
    pub(crate) fn mark(&mut self) {
        self.recorded.mark();
    }

    /// See [`Recorded::take_back`].
    pub(crate) fn take_back(&mut self) {
        self.recorded.take_back();
    }

    /// A save begins; answers the chunks that it is about.
    pub(crate) fn begin_save(&mut self) -> RangeSet {
        self.recorded.begin_save();
        self.presence.take_touched()
    }

    /// The save is not carried out.
    pub(crate) fn put_back(&mut self, chunks: &RangeSet) {
        self.presence.touch_again(chunks);
        self.recorded.change();
    }

    /// All chunks are to be saved.
    pub(crate) fn touch_all(&mut self) {
        self.presence.touch_all();
    }

    /// See [`Recorded::end_save`].
    pub(crate) fn end_save(
        &mut self,
        record: Option<FileRecord>,
        groups: impl IntoIterator<Item = (u32, bool)>,
    ) {
        self.recorded.end_save(record, groups);
    }

    /// Removes it from the list of files to save, unless it has changed since the save began.
    /// Returns whether it did.
    pub(crate) fn leave_queue(&mut self) -> bool {
        !self.presence.is_touched() && self.recorded.leave_queue()
    }
}

#[cfg(test)]
mod tests;
