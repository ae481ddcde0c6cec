//! A client that sends much gets no more: memory and sessions stay bounded, and working clients
//! continue.

use larder_disk::sessions::{OPENED_MAX, UNPROVEN_MAX};
use larder_wire::capability::Mode;
use larder_wire::disk::session::{AskError, Granted, Hailing};
use larder_wire::disk::words::Refusal;
use larder_wire::seal::{Secret, Setup};

use crate::stand::{Stand, write};

const HANDSHAKES: u64 = 3000;

fn nonce(number: u64) -> [u8; 32] {
    let mut nonce = [0; 32];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// Handshakes with a forged seal leave nothing behind but a count.
#[tokio::test]
async fn handshakes_without_a_secret_leave_nothing() {
    let stand = Stand::new(Setup::Secure).await;
    let Granted { capability, .. } = stand.grant(Mode::Read, &[(0, 4096)]);
    let guessed = Granted { capability, secret: Secret::new([1; 32]) };
    let sessions = stand.device.sessions();
    for number in 0..HANDSHAKES {
        let refused = stand.hail(&guessed, nonce(number), None).await;
        assert_eq!(refused.unwrap_err(), Refusal::Forged);
    }
    assert_eq!(stand.device.sessions(), sessions);
    assert_eq!(stand.refused(Refusal::Forged).1, HANDSHAKES);
}

/// Recorded handshakes that are replayed are answered as before, or make sessions that no one can
/// use and that displace each other; the session of a working client stays.
#[tokio::test]
async fn replayed_handshakes_displace_no_working_client() {
    let stand = Stand::new(Setup::Secure).await;
    let worker = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let session = stand.session(&worker).await;
    stand.write(&session, &worker, 0, b"works").await.unwrap();
    let begun = stand.device.sessions();

    let (kept, _) = Hailing::client(&worker, nonce(0), None);
    for _ in 0..HANDSHAKES {
        stand.call(&kept).await.unwrap().unwrap();
    }
    assert_eq!(stand.device.sessions(), begun + 1);

    for number in 0..HANDSHAKES {
        let granted = stand.grant(Mode::Read, &[(0, 4096)]);
        stand.hail(&granted, nonce(1 + number), None).await.unwrap();
        assert!(stand.device.sessions() <= begun + UNPROVEN_MAX);
    }
    assert_eq!(stand.read(&session, &worker, 0, 5).await.unwrap(), &b"works"[..]);
}

/// A holder of a capability gets only a few sessions with it, whatever it does in them.
#[tokio::test]
async fn one_capability_gives_a_few_sessions() {
    let stand = Stand::new(Setup::Secure).await;
    let begun = stand.device.sessions();
    let granted = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let first = stand.session(&granted).await;
    stand.read(&first, &granted, 0, 1).await.unwrap();
    for _ in 0..100 {
        let session = stand.session(&granted).await;
        stand.read(&session, &granted, 0, 1).await.unwrap();
    }
    assert_eq!(stand.device.sessions(), begun + OPENED_MAX);
    let refused = stand.read(&first, &granted, 0, 1).await;
    assert_eq!(refused, Err(AskError::Hearsay(Refusal::UnknownSession)));
}

/// Forged requests do not use up a session's numbers, nor keep it alive.
#[tokio::test]
async fn forged_requests_use_nothing_up() {
    let stand = Stand::new(Setup::Secure).await;
    let granted = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let session = stand.session(&granted).await;
    let Granted { capability, .. } = granted.clone();
    let guessed = Granted { capability, secret: Secret::new([1; 32]) };
    let mut genuine = Vec::new();
    for _ in 0..100 {
        let (forged, _) = write(&session, &guessed, 0, b"forged");
        assert_eq!(stand.bring(&forged).await.unwrap_err(), Refusal::Forged);
        genuine.push(write(&session, &granted, 0, b"genuine"));
    }
    for request in genuine {
        stand.deliver(request).await.unwrap();
    }
}
