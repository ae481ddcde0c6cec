//! Logins by Kerberos: which tickets, clocks that differ, and sessions that expire.

use super::failures::refused;
use super::setup::{Setup, eventually, mount, options, pattern, serve};
use larder_remote::smb::{Credentials, Kerberos, MountOptions, Password, Smb, Version};
use larder_testkit::{KdcOptions, Samba};
use larder_vfs::{Cred, Handle, New, Remote, Removal, SetAttr, Stability};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const HOURS_S: i32 = 2 * 3600;

/// A server with a realm of these options, as it is mounted with the user's password.
fn realm(kdc: KdcOptions) -> (Samba, TempDir, MountOptions) {
    let (server, dir) = serve(|samba| (samba.kerberos, samba.log_level) = (Some(kdc), 3));
    let options = with_password(&server, Samba::PASSWORD);
    (server, dir, options)
}

fn with_password(server: &Samba, password: &str) -> MountOptions {
    let mut options = options(server);
    options.credentials = Credentials::new(Samba::USER, Password::new(password));
    let config = vec![server.krb5_conf()];
    options.credentials.kerberos = Some(Kerberos { config, ..Kerberos::default() });
    options
}

fn with_tickets(server: &Samba, tickets: &Path) -> MountOptions {
    let mut options = with_password(server, "");
    options.credentials.user = String::new();
    change(&mut options, |kerberos| kerberos.tickets = tickets.to_owned());
    options
}

fn change(options: &mut MountOptions, how: impl FnOnce(&mut Kerberos)) {
    how(options.credentials.kerberos.as_mut().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_or_a_ticket_cache_lets_in() {
    let (server, dir, by_password) = realm(KdcOptions::default());
    let mut setup = Setup::mounted(server, dir, &by_password).await;
    setup.data_survives("by password", 2_000_001).await;
    let by_ticket = with_tickets(&setup.server, &setup.server.kinit(3600).unwrap());
    for (name, version, seal) in [
        ("plain", Version::V3_1_1, false),
        ("encrypted", Version::V3_1_1, true),
        ("older", Version::V2_1, false),
    ] {
        let version_max = version;
        let options = MountOptions { version_max, seal, sign: true, ..by_ticket.clone() };
        setup.smb = mount(&options).await;
        assert_eq!(setup.smb.version(), Some(version), "{name}");
        setup.data_survives(name, 500_001).await;
    }
    // A client that has a ticket for the server needs no KDC.
    setup.server.kvno().unwrap();
    setup.server.kill_kdc().unwrap();
    setup.smb = mount(&by_ticket).await;
    setup.data_survives("without a KDC", 500_001).await;
}

#[tokio::test]
async fn a_login_by_kerberos_that_cannot_be_says_why() {
    let (mut server, dir, good) = realm(KdcOptions::default());
    let wrong = with_password(&server, "wrong");
    refused(&wrong, "refuses the password of root@LARDER.TEST").await;
    let mut stranger = good.clone();
    stranger.credentials.user = "stranger".into();
    refused(&stranger, "does not know stranger@LARDER.TEST").await;
    let mut elsewhere = good.clone();
    elsewhere.credentials.domain = "OTHER.TEST".into();
    refused(&elsewhere, "no KDC of the Kerberos realm OTHER.TEST").await;
    let mut nowhere = good.clone();
    change(&mut nowhere, |kerberos| kerberos.config.clear());
    refused(&nowhere, "no Kerberos realm").await;
    let mut unheard = good.clone();
    change(&mut unheard, |kerberos| kerberos.kdc = Some("no-such-host.invalid".into()));
    refused(&unheard, "the KDC no-such-host.invalid does not answer").await;

    let none = with_tickets(&server, &dir.path().join("none"));
    refused(&none, "run kinit").await;
    let tickets = server.kinit(3600).unwrap();
    let mut another = with_tickets(&server, &tickets);
    another.credentials.user = "ann".into();
    refused(&another, "is of root@LARDER.TEST, and not of ann").await;

    server.rekey().unwrap();
    for version_max in [Version::V3_1_1, Version::V2_1] {
        let options = MountOptions { version_max, ..good.clone() };
        refused(&options, "does not accept the Kerberos ticket of root@LARDER.TEST").await;
    }

    server.freeze_kdc().unwrap();
    refused(&good, "does not answer by TCP: no answer within 3 s").await;
    refused(&with_tickets(&server, &tickets), "does not answer by TCP: no answer").await;
    server.kill_kdc().unwrap();
    refused(&good, "does not answer by TCP: Connection refused").await;
}

/// The KDC issues a ticket to any client, but only a client that knows the password can use it.
#[tokio::test]
async fn a_wrong_password_is_noticed_where_the_kdc_asks_for_no_proof() {
    let kdc = KdcOptions { asks_for_proof: false, ..KdcOptions::default() };
    let (server, _dir, good) = realm(kdc);
    refused(&with_password(&server, "wrong"), "refuses the password of root@LARDER.TEST").await;
    mount(&good).await;
}

#[tokio::test]
async fn the_service_must_be_known_to_the_kdc() {
    let (server, _dir, mut options) = realm(KdcOptions::default());
    let name = format!("{}:{}", server.host(), server.address().port());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    (options.host, options.port) = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let (mut ours, _) = listener.accept().await.unwrap();
        let mut theirs = tokio::net::TcpStream::connect(name).await.unwrap();
        tokio::io::copy_bidirectional(&mut ours, &mut theirs).await
    });
    refused(&options, "does not know the service cifs/127.0.0.1@LARDER.TEST").await;
}

#[tokio::test]
async fn clocks_that_differ_are_named() {
    for clock_ahead_s in [HOURS_S, -HOURS_S] {
        let (server, _dir, by_password) = realm(KdcOptions { clock_ahead_s, ..Default::default() });
        let wanted = "clocks of the KDC";
        refused(&by_password, wanted).await;
        let tickets = server.kinit(12 * 3600).unwrap();
        refused(&with_tickets(&server, &tickets), wanted).await;
    }
}

#[tokio::test]
async fn an_expired_ticket_is_told() {
    // By the clock of this KDC it has not expired.
    let behind = KdcOptions { clock_ahead_s: -HOURS_S, ..KdcOptions::default() };
    let (server, _dir, _) = realm(behind);
    let tickets = server.kinit(3600).unwrap();
    refused(&with_tickets(&server, &tickets), "has expired; run kinit").await;
}

#[tokio::test]
async fn a_server_whose_clock_is_off_is_named() {
    for clock_ahead_s in [HOURS_S, -HOURS_S] {
        let (server, _dir) = serve(|samba| {
            (samba.kerberos, samba.log_level) = (Some(KdcOptions::default()), 3);
            samba.clock_ahead_s = clock_ahead_s;
        });
        let options = with_password(&server, Samba::PASSWORD);
        for version_max in [Version::V3_1_1, Version::V2_1] {
            let options = MountOptions { version_max, ..options.clone() };
            refused(&options, &format!("clocks of {}", server.host())).await;
        }
    }
}

/// Reads a file again and again, and counts.
async fn reread(smb: &Smb, file: &Handle, wanted: &[u8], goes_on: &AtomicBool) -> u32 {
    let mut rounds = 0;
    while goes_on.load(Ordering::SeqCst) {
        let read = smb.read(&Cred::root(), file, None, 0, wanted.len() as u32).await.unwrap();
        assert!(read.data == wanted, "round {rounds}");
        rounds += 1;
    }
    rounds
}

/// Writes a file repeatedly. What was committed is at the server, at once.
async fn rewrite(smb: &Smb, file: &Handle, at_server: &Path, goes_on: &AtomicBool) -> u32 {
    let mut rounds = 0;
    while goes_on.load(Ordering::SeqCst) {
        let data: Vec<u8> =
            pattern(3_000_000 + rounds as usize).iter().map(|b| b ^ rounds as u8).collect();
        // As the client does: what was not committed under the same verifier is sent again.
        loop {
            let content = bytes::Bytes::from(data.clone());
            let written = smb
                .write(&Cred::root(), file, None, 0, content, Stability::Unstable)
                .await
                .unwrap();
            let committed = smb.commit(&Cred::root(), file, None, 0..0).await.unwrap();
            if committed.verifier == written.verifier {
                break;
            }
        }
        assert!(std::fs::read(at_server).unwrap() == data, "round {rounds}");
        rounds += 1;
    }
    rounds
}

/// Makes, renames and removes.
async fn rename(smb: &Smb, root: &Handle, goes_on: &AtomicBool) -> u32 {
    let (mut rounds, cred) = (0, Cred::root());
    while goes_on.load(Ordering::SeqCst) {
        let (from, to) = (format!("from {rounds}"), format!("to {rounds}"));
        let (from, to) = (from.as_ref(), to.as_ref());
        smb.make(&cred, root, from, New::File, SetAttr::default()).await.unwrap();
        smb.rename(&cred, (root, from), (root, to)).await.unwrap();
        smb.remove(&cred, root, to, Removal::File).await.unwrap();
        rounds += 1;
    }
    rounds
}

/// Tickets live for four seconds, and Samba ends each session with its ticket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_expire_over_reads_and_writes_lose_nothing() {
    let (server, dir, options) = realm(KdcOptions { ticket_life_s: 4, ..KdcOptions::default() });
    let setup = Setup::mounted(server, dir, &options).await;
    let data = pattern(6_000_000);
    let (old, new) = (setup.file("old", &data).await, setup.file("new", b"").await);
    let goes_on = Arc::new(AtomicBool::new(true));
    let at_server = setup.dir.path().join("new");
    let parts = || (Arc::clone(&setup.smb), Arc::clone(&goes_on));
    let (smb, on) = parts();
    let reading = tokio::spawn(async move { reread(&smb, &old, &data, &on).await });
    let (smb, on) = parts();
    let writing = tokio::spawn(async move { rewrite(&smb, &new, &at_server, &on).await });
    let ((smb, on), root) = (parts(), setup.root.clone());
    let renaming = tokio::spawn(async move { rename(&smb, &root, &on).await });
    let reconnects = || setup.smb.stats().connections[0].reconnects;
    let failed = || reading.is_finished() || writing.is_finished() || renaming.is_finished();
    let expired = || reconnects() >= 3 && setup.server.expired() >= 3;
    eventually("sessions expire", || expired() || failed()).await;
    goes_on.store(false, Ordering::SeqCst);
    let rounds = (reading.await.unwrap(), writing.await.unwrap(), renaming.await.unwrap());
    let expired = setup.server.expired();
    println!("{} sessions, {expired} refusals, rounds {rounds:?}", reconnects());
    assert!(expired >= 3 && rounds.0 > 0 && rounds.1 > 0 && rounds.2 > 0);
    assert_eq!(std::fs::read_dir(setup.dir.path()).unwrap().count(), 2);
}

/// The ticket cache is read again at each login.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_waits_for_a_renewed_ticket() {
    let (server, dir, by_password) = realm(KdcOptions::default());
    let mut setup = Setup::mounted(server, dir, &by_password).await;
    let data = pattern(100_000);
    setup.file("file", &data).await;
    // From here until the ticket expires nothing waits for the disk.
    setup.smb = mount(&with_tickets(&setup.server, &setup.server.kinit(10).unwrap())).await;
    let file = setup.find("file").await.unwrap();
    let lease = setup.access(&file).await.lease.expect("a lease");
    let out = setup.make("out", New::File).await.unwrap();
    let written = setup.write(&out, 0, b"not committed", Stability::Unstable).await.unwrap();
    let goes_on = Arc::new(AtomicBool::new(true));
    let (smb, on) = (Arc::clone(&setup.smb), Arc::clone(&goes_on));
    let reading = tokio::spawn(async move { reread(&smb, &file, &data, &on).await });
    eventually("the session expires", || !setup.smb.reachable()).await;
    eventually("the lease ends", || !lease.holds()).await;
    assert!(setup.server.expired() > 0);
    assert!(!reading.is_finished(), "it waits");
    setup.server.kinit(3600).unwrap();
    eventually("the mount goes on", || setup.smb.reachable()).await;
    goes_on.store(false, Ordering::SeqCst);
    assert!(reading.await.unwrap() > 0);
    let committed = setup.smb.commit(&setup.cred, &out, None, 0..0).await.unwrap();
    assert_ne!(committed.verifier, written.verifier, "it is to be sent again");
}
