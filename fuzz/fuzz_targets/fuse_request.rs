//! Requests of `/dev/fuse`, and of ring entries: whatever the bytes, a request or an error.

#![no_main]

use larder_fuse::abi::InHeader;
use larder_fuse::request::{Operation, Request, header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Aligned, as buffers are.
    let mut words = vec![0_u64; input.len().div_ceil(8)];
    for (word, bytes) in words.iter_mut().zip(input.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    let aligned: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = &aligned[..input.len()];
    // A right length gets farther.
    let mut honest = bytes.to_vec();
    if honest.len() >= 4 {
        let len = honest.len() as u32;
        honest[..4].copy_from_slice(&len.to_ne_bytes());
    }
    for message in [bytes, &honest] {
        if let Ok(Request { operation: Operation::Write { write, data }, .. }) =
            Request::decode(message)
        {
            assert_eq!(data.len(), write.size as usize);
        }
    }
    if let Ok((head, rest)) = header(bytes) {
        let (fixed, payload) = rest.split_at(rest.len().min(128));
        let head = InHeader { total_extlen: head.total_extlen % 4, ..head };
        let _ = Request::decode_parts(head, fixed, payload);
    }
});
