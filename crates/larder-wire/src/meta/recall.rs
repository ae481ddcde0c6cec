//! The program by which a metadata server calls its client, on the client's connection.

use super::words::{FileId, LeaseKind, LeaseNumber, SessionId, WaiterNumber};

/// The RPC program number.
pub const PROGRAM: u32 = 0x206c_7263;
/// The version of the program.
pub const VERSION: u32 = 1;

/// Names of the procedures, by number.
pub const PROCEDURE_NAMES: &[&str] = &["NULL", "RECALL", "LOCK_FREE"];

xdr_struct! {
    /// Arguments of NULL.
    #[derive(Copy, Default)]
    RecallNull {}

    /// Arguments of RECALL: the server wants the lease back, except for `keep`. The client answers
    /// at once, and returns the lease by RETURN_LEASE. The call may arrive before the reply that
    /// grants the lease.
    #[derive(Copy)]
    Recall { session: SessionId, file: FileId, number: LeaseNumber, keep: LeaseKind }

    /// Arguments of LOCK_FREE: what a waiter waits for is free, and reserved for it for a while.
    /// The client answers at once, and asks for it by LOCK, or sends FORGO_LOCK. The call may
    /// arrive before the reply to AWAIT_LOCK, and more than once.
    #[derive(Copy)]
    LockFree { session: SessionId, file: FileId, number: WaiterNumber }
}

procedures! { PROGRAM, VERSION; 0 RecallNull => (), 1 Recall => (), 2 LockFree => () }
