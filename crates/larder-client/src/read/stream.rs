//! Open files that are read in sequence: how far ahead of them to read, and of which version they
//! get bytes.

use std::ops::Range;

use larder_vfs::{Error, Result, Validator};

use crate::node::have_same_bytes;

/// First readahead window of a sequential reader, in bytes.
const WINDOW_START_BYTES: u64 = 512 << 10;

/// How far out of order the kernel may ask for the pieces of one sequential read, in bytes.
const REORDER_BYTES: u64 = 1 << 20;

/// A version of a file that somebody was shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) version: Validator,
    /// The file's epoch then: it is the same as long as only changes of our own make new versions.
    /// `None` if it is not known any more.
    pub(crate) epoch: Option<u64>,
}

impl Shown {
    /// Whether somebody has changed links, mode or owner at most: then the bytes are the same, but
    /// for who sets times back.
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
    /// What a sequential read has been shown so far; before the first read, what the open found,
    /// whose pages the kernel may hold.
    pub(crate) shown: Option<Shown>,
    /// It was not read in sequence.
    pub(crate) jumped: bool,
}

/// Moves the stream on. Answers what to read ahead if reads are sequential, else `None`.
pub(crate) fn advance(
    stream: &mut Stream,
    wanted: &Range<u64>,
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
        // One read from the beginning may be a look at the head; the second one makes a sequence.
        *window = match *window {
            0 if first => 0,
            0 => WINDOW_START_BYTES,
            window => (window * 2).min(window_max),
        };
        *reached = wanted.end;
    }
    (*window > 0).then(|| *reached..*reached + *window)
}

impl Stream {
    /// Holds a file that is read in sequence to one version and what was changed of it here:
    /// answers the version of `now`, to be noted when bytes of it are handed out. `ours` says
    /// that the file is being changed here.
    ///
    /// # Errors
    /// [`Error::Changed`] if bytes of an older version were handed out already and the rest of that
    /// version is not to be had. A reader that had reached the end of the older version goes on: to
    /// it the file has grown. So does one that wants bytes behind the end of the present one: there
    /// are none, and it learns that the file ends here, as from any file that somebody cuts.
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
