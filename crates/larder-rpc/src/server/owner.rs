//! The owner of the socket from which a call of this machine comes.
//!
//! A port below 1024 shows that the caller is root of its machine (exports(5), `secure`). On this
//! very machine the kernel can tell more: which user owns the socket (proc_net(5)). So programs of
//! root need no such port here, and other users cannot impersonate anyone.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::program::Transport;

/// Whether every socket of this machine that sends from `address` belongs to root. `false` if there
/// is none, or if the address is not a loopback address. Reads two small files in `/proc`.
pub(crate) fn is_root(address: SocketAddr, transport: Transport) -> bool {
    if !address.ip().to_canonical().is_loopback() {
        return false;
    }
    let tables = match transport {
        Transport::Tcp => ["/proc/net/tcp", "/proc/net/tcp6"],
        Transport::Udp => ["/proc/net/udp", "/proc/net/udp6"],
    };
    let text: String = tables.map(|table| fs::read_to_string(table).unwrap_or_default()).concat();
    all_of_root(&text, address)
}

fn all_of_root(tables: &str, address: SocketAddr) -> bool {
    let mut owners = tables.lines().filter_map(parse).filter(|(local, _)| sends(*local, address));
    let first = owners.next();
    first.is_some_and(|(_, uid)| uid == 0) && owners.all(|(_, uid)| uid == 0)
}

/// Whether a socket bound to `local` can have sent from `address`.
fn sends(local: SocketAddr, address: SocketAddr) -> bool {
    let (bound, from) = (local.ip().to_canonical(), address.ip().to_canonical());
    local.port() == address.port() && (bound == from || bound.is_unspecified())
}

/// Local address and owner from a line of `/proc/net/tcp` or the like.
fn parse(line: &str) -> Option<(SocketAddr, u32)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(parse_address(address)?, port), fields.nth(5)?.parse().ok()?))
}

/// Words of 32 bits, each in the byte order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[cfg(target_endian = "little")]
    #[test]
    fn tables_of_sockets_are_understood() {
        let tables = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
             0: 0100007F:3039 0100007F:2EE1 01 00000000:00000000 00:00000000 00000000     0  0 1\n\
             1: 0100007F:303A 0100007F:2EE1 01 00000000:00000000 00:00000000 00000000  1000  0 2\n\
             2: 00000000:303B 00000000:0000 07 00000000:00000000 00:00000000 00000000     0  0 3\n\
             3: 0000000000000000FFFF00000100007F:303B 0:0 01 0:0 0:0 0  1000  0 4\n\
             4: 00000000000000000000000001000000:303C 0:0 01 0:0 0:0 0     0  0 5\n";
        for (address, root) in [
            ("127.0.0.1:12345", true),
            ("127.0.0.1:12346", false),
            ("127.0.0.1:12347", false),
            ("[::1]:12348", true),
            ("127.0.0.1:12348", false),
            ("127.0.0.1:1", false),
        ] {
            assert_eq!(all_of_root(tables, address.parse().unwrap()), root, "{address}");
        }
    }

    #[test]
    fn own_sockets_are_found() {
        let root = runs_as_root();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(is_root(stream.local_addr().unwrap(), Transport::Tcp), root);
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(is_root(datagrams.local_addr().unwrap(), Transport::Udp), root);
        assert!(!is_root("192.0.2.1:5000".parse().unwrap(), Transport::Tcp));
    }

    fn runs_as_root() -> bool {
        std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0
    }
}
