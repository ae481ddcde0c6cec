//! Memory of a queue's entries, which the kernel reads and writes.
//!
//! An entry is the kernel's from the submission of its command until the command's completion, and
//! ours from then on. Only the thread that owns [`Slots`] touches it, and only while it is ours.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader, UringHeaders};
use crate::output::Output;
use crate::request::{Malformed, Request};

/// Room for the headers; the payload begins at a page.
const HEADERS_BYTES: usize = 4096;

/// Entries of equal size in one mapping.
pub(super) struct Slots {
    base: NonNull<u8>,
    count: usize,
    payload_max: usize,
    /// Where headers and payload of each entry are, for the kernel.
    iovecs: Box<[[IoVec; 2]]>,
}

/// `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

impl Slots {
    /// Memory for `count` entries. The machine allocates it when it is first used.
    ///
    /// # Errors
    /// If the system has none.
    #[allow(unsafe_code)]
    pub(super) fn new(count: usize, payload_max: usize) -> io::Result<Slots> {
        let stride = HEADERS_BYTES + payload_max;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), stride * count, protection, flags)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let iovec = |entry: usize| {
            // SAFETY: both iovecs lie within the mapping of `count` strides.
            let headers = unsafe { base.as_ptr().add(entry * stride) };
            // SAFETY: as above.
            let payload = unsafe { headers.add(HEADERS_BYTES) };
            [
                IoVec { base: headers, len: size_of::<UringHeaders>() },
                IoVec { base: payload, len: payload_max },
            ]
        };
        Ok(Slots { base, count, payload_max, iovecs: (0..count).map(iovec).collect() })
    }

    /// Address of the two `struct iovec` that describe an entry; valid as long as `self` exists.
    pub(super) fn iovecs(&self, entry: usize) -> u64 {
        std::ptr::from_ref(&self.iovecs[entry]) as u64
    }

    /// The request in an entry that is ours, and the number to give it back by.
    pub(super) fn request(&self, entry: usize) -> (InHeader, u64, Result<Request<'_>, Malformed>) {
        let (headers, payload) = self.parts(entry);
        let header = InHeader::read_from_prefix(&headers.in_out).expect("it is long enough").0;
        let len = (headers.entry.payload_sz as usize).min(payload.len());
        let request = Request::decode_parts(header, &headers.op_in, &payload[..len]);
        (header, headers.entry.commit_id, request)
    }

    /// Writes a reply into an entry that is ours. Data that does not fit is an error to the caller.
    #[allow(unsafe_code)]
    pub(super) fn reply(&mut self, entry: usize, unique: u64, output: &Output) {
        let [headers, payload] = self.iovecs[entry];
        // SAFETY: the entry is ours, `&mut self` makes this the only reference into it, and the
        // memory is mapped, aligned to a page and long enough.
        let (headers, payload) = unsafe {
            (
                &mut *headers.base.cast::<UringHeaders>(),
                std::slice::from_raw_parts_mut(payload.base, payload.len),
            )
        };
        let fits = output.len() <= payload.len();
        let (error, len) = if fits { (-output.errno, output.len()) } else { (-libc::EIO, 0) };
        if fits {
            let (fixed, data) = payload.split_at_mut(output.fixed().len());
            fixed.copy_from_slice(output.fixed());
            data[..output.data.len()].copy_from_slice(&output.data);
        }
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        headers.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        headers.entry.payload_sz = len as u32;
    }

    #[allow(unsafe_code)]
    fn parts(&self, entry: usize) -> (&UringHeaders, &[u8]) {
        let [headers, payload] = self.iovecs[entry];
        // SAFETY: the entry is ours, so the kernel does not write to it, and we only do so with
        // `&mut self`; the memory is mapped, aligned to a page and long enough.
        unsafe {
            (
                &*headers.base.cast::<UringHeaders>(),
                std::slice::from_raw_parts(payload.base, payload.len),
            )
        }
    }
}

impl Drop for Slots {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let len = (HEADERS_BYTES + self.payload_max) * self.count;
        // SAFETY: it is our mapping, of this length, and no reference into it is left. The ring
        // that gave it to the kernel is gone (see `Queue`), and the kernel writes only
        // while a thread of ours is in a system call of that ring.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
