//! The metadata server waits for bytes that a client says are in flight.

use std::sync::Arc;
use std::time::Duration;

use larder_io::{Image, SimDisk};
use larder_wire::capability::{Extents, Mode};
use larder_wire::disk::session::AskError;
use larder_wire::disk::words::{AwaitWrittenHead, Refusal};
use larder_wire::seal::Setup;

use crate::stand::{SIZE, Stand, extent, write};

const BLOCK: u64 = 4096;

fn awaiting(extents: &[(u64, u64)], wait_ms: u32) -> AwaitWrittenHead {
    let extents = extents.iter().map(|(offset, length)| extent(*offset, *length)).collect();
    AwaitWrittenHead { extents: Extents::new(extents).unwrap(), wait_ms }
}

/// Each order of asking and writing, the last block last: a waiter waits until all are written, and
/// a loss of power right after the answer loses nothing of it.
#[tokio::test]
async fn a_request_that_waits_for_a_write_is_answered_when_it_is_durable() {
    for is_asked_first in [false, true] {
        let disk = SimDisk::new();
        let stand = Arc::new(Stand::on(&disk, Setup::Secure).await);
        stand.tell().await;
        let granted = stand.grant(Mode::Write, &[(0, SIZE)]);
        let session = stand.session(&granted).await;
        let head = awaiting(&[(0, 100), (2 * BLOCK, BLOCK + 1)], 1000);
        let own = Arc::clone(&stand);
        let ask = async move { own.order(&head).await.unwrap().is_durable };
        let first = write(&session, &granted, 5, b"the first block");
        let last = write(&session, &granted, 2 * BLOCK, &[7; 5000]);
        if is_asked_first {
            let asked = tokio::spawn(ask);
            stand.clock.asleep(1).await;
            stand.deliver(first).await.unwrap();
            // It checks again, and continues to wait.
            tokio::task::yield_now().await;
            assert!(!asked.is_finished());
            stand.deliver(last).await.unwrap();
            assert!(asked.await.unwrap());
        } else {
            stand.deliver(last).await.unwrap();
            stand.deliver(first).await.unwrap();
            assert!(ask.await);
        }
        let left = disk.crash(Image::Synced);
        drop((stand, disk));
        let stand = Stand::on(&left, Setup::Secure).await;
        let store = stand.device.store();
        assert_eq!(store.read(extent(5, 15)).unwrap(), b"the first block");
        assert_eq!(store.read(extent(2 * BLOCK, 5000)).unwrap(), [7; 5000]);
    }
}

/// What is not written in time, or is cleared, counts as missing; and a waiter blocks no other
/// request.
#[tokio::test]
async fn a_request_that_waits_for_a_missing_write_is_told_so() {
    let stand = Arc::new(Stand::new(Setup::Secure).await);
    let granted = stand.grant(Mode::Write, &[(0, SIZE)]);
    let session = stand.session(&granted).await;
    stand.write(&session, &granted, 0, &[7; 4096]).await.unwrap();
    assert!(!stand.order(&awaiting(&[(0, 2 * BLOCK)], 0)).await.unwrap().is_durable);
    let own = Arc::clone(&stand);
    let asked = tokio::spawn(async move { own.order(&awaiting(&[(BLOCK, 1)], 1000)).await });
    stand.clock.asleep(1).await;
    // Neither a revocation nor the next owner waits for it.
    stand.revoke(&granted).await;
    stand.control_as(2, [8; 32]).await.unwrap();
    assert!(!asked.is_finished());
    stand.clock.advance(Duration::from_secs(1));
    assert!(!asked.await.unwrap().unwrap().is_durable);
}

#[tokio::test]
async fn no_request_waits_for_bytes_past_the_end_of_the_disk() {
    let stand = Stand::new(Setup::Secure).await;
    let behind = stand.order(&awaiting(&[(SIZE - 1, 2)], 1000)).await;
    assert_eq!(behind.map(|_| ()), Err(AskError::Refused(Refusal::OutOfDisk)));
}
