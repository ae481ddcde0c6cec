//! One input of the fuzzer `meta_request`: calls to a metadata server, of which only the RPC
//! header, the session and the sequence are sure to be valid. Whatever they are, they are answered
//! with a reply that can be decoded, the server continues, and its volume has no faults. The fuzzer
//! includes this file, so it stands alone.
//!
//! An input is a sequence of calls of two clients: a byte for the procedure and the client, a byte
//! for the number of words that follow, and the words. The arguments are made of them in one of two
//! ways: each word becomes a value, which may or may not be of the right type; or all values are of
//! the right type, taken from the server's replies, and the words select them. Absent: leases and
//! waiting for locks, which need a connection on which the server can call; their state machines
//! are tested by themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use disks::GoodDisks;
use larder_io::RealClock;
use larder_meta::engine::memory::MemoryEngine;
use larder_meta::volume::{self, NewDisk};
use larder_meta::{Metadata, Options};
use larder_rpc::server::{Config, Dispatcher, SourcePorts};
use larder_wire::Procedure;
use larder_wire::capability::{DiskId, Mode, VolumeId};
use larder_wire::meta::words::{
    ByteRange, Dentry, Extent, FileId, IfExists, Kind, Layout, LeaseKind, LeaseNumber, LockChange,
    LockMode, Medium, Merged, MergedFrom, Name, Near, OpenId, Returned, Sequence, SessionId,
    SetAttributes, SetTime, Time, WaiterNumber, Written,
};
use larder_wire::meta::{self, BLOCK_BYTES, DISKS_MAX, RANGES_MAX, Res, calls};
use larder_wire::rpc::{AuthSys, CallHeader, Credential, ReplyHeader, Xid};
use larder_wire::xdr::{Array, Decode, Encode, Encoder, Framing, Opaque};
use words::anything;

#[path = "fuzz_disks.rs"]
mod disks;
#[path = "fuzz_words.rs"]
mod words;

/// Inputs after which the volume is made anew, so that what they made there does not accumulate.
const INPUTS_MAX: u32 = 500;
/// Bytes of the volume's disk.
const DISK_BYTES: u64 = 64 * 4096;
/// Longest reply, in bytes: that of a datagram.
const REPLY_BYTES_MAX: usize = 65_507;
/// Open files and extents that are remembered.
const KNOWN_MAX: usize = 32;

/// A metadata server, and the clients that send it calls.
pub(crate) struct Fuzzed {
    runtime: tokio::runtime::Runtime,
    engine: MemoryEngine,
    server: Arc<Dispatcher<Metadata>>,
    sessions: [SessionId; 2],
    /// Open files from the server's replies, the latest first.
    opens: Vec<(FileId, OpenId)>,
    last: FileId,
    extents: Vec<(FileId, Extent)>,
    sequence: u32,
    inputs: u32,
}

impl Fuzzed {
    /// Serves a small new volume.
    pub(crate) fn begin() -> Fuzzed {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let engine = MemoryEngine::new();
        volume::create(&engine, VolumeId([1; 16]), 1, Time::default()).expect("it is empty");
        let new =
            NewDisk { id: [2; 16], address: "disk:1".into(), bytes: DISK_BYTES, is_memory: false };
        volume::add_disk(&engine, &new).expect("it fits");
        // Changes of volatile objects are late.
        engine.let_be_late();
        volume::add_disk(&engine, &NewDisk { is_memory: true, ..new }).expect("it fits");
        let owned = volume::take(&engine).expect("there is a volume");
        let metadata = runtime.block_on(async {
            let (store, disks) = (Arc::new(engine.clone()), Arc::new(GoodDisks::default()));
            Metadata::start(store, owned, disks, Arc::new(RealClock), Options::default())
        });
        let mut config = Config::new(address());
        config.source_ports = SourcePorts::Any;
        let server = Arc::new(Dispatcher::new(config, metadata.expect("it starts")));
        let sessions = [SessionId([0; 16]); 2];
        let (opens, extents) = (Vec::new(), Vec::new());
        Fuzzed {
            runtime,
            engine,
            server,
            sessions,
            opens,
            last: FileId::ROOT,
            extents,
            sequence: 0,
            inputs: 0,
        }
    }

    /// Makes the calls of one input. Returns the procedures of those that succeeded.
    ///
    /// # Panics
    /// If a reply cannot be decoded, or the volume has faults.
    pub(crate) fn feed(&mut self, mut input: &[u8]) -> Vec<u32> {
        self.inputs += 1;
        if self.inputs > INPUTS_MAX {
            *self = Fuzzed::begin();
        }
        self.begin_sessions();
        let mut successful = Vec::new();
        while let [first, count, rest @ ..] = input {
            // Bits 6 and 7 of the first byte: which client, and which way of making arguments.
            let procedure = u32::from(first % 64) % meta::PROCEDURE_NAMES.len() as u32;
            let who = usize::from(*first >> 6 & 1);
            let length = (2 * usize::from(*count % 40)).min(rest.len());
            let (words, rest) = rest.split_at(length);
            input = rest;
            let session = self.sessions[who];
            let sequence = Sequence { session, slot: 0, sequence: self.sequence + 1 };
            let arguments = if first >> 7 == 1 {
                self.meant(procedure, sequence, words)
            } else {
                encoded(|out| anything(out, procedure, sequence, words))
            };
            let reply = self.call(procedure, &arguments);
            successful.extend(reply.starts_with(&[0; 4]).then_some(procedure));
            self.learn(who, procedure, reply);
        }
        let faults = larder_meta::check(&self.engine).expect("it can be read");
        assert!(faults.is_empty(), "{faults:?}");
        successful
    }

    /// Both clients have sessions at the beginning of each input, whatever the one before has
    /// ended.
    fn begin_sessions(&mut self) {
        for who in 0..2 {
            let client = calls::Session { client: [1 + who as u8; 16], boot: 1, slots: 4 };
            let arguments = encoded(|out| client.encode(out));
            let mut reply = self.call(calls::Session::NUMBER, &arguments);
            let given = Res::<calls::SessionGiven>::decode(&mut reply).expect("a reply of SESSION");
            self.sessions[who] = given.expect("a session").session;
        }
    }

    /// Remembers the contents of a reply.
    fn learn(&mut self, who: usize, procedure: u32, mut reply: Bytes) {
        if procedure == calls::Session::NUMBER
            && let Ok(Ok(given)) = Res::<calls::SessionGiven>::decode(&mut reply.clone())
        {
            self.sessions[who] = given.session;
        }
        let layout = match procedure {
            calls::Open::NUMBER => match Res::<calls::Opened>::decode(&mut reply) {
                Ok(Ok(opened)) => {
                    self.opens.insert(0, (opened.file.after.file, opened.open));
                    self.last = self.last.max(opened.file.after.file);
                    Some((opened.file.after.file, opened.layout))
                }
                _ => None,
            },
            calls::MkDir::NUMBER
            | calls::Symlink::NUMBER
            | calls::MkNod::NUMBER
            | calls::Make::NUMBER => {
                if let Ok(Ok(made)) = Res::<calls::Made>::decode(&mut reply) {
                    self.last = self.last.max(made.made.file);
                }
                None
            }
            calls::GetCaps::NUMBER | calls::Alloc::NUMBER | calls::AllocNear::NUMBER => {
                let given = Res::<calls::LayoutGiven>::decode(&mut reply);
                given.ok().and_then(Result::ok).map(|given| (given.attributes.file, given.layout))
            }
            _ => None,
        };
        if let Some((file, Layout { extents, .. })) = layout {
            self.extents.splice(0..0, extents.0.into_iter().map(|extent| (file, extent)));
        }
        self.opens.truncate(KNOWN_MAX);
        self.extents.truncate(KNOWN_MAX);
    }

    /// Arguments of a procedure that could be meant.
    fn meant(&self, procedure: u32, sequence: Sequence, words: &[u8]) -> Vec<u8> {
        let session = sequence.session;
        let mut from = Source { words, known: self };
        match procedure {
            calls::Open::NUMBER
            | calls::Close::NUMBER
            | calls::SetAttr::NUMBER
            | calls::Alloc::NUMBER
            | calls::AllocNear::NUMBER
            | calls::Preallocate::NUMBER
            | calls::Punch::NUMBER
            | calls::CommitExtents::NUMBER
            | calls::GetCaps::NUMBER
            | calls::Destage::NUMBER
            | calls::Archive::NUMBER
            | calls::Look::NUMBER => from.of_data(procedure, sequence),
            calls::Lock::NUMBER
            | calls::TestLock::NUMBER
            | calls::AwaitLock::NUMBER
            | calls::ForgoLock::NUMBER
            | calls::LocksClaimed::NUMBER
            | calls::ReturnLease::NUMBER => from.of_locks(procedure, sequence),
            calls::GetXattr::NUMBER => {
                let (file, name) = (from.data_file(), from.xattr());
                bytes(&calls::GetXattr { session, file, name })
            }
            calls::SetXattr::NUMBER => {
                let (file, name) = (from.data_file(), from.xattr());
                let value = Opaque(Bytes::from(vec![7; usize::from(from.next()) * 260]));
                let if_set = [calls::IfSet::Either, calls::IfSet::Create, calls::IfSet::Replace];
                let if_set = if_set[usize::from(from.next() % 3)];
                bytes(&calls::SetXattr { sequence, file, name, value, if_set })
            }
            calls::RemoveXattr::NUMBER => {
                let (file, name) = (from.data_file(), from.xattr());
                bytes(&calls::RemoveXattr { sequence, file, name })
            }
            _ => from.of_names(procedure, sequence),
        }
    }

    /// Calls a procedure as one of three users. Returns its results, or nothing if it was refused.
    fn call(&mut self, procedure: u32, arguments: &[u8]) -> Bytes {
        self.sequence += 1;
        let mut out = Encoder::new(Framing::Datagram, 256);
        let groups = Array(vec![7]);
        let uid = [0, 0, 0, 0, 0, 0, 1, 2][self.sequence as usize % 8];
        let user = AuthSys { uid, gid: 7, groups, ..AuthSys::default() };
        let header = CallHeader {
            xid: Xid(self.sequence),
            program: meta::PROGRAM,
            version: meta::VERSION,
            procedure,
            credential: Credential::Sys(user),
        };
        header.encode(&mut out);
        out.put_fixed(arguments);
        let message = out.finish().to_bytes();
        let answered = Arc::clone(&self.server).answer(address(), message);
        let mut reply = self.runtime.block_on(answered).expect("a call is answered");
        assert!(reply.len() <= REPLY_BYTES_MAX + meta::XATTR_BYTES_MAX);
        let header = ReplyHeader::decode(&mut reply).expect("a reply has a header");
        assert_eq!(header.xid, Xid(self.sequence));
        reply
    }
}

/// Valid arguments, chosen by bytes of an input; zeros after its end.
struct Source<'a> {
    words: &'a [u8],
    known: &'a Fuzzed,
}

impl Source<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.words.split_first() else { return 0 };
        self.words = rest;
        *first
    }

    fn is(&mut self) -> bool {
        self.next() % 2 == 1
    }

    /// The root, or one of the last.
    fn file(&mut self) -> FileId {
        match u64::from(self.next()) {
            which if which % 2 == 0 => FileId::ROOT,
            which => FileId(self.known.last.0.saturating_sub(which / 2 % 16)),
        }
    }

    /// Something that has data, if there is one.
    fn data_file(&mut self) -> FileId {
        let (opens, which) = (&self.known.opens, usize::from(self.next()));
        let known = opens.get(which % (opens.len() + 1));
        known.map_or_else(|| self.file(), |(file, _)| *file)
    }

    /// A file with one of its opens, with none, or with one that may belong to another file.
    fn opened(&mut self) -> (FileId, OpenId) {
        let (opens, which) = (&self.known.opens, usize::from(self.next()));
        let known = opens.get(which / 4 % opens.len().max(1)).copied();
        let (file, open) = known.unwrap_or((FileId::ROOT, OpenId::NONE));
        match which % 4 {
            0 => (self.data_file(), open),
            1 => (self.data_file(), OpenId::NONE),
            _ => (file, open),
        }
    }

    fn one_of<const N: usize>(&mut self, names: [&'static str; N]) -> Name {
        let name = names[usize::from(self.next()) % N];
        Name::new(Bytes::from_static(name.as_bytes())).expect("a name")
    }

    fn name(&mut self) -> Name {
        self.one_of(["a", "b", "c", "d", "e", "f", ".", ".."])
    }

    fn xattr(&mut self) -> Name {
        self.one_of(["user.a", "user.b", "trusted.a", "security.a", "a", "system.a"])
    }

    fn dentry(&mut self) -> Dentry {
        Dentry { dir: self.file(), name: self.name() }
    }

    /// Around blocks, the ends of files and the largest file.
    fn range(&mut self) -> ByteRange {
        let (start, length) = (u64::from(self.next()), u64::from(self.next()));
        let offset = match start % 8 {
            7 => meta::FILE_BYTES_MAX - start * 512,
            6 => start * 1000,
            _ => start / 8 * BLOCK_BYTES,
        };
        let length = if length % 4 == 3 { length * 1000 } else { length / 16 * BLOCK_BYTES };
        ByteRange { offset, length }
    }

    fn mode(&mut self) -> Mode {
        [Mode::Read, Mode::Write, Mode::ReadWrite][usize::from(self.next() % 3)]
    }

    fn medium(&mut self) -> Medium {
        if self.is() { Medium::Memory(u32::from(self.next() % 3)) } else { Medium::Disk }
    }

    fn time(&mut self) -> Time {
        let seconds = i64::from(self.next());
        Time { seconds, nanoseconds: u32::from(self.next()) << 22 }
    }

    fn set(&mut self) -> SetAttributes {
        let which = self.next();
        let has = |bit: u8| which >> bit & 1 == 1;
        let mode = u32::from(self.next()) << 4 | 7;
        let times = [SetTime::Keep, SetTime::Now, SetTime::To(self.time())];
        SetAttributes {
            mode: has(0).then_some(mode),
            uid: has(1).then_some(u32::from(self.next() % 3)),
            gid: has(2).then_some(7),
            size: has(3).then(|| self.range().offset),
            atime: times[usize::from(which >> 4) % 3],
            mtime: times[usize::from(which >> 6) % 3],
        }
    }

    fn lock(&mut self) -> Option<LockMode> {
        [None, Some(LockMode::Shared), Some(LockMode::Exclusive)][usize::from(self.next() % 3)]
    }

    fn changes(&mut self) -> calls::LockChanges {
        let changes = 0..self.next() % 5;
        Array(changes.map(|_| LockChange { range: self.range(), mode: self.lock() }).collect())
    }

    /// A part of an extent from the server's replies, more often of the latest one, or not quite.
    fn written(&mut self) -> Option<(FileId, Written)> {
        let (extents, which) = (&self.known.extents, usize::from(self.next()));
        let (file, extent) = *extents.get(which.saturating_sub(128) % extents.len().max(1))?;
        let Extent { offset, length, disk, position, .. } = extent;
        let cut = u64::from(self.next());
        let (skip, length) = match cut % 4 {
            0 => (0, length),
            1 => (0, length.min(cut * 64 + 1)),
            2 => (cut / 4 % 8 * BLOCK_BYTES, BLOCK_BYTES),
            _ => (cut, length),
        };
        Some((file, Written { offset: offset + skip, length, disk, position: position + skip }))
    }

    /// The disks that have it, or not quite.
    fn copies(&mut self, written: &Array<Written, RANGES_MAX>) -> Array<DiskId, DISKS_MAX> {
        let copies = written.0.iter().map(|one| one.disk).filter(|_| self.next() > 20);
        Array(copies.collect())
    }

    /// Sometimes the first block is merged, with anything.
    fn merged(&mut self, written: &Array<Written, RANGES_MAX>) -> Array<Merged, RANGES_MAX> {
        let first = written.0.first().filter(|_| self.next() > 200);
        let merged = first.map(|one| {
            let Written { offset, disk, position, .. } = *one;
            let length = u32::from(self.next()) * 32;
            let from = self.is().then_some(MergedFrom { disk, position, length });
            Merged { offset: offset / BLOCK_BYTES * BLOCK_BYTES, from }
        });
        Array(merged.into_iter().collect())
    }

    fn alloc(&mut self, procedure: u32, alloc: calls::Alloc) -> Vec<u8> {
        if procedure == calls::Alloc::NUMBER {
            return bytes(&alloc);
        }
        let (count, disk) = (self.next() % 3, DiskId(u32::from(self.next() % 4)));
        let near = (0..count).map(|_| Near { range: self.range(), disk }).collect();
        bytes(&calls::AllocNear { alloc, near: Array(near) })
    }

    fn of_data(&mut self, procedure: u32, sequence: Sequence) -> Vec<u8> {
        let (session, (file, open)) = (sequence.session, self.opened());
        let lease = [LeaseKind::None, LeaseKind::Read, LeaseKind::Write];
        match procedure {
            calls::Open::NUMBER => {
                let what = match self.next() % 4 {
                    0 => calls::OpenWhat::File(self.data_file()),
                    1 => calls::OpenWhat::Name(self.dentry()),
                    _ => calls::OpenWhat::Create(calls::Create {
                        dentry: self.dentry(),
                        set: self.set(),
                        if_exists: [IfExists::Open, IfExists::Fail][usize::from(self.next() / 200)],
                    }),
                };
                let (mode, lease) = (self.mode(), lease[usize::from(self.next() % 3)]);
                let (range, allocate) = (self.range(), self.is().then(|| self.medium()));
                bytes(&calls::Open { sequence, what, mode, lease, range, allocate })
            }
            calls::Close::NUMBER => {
                let opens = Array(vec![open; (self.next() % 4) as usize]);
                bytes(&calls::Close { sequence, opens })
            }
            calls::SetAttr::NUMBER => {
                let set = self.set();
                let guard = self.is().then(|| self.time());
                bytes(&calls::SetAttr { sequence, file, open, set, guard })
            }
            calls::Preallocate::NUMBER | calls::Punch::NUMBER => {
                bytes(&calls::Punch { sequence, file, open, range: self.range() })
            }
            calls::Alloc::NUMBER | calls::AllocNear::NUMBER => {
                let (range, medium) = (self.range(), self.medium());
                self.alloc(procedure, calls::Alloc { sequence, file, open, range, medium })
            }
            calls::CommitExtents::NUMBER => {
                let parts = 0..1 + self.next() / 100;
                let written: Vec<_> = parts.filter_map(|_| self.written()).collect();
                let file = written.first().map_or(file, |(file, _)| *file);
                let open = [OpenId::NONE, open][usize::from(self.is())];
                let written = Array(written.into_iter().map(|(_, written)| written).collect());
                bytes(&calls::CommitExtents {
                    sequence,
                    file,
                    open,
                    copies: self.copies(&written),
                    merged: self.merged(&written),
                    written,
                    mtime: self.is().then(|| self.time()),
                    all: self.next() > 200,
                    on_way: self.next() > 200,
                    due_ms: Some(u32::from(self.next()) * 100),
                    archive_ms: Some(u32::from(self.next()) * 100),
                })
            }
            calls::Destage::NUMBER => bytes(&calls::Destage { session, file, due_ms: 0 }),
            calls::Archive::NUMBER => bytes(&calls::Archive { session, file, within_ms: Some(9) }),
            calls::GetCaps::NUMBER => {
                let (mode, range) = (self.mode(), self.range());
                bytes(&calls::GetCaps { session, file, open, mode, range })
            }
            _ => {
                let at = match self.is() {
                    true => calls::LookAt::File(self.data_file()),
                    false => calls::LookAt::Name(self.dentry()),
                };
                let lease = lease[usize::from(self.next() % 3)];
                bytes(&calls::Look { session, at, lease, range: self.range() })
            }
        }
    }

    fn of_locks(&mut self, procedure: u32, sequence: Sequence) -> Vec<u8> {
        let session = sequence.session;
        let (file, number) = (self.data_file(), WaiterNumber(u64::from(self.next() % 4)));
        match procedure {
            calls::Lock::NUMBER => {
                bytes(&calls::Lock { sequence, file, changes: self.changes(), claim: self.is() })
            }
            calls::TestLock::NUMBER => {
                let (range, mode) = (self.range(), self.lock().unwrap_or(LockMode::Shared));
                bytes(&calls::TestLock { session, file, range, mode })
            }
            calls::AwaitLock::NUMBER => {
                bytes(&calls::AwaitLock { session, file, number, changes: self.changes() })
            }
            calls::ForgoLock::NUMBER => bytes(&calls::ForgoLock { session, file, number }),
            calls::LocksClaimed::NUMBER => bytes(&calls::LocksClaimed { session }),
            _ => {
                let (number, keep) = (LeaseNumber(u64::from(self.next())), LeaseKind::None);
                let returned = Returned { file, number, keep };
                bytes(&calls::ReturnLease { sequence, returned: Array(vec![returned; 2]) })
            }
        }
    }

    fn of_names(&mut self, procedure: u32, sequence: Sequence) -> Vec<u8> {
        let session = sequence.session;
        let (file, dentry) = (self.file(), self.dentry());
        match procedure {
            calls::Session::NUMBER => {
                let boot = u64::from(self.next() % 3);
                bytes(&calls::Session { client: [1 + self.next() % 2; 16], boot, slots: 4 })
            }
            calls::Renew::NUMBER => bytes(&calls::Renew { session }),
            calls::EndSession::NUMBER => bytes(&calls::EndSession { session }),
            calls::GetAttr::NUMBER => bytes(&calls::GetAttr { session, file }),
            calls::Lookup::NUMBER => bytes(&calls::Lookup { session, dentry }),
            calls::MkDir::NUMBER => bytes(&calls::MkDir { sequence, dentry, set: self.set() }),
            calls::Symlink::NUMBER => {
                let target = Opaque(Bytes::from(vec![b'x'; 16 * usize::from(self.next())]));
                bytes(&calls::Symlink { sequence, dentry, target, set: self.set() })
            }
            calls::ReadLink::NUMBER => bytes(&calls::ReadLink { session, file }),
            calls::ListXattr::NUMBER => bytes(&calls::ListXattr { session, file }),
            calls::Lost::NUMBER => {
                bytes(&calls::Lost { session, look: self.is(), since: 0, after: file })
            }
            calls::MkNod::NUMBER => {
                let (kind, set) =
                    ([Kind::Fifo, Kind::Directory][usize::from(self.is())], self.set());
                let device = larder_wire::meta::words::Device { major: 1, minor: 3 };
                bytes(&calls::MkNod { sequence, dentry, kind, device, set })
            }
            calls::Make::NUMBER => {
                let kind = [Kind::Fifo, Kind::File][usize::from(self.is())];
                let device = larder_wire::meta::words::Device { major: 1, minor: 3 };
                let what = match self.next() % 3 {
                    0 => calls::MakeWhat::Directory,
                    1 => calls::MakeWhat::Symlink("x".into()),
                    _ => calls::MakeWhat::Special(calls::Special { kind, device }),
                };
                let (set, medium) = (self.set(), self.medium());
                bytes(&calls::Make { sequence, dentry, what, set, medium })
            }
            calls::Link::NUMBER => bytes(&calls::Link { sequence, file, dentry }),
            calls::Remove::NUMBER => bytes(&calls::Remove { sequence, dentry }),
            calls::RmDir::NUMBER => bytes(&calls::RmDir { sequence, dentry }),
            calls::Rename::NUMBER => {
                let (to, keep) = (self.dentry(), self.is());
                bytes(&calls::Rename { sequence, from: dentry, to, keep })
            }
            calls::ReadDir::NUMBER => {
                let (cookie, bytes_max) = (u64::from(self.next()), u32::from(self.next()) * 64);
                let attributes = self.is();
                bytes(&calls::ReadDir { session, dir: file, cookie, bytes_max, attributes })
            }
            calls::Access::NUMBER => bytes(&calls::Access { session, file, wanted: 63 }),
            _ => bytes(&calls::FsStat { session }),
        }
    }
}

fn bytes(call: &impl Encode) -> Vec<u8> {
    encoded(|out| call.encode(out))
}

fn encoded(encode: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut out = Encoder::default();
    encode(&mut out);
    out.finish().to_bytes().into()
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 700))
}

/// The fuzzer's work, with bytes of a generator instead.
#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Inputs, unless the variable `LARDER_META_INPUTS` says otherwise.
    const INPUTS: u64 = 2000;

    #[test]
    fn a_metadata_server_survives_random_calls() {
        let inputs = std::env::var("LARDER_META_INPUTS")
            .map_or(INPUTS, |inputs| inputs.parse().expect("a number"));
        let (mut fuzzed, mut successful) = (Fuzzed::begin(), BTreeSet::new());
        for seed in 0..inputs {
            // Where a test fails, its output is shown.
            println!("seed {seed}");
            let mut state = seed; // splitmix64
            let mut byte = || {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
            };
            let input: Vec<u8> = (0..1200).map(|_| byte()).collect();
            successful.extend(fuzzed.feed(&input));
        }
        // All except NULL, which returns nothing, and AWAIT_LOCK, for clients that can be called.
        let mut all: BTreeSet<u32> = (1..meta::PROCEDURE_NAMES.len() as u32).collect();
        all.remove(&calls::AwaitLock::NUMBER);
        assert_eq!(successful, all, "procedures that did something");
    }
}
