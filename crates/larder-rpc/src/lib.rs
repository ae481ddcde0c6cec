//! ONC RPC (RFC 5531) in both roles, over TCP and UDP.
//!
//! A *program* is a set of numbered procedures. This crate carries calls to a program and replies
//! back, and does not know what they mean: programs are its callers.
//!
//! - [`RpcClient`] calls one program on one server: many calls in flight on several connections,
//!   retransmission and reconnection, and an end for each call. [`Config`] says how to reach it.
//! - [`server::Server`] listens for calls to the programs of a [`server::Service`], bounds the
//!   resources of callers, and carries out no retransmission twice.
//! - [`Callbacks`] answers calls that the server makes on the client's connections, by a
//!   [`server::Backchannel`].
//! - [`ClientTls`] and [`ServerTls`] put a connection under TLS (RFC 9289).
//! - [`stats`] and [`series`] always count what each procedure and each connection costs.
//! - [`patience`] is the rule for how long a call waits for a server that is gone, for clients of
//!   any protocol.
//!
//! Invariants: every wait, queue and message has a limit; a call's future may be dropped at any
//! point; a message is never cut by another.
//!
//! Absent on purpose: NFS and every other program, file systems, RPCSEC_GSS. Bytes are decoded by
//! `larder-wire`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]
#![forbid(unsafe_code)]

mod client;
mod network;
pub mod patience;
mod program;
mod random;
pub mod series;
pub mod server;
pub mod stats;
mod tls;

pub use client::{
    CALLBACK_BYTES_MAX, CallOptions, Callbacks, Config, ConnectError, Endpoint, Recovery, Reply,
    RpcClient, RpcError, ServerState, SourcePort, TimerClass,
};
pub use network::{Network, ParseNetworkError};
pub use program::{Program, Transport};
pub use random::random_u64;
pub use series::{RECORDINGS_MAX, RecordError, Recording, SLICE_WIDTHS, Series, Slice};
pub use stats::{ConnectionSnapshot, Histogram, Latency, ProcedureSnapshot, Snapshot};
pub use tls::{ClientTls, Identity, ServerTls, TlsError, tls_connector};
