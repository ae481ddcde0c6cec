//! Every type of the program against itself, its bytes against another implementation, and a
//! session from both sides.

use bytes::Bytes;

use super::sealed::{ReplyError, Sealed, SealedReply};
use super::session::{AskError, Exhausted, Granted, Hailing, Session};
use super::words::*;
use super::*;
use crate::Procedure;
use crate::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extent, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};
use crate::sample::{Sample, Source, check_types};
use crate::seal::{Forged, MasterKey, Setup};
use crate::xdr::{Decode, Encode, to_segments};

check_types!(words_survive:
    HandshakeCall, Res<HandshakeDone>, ReadHead, WriteHead, WriteFromHead, FlushHead, RefreshHead, RevokeHead, FetchHead, Res<FetchDone>,
    GroupReplaceHead, EpochHead, CopyHead, ClearHead, StatusHead, AwaitWrittenHead, Res<WrittenDone>, Res<Done>, Res<RefreshDone>,
    StatusDone,
);
check_types!(messages_survive: Sealed<WriteHead>, Res<SealedReply<ReadHead>>);

impl Sample for Sealed<WriteHead> {
    fn sample(source: &mut Source<'_>) -> Self {
        let head = WriteHead::sample(source);
        Sealed::open_to_all(&head, crate::xdr::Opaque::<DATA_BYTES_MAX>::sample(source).0)
    }
}

impl Sample for SealedReply<ReadHead> {
    fn sample(source: &mut Source<'_>) -> Self {
        let results = Res::<Done>::sample(source);
        SealedReply::open_to_all(&results, crate::xdr::Opaque::<DATA_BYTES_MAX>::sample(source).0)
    }
}

const DATA: &[u8] = b"sixteen bytes !!and more";

fn master() -> MasterKey {
    MasterKey::new(std::array::from_fn(|at| at as u8))
}

fn granted() -> Granted {
    let extents = [(4096, 8192), (1 << 20, 100)];
    let extents = extents.map(|(offset, length)| Extent::new(offset, length).unwrap());
    let capability = Capability {
        volume: VolumeId(std::array::from_fn(|at| 0xa0 + at as u8)),
        disk: DiskId(3),
        boot: BootEpoch(0x0102_0304_0506_0708),
        key: KeyEpoch(7),
        group: GroupId(9),
        id: CapabilityId(11),
        mode: Mode::Write,
        expiry_ms: 60_000,
        extents: Extents::new(extents.to_vec()).unwrap(),
    };
    Granted::mint(&master(), capability)
}

fn welcome(setup: Setup) -> Welcome {
    let boot = granted().capability.boot;
    Welcome { session: SessionId(5), boot, setup, nonce: [0x22; 32] }
}

/// A session, as the disk has it and as the client has it.
fn session(setup: Setup) -> (crate::seal::SessionKey, Session) {
    let (call, hailing) = Hailing::client(&granted(), [0x11; 32], None);
    let secret = granted().secret;
    secret.check_hello(&call.hello, &call.mac).unwrap();
    let key = secret.session_key(&call.hello.nonce, &[0x22; 32]);
    let welcome = welcome(setup);
    let done = HandshakeDone { welcome, mac: key.sign_welcome(&welcome) };
    (key, hailing.welcomed(&done).unwrap())
}

fn hex(value: &impl Encode) -> String {
    to_segments(value).to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

const CAPABILITY: &str = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf000000030102030405060708000000070000\
    0000000000090000000b00000002000000000000ea600000000200000000000010000000000000002000\
    00000000001000000000000000000064";

#[test]
fn messages_are_those_that_the_format_says() {
    assert_eq!(hex(&granted().capability), CAPABILITY);
    let (call, _) = Hailing::client(&granted(), [0x11; 32], None);
    let (volume, nonce) = (&CAPABILITY[..32], "11".repeat(32));
    let hello = format!("{volume}0000000300000001{CAPABILITY}{nonce}00000000");
    let mac = "101aae2846ed2519140bf617ece1be14f386db0763fdd277c380706beb7aa220";
    assert_eq!(hex(&call), hello + mac);

    let (key, session) = session(Setup::Secure);
    let welcome = welcome(Setup::Secure);
    let done: Res<_> = Ok(HandshakeDone { welcome, mac: key.sign_welcome(&welcome) });
    let fields = format!("0000000000000005010203040506070800000001{}", "22".repeat(32));
    let mac = "2ed8de6eaa9a58b4c7214519e516c6a8a0cbacb29a06d5cb80c49e68bcf95c2a";
    assert_eq!(hex(&done), format!("00000000{fields}{mac}"));

    let head = WriteHead { capability: granted().capability, offset: 4096, stable: true };
    let (write, _) = session.ask(&granted().secret, &head, Bytes::from_static(DATA)).unwrap();
    assert_eq!(
        hex(&write),
        format!(
            "0000000000000005000000000000000100000068{CAPABILITY}000000000000100000000001\
             3bbc1397e7956e96af4f330bc2e3e03a00000018\
             7369787465656e206279746573202121616e64206d6f7265"
        )
    );
    let keys = key.request_keys(&granted().secret);
    let reply = SealedReply::<WriteHead>::seal(
        &keys.from_disk,
        Setup::Secure,
        SessionId(5),
        1,
        &Ok(Done {}),
        Bytes::new(),
    );
    assert_eq!(hex(&reply), "00000004000000002d0a0cb089dcc8b53ff5a173305029dd00000000");
}

#[test]
fn private_data_is_what_the_format_says() {
    let (key, session) = session(Setup::Private);
    let head = WriteHead { capability: granted().capability, offset: 4096, stable: true };
    let data = Bytes::from_static(DATA);
    let (write, _) = session.ask(&granted().secret, &head, data.clone()).unwrap();
    let wire = hex(&write);
    let seal_and_data = "e1e2d6853381715901c010a1411754ea00000018\
                         55655b5d469eecc5a557c23930078a293c9e967459e95279";
    assert!(wire.ends_with(seal_and_data), "{wire}");
    let keys = key.request_keys(&granted().secret);
    assert_eq!(write.open(&keys.to_disk, Setup::Private), Ok(data));
}

/// A reply is accepted for its own request only, and for no other: not for another one of the
/// session, of another session, or of another procedure, nor if it is forged.
#[test]
fn a_reply_is_to_its_request() {
    let (key, session) = session(Setup::Secure);
    let secret = granted().secret;
    let keys = key.request_keys(&secret);
    let head = FlushHead { capability: granted().capability };
    let answer = |key: &crate::seal::SealKey, number: u64, sequence: u64| {
        let session = SessionId(number);
        let results = Ok(Done {});
        SealedReply::seal(key, Setup::Secure, session, sequence, &results, Bytes::new())
    };
    let (_, first) = session.ask(&secret, &head, Bytes::new()).unwrap();
    let (_, second) = session.ask(&secret, &head, Bytes::new()).unwrap();
    let good = answer(&keys.from_disk, 5, 1);
    assert_eq!(first.answered::<FlushHead>(Ok(good.clone())), Ok((Done {}, Bytes::new())));
    let forged = AskError::Reply(ReplyError::Forged(Forged));
    assert_eq!(second.answered::<FlushHead>(Ok(good)), Err(forged));

    let other = granted().secret.session_key(&[0x11; 32], &[0x33; 32]).request_keys(&secret);
    let wrong = [
        answer(&keys.from_disk, 6, 3),
        answer(&keys.from_disk, 5, 2),
        answer(&keys.to_disk, 5, 3),
        answer(&other.from_disk, 5, 3),
    ];
    for (at, reply) in wrong.into_iter().enumerate() {
        let (_, asked) = session.ask(&secret, &head, Bytes::new()).unwrap();
        assert_eq!(asked.answered::<FlushHead>(Ok(reply)), Err(forged), "reply {at}");
    }
    let write = answer(&keys.from_disk, 5, 7);
    let read: SealedReply<ReadHead> = Decode::decode(&mut to_segments(&write).to_bytes()).unwrap();
    let head = ReadHead { capability: head.capability, offset: 4096, length: 0 };
    let (request, asked) = session.ask(&secret, &head, Bytes::new()).unwrap();
    assert_eq!(request.sequence, 7);
    assert_eq!(asked.answered::<ReadHead>(Ok(read)), Err(forged));

    let (_, asked) = session.ask(&secret, &head, Bytes::new()).unwrap();
    let hearsay = AskError::Hearsay(Refusal::Revoked);
    assert_eq!(asked.answered::<ReadHead>(Err(Refusal::Revoked)), Err(hearsay));
}

/// No number is used twice, nor one that the disk does not take: a session that is used up stays
/// so.
#[test]
fn a_session_ends_with_its_last_number() {
    let (key, session) = session(Setup::Secure);
    let keys = key.request_keys(&granted().secret);
    let head = FlushHead { capability: granted().capability };
    let ask = || session.ask(&granted().secret, &head, Bytes::new());
    session.skip_to(SEQUENCE_END - 2);
    for sequence in [SEQUENCE_END - 2, SEQUENCE_END - 1] {
        let (request, _) = ask().unwrap();
        assert_eq!(request.sequence, sequence);
        assert_eq!(request.open(&keys.to_disk, Setup::Secure), Ok(Bytes::new()));
        // It does not lead back.
        session.skip_to(1);
    }
    for _ in 0..3 {
        assert_eq!(ask().unwrap_err(), Exhausted);
    }
}

#[test]
fn a_welcome_for_another_handshake_makes_no_session() {
    let (_, hailing) = Hailing::client(&granted(), [0x11; 32], None);
    let welcome = welcome(Setup::Off);
    let key = granted().secret.session_key(&[0x12; 32], &[0x22; 32]);
    let done = HandshakeDone { welcome, mac: key.sign_welcome(&welcome) };
    assert_eq!(hailing.welcomed(&done).unwrap_err(), Forged);
}

/// The metadata server's session is sealed whatever the volume's setup; a client's according to the
/// setup.
#[test]
fn control_is_sealed_in_every_setup() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let (volume, disk) = (granted().capability.volume, DiskId(3));
        let (call, hailing) = Hailing::control(&master(), volume, disk, 1, [0x11; 32], None);
        let secret = master().control_secret(volume, disk);
        secret.check_hello(&call.hello, &call.mac).unwrap();
        let key = secret.session_key(&[0x11; 32], &[0x22; 32]);
        let welcome = welcome(setup);
        let done = HandshakeDone { welcome, mac: key.sign_welcome(&welcome) };
        let session = hailing.welcomed(&done).unwrap();
        assert_eq!(session.volume_setup(), setup);
        let (order, _) = session.order(&RefreshHead { trust: None }, Bytes::new()).unwrap();
        let keys = key.request_keys(&secret);
        assert!(order.open(&keys.to_disk, Setup::Secure).is_ok());
    }
}

/// Whoever sees an order pass does not learn the secret that it brings, in any setup; and it is
/// taken for no other kind of order.
#[test]
fn a_secret_of_an_order_is_encrypted_in_every_setup() {
    for setup in [Setup::Off, Setup::Secure, Setup::Private] {
        let (volume, disk) = (granted().capability.volume, DiskId(3));
        let (_, hailing) = Hailing::control(&master(), volume, disk, 1, [0x11; 32], None);
        let secret = master().control_secret(volume, disk);
        let key = secret.session_key(&[0x11; 32], &[0x22; 32]);
        let welcome = welcome(setup);
        let done = HandshakeDone { welcome, mac: key.sign_welcome(&welcome) };
        let session = hailing.welcomed(&done).unwrap();
        let granted = granted();
        let data = Bytes::copy_from_slice(granted.secret.as_bytes());
        let (order, _) = session.order(&fetch(granted.capability), data.clone()).unwrap();
        let sent = to_segments(&order).to_bytes();
        assert!(!sent.windows(8).any(|window| data.windows(8).any(|part| part == window)));
        let keys = key.request_keys(&secret);
        assert_eq!(order.clone().open(&keys.to_disk, Setup::Private), Ok(data));
        assert_eq!(order.open(&keys.to_disk, Setup::Secure), Err(Forged));
    }
}

#[test]
fn a_disk_without_a_host_is_where_the_metadata_server_is() {
    let beside = "192.0.2.1".parse().unwrap();
    let of = |text: &str| address(text.as_bytes(), beside).map(|one| one.to_string());
    assert_eq!(of(":2051").as_deref(), Some("192.0.2.1:2051"));
    assert_eq!(of("[::1]:2051").as_deref(), Some("[::1]:2051"));
    for nonsense in ["", ":", ":x", "host:1", "192.0.2.1"] {
        assert_eq!(of(nonsense), None, "{nonsense}");
    }
}

fn fetch(capability: Capability) -> FetchHead {
    let reading = Capability { disk: DiskId(4), id: CapabilityId(12), ..capability.clone() };
    let reading = Capability { mode: Mode::Read, ..reading };
    let source = Elsewhere { capability: reading, offset: 1 << 20, address: ":2051".into() };
    FetchHead { capability, offset: 4096, length: 100, source }
}

#[test]
fn a_read_tells_its_length_without_being_read() {
    let (_, session) = session(Setup::Secure);
    for length in [0, 1, 4096, DATA_BYTES_MAX as u32] {
        let head = ReadHead { capability: granted().capability, offset: 4096, length };
        let (read, _) = session.ask(&granted().secret, &head, Bytes::new()).unwrap();
        let message = to_segments(&read).to_bytes();
        assert_eq!(read_length(&message), length as usize);
        assert_eq!(read_length(&message[message.len() - 23..]), 0);
    }
    assert_eq!(read_length(&[0xff; 64]), DATA_BYTES_MAX);
    assert_eq!(read_length(&[]), 0);
}

#[test]
fn each_refusal_and_each_procedure_has_its_number() {
    for (at, refusal) in Refusal::ALL.iter().enumerate() {
        assert_eq!(Refusal::try_from(*refusal as u32), Ok(*refusal));
        assert!(!Refusal::ALL[..at].contains(refusal));
    }
    assert_eq!((0..1000).filter(|number| Refusal::try_from(*number).is_ok()).count(), 24);
    let numbers = [
        <NullCall as Procedure>::NUMBER,
        <HandshakeCall as Procedure>::NUMBER,
        ReadHead::NUMBER,
        WriteHead::NUMBER,
        FlushHead::NUMBER,
        RefreshHead::NUMBER,
        RevokeHead::NUMBER,
        GroupReplaceHead::NUMBER,
        EpochHead::NUMBER,
        CopyHead::NUMBER,
        ClearHead::NUMBER,
        StatusHead::NUMBER,
        AwaitWrittenHead::NUMBER,
        WriteFromHead::NUMBER,
        FetchHead::NUMBER,
    ];
    assert_eq!(numbers.len(), PROCEDURE_NAMES.len());
    assert!(numbers.iter().enumerate().all(|(at, number)| at as u32 == *number));
}

/// These bytes, in `docs/formats/disk-protocol.md`, where `<capability>` stands for those of
/// [`CAPABILITY`].
fn golden<T>(value: &T, written: &str)
where
    T: Encode + Decode + PartialEq + std::fmt::Debug,
{
    let expected =
        written.replace("<capability>", CAPABILITY).split_whitespace().collect::<String>();
    assert_eq!(hex(value), expected, "{value:?}");
    let bytes = (0..expected.len()).step_by(2);
    let bytes: Vec<u8> =
        bytes.map(|at| u8::from_str_radix(&expected[at..at + 2], 16).unwrap()).collect();
    assert_eq!(&T::decode(&mut Bytes::from(bytes)).unwrap(), value);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let document = squeezed(include_str!("../../../../docs/formats/disk-protocol.md"));
    assert!(document.contains(&squeezed(written)), "the document lacks {written}");
}

fn extents(all: &[(u64, u64)]) -> Extents {
    let extent = |(offset, length): &(u64, u64)| Extent::new(*offset, *length).unwrap();
    Extents::new(all.iter().map(extent).collect()).unwrap()
}

#[test]
fn requests_of_clients_are_what_the_document_says() {
    let capability = granted().capability;
    golden(
        &ReadHead { capability: capability.clone(), offset: 4096, length: 8192 },
        "<capability> 0000000000001000 00002000",
    );
    golden(&FlushHead { capability: capability.clone() }, "<capability>");
    let reading = Capability { id: CapabilityId(12), mode: Mode::Read, ..capability.clone() };
    let source = Granted::mint(&master(), reading);
    let taken = Origin { capability: source.capability, offset: 1 << 20, proof: [0; 32] };
    let mut head =
        WriteFromHead { capability, offset: 4096, stable: true, length: 100, source: taken };
    head.source.proof = source.secret.sign_source(&head.claim());
    golden(
        &head,
        "<capability> 0000000000001000 00000001 00000064
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 00000003 0102030405060708 00000007 0000000000000009
         0000000c 00000001 000000000000ea60 00000002 0000000000001000 0000000000002000
         0000000000100000 0000000000000064
         0000000000100000 acbfc58209f8deecc267544b6bc10d940c40fd2fd5eac8058116e564c9d09b10",
    );
}

#[test]
fn a_refresh_is_what_the_document_says() {
    let trust = Trust { boot: BootEpoch(0x0102_0304_0506_0708), until_ms: 90_000 };
    golden(&RefreshHead { trust: Some(trust) }, "00000001 0102030405060708 0000000000015f90");
    golden(&RefreshHead { trust: None }, "00000000");
    let store = StoreState { id: [0x5e; 16], generation: 3 };
    golden(
        &Ok::<_, Refusal>(RefreshDone { clock_ms: 60_000, limit: 1 << 30, store }),
        "00000000 000000000000ea60 0000000040000000 5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e 0000000000000003",
    );
}

#[test]
fn orders_are_what_the_document_says() {
    let ids = crate::xdr::Array(vec![CapabilityId(11), CapabilityId(12)]);
    golden(&RevokeHead { group: GroupId(9), ids }, "0000000000000009 00000002 0000000b 0000000c");
    golden(
        &GroupReplaceHead { victim: Some(GroupId(9)), group: GroupId(10) },
        "00000001 0000000000000009 000000000000000a",
    );
    golden(&GroupReplaceHead { victim: None, group: GroupId(10) }, "00000000 000000000000000a");
    golden(&EpochHead { key: KeyEpoch(8) }, "00000008");
    golden(
        &CopyHead { from: Extent::new(1 << 20, 4096).unwrap(), to: 8192 },
        "0000000000100000 0000000000001000 0000000000002000",
    );
    let two = [(0, 4096), (0x10_0000, 5)];
    golden(
        &ClearHead { extents: extents(&two) },
        "00000002 0000000000000000 0000000000001000 0000000000100000 0000000000000005",
    );
    golden(
        &AwaitWrittenHead { extents: extents(&two), wait_ms: 1000 },
        "00000002 0000000000000000 0000000000001000 0000000000100000 0000000000000005 000003e8",
    );
    golden(&Ok::<_, Refusal>(WrittenDone { is_durable: true }), "00000000 00000001");
    golden(&Err::<Done, _>(Refusal::StaleGroup), "00000022");
    golden(
        &fetch(granted().capability),
        "<capability> 0000000000001000 00000064
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf 00000004 0102030405060708 00000007 0000000000000009
         0000000c 00000001 000000000000ea60 00000002 0000000000001000 0000000000002000
         0000000000100000 0000000000000064
         0000000000100000 00000005 3a32303531000000",
    );
    golden(&Ok::<_, Refusal>(FetchDone { unread: None }), "00000000 00000000");
    golden(
        &Ok::<_, Refusal>(FetchDone { unread: Some("gone".into()) }),
        "00000000 00000001 00000004 676f6e65",
    );
}

#[test]
fn a_status_is_what_the_document_says() {
    assert!(to_segments(&StatusHead {}).is_empty());
    let status = StatusDone {
        setup: Setup::Secure,
        size: 1 << 30,
        written: 8192,
        limit: 1 << 30,
        clock_ms: 90_000,
        trusted_until_ms: 120_000,
        key: Some(KeyEpoch(7)),
        sessions: 3,
        poisoned: false,
        groups: crate::xdr::Array(vec![GroupStatus { group: GroupId(9), revoked: 2 }]),
        refusals: crate::xdr::Array(vec![RefusalCount { refusal: Refusal::Replayed, count: 7 }]),
    };
    golden(
        &Ok::<_, Refusal>(status),
        "00000000 00000001 0000000040000000 0000000000002000 0000000040000000
         0000000000015f90 000000000001d4c0 00000001 00000007 00000003 00000000
         00000001 0000000000000009 00000002 00000001 00000004 0000000000000007",
    );
}

/// The largest heads that there can be fit their limit.
#[test]
fn heads_have_room() {
    let extents =
        (0..crate::capability::EXTENTS_MAX as u64).map(|at| Extent::new(at * 8192, 4096).unwrap());
    let extents = Extents::new(extents.collect()).unwrap();
    let capability = Capability { extents, ..granted().capability };
    let read = ReadHead { capability: capability.clone(), offset: 0, length: 0 };
    let from = Origin { capability: capability.clone(), offset: 0, proof: [0; 32] };
    let address = crate::xdr::Opaque::copy_from_slice(&[0; TEXT_BYTES_MAX]);
    let source = Elsewhere { capability: capability.clone(), offset: 0, address };
    let fetch = FetchHead { capability: capability.clone(), offset: 0, length: 1, source };
    let write_from = WriteFromHead { capability, offset: 0, stable: true, length: 1, source: from };
    let revoke = RevokeHead {
        group: GroupId(1),
        ids: crate::xdr::Array((0..REVOKED_MAX as u32).map(CapabilityId).collect()),
    };
    let status = StatusDone {
        setup: Setup::Secure,
        size: 0,
        written: 0,
        limit: 0,
        clock_ms: 0,
        trusted_until_ms: 0,
        key: Some(KeyEpoch(1)),
        sessions: 0,
        poisoned: false,
        groups: crate::xdr::Array(vec![GroupStatus { group: GroupId(1), revoked: 0 }; GROUPS_MAX]),
        refusals: crate::xdr::Array(
            Refusal::ALL.map(|refusal| RefusalCount { refusal, count: 1 }).to_vec(),
        ),
    };
    for length in [
        to_segments(&read).len(),
        to_segments(&write_from).len(),
        to_segments(&fetch).len(),
        to_segments(&revoke).len(),
        to_segments(&Res::<StatusDone>::Ok(status)).len(),
    ] {
        assert!(length <= HEAD_BYTES_MAX, "{length}");
    }
}
