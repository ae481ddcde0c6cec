//! Keys and seals of the program of disks: a seal proves which side sent a message.
//!
//! ```text
//! master key                 random; a file of the disk, and one of the metadata server
//! ├─ control secret          identifies the metadata server
//! └─ disk key of an epoch    with which capabilities are made
//!    └─ capability's secret  goes to the client with its capability, never to the disk
//!
//! session key   from the secret of the handshake and a nonce of each side
//! request keys  one for each direction, from what a request presents, and the session key
//! ```
//!
//! Each step is HMAC-SHA-256 (RFC 2104) under the one above, over a label and values of fixed form.
//! Requests and replies are sealed by AES-256-GCM (NIST SP 800-38D), whose nonce is the sequence
//! number of the request in its session.
//!
//! Invariants:
//! - No two messages have the same key and nonce. A session never uses a sequence number twice, a
//!   disk accepts it once, and answers it once under seal; each direction has its own key; a side
//!   that restarts draws another nonce, so there are other keys.
//! - A key is never shown by `Debug`.
//!
//! Each step takes longer than the seal on a short message, so callers keep what they derived
//! ([`Kept`]); [`derived`] counts, so that tests can prove it.
//!
//! Absent on purpose: randomness. The caller provides the bytes of a nonce or a key.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use aws_lc_rs::hmac;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::capability::{Capability, DiskId, KeyEpoch, VolumeId};
use crate::xdr::{Encode, Encoder, Framing, to_segments};

pub use kept::Kept;

mod kept;

/// Length of keys, secrets and nonces of handshakes, in bytes.
pub const KEY_BYTES: usize = 32;
/// Length of the seal on a request or reply, in bytes.
pub const TAG_BYTES: usize = 16;

/// Bytes whose seal is not their claimed sender's.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the seal is not that of these bytes")]
pub struct Forged;

xdr_enum! {
    /// How clients' requests to the disks of a volume are protected.
    ///
    /// `Off`: not at all: anyone who can reach a disk may do everything; for measurements.
    /// `Secure`: a client without a capability can do nothing, and nothing can be altered.
    /// `Private`: besides that, only the client and the disk can read the data.
    Setup { Off = 0, Secure = 1, Private = 2 }
}

impl Setup {
    /// All of them.
    pub const ALL: [Setup; 3] = [Setup::Off, Setup::Secure, Setup::Private];

    /// It as people and text files write it.
    pub fn name(self) -> &'static str {
        match self {
            Setup::Off => "off",
            Setup::Secure => "secure",
            Setup::Private => "private",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Setup> {
        Setup::ALL.into_iter().find(|setup| setup.name() == name)
    }
}

/// Defines a key of [`KEY_BYTES`] that does not show itself.
macro_rules! keys {
    ($( $(#[$meta:meta])* $name:ident; )+) => { $(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name([u8; KEY_BYTES]);

        impl $name {
            /// The key with these bytes.
            pub fn new(bytes: [u8; KEY_BYTES]) -> $name {
                $name(bytes)
            }

            /// Its bytes. They are the secret itself.
            pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
                &self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )+ };
}

keys! {
    /// Proves that its holder was granted a capability, or is the metadata server.
    Secret;
    /// The key that a client and a disk share for a session.
    SessionKey;
}

/// The secret that a disk and the metadata server of its volume share. It remembers the keys that
/// were derived of it last, and clones remember together.
#[derive(Clone)]
pub struct MasterKey {
    bytes: [u8; KEY_BYTES],
    /// Keys of the epochs that were asked for last, the latest first.
    epochs: Arc<Mutex<Epochs>>,
}

type Epochs = Vec<(KeyEpoch, Arc<DiskKey>)>;

/// Epochs whose keys are remembered: a disk accepts two at a time.
const EPOCHS_MAX: usize = 2;

impl MasterKey {
    /// The key with these bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> MasterKey {
        MasterKey { bytes, epochs: Arc::default() }
    }

    /// Its bytes. They are the secret itself.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    /// The key that capabilities of `epoch` are made with.
    pub fn disk_key(&self, epoch: KeyEpoch) -> Arc<DiskKey> {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = epochs.iter().find(|(known, _)| *known == epoch) {
            return Arc::clone(key);
        }
        let label = "larder disk key 1";
        let key = Arc::new(DiskKey::new(derive(&self.bytes, label, &[&encoded(&epoch)])));
        epochs.truncate(EPOCHS_MAX - 1);
        epochs.insert(0, (epoch, Arc::clone(&key)));
        key
    }

    /// The secret by which the metadata server identifies itself to a disk.
    pub fn control_secret(&self, volume: VolumeId, disk: DiskId) -> Secret {
        let parts: [&[u8]; 2] = [&encoded(&volume), &encoded(&disk)];
        Secret(derive(&self.bytes, "larder disk control 1", &parts))
    }
}

impl PartialEq for MasterKey {
    fn eq(&self, other: &MasterKey) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for MasterKey {}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// The key with which a disk's capabilities of one key epoch are made.
pub struct DiskKey {
    bytes: [u8; KEY_BYTES],
    /// The same, ready for use.
    ready: hmac::Key,
}

impl std::fmt::Debug for DiskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskKey(..)")
    }
}

impl DiskKey {
    fn new(bytes: [u8; KEY_BYTES]) -> DiskKey {
        DiskKey { bytes, ready: ready(&bytes) }
    }

    /// Its bytes. They are the secret itself.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    /// The secret that belongs to a capability. Of its extents, only the SHA-256 is included.
    pub fn secret(&self, capability: &Capability) -> Secret {
        let Capability { volume, disk, boot, key, group, id, mode, expiry_ms, extents } =
            capability;
        let mut fixed = Encoder::new(Framing::Datagram, 64);
        volume.encode(&mut fixed);
        disk.encode(&mut fixed);
        boot.encode(&mut fixed);
        key.encode(&mut fixed);
        group.encode(&mut fixed);
        id.encode(&mut fixed);
        mode.encode(&mut fixed);
        expiry_ms.encode(&mut fixed);
        let extents = digest::digest(&digest::SHA256, &encoded(extents));
        let parts: [&[u8]; 2] = [&fixed.finish().to_bytes(), extents.as_ref()];
        Secret(derive_ready(&self.ready, "larder disk capability 1", &parts))
    }
}

impl Secret {
    /// The key of a session that is made by a handshake under this.
    pub fn session_key(&self, client: &[u8; KEY_BYTES], disk: &[u8; KEY_BYTES]) -> SessionKey {
        SessionKey(derive(&self.0, "larder disk session 1", &[client, disk]))
    }

    /// The seal that proves that a handshake's hello comes from the holder of this secret.
    pub fn sign_hello(&self, hello: &impl Encode) -> [u8; KEY_BYTES] {
        derive(&self.0, "larder disk hello 1", &[&encoded(hello)])
    }

    /// Checks that `mac` is the one of [`sign_hello`](Self::sign_hello).
    ///
    /// # Errors
    /// [`Forged`]
    pub fn check_hello(&self, hello: &impl Encode, mac: &[u8; KEY_BYTES]) -> Result<(), Forged> {
        equal(&self.sign_hello(hello), mac)
    }

    /// Proves that whoever writes what is read under another capability holds that one's secret,
    /// which this is. `claim` says what is read and written.
    pub fn sign_source(&self, claim: &impl Encode) -> [u8; KEY_BYTES] {
        derive(&self.0, "larder disk source 1", &[&encoded(claim)])
    }

    /// Checks that `proof` is the one of [`sign_source`](Self::sign_source).
    ///
    /// # Errors
    /// [`Forged`]
    pub fn check_source(&self, claim: &impl Encode, proof: &[u8; KEY_BYTES]) -> Result<(), Forged> {
        equal(&self.sign_source(claim), proof)
    }
}

impl SessionKey {
    /// The seal that proves that a welcome comes from the disk to which the hello was sent.
    pub fn sign_welcome(&self, welcome: &impl Encode) -> [u8; KEY_BYTES] {
        derive(&self.0, "larder disk welcome 1", &[&encoded(welcome)])
    }

    /// Checks that `mac` is the one of [`sign_welcome`](Self::sign_welcome).
    ///
    /// # Errors
    /// [`Forged`]
    pub fn check_welcome(&self, welcome: &impl Encode, mac: &[u8; 32]) -> Result<(), Forged> {
        equal(&self.sign_welcome(welcome), mac)
    }

    /// Proves that a handshake, with this nonce of the client, may end this session.
    pub fn sign_ending(&self, client: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        derive(&self.0, "larder disk ending 1", &[client])
    }

    /// Checks that `mac` is the one of [`sign_ending`](Self::sign_ending).
    ///
    /// # Errors
    /// [`Forged`]
    pub fn check_ending(&self, client: &[u8; KEY_BYTES], mac: &[u8; 32]) -> Result<(), Forged> {
        equal(&self.sign_ending(client), mac)
    }

    /// The keys of requests that present the capability to which `secret` belongs.
    pub fn request_keys(&self, secret: &Secret) -> RequestKeys {
        let secret = ready(&secret.0);
        let key = |label| SealKey::new(&derive_ready(&secret, label, &[&self.0]));
        RequestKeys { to_disk: key("larder disk request 1"), from_disk: key("larder disk reply 1") }
    }
}

/// Keys of the requests of one session that present one capability, and of their replies.
#[derive(Debug)]
pub struct RequestKeys {
    /// Of requests.
    pub to_disk: SealKey,
    /// Of replies.
    pub from_disk: SealKey,
}

/// A key that seals messages of one direction.
pub struct SealKey(LessSafeKey);

impl SealKey {
    fn new(key: &[u8; KEY_BYTES]) -> SealKey {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the key has the length of such keys");
        SealKey(LessSafeKey::new(key))
    }

    /// Seals `head` and `data`, and encrypts `data` in a `Private` setup: returns the seal, and the
    /// bytes to send for the data. Data that is not shared is encrypted in place.
    ///
    /// `head` is used up. No two calls for one key may have the same `sequence`.
    pub fn seal(&self, setup: Setup, sequence: u64, head: Vec<u8>, data: Bytes) -> (Tag, Bytes) {
        if setup != Setup::Private {
            return (self.authenticate(sequence, head, &data), data);
        }
        let mut data = data.try_into_mut().unwrap_or_else(|data| BytesMut::from(&data[..]));
        let tag =
            self.0.seal_in_place_separate_tag(nonce(sequence), Aad::from(&head[..]), &mut data);
        (
            to_tag(tag.expect("messages are far shorter than the limit of GCM").as_ref()),
            data.freeze(),
        )
    }

    /// Checks a seal, and decrypts `data` in a `Private` setup. `head` is used up.
    ///
    /// # Errors
    /// [`Forged`]
    pub fn open(
        &self,
        setup: Setup,
        sequence: u64,
        head: Vec<u8>,
        tag: &Tag,
        data: Bytes,
    ) -> Result<Bytes, Forged> {
        if setup != Setup::Private {
            equal(&self.authenticate(sequence, head, &data), tag)?;
            return Ok(data);
        }
        let mut clear = BytesMut::zeroed(data.len());
        let opened = self.0.open_separate_gather(
            nonce(sequence),
            Aad::from(&head[..]),
            &data,
            tag,
            &mut clear,
        );
        opened.map(|()| clear.freeze()).map_err(|_| Forged)
    }

    /// The seal on content that stays readable. GCM authenticates the data, which is long, as
    /// "additional" data, and encrypts the head in place, of which only the tag is used: so
    /// neither is copied, and both sides can compute the tag.
    fn authenticate(&self, sequence: u64, mut head: Vec<u8>, data: &[u8]) -> Tag {
        let tag = self.0.seal_in_place_separate_tag(nonce(sequence), Aad::from(data), &mut head);
        to_tag(tag.expect("messages are far shorter than the limit of GCM").as_ref())
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// The seal on a message.
pub type Tag = [u8; TAG_BYTES];

fn to_tag(bytes: &[u8]) -> Tag {
    bytes.try_into().expect("tags of GCM have this length")
}

fn nonce(sequence: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&sequence.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

thread_local! {
    static DERIVED: Cell<u64> = const { Cell::new(0) };
}

/// How many keys, secrets and proofs this thread has derived.
pub fn derived() -> u64 {
    DERIVED.get()
}

/// A key derived from `key`.
fn derive(key: &[u8; KEY_BYTES], label: &str, parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    derive_ready(&ready(key), label, parts)
}

/// HMAC hashes a key twice before it hashes what it is used for.
fn ready(key: &[u8; KEY_BYTES]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key)
}

/// A key derived from `key`. `parts` have a fixed form for each label, so that they are
/// unambiguous.
fn derive_ready(key: &hmac::Key, label: &str, parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    DERIVED.set(DERIVED.get() + 1);
    let length = label.len() + 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Vec::with_capacity(length);
    message.extend(label.as_bytes());
    message.push(0);
    parts.iter().for_each(|part| message.extend(*part));
    hmac::sign(key, &message).as_ref().try_into().expect("SHA-256 has this length")
}

fn encoded(value: &impl Encode) -> Bytes {
    to_segments(value).to_bytes()
}

fn equal(ours: &[u8], theirs: &[u8]) -> Result<(), Forged> {
    verify_slices_are_equal(ours, theirs).map_err(|_| Forged)
}

#[cfg(test)]
mod tests;
