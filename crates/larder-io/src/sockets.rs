//! Buffers of datagram sockets. A datagram that finds no room in one is lost silently, and the
//! kernel's default (208 KiB) has room for six datagrams of 32 KiB.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force, socket_recv_buffer_size,
};

/// How many bytes of payload a datagram socket for NFS should hold in each direction. The kernel
/// reserves twice as much, for its own structures (socket(7)).
pub const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// Gives a socket buffers for [`DATAGRAM_BUFFER_BYTES`]; without CAP_NET_ADMIN, as much as the
/// system allows everyone (`net.core.rmem_max`, `net.core.wmem_max`). Returns the number of bytes
/// that the kernel has reserved for receiving: everything that waits to be received counts, with
/// the kernel's structures.
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
