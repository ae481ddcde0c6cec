//! Record marking: messages on a byte stream (RFC 5531, 11).
//!
//! A record is a sequence of fragments, each preceded by a mark of four bytes: its length, and
//! whether it is the last. [`RecordAssembler`] is the receiving state machine; it takes memory only
//! from its [`Buffers`] and reads large fragments in place, so that a payload is written once, by
//! the kernel.
//!
//! Invariants:
//! - a record never exceeds the limit, however many fragments announce it;
//! - memory is taken when a mark announces a fragment, never more than the limit (rounded up by
//!   [`Buffers`]) for one stream;
//! - after an error the stream is out of step and must be closed.

use bytes::{Bytes, BytesMut};
use thiserror::Error;

/// Length of a mark, in bytes.
pub const MARK_BYTES: usize = 4;
/// Largest fragment, in bytes: the mark has 31 bits for it.
pub const FRAGMENT_BYTES_MAX: usize = (1 << 31) - 1;
const LAST_FRAGMENT: u32 = 1 << 31;
/// Most fragments of a record. A peer that sends more, for example empty ones, only wants to waste
/// processor time.
const FRAGMENTS_MAX: u32 = 4096;

/// The mark of a record that is sent as one fragment.
///
/// # Panics
/// If the record is longer than [`FRAGMENT_BYTES_MAX`].
pub fn mark(record_bytes: usize) -> [u8; MARK_BYTES] {
    assert!(record_bytes <= FRAGMENT_BYTES_MAX);
    let length = u32::try_from(record_bytes).expect("checked above");
    (length | LAST_FRAGMENT).to_be_bytes()
}

/// Why a stream is not a sequence of acceptable records.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// A record is longer than agreed.
    #[error("a record of at least {length} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Bytes announced so far.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A record consists of absurdly many fragments.
    #[error("a record of more than {FRAGMENTS_MAX} fragments")]
    Fragments,
}

/// Where records find their memory.
pub trait Buffers {
    /// Initialised memory.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// At least `length` bytes. Their content does not matter.
    fn take(&mut self, length: usize) -> Self::Buffer;

    /// Makes the first `length` bytes a message.
    fn freeze(&mut self, buffer: Self::Buffer, length: usize) -> Bytes;
}

/// Memory from the allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

impl Buffers for Heap {
    type Buffer = BytesMut;

    fn take(&mut self, length: usize) -> BytesMut {
        BytesMut::zeroed(length)
    }

    fn freeze(&mut self, mut buffer: BytesMut, length: usize) -> Bytes {
        buffer.truncate(length);
        buffer.freeze()
    }
}

/// Turns a byte stream into records.
///
/// Feed it with [`push`](Self::push). Before reading from the stream, ask for the
/// [`gap`](Self::gap): bytes read straight into it need not be pushed, only counted by
/// [`fill`](Self::fill).
#[derive(Debug)]
pub struct RecordAssembler<B: Buffers> {
    buffers: B,
    limit_bytes: usize,
    mark: [u8; MARK_BYTES],
    mark_bytes: usize,
    /// Fragments of the current record that were announced.
    fragments: u32,
    last: bool,
    buffer: Option<B::Buffer>,
    /// Bytes of the current record that are in `buffer`.
    filled_bytes: usize,
    /// Where the current fragment ends in `buffer`. Equal to `filled_bytes` between fragments.
    wanted_bytes: usize,
}

impl<B: Buffers> RecordAssembler<B> {
    /// A stream at the start of a record. Records may have up to `limit_bytes`.
    pub fn new(buffers: B, limit_bytes: usize) -> RecordAssembler<B> {
        RecordAssembler {
            buffers,
            limit_bytes,
            mark: [0; MARK_BYTES],
            mark_bytes: 0,
            fragments: 0,
            last: false,
            buffer: None,
            filled_bytes: 0,
            wanted_bytes: 0,
        }
    }

    /// Takes bytes of the stream; every record that they complete goes to `deliver`.
    ///
    /// # Errors
    /// [`RecordError`]: the stream must be closed.
    pub fn push(
        &mut self,
        mut input: &[u8],
        deliver: &mut impl FnMut(Bytes),
    ) -> Result<(), RecordError> {
        while !input.is_empty() {
            let gap = self.gap();
            if gap.is_empty() {
                self.push_mark(&mut input)?;
                self.finish_record(deliver);
            } else {
                let length = gap.len().min(input.len());
                let (now, later) = input.split_at(length);
                gap[..length].copy_from_slice(now);
                input = later;
                self.fill(length, deliver);
            }
        }
        Ok(())
    }

    /// Whether nothing of a next record has come yet.
    pub fn is_between(&self) -> bool {
        self.fragments == 0 && self.mark_bytes == 0
    }

    /// The part of the current fragment that is still to come; empty between fragments.
    pub fn gap(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer.as_mut()[self.filled_bytes..self.wanted_bytes],
            None => &mut [],
        }
    }

    /// Counts bytes that were read into the start of the [`gap`](Self::gap).
    ///
    /// # Panics
    /// If there are more than the gap has.
    pub fn fill(&mut self, length: usize, deliver: &mut impl FnMut(Bytes)) {
        assert!(length <= self.wanted_bytes - self.filled_bytes);
        self.filled_bytes += length;
        self.finish_record(deliver);
    }

    /// Takes bytes of a mark; a complete one opens its fragment.
    fn push_mark(&mut self, input: &mut &[u8]) -> Result<(), RecordError> {
        let length = (MARK_BYTES - self.mark_bytes).min(input.len());
        let (now, later) = input.split_at(length);
        self.mark[self.mark_bytes..][..length].copy_from_slice(now);
        self.mark_bytes += length;
        *input = later;
        if self.mark_bytes < MARK_BYTES {
            return Ok(());
        }

        let mark = u32::from_be_bytes(self.mark);
        self.mark_bytes = 0;
        self.last = mark & LAST_FRAGMENT != 0;
        self.fragments += 1;
        if self.fragments > FRAGMENTS_MAX {
            return Err(RecordError::Fragments);
        }
        self.open_fragment((mark & !LAST_FRAGMENT) as usize)
    }

    fn open_fragment(&mut self, length: usize) -> Result<(), RecordError> {
        let wanted = self.filled_bytes + length;
        if wanted > self.limit_bytes {
            return Err(RecordError::TooLong { length: wanted, limit: self.limit_bytes });
        }
        let held = self.buffer.as_ref().map_or(0, |buffer| buffer.as_ref().len());
        if wanted > held {
            // How many fragments follow is unknown, so a record of several grows by doubling.
            let length = if self.last { wanted } else { wanted.max(2 * held) };
            let mut larger = self.buffers.take(length.min(self.limit_bytes));
            if let Some(smaller) = &self.buffer {
                let filled = &smaller.as_ref()[..self.filled_bytes];
                larger.as_mut()[..self.filled_bytes].copy_from_slice(filled);
            }
            self.buffer = Some(larger);
        }
        self.wanted_bytes = wanted;
        Ok(())
    }

    /// Delivers the record if its last fragment is complete, and makes ready for the next.
    fn finish_record(&mut self, deliver: &mut impl FnMut(Bytes)) {
        if !self.last || self.mark_bytes > 0 || self.filled_bytes < self.wanted_bytes {
            return;
        }
        let record = match self.buffer.take() {
            Some(buffer) => self.buffers.freeze(buffer, self.filled_bytes),
            None => Bytes::new(),
        };
        self.last = false;
        self.fragments = 0;
        self.filled_bytes = 0;
        self.wanted_bytes = 0;
        deliver(record);
    }
}

#[cfg(test)]
mod tests;
