//! The client's half of a session, as pure functions: the caller provides randomness and transports
//! bytes.
//!
//! [`Hailing`] is a handshake in progress; [`Session`] seals requests; [`Asked`] opens their
//! replies. The metadata server's sessions work in the same way, but its requests present nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use thiserror::Error;

use super::SEQUENCE_END;
use super::sealed::{ReplyError, Sealed, SealedReply};
use super::words::{
    Ending, HandshakeCall, HandshakeDone, Head, Hello, Owner, Refusal, Res, SessionId, Shown,
};
use crate::capability::{BootEpoch, Capability, DiskId, VolumeId};
use crate::seal::{Forged, KEY_BYTES, Kept, MasterKey, RequestKeys, Secret, SessionKey, Setup};

/// A capability and the secret that proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// What is presented to the disk.
    pub capability: Capability,
    /// The secret, which is never sent to the disk.
    pub secret: Secret,
}

impl Granted {
    /// Mints a capability.
    pub fn mint(master: &MasterKey, capability: Capability) -> Granted {
        let secret = master.disk_key(capability.key).secret(&capability);
        Granted { capability, secret }
    }
}

/// A handshake that waits for its answer.
#[derive(Debug)]
pub struct Hailing {
    nonce: [u8; KEY_BYTES],
    secret: Secret,
    /// Made with the disk's key, not with a capability: sealed in every setup.
    is_control: bool,
}

impl Hailing {
    /// A client's handshake, under a capability. `nonce` is drawn at random, for this handshake
    /// alone. `before` is a session that is over: the disk finishes or refuses its requests in
    /// flight before the new session begins.
    pub fn client(
        granted: &Granted,
        nonce: [u8; KEY_BYTES],
        before: Option<&Session>,
    ) -> (HandshakeCall, Hailing) {
        let Granted { capability, secret } = granted;
        let shows = Shown::Capability(capability.clone());
        let hailing = Hailing { nonce, secret: secret.clone(), is_control: false };
        (hailing.call(capability.volume, capability.disk, shows, before), hailing)
    }

    /// The metadata server's handshake, as owner number `owner` of the volume.
    pub fn control(
        master: &MasterKey,
        volume: VolumeId,
        disk: DiskId,
        owner: u64,
        nonce: [u8; KEY_BYTES],
        before: Option<&Session>,
    ) -> (HandshakeCall, Hailing) {
        let hailing = Hailing::with_key(master, volume, disk, nonce);
        (hailing.call(volume, disk, Shown::Control(Owner { owner }), before), hailing)
    }

    /// The handshake of an observer, which has the disk's key, for STATUS alone.
    pub fn observer(
        master: &MasterKey,
        volume: VolumeId,
        disk: DiskId,
        nonce: [u8; KEY_BYTES],
    ) -> (HandshakeCall, Hailing) {
        let hailing = Hailing::with_key(master, volume, disk, nonce);
        (hailing.call(volume, disk, Shown::Observer, None), hailing)
    }

    fn with_key(master: &MasterKey, volume: VolumeId, disk: DiskId, nonce: [u8; 32]) -> Hailing {
        Hailing { nonce, secret: master.control_secret(volume, disk), is_control: true }
    }

    fn call(
        &self,
        volume: VolumeId,
        disk: DiskId,
        shows: Shown,
        before: Option<&Session>,
    ) -> HandshakeCall {
        let ends = before.filter(|session| session.number != SessionId(0));
        let ends = ends.map(|session| Ending {
            session: session.number,
            proof: session.key.sign_ending(&self.nonce),
        });
        let hello = Hello { volume, disk, shows, nonce: self.nonce, ends };
        let mac = self.secret.sign_hello(&hello);
        HandshakeCall { hello, mac }
    }

    /// The session, if the disk's answer is genuine.
    ///
    /// # Errors
    /// [`Forged`]
    pub fn welcomed(self, answer: &HandshakeDone) -> Result<Session, Forged> {
        let welcome = &answer.welcome;
        let key = self.secret.session_key(&self.nonce, &welcome.nonce);
        key.check_welcome(welcome, &answer.mac)?;
        let setup = if self.is_control { Setup::Secure } else { welcome.setup };
        Ok(Session {
            number: welcome.session,
            boot: welcome.boot,
            volume_setup: welcome.setup,
            setup,
            control: self.is_control.then_some(self.secret),
            key,
            next: AtomicU64::new(1),
            kept: Mutex::new(Kept::new(KEPT_MAX)),
        })
    }
}

/// A session, from the client's side. Many tasks may use it at the same time.
#[derive(Debug)]
pub struct Session {
    number: SessionId,
    boot: BootEpoch,
    volume_setup: Setup,
    /// How its requests are protected.
    setup: Setup,
    /// The secret for its requests, if they present nothing.
    control: Option<Secret>,
    key: SessionKey,
    next: AtomicU64,
    /// Keys that were derived, by the secret.
    kept: Mutex<Kept<[u8; KEY_BYTES], Arc<RequestKeys>>>,
}

/// Capabilities whose keys a session keeps: as many as a client uses at the same time. About
/// 400 KiB.
const KEPT_MAX: usize = 128;

/// The session is used up: its sequence numbers are.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the session is used up")]
pub struct Exhausted;

impl Session {
    /// The boot of the disk to which it belongs. What was written and not flushed in another boot
    /// may be lost.
    pub fn boot(&self) -> BootEpoch {
        self.boot
    }

    /// The setup of the disk's volume.
    pub fn volume_setup(&self) -> Setup {
        self.volume_setup
    }

    /// For tests: the numbers below this one count as used. None is used twice.
    #[doc(hidden)]
    pub fn skip_to(&self, sequence: u64) {
        self.next.fetch_max(sequence, Relaxed);
    }

    /// A request that shows a capability.
    ///
    /// # Errors
    /// [`Exhausted`]
    pub fn ask<H: Head>(
        &self,
        secret: &Secret,
        head: &H,
        data: Bytes,
    ) -> Result<(Sealed<H>, Asked), Exhausted> {
        if self.setup == Setup::Off {
            return Ok((Sealed::open_to_all(head, data), Asked(None)));
        }
        let sequence = self.next.fetch_add(1, Relaxed);
        if sequence >= SEQUENCE_END {
            return Err(Exhausted);
        }
        let keys = self.keys(secret);
        let setup = if H::HAS_SECRET { Setup::Private } else { self.setup };
        let session = self.number;
        let request = Sealed::seal(&keys.to_disk, setup, session, sequence, head, data);
        Ok((request, Asked(Some(Question { keys, setup, session, sequence }))))
    }

    /// A request of the metadata server, or of an observer.
    ///
    /// # Errors
    /// [`Exhausted`]
    ///
    /// # Panics
    /// If this is a client's session.
    pub fn order<H: Head>(&self, head: &H, data: Bytes) -> Result<(Sealed<H>, Asked), Exhausted> {
        let secret = self.control.as_ref().expect("a session of the metadata server");
        self.ask(secret, head, data)
    }
}

impl Session {
    /// The keys of requests that present the capability to which `secret` belongs.
    fn keys(&self, secret: &Secret) -> Arc<RequestKeys> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = kept.get(secret.as_bytes()) {
            return Arc::clone(keys);
        }
        let keys = Arc::new(self.key.request_keys(secret));
        kept.keep(*secret.as_bytes(), Arc::clone(&keys));
        keys
    }
}

/// A request that waits for its reply.
#[derive(Debug)]
pub struct Asked(Option<Question>);

#[derive(Debug)]
struct Question {
    keys: Arc<RequestKeys>,
    setup: Setup,
    session: SessionId,
    sequence: u64,
}

/// Why a request was not carried out, or why it is unknown whether it was.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AskError {
    /// The disk refused it, under seal.
    #[error("{0}")]
    Refused(Refusal),
    /// A refusal without a seal, from an unknown sender: at most a reason to repeat the handshake.
    #[error("{0}, as somebody says")]
    Hearsay(Refusal),
    /// The reply does not come from the disk, or does not belong to the request.
    #[error("the reply is not from the disk: {0}")]
    Reply(ReplyError),
}

impl Asked {
    /// The disk's answer.
    ///
    /// # Errors
    /// [`AskError`]
    pub fn answered<H: Head>(
        self,
        reply: Res<SealedReply<H>>,
    ) -> Result<(H::Done, Bytes), AskError> {
        let reply = reply.map_err(AskError::Hearsay)?;
        let (results, data) = match self.0 {
            None => reply.open_unsealed(),
            Some(Question { keys, setup, session, sequence }) => {
                reply.open(&keys.from_disk, setup, session, sequence)
            }
        }
        .map_err(AskError::Reply)?;
        Ok((results.map_err(AskError::Refused)?, data))
    }
}
