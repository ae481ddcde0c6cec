//! Errors: why there is no connection, and why a call has no results.

use std::time::Duration;

use larder_wire::rpc::Outcome;
use larder_wire::xdr::XdrError;
use thiserror::Error;

/// Why a call has no results.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RpcError {
    /// No reply within the limit of a soft mount.
    #[error("no reply within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The server is known to be unreachable, and the call was to fail at once.
    #[error("the server is not responding")]
    Unreachable,
    /// The client was shut down.
    #[error("the client is shut down")]
    Shutdown,
    /// The RPC layer of the server refused the call.
    #[error("{0}")]
    Refused(Outcome),
    /// The reply cannot be decoded.
    #[error("the reply cannot be read: {0}")]
    Garbled(XdrError),
    /// The call is too long for a datagram.
    #[error("a call of {bytes} bytes does not fit a datagram")]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
    },
}

/// Why the first connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The operating system could not connect.
    #[error("cannot connect to {server}: {cause}")]
    Failed {
        /// The server.
        server: String,
        /// Why.
        cause: std::io::Error,
    },
    /// The server did not answer.
    #[error("cannot connect to {server}: no answer within {} s", .limit.as_secs_f32())]
    TimedOut {
        /// The server.
        server: String,
        /// How long the client waited.
        limit: Duration,
    },
}
