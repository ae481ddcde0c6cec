//! Two small programs: one that a server offers, and one by which it calls its clients.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use larder_io::Clock;
use larder_rpc::server::{
    Answer, Backchannel, Call, CallbackError, Config as ServerConfig, Server, Service, SourcePorts,
    Stats,
};
use larder_rpc::{
    CallOptions, Callbacks, Config, Program, RpcClient, RpcError, SourcePort, Transport,
};
use larder_wire::Procedure;
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{
    CallHeader, Credential, Outcome, ReplyHeader, Xid, encode_call, encode_reply,
};
use larder_wire::xdr::{Decode, Encode, Encoder, Framing, XdrError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

/// The longest that anything here may take: a test that hangs says so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long the server waits for a client, on its own clock.
pub(crate) const RECALL_LIMIT: Duration = Duration::from_secs(30);

/// What the server answers if a client has no results for it.
pub(crate) const NOTHING: u32 = u32::MAX;

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the test hangs")
}

const OFFICE: Program =
    Program { number: 0x2000_0001, version: 1, procedures: &["NULL", "PLAIN", "RECALL", "HELD"] };
const CLERK: Program =
    Program { number: 0x2000_0002, version: 1, procedures: &["NULL", "BACK", "NESTED"] };

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $program:expr, $number:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(pub(crate) u32);

        impl Encode for $name {
            fn encode(&self, out: &mut Encoder) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
                u32::decode(input).map($name)
            }
        }

        impl Procedure for $name {
            type Res = u32;
            const PROGRAM: u32 = $program.number;
            const VERSION: u32 = $program.version;
            const NUMBER: u32 = $number;
        }
    )*};
}

procedures! {
    /// The server answers the number.
    Plain = OFFICE, 1;
    /// The server asks the client's BACK, and answers what that answers.
    Recall = OFFICE, 2;
    /// The server answers the number when the test lets it.
    Held = OFFICE, 3;
    /// The client answers the number and 1000.
    Back = CLERK, 1;
    /// The client asks the server's PLAIN, and answers what that answers and 2000.
    Nested = CLERK, 2;
}

/// The server's program.
pub(crate) struct Office {
    /// The way back to each caller of RECALL.
    pub(crate) ways: Arc<Mutex<Vec<Backchannel>>>,
    pub(crate) errors: Arc<Mutex<Vec<CallbackError>>>,
    /// HELD calls that may be answered.
    pub(crate) let_go: Arc<Semaphore>,
    /// Whether RECALL asks for NESTED.
    nested: bool,
}

impl Service for Office {
    type Caller = ();

    fn programs(&self) -> &[Program] {
        &[OFFICE]
    }

    fn admit(&self, _header: &CallHeader) -> Result<(), Outcome> {
        Ok(())
    }

    fn calls_back(&self) -> bool {
        true
    }

    async fn call(&self, mut call: Call<()>) -> Answer {
        if call.header.procedure == 0 {
            return call.reply(&(), false);
        }
        let number = match call.arguments::<u32>() {
            Ok(number) => number,
            Err(garbage) => return garbage,
        };
        match call.header.procedure {
            2 => {
                let Some(way) = call.backchannel.clone() else { return call.reply(&NOTHING, true) };
                self.ways.lock().unwrap().push(way.clone());
                let asked = match self.nested {
                    true => way.call(&Nested(number), RECALL_LIMIT).await,
                    false => way.call(&Back(number), RECALL_LIMIT).await,
                };
                let number = asked.unwrap_or_else(|error| {
                    self.errors.lock().unwrap().push(error);
                    NOTHING
                });
                call.reply(&number, number == NOTHING)
            }
            3 => {
                let held = self.let_go.acquire().await.expect("it is never closed");
                held.forget();
                call.reply(&number, false)
            }
            _ => call.reply(&number, false),
        }
    }
}

/// The client's program.
#[derive(Default)]
pub(crate) struct Clerk {
    client: Arc<OnceLock<RpcClient>>,
    /// Told of each call that begins, and what it then waits for.
    gate: Option<(Arc<Notify>, Arc<Semaphore>)>,
}

impl Service for Clerk {
    type Caller = ();

    fn programs(&self) -> &[Program] {
        &[CLERK]
    }

    fn admit(&self, _header: &CallHeader) -> Result<(), Outcome> {
        Ok(())
    }

    async fn call(&self, mut call: Call<()>) -> Answer {
        if call.header.procedure == 0 {
            return call.reply(&(), false);
        }
        let number = match call.arguments::<u32>() {
            Ok(number) => number,
            Err(garbage) => return garbage,
        };
        if let Some((begun, gate)) = &self.gate {
            begun.notify_one();
            gate.acquire().await.expect("it is never closed").forget();
        }
        match call.header.procedure {
            2 => {
                let Some(client) = self.client.get() else {
                    return call.refuse(Outcome::SystemErr);
                };
                let asked = ask(client, Plain(number)).await.unwrap();
                call.reply(&(asked + 2000), false)
            }
            _ => call.reply(&number.wrapping_add(1000), false),
        }
    }
}

/// A running server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) ways: Arc<Mutex<Vec<Backchannel>>>,
    pub(crate) errors: Arc<Mutex<Vec<CallbackError>>>,
    pub(crate) let_go: Arc<Semaphore>,
    stats: Box<dyn Fn() -> Stats + Send + Sync>,
}

impl Running {
    pub(crate) async fn begin(nested: bool, change: impl FnOnce(&mut ServerConfig)) -> Running {
        let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap());
        config.source_ports = SourcePorts::Any;
        config.source_connections_max = 256;
        change(&mut config);
        let (ways, errors) = (Arc::default(), Arc::default());
        let let_go = Arc::new(Semaphore::new(0));
        let office = Office {
            ways: Arc::clone(&ways),
            errors: Arc::clone(&errors),
            let_go: Arc::clone(&let_go),
            nested,
        };
        let server = Server::bind(config, office).await.unwrap();
        let (dispatcher, address) = (server.dispatcher(), server.addr());
        // It ends with the runtime of the test.
        tokio::spawn(server.run());
        Running { address, ways, errors, let_go, stats: Box::new(move || dispatcher.stats()) }
    }

    pub(crate) fn stats(&self) -> Stats {
        (self.stats)()
    }

    /// A client that answers calls of the server.
    pub(crate) async fn client(&self, change: impl FnOnce(&mut Config)) -> (RpcClient, Callbacks) {
        let clerk = Clerk::default();
        let own = Arc::clone(&clerk.client);
        let callbacks = Callbacks::new(clerk);
        let client = connect(self.address, &callbacks, change).await;
        own.set(client.clone()).unwrap();
        (client, callbacks)
    }
}

/// Callbacks that wait for the test once they have begun; a notification of each that begins, and
/// the means to let one continue.
pub(crate) fn gated() -> (Callbacks, Arc<Notify>, Arc<Semaphore>) {
    let (begun, gate) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let gated = (Arc::clone(&begun), Arc::clone(&gate));
    let clerk = Clerk { gate: Some(gated), ..Clerk::default() };
    (Callbacks::new(clerk), begun, gate)
}

pub(crate) fn config(address: SocketAddr, callbacks: &Callbacks) -> Config {
    let mut config = Config::new(address, Transport::Tcp, OFFICE);
    config.source_port = SourcePort::Any;
    config.timeout = PATIENCE;
    config.callbacks = Some(callbacks.clone());
    config
}

pub(crate) async fn connect(
    address: SocketAddr,
    callbacks: &Callbacks,
    change: impl FnOnce(&mut Config),
) -> RpcClient {
    let mut config = config(address, callbacks);
    change(&mut config);
    within(RpcClient::connect(config)).await.unwrap()
}

pub(crate) async fn ask<P: Procedure<Res = u32>>(
    client: &RpcClient,
    args: P,
) -> Result<u32, RpcError> {
    let asked = client.call(&Credential::None, &args, CallOptions::default());
    within(asked).await.map(|reply| reply.results)
}

/// The simulated clock, for a configuration.
pub(crate) fn clock(sim: &Arc<larder_io::SimClock>) -> Arc<dyn Clock> {
    Arc::clone(sim) as Arc<dyn Clock>
}

/// A client that speaks message by message.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    records: RecordAssembler<Heap>,
    ready: std::collections::VecDeque<Bytes>,
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Raw {
        Raw::new(within(TcpStream::connect(address)).await.unwrap())
    }

    /// The server's end of the next connection.
    pub(crate) async fn accept(listener: &TcpListener) -> Raw {
        Raw::new(within(listener.accept()).await.unwrap().0)
    }

    fn new(stream: TcpStream) -> Raw {
        let records = RecordAssembler::new(Heap, 1 << 21);
        Raw { stream, records, ready: Default::default() }
    }

    pub(crate) async fn call<P: Procedure>(&mut self, xid: u32, args: &P) {
        let call = encode_call(Xid(xid), &Credential::None, args, Framing::Record);
        within(self.stream.write_all(&call.to_bytes())).await.unwrap();
    }

    pub(crate) async fn reply(&mut self, xid: Xid, number: u32) {
        let header = ReplyHeader { xid, outcome: Outcome::Success };
        let reply = encode_reply(header, &number, Framing::Record);
        within(self.stream.write_all(&reply.to_bytes())).await.unwrap();
    }

    /// The next message; none at the end of the stream.
    pub(crate) async fn message(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let mut bytes = [0; 4096];
            let length = within(self.stream.read(&mut bytes)).await.unwrap_or(0);
            if length == 0 {
                return None;
            }
            let ready = &mut self.ready;
            self.records.push(&bytes[..length], &mut |record| ready.push_back(record)).unwrap();
        }
    }

    /// The next message, which is a call of the server: its xid and its number.
    pub(crate) async fn called(&mut self) -> (Xid, u32) {
        let mut message = self.message().await.expect("the server has a call");
        let header = CallHeader::decode(&mut message).unwrap();
        (header.xid, u32::decode(&mut message).unwrap())
    }

    /// The next message, which is a reply: whose, and its number.
    pub(crate) async fn replied(&mut self) -> (Xid, u32) {
        let mut message = self.message().await.expect("the server has a reply");
        let header = ReplyHeader::decode(&mut message).unwrap();
        assert_eq!(header.outcome, Outcome::Success);
        (header.xid, u32::decode(&mut message).unwrap())
    }
}
