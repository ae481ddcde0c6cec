//! One input of the fuzzer `nfs_reply`: calls of the NFS client, answered with arbitrary bytes.
//! Whatever they are, a call soon ends with an answer or an error. The fuzzer includes this file,
//! so it stands alone.
//!
//! The first byte of an input chooses the call, the second one how the rest is cut into replies,
//! and how much of each is valid: all but the results, or only the number of the call.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_rpc::{SourcePort, Transport};
use larder_vfs::{Access, Cookie, Cred, Handle, Listed, New, Remote, Removal, SetAttr, Stability};
use larder_wire::mount3;
use larder_wire::nfs3::{FSINFO3resok, nfsproc3, nfstime3};
use larder_wire::record::{Heap, RecordAssembler};
use larder_wire::rpc::{CallHeader, Outcome, ReplyHeader, encode_reply};
use larder_wire::xdr::{Array, Encode, Encoder, Framing, to_segments};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Longest time that one input may take: each call is answered at once.
const INPUT_MAX: Duration = Duration::from_secs(20);

/// Number of calls from which an input can choose; [`MOUNT`] is beyond those of [`call`].
const CALLS: u8 = 19;

/// The choice of a whole mount, all of whose replies come from the input.
const MOUNT: u8 = CALLS - 1;

/// Most pages of a listing that are asked for.
const PAGES_MAX: u32 = 8;

/// The server's next answers.
#[derive(Default)]
struct Replies {
    /// The rest of the input.
    pieces: VecDeque<Bytes>,
    /// The pieces begin with the RPC header, after the number of the call.
    with_header: bool,
    /// The calls of a mount are answered from the pieces, too.
    mounting: bool,
}

/// A mounted client, and its server.
pub(crate) struct Fuzzed {
    runtime: tokio::runtime::Runtime,
    nfs: Nfs3,
    options: MountOptions,
    replies: Arc<Mutex<Replies>>,
}

impl Fuzzed {
    /// Starts a server on loopback, for TCP and UDP, and mounts it.
    pub(crate) fn begin() -> Fuzzed {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let replies = Arc::new(Mutex::new(Replies::default()));
        let (nfs, options) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let address = listener.local_addr().expect("an address");
            let datagrams = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            let mut options = MountOptions::new("127.0.0.1", "/");
            options.port = Some(address.port());
            options.source_port = SourcePort::Any;
            options.timeout = Some(Duration::from_secs(5));
            options.retransmissions = Some(0);
            let udp = datagrams.local_addr().expect("an address").port();
            tokio::spawn(serve_datagrams(datagrams, replies.clone()));
            let served = replies.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, served.clone()));
                }
            });
            let nfs = Nfs3::mount(&options).await.expect("a mount");
            // Connections would wait for their end (TIME_WAIT) by the thousand.
            (options.transport, options.port) = (Transport::Udp, Some(udp));
            (nfs, options)
        });
        Fuzzed { runtime, nfs, options, replies }
    }

    /// Makes the call that the input chooses; returns which one, if it succeeded.
    ///
    /// # Panics
    /// If it does not end, or returns an impossible answer.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Option<u8> {
        let [kind, cut, rest @ ..] = input else { return None };
        // Units of XDR are small numbers, most of them.
        let words = |piece: &[u8]| -> Bytes {
            match cut & 1 {
                0 => piece.to_vec().into(),
                _ => piece.iter().flat_map(|byte| [0, 0, 0, *byte]).collect::<Vec<u8>>().into(),
            }
        };
        let piece_bytes = usize::from(*cut).max(8) * 4;
        *lock(&self.replies) = Replies {
            pieces: rest.chunks(piece_bytes).map(words).collect(),
            with_header: cut & 2 != 0,
            mounting: kind % CALLS == MOUNT,
        };
        let calling = async {
            match kind % CALLS {
                MOUNT => Nfs3::mount(&self.options).await.map(|nfs| nfs.shutdown()).is_ok(),
                kind => call(&self.nfs, kind).await.is_ok(),
            }
        };
        let called =
            self.runtime.block_on(async { tokio::time::timeout(INPUT_MAX, calling).await });
        called.expect("a call ends").then_some(kind % CALLS)
    }
}

fn lock(replies: &Mutex<Replies>) -> MutexGuard<'_, Replies> {
    replies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in place of results.
struct Raw(Bytes);

impl Encode for Raw {
    fn encode(&self, out: &mut Encoder) {
        out.put_fixed(&self.0);
    }
}

/// Results that lead to the root, where a mount asks.
fn mounting(header: &CallHeader) -> Option<Bytes> {
    if header.program == mount3::PROGRAM {
        let fhandle = Bytes::from_static(&[1; 8]).into();
        let answer = mount3::mountres3_ok { fhandle, auth_flavors: Array(vec![1]) };
        return Some(to_segments(&mount3::mountres3::Ok(answer)).to_bytes());
    }
    let info = FSINFO3resok {
        obj_attributes: None,
        rtmax: 4096,
        rtpref: 4096,
        rtmult: 1,
        wtmax: 4096,
        wtpref: 4096,
        wtmult: 1,
        dtpref: 4096,
        maxfilesize: 1 << 40,
        time_delta: nfstime3::default(),
        properties: 0,
    };
    match nfsproc3::try_from(header.procedure) {
        Ok(nfsproc3::FSINFO) => {
            let mut out = Encoder::default();
            out.put_u32(0);
            info.encode(&mut out);
            Some(out.finish().to_bytes())
        }
        // NFS3ERR_NOTSUPP, without attributes.
        Ok(nfsproc3::PATHCONF) => Some(Bytes::from_static(&[0, 0, 0x27, 0x14, 0, 0, 0, 0])),
        _ => None,
    }
}

/// The reply to a call.
fn answer(call: &mut Bytes, replies: &Mutex<Replies>, framing: Framing) -> Option<Bytes> {
    let header = CallHeader::decode(call).ok()?;
    let mut replies = lock(replies);
    if !replies.mounting
        && let Some(results) = mounting(&header)
    {
        let reply = ReplyHeader { xid: header.xid, outcome: Outcome::Success };
        return Some(encode_reply(reply, &Raw(results), framing).to_bytes());
    }
    let piece = replies.pieces.pop_front().unwrap_or_default();
    if replies.with_header {
        let mut out = Encoder::new(framing, piece.len() + 8);
        out.put_u32(header.xid.0);
        out.put_fixed(&piece);
        return Some(out.finish().to_bytes());
    }
    let reply = ReplyHeader { xid: header.xid, outcome: Outcome::Success };
    Some(encode_reply(reply, &Raw(piece), framing).to_bytes())
}

async fn serve(mut stream: TcpStream, replies: Arc<Mutex<Replies>>) {
    let mut records = RecordAssembler::new(Heap, 1 << 21);
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        let mut calls = Vec::new();
        if records.push(&bytes[..length], &mut |record| calls.push(record)).is_err() {
            return;
        }
        for mut call in calls {
            let Some(reply) = answer(&mut call, &replies, Framing::Record) else { return };
            if stream.write_all(&reply).await.is_err() {
                return;
            }
        }
    }
}

async fn serve_datagrams(socket: UdpSocket, replies: Arc<Mutex<Replies>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
        let mut call = Bytes::copy_from_slice(&bytes[..length]);
        if let Some(reply) = answer(&mut call, &replies, Framing::Datagram) {
            // A client that has ended in the meantime does not need it.
            let _ = socket.send_to(&reply, from).await;
        }
    }
}

/// One call of the client.
async fn call(nfs: &Nfs3, kind: u8) -> larder_vfs::Result<()> {
    let (cred, file, name) = (&Cred::root(), &Handle::new(&[1; 8]), OsStr::new("name"));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    match kind {
        0 => nfs.getattr(cred, file).await.map(drop),
        1 => nfs.setattr(cred, file, set, None).await.map(drop),
        2 => nfs.access(cred, file, Access::ALL).await.map(drop),
        3 => nfs.lookup(cred, file, name).await.map(drop),
        4 => nfs.readlink(cred, file).await.map(drop),
        5 => nfs.read(cred, file, None, 5, 10_000).await.map(|read| {
            assert!(read.data.len() <= 10_000, "{} bytes", read.data.len());
        }),
        6 => {
            let data = Bytes::from_static(&[7; 9000]);
            nfs.write(cred, file, None, 5, data, Stability::FileSync).await.map(drop)
        }
        7 => nfs.commit(cred, file, None, 0..9).await.map(drop),
        8 => nfs.make(cred, file, name, New::File, set).await.map(drop),
        9 => nfs.make(cred, file, name, New::FileExclusive, set).await.map(drop),
        10 => nfs.make(cred, file, name, New::Directory, set).await.map(drop),
        11 => nfs.make(cred, file, name, New::Symlink("target".into()), set).await.map(drop),
        12 => nfs.remove(cred, file, name, Removal::File).await.map(drop),
        13 => nfs.remove(cred, file, name, Removal::Directory).await.map(drop),
        14 => nfs.rename(cred, (file, name), (file, name)).await.map(drop),
        15 => nfs.link(cred, file, file, name).await.map(drop),
        16 => nfs.statfs(cred, file).await.map(drop),
        _ => list(nfs, cred, file).await,
    }
}

/// Lists on where the server says, for some pages.
async fn list(nfs: &Nfs3, cred: &Cred, dir: &Handle) -> larder_vfs::Result<()> {
    let mut cookie = Cookie::default();
    for _ in 0..PAGES_MAX {
        let listing = nfs.readdir(cred, dir, cookie, 4096).await?;
        for Listed { name, .. } in &listing.entries {
            let name = name.as_encoded_bytes();
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0), "{name:?}");
        }
        let Some(last) = listing.entries.last().filter(|_| !listing.eof) else { return Ok(()) };
        cookie = Cookie { position: last.position, verifier: listing.verifier };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CALLS, Fuzzed};

    /// Inputs that the fuzzer began with, or found worth keeping, each a line of hexadecimal
    /// digits.
    const CORPUS: &str = include_str!("fuzz.corpus");

    #[test]
    fn a_client_outlives_what_a_fuzzer_answered() {
        let mut fuzzed = Fuzzed::begin();
        let mut succeeded = BTreeSet::new();
        for line in CORPUS.lines() {
            let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let input: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            succeeded.extend(fuzzed.feed(&input));
        }
        assert!(succeeded.into_iter().eq(0..CALLS), "each call succeeds once");
    }
}
