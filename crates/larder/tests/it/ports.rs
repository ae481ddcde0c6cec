//! Ports of servers that are started later, or restarted at the same address.
//!
//! A port that was free a moment ago may be taken when its server starts: the kernel gives it to
//! another test, or to a client as the local end of a connection. So these ports are below those
//! that the kernel chooses from (`net.ipv4.ip_local_port_range`), and each is used once.

use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The range from which the tests of all processes take ports.
const PORTS: Range<u16> = 10_000..32_000;
/// Ports that a process takes at a time.
const BLOCK: u16 = 200;

/// Blocks of this process. A block belongs to the process that has its socket.
static CLAIMED: Mutex<Claimed> = Mutex::new(Claimed { blocks: vec![], left: 0..0 });

struct Claimed {
    blocks: Vec<UnixListener>,
    /// Of the last block.
    left: Range<u16>,
}

/// An address of this machine where no process listens, and none will except the caller's.
pub(crate) fn free_address() -> SocketAddr {
    free_addresses(1)
}

/// The first of several with consecutive ports.
pub(crate) fn free_addresses(count: u16) -> SocketAddr {
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if claimed.left.len() < usize::from(count) {
            claimed.claim();
        }
        let first = claimed.left.start;
        claimed.left.start += count;
        if (first..first + count).all(is_free) {
            return (Ipv4Addr::LOCALHOST, first).into();
        }
    }
}

impl Claimed {
    fn claim(&mut self) {
        let block = PORTS.step_by(BLOCK.into()).find_map(|first| {
            // Names like this one are of a network namespace, as ports are.
            let name = format!("larder-tests-ports-{first}");
            let socket = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name).unwrap());
            socket.ok().map(|socket| (first, socket))
        });
        let (first, socket) = block.expect("a block of ports that no other test process has");
        self.blocks.push(socket);
        self.left = first..first + BLOCK;
    }
}

/// Whether no program that is not a test has it. This does not listen there to find out: a process
/// that another test starts at that moment has a copy of the socket until it runs its program, and
/// would be taken for a server that does not listen yet.
fn is_free(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()
        && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}
