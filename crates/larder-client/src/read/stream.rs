//! Open files that are read sequentially: how far ahead of them to read, and which version their
//! bytes must belong to.

use std::ops::Range;

use larder_vfs::{Error, Result, Validator};

use crate::node::have_same_bytes;

/// First readahead window of a sequential reader, in bytes.
const WINDOW_START_BYTES: u64 = 512 << 10;

/// A first read that is as long as this, in bytes, is more than a look at the head of a file. The
/// kernel asks for this much on behalf of a caller that reads 64 KiB, and for 16 KiB if the caller
/// reads less than 4.
const BULK_BYTES: u64 = 128 << 10;

/// How far out of order the kernel may send the pieces of one sequential read, in bytes.
const REORDER_BYTES: u64 = 1 << 20;

/// A version of a file that a reader was shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) version: Validator,
    /// The file's epoch then: it stays the same as long as only changes of our own make new
    /// versions. `None` if it is not known any more.
    pub(crate) epoch: Option<u64>,
}

impl Shown {
    /// Whether links, mode or owner were changed at most: then the bytes are the same, unless a
    /// client sets times back.
    fn has_bytes_of(&self, other: &Shown) -> bool {
        have_same_bytes(&self.version, &other.version)
    }
}

/// How an open file has been read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// Offset after the farthest byte read.
    pub(crate) reached: u64,
    /// Readahead window in bytes; 0 while reads are not in sequence.
    pub(crate) window: u64,
    /// The version that a sequential read was shown last; before the first read, the version that
    /// the open found, of which the kernel may hold pages.
    pub(crate) shown: Option<Shown>,
    /// It was not read in sequence.
    pub(crate) jumped: bool,
}

/// Advances the stream of a file of this size. Returns what to read ahead if reads are sequential,
/// else `None`.
pub(crate) fn advance(
    stream: &mut Stream,
    wanted: &Range<u64>,
    size: u64,
    window_max: u64,
) -> Option<Range<u64>> {
    let sequential = wanted.start <= stream.reached + REORDER_BYTES
        && wanted.end + REORDER_BYTES >= stream.reached;
    if !sequential {
        stream.jumped |= stream.reached > 0;
        stream.window = 0;
        stream.reached = wanted.end;
        return None;
    }
    let Stream { reached, window, .. } = stream;
    if wanted.end > *reached {
        let first = *reached == 0 && wanted.start == 0;
        let is_bulk =
            wanted.end >= BULK_BYTES && size.saturating_sub(wanted.end) <= WINDOW_START_BYTES;
        // One read from the beginning may be a look at the head; the second one makes a sequence.
        // For a small file, one long read is enough: the rest of the file costs no further round
        // trip.
        *window = match *window {
            0 if first && !is_bulk => 0,
            0 => WINDOW_START_BYTES,
            window => (window * 2).min(window_max),
        };
        *reached = wanted.end;
    }
    (*window > 0).then(|| *reached..*reached + *window)
}

impl Stream {
    /// Holds a sequential reader to one version of the file and the changes made to it here.
    /// Returns the version of `now`, to be recorded when bytes of it are returned to the reader.
    /// `ours` says that the file is being changed here.
    ///
    /// # Errors
    /// [`Error::Changed`] if bytes of an older version were returned already and the rest of that
    /// version is not available. A reader that had reached the end of the older version continues:
    /// for it the file has grown. So does a reader that wants bytes beyond the end of the present
    /// version: there are none, and it learns that the file ends here, as with any file that is
    /// truncated.
    pub(super) fn check(&self, now: Shown, ours: bool, wanted: &Range<u64>) -> Result<Shown> {
        let is_another = |begun: &Shown| {
            let is_same = begun.version.same(&now.version) || begun.has_bytes_of(&now);
            !is_same && (begun.epoch.is_none() || begun.epoch != now.epoch)
        };
        let begun = self.shown.filter(is_another);
        let mixes = begun.is_some_and(|begun| wanted.start < begun.version.size) && !self.jumped;
        let is_cut = wanted.start >= now.version.size;
        if mixes && !ours && !is_cut && wanted.start != 0 {
            return Err(Error::Changed);
        }
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use larder_vfs::Time;

    use super::*;

    const MAX: u64 = 8 << 20;
    const MIB: u64 = 1 << 20;

    /// The readahead window of a sequential reader doubles up to its bound; the second read makes a
    /// sequence, the first one may be a look at the head.
    #[test]
    fn the_window_of_a_sequence_doubles_up_to_its_bound() {
        let mut stream = Stream::default();
        assert_eq!(advance(&mut stream, &(0..4096), 1 << 30, MAX), None);
        let mut expected = WINDOW_START_BYTES;
        for number in 1..20 {
            let wanted = number * 4096..(number + 1) * 4096;
            let ahead = advance(&mut stream, &wanted, 1 << 30, MAX);
            assert_eq!(ahead, Some(wanted.end..wanted.end + expected), "{number}");
            expected = (expected * 2).min(MAX);
        }
        assert!(!stream.jumped);
    }

    #[test]
    fn a_long_first_read_of_a_small_file_is_a_sequence_already() {
        let rest = WINDOW_START_BYTES;
        for (read, size, is_sequence) in [
            (BULK_BYTES, BULK_BYTES + rest, true),
            (BULK_BYTES, BULK_BYTES + rest + 1, false),
            (BULK_BYTES - 1, BULK_BYTES + rest - 1, false),
            (2 * BULK_BYTES, 2 * BULK_BYTES, true),
            (16 << 10, 64 << 10, false),
        ] {
            let ahead = advance(&mut Stream::default(), &(0..read), size, MAX);
            assert_eq!(ahead.is_some(), is_sequence, "{read} of {size}");
        }
        let inside = BULK_BYTES * 20..BULK_BYTES * 21;
        assert_eq!(advance(&mut Stream::default(), &inside, inside.end + 1, MAX), None);
    }

    /// Over all sequences of five reads at six places: the window is zero, or the first one doubled
    /// some times, and never above its bound; readahead begins at the reader's position; that
    /// position advances, unless the reader jumped, which is remembered.
    #[test]
    fn every_sequence_of_reads_keeps_the_stream_in_order() {
        let reads: [Range<u64>; 6] = [
            0..4096,
            4096..MIB,
            MIB / 2..MIB + 4096,
            2 * MIB..3 * MIB,
            9 * MIB..9 * MIB + 1,
            64 * MIB..65 * MIB,
        ];
        let mut count = 0;
        for sequence in 0..reads.len().pow(5) {
            let mut stream = Stream::default();
            for step in 0..5 {
                let wanted = &reads[sequence / reads.len().pow(step) % reads.len()];
                let before = stream;
                let ahead = advance(&mut stream, wanted, 100 * MIB, MAX);
                let windows = (0..).map(|power| WINDOW_START_BYTES << power);
                let mut windows = windows.take_while(|window| *window <= MAX);
                assert!(stream.window == 0 || windows.any(|window| window == stream.window));
                let expected = stream.reached..stream.reached + stream.window;
                assert_eq!(ahead, (stream.window > 0).then_some(expected), "{sequence}");
                let is_near = wanted.start <= before.reached + REORDER_BYTES
                    && wanted.end + REORDER_BYTES >= before.reached;
                if is_near {
                    assert_eq!(stream.reached, before.reached.max(wanted.end));
                    assert!(stream.window >= before.window);
                } else {
                    assert_eq!((stream.window, stream.reached), (0, wanted.end));
                }
                assert_eq!(stream.jumped, before.jumped || !is_near && before.reached > 0);
                count += 1;
            }
        }
        println!("{count} reads");
    }

    fn shown(size: u64, sec: i64, epoch: Option<u64>) -> Shown {
        let time = Time { sec, nsec: 0 };
        let version = Validator { change: None, data_change: None, size, mtime: time, ctime: time };
        Shown { version, epoch }
    }

    /// A sequential reader never gets bytes of two versions, but continues where that does no harm.
    #[test]
    fn a_sequence_is_held_to_one_version() {
        let old = shown(100, 1, Some(7));
        let begun = Stream { reached: 50, shown: Some(old), ..Stream::default() };
        let changed = shown(100, 2, Some(8));
        let fails = |stream: Stream, now: Shown, ours: bool, wanted: Range<u64>| {
            stream.check(now, ours, &wanted).is_err()
        };
        assert!(fails(begun, changed, false, 50..60));
        assert!(!fails(Stream::default(), changed, false, 50..60), "nothing was shown yet");
        assert!(!fails(begun, old, false, 50..60), "it is the same version");
        assert!(!fails(begun, changed, true, 50..60), "the change is ours");
        assert!(!fails(begun, changed, false, 0..60), "it begins anew");
        assert!(!fails(begun, changed, false, 100..110), "it had all of the old version");
        assert!(!fails(begun, shown(40, 2, Some(8)), false, 50..60), "the file ends before");
        assert!(fails(begun, shown(55, 2, Some(8)), false, 50..60), "or behind");
        let same_epoch = shown(100, 2, Some(7));
        assert!(!fails(begun, same_epoch, false, 50..60), "all changes since were ours");
        let forgotten = Stream { shown: Some(Shown { epoch: None, ..old }), ..begun };
        assert!(fails(forgotten, shown(100, 2, None), false, 50..60), "that is not known");
        assert!(!fails(Stream { jumped: true, ..begun }, changed, false, 50..60), "no sequence");
        let mut renamed = changed;
        renamed.version.mtime = old.version.mtime;
        assert!(!fails(begun, renamed, false, 50..60), "only links, mode or owner");
    }
}
