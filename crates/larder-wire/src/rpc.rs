//! ONC RPC version 2: the headers of calls and replies (RFC 5531).
//!
//! A message is a header followed by the arguments or results of a procedure. Decoding a header
//! leaves the input at the bytes after it. Credentials are AUTH_NONE and AUTH_SYS; others pass as
//! opaque bytes, so that a server can refuse them by name.

use crate::Procedure;
use crate::xdr::{Array, Decode, Encode, Encoder, Framing, Opaque, Segments, XdrError};
use bytes::Bytes;
use thiserror::Error;

/// The version of the protocol.
const RPC_VERSION: u32 = 2;
/// Bytes that are reserved at once for header and small arguments or results. Most messages need no
/// more.
const HEAD_BYTES: usize = 256;
/// Longest body of a credential or verifier, in bytes (RFC 5531, 8.2).
pub const AUTH_BYTES_MAX: usize = 400;
/// Longest machine name in AUTH_SYS, in bytes (RFC 5531, appendix A).
pub const MACHINE_NAME_BYTES_MAX: usize = 255;
/// Most supplementary groups in AUTH_SYS (RFC 5531, appendix A).
pub const GROUPS_MAX: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// Identifies a call on its connection: the reply has the same number, and so does a
/// retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Xid(pub u32);

/// Whether a message is a call or a reply to one (RFC 5531, 9). On a connection that carries calls
/// both ways, this shows which side chose its xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A call.
    Call,
    /// A reply.
    Reply,
}

impl MessageKind {
    /// The kind of `message`; `None` if it is neither.
    pub fn of(message: &[u8]) -> Option<MessageKind> {
        match u32::from_be_bytes(*message.get(4..)?.first_chunk()?) {
            CALL => Some(MessageKind::Call),
            REPLY => Some(MessageKind::Reply),
            _ => None,
        }
    }
}

/// The caller's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE: no identity.
    None,
    /// AUTH_SYS: a Unix user, as the client claims.
    Sys(AuthSys),
    /// A flavor that we do not speak.
    Other {
        /// Its number.
        flavor: u32,
        /// Its content.
        body: Opaque<AUTH_BYTES_MAX>,
    },
}

/// A Unix user as the client claims it (RFC 5531, appendix A).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthSys {
    /// Arbitrary.
    pub stamp: u32,
    /// The client's name.
    pub machine_name: Opaque<MACHINE_NAME_BYTES_MAX>,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Array<u32, GROUPS_MAX>,
}

impl AuthSys {
    /// Length on the wire, in bytes.
    fn encoded_len(&self) -> usize {
        4 + crate::xdr::opaque_len(self.machine_name.len()) + 4 + 4 + 4 + 4 * self.groups.0.len()
    }
}

impl Encode for AuthSys {
    fn encode(&self, out: &mut Encoder) {
        self.stamp.encode(out);
        self.machine_name.encode(out);
        self.uid.encode(out);
        self.gid.encode(out);
        self.groups.encode(out);
    }
}

impl Decode for AuthSys {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        Ok(AuthSys {
            stamp: Decode::decode(input)?,
            machine_name: Decode::decode(input)?,
            uid: Decode::decode(input)?,
            gid: Decode::decode(input)?,
            groups: Decode::decode(input)?,
        })
    }
}

impl Encode for Credential {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Credential::None => {
                out.put_u32(AUTH_NONE);
                out.put_u32(0);
            }
            Credential::Sys(sys) => {
                out.put_u32(AUTH_SYS);
                out.put_length(sys.encoded_len());
                sys.encode(out);
            }
            Credential::Other { flavor, body } => {
                out.put_u32(*flavor);
                body.encode(out);
            }
        }
    }
}

impl Decode for Credential {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let flavor = u32::decode(input)?;
        let body = Opaque::<AUTH_BYTES_MAX>::decode(input)?;
        match flavor {
            AUTH_NONE => Ok(Credential::None),
            AUTH_SYS => AuthSys::decode(&mut body.0.clone()).map(Credential::Sys),
            flavor => Ok(Credential::Other { flavor, body }),
        }
    }
}

/// The header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// Names the call.
    pub xid: Xid,
    /// The program that is called.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure of it.
    pub procedure: u32,
    /// The caller's identity.
    pub credential: Credential,
}

/// Why a message is not a call that can be served.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// Nothing to be answered: the bytes are not a call.
    #[error("not an RPC call: {0}")]
    Malformed(#[from] XdrError),
    /// A call, but in another version of RPC: answer [`Outcome::RpcMismatch`].
    #[error("a call in RPC version {version}")]
    RpcVersion {
        /// Names the call.
        xid: Xid,
        /// The version it claims.
        version: u32,
    },
    /// A call, but its credential cannot be read: answer [`Outcome::AuthError`] with
    /// [`AUTH_BADCRED`].
    #[error("a call with a broken credential: {cause}")]
    Credential {
        /// Names the call.
        xid: Xid,
        /// What is wrong with it.
        cause: XdrError,
    },
}

impl CallHeader {
    /// Reads the header of a call and leaves `input` at the arguments.
    ///
    /// # Errors
    /// [`CallError`] says which answer the caller must get, if any.
    pub fn decode(input: &mut Bytes) -> Result<CallHeader, CallError> {
        let xid = Xid(u32::decode(input)?);
        match u32::decode(input)? {
            CALL => (),
            other => return Err(XdrError::Discriminant(other).into()),
        }
        let version = u32::decode(input)?;
        if version != RPC_VERSION {
            return Err(CallError::RpcVersion { xid, version });
        }
        let (program, version, procedure) =
            (u32::decode(input)?, u32::decode(input)?, u32::decode(input)?);
        // The verifier of a flavor that we speak is empty; it is skipped and not checked.
        let credential = Credential::decode(input)
            .and_then(|credential| skip_auth(input).map(|()| credential))
            .map_err(|cause| CallError::Credential { xid, cause })?;
        Ok(CallHeader { xid, program, version, procedure, credential })
    }
}

impl Encode for CallHeader {
    fn encode(&self, out: &mut Encoder) {
        self.xid.0.encode(out);
        out.put_u32(CALL);
        out.put_u32(RPC_VERSION);
        self.program.encode(out);
        self.version.encode(out);
        self.procedure.encode(out);
        self.credential.encode(out);
        Credential::None.encode(out);
    }
}

/// Encodes a whole call, ready to be sent.
pub fn encode_call<P: Procedure>(
    xid: Xid,
    credential: &Credential,
    args: &P,
    framing: Framing,
) -> Segments {
    let mut out = Encoder::new(framing, HEAD_BYTES);
    CallHeader {
        xid,
        program: P::PROGRAM,
        version: P::VERSION,
        procedure: P::NUMBER,
        credential: credential.clone(),
    }
    .encode(&mut out);
    args.encode(&mut out);
    out.finish()
}

/// AUTH_TLS: the flavor by which a NULL call asks whether the server speaks TLS (RFC 9289, 4.1).
pub const AUTH_TLS: u32 = 7;
/// The verifier by which a server that supports TLS says so (RFC 9289, 4.1).
const STARTTLS: &[u8] = b"STARTTLS";

/// The NULL call that asks whether the server of a program speaks TLS.
pub fn encode_tls_probe(xid: Xid, program: u32, version: u32, framing: Framing) -> Segments {
    let mut out = Encoder::new(framing, HEAD_BYTES);
    let credential = Credential::Other { flavor: AUTH_TLS, body: Opaque::default() };
    CallHeader { xid, program, version, procedure: 0, credential }.encode(&mut out);
    out.finish()
}

/// The reply of a server that supports TLS: the handshake follows.
pub fn encode_starttls(xid: Xid, framing: Framing) -> Segments {
    let mut out = Encoder::new(framing, HEAD_BYTES);
    xid.0.encode(&mut out);
    [REPLY, MSG_ACCEPTED, AUTH_NONE].iter().for_each(|unit| out.put_u32(*unit));
    Opaque::<AUTH_BYTES_MAX>::copy_from_slice(STARTTLS).encode(&mut out);
    encode_accepted(Outcome::Success, &mut out);
    out.finish()
}

/// Whether a message is that reply to the call `xid`.
pub fn is_starttls(xid: Xid, mut message: Bytes) -> bool {
    let mut read = || {
        let head = [(); 4].map(|()| u32::decode(&mut message));
        let verifier = Opaque::<AUTH_BYTES_MAX>::decode(&mut message)?;
        let is_success = u32::decode(&mut message)? == 0;
        let wanted = [xid.0, REPLY, MSG_ACCEPTED, AUTH_NONE].map(Ok);
        Ok::<_, XdrError>(head == wanted && &verifier[..] == STARTTLS && is_success)
    };
    read().unwrap_or(false)
}

/// AUTH_BADCRED: the credential is broken (RFC 5531, 9).
pub const AUTH_BADCRED: u32 = 1;
/// AUTH_TOOWEAK: the server wants another flavor (RFC 5531, 9).
pub const AUTH_TOOWEAK: u32 = 5;

/// The RPC layer's answer to a call (RFC 5531, 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Outcome {
    /// The procedure ran; its results follow.
    #[error("success")]
    Success,
    /// The server does not serve the program.
    #[error("the server does not serve the program")]
    ProgUnavail,
    /// The server serves other versions of the program.
    #[error("the server serves versions {low} to {high} of the program")]
    ProgMismatch {
        /// The lowest version served.
        low: u32,
        /// The highest version served.
        high: u32,
    },
    /// The program has no such procedure.
    #[error("the program has no such procedure")]
    ProcUnavail,
    /// The server could not read the arguments.
    #[error("the server could not read the arguments")]
    GarbageArgs,
    /// The server failed by itself, as for want of memory.
    #[error("the server had an internal error")]
    SystemErr,
    /// The server speaks other versions of RPC.
    #[error("the server speaks RPC versions {low} to {high}")]
    RpcMismatch {
        /// The lowest version spoken.
        low: u32,
        /// The highest version spoken.
        high: u32,
    },
    /// The server does not accept the credential; the number is RFC 5531's `auth_stat`.
    #[error("the server refuses the credential (auth_stat {0})")]
    AuthError(u32),
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Names the call that is answered.
    pub xid: Xid,
    /// The result.
    pub outcome: Outcome,
}

impl Encode for ReplyHeader {
    fn encode(&self, out: &mut Encoder) {
        self.xid.0.encode(out);
        out.put_u32(REPLY);
        match self.outcome {
            Outcome::RpcMismatch { low, high } => {
                [MSG_DENIED, 0, low, high].iter().for_each(|unit| out.put_u32(*unit));
            }
            Outcome::AuthError(status) => {
                [MSG_DENIED, 1, status].iter().for_each(|unit| out.put_u32(*unit));
            }
            accepted => {
                out.put_u32(MSG_ACCEPTED);
                Credential::None.encode(out);
                encode_accepted(accepted, out);
            }
        }
    }
}

fn encode_accepted(outcome: Outcome, out: &mut Encoder) {
    let status = match outcome {
        Outcome::Success => 0,
        Outcome::ProgUnavail => 1,
        Outcome::ProgMismatch { .. } => 2,
        Outcome::ProcUnavail => 3,
        Outcome::GarbageArgs => 4,
        _ => 5,
    };
    out.put_u32(status);
    if let Outcome::ProgMismatch { low, high } = outcome {
        out.put_u32(low);
        out.put_u32(high);
    }
}

impl Decode for ReplyHeader {
    /// Leaves `input` at the results, if there are any.
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        let xid = Xid(u32::decode(input)?);
        match u32::decode(input)? {
            REPLY => (),
            other => return Err(XdrError::Discriminant(other)),
        }
        let outcome = match u32::decode(input)? {
            MSG_ACCEPTED => decode_accepted(input)?,
            MSG_DENIED => decode_denied(input)?,
            other => return Err(XdrError::Discriminant(other)),
        };
        Ok(ReplyHeader { xid, outcome })
    }
}

fn decode_accepted(input: &mut Bytes) -> Result<Outcome, XdrError> {
    skip_auth(input)?;
    Ok(match u32::decode(input)? {
        0 => Outcome::Success,
        1 => Outcome::ProgUnavail,
        2 => Outcome::ProgMismatch { low: u32::decode(input)?, high: u32::decode(input)? },
        3 => Outcome::ProcUnavail,
        4 => Outcome::GarbageArgs,
        5 => Outcome::SystemErr,
        other => return Err(XdrError::Discriminant(other)),
    })
}

fn decode_denied(input: &mut Bytes) -> Result<Outcome, XdrError> {
    Ok(match u32::decode(input)? {
        0 => Outcome::RpcMismatch { low: u32::decode(input)?, high: u32::decode(input)? },
        1 => Outcome::AuthError(u32::decode(input)?),
        other => return Err(XdrError::Discriminant(other)),
    })
}

/// Reads over a verifier.
fn skip_auth(input: &mut Bytes) -> Result<(), XdrError> {
    let _flavor = u32::decode(input)?;
    Opaque::<AUTH_BYTES_MAX>::decode(input).map(drop)
}

/// Encodes a whole reply, ready to be sent. `results` follow a [`Outcome::Success`] only; pass
/// `&()` with others.
pub fn encode_reply(header: ReplyHeader, results: &impl Encode, framing: Framing) -> Segments {
    let mut out = Encoder::new(framing, HEAD_BYTES);
    header.encode(&mut out);
    results.encode(&mut out);
    out.finish()
}

#[cfg(test)]
mod tests;
