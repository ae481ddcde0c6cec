//! Bytes as requests and replies of the program of disks, and as the heads in them: they decode to
//! an error, or to a value whose encoding decodes to the same value again, and memory is taken only
//! for what is there.

#![no_main]

use bytes::Bytes;
use larder_wire::capability::Capability;
use larder_wire::disk::sealed::Sealed;
use larder_wire::disk::words::{
    AwaitWrittenHead, ClearHead, CopyHead, EpochHead, FetchHead, FlushHead, GroupReplaceHead, HandshakeCall,
    HandshakeDone, Head, Hello, NullCall, ReadHead, RefreshHead, Res, RevokeHead, StatusHead,
    Welcome, WriteFromHead, WriteHead, read_length,
};
use larder_wire::disk::{DATA_BYTES_MAX, HEAD_BYTES_MAX};
use larder_wire::xdr::{Decode, to_segments};
use libfuzzer_sys::fuzz_target;

mod codec;

use codec::{both, survives};

/// A procedure under seal: the messages, which the disk and the client decode before they check the
/// seal, the head of a request and that of a reply.
fn head<H: Head>(input: &[u8]) {
    both::<Sealed<H>>(input);
    survives::<H>(input);
    survives::<Res<H::Done>>(input);
    let Ok(request) = Sealed::<H>::decode(&mut Bytes::copy_from_slice(input)) else { return };
    assert!(request.claimed_data().len() <= DATA_BYTES_MAX);
    if let Ok(head) = request.claimed_head() {
        assert!(to_segments(&head).len() <= HEAD_BYTES_MAX);
    }
}

fuzz_target!(|input: &[u8]| {
    assert!(read_length(input) <= DATA_BYTES_MAX);
    let Some((which, rest)) = input.split_first() else { return };
    match which {
        0 => both::<NullCall>(rest),
        1 => both::<HandshakeCall>(rest),
        2 => head::<ReadHead>(rest),
        3 => head::<WriteHead>(rest),
        4 => head::<FlushHead>(rest),
        5 => head::<RefreshHead>(rest),
        6 => head::<RevokeHead>(rest),
        7 => head::<GroupReplaceHead>(rest),
        8 => head::<EpochHead>(rest),
        9 => head::<CopyHead>(rest),
        10 => head::<ClearHead>(rest),
        11 => head::<StatusHead>(rest),
        12 => head::<AwaitWrittenHead>(rest),
        13 => head::<WriteFromHead>(rest),
        14 => survives::<Capability>(rest),
        15 => survives::<Hello>(rest),
        16 => survives::<Welcome>(rest),
        17 => survives::<HandshakeDone>(rest),
        18 => head::<FetchHead>(rest),
        _ => (),
    }
});
