//! Requests to `larder-helper` and its answers, over a Unix socket of sequenced packets.
//!
//! | packet | bytes | descriptors |
//! |---|---|---|
//! | open | 1, 0 | `/dev/fuse`, the file |
//! | close | 2, the file's number | `/dev/fuse` |
//! | answer | an errno or 0, the number of an opened file or 0 | |
//!
//! All numbers are `u32`, little endian. One answer per request, in order.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sockopt,
};

const OPEN: u32 = 1;
const CLOSE: u32 = 2;

const PACKET: usize = 8;

/// Most descriptors in a packet.
const DESCRIPTORS_MAX: usize = 2;

/// A request to the helper.
#[derive(Debug)]
pub enum Request {
    /// Register `file` with the mount of `fuse`.
    Open {
        /// A descriptor of `/dev/fuse`.
        fuse: OwnedFd,
        /// The file.
        file: OwnedFd,
    },
    /// End the registration of a file.
    Close {
        /// A descriptor of `/dev/fuse`.
        fuse: OwnedFd,
        /// The number of the registration.
        id: u32,
    },
}

/// Why a request failed; one variant for each reaction.
#[derive(Debug)]
pub enum Failure {
    /// The helper refused it with this error.
    Refused(Errno),
    /// The helper does not answer any more.
    Gone(io::Error),
}

/// Whether requests may arrive on `socket`: it is a Unix socket of sequenced packets that `uid`
/// made.
pub fn is_link(socket: BorrowedFd<'_>, uid: u32) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && sockopt::socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid.as_raw() == uid)
}

/// Waits for the next request; `None`: the peer is gone.
///
/// # Errors
/// If the packet is not a request; then the connection cannot be used any more.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Request>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; PACKET];
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut packet)];
        rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.flatten();
    let given = (descriptors.next(), descriptors.next(), descriptors.next());
    let whole = received.bytes == PACKET
        && !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match (numbers(packet), given) {
        ((OPEN, 0), (Some(fuse), Some(file), None)) if whole => {
            Ok(Some(Request::Open { fuse, file }))
        }
        ((CLOSE, id), (Some(fuse), None, None)) if whole => Ok(Some(Request::Close { fuse, id })),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Answers a request.
///
/// # Errors
/// If the peer is gone.
pub fn answer(socket: BorrowedFd<'_>, result: Result<u32, Errno>) -> io::Result<()> {
    let (errno, id) = match result {
        Ok(id) => (0, id),
        Err(errno) => (errno.raw_os_error() as u32, 0),
    };
    rustix::net::send(socket, &packet(errno, id), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Asks the helper to register `file` with the mount of `fuse`; returns the number. Blocks for as
/// long as the socket's timeouts allow.
///
/// # Errors
/// See [`Failure`].
pub fn ask_open(
    socket: BorrowedFd<'_>,
    fuse: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
) -> Result<u32, Failure> {
    ask(socket, packet(OPEN, 0), &[fuse, file])
}

/// Asks the helper to end the registration with this number. Blocks as [`ask_open`] does.
///
/// # Errors
/// See [`Failure`].
pub fn ask_close(socket: BorrowedFd<'_>, fuse: BorrowedFd<'_>, id: u32) -> Result<(), Failure> {
    ask(socket, packet(CLOSE, id), &[fuse]).map(drop)
}

fn ask(
    socket: BorrowedFd<'_>,
    request: [u8; PACKET],
    descriptors: &[BorrowedFd<'_>],
) -> Result<u32, Failure> {
    let gone = |error: Errno| Failure::Gone(error.into());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(fits, "there is space for two descriptors");
    rustix::io::retry_on_intr(|| {
        let bytes = [IoSlice::new(&request)];
        rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map_err(gone)?;
    let mut answer = [0; PACKET];
    let (len, _) = rustix::io::retry_on_intr(|| {
        rustix::net::recv(socket.as_fd(), &mut answer, RecvFlags::empty())
    })
    .map_err(gone)?;
    match (len, numbers(answer)) {
        (PACKET, (0, id)) => Ok(id),
        (PACKET, (errno, _)) => Err(Failure::Refused(Errno::from_raw_os_error(errno as i32))),
        _ => Err(Failure::Gone(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn packet(first: u32, second: u32) -> [u8; PACKET] {
    (u64::from(first) | (u64::from(second) << 32)).to_le_bytes()
}

fn numbers(packet: [u8; PACKET]) -> (u32, u32) {
    let both = u64::from_le_bytes(packet);
    (both as u32, (both >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketFlags, socketpair};

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn send(socket: &OwnedFd, bytes: &[u8], count: usize) {
        let file = tempfile::tempfile().unwrap();
        let descriptors = vec![file.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(count == 0 || ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
            .unwrap();
    }

    #[test]
    fn requests_and_nothing_else_are_understood() {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        for (bytes, descriptors, understood) in [
            (packet(OPEN, 0).as_slice(), 2, true),
            (&packet(CLOSE, 7), 1, true),
            (&packet(OPEN, 7), 2, false),
            (&packet(OPEN, 0), 1, false),
            (&packet(OPEN, 0), 3, false),
            (&packet(CLOSE, 7), 2, false),
            (&packet(CLOSE, 7), 0, false),
            (&packet(3, 0), 1, false),
            (&packet(OPEN, 0)[..7], 2, false),
            (&[1; 9], 2, false),
        ] {
            send(&ours, bytes, descriptors);
            let received = receive(theirs.as_fd());
            assert_eq!(received.is_ok(), understood, "{bytes:?} with {descriptors}: {received:?}");
        }
        drop(ours);
        assert!(receive(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn answers_come_back() {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        let file = tempfile::tempfile().unwrap();
        for result in [Ok(3), Err(Errno::PERM)] {
            // The answer waits in the socket until it is read.
            answer(theirs.as_fd(), result).unwrap();
            let asked = ask_open(ours.as_fd(), file.as_fd(), file.as_fd());
            match (asked, result) {
                (Ok(id), Ok(expected)) => assert_eq!(id, expected),
                (Err(Failure::Refused(errno)), Err(expected)) => assert_eq!(errno, expected),
                (asked, _) => panic!("{asked:?}"),
            }
        }
        drop(theirs);
        assert!(matches!(ask_close(ours.as_fd(), file.as_fd(), 3), Err(Failure::Gone(_))));
    }

    #[test]
    fn a_link_is_a_socket_of_packets_of_ones_own() {
        let uid = rustix::process::getuid().as_raw();
        assert!(is_link(pair(SocketType::SEQPACKET).0.as_fd(), uid));
        assert!(!is_link(pair(SocketType::SEQPACKET).0.as_fd(), uid + 1));
        assert!(!is_link(pair(SocketType::STREAM).0.as_fd(), uid));
        assert!(!is_link(tempfile::tempfile().unwrap().as_fd(), uid));
    }
}
