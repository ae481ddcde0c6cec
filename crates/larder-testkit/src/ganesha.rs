//! nfs-ganesha: NFSv3 and MOUNT over TCP and UDP, with a port mapper beside it.

use crate::sandbox::{Sandbox, StartError, failed, listens};
use bytes::Bytes;
use larder_wire::rpc::{Credential, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Decode, Framing};
use larder_wire::{Procedure, mount3, nfs3, portmap, record};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where MOUNT listens.
const MOUNT_PORT: u16 = 20048;

/// Whose rights callers get on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Their own, also the superuser.
    #[default]
    None,
    /// Their own, but the superuser is nobody.
    Root,
}

/// Where the server is on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// In a network namespace of its own, reached by a pair of virtual Ethernet devices.
    #[default]
    Own,
    /// In the namespace of the caller, on 127.0.0.1: one server at most. For benchmarks.
    Shared,
}

/// How the server is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whose rights callers get.
    pub squash: Squash,
    /// Whether the export is read-only.
    pub read_only: bool,
    /// Where the server is.
    pub network: Network,
}

/// A running nfs-ganesha that exports one directory. Ends when dropped.
#[derive(Debug)]
pub struct Ganesha {
    sandbox: Sandbox,
    host: Ipv4Addr,
    export: PathBuf,
    /// What the server reads and writes that is not exported.
    state: PathBuf,
    boots: u8,
}

impl Ganesha {
    /// Starts a server that exports `export` under its own path, and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; with the server's last words if it did not come up.
    pub fn start(export: &Path, options: &Options) -> Result<Ganesha, StartError> {
        let mut sandbox = Sandbox::start(options.network == Network::Own)?;
        let host = match options.network {
            Network::Own => sandbox.link()?,
            Network::Shared => Ipv4Addr::LOCALHOST,
        };
        let state = sandbox.state_directory("ganesha")?;
        let configuration = configuration(export, options);
        std::fs::write(state.join("conf"), configuration)
            .map_err(|cause| failed("configuration", cause))?;
        // Sockets, locks and the list of clients lie at fixed paths: each server gets its own.
        sandbox.run("mount -t tmpfs tmpfs /run && mkdir -p /run/ganesha /run/rpcbind")?;
        sandbox.run("mount -t tmpfs tmpfs /var/lib/nfs && mkdir /var/lib/nfs/ganesha")?;
        for program in ["rpcbind", "ganesha.nfsd"] {
            let found = sandbox.run(&format!("command -v {program} >/dev/null"));
            found.map_err(|_| StartError::NotInstalled { program })?;
        }
        sandbox.run("rpcbind -f & mapper=$!")?;
        // It listens at its local socket first, where the server will look for it.
        let mapper = SocketAddr::new(host.into(), portmap::PORT);
        sandbox.wait_for("rpcbind", "mapper", &[], || listens(mapper))?;
        let mut ganesha = Ganesha { sandbox, host, export: export.to_owned(), state, boots: 0 };
        ganesha.boot()?;
        Ok(ganesha)
    }

    /// Where it is.
    pub fn host(&self) -> IpAddr {
        self.host.into()
    }

    /// Where NFS listens. The port mapper is at its usual port.
    pub fn nfs(&self) -> SocketAddr {
        SocketAddr::new(self.host(), nfs3::PORT)
    }

    /// Where MOUNT listens.
    pub fn mount(&self) -> SocketAddr {
        SocketAddr::new(self.host(), MOUNT_PORT)
    }

    /// The path that clients mount, which is also where the directory lies.
    pub fn export(&self) -> &Path {
        &self.export
    }

    /// Starts the server after [`kill`](Self::kill) and waits until it answers. Its write verifier
    /// is a new one.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the server's last words.
    pub fn boot(&mut self) -> Result<(), StartError> {
        let state = self.state.display();
        self.boots += 1;
        // The epoch makes the verifier. By itself it is the time in seconds, which two boots of a
        // test may share.
        let epoch = std::process::id() + u32::from(self.boots) * 0x100_0000;
        let start = format!(
            "ganesha.nfsd -F -E {epoch} -f {state}/conf -L {state}/log -p /run/ganesha.pid & child=$!"
        );
        self.sandbox.run(&start)?;
        let (nfs, mount, log) = (self.nfs(), self.mount(), self.state.join("log"));
        self.sandbox.wait_for("nfs-ganesha", "child", &[&log], || answers(nfs, mount))
    }

    /// Ends the server as a crash would; unstable writes that it holds are lost with it.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone already.
    pub fn kill(&mut self) -> Result<(), StartError> {
        self.sandbox.run("{ kill -9 $child; wait $child; } 2>/dev/null || true")
    }

    /// Stops the server from answering, with its connections open.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone.
    pub fn freeze(&mut self) -> Result<(), StartError> {
        // The signal is on its way when kill returns: wait until each thread has stopped.
        self.sandbox.run(
            "kill -STOP $child; while grep -L '^State:.T' /proc/$child/task/*/status | grep -q .; \
             do sleep 0.01; done",
        )
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone.
    pub fn thaw(&mut self) -> Result<(), StartError> {
        self.sandbox.run("kill -CONT $child")
    }

    /// Cuts the network between the server and everybody else: messages are lost in both
    /// directions.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it has no network of its own.
    pub fn cut(&mut self) -> Result<(), StartError> {
        self.sandbox.cut()
    }

    /// Mends the network after [`cut`](Self::cut).
    ///
    /// # Errors
    /// [`StartError::Failed`] if it has no network of its own.
    pub fn mend(&mut self) -> Result<(), StartError> {
        self.sandbox.mend()
    }

    /// Ends the port mapper. The server goes on, at the ports that it has.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone already.
    pub fn stop_port_mapper(&mut self) -> Result<(), StartError> {
        self.sandbox.run("kill $mapper; wait $mapper || true")
    }

    /// Runs a line of shell in the server's namespaces, as to shape its network (`eth0`).
    ///
    /// # Errors
    /// [`StartError::Failed`] with its exit status.
    pub fn run(&mut self, line: &str) -> Result<(), StartError> {
        self.sandbox.run(line)
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        self.sandbox.end();
        // Left to the system's cleaning of temporary files if it fails.
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

fn configuration(export: &Path, options: &Options) -> String {
    let path = export.display();
    let access = if options.read_only { "RO" } else { "RW" };
    let squash = match options.squash {
        Squash::None => "No_Root_Squash",
        Squash::Root => "Root_Squash",
    };
    let port = nfs3::PORT;
    // Tests change files behind the server's back, so it must not trust its own attribute cache.
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {MOUNT_PORT}; Protocols = 3; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = {path}; Access_Type = {access}; \
         Squash = {squash}; SecType = sys; Transports = TCP, UDP; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}\n"
    )
}

/// Whether NFS and MOUNT answer and are registered.
fn answers(nfs: SocketAddr, mount: SocketAddr) -> io::Result<()> {
    ask(nfs, &nfs3::NULL3args {})?;
    ask(mount, &mount3::NULLargs {})?;
    let mapper = SocketAddr::new(nfs.ip(), portmap::PORT);
    for prog in [nfs3::PROGRAM, mount3::PROGRAM] {
        for prot in [portmap::IPPROTO_TCP, portmap::IPPROTO_UDP] {
            let mapping = portmap::mapping { prog, vers: 3, prot, port: 0 };
            if ask(mapper, &portmap::GETPORTargs { mapping })? == 0 {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
    }
    Ok(())
}

/// Calls a procedure, over a connection of its own.
fn ask<P: Procedure>(address: SocketAddr, args: &P) -> io::Result<P::Res> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let call = encode_call(Xid(1), &Credential::None, args, Framing::Record);
    stream.write_all(&call.to_bytes())?;
    let mut mark = [0; record::MARK_BYTES];
    stream.read_exact(&mut mark)?;
    // Such replies are one short fragment.
    let mut reply = vec![0; usize::from(mark[3])];
    stream.read_exact(&mut reply)?;
    let mut reply = Bytes::from(reply);
    ReplyHeader::decode(&mut reply).map_err(io::Error::other)?;
    P::Res::decode(&mut reply).map_err(io::Error::other)
}
