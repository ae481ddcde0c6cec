//! Connections through a proxy.
//!
//! A connection is two directions. In each, one half reads what the sender has, waits for room and
//! for a turn on the wire, and puts it on the line; the other takes it off at its time and writes
//! it. All of it is one task, so ending that closes both sockets.
//!
//! How a side ends is read off its socket: an end of data is half a close, an error is a reset. A
//! write that fails says the same of the receiver, and takes the error away from the reader of the
//! other direction, which would see a plain end of data: hence [`Side::broken`].

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Link;
use crate::link::line::{Entrance, Exit, line};
use crate::link::timer::Timer;
use crate::link::wire::{QUANTUM_BYTES_MAX, Wire, at_once, in_flight_bytes_max, quantum_bytes};

/// Connections at once; more wait. Each has two file descriptors, and many processes have 1024.
const CONNECTIONS_MAX: usize = 256;

/// Pause before the next attempt if there are no more file descriptors for a new connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// A message on the line.
enum Message {
    Bytes(Box<[u8]>),
    /// The sender says no more.
    End,
    /// The sender is gone.
    Reset,
}

/// The other side must hear of a reset.
struct Reset;

/// One end of a connection.
#[derive(Default)]
struct Side {
    /// Whether writing to it has failed.
    broken: AtomicBool,
}

/// Forwards whatever connects.
pub(super) async fn serve(listener: TcpListener, upstream: SocketAddr, link: Arc<Link>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let link = Arc::clone(&link);
        tokio::spawn(async move {
            carry(client, upstream, &link).await;
            drop(place);
        });
    }
}

/// Connects a client with the server until both directions have ended.
async fn carry(mut client: TcpStream, upstream: SocketAddr, link: &Link) {
    // A link does not care how bytes are grouped. If it fails, they arrive later.
    let _ = client.set_nodelay(true);
    // The handshake: half a round trip until the server learns of it, the other half in `join`.
    link.timer.until(Instant::now() + link.up.shape().delay).await;
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        link.timer.until(Instant::now() + link.down.shape().delay).await;
        return reset(client);
    };
    let _ = server.set_nodelay(true);
    if join(&mut client, &mut server, link).await.is_err() {
        reset(client);
        reset(server);
    }
}

async fn join(client: &mut TcpStream, server: &mut TcpStream, link: &Link) -> Result<(), Reset> {
    let (client_side, server_side) = (Side::default(), Side::default());
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let (up_entrance, up_exit) = line();
    let (down_entrance, down_exit) = line();
    let up_enter = async {
        // Until the client hears that it is connected.
        link.timer.until(Instant::now() + link.down.shape().delay).await;
        enter(from_client, &client_side, &link.up, up_entrance).await;
    };
    let up = direction(up_enter, leave(to_server, &server_side, up_exit, &link.timer));
    let down = direction(
        enter(from_server, &server_side, &link.down, down_entrance),
        leave(to_client, &client_side, down_exit, &link.timer),
    );
    tokio::try_join!(up, down)?;
    match client_side.broken.load(Relaxed) || server_side.broken.load(Relaxed) {
        true => Err(Reset),
        false => Ok(()),
    }
}

/// A direction ends when its end has arrived, or when its receiver is gone.
async fn direction(
    enter: impl Future<Output = ()>,
    leave: impl Future<Output = Result<(), Reset>>,
) -> Result<(), Reset> {
    let enter = async {
        enter.await;
        pending::<()>().await;
    };
    tokio::select! {
        ended = leave => ended,
        () = enter => unreachable!("it pends"),
    }
}

/// Puts on the line what the sender sends, then how it ended.
async fn enter(mut from: ReadHalf<'_>, sender: &Side, wire: &Wire, line: Entrance<Message>) {
    let mut on_wire = wire.sender();
    let mut buffer = vec![0; QUANTUM_BYTES_MAX as usize];
    loop {
        let turn = quantum_bytes(&wire.shape());
        let (read, was_there) = at_once(from.read(&mut buffer[..turn])).await;
        let (message, bytes) = match read {
            Ok(0) if sender.broken.load(Relaxed) => (Message::Reset, 0),
            Ok(0) => (Message::End, 0),
            Ok(bytes) => (Message::Bytes(buffer[..bytes].into()), bytes),
            Err(_) => (Message::Reset, 0),
        };
        let last = bytes == 0;
        let room = line.room(bytes, in_flight_bytes_max(&wire.shape()));
        let (taken, had_room) = at_once(room).await;
        let arrival = on_wire.pass(bytes, was_there && had_room).await;
        line.send(message, arrival, taken);
        if last {
            return;
        }
    }
}

/// Gives the receiver what comes off the line.
async fn leave(
    mut to: WriteHalf<'_>,
    receiver: &Side,
    mut line: Exit<Message>,
    timer: &Timer,
) -> Result<(), Reset> {
    while let Some(due) = line.next(timer).await {
        let (written, last) = match &due.thing {
            Message::Bytes(bytes) => (to.write_all(bytes).await, false),
            Message::End => (to.shutdown().await, true),
            Message::Reset => return Err(Reset),
        };
        receiver.broken.fetch_or(written.is_err(), Relaxed);
        if written.is_err() || last {
            return Ok(());
        }
    }
    Ok(())
}

/// Closes a connection so that the peer sees an error, not an end of data.
fn reset(stream: TcpStream) {
    // If it fails the peer is gone already.
    let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    drop(stream);
}
