//! A server on a directory of its own, and clients that speak to it message by message.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_nfsd::{Config, Server, Shutdown, SourcePorts, Stats, StatsReader};
use larder_remote::local::{HandleKey, LocalDir, LocalError, LocalOptions, Squash};
use larder_vfs::Direct;
use larder_wire::Procedure;
use larder_wire::nfs3::{
    CREATE3args, CREATE3resok, Fail, LOOKUP3args, MKDIR3args, createhow3, diropargs3, filename3,
    nfs_fh3, nfsstat3, sattr3,
};
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{AuthSys, Credential, Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::xdr::{Array, Decode, Framing, Segments};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longest wait for a reply that must come. A busy machine and its disk may stall for seconds.
pub(crate) const REPLY_MAX: Duration = Duration::from_secs(120);

/// The key that seals handles, also after a restart.
pub(crate) const KEY: HandleKey = HandleKey::from_bytes([7; 32]);

/// A running server.
pub(crate) struct Running {
    pub(crate) dir: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<()>,
    pub(crate) root: nfs_fh3,
    stats: StatsReader,
}

/// Root is not squashed, and changes of names are not synced: most tests are about other things.
pub(crate) fn options() -> LocalOptions {
    LocalOptions { squash: Squash::None, durable_names: false, ..LocalOptions::default() }
}

impl Running {
    pub(crate) async fn with(
        options: LocalOptions,
        adjust: impl FnOnce(&mut Config),
    ) -> Option<Running> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("export")).unwrap();
        Running::on(dir, options, adjust).await
    }

    /// Serves `export` below `dir`.
    pub(crate) async fn on(
        dir: TempDir,
        options: LocalOptions,
        adjust: impl FnOnce(&mut Config),
    ) -> Option<Running> {
        let local = match LocalDir::open(&dir.path().join("export"), options, &KEY) {
            Ok(local) => local,
            Err(LocalError::NotPrivileged { .. }) => {
                eprintln!("skipped: needs CAP_DAC_READ_SEARCH");
                return None;
            }
            Err(other) => panic!("{other}"),
        };
        let root = larder_vfs::Remote::root(&local).await.unwrap().handle;
        let fs = Arc::new(Direct::new(Arc::new(local)).await.unwrap());
        let mut config = Config::new("127.0.0.1:0".parse().unwrap());
        config.rpc.source_ports = SourcePorts::Any;
        adjust(&mut config);
        let server = Server::bind(config, fs).await.unwrap();
        Some(Running {
            dir,
            address: server.addr(),
            shutdown: server.shutdown(),
            stats: server.stats_reader(),
            task: tokio::spawn(server.run()),
            root: nfs_fh3::new(root.as_bytes()).unwrap(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("export").join(name)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats.snapshot()
    }

    pub(crate) async fn tcp(&self) -> Client {
        Client::tcp(self.address).await
    }

    pub(crate) async fn udp(&self) -> Client {
        Client::udp(self.address).await
    }

    /// Shuts the server down and returns the directory.
    pub(crate) async fn stop(self) -> TempDir {
        self.shutdown.begin();
        timeout(REPLY_MAX, self.task).await.expect("the server ends").unwrap();
        self.dir
    }
}

/// Starts a server, or returns from the test.
macro_rules! running {
    () => {
        running!(crate::harness::options(), |_| {})
    };
    ($options:expr, $adjust:expr) => {
        match crate::harness::Running::with($options, $adjust).await {
            Some(running) => running,
            None => return,
        }
    };
}
pub(crate) use running;

/// A client that sends exactly what the test says.
pub(crate) struct Client {
    link: Link,
    pub(crate) credential: Credential,
    next_xid: u32,
}

enum Link {
    Tcp { stream: TcpStream, records: RecordAssembler<Heap>, ready: Vec<Bytes> },
    Udp(UdpSocket),
}

impl Client {
    pub(crate) async fn tcp(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        let records = RecordAssembler::new(Heap, 4 << 20);
        Client::over(Link::Tcp { stream, records, ready: Vec::new() })
    }

    pub(crate) async fn udp(address: SocketAddr) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(address).await.unwrap();
        Client::over(Link::Udp(socket))
    }

    fn over(link: Link) -> Client {
        // Clients at one address must not use each other's xids.
        static FIRST_XID: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        let next_xid = FIRST_XID.fetch_add(1 << 20, std::sync::atomic::Ordering::Relaxed);
        Client { link, credential: sys(0, 0, &[]), next_xid }
    }

    pub(crate) fn framing(&self) -> Framing {
        match self.link {
            Link::Tcp { .. } => Framing::Record,
            Link::Udp(_) => Framing::Datagram,
        }
    }

    /// A call with the next xid.
    pub(crate) fn encode<P: Procedure>(&mut self, args: &P) -> (Xid, Segments) {
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        (xid, encode_call(xid, &self.credential, args, self.framing()))
    }

    /// Sends raw bytes; over TCP they must include the record mark.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.link {
            Link::Tcp { stream, .. } => stream.write_all(bytes).await,
            Link::Udp(socket) => socket.send(bytes).await.map(drop),
        }
    }

    /// The next message, or `None` if the server closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Bytes> {
        timeout(REPLY_MAX, self.receive_ever()).await.expect("a reply in time")
    }

    async fn receive_ever(&mut self) -> Option<Bytes> {
        match &mut self.link {
            Link::Udp(socket) => {
                let mut buffer = BytesMut::zeroed(65_536);
                let len = socket.recv(&mut buffer).await.unwrap();
                Some(buffer.freeze().slice(..len))
            }
            Link::Tcp { stream, records, ready } => {
                let mut buffer = vec![0; 1 << 16];
                while ready.is_empty() {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => return None,
                        Ok(len) => {
                            records.push(&buffer[..len], &mut |record| ready.push(record)).unwrap();
                        }
                    }
                }
                Some(ready.remove(0))
            }
        }
    }

    /// Whether nothing arrives for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.receive_ever()).await.is_err()
    }

    /// Makes a call and waits for the reply.
    pub(crate) async fn call<P: Procedure>(&mut self, args: &P) -> P::Res {
        self.try_call(args).await.expect("the call is served")
    }

    /// Makes a call and waits for the reply, or for the refusal of the RPC layer.
    pub(crate) async fn try_call<P: Procedure>(&mut self, args: &P) -> Result<P::Res, Outcome> {
        let (xid, call) = self.encode(args);
        self.send(&call.to_bytes()).await.unwrap();
        let mut reply = self.receive().await.expect("the connection is open");
        let header = ReplyHeader::decode(&mut reply).unwrap();
        assert_eq!(header.xid, xid);
        match header.outcome {
            Outcome::Success => {
                let results = P::Res::decode(&mut reply).expect("results decode");
                assert!(reply.is_empty(), "{} bytes behind the results", reply.len());
                Ok(results)
            }
            refused => Err(refused),
        }
    }

    pub(crate) async fn find(&mut self, dir: nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let found = self.call(&LOOKUP3args { what: place(dir, name) }).await;
        found.map(|found| found.object).map_err(|fail| fail.status)
    }

    pub(crate) async fn create(&mut self, dir: nfs_fh3, name: &str) -> nfs_fh3 {
        let how = createhow3::GUARDED(mode(0o644));
        let args = CREATE3args { r#where: place(dir, name), how };
        handle(self.call(&args).await)
    }

    pub(crate) async fn mkdir(&mut self, dir: nfs_fh3, name: &str) -> nfs_fh3 {
        let args = MKDIR3args { r#where: place(dir, name), attributes: mode(0o755) };
        handle(self.call(&args).await)
    }
}

pub(crate) fn handle<E: std::fmt::Debug>(made: Result<CREATE3resok, Fail<E>>) -> nfs_fh3 {
    made.unwrap().obj.unwrap()
}

pub(crate) fn sys(uid: u32, gid: u32, groups: &[u32]) -> Credential {
    let machine_name = "test".into();
    let groups = Array(groups.to_vec());
    Credential::Sys(AuthSys { stamp: 7, machine_name, uid, gid, groups })
}

pub(crate) fn name(text: &str) -> filename3 {
    filename3::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

pub(crate) fn place(dir: nfs_fh3, text: &str) -> diropargs3 {
    diropargs3 { dir, name: name(text) }
}

pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 { mode: Some(mode), ..sattr3::default() }
}

/// The status of a result.
pub(crate) fn status<T, E>(result: Result<T, Fail<E>>) -> nfsstat3 {
    result.map_or_else(|fail| fail.status, |_| nfsstat3::NFS3_OK)
}
