//! Transport A: requests are read from `/dev/fuse`, each answered with one vectored write.
//!
//! A thread for each descriptor. An answer that is ready at once is written by the thread that read
//! the request; the runtime drives any other answer, and writes it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use larder_io::resident_words;
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
    let mut buffer = resident_words((io_bytes_max + HEADROOM).max(MIN_READ_BUFFER) / 8);
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
