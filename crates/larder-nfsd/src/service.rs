//! From a message to its reply, whatever the transport.
//!
//! A message is checked in the order of RFC 5531, 9: is it a call, in our version of RPC, with a
//! credential that can be read, to a program, version and procedure of ours, by somebody who may;
//! then whether it came before ([`crate::duplicates`]); then the procedure runs. What cannot be
//! answered in words of RPC is answered with nothing.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use larder_vfs::{Cred, FileSystem};
use larder_wire::record::MARK_BYTES;
use larder_wire::rpc::{
    AUTH_BADCRED, AUTH_TOOWEAK, CallError, CallHeader, Credential, Outcome, ReplyHeader, Xid,
    encode_reply,
};
use larder_wire::xdr::{Decode, Encode, Encoder, Framing, Segments};
use larder_wire::{mount3, nfs3};
use mount3::mountproc3;
use nfs3::nfsproc3;
use tokio::time::Instant;

use crate::duplicates::{Duplicates, Key, Verdict};
use crate::mount::Mount;
use crate::nfs::{Caller, DATAGRAM_TRANSFER_BYTES_MAX, Nfs, TRANSFER_BYTES_MAX};
use crate::stats::Counters;
use crate::{Config, SourcePorts, owner};

/// The version of RPC that we speak (RFC 5531, 9).
const RPC_VERSION: u32 = 2;
/// Longest answer over UDP to who has shown no handle, unless the call was longer: that of MNT, which
/// gives the first one. Whose address was forged is not sent much more than was sent in his name.
const UNPROVEN_REPLY_BYTES_MAX: usize = 128;
/// First port that any user may bind.
const UNRESERVED_PORT: u16 = 1024;

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
    /// Its calls are carried out, as far as its port or its socket's owner decides that.
    pub(crate) admitted: bool,
}

impl Peer {
    /// Reads two files if `ports` asks who owns a socket of this machine.
    pub(crate) fn new(address: SocketAddr, transport: Transport, ports: SourcePorts) -> Peer {
        let admitted = match ports {
            SourcePorts::Any => true,
            SourcePorts::Reserved => {
                address.port() < UNRESERVED_PORT || owner::is_root(address, transport)
            }
        };
        Peer { address, transport, admitted }
    }

    fn framing(&self) -> Framing {
        match self.transport {
            Transport::Tcp => Framing::Record,
            Transport::Udp => Framing::Datagram,
        }
    }
}

/// Everything that transports share.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    nfs: Nfs,
    mount: Mount,
    duplicates: Mutex<Duplicates>,
}

/// What a procedure made of a call.
struct Answered {
    reply: Segments,
    /// Whether its status is other than success.
    failed: bool,
}

/// Runs a procedure on decoded arguments and encodes its result; the second form is for results that
/// have no status.
macro_rules! run {
    ($header:expr, $framing:expr, $args:expr, |$decoded:ident| $result:expr) => {
        match Decode::decode($args) {
            Ok($decoded) => {
                let result = $result;
                Answered { failed: result.is_err(), ..success($header, &result, $framing) }
            }
            Err(_) => refuse($header.xid, Outcome::GarbageArgs, $framing),
        }
    };
}

impl Service {
    pub(crate) fn new(config: Config, fs: Arc<dyn FileSystem>) -> Service {
        Service {
            counters: Counters::new(),
            nfs: Nfs::new(Arc::clone(&fs), config.sole_door),
            mount: Mount::new(fs, &config),
            duplicates: Mutex::default(),
            config,
        }
    }

    /// Whether anything from this address is listened to.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.config.allow.iter().any(|network| network.contains(address))
    }

    /// Serves one message. `None` if there is nothing to be said. `on_good` is called before a call is carried
    /// out, if it is one of ours by somebody who may make it.
    ///
    /// It is safe to drop the future: a call that was begun may then be tried again.
    pub(crate) async fn serve(
        self: Arc<Self>,
        peer: Peer,
        message: Bytes,
        on_good: impl FnOnce() + Send,
    ) -> Option<Segments> {
        let mut args = message.clone();
        let framing = peer.framing();
        let header = match CallHeader::decode(&mut args) {
            Ok(header) => header,
            Err(error) => {
                self.counters.refused.fetch_add(1, Relaxed);
                return refusal(&error, framing).map(|answered| answered.reply);
            }
        };
        let (program, procedure) = (header.program, header.procedure);
        self.counters.call(program, procedure, message.len());
        let admitted = self.admit(&header, peer);
        if admitted.is_ok() && peer.admitted {
            on_good();
        }
        let answered = match admitted {
            Err(outcome) => {
                self.counters.refused.fetch_add(1, Relaxed);
                refuse(header.xid, outcome, framing)
            }
            Ok(cred) if program == mount3::PROGRAM => {
                let answered = self.serve_mount(&header, &cred, peer, &mut args).await;
                // All that is told without a handle. A wrong one of NFS is answered with less than
                // it takes to send it.
                let bytes_max = message.len().max(UNPROVEN_REPLY_BYTES_MAX);
                let long = peer.transport == Transport::Udp && answered.reply.len() > bytes_max;
                if long { refuse(header.xid, Outcome::SystemErr, framing) } else { answered }
            }
            Ok(cred) if repeatable(procedure) => {
                self.serve_nfs(&header, cred, peer, &mut args).await
            }
            Ok(cred) => self.serve_once(&header, cred, peer, &message, &mut args).await?,
        };
        self.counters.reply(program, procedure, answered.reply.len(), answered.failed);
        Some(answered.reply)
    }

    /// Whether the call is one that we serve, by somebody who may make it.
    fn admit(&self, header: &CallHeader, peer: Peer) -> Result<Cred, Outcome> {
        let known = match header.program {
            nfs3::PROGRAM => nfsproc3::try_from(header.procedure).is_ok(),
            mount3::PROGRAM => mountproc3::try_from(header.procedure).is_ok(),
            _ => return Err(Outcome::ProgUnavail),
        };
        // Both programs have version 3 (RFC 1813, 2.1 and 5.1).
        if header.version != nfs3::VERSION {
            return Err(Outcome::ProgMismatch { low: nfs3::VERSION, high: nfs3::VERSION });
        }
        if !known {
            return Err(Outcome::ProcUnavail);
        }
        // To ask whether we are there takes no credential (RFC 1813, 3.3.0).
        let is_null = header.procedure == 0;
        if !is_null && !peer.admitted {
            return Err(Outcome::AuthError(AUTH_TOOWEAK));
        }
        match &header.credential {
            Credential::Sys(sys) if sys.uid == 0 && self.config.squash_root => {
                Ok(self.config.anonymous.clone())
            }
            Credential::Sys(sys) => Ok(Cred::new(sys.uid, sys.gid, &sys.groups.0)),
            Credential::None => Ok(self.config.anonymous.clone()),
            Credential::Other { .. } if is_null => Ok(self.config.anonymous.clone()),
            Credential::Other { .. } => Err(Outcome::AuthError(AUTH_TOOWEAK)),
        }
    }

    /// Serves a call that must not be carried out twice.
    async fn serve_once(
        &self,
        header: &CallHeader,
        cred: Cred,
        peer: Peer,
        message: &Bytes,
        args: &mut Bytes,
    ) -> Option<Answered> {
        let (key, verdict) = self.judge(header, peer, message);
        let earlier = match verdict {
            Verdict::New => None,
            Verdict::Done(reply) => Some(reply),
            // Over UDP the client asks again soon. Over TCP it has reconnected, and may not for long.
            Verdict::Running(_) if peer.transport == Transport::Udp => {
                self.counters.dropped.fetch_add(1, Relaxed);
                return None;
            }
            Verdict::Running(mut reply) => {
                let reply = reply.wait_for(Option::is_some).await.ok()?;
                reply.clone()
            }
        };
        if let Some(reply) = earlier {
            self.counters.replayed.fetch_add(1, Relaxed);
            return Some(replay(&reply, peer.framing()));
        }
        let mut underway = Underway { service: self, key, reply: None };
        let answered = self.serve_nfs(header, cred, peer, args).await;
        underway.reply = Some(unframed(&answered.reply, peer.framing()));
        Some(answered)
    }

    /// Whether the call came before.
    fn judge(&self, header: &CallHeader, peer: Peer, message: &Bytes) -> (Key, Verdict) {
        let mut duplicates = self.duplicates();
        let key = duplicates.key(peer.address.ip(), header.xid.0, message);
        (key, duplicates.begin(key, Instant::now()))
    }

    async fn serve_nfs(
        &self,
        header: &CallHeader,
        cred: Cred,
        peer: Peer,
        args: &mut Bytes,
    ) -> Answered {
        let framing = peer.framing();
        let transfer_bytes_max = match peer.transport {
            Transport::Tcp => TRANSFER_BYTES_MAX,
            Transport::Udp => DATAGRAM_TRANSFER_BYTES_MAX,
        };
        let (nfs, caller) = (&self.nfs, &Caller { cred, transfer_bytes_max });
        let procedure = nfsproc3::try_from(header.procedure).unwrap_or(nfsproc3::NULL);
        match procedure {
            nfsproc3::NULL => success(header, &(), framing),
            nfsproc3::GETATTR => run!(header, framing, args, |a| nfs.getattr(caller, a).await),
            nfsproc3::SETATTR => run!(header, framing, args, |a| nfs.setattr(caller, a).await),
            nfsproc3::LOOKUP => run!(header, framing, args, |a| nfs.lookup(caller, a).await),
            nfsproc3::ACCESS => run!(header, framing, args, |a| nfs.access(caller, a).await),
            nfsproc3::READLINK => run!(header, framing, args, |a| nfs.readlink(caller, a).await),
            nfsproc3::READ => run!(header, framing, args, |a| nfs.read(caller, a).await),
            nfsproc3::WRITE => run!(header, framing, args, |a| nfs.write(caller, a).await),
            nfsproc3::CREATE => run!(header, framing, args, |a| nfs.create(caller, a).await),
            nfsproc3::MKDIR => run!(header, framing, args, |a| nfs.mkdir(caller, a).await),
            nfsproc3::SYMLINK => run!(header, framing, args, |a| nfs.symlink(caller, a).await),
            nfsproc3::MKNOD => run!(header, framing, args, |a| nfs.mknod(caller, a).await),
            nfsproc3::REMOVE => run!(header, framing, args, |a| nfs.remove(caller, a).await),
            nfsproc3::RMDIR => run!(header, framing, args, |a| nfs.rmdir(caller, a).await),
            nfsproc3::RENAME => run!(header, framing, args, |a| nfs.rename(caller, a).await),
            nfsproc3::LINK => run!(header, framing, args, |a| nfs.link(caller, a).await),
            nfsproc3::READDIR => run!(header, framing, args, |a| nfs.readdir(caller, a).await),
            nfsproc3::READDIRPLUS => {
                run!(header, framing, args, |a| nfs.readdirplus(caller, a).await)
            }
            nfsproc3::FSSTAT => run!(header, framing, args, |a| nfs.fsstat(caller, a).await),
            nfsproc3::FSINFO => run!(header, framing, args, |a| nfs.fsinfo(caller, a).await),
            nfsproc3::PATHCONF => run!(header, framing, args, |a| nfs.pathconf(caller, a).await),
            nfsproc3::COMMIT => run!(header, framing, args, |a| nfs.commit(caller, a).await),
        }
    }

    async fn serve_mount(
        &self,
        header: &CallHeader,
        cred: &Cred,
        peer: Peer,
        args: &mut Bytes,
    ) -> Answered {
        let (mount, framing, from) = (&self.mount, peer.framing(), peer.address.ip());
        let procedure = mountproc3::try_from(header.procedure).unwrap_or(mountproc3::NULL);
        match procedure {
            mountproc3::NULL => success(header, &(), framing),
            mountproc3::MNT => run!(header, framing, args, |a| mount.mnt(cred, from, a).await),
            mountproc3::DUMP => success(header, &mount.dump(), framing),
            mountproc3::UMNT => match Decode::decode(args) {
                Ok(args) => {
                    mount.umnt(from, &args);
                    success(header, &(), framing)
                }
                Err(_) => refuse(header.xid, Outcome::GarbageArgs, framing),
            },
            mountproc3::UMNTALL => {
                mount.umnt_all(from);
                success(header, &(), framing)
            }
            mountproc3::EXPORT => success(header, &mount.exports(), framing),
        }
    }

    fn duplicates(&self) -> MutexGuard<'_, Duplicates> {
        self.duplicates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a future, if it is there without waiting. If not, it is to be polled again, by
/// another task if need be.
pub(crate) async fn poll_once<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A call that is being carried out. If its future is dropped, or panics, it may be tried again.
struct Underway<'a> {
    service: &'a Service,
    key: Key,
    reply: Option<Bytes>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let reply = self.reply.take();
        self.service.duplicates().finish(self.key, reply, Instant::now());
    }
}

/// Whether a procedure of NFS does the same if it is carried out again. COMMIT does.
fn repeatable(procedure: u32) -> bool {
    use nfsproc3::{CREATE, LINK, MKDIR, MKNOD, REMOVE, RENAME, RMDIR, SETATTR, SYMLINK, WRITE};
    !matches!(
        nfsproc3::try_from(procedure),
        Ok(SETATTR | WRITE | CREATE | MKDIR | SYMLINK | MKNOD | REMOVE | RMDIR | RENAME | LINK)
    )
}

fn success(header: &CallHeader, results: &impl Encode, framing: Framing) -> Answered {
    let reply = ReplyHeader { xid: header.xid, outcome: Outcome::Success };
    Answered { reply: encode_reply(reply, results, framing), failed: false }
}

fn refuse(xid: Xid, outcome: Outcome, framing: Framing) -> Answered {
    let reply = ReplyHeader { xid, outcome };
    Answered { reply: encode_reply(reply, &(), framing), failed: true }
}

/// What a message that is no good call is owed.
fn refusal(error: &CallError, framing: Framing) -> Option<Answered> {
    match error {
        CallError::Malformed(_) => None,
        CallError::RpcVersion { xid, .. } => {
            let versions = Outcome::RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            Some(refuse(*xid, versions, framing))
        }
        CallError::Credential { xid, .. } => {
            Some(refuse(*xid, Outcome::AuthError(AUTH_BADCRED), framing))
        }
    }
}

/// A reply without its record mark: it may go out again by another transport.
fn unframed(reply: &Segments, framing: Framing) -> Bytes {
    let bytes = reply.to_bytes();
    match framing {
        Framing::Record => bytes.slice(MARK_BYTES..),
        Framing::Datagram => bytes,
    }
}

/// A reply that was given before.
fn replay(message: &Bytes, framing: Framing) -> Answered {
    let mut out = Encoder::new(framing, MARK_BYTES + message.len());
    out.put_fixed(message);
    Answered { reply: out.finish(), failed: false }
}
