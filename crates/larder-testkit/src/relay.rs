//! What stands before a disk, and holds what it is sent: to the sender, the disk is a process that
//! was stopped with messages in its socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

type Bytes = Vec<u8>;

/// Passes connections on to a target, and can hold their messages.
#[derive(Debug)]
pub struct Relay {
    /// The address on which it listens.
    pub address: SocketAddr,
    held: Arc<Mutex<Held>>,
    /// How many messages have been held so far.
    caught: watch::Receiver<usize>,
    /// How many bytes the target has answered.
    answered: watch::Receiver<usize>,
}

#[derive(Debug, Default)]
struct Held {
    is_holding: bool,
    /// The held messages, each with the connection that it goes to.
    sent: VecDeque<(mpsc::UnboundedSender<Bytes>, Bytes)>,
}

impl Relay {
    /// Starts a relay to `target`.
    pub async fn to(target: SocketAddr) -> Relay {
        Relay::counting(target, Arc::default()).await
    }

    /// The same, and adds the bytes that pass it, both ways, to a count.
    pub async fn counting(target: SocketAddr, passed_bytes: Arc<AtomicU64>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let held = Arc::new(Mutex::new(Held::default()));
        let (catching, caught) = watch::channel(0);
        let (answering, answered) = watch::channel(0);
        let (catching, answering) = (Arc::new(catching), Arc::new(answering));
        let all = Arc::clone(&held);
        tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                let Ok(to) = TcpStream::connect(target).await else { continue };
                let (from_read, from_write) = from.into_split();
                let (to_read, to_write) = to.into_split();
                let (passing, passed) = mpsc::unbounded_channel();
                tokio::spawn(there(from_read, passing, Arc::clone(&all), Arc::clone(&catching)));
                tokio::spawn(deliver(passed, to_write, Arc::clone(&passed_bytes)));
                let counts = (Arc::clone(&answering), Arc::clone(&passed_bytes));
                tokio::spawn(back(to_read, from_write, counts));
            }
        });
        Relay { address, held, caught, answered }
    }

    /// From now on, messages to the disk are held.
    pub fn hold(&self) {
        self.lock().is_holding = true;
    }

    /// Whether messages to the disk are held now.
    pub fn has_caught(&self) -> bool {
        *self.caught.borrow() > 0
    }

    /// How many bytes are held now.
    pub fn held_bytes(&self) -> usize {
        self.lock().sent.iter().map(|(_, message)| message.len()).sum()
    }

    /// Waits until a message is held.
    pub async fn catch(&mut self) {
        self.caught.wait_for(|caught| *caught > 0).await.expect("the relay is there");
    }

    /// Delivers all held messages, and stops holding.
    pub fn let_go(&self) {
        let mut held = self.lock();
        held.is_holding = false;
        for (passing, message) in held.sent.drain(..) {
            // The connection may have ended.
            let _ = passing.send(message);
        }
    }

    /// Delivers the message that was held first, and no other. Returns when the disk has answered
    /// it.
    pub async fn deliver_first(&mut self) {
        let before = *self.answered.borrow();
        let (passing, message) = self.lock().sent.pop_front().expect("something was held");
        passing.send(message).expect("the connection is there");
        self.answered.wait_for(|bytes| *bytes > before).await.expect("the relay is there");
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }
}

async fn there(
    mut from: OwnedReadHalf,
    passing: mpsc::UnboundedSender<Bytes>,
    held: Arc<Mutex<Held>>,
    catching: Arc<watch::Sender<usize>>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let message = buffer[..length].to_vec();
        let mut held = lock(&held);
        if held.is_holding {
            held.sent.push_back((passing.clone(), message));
            catching.send_modify(|caught| *caught += 1);
        } else {
            let _ = passing.send(message);
        }
    }
}

/// Continues after the sender has closed its connection: bytes in a socket's buffer are not lost.
async fn deliver(
    mut passed: mpsc::UnboundedReceiver<Bytes>,
    mut to: OwnedWriteHalf,
    passed_bytes: Arc<AtomicU64>,
) {
    while let Some(message) = passed.recv().await {
        passed_bytes.fetch_add(message.len() as u64, Relaxed);
        if to.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn back(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (answering, passed_bytes): (Arc<watch::Sender<usize>>, Arc<AtomicU64>),
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        passed_bytes.fetch_add(length as u64, Relaxed);
        // The client may have closed its connection.
        let _ = to.write_all(&buffer[..length]).await;
        answering.send_modify(|bytes| *bytes += length);
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
