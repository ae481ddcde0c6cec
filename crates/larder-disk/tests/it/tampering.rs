//! What stands between a client and a disk, and changes the answers of the disk.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use larder_wire::disk::words::Refusal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Position in an answer of the first word that is the disk's own: 0, or a refusal.
pub(crate) const STATUS: usize = 24;

/// What becomes of the next answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// It is passed on as it is.
    None,
    /// It says without a seal that the disk has refused the request.
    Refusal(Refusal),
    /// A bit of the byte at this position of its message is flipped.
    Flip(usize),
    /// It goes to the call whose answer is the next but one, and that answer to its call.
    Swap,
}

/// Passes connections on to a disk.
pub(crate) struct Tampering {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    change: Arc<Mutex<Change>>,
}

impl Tampering {
    pub(crate) async fn before(disk: SocketAddr) -> Tampering {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let change = Arc::new(Mutex::new(Change::None));
        let shared = Arc::clone(&change);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut requests, to_client) = client.into_split();
                let (answers, mut to_disk) = TcpStream::connect(disk).await.unwrap().into_split();
                tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_disk).await });
                tokio::spawn(pass(answers, to_client, Arc::clone(&shared)));
            }
        });
        Tampering { address, change }
    }

    /// What to do to the next answer, or to the next two; those behind them are passed on.
    pub(crate) fn next(&self, change: Change) {
        *self.change.lock().unwrap() = change;
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, change: Arc<Mutex<Change>>) {
    let mut kept: Option<Vec<u8>> = None;
    while let Some(mut answer) = message(&mut from).await {
        let now = std::mem::replace(&mut *change.lock().unwrap(), Change::None);
        match now {
            Change::Swap => {
                kept = Some(answer);
                continue;
            }
            Change::Refusal(refusal) => {
                answer.truncate(STATUS);
                answer.extend_from_slice(&(refusal as u32).to_be_bytes());
            }
            Change::Flip(at) => answer[at] ^= 1,
            Change::None => {}
        }
        if let Some(mut other) = kept.take() {
            // An answer names its call in its first four bytes.
            answer[..4].swap_with_slice(&mut other[..4]);
            send(&mut to, &other).await;
        }
        send(&mut to, &answer).await;
    }
}

/// A message, without its record marks (RFC 5531, 11).
async fn message(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let mark = from.read_u32().await.ok()?;
        let begun = whole.len();
        whole.resize(begun + (mark & 0x7fff_ffff) as usize, 0);
        from.read_exact(&mut whole[begun..]).await.ok()?;
        if mark >> 31 == 1 {
            return Some(whole);
        }
    }
}

async fn send(to: &mut OwnedWriteHalf, message: &[u8]) {
    let mark = 1 << 31 | message.len() as u32;
    // A client that is gone needs no answer.
    let _ = to.write_all(&[&mark.to_be_bytes(), message].concat()).await;
}
