//! The program by which a metadata server calls its client, on the client's connection.

use super::words::{FileId, LeaseKind, LeaseNumber, SessionId};

/// The RPC program number.
pub const PROGRAM: u32 = 0x206c_7263;
/// The version of the program.
pub const VERSION: u32 = 1;

/// Names of the procedures, by number.
pub const PROCEDURE_NAMES: &[&str] = &["NULL", "RECALL"];

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    RecallNull {}

    /// Arguments of RECALL: the lease is wanted back but for `keep`. The client answers at once,
    /// and gives it back by RETURN_LEASE. It may come before the reply that gives the lease.
    #[derive(Copy)]
    Recall { session: SessionId, file: FileId, number: LeaseNumber, keep: LeaseKind }
}

procedures! { PROGRAM, VERSION; 0 RecallNull => (), 1 Recall => () }
