//! nfs-ganesha: NFSv3 and MOUNT over TCP and UDP, with a port mapper beside it.

use crate::sandbox::{Sandbox, StartError, failed, last_words, listens};
use bytes::Bytes;
use larder_wire::rpc::{Credential, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Decode, Framing};
use larder_wire::{Procedure, mount3, nfs3, portmap, record};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port on which the MOUNT service listens.
const MOUNT_PORT: u16 = 20048;

/// Whose rights callers get on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Callers keep their own rights, root included.
    #[default]
    None,
    /// Callers keep their own rights, except root, which is mapped to nobody (`root_squash`).
    Root,
}

/// Where the server is on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// In its own network namespace, reached through a pair of virtual Ethernet devices.
    #[default]
    Own,
    /// In the namespace of the caller, on 127.0.0.1. Only one such server can run at a time. For
    /// benchmarks.
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

/// A running nfs-ganesha that exports one directory. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Ganesha {
    sandbox: Sandbox,
    host: Ipv4Addr,
    export: PathBuf,
    /// The directory with the server's configuration, state and logs. It is not exported.
    state: PathBuf,
    boots: u8,
}

impl Ganesha {
    /// Starts a server that exports `export` under its own path, and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; with the last lines of the server's log if it did not start.
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
        // The server keeps sockets, locks and its list of clients at fixed paths, so each server
        // gets a file system of its own there.
        sandbox.run("mount -t tmpfs tmpfs /run && mkdir -p /run/ganesha /run/rpcbind")?;
        sandbox.run("mount -t tmpfs tmpfs /var/lib/nfs && mkdir /var/lib/nfs/ganesha")?;
        for program in ["rpcbind", "ganesha.nfsd"] {
            let found = sandbox.run(&format!("command -v {program} >/dev/null"));
            found.map_err(|_| StartError::NotInstalled { program })?;
        }
        sandbox.run("rpcbind -f & mapper=$!")?;
        // rpcbind creates its local socket first, and the NFS server registers over it. Only then
        // is the TCP port asked.
        let mapper = SocketAddr::new(host.into(), portmap::PORT);
        sandbox.wait_for("rpcbind", "mapper", &[], || listens(mapper))?;
        let mut ganesha = Ganesha { sandbox, host, export: export.to_owned(), state, boots: 0 };
        ganesha.boot()?;
        Ok(ganesha)
    }

    /// The server's IP address.
    pub fn host(&self) -> IpAddr {
        self.host.into()
    }

    /// Where NFS listens. The port mapper listens on port 111 of the same address.
    pub fn nfs(&self) -> SocketAddr {
        SocketAddr::new(self.host(), nfs3::PORT)
    }

    /// Where MOUNT listens.
    pub fn mount(&self) -> SocketAddr {
        SocketAddr::new(self.host(), MOUNT_PORT)
    }

    /// The path that clients mount; on this machine the exported directory has the same path.
    pub fn export(&self) -> &Path {
        &self.export
    }

    /// Starts the server after [`kill`](Self::kill) and waits until it answers. It then has a new
    /// write verifier.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the last lines of the server's log.
    pub fn boot(&mut self) -> Result<(), StartError> {
        let state = self.state.display();
        self.boots += 1;
        // The server derives its write verifier from its epoch. By default that is the time in
        // seconds, which two boots within one test may share.
        let epoch = std::process::id() + u32::from(self.boots) * 0x100_0000;
        let start = format!(
            "ganesha.nfsd -F -E {epoch} -f {state}/conf -L {state}/log -p /run/ganesha.pid & child=$!"
        );
        self.sandbox.run(&start)?;
        let (nfs, mount, log) = (self.nfs(), self.mount(), self.state.join("log"));
        self.sandbox.wait_for("nfs-ganesha", "child", &[&log], || answers(nfs, mount))
    }

    /// Kills the server as a crash would: unstable writes that it holds are lost.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn kill(&mut self) -> Result<(), StartError> {
        self.sandbox.run("{ kill -9 $child; wait $child; } 2>/dev/null || true")
    }

    /// Stops all threads of the server, so that it answers nothing while its connections stay open.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn freeze(&mut self) -> Result<(), StartError> {
        // kill(1) returns before the signal has taken effect: wait until every thread has stopped.
        self.sandbox.run(
            "kill -STOP $child; while grep -L '^State:.T' /proc/$child/task/*/status | grep -q .; \
             do sleep 0.01; done",
        )
    }

    /// Lets the server continue after [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn thaw(&mut self) -> Result<(), StartError> {
        self.sandbox.run("kill -CONT $child")
    }

    /// Cuts the network between the server and all its clients: messages are lost in both
    /// directions.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server has no network namespace of its own.
    pub fn cut(&mut self) -> Result<(), StartError> {
        self.sandbox.cut()
    }

    /// Restores the network after [`cut`](Self::cut).
    ///
    /// # Errors
    /// [`StartError::Failed`] if the server has no network namespace of its own.
    pub fn mend(&mut self) -> Result<(), StartError> {
        self.sandbox.mend()
    }

    /// Kills the port mapper. The server continues on the ports that it has.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the port mapper does not run.
    pub fn stop_port_mapper(&mut self) -> Result<(), StartError> {
        self.sandbox.run("kill $mapper; wait $mapper || true")
    }

    /// Whether the server answers, and the last lines of its log: for the message of a failure.
    pub fn condition(&self) -> String {
        let answers = match answers(self.nfs(), self.mount()) {
            Ok(()) => "it answers".to_owned(),
            Err(error) => format!("it does not answer: {error}"),
        };
        format!("{answers}\n{}", last_words(&[&self.state.join("log")]))
    }

    /// Runs a line of shell in the server's namespaces, for example to shape its network (`eth0`).
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
        // If this fails, the directory is left for the system's cleaning of temporary files.
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
    // Tests change files directly on the disk, so the server must not trust its own attribute
    // cache.
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {MOUNT_PORT}; Protocols = 3; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = {path}; Access_Type = {access}; \
         Squash = {squash}; SecType = sys; Transports = TCP, UDP; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; }} }}\n"
    )
}

/// Whether NFS and MOUNT answer, and are registered at the port mapper.
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

/// Calls a procedure over a new connection.
fn ask<P: Procedure>(address: SocketAddr, args: &P) -> io::Result<P::Res> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let call = encode_call(Xid(1), &Credential::None, args, Framing::Record);
    stream.write_all(&call.to_bytes())?;
    let mut mark = [0; record::MARK_BYTES];
    stream.read_exact(&mut mark)?;
    // The replies to these calls fit one short fragment.
    let mut reply = vec![0; usize::from(mark[3])];
    stream.read_exact(&mut reply)?;
    let mut reply = Bytes::from(reply);
    ReplyHeader::decode(&mut reply).map_err(io::Error::other)?;
    P::Res::decode(&mut reply).map_err(io::Error::other)
}
