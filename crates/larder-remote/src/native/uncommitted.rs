//! Bytes that were written to the disks, and are not yet part of their file.
//!
//! A write goes to the disks at once; the metadata server learns of it by the next commit, which
//! names locations and not data. Until then no other client sees the bytes, and the size at the
//! server is the old one: a request for a file's attributes or bytes here commits first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_vfs::Cred;
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{self, DiskId, FileId, MergedFrom, Written};

use super::disks;
use super::plan::block_of;

/// Disks that may lose written bytes, with the last write to each.
pub(super) type Unflushed = BTreeMap<DiskId, disks::Unflushed>;

/// Blocks that are written whole although only a part was requested, and the origin of the rest.
pub(super) type Merged = BTreeMap<u64, Option<MergedFrom>>;

/// Which disks have everything that was written to sets with copies, by set of disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies(BTreeMap<DiskId, BTreeSet<DiskId>>);

impl Copies {
    /// Something else was written to a set, and `disks` have it.
    fn narrow(&mut self, set: DiskId, disks: &BTreeSet<DiskId>) {
        let have = self.0.entry(set).or_insert_with(|| disks.clone());
        have.retain(|disk| disks.contains(disk));
    }

    /// A disk has lost something, or missed it.
    pub(super) fn remove(&mut self, disk: DiskId) {
        self.0.values_mut().for_each(|disks| disks.retain(|one| *one != disk));
    }

    /// Whether others have all that a disk has.
    pub(super) fn has_others(&self, disk: DiskId) -> bool {
        self.0.values().all(|disks| !disks.contains(&disk) || disks.len() > 1)
    }

    /// Whether a disk has everything that was written to a set.
    pub(super) fn has(&self, set: DiskId, disk: DiskId) -> bool {
        self.0.get(&set).is_some_and(|disks| disks.contains(&disk))
    }

    /// Whether no disk has all that was written to some set.
    pub(super) fn is_lost(&self) -> bool {
        self.0.values().any(BTreeSet::is_empty)
    }

    /// All disks that have what was written.
    pub(super) fn all(&self) -> Vec<DiskId> {
        let all: BTreeSet<DiskId> = self.0.values().flatten().copied().collect();
        all.into_iter().collect()
    }
}

/// What must be known of something that was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    copies: Copies,
    /// Disks that have not made it durable.
    unflushed: Unflushed,
    merged: Merged,
    due: Due,
}

/// When something that was written is to be elsewhere, at the latest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// On other disks than memory disks.
    pub(super) on_disk: Option<Instant>,
    /// In the archive.
    pub(super) archived: Option<Instant>,
}

impl Due {
    /// The earlier times of both.
    fn and(self, other: Due) -> Due {
        let first = |one: Option<Instant>, two| one.into_iter().chain(two).min();
        Due {
            on_disk: first(self.on_disk, other.on_disk),
            archived: first(self.archived, other.archived),
        }
    }

    /// Within how many ms from now it is to have left memory disks.
    pub(super) fn due_ms(&self, now: Instant) -> Option<u32> {
        self.on_disk.map(|due| ms(due.saturating_duration_since(now)))
    }

    /// Within how many ms from now it is to be in the archive.
    pub(super) fn archive_ms(&self, now: Instant) -> Option<u32> {
        self.archived.map(|due| ms(due.saturating_duration_since(now)))
    }
}

impl Noted {
    /// The same, and when it is to be elsewhere.
    pub(super) fn due(self, due: Due) -> Noted {
        Noted { due, ..self }
    }

    /// The same, with blocks that were merged in it.
    pub(super) fn with(self, merged: Merged) -> Noted {
        Noted { merged, ..self }
    }

    /// These disks of a set have written something. Returns whether one of them has lost what it
    /// had written before.
    pub(super) fn add(
        &mut self,
        set: DiskId,
        written: Vec<disks::Unflushed>,
        is_stable: bool,
    ) -> bool {
        let disk = |written: &disks::Unflushed| written.granted.capability.disk;
        self.copies.narrow(set, &written.iter().map(disk).collect());
        let mut is_lost = false;
        for one in written.into_iter().filter(|_| !is_stable) {
            let boot = one.boot;
            let before = self.unflushed.insert(disk(&one), one);
            is_lost |= before.is_some_and(|before| before.boot != boot);
        }
        is_lost
    }
}

/// Files with written bytes that are not committed.
#[derive(Debug, Default)]
pub(super) struct UncommittedFiles {
    files: Mutex<HashMap<FileId, Arc<File>>>,
    /// How many files there are, so that the lock is not taken needlessly.
    count: AtomicUsize,
    turns: Mutex<HashMap<FileId, Weak<Turn>>>,
}

/// Shared while writing; exclusive while merging, or committing.
pub(super) type Turn = tokio::sync::RwLock<()>;

/// One of them.
#[derive(Debug, Default)]
pub(super) struct File {
    written: Mutex<Option<Uncommitted>>,
}

/// What is to be committed.
#[derive(Clone, Debug)]
pub(super) struct Uncommitted {
    /// The credentials of the last writer.
    pub(super) cred: Cred,
    /// In order, apart from each other.
    pub(super) pieces: Vec<Written>,
    /// What must still be flushed.
    pub(super) unflushed: Unflushed,
    /// The disks that have it. A disk that was restarted between two writes does not count: what
    /// it had is lost.
    pub(super) copies: Copies,
    merged: Merged,
    /// When the first of it is to be elsewhere.
    pub(super) due: Due,
}

impl UncommittedFiles {
    /// Records what was written of `file`.
    pub(super) fn note(&self, cred: &Cred, file: FileId, pieces: &[Written], noted: Noted) {
        let mut files = lock(&self.files);
        let entry = Arc::clone(files.entry(file).or_default());
        let mut written = lock(&entry.written);
        let Noted { copies, unflushed, merged, due } = noted;
        let (cred, none) = (cred.first_time(), Vec::new());
        let now = Uncommitted { cred, pieces: none, unflushed, copies, merged, due };
        let now = now.with(pieces);
        *written = Some(match written.take() {
            None => now,
            Some(before) => before.and(now),
        });
        self.count.store(files.len(), Ordering::Release);
    }

    /// The file, if it has something to commit, or another call is about to write.
    pub(super) fn get(&self, file: FileId) -> Option<Arc<File>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.files).get(&file).cloned()
    }

    /// The turn of a file, whatever was written of it.
    pub(super) fn turn(&self, file: FileId) -> Arc<Turn> {
        let mut turns = lock(&self.turns);
        if let Some(turn) = turns.get(&file).and_then(Weak::upgrade) {
            return turn;
        }
        if turns.len() == turns.capacity() {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::default();
        turns.insert(file, Arc::downgrade(&turn));
        turn
    }

    /// Whether something was written of a block and is not committed.
    pub(super) fn has(&self, file: FileId, block: u64) -> bool {
        self.get(file).is_some_and(|entry| {
            let written = lock(&entry.written);
            let pieces = written.iter().flat_map(|written| &written.pieces);
            let is_in = |piece: &&Written| {
                piece.offset < block + BLOCK_BYTES && block < piece.offset + piece.length
            };
            pieces.into_iter().any(|piece| is_in(&piece))
        })
    }

    /// How many blocks were merged and are not committed.
    pub(super) fn merged(&self, file: FileId) -> usize {
        let merged = |entry: Arc<File>| {
            lock(&entry.written).as_ref().map_or(0, |written| written.merged.len())
        };
        self.get(file).map_or(0, merged)
    }

    /// Puts back what could not be committed.
    pub(super) fn put_back(&self, file: FileId, before: Uncommitted) {
        let mut files = lock(&self.files);
        let entry = Arc::clone(files.entry(file).or_default());
        let mut written = lock(&entry.written);
        *written = Some(match written.take() {
            None => before,
            Some(now) => before.and(now),
        });
        self.count.store(files.len(), Ordering::Release);
    }

    /// Forgets a file that has nothing more to commit. A call that waits for its turn finds
    /// nothing.
    pub(super) fn forget_if_done(&self, file: FileId) {
        let mut files = lock(&self.files);
        if files.get(&file).is_some_and(|entry| lock(&entry.written).is_none()) {
            files.remove(&file);
        }
        self.count.store(files.len(), Ordering::Release);
    }
}

impl File {
    /// Whether some of it is on such disks.
    pub(super) fn lies_on(&self, is_one: &dyn Fn(DiskId) -> bool) -> bool {
        let written = lock(&self.written);
        written.iter().flat_map(|written| &written.pieces).any(|piece| is_one(piece.disk))
    }

    /// Takes what is to be committed, while holding the file's turn exclusively.
    pub(super) fn take(&self) -> Option<Uncommitted> {
        lock(&self.written).take()
    }
}

impl Uncommitted {
    /// This, and what was written `after` it.
    fn and(mut self, after: Uncommitted) -> Uncommitted {
        for (set, disks) in &after.copies.0 {
            self.copies.narrow(*set, disks);
        }
        for (disk, written) in after.unflushed {
            let boot = written.boot;
            let before = self.unflushed.insert(disk, written);
            if before.is_some_and(|before| before.boot != boot) {
                self.copies.remove(disk);
            }
        }
        // The rest of a block comes from where it was merged first.
        for (block, from) in after.merged {
            self.merged.entry(block).or_insert(from);
        }
        let due = self.due.and(after.due);
        Uncommitted { cred: after.cred, due, ..self }.with(&after.pieces)
    }

    /// The merged blocks of some pieces; a commit can name them all, since there are no more than
    /// it can.
    pub(super) fn merged_in(&self, pieces: &[Written]) -> Vec<words::Merged> {
        let mut found = Vec::new();
        for piece in pieces {
            let blocks = block_of(piece.offset)..piece.offset + piece.length;
            let merged = self.merged.range(blocks);
            found.extend(
                merged.map(|(offset, from)| words::Merged { offset: *offset, from: *from }),
            );
        }
        found.dedup_by_key(|merged| merged.offset);
        found
    }

    fn with(mut self, pieces: &[Written]) -> Uncommitted {
        pieces.iter().for_each(|piece| add(&mut self.pieces, *piece));
        self
    }
}

/// A time in ms, or the longest that can be said.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Adds a piece to pieces in order: it replaces what was written there before, and is joined with a
/// piece that continues it on the same disk.
fn add(pieces: &mut Vec<Written>, new: Written) {
    if new.length == 0 {
        return;
    }
    if let Some(last) = pieces.last_mut()
        && goes_on(*last, new)
    {
        last.length += new.length;
        return;
    }
    let before = pieces.iter().filter_map(|old| cut(*old, 0, new.offset));
    let after = pieces.iter().filter_map(|old| cut(*old, end(new), u64::MAX));
    let mut joined: Vec<Written> = Vec::with_capacity(pieces.len() + 2);
    for piece in before.chain([new]).chain(after) {
        match joined.last_mut() {
            Some(last) if goes_on(*last, piece) => last.length += piece.length,
            _ => joined.push(piece),
        }
    }
    *pieces = joined;
}

fn end(piece: Written) -> u64 {
    piece.offset + piece.length
}

/// The part of a piece between two offsets of the file.
fn cut(piece: Written, from: u64, to: u64) -> Option<Written> {
    let (from, to) = (piece.offset.max(from), end(piece).min(to));
    let position = piece.position + from.saturating_sub(piece.offset);
    (from < to).then(|| Written { offset: from, length: to - from, position, ..piece })
}

fn goes_on(piece: Written, next: Written) -> bool {
    end(piece) == next.offset
        && piece.disk == next.disk
        && piece.position + piece.length == next.position
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use larder_wire::capability::{
        BootEpoch, Capability, CapabilityId, Extent, Extents, GroupId, KeyEpoch, Mode, VolumeId,
    };
    use larder_wire::disk::session::Granted;
    use larder_wire::seal::{KEY_BYTES, Secret};

    use super::*;

    /// A write to a disk in this boot of it.
    fn written_in(boot: u64) -> disks::Unflushed {
        let capability = Capability {
            volume: VolumeId([0; 16]),
            disk: larder_wire::capability::DiskId(1),
            boot: BootEpoch(boot),
            key: KeyEpoch(1),
            group: GroupId(1),
            id: CapabilityId(1),
            mode: Mode::Write,
            expiry_ms: 1,
            extents: Extents::new(vec![Extent::new(0, 1).unwrap()]).unwrap(),
        };
        let secret = Secret::new([0; KEY_BYTES]);
        disks::Unflushed {
            boot: BootEpoch(boot),
            granted: Arc::new(Granted { capability, secret }),
        }
    }

    fn piece(span: &Range<u64>, position: u64) -> Written {
        let length = span.end - span.start;
        Written { offset: span.start, length, disk: DiskId(1), position }
    }

    /// All orders of three pieces in seven bytes, the second one in blocks of its own, against a
    /// model with one entry per byte.
    #[test]
    fn pieces_are_the_bytes_that_were_written_last() {
        let spans: Vec<Range<u64>> = (0..7).flat_map(|a| (a + 1..=7).map(move |b| a..b)).collect();
        for a in &spans {
            for b in &spans {
                for c in &spans {
                    let written = [piece(a, a.start), piece(b, 100 + b.start), piece(c, c.start)];
                    let mut pieces = Vec::new();
                    written.iter().for_each(|one| add(&mut pieces, *one));
                    for byte in 0..8 {
                        let wanted = written.iter().rev().find_map(|one| position_of(one, byte));
                        let mut has = pieces.iter().filter_map(|one| position_of(one, byte));
                        assert_eq!(has.next(), wanted, "{a:?} {b:?} {c:?}: {pieces:?}");
                        assert_eq!(has.next(), None);
                    }
                    let apart = |two: &[Written]| !goes_on(two[0], two[1]);
                    assert!(pieces.windows(2).all(apart), "{pieces:?}");
                }
            }
        }
    }

    fn position_of(piece: &Written, byte: u64) -> Option<u64> {
        (piece.offset..end(*piece)).contains(&byte).then(|| piece.position + byte - piece.offset)
    }

    #[test]
    fn a_disk_that_was_restarted_between_two_writes_has_lost_the_first() {
        let all = UncommittedFiles::default();
        let (cred, file) = (Cred::root(), FileId(5));
        let boots = |boot| {
            let mut noted = Noted::default();
            assert!(!noted.add(DiskId(1), vec![written_in(boot)], false));
            noted
        };
        let note = |range: Range<u64>, boot| {
            all.note(&cred, file, &[piece(&range, range.start)], boots(boot));
        };
        note(0..10, 7);
        note(10..20, 7);
        let written = all.get(file).unwrap().take().unwrap();
        assert_eq!(
            (written.pieces.as_slice(), written.copies.is_lost()),
            (&[piece(&(0..20), 0)][..], false)
        );
        note(30..40, 8);
        all.put_back(file, written);
        let written = all.get(file).unwrap().take().unwrap();
        assert_eq!((written.pieces.len(), written.copies.is_lost()), (2, true));
        all.forget_if_done(file);
        assert!(all.get(file).is_none());
    }
}
