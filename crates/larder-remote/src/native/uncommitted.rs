//! What was written to the disks, and is not yet part of its file.
//!
//! A write goes to the disks at once; the metadata server hears of it with the next commit, which
//! names places and not data. Until then nobody else sees the bytes, and the size that the server
//! knows is the old one: who asks for a file's attributes or bytes here commits first.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_vfs::Cred;
use larder_wire::meta::words::{DiskId, FileId, Written};

use super::disks;

/// Disks that may lose written bytes, with the last write to each.
pub(super) type Unflushed = BTreeMap<DiskId, disks::Unflushed>;

/// Files with written bytes that are not committed.
#[derive(Debug, Default)]
pub(super) struct UncommittedFiles {
    files: Mutex<HashMap<FileId, Arc<File>>>,
    /// How many there are, so that nobody takes the lock for nothing.
    count: AtomicUsize,
}

/// One of them.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Held while its bytes are committed.
    pub(super) turn: tokio::sync::Mutex<()>,
    written: Mutex<Option<Uncommitted>>,
}

/// What is to be committed.
#[derive(Clone, Debug)]
pub(super) struct Uncommitted {
    /// On whose behalf: who wrote last.
    pub(super) cred: Cred,
    /// In order, apart from each other.
    pub(super) pieces: Vec<Written>,
    /// What must still be flushed.
    pub(super) unflushed: Unflushed,
    /// A disk was restarted between two writes: what it had is lost.
    pub(super) is_lost: bool,
}

impl UncommittedFiles {
    /// Notes what was written of `file`. `unflushed` are the disks that have not made it durable.
    pub(super) fn note(&self, cred: &Cred, file: FileId, pieces: &[Written], unflushed: Unflushed) {
        let mut files = lock(&self.files);
        let entry = Arc::clone(files.entry(file).or_default());
        let mut written = lock(&entry.written);
        let now =
            Uncommitted { cred: cred.first_time(), pieces: Vec::new(), unflushed, is_lost: false };
        let now = now.with(pieces);
        *written = Some(match written.take() {
            None => now,
            Some(before) => before.and(now),
        });
        self.count.store(files.len(), Ordering::Release);
    }

    /// The file, if it has something to commit, or somebody is about to.
    pub(super) fn get(&self, file: FileId) -> Option<Arc<File>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.files).get(&file).cloned()
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

    /// Forgets a file that has nothing more to commit. Whoever waits for its turn finds nothing.
    pub(super) fn forget_if_done(&self, file: FileId) {
        let mut files = lock(&self.files);
        if files.get(&file).is_some_and(|entry| lock(&entry.written).is_none()) {
            files.remove(&file);
        }
        self.count.store(files.len(), Ordering::Release);
    }
}

impl File {
    /// Takes what is to be committed, with the turn held.
    pub(super) fn take(&self) -> Option<Uncommitted> {
        lock(&self.written).take()
    }
}

impl Uncommitted {
    /// This, and what was written `after` it.
    fn and(mut self, after: Uncommitted) -> Uncommitted {
        let mut is_lost = self.is_lost || after.is_lost;
        for (disk, written) in after.unflushed {
            let boot = written.boot;
            let before = self.unflushed.insert(disk, written);
            is_lost |= before.is_some_and(|before| before.boot != boot);
        }
        Uncommitted { cred: after.cred, is_lost, ..self }.with(&after.pieces)
    }

    fn with(mut self, pieces: &[Written]) -> Uncommitted {
        pieces.iter().for_each(|piece| add(&mut self.pieces, *piece));
        self
    }
}

/// Adds a piece to pieces in order: it takes the place of what was written there before, and is
/// joined with what goes on beside it, on the same disk.
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

/// What is left of a piece between two offsets of the file.
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

    /// All orders of three pieces in seven bytes, the second on blocks of its own, against a place
    /// for each byte.
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
                        let wanted = written.iter().rev().find_map(|one| place(one, byte));
                        let mut has = pieces.iter().filter_map(|one| place(one, byte));
                        assert_eq!(has.next(), wanted, "{a:?} {b:?} {c:?}: {pieces:?}");
                        assert_eq!(has.next(), None);
                    }
                    let apart = |two: &[Written]| !goes_on(two[0], two[1]);
                    assert!(pieces.windows(2).all(apart), "{pieces:?}");
                }
            }
        }
    }

    fn place(piece: &Written, byte: u64) -> Option<u64> {
        (piece.offset..end(*piece)).contains(&byte).then(|| piece.position + byte - piece.offset)
    }

    #[test]
    fn a_disk_that_was_restarted_between_two_writes_has_lost_the_first() {
        let all = UncommittedFiles::default();
        let (cred, file) = (Cred::root(), FileId(5));
        let boots = |boot| Unflushed::from([(DiskId(1), written_in(boot))]);
        let note = |range: Range<u64>, boot| {
            all.note(&cred, file, &[piece(&range, range.start)], boots(boot));
        };
        note(0..10, 7);
        note(10..20, 7);
        let written = all.get(file).unwrap().take().unwrap();
        assert_eq!(
            (written.pieces.as_slice(), written.is_lost),
            (&[piece(&(0..20), 0)][..], false)
        );
        note(30..40, 8);
        all.put_back(file, written);
        let written = all.get(file).unwrap().take().unwrap();
        assert_eq!((written.pieces.len(), written.is_lost), (2, true));
        all.forget_if_done(file);
        assert!(all.get(file).is_none());
    }
}
