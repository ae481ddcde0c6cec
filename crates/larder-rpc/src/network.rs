//! Networks, for configuring which machines may call.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// A network in CIDR notation (RFC 4632): `192.0.2.0/24`, `2001:db8::/32`; a single address is a
/// network of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

/// Why a text cannot be parsed as a network.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a network: write ADDRESS or ADDRESS/BITS")]
pub struct ParseNetworkError(String);

impl Network {
    /// The loopback networks of IPv4 and IPv6.
    pub fn loopback() -> [Network; 2] {
        [
            Network { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix_bits: 8 },
            Network { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix_bits: 128 },
        ]
    }

    /// Whether `address` is in the network. An IPv4 address that arrives at an IPv6 socket
    /// (`::ffff:192.0.2.1`) is compared as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differing = (ours.to_bits() ^ theirs.to_bits()).leading_zeros();
                differing >= self.prefix_bits
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differing = (ours.to_bits() ^ theirs.to_bits()).leading_zeros();
                differing >= self.prefix_bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Network, ParseNetworkError> {
        let wrong = || ParseNetworkError(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let address = address.to_canonical();
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(bits_max), str::parse).map_err(|_| wrong())?;
        if prefix_bits > bits_max {
            return Err(wrong());
        }
        Ok(Network { address, prefix_bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_they_say() {
        let cases = [
            ("127.0.0.0/8", "127.1.2.3", true),
            ("127.0.0.0/8", "::ffff:127.0.0.1", true),
            ("127.0.0.0/8", "128.0.0.1", false),
            ("127.0.0.0/8", "::1", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.7/31", "192.0.2.6", true),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:5::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db9::1", true),
        ];
        for (network, address, inside) in cases {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{network} {address}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_is_no_network_does_not_parse() {
        for text in ["", "/", "1.2.3.4/", "1.2.3.4/33", "::/129", "1.2.3/8", "x", "1.2.3.4/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text:?}");
        }
    }
}
