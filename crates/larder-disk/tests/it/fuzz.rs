//! One input of the fuzzer `disk_request`: arbitrary bytes, sent to a disk. Whatever they are, they
//! are answered with a reply that can be decoded, or not at all; bytes that the sender has no
//! capability for stay as they are, and sessions stay bounded. The fuzzer includes this file, so it
//! stands alone.
//!
//! The first byte of an input chooses who sends the rest: a stranger, as a whole message or as
//! arguments of a call; a client with a session, as the part after a valid capability in a head,
//! and data, under a valid seal; the metadata server, as the head of an order, under a valid seal.
//! The second byte chooses the procedure, of all that there are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_io::{MemDisk, SimClock};
use larder_rpc::server::{Config as ServerConfig, Dispatcher, SourcePorts};
use larder_wire::Procedure;
use larder_wire::capability::{
    Capability, CapabilityId, DiskId, Extent, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};
use larder_wire::disk::session::{Granted, Hailing, Session};
use larder_wire::disk::words::{
    EpochHead, GroupReplaceHead, Head, Origin, RefreshHead, Trust, WriteFromHead,
};
use larder_wire::rpc::{Credential, Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::seal::{MasterKey, Setup};
use larder_wire::xdr::{Decode, Encode, Encoder, Framing, XdrError, to_segments};

/// Inputs after which the disk is made anew, so that what they made there does not accumulate.
const INPUTS_MAX: u32 = 5000;
const SIZE: u64 = 64 * 4096;
/// Most sessions that a disk has here.
const SESSIONS_MAX: usize = 64;
/// More than a disk waits for anything.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes that only the store's owner can write, at the beginning of the disk.
const CANARY: &[u8] = b"nobody has a capability for this";
/// The bytes that the client may read and write.
const OURS: u64 = 16 * 4096;
/// How many procedures a disk has.
const PROCEDURES: u8 = larder_wire::disk::PROCEDURE_NAMES.len() as u8;
/// Longest reply to be expected: all that a READ can ask for, and some.
const REPLY_BYTES_MAX: usize = (1 << 20) + 4096;

/// A disk, and the senders of messages.
pub(crate) struct Fuzzed {
    runtime: tokio::runtime::Runtime,
    device: Arc<Device>,
    service: Arc<Dispatcher<DiskService>>,
    clock: Arc<SimClock>,
    control: Session,
    client: Session,
    granted: Granted,
    /// For a source of WRITE_FROM: to read the same bytes.
    source: Granted,
    inputs: u32,
}

/// A head with arbitrary bytes.
struct Raw<const NUMBER: u32>(Bytes);

impl<const NUMBER: u32> Encode for Raw<NUMBER> {
    fn encode(&self, out: &mut Encoder) {
        out.put_fixed(&self.0);
    }
}

impl<const NUMBER: u32> Decode for Raw<NUMBER> {
    fn decode(input: &mut Bytes) -> Result<Self, XdrError> {
        Ok(Raw(std::mem::take(input)))
    }
}

impl<const NUMBER: u32> Head for Raw<NUMBER> {
    const NUMBER: u32 = NUMBER;
    type Done = Raw<NUMBER>;
}

fn master() -> MasterKey {
    MasterKey::new([5; 32])
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 700))
}

/// The message of a call.
fn message<P: Procedure>(args: &P) -> Bytes {
    encode_call(Xid(7), &Credential::None, args, Framing::Datagram).to_bytes()
}

impl Fuzzed {
    /// A disk that has all that it needs from the metadata server, with a client that has a
    /// capability for a part of it.
    pub(crate) fn begin() -> Fuzzed {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (volume, disk) = (VolumeId([7; 16]), DiskId(1));
        let identity = Identity { volume, disk, setup: Setup::Secure };
        let store = Store::open(&MemDisk::new(), "disk", &identity, SIZE).expect("a store");
        let clock = Arc::new(SimClock::new());
        let own = Arc::clone(&clock);
        let config = Config::new(identity, master(), own);
        let config = Config { sessions_max: SESSIONS_MAX, ..config };
        let device = Arc::new(Device::start(config, store));
        let mut server = ServerConfig::new(address());
        server.source_ports = SourcePorts::Any;
        let service = DiskService::new(Arc::clone(&device));
        let service = Arc::new(Dispatcher::new(server, service));
        let call = |message| runtime.block_on(Arc::clone(&service).answer(address(), message));

        let (hello, hailing) = Hailing::control(&master(), volume, disk, 1, [1; 32], None);
        let control = welcomed(call(message(&hello)), hailing);
        let order = |message| drop(call(message));
        let (epoch, _) =
            control.order(&EpochHead { key: KeyEpoch(1) }, Bytes::new()).expect("a number");
        order(message(&epoch));
        let group = GroupReplaceHead { victim: None, group: GroupId(1) };
        order(message(&control.order(&group, Bytes::new()).expect("a number").0));
        let trust = Some(Trust { boot: control.boot(), until_ms: u64::MAX });
        let (refresh, _) = control.order(&RefreshHead { trust }, Bytes::new()).expect("a number");
        order(message(&refresh));

        let extents = vec![Extent::new(OURS, SIZE - OURS).expect("an extent")];
        let capability = Capability {
            volume,
            disk,
            boot: control.boot(),
            key: KeyEpoch(1),
            group: GroupId(1),
            id: CapabilityId(1),
            mode: Mode::ReadWrite,
            expiry_ms: u64::MAX,
            extents: Extents::new(extents).expect("one extent"),
        };
        let reading = Capability { id: CapabilityId(2), mode: Mode::Read, ..capability.clone() };
        let source = Granted::mint(&master(), reading);
        let granted = Granted::mint(&master(), capability);
        let (hello, hailing) = Hailing::client(&granted, [2; 32], None);
        let client = welcomed(call(message(&hello)), hailing);
        Fuzzed { runtime, device, service, clock, control, client, granted, source, inputs: 0 }
    }

    /// Sends what one input says; returns the results, after the RPC header, if there are any.
    ///
    /// # Panics
    /// If a reply cannot be decoded, or something has changed that the sender cannot change.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Option<Bytes> {
        self.inputs += 1;
        if self.inputs > INPUTS_MAX {
            *self = Fuzzed::begin();
        }
        self.device.store().write(0, CANARY).expect("a store in memory");
        let (kind, rest) = input.split_first()?;
        let is_owner = kind % 4 == 3;
        let message = self.message(kind % 4, rest)?;
        let reply = self.runtime.block_on(async {
            let answer = Arc::clone(&self.service).answer(address(), message);
            // A request that waits for something to be written waits in vain.
            let waits_in_vain = async {
                self.clock.asleep(1).await;
                self.clock.advance(WAIT_MAX);
                std::future::pending::<()>().await;
            };
            tokio::select! { reply = answer => reply, () = waits_in_vain => None }
        });
        let canary = Extent::new(0, CANARY.len() as u64).expect("an extent");
        let found = self.device.store().read(canary).expect("a store in memory");
        assert!(is_owner || found == CANARY, "somebody has written over it");
        assert!(self.device.sessions() <= SESSIONS_MAX + 8);
        let mut reply = reply?;
        assert!(reply.len() <= REPLY_BYTES_MAX, "{} bytes", reply.len());
        let header = ReplyHeader::decode(&mut reply).expect("a reply has a header");
        (header.outcome == Outcome::Success).then_some(reply)
    }

    fn message(&self, kind: u8, rest: &[u8]) -> Option<Bytes> {
        if kind == 0 {
            return Some(Bytes::copy_from_slice(rest));
        }
        let (procedure, rest) = rest.split_first()?;
        let rest = Bytes::copy_from_slice(rest);
        Some(match (kind, procedure % PROCEDURES) {
            (1, procedure) => stranger(u32::from(procedure), &rest),
            (2, _) => match called_by_client(*procedure) {
                2 => self.client::<2>(rest),
                3 => self.client::<3>(rest),
                4 => self.client::<4>(rest),
                13 => self.write_from(&rest),
                _ => self.client::<10>(rest),
            },
            (_, 5) => self.control::<5>(rest),
            (_, 6) => self.control::<6>(rest),
            (_, 7) => self.control::<7>(rest),
            (_, 8) => self.control::<8>(rest),
            (_, 9) => self.control::<9>(rest),
            (_, 10) => self.control::<10>(rest),
            (_, 12) => self.control::<12>(rest),
            (_, 13) => self.control::<13>(rest),
            (_, _) => self.control::<11>(rest),
        })
    }

    /// A request of the client: its capability, then the bytes of the input; if its first byte is
    /// even, as a position near the beginning of the client's bytes, followed by data.
    fn client<const NUMBER: u32>(&self, rest: Bytes) -> Bytes {
        let mut head = to_segments(&self.granted.capability).to_bytes().to_vec();
        let data = match (NUMBER, &rest[..]) {
            (2 | 3, [shape, place, number, data @ ..]) if shape % 2 == 0 => {
                let offset = OURS - 64 + u64::from(*place);
                head.extend(offset.to_be_bytes());
                head.extend([0, 0, 0, *number]);
                if NUMBER == 2 { &[] } else { data }
            }
            (4, [shape, ..]) if shape % 2 == 0 => &[],
            (_, bytes) => {
                let (more, data) = bytes.split_at(bytes.len().min(16));
                head.extend(more);
                data
            }
        };
        let (head, data) = (Raw::<NUMBER>(head.into()), Bytes::copy_from_slice(data));
        message(&self.client.ask(&self.granted.secret, &head, data).expect("a number").0)
    }

    /// A WRITE_FROM of the client: if the first byte of the input is even, between positions near
    /// the beginning of the client's bytes, with a proof that is right; otherwise with the bytes of
    /// the input around the capability of the source.
    fn write_from(&self, rest: &Bytes) -> Bytes {
        let (client, secret) = (&self.client, &self.granted.secret);
        if let [shape, place, from, number, data @ ..] = &rest[..]
            && shape % 2 == 0
        {
            let Granted { capability, secret: proves } = &self.source;
            // Rarely before the client's bytes, or nothing would ever be copied.
            let offset = OURS - 4 + u64::from(*from);
            let source = Origin { capability: capability.clone(), offset, proof: [0; 32] };
            let mut head = WriteFromHead {
                capability: self.granted.capability.clone(),
                offset: OURS - 64 + u64::from(*place),
                stable: number % 2 == 0,
                length: u32::from(*number),
                source,
            };
            head.source.proof = proves.sign_source(&head.claim());
            let data = if shape % 16 == 2 { Bytes::copy_from_slice(data) } else { Bytes::new() };
            return message(&client.ask(secret, &head, data).expect("a number").0);
        }
        let (before, after) = rest.split_at(rest.len().min(16));
        let after = &after[..after.len().min(64)];
        let [target, source] = [&self.granted, &self.source]
            .map(|granted| to_segments(&granted.capability).to_bytes());
        let head = [&target[..], before, &source[..], after].concat();
        let head = Raw::<13>(head.into());
        message(&client.ask(secret, &head, Bytes::new()).expect("a number").0)
    }

    fn control<const NUMBER: u32>(&self, rest: Bytes) -> Bytes {
        let head = Raw::<NUMBER>(rest.slice(..rest.len().min(1024)));
        message(&self.control.order(&head, Bytes::new()).expect("a number").0)
    }
}

/// The procedure that the second byte of a client's input stands for: one of a client's, or CLEAR,
/// which it may not call.
fn called_by_client(byte: u8) -> u32 {
    match byte % PROCEDURES {
        2 | 5 => 2,
        3 | 6 => 3,
        4 | 7 => 4,
        8 | 13 => 13,
        _ => 10,
    }
}

/// A session, from the disk's answer to a valid handshake.
fn welcomed(reply: Option<Bytes>, hailing: Hailing) -> Session {
    let mut reply = reply.expect("a reply");
    ReplyHeader::decode(&mut reply).expect("a reply has a header");
    // Zero: it was carried out.
    u32::decode(&mut reply).expect("a status");
    hailing.welcomed(&Decode::decode(&mut reply).expect("a welcome")).expect("a genuine one")
}

/// A call whose RPC header is good.
fn stranger(procedure: u32, arguments: &[u8]) -> Bytes {
    let mut out = Encoder::new(Framing::Datagram, 64 + arguments.len());
    let program = larder_wire::disk::PROGRAM;
    for unit in [7, 0, 2, program, larder_wire::disk::VERSION, procedure, 0, 0, 0, 0] {
        out.put_u32(unit);
    }
    out.put_fixed(arguments);
    out.finish().to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A xorshift generator: the same inputs each time, unless a seed is given.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// Mostly small numbers, as those that lengths and discriminants are.
        fn input(&mut self, kind: u8) -> Vec<u8> {
            let length = self.next() % 120;
            let byte = |noise: &mut Noise| match noise.next() % 4 {
                0 => noise.next() as u8,
                1 => (noise.next() % 16) as u8,
                _ => 0,
            };
            let rest: Vec<u8> = (0..length).map(|_| byte(self)).collect();
            [vec![kind, self.next() as u8], rest].concat()
        }
    }

    /// Inputs reach everything: each kind of sender is refused, and permitted requests are
    /// carried out, of each procedure that a client may call.
    #[test]
    fn random_bytes_do_no_harm() {
        let seed = std::env::var("LARDER_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or(0x5eed).max(1);
        println!("LARDER_SEED={seed}");
        let (mut fuzzed, mut noise) = (Fuzzed::begin(), Noise(seed));
        let mut carried_out = [0_u32; 4];
        let mut of_client = [0_u32; PROCEDURES as usize];
        for at in 0..20_000_u32 {
            let kind = (at % 4) as u8;
            let input = noise.input(kind);
            if let Some(results) = fuzzed.feed(&input) {
                // A status of zero, and of the results' head another one.
                let is_done =
                    results.len() > 12 && results[..4] == [0; 4] && results[8..12] == [0; 4];
                carried_out[usize::from(kind)] += u32::from(is_done);
                if kind == 2 {
                    of_client[called_by_client(input[1]) as usize] += u32::from(is_done);
                }
            }
        }
        assert_eq!(carried_out[..2], [0, 0]);
        assert!(carried_out[2] > 10 && carried_out[3] > 1, "{carried_out:?}");
        let may_call = [2, 3, 4, 13];
        for (procedure, count) in of_client.into_iter().enumerate() {
            let is_carried_out = count > 0;
            assert_eq!(is_carried_out, may_call.contains(&procedure), "{of_client:?}");
        }
    }
}
