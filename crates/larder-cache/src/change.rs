//! Local changes of a file's data, and which bytes must be sent.
//!
//! A byte is dirty from its write until the server is known to hold it. Writes and sending may
//! overlap: bytes that are written while older ones are being sent stay dirty, see
//! [`CachedFile::begin_sending`].

use std::io;
use std::ops::Range;

use larder_io::DiskFile;

use crate::bypass::{keep_sum, see_chunk, tail_gone_on};
use crate::file::{CachedFile, NoSpace};
use crate::memory::is_in_memory;
use crate::records::{key, tag};
use crate::state::{SIZE_MAX, State, ZEROS_MAX};
use crate::sums::chunks_of;

impl CachedFile {
    /// Changes bytes locally; they are dirty until [`CachedFile::mark_clean`]. Extends the file.
    ///
    /// The first change of a file whose bytes the index records as valid waits for a commit (two
    /// syncs).
    ///
    /// # Errors
    /// [`NoSpace`], when the stop mark is passed (except for a file that is bypassed) or the disk
    /// refuses: nothing is promised about the bytes of this write, and clean bytes there are no
    /// longer held; other dirty bytes stay.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        let end = offset.checked_add(data.len() as u64).ok_or(NoSpace)?;
        if data.is_empty() {
            return Ok(());
        }
        let written = self.write_locked(&mut state, offset..end, data);
        self.note(&mut state);
        written
    }

    /// Whether [`CachedFile::write`] takes no longer than a few system calls: nothing must be
    /// committed first, and no other thread is using the file.
    pub fn writes_quickly(&self) -> bool {
        self.filling().turns.is_free()
            && self.try_state().is_some_and(|state| !state.recorded().vouches())
    }

    /// Cuts or extends the file locally; new bytes are zeros and held. No byte becomes dirty: the
    /// caller must send the new size. Waits like [`CachedFile::write`].
    ///
    /// # Errors
    /// [`NoSpace`] if the disk refuses; then no byte of the file is held unless it is dirty.
    pub fn truncate(&self, size: u64) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        if size == state.size() && !state.is_bypassed() {
            return Ok(());
        }
        self.follow_server(&mut state, |state| self.truncate_locked(state, size))
    }

    /// Cuts the file to nothing and takes it for `version`, in one step: what is written after that
    /// is over `version`, and nothing that was written before is left. Waits like
    /// [`CachedFile::write`].
    ///
    /// # Errors
    /// As [`CachedFile::truncate`].
    pub fn empty(&self, version: &[u8]) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        self.follow_server(&mut state, |state| {
            if state.size() > 0 || state.is_bypassed() {
                self.truncate_locked(state, 0)?;
            }
            if state.vouch(version) {
                self.queue(state);
            }
            Ok(())
        })
    }

    /// Makes the bytes of a range, up to the end of file, read as zeros locally. No byte becomes
    /// dirty: the server has done the same, or the caller tells it. Dirty bytes stay dirty. The
    /// local disk gets its room back. Waits like [`CachedFile::write`].
    ///
    /// # Errors
    /// As [`CachedFile::truncate`].
    pub fn zero(&self, range: Range<u64>) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        self.follow_server(&mut state, |state| self.zero_locked(state, range))
    }

    /// Takes bytes that the server has copied to a range, so that it has them, too: none of them
    /// becomes dirty. Bytes of the range that are dirty stay as they are, and what is beyond the
    /// end of file is left out. Waits like [`CachedFile::write`].
    ///
    /// # Errors
    /// [`NoSpace`] as of [`CachedFile::write`]: clean bytes of the range are no longer held.
    pub fn take_copied(&self, offset: u64, data: &[u8]) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        self.follow_server(&mut state, |state| self.copy_locked(state, offset, data))
    }

    /// Forgets the clean bytes of a range: the server has others there now. Not of a file whose
    /// local file the kernel has, which would show holes. Waits like [`CachedFile::write`].
    ///
    /// # Errors
    /// [`NoSpace`] if the disk refuses: then nothing has changed.
    pub fn forget_range(&self, range: Range<u64>) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        debug_assert!(!state.is_bypassed());
        self.follow_server(&mut state, |state| {
            self.begin_change(state, 0)?;
            let range = range.start.min(state.size())..range.end.min(state.size());
            self.detach_edges(state, range.clone())?;
            state.forget_clean(range);
            self.recharge(state);
            Ok(())
        })
    }

    /// Forgets all bytes but the dirty ones, which count as written over `version` from now on:
    /// clean bytes of another one are not taken any more. Without local changes it is a
    /// [`CachedFile::reset`]. A file that is bypassed stays as it is. Waits like
    /// [`CachedFile::write`].
    ///
    /// # Errors
    /// [`NoSpace`] if the disk refuses: then nothing has changed.
    pub fn keep_dirty_alone(&self, version: &[u8], size: u64) -> Result<(), NoSpace> {
        let _alone = self.alone();
        let mut state = self.state();
        if !state.has_changes() {
            self.reset_locked(&mut state, version, size);
            return Ok(());
        }
        if state.is_bypassed() {
            return Ok(());
        }
        self.begin_change(&mut state, 0)?;
        state.rebase(version);
        self.recharge(&mut state);
        self.note(&mut state);
        Ok(())
    }

    /// The server has another version below the local changes by now, which is ours: it took other
    /// changes of the file. The next process does not take it for another client's, nor does the
    /// next boot, if the changes are kept. Does nothing to a file without changes, or that is
    /// bypassed.
    pub fn carry_changes(&self, version: &[u8]) {
        let _alone = self.alone();
        let mut state = self.state();
        let is_below = state.version().is_some_and(|below| below != version);
        if !is_below || state.dirty().is_empty() || state.is_bypassed() {
            return;
        }
        state.carry_changes(version);
        self.carry_kept(&state);
        self.note(&mut state);
    }

    /// Dirty ranges: sorted, disjoint, not empty, not touching.
    pub fn dirty(&self) -> Vec<Range<u64>> {
        self.state().dirty().iter().collect()
    }

    /// How many bytes are dirty.
    pub fn dirty_bytes(&self) -> u64 {
        self.state().dirty().len()
    }

    /// Dirty ranges, to be sent. What is written from now on stays dirty, even if it is marked
    /// clean, until the next call.
    pub fn begin_sending(&self) -> Vec<Range<u64>> {
        self.state().begin_sending()
    }

    /// Fills `buf` with dirty bytes to send.
    ///
    /// # Errors
    /// `InvalidInput` if not all of them are dirty; else the disk's error: these bytes are then
    /// lost, and the caller must report that to the application.
    pub fn read_dirty(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let end = offset.saturating_add(buf.len() as u64);
        if !state.dirty().contains(offset..end) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if buf.is_empty() {
            return Ok(());
        }
        let file = self.local(&state)?;
        drop(state);
        file.read_exact_at(buf, offset)
    }

    /// The server has these bytes on stable storage, except those that were written since
    /// [`CachedFile::begin_sending`].
    pub fn mark_clean(&self, range: Range<u64>) {
        let mut state = self.state();
        if !state.dirty().intersects(range.clone()) {
            return;
        }
        // The version stays that of before the change until the caller sets another one.
        state.acknowledge(range);
        self.queue(&mut state);
        self.note(&mut state);
    }

    /// Gives up all local changes, and with them everything that is held of the file.
    pub fn discard_dirty(&self) {
        let _alone = self.alone();
        let mut state = self.state();
        if state.dirty().is_empty() && state.changes().is_current() {
            return;
        }
        self.forget_locked(&mut state);
    }
}

/// Steps of the above; all work on a locked state.
impl CachedFile {
    /// Its disk refused a write.
    fn note_error(&self, state: &State, error: &io::Error) {
        // Memory that is full says nothing of the disk.
        if !is_in_memory(state.serial()) {
            self.store.note_error(error);
        }
    }

    /// Verifies the chunks that a change of `range` cuts in two, because their sums are dropped
    /// with it.
    fn detach_edges(&self, state: &mut State, range: Range<u64>) -> Result<(), NoSpace> {
        for edge in [range.start, range.end] {
            // Between two chunks nothing is cut.
            if edge % crate::CHUNK_BYTES != 0 {
                self.verify_chunk(state, edge / crate::CHUNK_BYTES).map_err(|_| NoSpace)?;
            }
        }
        Ok(())
    }

    /// Withdraws the index's statement that the bytes are valid, then allows the change.
    pub(crate) fn begin_change(&self, state: &mut State, end: u64) -> Result<(), NoSpace> {
        let in_vain = state.version().is_none() || end > SIZE_MAX || self.store.is_out_of_use();
        if in_vain || self.check_local(state).is_err() {
            return Err(NoSpace);
        }
        self.write_out(state).map_err(|error| {
            self.note_error(state, &error);
            NoSpace
        })?;
        self.mark_dirty(state)?;
        state.begin_change(self.store.clock.now());
        self.queue(state);
        if state.is_bypassed() {
            // The kernel may have moved the end; what it wrote is collected later.
            self.follow_local(state).map_err(|_| NoSpace)?;
        }
        Ok(())
    }

    fn write_locked(
        &self,
        state: &mut State,
        range: Range<u64>,
        data: &[u8],
    ) -> Result<(), NoSpace> {
        let Range { start: offset, end } = range;
        self.begin_change(state, end)?;
        if offset > state.size() {
            self.extend_in_bypass(state, offset, end)?;
        }
        self.detach_edges(state, offset..end)?;
        self.put(state, offset, data)?;
        state.write(offset, data);
        state.check();
        Ok(())
    }

    /// Writes to the local file; the state is not updated yet.
    fn put(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<(), NoSpace> {
        let range = offset..offset + data.len() as u64;
        self.leave_full_memory(state, data.len() as u64);
        let more = state.presence().uncharged(std::slice::from_ref(&range));
        let reserved = self.store.reserve(more);
        if reserved.is_none() {
            // A file that the kernel itself writes must have all bytes, even beyond our limits.
            if !state.is_bypassed() {
                return Err(NoSpace);
            }
            self.store.gauge.change_chunks(0, more);
        }
        let written = self.create_local(state).and_then(|file| file.write_at(data, offset));
        if let Err(error) = written {
            self.note_error(state, &error);
            self.store.gauge.change_chunks(more, 0);
            let stop = range.end.min(state.size());
            state.forget_clean(offset.min(stop)..stop);
            self.recharge(state);
            return Err(NoSpace);
        }
        Ok(())
    }

    fn copy_locked(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<(), NoSpace> {
        let end = offset.checked_add(data.len() as u64).ok_or(NoSpace)?;
        self.begin_change(state, end)?;
        let range = offset..end.min(state.size());
        if range.is_empty() {
            return Ok(());
        }
        self.detach_edges(state, range.clone())?;
        for clean in state.dirty().gaps(range.clone()) {
            let index = |at: u64| usize::try_from(at - offset).expect("the data is in memory");
            let part = &data[index(clean.start)..index(clean.end)];
            if let Err(full) = self.put(state, clean.start, part) {
                state.forget_clean(range);
                self.recharge(state);
                return Err(full);
            }
            state.take_copied(clean.start, part);
        }
        state.check();
        Ok(())
    }

    /// Applies locally what the server has done: in a bypass it must not be mistaken for a change
    /// by the kernel.
    fn follow_server(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut State) -> Result<(), NoSpace>,
    ) -> Result<(), NoSpace> {
        // What the kernel wrote since the last comparison must still be found.
        let is_collected = state.is_bypassed() && self.is_collected(state);
        let changed = change(state);
        if is_collected && changed.is_ok() {
            self.take_as_collected(state);
        }
        self.note(state);
        changed
    }

    fn truncate_locked(&self, state: &mut State, size: u64) -> Result<(), NoSpace> {
        self.begin_change(state, size)?;
        if size > state.size() {
            return self.extend(state, size);
        }
        let old = state.size();
        self.detach_edges(state, size..old)?;
        self.change_local(state, |file| file.set_len(size))?;
        state.set_size(size);
        self.recharge(state);
        Ok(())
    }

    fn zero_locked(&self, state: &mut State, range: Range<u64>) -> Result<(), NoSpace> {
        let size = state.size();
        self.begin_change(state, size)?;
        let range = range.start..range.end.min(state.size());
        if range.is_empty() {
            return Ok(());
        }
        self.detach_edges(state, range.clone())?;
        self.change_local(state, |file| file.punch_hole(range.clone()))?;
        state.zero(range);
        self.recharge(state);
        Ok(())
    }

    /// Changes the local file, if there is one. If the disk refuses, no clean byte is held
    /// afterwards.
    fn change_local(
        &self,
        state: &mut State,
        change: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> Result<(), NoSpace> {
        if !state.local().is_there() {
            return Ok(());
        }
        let changed = self.local(state).and_then(|file| change(&*file));
        changed.map_err(|error| {
            self.note_error(state, &error);
            let all = 0..state.size();
            state.forget_clean(all);
            self.recharge(state);
            NoSpace
        })
    }

    /// Whether the local file was not written since it was last compared.
    fn is_collected(&self, state: &State) -> bool {
        let now = self.local(state).and_then(|file| file.stamp());
        now.is_ok_and(|now| state.bypasses().is_seen(now))
    }

    /// In a bypass, the local file as it is now is what the server has, except for dirty bytes:
    /// chunks without a checksum were cut or added by a truncation, and must not count as changes.
    /// If that fails, they do.
    fn take_as_collected(&self, state: &mut State) {
        let known: Vec<_> = state.known().iter().collect();
        let Ok(file) = self.local(state) else { return };
        for chunk in known.iter().flat_map(chunks_of) {
            if state.sums().get(chunk).is_none() && see_chunk(state, &*file, chunk).is_err() {
                return;
            }
        }
        if let Ok(stamp) = file.stamp() {
            state.set_collected(stamp);
        }
    }

    fn mark_dirty(&self, state: &mut State) -> Result<(), NoSpace> {
        if state.recorded().vouches() {
            self.store.index.put(key(tag::DIRTY, self.number(), &[]), Some(Vec::new()));
            state.mark();
            self.store.index.make_durable(self.store.index.mark()).map_err(|_| NoSpace)?;
            state.take_back();
        }
        Ok(())
    }

    /// Moves the end of file forward to where a write up to `end` begins. In a bypass a chunk
    /// without a sum counts as changed, and is sent: the last one before the old end keeps one,
    /// unless the kernel has changed it.
    fn extend_in_bypass(&self, state: &mut State, size: u64, end: u64) -> Result<(), NoSpace> {
        if !state.is_bypassed() {
            return self.extend(state, size);
        }
        let file = self.local(state).map_err(|_| NoSpace)?;
        let tail = tail_gone_on(state, &*file, end).map_err(|_| NoSpace)?;
        self.extend(state, size)?;
        keep_sum(state, tail.filter(|(chunk, _)| !chunks_of(&(size..end)).contains(chunk)));
        Ok(())
    }

    /// Moves the end of file forward; the new bytes are zeros.
    fn extend(&self, state: &mut State, size: u64) -> Result<(), NoSpace> {
        let old = state.size();
        self.detach_edges(state, old..old)?;
        let holds_zeros = size - old <= ZEROS_MAX;
        if state.local().is_there() || holds_zeros {
            let extended = self.create_local(state).and_then(|file| {
                // A write that failed may have left bytes past the end.
                file.set_len(old)?;
                file.set_len(size)
            });
            if let Err(error) = extended {
                self.note_error(state, &error);
                return Err(NoSpace);
            }
        }
        state.set_size(size);
        if holds_zeros {
            let more = state.presence().uncharged(std::slice::from_ref(&(old..size)));
            if self.store.reserve(more).is_some() {
                state.hold_zeros(old..size);
            }
        }
        state.check();
        Ok(())
    }
}
