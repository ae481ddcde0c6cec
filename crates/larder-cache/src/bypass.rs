//! Handing the local file to the kernel, for reading, or for writing without us.
//!
//! In a *bypass* the kernel writes the local file itself, without notice. What it wrote is found by
//! comparing all chunks with their earlier checksums ([`CachedFile::collect_bypass`]).

use std::io;
use std::sync::Arc;

use larder_io::{DiskFile, Stamp};

use crate::backing::BackingFile;
use crate::file::CachedFile;
use crate::memory::is_in_memory;
use crate::state::{Base, State, ZEROS_MAX};
use crate::sums::{Summer, chunk_range, chunks_of};

/// As much of a local file is read where others wait for the thread.
const READ_QUICKLY_BYTES: u64 = 128 << 10;

/// As much is read into memory to be written to another local file.
const TAKEN_AT_ONCE_BYTES: usize = 256 << 10;

/// How much of a file no server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Bytes.
    pub bytes: u64,
    /// There may be fewer: the kernel wrote the file itself, and what it wrote is found when the
    /// file is next closed or synced. The size of the file is a bound.
    pub is_bound: bool,
}

impl BackingFile {
    /// Copies all dirty bytes of the version in use. A caller that writes there first, and then
    /// here ([`BackingFile::write_at`]), is not overwritten by older bytes.
    ///
    /// # Errors
    /// The disk's, or `InvalidInput` if it is being sent just now; a part may then be written.
    pub fn take_dirty(&self, present: &CachedFile) -> io::Result<()> {
        self.alone(|file| {
            for range in present.dirty() {
                for start in range.clone().step_by(TAKEN_AT_ONCE_BYTES) {
                    let len = usize::try_from(range.end - start).unwrap_or(usize::MAX);
                    let mut bytes = vec![0; len.min(TAKEN_AT_ONCE_BYTES)];
                    present.read_dirty(start, &mut bytes)?;
                    file.write_at(&bytes, start)?;
                }
            }
            Ok(())
        })
    }
}

impl CachedFile {
    /// The local file, if every byte up to the end of file is held and correct, and a descriptor is
    /// left for it ([`crate::Descriptors`]). Verifies what is not yet verified: all of the file,
    /// after a crash, unless [`CachedFile::verify_ahead`] has.
    pub fn whole(&self) -> Option<Arc<BackingFile>> {
        let mut state = self.state();
        if !self.may_hand_out(&state) {
            return None;
        }
        let (file, _) = self.whole_file(&mut state)?;
        self.hand_out(&mut state, file)
    }

    /// Whether a file that was handed out is still the one in use: nothing was given up since.
    pub fn is_backed_by(&self, backing: &Arc<BackingFile>) -> bool {
        self.state().local().is_handed_out_as(backing)
    }

    /// Whether handing out the local file, to be `written` or not, or finding that this is not
    /// possible, takes no longer than a few system calls: no version other than `version` must be
    /// removed, nothing must be verified or committed, and no other thread is using it.
    pub fn is_ready(&self, version: &[u8], written: bool) -> bool {
        if !self.filling().turns.is_free() {
            return false;
        }
        let Some(mut state) = self.try_state() else { return false };
        let is_other = state.version().is_some_and(|held| held != version);
        if (is_other && state.local().is_there()) || self.check_local(&mut state).is_err() {
            return false;
        }
        if is_other || !state.presence().is_whole() {
            return true;
        }
        let is_short = state.size() <= READ_QUICKLY_BYTES;
        let is_read = is_short || state.local().is_stamped();
        is_read && !(written && (state.recorded().vouches() || !is_short))
    }

    /// Identifies the local file among all that the file ever had; 0 without one. A kernel that
    /// keeps a local file across the death of the process has this one if the number is unchanged.
    pub fn local_number(&self) -> u64 {
        self.state().serial()
    }

    /// When the local file was last written, in nanoseconds since 1970; `None` without one.
    pub fn local_mtime_ns(&self) -> Option<i64> {
        let state = self.state();
        self.local(&state).and_then(|file| file.stamp()).ok().map(|stamp| stamp.mtime_ns)
    }

    /// The bytes of the file that no server has. Reads the local file's stamp and compares nothing:
    /// cheap.
    pub fn unsent(&self) -> Unsent {
        let state = self.state();
        let bytes = state.dirty().len();
        if !state.is_bypassed() {
            return Unsent { bytes, is_bound: false };
        }
        match self.local(&state).and_then(|file| file.stamp()) {
            Ok(now) if state.bypasses().is_seen(now) => Unsent { bytes, is_bound: false },
            Ok(now) => Unsent { bytes: now.size.max(bytes), is_bound: true },
            Err(_) => Unsent { bytes: state.size().max(bytes), is_bound: true },
        }
    }

    /// Hands out the local file to be written by the kernel itself; `None` unless
    /// [`CachedFile::whole`], and if its disk has little room left.
    ///
    /// Waits like [`CachedFile::write`]. May be nested; each needs a [`CachedFile::end_bypass`].
    /// Also returns the local file's stamp from before the kernel has it.
    pub fn begin_bypass(&self) -> Option<(Arc<BackingFile>, Stamp)> {
        let _alone = self.alone();
        let mut state = self.state();
        if !self.may_hand_out(&state) || !(state.is_bypassed() || self.has_room_for_kernel(&state))
        {
            return None;
        }
        self.begin_bypass_locked(&mut state)
    }

    fn has_room_for_kernel(&self, state: &State) -> bool {
        let store = &self.store;
        let lets = || store.gauge.lets_kernel_write(state.size(), &*store.disk, &*store.clock);
        is_in_memory(state.serial()) || lets()
    }

    /// As [`CachedFile::begin_bypass`], for a file that the kernel got from an earlier process, and
    /// still writes: regardless of the budget of descriptors. What the kernel has written since the
    /// file was loaded is collected like what it writes from now on.
    pub fn go_on_bypassing(&self) -> Option<Arc<BackingFile>> {
        let _alone = self.alone();
        let mut state = self.state();
        let file = match state.is_bypassed() {
            true => self.local(&state).ok()?,
            false => self.file_of_kernel(&mut state)?,
        };
        self.begin_handed_out(&mut state, file, None)
    }

    /// Whether the kernel may have written bytes that were not collected yet. For callers that
    /// check periodically: a store to a mapped page changes the file's time only if the page was
    /// clean, so all pages are written to the disk before the file is compared, and it counts as
    /// unwritten if its stamp is then as before. Waits for the disk, without holding the file's
    /// lock.
    ///
    /// # Errors
    /// The disk's; the kernel may then have written.
    pub fn was_bypassed(&self) -> io::Result<bool> {
        let file = {
            let state = self.state();
            if !state.is_bypassed() {
                return Ok(false);
            }
            let file = self.local(&state)?;
            if state.bypasses().is_unwritten(file.stamp()?) {
                return Ok(false);
            }
            file
        };
        file.sync_data()?;
        let stamp = file.stamp()?;
        self.state().set_flushed(stamp);
        Ok(true)
    }

    /// As [`CachedFile::collect_bypass`], if that reads little, and no other thread is using the
    /// file; otherwise `None`, and nothing was done.
    pub fn try_collect_bypass(&self) -> Option<io::Result<Option<Stamp>>> {
        let mut state = self.try_state()?;
        if !state.is_bypassed() {
            return Some(Ok(None));
        }
        match self.local(&state).and_then(|file| file.stamp()) {
            Ok(stamp) if stamp.size > READ_QUICKLY_BYTES => None,
            Ok(stamp) => Some(self.collect_locked(&mut state, stamp).map(Some)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Ends a bypass: collects a last time, unless nothing was written since the last collection.
    ///
    /// # Errors
    /// As [`CachedFile::collect_bypass`].
    pub fn end_bypass(&self) -> io::Result<()> {
        let mut state = self.state();
        if !state.is_bypassed() {
            return Ok(());
        }
        let now = self.local(&state).and_then(|file| file.stamp());
        self.end_bypass_locked(&mut state, now)
    }

    /// As [`CachedFile::end_bypass`], if that reads little or nothing, and no other thread is using
    /// the file; otherwise `None`, and nothing was done.
    pub fn try_end_bypass(&self) -> Option<io::Result<()>> {
        let mut state = self.try_state()?;
        if !state.is_bypassed() {
            return Some(Ok(()));
        }
        let now = self.local(&state).and_then(|file| file.stamp());
        let is_long = now.as_ref().is_ok_and(|now| now.size > READ_QUICKLY_BYTES);
        let is_collected = |now: &Stamp| state.bypasses().is_collected(*now);
        if is_long && !now.as_ref().is_ok_and(is_collected) {
            return None;
        }
        Some(self.end_bypass_locked(&mut state, now))
    }
}

/// Within the crate.
impl CachedFile {
    /// The local file, if it is whole, and its stamp.
    pub(crate) fn whole_file(&self, state: &mut State) -> Option<(Arc<dyn DiskFile>, Stamp)> {
        if state.is_bypassed() {
            // It is: the kernel may have moved the end, and what it wrote is to be found.
            let file = self.local(state).ok()?;
            let stamp = file.stamp().ok()?;
            return Some((file, stamp));
        }
        if state.version().is_none()
            || self.check_local(state).is_err()
            || !state.presence().is_whole()
        {
            return None;
        }
        if !state.local().is_stamped() {
            for chunk in chunks_of(&(0..state.size())) {
                self.verify_chunk(state, chunk).ok()?;
            }
            if !state.presence().is_whole() {
                return None;
            }
            self.mark_verified(state);
        }
        if !state.local().is_there() && self.store.is_out_of_use() {
            return None;
        }
        let file = self.create_local(state).ok()?;
        let stamp = file.stamp().ok()?;
        if stamp.size == state.size() {
            return Some((file, stamp));
        }
        file.set_len(state.size()).ok()?;
        let stamp = file.stamp().ok()?;
        Some((file, stamp))
    }

    /// The local file that the kernel has been writing since before this run. Its end is not set to
    /// the one that is known, nor are its bytes verified: both may have changed since they were
    /// found ([`CachedFile::load_local`]), and are right as they are.
    pub(crate) fn file_of_kernel(&self, state: &mut State) -> Option<Arc<dyn DiskFile>> {
        let is_known = state.version().is_some() && self.check_local(state).is_ok();
        if !is_known || !state.presence().is_whole() {
            return None;
        }
        self.local(state).ok()
    }

    /// The kernel gets this local file, which has this stamp, or keeps it (`None`).
    pub(crate) fn begin_bypass_of(
        &self,
        state: &mut State,
        file: &dyn DiskFile,
        stamp: Option<Stamp>,
    ) -> Option<()> {
        if state.is_bypassed() {
            // What the kernel wrote is compared with what was there at first.
            state.begin_bypass(stamp);
            return Some(());
        }
        let size = state.size();
        self.begin_change(state, size).ok()?;
        state.begin_base(self.store.bases.take_free().map(Base::new).unwrap_or_default());
        for chunk in chunks_of(&(0..size)) {
            let before = state.sums().get(chunk);
            if state.base().wants(chunk) || before.is_none() {
                see_chunk(state, file, chunk).ok()?;
            }
            if before.is_some_and(|before| state.sums().get(chunk) != Some(before)) {
                // The kernel wrote it after it was summed ([`CachedFile::file_of_kernel`]).
                state.suspect(chunk_range(chunk, size));
            }
        }
        state.begin_bypass(stamp);
        self.note(state);
        Some(())
    }

    fn begin_bypass_locked(&self, state: &mut State) -> Option<(Arc<BackingFile>, Stamp)> {
        let (file, stamp) = self.whole_file(state)?;
        Some((self.begin_handed_out(state, file, Some(stamp))?, stamp))
    }

    fn begin_handed_out(
        &self,
        state: &mut State,
        file: Arc<dyn DiskFile>,
        stamp: Option<Stamp>,
    ) -> Option<Arc<BackingFile>> {
        self.begin_bypass_of(state, &*file, stamp)?;
        let backing = self.hand_out(state, file);
        if backing.is_none() {
            state.end_bypass();
            self.note(state);
        }
        backing
    }

    /// Whether the kernel has the local file, or may get it.
    fn may_hand_out(&self, state: &State) -> bool {
        state.local().is_handed_out() || !self.store.handed_out.are_taken()
    }

    fn hand_out(&self, state: &mut State, file: Arc<dyn DiskFile>) -> Option<Arc<BackingFile>> {
        file.as_fd()?;
        if let Some(backing) = state.local().handed_out() {
            return Some(backing);
        }
        let backing = Arc::new(BackingFile::new(file, self.store.handed_out.take()));
        state.hand_out(&backing);
        Some(backing)
    }

    /// Collects from the local file, which had this `stamp` a moment ago.
    fn collect_locked(&self, state: &mut State, stamp: Stamp) -> io::Result<Stamp> {
        let collected = self.collect(state, stamp);
        self.note(state);
        collected.map(|()| stamp)
    }

    fn end_bypass_locked(&self, state: &mut State, now: io::Result<Stamp>) -> io::Result<()> {
        let collected = match now {
            Ok(now) if state.bypasses().is_collected(now) => Ok(()),
            Ok(now) => self.collect(state, now),
            Err(error) => Err(error),
        };
        state.end_bypass();
        self.queue(state);
        self.note(state);
        collected
    }

    /// Takes over length and holes of the local file in a bypass.
    pub(crate) fn follow_local(&self, state: &mut State) -> io::Result<()> {
        let file = self.local(state)?;
        let size = file.stamp()?.size;
        self.follow_to(state, &*file, size)
    }

    pub(crate) fn follow_to(
        &self,
        state: &mut State,
        file: &dyn DiskFile,
        size: u64,
    ) -> io::Result<()> {
        // The holes of a short file are held as zeros, wherever its data is.
        let data = if size <= ZEROS_MAX { Vec::new() } else { file.data_ranges(0..size)? };
        let tail = tail_gone_on(state, file, size)?;
        state.follow_local(data, size)?;
        keep_sum(state, tail);
        self.recharge(state);
        Ok(())
    }
}

/// Accepts a chunk of the local file as it is: later changes are found by comparison with it.
pub(crate) fn see_chunk(state: &mut State, file: &dyn DiskFile, chunk: u64) -> io::Result<()> {
    let mut summer = Summer::new();
    let sum = summer.sum(file, chunk, state.size())?;
    state.set_sum(chunk, sum);
    state.keep_base(chunk, summer.bytes());
    Ok(())
}

/// The last chunk, and its checksum once the file extends beyond it, unless its bytes were changed.
/// Without a checksum it would count as changed and be sent, over another client's changes.
pub(crate) fn tail_gone_on(
    state: &State,
    file: &dyn DiskFile,
    size: u64,
) -> io::Result<Option<(u64, u32)>> {
    let chunk = state.size() / crate::CHUNK_BYTES;
    let start = chunk * crate::CHUNK_BYTES;
    let goes_on = state.size() > start && size > start + crate::CHUNK_BYTES;
    let Some(before) = state.sums().get(chunk).filter(|_| goes_on) else { return Ok(None) };
    let had = usize::try_from(state.size() - start).expect("less than a chunk");
    let mut bytes = vec![0; usize::try_from(crate::CHUNK_BYTES).expect("a chunk is small")];
    file.read_exact_at(&mut bytes[..had], start)?;
    let is_same = crc32c::crc32c(&bytes[..had]) == before;
    Ok(is_same.then(|| (chunk, crc32c::crc32c(&bytes))))
}

/// Makes the result of [`tail_gone_on`] effective once the end has moved, if the whole chunk is
/// held.
pub(crate) fn keep_sum(state: &mut State, tail: Option<(u64, u32)>) {
    if let Some((chunk, sum)) = tail
        && state.known().contains(chunk_range(chunk, state.size()))
    {
        state.set_sum(chunk, sum);
    }
}
