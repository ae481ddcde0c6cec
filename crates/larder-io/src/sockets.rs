//! Buffers of datagram sockets. What finds no room in one is lost without a word, and the kernel's
//! default (208 KiB) has room for six datagrams of 32 KiB.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force, socket_recv_buffer_size,
};

/// What a socket for datagrams of NFS should hold in each direction, in bytes of payload. The
/// kernel sets twice as much aside, for its own structures (socket(7)).
pub const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// Gives a socket buffers for [`DATAGRAM_BUFFER_BYTES`]; without CAP_NET_ADMIN, for as much as the
/// system lets everybody have (`net.core.rmem_max`, `net.core.wmem_max`). Answers what the kernel
/// has set aside for receiving, in bytes: all that waits to be received counts, with the kernel's
/// structures.
///
/// # Errors
/// If this is no socket.
pub fn grow_buffers(socket: impl AsFd) -> io::Result<usize> {
    let socket = socket.as_fd();
    set_socket_recv_buffer_size_force(socket, DATAGRAM_BUFFER_BYTES)
        .or_else(|_| set_socket_recv_buffer_size(socket, DATAGRAM_BUFFER_BYTES))?;
    set_socket_send_buffer_size_force(socket, DATAGRAM_BUFFER_BYTES)
        .or_else(|_| set_socket_send_buffer_size(socket, DATAGRAM_BUFFER_BYTES))?;
    Ok(socket_recv_buffer_size(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn buffers_grow() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = socket_recv_buffer_size(&socket).unwrap();
        let grown = grow_buffers(&socket).unwrap();
        assert!(grown >= before, "{before} {grown}");
        if rustix::process::geteuid().is_root() {
            assert_eq!(grown, 2 * DATAGRAM_BUFFER_BYTES);
        }
        assert!(grow_buffers(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
