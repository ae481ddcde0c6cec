//! Datagrams through a proxy.
//!
//! The server tells clients apart by their addresses, so each gets a *flow*: a socket of its own
//! towards the server, and a task that brings back what the server sends there. Flows that were
//! idle for long are dropped, as routers do; so is the longest idle one if a new client comes and
//! there are too many.
//!
//! Nothing is retried and losses are not reported, as with any datagrams.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use super::Link;
use crate::link::line::{Entrance, Exit, line};
use crate::link::timer::Timer;
use crate::link::wire::{Sender, at_once, in_flight_bytes_max};

/// A flow is dropped when its client has sent nothing for this long.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Time between two searches for such flows.
const SWEEP: Duration = Duration::from_secs(30);
/// Clients at once.
const FLOWS_MAX: usize = 64;

/// The largest datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// A datagram, the socket through which it leaves, and its receiver; the server's sockets are
/// connected.
struct Datagram {
    bytes: Box<[u8]>,
    by: Arc<UdpSocket>,
    to: Option<SocketAddr>,
}

/// What a flow needs to bring replies back.
struct Back {
    /// Where clients send to.
    socket: Arc<UdpSocket>,
    line: Entrance<Datagram>,
    link: Arc<Link>,
}

/// Forwards datagrams that arrive at `socket`.
pub(super) async fn serve(socket: UdpSocket, upstream: SocketAddr, link: Arc<Link>) {
    let (up, up_exit) = line();
    let (down, down_exit) = line();
    let back = Arc::new(Back { socket: Arc::new(socket), line: down, link });
    let timer = &back.link.timer;
    tokio::join!(receive(&back, upstream, &up), leave(up_exit, timer), leave(down_exit, timer));
}

/// Receives datagrams of clients.
async fn receive(back: &Arc<Back>, upstream: SocketAddr, line: &Entrance<Datagram>) {
    let mut wire = back.link.up.sender();
    let mut flows = Flows::default();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let (received, was_there) = tokio::select! {
            received = at_once(back.socket.recv_from(&mut buffer)) => received,
            _ = sweep.tick() => {
                flows.sweep(Instant::now());
                continue;
            }
        };
        // An error is news of an earlier reply that did not arrive.
        let Ok((bytes, client)) = received else {
            continue;
        };
        let open = || open(client, upstream, back);
        let Ok(flow) = flows.of(client, Instant::now(), open) else {
            continue;
        };
        let by = Arc::clone(&flow.socket);
        let datagram = Datagram { bytes: buffer[..bytes].into(), by, to: None };
        send(datagram, was_there, &mut wire, line).await;
    }
}

/// Puts a datagram on the line, unless it gets lost. Those that arrive in the meantime wait in the
/// kernel.
async fn send(
    datagram: Datagram,
    was_there: bool,
    wire: &mut Sender<'_>,
    line: &Entrance<Datagram>,
) {
    let bytes = datagram.bytes.len();
    let (taken, had_room) = at_once(line.room(bytes, in_flight_bytes_max(&wire.shape()))).await;
    if let Some(arrival) = wire.pass_datagram(bytes, was_there && had_room).await {
        line.send(datagram, arrival, taken);
    }
}

/// Sends what comes off a line.
async fn leave(mut line: Exit<Datagram>, timer: &Timer) {
    while let Some(due) = line.next(timer).await {
        let Datagram { bytes, by, to } = &due.thing;
        // The receiver is not there, or has no room.
        let _ = match to {
            Some(to) => by.send_to(bytes, to).await,
            None => by.send(bytes).await,
        };
    }
}

/// A client's path to the server and back.
struct Flow {
    socket: Arc<UdpSocket>,
    back: AbortHandle,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.back.abort();
    }
}

fn open(client: SocketAddr, upstream: SocketAddr, back: &Arc<Back>) -> io::Result<Flow> {
    let any: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(upstream)?;
    socket.set_nonblocking(true)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, super::WAITING_BYTES)?;
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let back = tokio::spawn(bring_back(client, Arc::clone(&socket), Arc::clone(back)));
    Ok(Flow { socket, back: back.abort_handle() })
}

/// Forwards datagrams of the server to a client.
async fn bring_back(client: SocketAddr, socket: Arc<UdpSocket>, back: Arc<Back>) {
    let mut wire = back.link.down.sender();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        // An error reports that an earlier datagram did not arrive: nothing listens there yet.
        let (Ok(bytes), was_there) = at_once(socket.recv(&mut buffer)).await else {
            continue;
        };
        let bytes = buffer[..bytes].into();
        let datagram = Datagram { bytes, by: Arc::clone(&back.socket), to: Some(client) };
        send(datagram, was_there, &mut wire, &back.line).await;
    }
}

/// Flows by client, bounded in number and in idleness.
struct Flows<F> {
    by_client: HashMap<SocketAddr, (F, Instant)>,
}

impl<F> Default for Flows<F> {
    fn default() -> Self {
        Flows { by_client: HashMap::new() }
    }
}

impl<F> Flows<F> {
    /// The flow of a client that says something now; opened if it has none.
    fn of(
        &mut self,
        client: SocketAddr,
        now: Instant,
        open: impl FnOnce() -> io::Result<F>,
    ) -> io::Result<&F> {
        if !self.by_client.contains_key(&client) {
            if self.by_client.len() >= FLOWS_MAX {
                let longest_idle = self.by_client.iter().min_by_key(|(_, (_, used))| *used);
                let longest_idle = longest_idle.map(|(client, _)| *client);
                longest_idle.and_then(|client| self.by_client.remove(&client));
            }
            self.by_client.insert(client, (open()?, now));
        }
        let (flow, used) = self.by_client.get_mut(&client).expect("it is there or was opened");
        *used = now;
        Ok(flow)
    }

    /// Drops what was idle for too long.
    fn sweep(&mut self, now: Instant) {
        self.by_client.retain(|_, (_, used)| now.duration_since(*used) < IDLE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap()).into()
    }

    fn second(count: u64, start: Instant) -> Instant {
        start + Duration::from_secs(count)
    }

    #[test]
    fn idle_flows_are_dropped_and_busy_ones_stay() {
        let (mut flows, start) = (Flows::default(), Instant::now());
        let idle = IDLE_MAX.as_secs();
        for (port, opened) in [(1, 0), (2, 0), (3, 1)] {
            assert_eq!(*flows.of(client(port), second(opened, start), || Ok(port)).unwrap(), port);
        }
        let busy = flows.of(client(2), second(idle - 1, start), || panic!("it is open"));
        assert_eq!(*busy.unwrap(), 2);
        flows.sweep(second(idle, start));
        let mut left: Vec<usize> = flows.by_client.values().map(|(flow, _)| *flow).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3]);
    }

    #[test]
    fn the_longest_idle_makes_room_for_a_new_one() {
        let (mut flows, start) = (Flows::default(), Instant::now());
        for port in 0..FLOWS_MAX {
            flows.of(client(port), second(port as u64, start), || Ok(port)).unwrap();
        }
        flows.of(client(0), second(1000, start), || panic!("it is open")).unwrap();
        flows.of(client(FLOWS_MAX), second(1001, start), || Ok(FLOWS_MAX)).unwrap();
        assert_eq!(flows.by_client.len(), FLOWS_MAX);
        assert!(flows.by_client.contains_key(&client(0)));
        assert!(!flows.by_client.contains_key(&client(1)));
    }

    #[test]
    fn a_flow_that_cannot_be_opened_is_not_kept() {
        let mut flows = Flows::<()>::default();
        let failed = flows.of(client(1), Instant::now(), || Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err());
        assert!(flows.by_client.is_empty());
    }
}
