//! Which buffers return to the pool, and with which size.

use super::*;

#[test]
fn memory_is_used_again_when_the_last_slice_is_gone() {
    let pool = Arc::new(Pool::default());
    let mut buffers = ReplyBuffers(Arc::clone(&pool));
    let buffer = buffers.take((1 << 20) + 128);
    let address = buffer.as_ref().as_ptr();
    let reply = buffers.freeze(buffer, (1 << 20) + 128);
    let payload = reply.slice(128..);
    drop(reply);
    assert_ne!(buffers.take(1 << 20).as_ref().as_ptr(), address, "a slice is still held");
    drop(payload);
    let idle = pool.idle.lock().unwrap().bytes;
    assert_eq!(idle, 2 * ((1 << 20) + HEADER_BYTES));
}

#[test]
fn what_waits_is_bounded() {
    let pool = Arc::new(Pool::default());
    let held: Vec<Pooled> = (0..100).map(|_| pool.take(1 << 20)).collect();
    drop(held);
    let idle = pool.idle.lock().unwrap();
    assert!(idle.bytes <= IDLE_BYTES_MAX);
    assert_eq!(idle.classes.iter().flatten().map(Vec::len).sum::<usize>(), idle.bytes);
}

#[test]
fn each_length_fits_its_class() {
    for log2 in 14..31 {
        for length in [(1 << log2) - 1, 1 << log2, (1 << log2) + HEADER_BYTES, (1 << log2) + 5000] {
            let (index, size) = class(length);
            assert!(size >= length && index < CLASSES + 1, "{length} in {size}");
            assert_eq!(class(size), (index, size));
        }
    }
    assert_eq!(class((1 << 20) + HEADER_BYTES).1, (1 << 20) + HEADER_BYTES);
}

#[test]
fn small_replies_do_not_pin_large_buffers() {
    let mut buffers = ReplyBuffers(Arc::default());
    let large = buffers.take(1 << 16);
    let reply = buffers.freeze(large, 100);
    assert_eq!(reply.len(), 100);
    assert!(buffers.0.idle.lock().unwrap().bytes > 0);
}
