//! The duplicate request cache: replies to calls that must not be carried out twice.
//!
//! A client that gets no reply sends its call again: over UDP after a while, over TCP after a
//! reconnect, perhaps from another port. Carrying out a REMOVE again would return "no such file" to
//! the client that removed it; repeating an old WRITE would overwrite a newer one. So a call is
//! recognised by its xid, its source address, its length and a hash of its bytes, including the
//! credential.
//!
//! Invariants: at most [`ENTRIES_MAX`] entries and [`BYTES_MAX`] bytes of replies, the oldest leave
//! first; entries older than [`AGE_MAX`] are ignored, because clients reuse their xids. A pure
//! state machine: the caller brings the time and does the waiting.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

/// Most calls that are remembered.
const ENTRIES_MAX: usize = 4096;
/// Most bytes of remembered replies. They are short: a few hundred bytes each.
const BYTES_MAX: usize = 4 << 20;
/// How long a reply is kept. Clients give up, or reconnect, much earlier.
const AGE_MAX: Duration = Duration::from_secs(120);
/// Bytes at the start and at the end of a call that are hashed. All calls but WRITE and SYMLINK are
/// shorter; of their payload, only the length and the two ends are hashed.
const HASHED_BYTES: usize = 2048;

/// Identifies a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    address: IpAddr,
    xid: u32,
    len: usize,
    hash: u64,
}

/// What to do with a call.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Execute it, then call [`Duplicates::finish`].
    New,
    /// It was executed: send this reply.
    Done(Bytes),
    /// It is being executed. The reply comes through this channel; if the call is given up, the
    /// channel closes.
    Running(watch::Receiver<Option<Bytes>>),
}

#[derive(Debug)]
enum State {
    Running(watch::Sender<Option<Bytes>>),
    Done { reply: Bytes, at: Instant },
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    hasher: RandomState,
    calls: HashMap<Key, State>,
    /// Answered calls, oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Duplicates {
    /// The key of a call: `message` begins with its xid.
    pub(crate) fn key(&self, address: IpAddr, xid: u32, message: &[u8]) -> Key {
        let start = &message[..message.len().min(HASHED_BYTES)];
        let end = &message[message.len().saturating_sub(HASHED_BYTES)..];
        Key {
            address: address.to_canonical(),
            xid,
            len: message.len(),
            hash: self.hasher.hash_one((start, end)),
        }
    }

    /// A call arrived.
    pub(crate) fn begin(&mut self, key: Key, now: Instant) -> Verdict {
        match self.calls.get(&key) {
            Some(State::Running(sender)) => return Verdict::Running(sender.subscribe()),
            Some(State::Done { reply, at }) if now.duration_since(*at) <= AGE_MAX => {
                return Verdict::Done(reply.clone());
            }
            Some(State::Done { .. }) => self.forget(key),
            None => {}
        }
        // The number of running calls is bounded by what all connections may have in flight; if
        // that is large, the rest run without protection rather than being refused.
        if self.calls.len() - self.order.len() < ENTRIES_MAX {
            self.calls.insert(key, State::Running(watch::Sender::new(None)));
        }
        Verdict::New
    }

    /// A call was answered or, with `None`, given up: then it may be tried again.
    pub(crate) fn finish(&mut self, key: Key, reply: Option<Bytes>, now: Instant) {
        let Some(State::Running(waiting)) = self.calls.remove(&key) else { return };
        let Some(reply) = reply else { return };
        debug_assert!(waiting.borrow().is_none(), "a call is answered once");
        waiting.send_replace(Some(reply.clone()));
        self.bytes += reply.len();
        self.order.push_back(key);
        self.calls.insert(key, State::Done { reply, at: now });
        while self.order.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.drop_reply(oldest);
        }
        debug_assert!(
            self.order.len() <= ENTRIES_MAX && self.bytes <= BYTES_MAX,
            "what is remembered is bounded"
        );
        debug_assert!(self.calls.len() >= self.order.len(), "what is in order is known");
    }

    fn forget(&mut self, key: Key) {
        self.order.retain(|other| *other != key);
        self.drop_reply(key);
    }

    fn drop_reply(&mut self, key: Key) {
        if let Some(State::Done { reply, .. }) = self.calls.remove(&key) {
            assert!(
                self.bytes >= reply.len(),
                "the bytes of a reply that is remembered are counted"
            );
            self.bytes -= reply.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(cache: &Duplicates, xid: u32) -> Key {
        cache.key(IpAddr::from([127, 0, 0, 1]), xid, b"call")
    }

    fn reply(text: &'static str) -> Option<Bytes> {
        Some(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_call_is_carried_out_once() {
        let (mut cache, now) = (Duplicates::default(), Instant::now());
        let key = key(&cache, 1);
        assert!(matches!(cache.begin(key, now), Verdict::New));
        let Verdict::Running(mut waiting) = cache.begin(key, now) else { panic!("it runs") };
        cache.finish(key, reply("done"), now);
        assert_eq!(*waiting.wait_for(Option::is_some).await.unwrap(), reply("done"));
        let Verdict::Done(again) = cache.begin(key, now + AGE_MAX) else { panic!("it is done") };
        assert_eq!(Some(again), reply("done"));
        let late = now + AGE_MAX + Duration::from_millis(1);
        assert!(matches!(cache.begin(key, late), Verdict::New), "the xid is used again");
    }

    #[tokio::test]
    async fn a_call_that_was_given_up_may_be_tried_again() {
        let (mut cache, now) = (Duplicates::default(), Instant::now());
        let key = key(&cache, 1);
        assert!(matches!(cache.begin(key, now), Verdict::New));
        let Verdict::Running(mut waiting) = cache.begin(key, now) else { panic!("it runs") };
        cache.finish(key, None, now);
        assert!(waiting.wait_for(Option::is_some).await.is_err());
        assert!(matches!(cache.begin(key, now), Verdict::New));
    }

    #[test]
    fn calls_differ_by_all_that_a_key_has() {
        let cache = Duplicates::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        let long = vec![7; 3 * HASHED_BYTES];
        let base = cache.key(address, 1, &long);
        assert_eq!(base, cache.key("::ffff:127.0.0.1".parse().unwrap(), 1, &long));
        assert_ne!(base, cache.key(IpAddr::from([127, 0, 0, 2]), 1, &long));
        assert_ne!(base, cache.key(address, 2, &long));
        assert_ne!(base, cache.key(address, 1, &long[1..]));
        for at in [0, long.len() - 1] {
            let mut other = long.clone();
            other[at] = 8;
            assert_ne!(base, cache.key(address, 1, &other));
        }
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let (mut cache, now) = (Duplicates::default(), Instant::now());
        let big = Bytes::from(vec![0; BYTES_MAX / 4]);
        for xid in 0..2 * ENTRIES_MAX as u32 {
            let key = key(&cache, xid);
            cache.begin(key, now);
            let reply = if xid % 512 == 0 { big.clone() } else { Bytes::from_static(b"x") };
            cache.finish(key, Some(reply), now);
            assert!(cache.calls.len() <= ENTRIES_MAX && cache.order.len() == cache.calls.len());
            assert!(cache.bytes <= BYTES_MAX);
        }
        assert!(matches!(cache.begin(key(&cache, 0), now), Verdict::New), "the oldest left");
        let newest = key(&cache, 2 * ENTRIES_MAX as u32 - 1);
        assert!(matches!(cache.begin(newest, now), Verdict::Done(_)));
        let running: Vec<Key> = (0..2 * ENTRIES_MAX as u32).map(|xid| key(&cache, !xid)).collect();
        for key in &running {
            assert!(matches!(cache.begin(*key, now), Verdict::New));
        }
        assert!(cache.calls.len() <= 2 * ENTRIES_MAX);
    }
}
