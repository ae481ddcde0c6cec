//! The negotiation, as larder needs it.
//!
//! The library does not announce that it can encrypt, without which Samba does not, nor that its
//! user knows leases on directories, and offers no choice of versions. So its NEGOTIATE is amended
//! before it is sent (MS-SMB2, 2.2.3). Because SMB 3.1.1 derives its keys from a hash of both
//! messages, they are kept, and the hash is recomputed from them. The last reply to a login is kept
//! too: it contains a server's objections to a ticket, which the library drops.

use super::version::Version;
use smb2::client::Connection;
use smb2::crypto::kdf::PreauthHasher;
use smb2::types::flags::Capabilities;
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

const NEGOTIATE: u16 = 0;
const SESSION_SETUP: u16 = 1;
/// Offsets in the request: how many versions it lists, ascending from 2.0.2, and what it can do.
const VERSIONS_AT: usize = 66;
const CAPABILITIES_AT: usize = 72;

/// Both messages of a negotiation, and the end of a login.
#[derive(Default)]
struct Said {
    request: Vec<u8>,
    reply: Vec<u8>,
    login: Vec<u8>,
}

/// The messages while a connection is made.
pub(super) struct Greeting {
    versions: u16,
    said: Mutex<Said>,
}

fn is(command: u16, frame: &[u8]) -> bool {
    frame.get(..4) == Some(b"\xfeSMB") && frame.get(12..14) == Some(&command.to_le_bytes())
}

impl Greeting {
    /// That offers no version above this one.
    pub(super) fn new(version_max: Version) -> Greeting {
        let versions = match version_max {
            Version::V2_1 => 2,
            Version::V3_0 => 3,
            Version::V3_0_2 => 4,
            Version::V3_1_1 => 5,
        };
        Greeting { versions, said: Mutex::default() }
    }

    /// The message to send.
    pub(super) fn amend<'a>(&self, frame: &'a [u8]) -> Cow<'a, [u8]> {
        if !is(NEGOTIATE, frame) || frame.len() < CAPABILITIES_AT + 4 {
            return Cow::Borrowed(frame);
        }
        let mut amended = frame.to_vec();
        let listed = u16::from_le_bytes([amended[VERSIONS_AT], amended[VERSIONS_AT + 1]]);
        let versions = listed.min(self.versions);
        amended[VERSIONS_AT..VERSIONS_AT + 2].copy_from_slice(&versions.to_le_bytes());
        // All capabilities lie in the first byte.
        let more = Capabilities::ENCRYPTION | Capabilities::DIRECTORY_LEASING;
        amended[CAPABILITIES_AT] |= more.to_le_bytes()[0];
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.request.clone_from(&amended);
        Cow::Owned(amended)
    }

    /// Records a received frame.
    pub(super) fn hear(&self, frame: &[u8]) {
        let (negotiates, logs_in) = (is(NEGOTIATE, frame), is(SESSION_SETUP, frame));
        if negotiates || logs_in {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            frame.clone_into(if negotiates { &mut said.reply } else { &mut said.login });
        }
    }

    /// The last reply to a login, with its header; empty if there was none.
    pub(super) fn login_reply(&self) -> Vec<u8> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).login.clone()
    }

    /// Makes the connection's keys depend on the messages that were sent.
    pub(super) fn hash_into(&self, connection: &Connection) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        connection.with_preauth_hasher_mut(|hasher| {
            *hasher = PreauthHasher::new();
            hasher.update(&said.request);
            hasher.update(&said.reply);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Vec<u8> {
        let mut frame = vec![0; 110];
        frame[..4].copy_from_slice(b"\xfeSMB");
        frame[64] = 36;
        frame[VERSIONS_AT] = 5;
        frame[CAPABILITIES_AT] = 7;
        frame
    }

    #[test]
    fn a_negotiation_is_amended() {
        for (version, count) in [(Version::V2_1, 2), (Version::V3_0_2, 4), (Version::V3_1_1, 5)] {
            let amended = Greeting::new(version).amend(&request()).into_owned();
            assert_eq!((amended[VERSIONS_AT], amended[CAPABILITIES_AT]), (count, 0x67));
        }
    }

    #[test]
    fn the_reply_to_a_login_is_kept() {
        let greeting = Greeting::new(Version::V3_1_1);
        let mut reply = request();
        greeting.hear(&reply);
        assert!(greeting.login_reply().is_empty());
        reply[12] = 1;
        greeting.hear(&reply);
        assert_eq!(greeting.login_reply(), reply);
    }

    #[test]
    fn everything_else_passes_as_it_is() {
        let greeting = Greeting::new(Version::V2_1);
        let mut other = request();
        other[12] = 1;
        assert!(matches!(greeting.amend(&other), Cow::Borrowed(_)));
        assert!(matches!(greeting.amend(&request()[..70]), Cow::Borrowed(_)));
        assert!(matches!(greeting.amend(b"\xfdSMB"), Cow::Borrowed(_)));
    }
}
