//! Logins by Kerberos: which tickets, clocks that differ, and sessions that expire.

use super::failures::refused;
use super::setup::{Setup, eventually, mount, options, pattern, serve};
use larder_remote::smb::{Credentials, Kerberos, MountOptions, Password, Version};
use larder_testkit::{KdcOptions, Samba};
use larder_vfs::{Cred, Remote, Stability};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
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

async fn mounted(server: Samba, dir: TempDir, options: &MountOptions) -> Setup {
    let smb = mount(options).await;
    let root = smb.root().await.unwrap().handle;
    Setup { smb, root, cred: Cred::root(), server, dir }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_or_a_ticket_cache_lets_in() {
    let (server, dir, by_password) = realm(KdcOptions::default());
    let mut setup = mounted(server, dir, &by_password).await;
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

    server.freeze_kdc().unwrap();
    refused(&good, "does not answer by TCP: no answer within 3 s").await;
    refused(&with_tickets(&server, &tickets), "does not answer by TCP: no answer").await;
    server.kill_kdc().unwrap();
    refused(&good, "does not answer by TCP: Connection refused").await;
}

/// The KDC gives a ticket to anybody, and it is of use to who knows the password only.
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
        refused(&options, "clock").await;
        println!(
            "{:?}\n{}",
            larder_remote::smb::Smb::mount(&options).await.map_err(|e| e.to_string()),
            server
                .log()
                .lines()
                .filter(|l| l.contains("NT_STATUS") || l.contains("gss"))
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
}
