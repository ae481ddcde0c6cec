//! What both roles share: programs, and transports.

use larder_wire::xdr::Framing;

/// Largest datagram that is sent, in bytes.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Largest record that is accepted unless a program needs more, in bytes: a payload of 1 MiB with
/// its headers.
pub(crate) const RECORD_BYTES_MAX: usize = (1 << 20) + 4096;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    pub(crate) fn framing(self) -> Framing {
        match self {
            Transport::Tcp => Framing::Record,
            Transport::Udp => Framing::Datagram,
        }
    }
}

/// A program: a set of numbered procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its number.
    pub number: u32,
    /// Its version.
    pub version: u32,
    /// Names of its procedures, by number, for the counters. A server serves no other procedures.
    pub procedures: &'static [&'static str],
}
