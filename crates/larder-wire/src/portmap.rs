//! The port mapper, version 2 (RFC 1833, 3): which program listens where.

#![allow(non_camel_case_types)]

use crate::xdr::List;

/// The RPC program number.
pub const PROGRAM: u32 = 100_000;
/// The version of the program.
pub const VERSION: u32 = 2;
/// The port that it listens on.
pub const PORT: u16 = 111;
/// `mapping::prot` of TCP.
pub const IPPROTO_TCP: u32 = 6;
/// `mapping::prot` of UDP.
pub const IPPROTO_UDP: u32 = 17;

xdr_enum! {
    /// The procedures that we speak; CALLIT is left out, since it lets a server be used to reach
    /// others in its name.
    pmapproc { NULL = 0, SET = 1, UNSET = 2, GETPORT = 3, DUMP = 4 }
}

xdr_struct! {
    /// A program, its version and transport, and its port (0 in a question).
    #[derive(Copy, Default)]
    mapping { prog: u32, vers: u32, prot: u32, port: u32 }

    /// Arguments of NULL.
    #[derive(Copy, Default)]
    NULLargs {}
    /// Arguments of SET: answers whether the port is now registered.
    SETargs { mapping: mapping }
    /// Arguments of UNSET: answers whether the program is no longer registered.
    UNSETargs { mapping: mapping }
    /// Arguments of GETPORT: answers the port, or 0 if the program is not registered.
    GETPORTargs { mapping: mapping }
    /// Arguments of DUMP: answers everything registered.
    #[derive(Copy, Default)]
    DUMPargs {}
}

procedures! { PROGRAM, VERSION;
    0 NULLargs => (), 1 SETargs => bool, 2 UNSETargs => bool, 3 GETPORTargs => u32,
    4 DUMPargs => List<mapping>,
}
