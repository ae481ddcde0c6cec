//! Reused memory for replies.
//!
//! A fresh buffer of 1 MiB is a mapping whose pages the kernel must find and zero one by one, which
//! costs about as much as copying the payload into it. So large buffers come back here when the
//! last slice of a reply is dropped. Small replies are copied out: they are kept long (attributes,
//! names) and must not pin a large buffer.
//!
//! Invariant: idle buffers here stay below [`IDLE_BYTES_MAX`]; buffers in use are bounded by the
//! holders of replies.

use bytes::Bytes;
use larder_wire::record::Buffers;
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes kept for reuse. Enough for 32 READs of 1 MiB in flight.
const IDLE_BYTES_MAX: usize = 32 << 20;
/// Requests up to this size are left to the allocator, in bytes.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Room beside a payload whose size is a power of two, so that a READ of 1 MiB with its header
/// fits the class of 1 MiB, in bytes.
const HEADER_BYTES: usize = 4096;
/// Size classes: from 32 KiB, doubling, to 2 GiB.
const CLASSES: usize = 17;
const FIRST_CLASS_LOG2: u32 = 15;

/// Idle buffers, by size class.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    classes: [Vec<Vec<u8>>; CLASSES],
    bytes: usize,
}

/// Index and size of the class that holds `length` bytes.
fn class(length: usize) -> (usize, usize) {
    let payload = length.saturating_sub(HEADER_BYTES).max(1 << FIRST_CLASS_LOG2);
    let size = payload.next_power_of_two();
    ((size.trailing_zeros() - FIRST_CLASS_LOG2) as usize, size + HEADER_BYTES)
}

impl Pool {
    fn take(self: &Arc<Pool>, length: usize) -> Pooled {
        let (index, size) = class(length);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = idle.classes.get_mut(index).and_then(Vec::pop);
        if reused.is_some() {
            assert!(idle.bytes >= size, "the bytes of every buffer that waits are counted");
            idle.bytes -= size;
        }
        drop(idle);
        let memory = reused.unwrap_or_else(|| vec![0; size]);
        assert!(memory.len() >= length, "a buffer holds what it is taken for");
        Pooled { memory, pool: Arc::clone(self) }
    }

    fn give_back(&self, memory: Vec<u8>) {
        let (index, size) = class(memory.len());
        debug_assert_eq!(size, memory.len(), "a buffer has the size of its class");
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + size > IDLE_BYTES_MAX {
            return;
        }
        if let Some(class) = idle.classes.get_mut(index) {
            class.push(memory);
            idle.bytes += size;
            debug_assert!(idle.bytes <= IDLE_BYTES_MAX, "what waits is bounded");
        }
    }
}

/// A buffer that returns to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Pooled {
    memory: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.memory));
    }
}

/// Memory for one reply.
#[derive(Debug)]
pub(super) enum ReplyBuffer {
    Small(Vec<u8>),
    Large(Pooled),
}

impl AsRef<[u8]> for ReplyBuffer {
    fn as_ref(&self) -> &[u8] {
        match self {
            ReplyBuffer::Small(memory) => memory,
            ReplyBuffer::Large(pooled) => &pooled.memory,
        }
    }
}

impl AsMut<[u8]> for ReplyBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            ReplyBuffer::Small(memory) => memory,
            ReplyBuffer::Large(pooled) => &mut pooled.memory,
        }
    }
}

/// Takes memory for replies from a pool.
#[derive(Clone, Debug)]
pub(super) struct ReplyBuffers(pub(super) Arc<Pool>);

impl Buffers for ReplyBuffers {
    type Buffer = ReplyBuffer;

    fn take(&mut self, length: usize) -> ReplyBuffer {
        if length <= SMALL_BYTES_MAX {
            ReplyBuffer::Small(vec![0; length])
        } else {
            ReplyBuffer::Large(self.0.take(length))
        }
    }

    fn freeze(&mut self, buffer: ReplyBuffer, length: usize) -> Bytes {
        match buffer {
            ReplyBuffer::Small(mut memory) => {
                memory.truncate(length);
                memory.into()
            }
            ReplyBuffer::Large(pooled) if length <= SMALL_BYTES_MAX => {
                Bytes::copy_from_slice(&pooled.memory[..length])
            }
            ReplyBuffer::Large(pooled) => Bytes::from_owner(pooled).slice(..length),
        }
    }
}

#[cfg(test)]
mod tests;
