//! A proxy that loses connections, and answers.

use super::setup::{Setup, options, serve};
use larder_remote::smb::MountOptions;
use larder_testkit::{Samba, SambaOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, interval_at};

/// Forwards bytes to the server, until the test cuts it.
pub(super) struct Proxy {
    port: u16,
    pub(super) cuts: watch::Sender<u32>,
    /// So many connections, those that came first, are never cut.
    pub(super) spared: Arc<AtomicUsize>,
    pub(super) refuses: Arc<AtomicBool>,
    /// The next request that changes a name gets through, but no replies come back any more.
    pub(super) swallows: Arc<AtomicBool>,
    /// Each CLOSE that is a message of its own, and what follows it on its connection, is delayed.
    pub(super) holds_closes: Arc<AtomicBool>,
    /// Each CLOSE that is a message of its own is delayed, and overtaken by what follows it: a
    /// client makes closes in the background, and may send them late.
    pub(super) overtakes_closes: Arc<AtomicBool>,
    /// The number of the connection, from 1, on which every message to the server is delayed.
    pub(super) slow: Arc<AtomicUsize>,
}

/// By this much.
const HELD: Duration = Duration::from_millis(30);

/// Whether a message makes, renames, links or removes something.
fn changes_a_name(message: &[u8]) -> bool {
    let mut at = 0;
    loop {
        let number = |offset: usize| {
            let bytes = message.get(at + offset..at + offset + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().unwrap()))
        };
        let (command, next) = (number(12).map(|word| word & 0xffff), number(20));
        // CREATE of an object that must not exist, SET_INFO.
        let creates = command == Some(5) && number(100) == Some(2);
        if creates || command == Some(17) {
            return true;
        }
        match next {
            Some(next) if next > 0 => at += next as usize,
            _ => return false,
        }
    }
}

/// What happens to a message on its way to the server.
enum Path {
    Straight,
    /// It arrives later, and so does what follows it.
    Slow,
    /// It arrives later, and what follows it does not.
    Overtaken,
}

/// A pause of a slow path to the server: the test shows what may overtake it.
async fn pause() {
    interval_at(Instant::now() + HELD, HELD).tick().await;
}

/// Forwards messages of the client, and bytes of the server, until one side ends. The path of a
/// message depends on whether it is a CLOSE.
async fn carry(
    ours: &mut TcpStream,
    theirs: &mut TcpStream,
    swallows: &AtomicBool,
    path: impl Fn(bool) -> Path,
) -> std::io::Result<()> {
    let ((mut from_us, mut to_us), (mut from_them, to_them)) = (ours.split(), theirs.split());
    let silent = AtomicBool::new(false);
    let to_them = Mutex::new(to_them);
    let (overtaken, mut late) = mpsc::unbounded_channel::<Vec<u8>>();
    let there = async {
        loop {
            let mut message = from_us.read_u32().await?.to_be_bytes().to_vec();
            let length = u32::from_be_bytes(message[..4].try_into().unwrap()) as usize;
            message.resize(4 + length, 0);
            from_us.read_exact(&mut message[4..]).await?;
            if changes_a_name(&message[4..]) && swallows.swap(false, Ordering::SeqCst) {
                silent.store(true, Ordering::SeqCst);
            }
            match path(message.get(16..18) == Some(&[6, 0])) {
                Path::Straight => (),
                Path::Slow => pause().await,
                Path::Overtaken => {
                    overtaken.send(message).unwrap();
                    continue;
                }
            }
            to_them.lock().await.write_all(&message).await?;
        }
    };
    let there_late = async {
        while let Some(message) = late.recv().await {
            pause().await;
            to_them.lock().await.write_all(&message).await?;
        }
        Ok(())
    };
    let back = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let count = from_them.read(&mut bytes).await?;
            if count == 0 {
                return Ok(());
            }
            if !silent.load(Ordering::SeqCst) {
                to_us.write_all(&bytes[..count]).await?;
            }
        }
    };
    tokio::select! { ended = there => ended, ended = there_late => ended, ended = back => ended }
}

async fn proxy(server: &Samba) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (cuts, cut) = watch::channel(0);
    let (refuses, swallows) = (Arc::default(), Arc::default());
    let (spared, holds_closes) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (address, closed) = (server.address(), Arc::<AtomicBool>::clone(&refuses));
    let swallow = Arc::<AtomicBool>::clone(&swallows);
    let (first, holds) = (Arc::clone(&spared), Arc::clone(&holds_closes));
    let slow = Arc::<AtomicUsize>::default();
    let slowed = Arc::clone(&slow);
    let overtakes_closes = Arc::<AtomicBool>::default();
    let overtakes = Arc::clone(&overtakes_closes);
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((mut ours, _)) = listener.accept().await {
            if closed.load(Ordering::SeqCst) {
                continue;
            }
            let (mut cut, swallow, first) = (cut.clone(), Arc::clone(&swallow), Arc::clone(&first));
            let (holds, slowed) = (Arc::clone(&holds), Arc::clone(&slowed));
            let overtakes = Arc::clone(&overtakes);
            let now = *cut.borrow_and_update();
            number += 1;
            let number = number;
            tokio::spawn(async move {
                let mut theirs = TcpStream::connect(address).await.unwrap();
                let due = cut.wait_for(|cuts| *cuts > now && number > first.load(Ordering::SeqCst));
                let path = |is_close| {
                    let is_slow = slowed.load(Ordering::SeqCst) == number;
                    match is_close {
                        true if overtakes.load(Ordering::SeqCst) => Path::Overtaken,
                        true if holds.load(Ordering::SeqCst) => Path::Slow,
                        _ if is_slow => Path::Slow,
                        _ => Path::Straight,
                    }
                };
                tokio::select! {
                    _ = carry(&mut ours, &mut theirs, &swallow, path) => (),
                    // The server does not hear of it.
                    _ = due => std::mem::forget(theirs),
                }
            });
        }
    });
    Proxy { port, cuts, spared, refuses, swallows, holds_closes, overtakes_closes, slow }
}

pub(super) async fn behind_a_proxy(
    samba: impl FnOnce(&mut SambaOptions),
    change: impl FnOnce(&mut MountOptions),
) -> (Setup, Proxy) {
    let (server, dir) = serve(samba);
    let proxy = proxy(&server).await;
    let mut options = options(&server);
    (options.host, options.port) = ("127.0.0.1".into(), proxy.port);
    change(&mut options);
    (Setup::mounted(server, dir, &options).await, proxy)
}
