//! Which machine a disk is on, as far as its address tells.

use std::net::{IpAddr, SocketAddr};

/// The address of the machine that both are on. Where they are told by names, or all is on one
/// machine for a trial (loopback addresses), nothing is known.
pub(super) fn shared(one: &[u8], other: &[u8]) -> Option<IpAddr> {
    let ip = machine(one)?;
    (machine(other)? == ip).then_some(ip)
}

fn machine(address: &[u8]) -> Option<IpAddr> {
    let address: SocketAddr = str::from_utf8(address).ok()?.parse().ok()?;
    Some(address.ip().to_canonical()).filter(|ip| !ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_of_machines_unless_they_are_names_or_loopback() {
        for (one, other, wanted) in [
            ("192.0.2.1:1", "192.0.2.1:2", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:1", "192.0.2.1:2", Some("192.0.2.1")),
            ("192.0.2.1:1", "192.0.2.2:1", None),
            ("127.0.0.1:1", "127.0.0.1:2", None),
            ("[::1]:1", "[::1]:2", None),
            ("disk:1", "disk:1", None),
        ] {
            let wanted = wanted.map(|ip| ip.parse().unwrap());
            assert_eq!(shared(one.as_bytes(), other.as_bytes()), wanted, "{one} {other}");
        }
    }
}
