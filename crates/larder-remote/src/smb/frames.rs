//! The frame filter below [`smb2`]'s connection, which reports lease breaks.
//!
//! The library drops lease breaks, because it has no leases. A server sends them unsolicited, with
//! message id -1 and session 0, so neither signed nor encrypted (MS-SMB2, 3.3.4.7), and whole
//! frames pass here before anything else sees them. Such a frame is not authenticated, so all it
//! can do is end a lease.

use super::greeting::Greeting;
use smb2::Result;
use smb2::transport::{ReceiveProgress, TcpTransport, TransportReceive, TransportSend};
use std::pin::Pin;
use std::sync::Arc;

/// Bytes of the header (MS-SMB2, 2.2.1).
pub(super) const HEADER_BYTES: usize = 64;
/// Length of a lease break's body, which distinguishes it from an oplock break (MS-SMB2, 2.2.23.2).
const BREAK_BYTES: u16 = 44;
const OPLOCK_BREAK: u16 = 0x12;
/// The server waits for an acknowledgement.
const ACK_REQUIRED: u32 = 1;

/// The key under which a lease was requested.
pub(super) type LeaseKey = [u8; 16];

/// Rights of a lease (MS-SMB2, 2.2.13.2.8): to keep what was read.
pub(super) const LEASE_READ: u32 = 1;
/// To keep the file open.
pub(super) const LEASE_HANDLE: u32 = 2;
/// To be the only client that has it open.
pub(super) const LEASE_WRITE: u32 = 4;

/// A server takes (a part of) a lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseBreak {
    pub(super) key: LeaseKey,
    /// Whether the server waits until it hears that we know.
    pub(super) acknowledge: bool,
    /// The rights that are left.
    pub(super) left: u32,
}

/// Reads a frame that may be a lease break; `None` if it is anything else.
pub(super) fn lease_break(frame: &[u8]) -> Option<LeaseBreak> {
    let array = |at: usize| -> Option<[u8; 4]> { frame.get(at..at + 4)?.try_into().ok() };
    let short = |at: usize| Some(u16::from_le_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let unasked = frame.get(24..32)? == [0xff; 8];
    let body = HEADER_BYTES;
    if !unasked || frame.get(..4)? != b"\xfeSMB" || short(12)? != OPLOCK_BREAK {
        return None;
    }
    if short(body)? != BREAK_BYTES || frame.len() < body + usize::from(BREAK_BYTES) {
        return None;
    }
    Some(LeaseBreak {
        key: frame.get(body + 8..body + 24)?.try_into().ok()?,
        acknowledge: u32::from_le_bytes(array(body + 4)?) & ACK_REQUIRED != 0,
        left: u32::from_le_bytes(array(body + 28)?),
    })
}

/// An unsolicited message of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEvent {
    /// A lease is taken back.
    Break(LeaseBreak),
    /// The connection is gone.
    End,
}

/// Receives these; must not block.
pub(super) type EventSink = Arc<dyn Fn(ConnectionEvent) + Send + Sync>;

/// One half or both of a TCP transport; it withholds lease breaks from the library.
pub(super) struct FrameFilter {
    transport: Arc<TcpTransport>,
    greeting: Arc<Greeting>,
    events: EventSink,
}

impl FrameFilter {
    pub(super) fn new(
        transport: Arc<TcpTransport>,
        greeting: Arc<Greeting>,
        events: EventSink,
    ) -> FrameFilter {
        FrameFilter { transport, greeting, events }
    }
}

type Sending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl TransportSend for FrameFilter {
    fn send<'life0, 'life1, 'async_trait>(
        &'life0 self,
        data: &'life1 [u8],
    ) -> Sending<'async_trait, ()>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move { self.transport.send(&self.greeting.amend(data)).await })
    }
}

impl TransportReceive for FrameFilter {
    fn receive<'life0, 'async_trait>(&'life0 self) -> Sending<'async_trait, Vec<u8>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            loop {
                match self.transport.receive().await {
                    Ok(frame) => match lease_break(&frame) {
                        Some(taken) => (self.events)(ConnectionEvent::Break(taken)),
                        None => {
                            self.greeting.hear(&frame);
                            return Ok(frame);
                        }
                    },
                    Err(error) => {
                        (self.events)(ConnectionEvent::End);
                        return Err(error);
                    }
                }
            }
        })
    }

    fn receive_progress(&self) -> Option<Arc<ReceiveProgress>> {
        self.transport.receive_progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 108];
        frame[..4].copy_from_slice(b"\xfeSMB");
        frame[12] = 0x12;
        frame[24..32].fill(0xff);
        frame[64] = 44;
        frame[68] = 1;
        frame[72..88].copy_from_slice(b"sixteen bytes...");
        frame[88] = 3;
        frame[92] = 1;
        frame
    }

    #[test]
    fn a_break_is_heard() {
        let wanted = LeaseBreak { key: *b"sixteen bytes...", acknowledge: true, left: LEASE_READ };
        assert_eq!(lease_break(&frame()), Some(wanted));
    }

    #[test]
    fn anything_else_passes() {
        for (at, byte) in [(0, 0xfd), (12, 0x05), (13, 1), (24, 0), (31, 1), (64, 24), (65, 1)] {
            let mut other = frame();
            other[at] = byte;
            assert_eq!(lease_break(&other), None, "{at}");
        }
        for length in 0..108 {
            assert_eq!(lease_break(&frame()[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(
            changes in proptest::collection::vec((0..108_usize, any::<u8>()), 0..40),
            length in 0..120_usize,
        ) {
            let mut bytes = frame();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.resize(length, 0xff);
            let _ = lease_break(&bytes);
        }
    }
}
