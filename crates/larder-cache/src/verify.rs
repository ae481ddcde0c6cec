//! Verifying what an earlier run has left in a local file, outside the lock of the file.
//!
//! A read verifies the chunks that it needs, and holds the lock during that. To hand out a local
//! file all of it must be right: after a crash that is gigabytes, and every other call on the file
//! would wait, perhaps on a thread that serves the whole mount. So chunks are read and summed
//! without the lock, and the result counts if the chunk's sum is then still the one with which it
//! was compared.

use std::ops::Range;

use crate::file::CachedFile;
use crate::lock;
use crate::state::State;
use crate::sums::{Summer, chunks_of, pieces_of};

/// Up to this size a file is verified on the calling thread: that takes a few milliseconds.
const AT_ONCE_BYTES_MAX: u64 = 8 << 20;

/// What is verified: a local file, as of a count of changes.
#[derive(Clone, Copy)]
struct Subject {
    serial: u64,
    size: u64,
    changes: u64,
}

impl Subject {
    fn of(state: &State) -> Subject {
        Subject { serial: state.serial(), size: state.size(), changes: state.changes().count() }
    }

    /// Its chunks, cut into pieces.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        pieces_of(chunks_of(&(0..self.size)))
    }

    /// Whether it is still there, changed or not.
    fn is_there(&self, state: &State) -> bool {
        state.serial() == self.serial && state.size() == self.size && !state.is_bypassed()
    }
}

impl CachedFile {
    /// Verifies all chunks that this run has not, so that [`CachedFile::whole`] and
    /// [`CachedFile::begin_bypass`] need not. Does nothing where they would refuse, or need no
    /// verifying. Reads up to the whole local file; other callers can use the file during that, and
    /// one caller at a time verifies it.
    pub fn verify_ahead(&self) {
        if self.to_verify().is_none() {
            return;
        }
        let _turn = lock(&self.verifying);
        // An earlier caller may have done it.
        let Some(subject) = self.to_verify() else { return };
        // A caller that waits for gigabytes must not make others wait for a CPU.
        let is_there = if subject.size <= AT_ONCE_BYTES_MAX {
            self.verify_pieces(&subject)
        } else {
            larder_io::behind_others(|| self.verify_pieces(&subject))
        };
        if !is_there {
            return;
        }
        let mut state = self.state();
        let is_same = subject.is_there(&state) && state.changes().count() == subject.changes;
        if is_same && state.presence().is_whole() {
            self.mark_verified(&mut state);
        }
    }

    /// Verifies the chunks that this run has not; returns whether the subject still exists.
    fn verify_pieces(&self, subject: &Subject) -> bool {
        subject.pieces().all(|piece| self.verify_piece(subject, piece, false).is_some())
    }

    /// Verifies all chunks again: returns how many were read, and those found bad, which are
    /// forgotten.
    pub(crate) fn verify(&self) -> (u64, Vec<u64>) {
        let _turn = lock(&self.verifying);
        let subject = {
            let mut state = self.state();
            if self.check_local(&mut state).is_err() {
                return (0, Vec::new());
            }
            Subject::of(&state)
        };
        let (mut count, mut bad) = (0, Vec::new());
        for piece in subject.pieces() {
            let Some((read, found)) = self.verify_piece(&subject, piece, true) else { break };
            count += read;
            bad.extend(found);
        }
        (count, bad)
    }

    /// Compares the chunks of a range with their checksums again, those too that this run has
    /// verified. Returns how many were compared, and how many were wrong: these are forgotten, and
    /// a read of them is a miss. Leaves a file alone that has local changes. Reads the local file;
    /// other callers can use the file during that.
    pub fn verify_again(&self, range: Range<u64>) -> (u64, u64) {
        let _turn = lock(&self.verifying);
        let subject = {
            let mut state = self.state();
            if state.has_changes() || self.check_local(&mut state).is_err() {
                return (0, 0);
            }
            Subject::of(&state)
        };
        let range = range.start..range.end.min(subject.size).max(range.start);
        let (mut count, mut wrong) = (0, 0);
        for piece in pieces_of(chunks_of(&range)) {
            let Some((read, bad)) = self.verify_piece(&subject, piece, true) else { break };
            count += read;
            wrong += bad.len() as u64;
        }
        (count, wrong)
    }

    /// All of the local file counts as verified from now on.
    pub(crate) fn mark_verified(&self, state: &mut State) {
        let trusts = self.store.trusts(state.recorded().record());
        if state.set_verified(trusts) {
            self.queue(state);
        }
    }

    /// What must be verified before the local file can be handed out.
    fn to_verify(&self) -> Option<Subject> {
        let mut state = self.state();
        if state.version().is_none() || self.check_local(&mut state).is_err() {
            return None;
        }
        let local = state.local();
        let is_whole = local.is_there() && state.presence().is_whole();
        (is_whole && !local.is_stamped() && !state.is_bypassed()).then(|| Subject::of(&state))
    }

    /// Verifies some chunks, or those of them that this run has not; returns how many, and which
    /// were bad. `None` if the subject is gone.
    fn verify_piece(
        &self,
        subject: &Subject,
        piece: Range<u64>,
        anew: bool,
    ) -> Option<(u64, Vec<u64>)> {
        let (file, wanted) = {
            let state = self.state();
            if !subject.is_there(&state) {
                return None;
            }
            let wanted = piece.filter(|chunk| anew || !state.sums().is_verified(*chunk));
            let wanted: Vec<_> =
                wanted.filter_map(|chunk| Some((chunk, state.sums().get(chunk)?))).collect();
            (self.local(&state).ok()?, wanted)
        };
        let mut summer = Summer::new();
        let found: Vec<_> = wanted
            .into_iter()
            .map(|(chunk, expected)| {
                let sum = summer.sum(&*file, chunk, subject.size).ok();
                (chunk, expected, sum == Some(expected))
            })
            .collect();
        let mut state = self.state();
        if !subject.is_there(&state) {
            return None;
        }
        let mut bad = Vec::new();
        let count = found.len() as u64;
        for (chunk, expected, is_right) in found {
            if state.sums().get(chunk) != Some(expected) {
                // It was changed here meanwhile, and has another sum, or none.
                continue;
            }
            if is_right {
                state.set_sum(chunk, expected);
            } else if !self.is_right(&state, chunk) {
                self.forget_chunk(&mut state, chunk);
                bad.push(chunk);
            }
        }
        Some((count, bad))
    }

    /// Whether a chunk matches its sum. With the lock held: a write is either whole in what is
    /// read, or not at all.
    fn is_right(&self, state: &State, chunk: u64) -> bool {
        let sum = self.local(state).and_then(|file| self.sum_on_disk(state, &file, chunk));
        sum.is_ok_and(|sum| state.sums().get(chunk) == Some(sum))
    }
}
