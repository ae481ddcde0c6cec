//! Clients of the two small programs that lead to NFS: the port mapper and MOUNT.
//!
//! Each is used for a few calls and then closed, so their waits are short and soft.

use larder_rpc::{
    CallOptions, Config, ConnectError, Program, Recovery, RpcClient, RpcError, SourcePort,
    Transport,
};
use larder_wire::mount3::{self, mountstat3};
use larder_wire::rpc::Credential;
use larder_wire::xdr::Opaque;
use larder_wire::{nfs3, portmap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use thiserror::Error;

/// Wait for one reply, and how many of them make the limit.
const PATIENCE: (Duration, u32) = (Duration::from_secs(2), 4);

/// Why the port mapper or MOUNT gave no answer.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no reply.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// MOUNT refuses.
    #[error("{0:?}")]
    Status(mountstat3),
}

fn config(address: SocketAddr, transport: Transport, program: Program) -> Config {
    let mut config = Config::new(address, transport, program);
    config.timeout = PATIENCE.0;
    config.retransmissions = PATIENCE.1 - 1;
    config.recovery = Recovery::Soft;
    config
}

/// Asks the port mapper of `host` where a program listens; nothing if it does not know it.
///
/// # Errors
/// [`ProgramError::Connect`] if no port mapper runs there, [`ProgramError::Rpc`]
pub(super) async fn port_of(
    host: IpAddr,
    program: u32,
    version: u32,
    transport: Transport,
) -> Result<Option<u16>, ProgramError> {
    let address = SocketAddr::new(host, portmap::PORT);
    let mapper = Program { number: portmap::PROGRAM, version: portmap::VERSION, procedures: &[] };
    let mut config = config(address, transport, mapper);
    config.source_port = SourcePort::Any;
    let client = RpcClient::connect(config).await?;
    let prot = match transport {
        Transport::Tcp => portmap::IPPROTO_TCP,
        Transport::Udp => portmap::IPPROTO_UDP,
    };
    let mapping = portmap::mapping { prog: program, vers: version, prot, port: 0 };
    let question = portmap::GETPORTargs { mapping };
    let answer = client.call(&Credential::None, &question, CallOptions::default()).await?;
    Ok(u16::try_from(answer.results).ok().filter(|port| *port != 0))
}

/// A client of MOUNT version 3 (RFC 1813, 5.0).
#[derive(Clone, Debug)]
pub(super) struct MountClient {
    client: RpcClient,
    credential: Credential,
}

impl MountClient {
    /// Connects to the MOUNT service at `address`.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub(super) async fn connect(
        address: SocketAddr,
        transport: Transport,
        source_port: SourcePort,
    ) -> Result<MountClient, ConnectError> {
        let procedures = &["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];
        let program = Program { number: mount3::PROGRAM, version: mount3::VERSION, procedures };
        let config = Config { source_port, ..config(address, transport, program) };
        let client = RpcClient::connect(config).await?;
        let credential = client.auth_sys(0, 0, &[]);
        Ok(MountClient { client, credential })
    }

    /// Asks for the root of an export.
    ///
    /// # Errors
    /// [`ProgramError::Status`] says why the server refuses.
    pub(super) async fn mount(&self, path: &[u8]) -> Result<nfs3::nfs_fh3, ProgramError> {
        let args = mount3::MNTargs { dirpath: Opaque::copy_from_slice(path) };
        let answer = self.client.call(&self.credential, &args, CallOptions::default()).await?;
        let root = answer.results.map_err(ProgramError::Status)?.fhandle;
        nfs3::nfs_fh3::new(&root).ok_or(ProgramError::Status(mountstat3::MNT3ERR_SERVERFAULT))
    }

    /// Tells the server that the export is no longer used. The server only keeps a list, on which
    /// nothing depends.
    ///
    /// # Errors
    /// [`ProgramError::Rpc`]
    pub(super) async fn unmount(&self, path: &[u8]) -> Result<(), ProgramError> {
        let args = mount3::UMNTargs { dirpath: Opaque::copy_from_slice(path) };
        self.client.call(&self.credential, &args, CallOptions::default()).await?;
        Ok(())
    }

    /// Lists the server's exports.
    ///
    /// # Errors
    /// [`ProgramError::Rpc`]
    pub(super) async fn exports(&self) -> Result<Vec<mount3::exportnode>, ProgramError> {
        let args = mount3::EXPORTargs {};
        let answer = self.client.call(&self.credential, &args, CallOptions::default()).await?;
        Ok(answer.results.0)
    }
}
