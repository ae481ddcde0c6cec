//! Registration with a port mapper (RFC 1833, 3), so that clients find us without `port=`.
//!
//! The port mapper is asked over UDP, a few times. An existing registration of another server is
//! left alone: that is an error.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_io::Clock;
use larder_wire::portmap::{GETPORTargs, IPPROTO_TCP, IPPROTO_UDP, SETargs, UNSETargs, mapping};
use larder_wire::rpc::{Credential, Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Decode, Framing};
use larder_wire::{Procedure, mount3, nfs3};
use tokio::net::UdpSocket;

/// How long to wait for a reply before asking again, and how often to ask.
const REPLY_MAX: Duration = Duration::from_millis(500);
const TRIES_MAX: u32 = 4;

/// What is registered; it is withdrawn at the end.
#[derive(Debug)]
pub(crate) struct Registration {
    clock: Arc<dyn Clock>,
    mapper: SocketAddr,
    mappings: Vec<mapping>,
}

impl Registration {
    /// Registers NFS and MOUNT at `port`.
    pub(crate) async fn new(
        mapper: SocketAddr,
        (port, udp): (u16, bool),
        clock: &Arc<dyn Clock>,
    ) -> io::Result<Registration> {
        let mut protocols = vec![IPPROTO_TCP];
        protocols.extend(udp.then_some(IPPROTO_UDP));
        let mut registration =
            Registration { clock: Arc::clone(clock), mapper, mappings: Vec::new() };
        for prog in [nfs3::PROGRAM, mount3::PROGRAM] {
            for prot in &protocols {
                let mapping =
                    mapping { prog, vers: nfs3::VERSION, prot: *prot, port: u32::from(port) };
                if let Err(cause) = register(mapper, mapping, &**clock).await {
                    registration.withdraw().await;
                    return Err(cause);
                }
                registration.mappings.push(mapping);
            }
        }
        Ok(registration)
    }

    /// Withdraws the registration. A port mapper that is gone has lost it in any case.
    pub(crate) async fn withdraw(&mut self) {
        let mut programs: Vec<u32> = self.mappings.drain(..).map(|mapping| mapping.prog).collect();
        programs.dedup();
        for prog in programs {
            // UNSET uses only program and version.
            let mapping = mapping { prog, vers: nfs3::VERSION, prot: 0, port: 0 };
            if let Err(cause) = ask(self.mapper, &UNSETargs { mapping }, &*self.clock).await {
                tracing::debug!(%cause, "cannot withdraw from the port mapper");
            }
        }
    }
}

async fn register(mapper: SocketAddr, mapping: mapping, clock: &dyn Clock) -> io::Result<()> {
    if ask(mapper, &SETargs { mapping }, clock).await? {
        return Ok(());
    }
    // A registration of an earlier process at the same port is as good.
    let registered = ask(mapper, &GETPORTargs { mapping }, clock).await?;
    if registered == mapping.port {
        return Ok(());
    }
    let text = format!("program {} is registered at port {registered}", mapping.prog);
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

async fn ask<P: Procedure>(mapper: SocketAddr, args: &P, clock: &dyn Clock) -> io::Result<P::Res> {
    let any: IpAddr = match mapper {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A new socket for each request, so that a late reply to another is never taken for this one's.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(mapper).await?;
    let call = encode_call(Xid(P::NUMBER), &Credential::None, args, Framing::Datagram);
    let mut buffer = [0; 1024];
    for _ in 0..TRIES_MAX {
        socket.send(&call.to_bytes()).await?;
        let Ok(received) = clock.timeout(REPLY_MAX, socket.recv(&mut buffer)).await else {
            continue;
        };
        let mut reply = Bytes::copy_from_slice(&buffer[..received?]);
        let garbled = |cause| io::Error::new(io::ErrorKind::InvalidData, cause);
        let header = ReplyHeader::decode(&mut reply).map_err(garbled)?;
        if header.outcome != Outcome::Success {
            return Err(io::Error::other(header.outcome));
        }
        return P::Res::decode(&mut reply).map_err(garbled);
    }
    Err(io::ErrorKind::TimedOut.into())
}
