//! The engine over a PostgreSQL that is reached by TLS, with certificates that the tests make.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use larder_meta::engine::postgres::{Postgres, Target};
use larder_meta::engine::{Engine, EngineError};
use larder_testkit::PostgresServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::postgres::{WAITS, clock};
use crate::store::{batch, last, nobody};

/// The name of the server.
const NAME: &str = "db.example";

/// Two authorities, in files; a server with this name below the first.
struct Certificates {
    dir: TempDir,
    certificate: String,
    key: String,
}

impl Certificates {
    fn make() -> Certificates {
        let dir = tempfile::tempdir().unwrap();
        let authority = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            std::fs::write(dir.path().join(name), certificate.pem()).unwrap();
            Issuer::new(params, key)
        };
        authority("other");
        let issuer = authority("authority");
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        Certificates { dir, certificate, key: key.serialize_pem() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A database at `place`, whose server is to have this name.
    fn target(&self, place: &str, name: &str, authority: &str, database: &str) -> Target {
        let (user, authority) = (PostgresServer::USER, self.path(authority));
        let words = format!(
            "{place} host={name} user={user} dbname={database} sslmode=verify-full sslrootcert={}",
            authority.display()
        );
        Target::parse(&words).unwrap()
    }
}

fn refusal(target: &Target) -> String {
    Postgres::create(target, &clock()).unwrap_err().to_string()
}

#[test]
fn a_database_behind_tls_is_used_if_it_proves_its_name_only() {
    let files = Certificates::make();
    let server = PostgresServer::start_secure("rm -rf $PWD", &files.certificate, &files.key);
    let database = server.database();
    let place = format!("hostaddr={}", server.address());
    let target = |name, authority| files.target(&place, name, authority, &database);
    let stranger = refusal(&target(NAME, "other"));
    assert!(stranger.contains("invalid peer certificate"), "{stranger}");
    let elsewhere = refusal(&target("other.example", "authority"));
    assert!(elsewhere.contains("not valid for name"), "{elsewhere}");
    let unread = refusal(&target(NAME, "missing"));
    assert!(unread.contains("sslrootcert"), "{unread}");
    assert_eq!(server.sql(&database, "SELECT to_regclass('larder_store')"), "", "nothing is made");

    let right = target(NAME, "authority");
    Postgres::create(&right, &clock()).unwrap();
    let engine = Postgres::open(right, clock(), WAITS).unwrap();
    for number in 1..=20 {
        engine.commit(&batch(number), &nobody()).unwrap();
    }
    assert_eq!(last(&engine), 20);
    let lines = "SELECT bool_and(ssl) AND min(version) = 'TLSv1.3' FROM pg_stat_ssl \
        JOIN pg_stat_activity USING (pid) WHERE application_name = 'larder meta'";
    assert_eq!(server.sql(&database, lines), "t", "each of its connections is under TLS");
}

#[test]
fn a_database_that_has_no_tls_is_told_nothing() {
    let files = Certificates::make();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("hostaddr=127.0.0.1 port={}", listener.local_addr().unwrap().port());
    let heard = std::thread::spawn(move || {
        let (mut line, _) = listener.accept().unwrap();
        let mut heard = [0; 8];
        line.read_exact(&mut heard).unwrap();
        line.write_all(b"N").unwrap();
        let mut heard = heard.to_vec();
        line.read_to_end(&mut heard).unwrap();
        heard
    });
    let target = files.target(&place, NAME, "authority", "volumes");
    let refused = Postgres::create(&target, &clock()).unwrap_err();
    assert!(matches!(&refused, EngineError::Away(why) if why.contains("TLS")), "{refused}");
    // The question for TLS: a length, and its code.
    assert_eq!(heard.join().unwrap(), [0, 0, 0, 8, 4, 210, 22, 47]);
}
