//! Connections under TLS, with certificates that the tests make.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_io::SimClock;
use larder_rpc::{ClientTls, ConnectError, Identity, Recovery, RpcError, ServerTls, TlsError};
use larder_wire::rpc::{
    AUTH_TOOWEAK, CallHeader, Outcome, ReplyHeader, Xid, encode_starttls, encode_tls_probe,
    is_starttls,
};
use larder_wire::xdr::{Decode, Framing};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::toy::{Plain, Raw, Recall, Running, ask, clock, connect, gated, within};

/// An authority, a server `localhost` and a client below it, as files.
struct Certificates {
    dir: TempDir,
}

impl Certificates {
    fn make() -> Certificates {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("authority"), authority.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for name in ["localhost", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(dir.path().join(name), certificate.pem()).unwrap();
            write_private(&dir.path().join(format!("{name}.key")), &key.serialize_pem());
        }
        Certificates { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn identity(&self, name: &str) -> Identity {
        Identity { certificate: self.path(name), key: self.path(&format!("{name}.key")) }
    }

    /// A server that wants certificates of its clients, and TLS.
    fn server(&self) -> ServerTls {
        let authority = self.path("authority");
        ServerTls::new(&self.identity("localhost"), Some(&authority), true).unwrap()
    }

    fn client(&self) -> ClientTls {
        let identity = self.identity("client");
        ClientTls::new("localhost", &self.path("authority"), Some(&identity)).unwrap()
    }
}

fn write_private(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

/// Passes one connection on to `server` and answers all bytes that went either way.
async fn listen_in(listener: TcpListener, server: std::net::SocketAddr) -> Vec<u8> {
    let (mut near, _) = listener.accept().await.unwrap();
    let mut far = TcpStream::connect(server).await.unwrap();
    let mut heard = Vec::new();
    let (mut there, mut back) = ([0; 4096], [0; 4096]);
    loop {
        let (from_near, from_far) = tokio::select! {
            length = near.read(&mut there) => (length.unwrap_or(0), None),
            length = far.read(&mut back) => (0, Some(length.unwrap_or(0))),
        };
        let done = match from_far {
            None => {
                heard.extend_from_slice(&there[..from_near]);
                from_near == 0 || far.write_all(&there[..from_near]).await.is_err()
            }
            Some(length) => {
                heard.extend_from_slice(&back[..length]);
                length == 0 || near.write_all(&back[..length]).await.is_err()
            }
        };
        if done {
            return heard;
        }
    }
}

#[tokio::test]
async fn calls_both_ways_go_under_tls_and_nothing_of_them_is_in_the_clear() {
    let files = Certificates::make();
    let server = Running::begin(false, |config| config.tls = Some(files.server())).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = listener.local_addr().unwrap();
    let heard = tokio::spawn(listen_in(listener, server.address));
    let (callbacks, _begun, gate) = gated();
    gate.add_permits(1000);
    let secured = |config: &mut larder_rpc::Config| config.tls = Some(files.client());
    let client = connect(between, &callbacks, secured).await;
    let asked = (0..200).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            assert_eq!(ask(&client, Plain(0x4c4c_4c4c)).await, Ok(0x4c4c_4c4c));
            assert_eq!(ask(&client, Recall(number)).await, Ok(number + 1000));
        })
    });
    for asked in asked.collect::<Vec<_>>() {
        within(asked).await.unwrap();
    }
    drop(client);
    let heard = within(heard).await.unwrap();
    assert!(heard.windows(8).any(|bytes| bytes == b"STARTTLS"));
    assert!(!heard.windows(4).any(|bytes| bytes == b"LLLL"));
}

#[tokio::test]
async fn a_connection_under_tls_that_is_lost_is_made_again_under_tls() {
    let files = Certificates::make();
    let server = Running::begin(false, |config| config.tls = Some(files.server())).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = listener.local_addr().unwrap();
    let (callbacks, _begun, _gate) = gated();
    // The first connection goes through a proxy that ends it; to the client, the next one is the
    // server's.
    let address = server.address;
    let passing = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(address).await.unwrap();
            // As many bytes as the handshake and a few calls have.
            let (mut to, mut from) = (near.split(), far.split());
            let there = async {
                let mut bytes = [0; 256];
                let mut left = 8000;
                while left > 0 {
                    let length = to.0.read(&mut bytes).await.unwrap_or(0);
                    if length == 0 || from.1.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                    left -= length.min(left);
                }
            };
            let back = tokio::io::copy(&mut from.0, &mut to.1);
            tokio::select! { () = there => {}, _ = back => {} }
        }
    });
    let change = |config: &mut larder_rpc::Config| {
        config.tls = Some(files.client());
        config.recovery = Recovery::Hard;
    };
    let client = connect(between, &callbacks, change).await;
    for number in 0..120 {
        assert_eq!(ask(&client, Plain(number)).await, Ok(number));
    }
    assert!(client.stats().connections[0].reconnects >= 1);
    drop(client);
    within(passing).await.unwrap();
}

async fn refusal(address: std::net::SocketAddr, tls: ClientTls) -> ConnectError {
    let (callbacks, ..) = gated();
    let mut config = crate::toy::config(address, &callbacks);
    config.tls = Some(tls);
    within(larder_rpc::RpcClient::connect(config)).await.unwrap_err()
}

#[tokio::test]
async fn peers_without_a_valid_certificate_are_refused() {
    let (files, others) = (Certificates::make(), Certificates::make());
    let server = Running::begin(false, |config| config.tls = Some(files.server())).await;
    // A server of another authority, or of another name.
    let wrong = ClientTls::new("localhost", &others.path("authority"), None).unwrap();
    let text = refusal(server.address, wrong).await.to_string();
    assert!(text.contains("certificate"), "{text}");
    let identity = files.identity("client");
    let wrong = ClientTls::new("elsewhere", &files.path("authority"), Some(&identity)).unwrap();
    let text = refusal(server.address, wrong).await.to_string();
    assert!(text.contains("elsewhere") || text.contains("not valid for name"), "{text}");

    // A client without a certificate, or with one of another authority: it learns that from the
    // first thing it reads, and no call of it is carried out.
    let authority = files.path("authority");
    let nobody = ClientTls::new("localhost", &authority, None).unwrap();
    let stranger = others.identity("client");
    let stranger = ClientTls::new("localhost", &authority, Some(&stranger)).unwrap();
    for tls in [nobody, stranger] {
        let (callbacks, ..) = gated();
        let mut config = crate::toy::config(server.address, &callbacks);
        config.tls = Some(tls);
        config.timeout = std::time::Duration::from_millis(200);
        if let Ok(client) = within(larder_rpc::RpcClient::connect(config)).await {
            let asked = ask(&client, Plain(1)).await;
            assert!(matches!(asked, Err(RpcError::TimedOut { .. })), "{asked:?}");
        }
    }
    assert_eq!(server.stats().programs[0][1].calls, 0);
}

/// The client sends such a server only the question, and no call.
#[tokio::test]
async fn a_server_without_tls_is_told_nothing() {
    let files = Certificates::make();
    let plain = Running::begin(false, |_| ()).await;
    let text = refusal(plain.address, files.client()).await.to_string();
    assert!(text.contains("does not speak TLS"), "{text}");
    assert_eq!(plain.stats().programs[0][0].calls, 1, "the question");
    assert!(plain.stats().programs[0][1..].iter().all(|one| one.calls == 0));
}

#[tokio::test]
async fn calls_in_the_clear_are_refused_where_tls_is_required() {
    let files = Certificates::make();
    let server = Running::begin(false, |config| config.tls = Some(files.server())).await;
    let (client, _callbacks) = server.client(|_| ()).await;
    let refused = Err(RpcError::Refused(Outcome::AuthError(AUTH_TOOWEAK)));
    assert_eq!(ask(&client, Plain(1)).await, refused);
    within(client.ping()).await.unwrap();
    // Where it is not, both go.
    let both = ServerTls::new(&files.identity("localhost"), None, false).unwrap();
    let server = Running::begin(false, |config| config.tls = Some(both)).await;
    let (client, _callbacks) = server.client(|_| ()).await;
    assert_eq!(ask(&client, Plain(1)).await, Ok(1));
    let (secured, _callbacks) = server.client(|config| config.tls = Some(files.client())).await;
    assert_eq!(ask(&secured, Plain(2)).await, Ok(2));
}

fn probe(xid: Xid) -> Vec<u8> {
    encode_tls_probe(xid, 0x2000_0001, 1, Framing::Record).to_bytes().to_vec()
}

/// Whoever can write to a connection before its handshake must not speak in its client's name after
/// it.
#[tokio::test]
async fn nothing_that_came_before_the_handshake_counts_after_it() {
    let files = Certificates::make();
    let server = Running::begin(false, |config| config.tls = Some(files.server())).await;
    let call = larder_wire::rpc::encode_call(
        Xid(2),
        &larder_wire::rpc::Credential::None,
        &Plain(7),
        Framing::Record,
    );
    for extra in [&call.to_bytes()[..], &[0x80, 0, 0, 40, 1], &[0]] {
        let mut raw = Raw::connect(server.address).await;
        raw.stream.write_all(&[&probe(Xid(1)), extra].concat()).await.unwrap();
        assert!(raw.message().await.is_none());
    }
    // Nor is TLS begun on a connection that has been used.
    let mut raw = Raw::connect(server.address).await;
    raw.call(1, &Plain(7)).await;
    let refused = ReplyHeader::decode(&mut raw.message().await.unwrap()).unwrap();
    assert_eq!(refused.outcome, Outcome::AuthError(AUTH_TOOWEAK));
    raw.stream.write_all(&probe(Xid(2))).await.unwrap();
    assert!(!is_starttls(Xid(2), raw.message().await.unwrap()));
    assert_eq!(server.stats().programs[0][1].calls, 1);
}

#[tokio::test]
async fn a_client_that_does_not_shake_hands_is_cut_off_in_time() {
    let files = Certificates::make();
    let sim = Arc::new(SimClock::new());
    let server = Running::begin(false, |config| {
        config.tls = Some(files.server());
        config.clock = clock(&sim);
    });
    let server = server.await;
    let mut silent = Raw::connect(server.address).await;
    silent.stream.write_all(&probe(Xid(1))).await.unwrap();
    assert!(is_starttls(Xid(1), silent.message().await.unwrap()));
    within(sim.asleep(1)).await;
    sim.advance(std::time::Duration::from_secs(15));
    assert!(silent.message().await.is_none());
    let mut babbling = Raw::connect(server.address).await;
    babbling.stream.write_all(&probe(Xid(1))).await.unwrap();
    assert!(is_starttls(Xid(1), babbling.message().await.unwrap()));
    babbling.stream.write_all(&[0x55; 4096]).await.unwrap();
    let mut rest = Vec::new();
    // It may say why before it ends.
    let _ = within(babbling.stream.read_to_end(&mut rest)).await;
}

/// A reply to the question that says more than it may.
#[tokio::test]
async fn a_client_takes_no_call_in_the_clear_for_an_answer() {
    let files = Certificates::make();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for answer in [&b"\x80\x00\xff\xff"[..], b"nonsense", b"\x80\x00\x00\x00"] {
        let (refused, ()) = tokio::join!(refusal(address, files.client()), async {
            let mut raw = Raw::accept(&listener).await;
            let mut message = raw.message().await.unwrap();
            CallHeader::decode(&mut message).unwrap();
            raw.stream.write_all(answer).await.unwrap();
            let _ = raw.stream.shutdown().await;
            assert!(raw.message().await.is_none(), "nothing else in the clear");
        });
        assert!(matches!(refused, ConnectError::Failed { .. }), "{refused}");
    }
    // The right answer, and then no handshake.
    let (refused, ()) = tokio::join!(refusal(address, files.client()), async {
        let mut raw = Raw::accept(&listener).await;
        let header = CallHeader::decode(&mut raw.message().await.unwrap()).unwrap();
        let answer = encode_starttls(header.xid, Framing::Record).to_bytes();
        raw.stream.write_all(&[&answer[..], &[0; 64]].concat()).await.unwrap();
    });
    assert!(matches!(refused, ConnectError::Failed { .. }), "{refused}");
}

#[test]
fn files_that_are_missing_wrong_or_exposed_are_named() {
    let files = Certificates::make();
    let authority = files.path("authority");
    let text = |identity: &Identity| ServerTls::new(identity, None, true).unwrap_err().to_string();
    let mut identity = files.identity("localhost");
    identity.certificate = files.path("missing");
    assert!(text(&identity).contains("missing"));
    identity.certificate = files.path("localhost.key");
    assert!(text(&identity).contains("no certificate"));
    identity = files.identity("localhost");
    identity.key = files.path("client.key");
    assert!(ServerTls::new(&identity, None, true).is_err(), "a key of another certificate");
    let exposed = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(files.path("client.key"), exposed).unwrap();
    let refused = ClientTls::new("localhost", &authority, Some(&files.identity("client")));
    assert!(matches!(refused, Err(TlsError::ExposedKey { mode: 0o640, .. })));
    assert!(ClientTls::new("", &authority, None).is_err());
}
