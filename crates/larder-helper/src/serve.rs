//! The loop of the program: it serves one request after the other, until the peer is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::protocol::{Request, answer, receive};
use crate::{backing, check};

/// Answers requests for files that belong to `uid`. Blocks until the peer is gone.
///
/// # Errors
/// If the peer sends something that is not a request.
pub fn serve(socket: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    while let Some(request) = receive(socket)? {
        if answer(socket, carry_out(&request, uid)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn carry_out(request: &Request, uid: u32) -> Result<u32, Errno> {
    let told = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    match request {
        Request::Open { fuse, file } => {
            check::fuse_device(fuse.as_fd())?;
            check::own_file(file.as_fd(), uid)?;
            backing::open(fuse.as_fd(), file.as_fd()).map_err(told)
        }
        Request::Close { fuse, id } => {
            check::fuse_device(fuse.as_fd())?;
            backing::close(fuse.as_fd(), *id).map_err(told)?;
            Ok(0)
        }
    }
}
