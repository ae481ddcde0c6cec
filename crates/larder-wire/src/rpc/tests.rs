//! Headers, MOUNT and portmap survive encoding and decoding; broken calls get the right answer.

use super::*;
use crate::sample::{Sample, Source, check_types};
use crate::xdr::to_segments;
use crate::{mount3, portmap};

impl Sample for Credential {
    fn sample(source: &mut Source<'_>) -> Self {
        match source.byte() % 3 {
            0 => Credential::None,
            1 => Credential::Sys(AuthSys {
                stamp: Sample::sample(source),
                machine_name: Sample::sample(source),
                uid: Sample::sample(source),
                gid: Sample::sample(source),
                groups: Sample::sample(source),
            }),
            _ => Credential::Other { flavor: 6, body: Sample::sample(source) },
        }
    }
}

impl Sample for ReplyHeader {
    fn sample(source: &mut Source<'_>) -> Self {
        let (low, high) = (u32::sample(source), u32::sample(source));
        let outcome = source.choose(&[
            Outcome::Success,
            Outcome::ProgUnavail,
            Outcome::ProgMismatch { low, high },
            Outcome::ProcUnavail,
            Outcome::GarbageArgs,
            Outcome::SystemErr,
            Outcome::RpcMismatch { low, high },
            Outcome::AuthError(low),
        ]);
        ReplyHeader { xid: Xid(Sample::sample(source)), outcome }
    }
}

check_types!(headers_survive: Credential, ReplyHeader);
check_types!(mount_survives:
    mount3::MNTargs, mount3::mountres3, mount3::UMNTargs, List<mount3::mountbody>,
    List<mount3::exportnode>,
);
check_types!(portmap_survives:
    portmap::SETargs, portmap::UNSETargs, portmap::GETPORTargs, List<portmap::mapping>,
);
use crate::xdr::List;

fn call() -> CallHeader {
    let groups = Array((0..16).collect());
    let machine_name = "client".into();
    let sys = AuthSys { stamp: 1, machine_name, uid: 1000, gid: 100, groups };
    CallHeader {
        xid: Xid(9),
        program: 100_003,
        version: 3,
        procedure: 1,
        credential: Credential::Sys(sys),
    }
}

#[test]
fn a_call_survives_and_leaves_its_arguments() {
    let mut bytes = to_segments(&call()).to_bytes().to_vec();
    bytes.extend([1, 2, 3, 4]);
    let mut input = Bytes::from(bytes);
    assert_eq!(CallHeader::decode(&mut input).unwrap(), call());
    assert_eq!(&input[..], [1, 2, 3, 4]);
}

#[test]
fn a_broken_call_is_answered_as_the_rfc_wants() {
    let good = to_segments(&call()).to_bytes();
    let with = |at: usize, value: u32| {
        let mut bytes = good.to_vec();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        CallHeader::decode(&mut bytes.into()).unwrap_err()
    };
    assert_eq!(with(4, 1), CallError::Malformed(XdrError::Discriminant(1)));
    assert_eq!(with(8, 3), CallError::RpcVersion { xid: Xid(9), version: 3 });
    let too_long = XdrError::TooLong { length: 401, limit: AUTH_BYTES_MAX };
    assert_eq!(with(28, 401), CallError::Credential { xid: Xid(9), cause: too_long });
    assert_eq!(
        CallHeader::decode(&mut good.slice(..20)).unwrap_err(),
        CallError::Malformed(XdrError::Short)
    );
}

#[test]
fn calls_and_replies_are_told_apart() {
    let reply = ReplyHeader { xid: Xid(7), outcome: Outcome::Success };
    let reply = encode_reply(reply, &(), Framing::Datagram).to_bytes();
    assert_eq!(MessageKind::of(&reply), Some(MessageKind::Reply));
    let mut call = reply.to_vec();
    call[7] = 0;
    assert_eq!(MessageKind::of(&call), Some(MessageKind::Call));
    call[7] = 2;
    assert_eq!([&call[..], &call[..7], &[]].map(MessageKind::of), [None; 3]);
}

/// Byte by byte (RFC 9289, 4.1).
#[test]
fn a_server_that_speaks_tls_says_so() {
    let probe = encode_tls_probe(Xid(7), 100_003, 3, Framing::Datagram).to_bytes();
    let units: Vec<_> =
        probe.chunks(4).map(|unit| u32::from_be_bytes(unit.try_into().unwrap())).collect();
    assert_eq!(units, [7, 0, 2, 100_003, 3, 0, AUTH_TLS, 0, 0, 0]);
    let header = CallHeader::decode(&mut probe.clone()).unwrap();
    assert!(matches!(header.credential, Credential::Other { flavor: AUTH_TLS, .. }));

    let said = encode_starttls(Xid(7), Framing::Datagram).to_bytes();
    let head = [0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8];
    assert_eq!(said[..], [&head[..], b"STARTTLS", &[0; 4]].concat());
    assert!(is_starttls(Xid(7), said.clone()));
    assert!(!is_starttls(Xid(8), said.clone()), "to another call");
    for length in 0..said.len() {
        assert!(!is_starttls(Xid(7), said.slice(..length)));
    }
    let plain = ReplyHeader { xid: Xid(7), outcome: Outcome::Success };
    assert!(!is_starttls(Xid(7), encode_reply(plain, &(), Framing::Datagram).to_bytes()));
    let refused = ReplyHeader { xid: Xid(7), outcome: Outcome::AuthError(AUTH_TOOWEAK) };
    assert!(!is_starttls(Xid(7), encode_reply(refused, &(), Framing::Datagram).to_bytes()));
    // A client can also decode it as an ordinary reply.
    assert_eq!(ReplyHeader::decode(&mut said.clone()).unwrap().outcome, Outcome::Success);
}
