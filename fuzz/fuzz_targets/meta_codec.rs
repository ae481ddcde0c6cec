//! Bytes as arguments and results of the metadata program: they decode to an error, or to a value
//! whose encoding decodes to the same value again, and memory is taken only for what is there.

#![no_main]

use larder_wire::meta::{calls, recall};
use libfuzzer_sys::fuzz_target;

mod codec;

use codec::both;

fuzz_target!(|input: &[u8]| {
    let Some((which, rest)) = input.split_first() else { return };
    match which {
        0 => both::<calls::Null>(rest),
        1 => both::<calls::Session>(rest),
        2 => both::<calls::Renew>(rest),
        3 => both::<calls::EndSession>(rest),
        4 => both::<calls::GetAttr>(rest),
        5 => both::<calls::SetAttr>(rest),
        6 => both::<calls::Lookup>(rest),
        7 => both::<calls::Open>(rest),
        8 => both::<calls::Close>(rest),
        9 => both::<calls::GetCaps>(rest),
        10 => both::<calls::Alloc>(rest),
        11 => both::<calls::CommitExtents>(rest),
        12 => both::<calls::Punch>(rest),
        13 => both::<calls::MkDir>(rest),
        14 => both::<calls::Symlink>(rest),
        15 => both::<calls::ReadLink>(rest),
        16 => both::<calls::MkNod>(rest),
        17 => both::<calls::Link>(rest),
        18 => both::<calls::Remove>(rest),
        19 => both::<calls::RmDir>(rest),
        20 => both::<calls::Rename>(rest),
        21 => both::<calls::ReadDir>(rest),
        22 => both::<calls::Access>(rest),
        23 => both::<calls::FsStat>(rest),
        24 => both::<calls::GetXattr>(rest),
        25 => both::<calls::SetXattr>(rest),
        26 => both::<calls::ListXattr>(rest),
        27 => both::<calls::RemoveXattr>(rest),
        28 => both::<calls::ReturnLease>(rest),
        29 => both::<calls::Look>(rest),
        30 => both::<calls::Lock>(rest),
        31 => both::<calls::TestLock>(rest),
        32 => both::<calls::AwaitLock>(rest),
        33 => both::<calls::ForgoLock>(rest),
        34 => both::<calls::LocksClaimed>(rest),
        35 => both::<recall::Recall>(rest),
        36 => both::<recall::LockFree>(rest),
        37 => both::<calls::Preallocate>(rest),
        38 => both::<calls::Destage>(rest),
        39 => both::<calls::Archive>(rest),
        40 => both::<calls::Make>(rest),
        41 => both::<calls::Retain>(rest),
        42 => both::<calls::Lost>(rest),
        43 => both::<calls::AllocNear>(rest),
        _ => (),
    }
});
