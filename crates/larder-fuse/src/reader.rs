//! Transport A: requests are read from `/dev/fuse`, each answered with one vectored write.
//!
//! A thread for each descriptor. An answer that is ready at once is written by the thread that read
//! the request; the runtime drives any other answer, and writes it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tokio::runtime::Handle;
use zerocopy::IntoBytes;

use crate::abi::{MIN_READ_BUFFER, Opcode};
use crate::device::{Device, Received};
use crate::dispatcher::Dispatcher;
use crate::output::{Output, Response};
use crate::request::{self, Malformed, Request};

/// Bytes of a request besides the data of a write.
const HEADROOM: usize = 4096;

/// Serves requests from one descriptor, until the mount is gone.
///
/// # Errors
/// If the descriptor cannot be read any more.
pub(crate) fn serve(
    dispatcher: &Arc<Dispatcher>,
    device: &Arc<Device>,
    runtime: &Handle,
    io_bytes_max: usize,
) -> io::Result<()> {
    let _entered = runtime.enter();
    let mut buffer = resident_words((io_bytes_max + HEADROOM).max(MIN_READ_BUFFER));
    loop {
        let buffer = buffer.as_mut_bytes();
        let len = match device.receive(buffer)? {
            Received::Request(len) => len,
            Received::Again => continue,
            Received::Gone => return Ok(()),
        };
        let busy = Busy::new(dispatcher);
        if dispatcher.leaving.load(Ordering::Acquire) {
            drop(busy);
            // The next process that serves gets it.
            loop {
                thread::park();
            }
        }
        let bytes = &buffer[..len];
        match Request::decode(bytes) {
            Ok(request) => {
                let unique = request.header.unique;
                dispatcher.counts.add(request.header.opcode);
                match dispatcher.answer(&request) {
                    Response::Now(output) => device.reply(unique, &output),
                    Response::Later(late) => {
                        let device = Arc::clone(device);
                        let reply = move |output: Output| device.reply(unique, &output);
                        dispatcher.answer_later(&request, late, runtime, reply);
                    }
                    Response::Nothing => {}
                }
            }
            Err(error) => refuse(device, bytes, error),
        }
        drop(busy);
    }
}

/// Memory that the kernel can copy a request into without allocating a page. If this process is
/// killed while the kernel copies, it allocates none any more: it fails the request with EIO to its
/// caller, and the next process does not get it. In words, so that structures after the header are
/// aligned.
fn resident_words(bytes: usize) -> Vec<u64> {
    // Zeros would be pages that the machine allocates when they are first used.
    vec![u64::MAX; bytes / 8]
}

/// Refuses a request that cannot be decoded, if it has a header and its caller waits.
fn refuse(device: &Device, bytes: &[u8], error: Malformed) {
    let Ok((header, _)) = request::header(bytes) else {
        return tracing::error!(%error, len = bytes.len(), "the kernel sends what is no request");
    };
    tracing::warn!(%error, opcode = header.opcode, "a request is refused");
    let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::NotifyReply];
    if Opcode::from_number(header.opcode).is_some_and(|opcode| silent.contains(&opcode)) {
        return;
    }
    let errno = if error == Malformed::Opcode { libc::ENOSYS } else { libc::EINVAL };
    device.reply(header.unique, &Output::error(errno));
}

/// A request is being answered.
struct Busy<'a>(&'a AtomicU64);

impl Busy<'_> {
    fn new(dispatcher: &Dispatcher) -> Busy<'_> {
        dispatcher.waiting.fetch_add(1, Ordering::AcqRel);
        Busy(&dispatcher.waiting)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The kernel's word about a page of ours, see proc_pid_pagemap(5).
    fn is_present(address: usize) -> bool {
        let mut entry = [0; 8];
        let of_page = (address / 4096 * 8) as u64;
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, of_page).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn a_request_is_copied_into_pages_that_are_there() {
        let words = resident_words((1 << 20) + HEADROOM);
        let pages = words.as_bytes().chunks(4096).map(|page| page.as_ptr() as usize);
        assert_eq!(pages.filter(|address| !is_present(*address)).count(), 0);
        // More than any allocator keeps of what was used before.
        let unused = Vec::<u8>::with_capacity(64 << 20);
        assert!(!is_present(unused.as_ptr() as usize + (32 << 20)), "it can be told");
    }
}
