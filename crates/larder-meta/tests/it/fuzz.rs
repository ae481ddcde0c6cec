//! One input of the fuzzer `meta_request`: calls to a metadata server, of which only the RPC
//! header, the session and the sequence are sure to be good. Whatever they are, they are answered
//! with a reply that can be read, the server goes on, and nothing is wrong with its volume. The
//! fuzzer includes this file, so it stands alone.
//!
//! An input is a row of calls: a byte for the procedure, a byte for the number of words that
//! follow, and the words, each a byte that says what it is and one that says which.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_io::RealClock;
use larder_meta::disks::{Acknowledged, CapabilityName, Disks, Minted};
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::volume::{self, NewDisk};
use larder_meta::{Metadata, Options};
use larder_rpc::server::{Config, Dispatcher, SourcePorts};
use larder_wire::Procedure;
use larder_wire::capability::{CapabilityId, DiskId, GroupId, Mode, VolumeId};
use larder_wire::meta::words::{DiskInfo, Time};
use larder_wire::meta::{self, Res, calls};
use larder_wire::rpc::{AuthSys, CallHeader, Credential, ReplyHeader, Xid};
use larder_wire::xdr::{Array, Decode, Encode, Encoder, Framing};

/// Inputs after which the volume begins anew, so that what they made there does not pile up.
const INPUTS_MAX: u32 = 500;
/// Bytes of the volume's disk.
const DISK_BYTES: u64 = 64 * 4096;
/// Longest reply, in bytes: what a datagram holds.
const REPLY_BYTES_MAX: usize = 65_507;

/// Disks that do at once what they are told.
#[derive(Debug, Default)]
struct GoodDisks(AtomicU32);

impl Disks for GoodDisks {
    fn list(&self) -> Vec<DiskInfo> {
        Vec::new()
    }

    fn is_there(&self, _disk: DiskId) -> bool {
        true
    }

    fn mint(&self, _disk: DiskId, _mode: Mode, bytes: &[Range<u64>]) -> Option<Minted> {
        assert!(bytes.len() <= larder_wire::capability::EXTENTS_MAX);
        assert!(bytes.iter().all(|bytes| bytes.start < bytes.end && bytes.end <= DISK_BYTES));
        assert!(bytes.is_sorted_by(|one, next| one.end < next.start));
        let id = CapabilityId(self.0.fetch_add(1, Ordering::Relaxed));
        let name = CapabilityName { group: GroupId(1), id };
        let lasts = Duration::from_secs(60);
        Some(Minted { name, capability: Bytes::from_static(b"cap"), secret: [0; 32], lasts })
    }

    fn revoke(&self, _capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn clear(&self, _blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }

    fn void_all(&self) -> Acknowledged {
        Box::pin(std::future::ready(()))
    }
}

/// A metadata server, and who sends it calls.
pub(crate) struct Fuzzed {
    runtime: tokio::runtime::Runtime,
    engine: MemoryEngine,
    server: Arc<Dispatcher<Metadata>>,
    session: [u8; 16],
    sequence: u32,
    inputs: u32,
}

impl Fuzzed {
    /// Serves a small new volume.
    pub(crate) fn begin() -> Fuzzed {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let engine = MemoryEngine::new();
        volume::create(&engine, VolumeId([1; 16]), Time::default()).expect("it is empty");
        let new = NewDisk { id: [2; 16], address: "disk:1".into(), bytes: DISK_BYTES };
        volume::add_disk(&engine, &new).expect("it fits");
        let owned = volume::take(&engine).expect("there is a volume");
        let metadata = runtime.block_on(async {
            let (store, disks) = (Arc::new(engine.clone()), Arc::new(GoodDisks::default()));
            Metadata::start(store, owned, disks, Arc::new(RealClock), Options::default())
        });
        let mut config = Config::new(address());
        config.source_ports = SourcePorts::Any;
        let server = Arc::new(Dispatcher::new(config, metadata.expect("it starts")));
        Fuzzed { runtime, engine, server, session: [0; 16], sequence: 0, inputs: 0 }
    }

    /// Makes the calls of one input. Answers how many of them were successful.
    ///
    /// # Panics
    /// If a reply is none, or the volume is not as it should be.
    pub(crate) fn feed(&mut self, mut input: &[u8]) -> u32 {
        self.inputs += 1;
        if self.inputs > INPUTS_MAX {
            *self = Fuzzed::begin();
        }
        self.begin_session();
        let mut successful = 0;
        while let [procedure, count, rest @ ..] = input {
            let procedure = u32::from(*procedure) % meta::PROCEDURE_NAMES.len() as u32;
            let length = (2 * usize::from(*count % 40)).min(rest.len());
            let (words, rest) = rest.split_at(length);
            input = rest;
            let reply = self.call(procedure, |out, session, sequence| {
                if procedure != calls::Session::NUMBER {
                    out.put_fixed(&session);
                }
                if bears_sequence(procedure) {
                    [0, sequence].iter().for_each(|word| out.put_u32(*word));
                }
                words.chunks(2).for_each(|word| put(out, word));
            });
            successful += u32::from(reply.starts_with(&[0; 4]));
        }
        let faults = larder_meta::check(&self.engine).expect("it can be read");
        assert!(faults.is_empty(), "{faults:?}");
        successful
    }

    fn begin_session(&mut self) {
        let client = calls::Session { client: [1; 16], boot: 1, slots: 4 };
        let mut reply = self.call(calls::Session::NUMBER, |out, _, _| client.encode(out));
        let given = Res::<calls::SessionGiven>::decode(&mut reply).expect("a reply of SESSION");
        self.session = given.expect("a session").session.0;
    }

    /// Calls a procedure as the superuser. Answers its results, or nothing if it was refused.
    fn call(
        &mut self,
        procedure: u32,
        arguments: impl FnOnce(&mut Encoder, [u8; 16], u32),
    ) -> Bytes {
        self.sequence += 1;
        let mut out = Encoder::new(Framing::Datagram, 256);
        let groups = Array(vec![7]);
        let user = AuthSys { uid: self.sequence % 3, gid: 7, groups, ..AuthSys::default() };
        let header = CallHeader {
            xid: Xid(self.sequence),
            program: meta::PROGRAM,
            version: meta::VERSION,
            procedure,
            credential: Credential::Sys(user),
        };
        header.encode(&mut out);
        arguments(&mut out, self.session, self.sequence);
        let message = out.finish().to_bytes();
        let answered = Arc::clone(&self.server).answer(address(), message);
        let mut reply = self.runtime.block_on(answered).expect("a call is answered");
        assert!(reply.len() <= REPLY_BYTES_MAX + meta::XATTR_BYTES_MAX);
        let header = ReplyHeader::decode(&mut reply).expect("a reply has a header");
        assert_eq!(header.xid, Xid(self.sequence));
        reply
    }
}

/// Whether a call of a procedure has a place in a slot.
fn bears_sequence(procedure: u32) -> bool {
    let reads = [1, 2, 3, 4, 6, 9, 15, 21, 22, 23, 24, 26, 29, 31, 32, 33, 34];
    procedure != 0 && !reads.contains(&procedure)
}

/// A word of arguments: what it is, and which.
fn put(out: &mut Encoder, word: &[u8]) {
    let [what, which] = [word[0], word.get(1).copied().unwrap_or(0)];
    let which = u64::from(which);
    match what % 8 {
        // A file, an open file, a cookie.
        0 => out.put_u64(1 + which % 16),
        // Bytes, at blocks and beside them.
        1 => out.put_u64(which % 64 * 4096),
        2 => out.put_u64(which * 1000),
        3 => out.put_u64(u64::MAX / (which + 1)),
        // A name.
        4 => out.put_slice(&b"abcd.."[..1 + which as usize % 6]),
        5 => out.put_slice([&b"user."[..], b"trusted.x", b"a", b"b"][which as usize % 4]),
        6 => out.put_u32(which as u32 % 4),
        _ => out.put_u32(which as u32 * 37),
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 700))
}

/// What the fuzzer does, with bytes of a generator instead.
#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs, unless the variable `LARDER_META_INPUTS` says otherwise.
    const INPUTS: u64 = 400;

    #[test]
    fn a_metadata_server_outlives_calls_that_nobody_meant() {
        let inputs = std::env::var("LARDER_META_INPUTS")
            .map_or(INPUTS, |inputs| inputs.parse().expect("a number"));
        let (mut fuzzed, mut successful) = (Fuzzed::begin(), 0);
        for seed in 0..inputs {
            // Where a test fails, its output is shown.
            println!("seed {seed}");
            let mut state = seed;
            let mut byte = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let input: Vec<u8> = (0..400).map(|_| byte()).collect();
            successful += fuzzed.feed(&input);
        }
        assert!(u64::from(successful) > inputs, "{successful} calls did something");
    }
}
