//! Makes many files of a volume by calls to its metadata server, many in flight.
//!
//!     cargo run --release --manifest-path bench/fill/Cargo.toml -- ADDRESS FIRST END FILES DATA_EVERY [CLIENTS]
//!
//! Directories with the numbers from FIRST up to END get FILES files each; every DATA_EVERY-th has
//! 100 bytes: a block and an extent. Directory N is in one with the number N / 1000. The calls are
//! those of a mount: an open that creates, a commit if there is data, and a close; each is durable
//! before its answer, and its session carries it out once. The bytes themselves are not sent to the
//! disk. Needs root, whose calls a server takes without TLS on its own machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_rpc::{CallOptions, Config, Program, RpcClient, SourcePort, Transport, random_u64};
use larder_wire::Procedure;
use larder_wire::meta::calls::{Close, CommitExtents, Create, Lookup, MkDir, Open, OpenWhat};
use larder_wire::meta::words::{
    ByteRange, Dentry, FileId, IfExists, Layout, LeaseKind, Medium, Mode, Name, OpenId, Sequence,
    SessionId, SetAttributes, Written,
};
use larder_wire::meta::{PROCEDURE_NAMES, PROGRAM, Res, SLOTS_MAX, Status, VERSION, calls};
use larder_wire::xdr::Array;

const DIRECTORIES_MAX: u64 = 1000;
const DATA_BYTES: u64 = 100;

/// What is to be made.
#[derive(Clone, Copy)]
struct Wanted {
    end: u64,
    files: u64,
    data_every: u64,
}

/// A connection with a session, whose slots the workers have.
struct Client {
    rpc: RpcClient,
    session: SessionId,
}

/// One of a client's slots. Its calls follow each other.
struct Worker {
    client: Arc<Client>,
    slot: u32,
    sequence: u32,
}

async fn connect(address: SocketAddr) -> Client {
    let program = Program { number: PROGRAM, version: VERSION, procedures: PROCEDURE_NAMES };
    let mut config = Config::new(address, Transport::Tcp, program);
    config.source_port = SourcePort::Reserved;
    let rpc = RpcClient::connect(config).await.expect("a server");
    let mut client = Client { rpc, session: SessionId([0; 16]) };
    let mut name = [0; 16];
    name[..8].copy_from_slice(&random_u64().to_be_bytes());
    let begin = calls::Session { client: name, boot: random_u64(), slots: SLOTS_MAX };
    client.session = client.call(&begin).await.expect("a session").session;
    client
}

impl Client {
    async fn call<P: Procedure<Res = Res<T>>, T>(&self, call: &P) -> Res<T> {
        let root = self.rpc.auth_sys(0, 0, &[]);
        let reply = self.rpc.call(&root, call, CallOptions::default()).await;
        reply.expect("the server answers").results
    }
}

fn dentry(dir: FileId, text: &str) -> Dentry {
    Dentry { dir, name: Name::new(Bytes::copy_from_slice(text.as_bytes())).expect("a short name") }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// What was written of a new file with these blocks.
fn written(layout: &Layout) -> Written {
    let first = layout.extents.0.first().expect("blocks");
    Written { offset: 0, length: DATA_BYTES, disk: first.disk, position: first.position }
}

impl Worker {
    async fn change<P: Procedure<Res = Res<T>>, T>(&mut self, call: impl Fn(Sequence) -> P) -> T {
        self.try_change(call).await.expect("done")
    }

    async fn try_change<P, T>(&mut self, call: impl Fn(Sequence) -> P) -> Res<T>
    where
        P: Procedure<Res = Res<T>>,
    {
        self.sequence += 1;
        let (session, slot, sequence) = (self.client.session, self.slot, self.sequence);
        self.client.call(&call(Sequence { session, slot, sequence })).await
    }

    async fn directory(&mut self, dir: FileId, text: &str) -> FileId {
        let set = mode(0o755);
        let make = |sequence| MkDir { sequence, dentry: dentry(dir, text), set };
        match self.try_change(make).await {
            Ok(made) => made.made.file,
            Err(Status::Exists) => {
                let lookup = Lookup { session: self.client.session, dentry: dentry(dir, text) };
                self.client.call(&lookup).await.expect("found").found.expect("there").file
            }
            Err(status) => panic!("{text}: {status:?}"),
        }
    }

    async fn file(&mut self, dir: FileId, text: &str, has_data: bool) {
        let create =
            || Create { dentry: dentry(dir, text), set: mode(0o644), if_exists: IfExists::Fail };
        let (lease, mode) = (LeaseKind::None, Mode::ReadWrite);
        let range = ByteRange { offset: 0, length: if has_data { DATA_BYTES } else { 0 } };
        let allocate = has_data.then_some(Medium::Disk);
        let open = |sequence| {
            let what = OpenWhat::Create(create());
            Open { sequence, what, mode, lease, range, allocate }
        };
        let opened = self.change(open).await;
        let (file, open) = (opened.file.after.file, opened.open);
        if has_data {
            let written = written(&opened.layout);
            self.change(|sequence| commit(sequence, (file, open), written)).await;
        }
        self.change(|sequence| Close { sequence, opens: Array(vec![open]) }).await;
    }

    async fn work(mut self, next: Arc<AtomicU64>, wanted: Wanted) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= wanted.end {
                return;
            }
            let upper = format!("{:04}", number / DIRECTORIES_MAX);
            let upper = self.directory(FileId::ROOT, &upper).await;
            let dir = self.directory(upper, &format!("{number:08}")).await;
            for file in 0..wanted.files {
                let has_data = file.is_multiple_of(wanted.data_every);
                self.file(dir, &format!("f{file:05}"), has_data).await;
            }
        }
    }
}

fn commit(sequence: Sequence, (file, open): (FileId, OpenId), written: Written) -> CommitExtents {
    CommitExtents {
        sequence,
        file,
        open,
        copies: Array(vec![written.disk]),
        written: Array(vec![written]),
        merged: Array::default(),
        mtime: None,
        all: true,
        on_way: false,
        due_ms: None,
        archive_ms: None,
    }
}

async fn fill(address: SocketAddr, first: u64, clients: u64, wanted: Wanted) {
    let next = Arc::new(AtomicU64::new(first));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let client = Arc::new(connect(address).await);
        // The first slot is left to calls that a client makes aside.
        for slot in 1..SLOTS_MAX {
            let worker = Worker { client: Arc::clone(&client), slot, sequence: 0 };
            tasks.push(tokio::spawn(worker.work(Arc::clone(&next), wanted)));
        }
    }
    for task in tasks {
        task.await.expect("a worker");
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let address = args.next().and_then(|text| text.parse().ok()).expect("ADDRESS");
    let mut number = |name: &str| -> Option<u64> {
        args.next().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}")))
    };
    let first = number("FIRST").expect("FIRST");
    let end = number("END").expect("END");
    let files = number("FILES").expect("FILES");
    let data_every = number("DATA_EVERY").expect("DATA_EVERY");
    let clients = number("CLIENTS").unwrap_or(1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(fill(address, first, clients, Wanted { end, files, data_every }));
}
