//! One session with one disk, made and remade.
//!
//! An abandoned request never takes effect after a later one: the session is made anew first, and
//! the disk ends the previous one for that. One refusal is an exception, since it costs a writer a
//! round trip less: somebody says, without a seal, that the disk no longer has the key of a write's
//! capability. The metadata server makes capabilities with a key when the disk has it, and no
//! request is under way any more that the disk does not accept since. So a capability with a key by
//! which the disk does not accept the refused one proves that the write has ended.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_rpc::{CallOptions, RpcClient};
use larder_wire::capability::{BootEpoch, KeyEpoch};
use larder_wire::disk::sealed::ReplyError;
use larder_wire::disk::session::{AskError, Granted, Hailing, Session};
use larder_wire::disk::words::{FlushHead, HandshakeCall, Head, ReadHead, Refusal, Remedy};
use larder_wire::rpc::Credential;
use larder_wire::seal::KEY_BYTES;

use crate::DiskError;

/// How often a request is sent: once, and once more in a new session.
const TRIES_MAX: u32 = 2;

/// How to begin a session: from a nonce, and the session that has ended.
pub(crate) trait Hail:
    Fn([u8; KEY_BYTES], Option<&Session>) -> (HandshakeCall, Hailing)
{
}
impl<F: Fn([u8; KEY_BYTES], Option<&Session>) -> (HandshakeCall, Hailing)> Hail for F {}

/// Calls to a disk in a session.
#[derive(Debug)]
pub(crate) struct Link {
    rpc: RpcClient,
    slot: Mutex<Slot>,
    /// Held by the task that performs a handshake.
    hailing: tokio::sync::Mutex<()>,
    /// Answers that were not from the disk, or not to the request.
    forged: AtomicU64,
}

/// The session in use, and the previous one, which the disk has not yet been told to end.
#[derive(Debug, Default)]
struct Slot {
    current: Option<Arc<Session>>,
    /// The last key of requests of it that may come later, unless the disk does not accept that key
    /// any more.
    doubted: Option<KeyEpoch>,
    over: Option<Arc<Session>>,
}

impl Slot {
    /// The session in use, if a request that shows a capability with this key cannot be overtaken
    /// by an earlier one.
    fn usable(&mut self, shown: Option<KeyEpoch>) -> Option<Arc<Session>> {
        let is_over = |doubted: KeyEpoch| {
            shown.is_some_and(|shown| shown > doubted && !shown.accepts(doubted))
        };
        self.doubted.take_if(|doubted| is_over(*doubted));
        self.current.clone().filter(|_| self.doubted.is_none())
    }

    fn is_current(&self, session: &Arc<Session>) -> bool {
        self.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session))
    }
}

/// Whether a request may still take effect, unobserved.
#[derive(Clone, Copy)]
enum Later {
    Never,
    /// Then its session must not be used again.
    Perhaps,
    /// The same, unless the disk does not accept its key any more.
    PerhapsUnder(KeyEpoch),
}

/// A session in use by one request.
struct InUse<'a> {
    link: &'a Link,
    session: Arc<Session>,
    later: Later,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        match self.later {
            Later::Never => {}
            Later::Perhaps => self.link.retire(&self.session),
            Later::PerhapsUnder(key) => self.link.doubt(&self.session, key),
        }
    }
}

impl Link {
    pub(crate) fn new(rpc: RpcClient) -> Link {
        let (slot, hailing) = (Mutex::default(), tokio::sync::Mutex::default());
        Link { rpc, slot, hailing, forged: AtomicU64::new(0) }
    }

    /// How many answers were not from the disk, or not to their requests.
    pub(crate) fn forged(&self) -> u64 {
        self.forged.load(Relaxed)
    }

    /// For tests ([`Session::skip_to`]).
    pub(crate) fn skip_to(&self, sequence: u64) {
        if let Some(session) = &self.slot().current {
            session.skip_to(sequence);
        }
    }

    /// Counts an answer that is not from the disk.
    pub(crate) fn not_genuine(&self, why: ReplyError) -> DiskError {
        self.forged.fetch_add(1, Relaxed);
        DiskError::NotGenuine(why)
    }

    /// Calls the disk. `shows` is the capability in `head`, if there is one.
    /// Returns the results, the data, and the boot of the disk that answered.
    pub(crate) async fn call<H: Head>(
        &self,
        hail: &impl Hail,
        shows: Option<&Granted>,
        head: &H,
        data: Bytes,
        options: CallOptions,
    ) -> Result<(H::Done, Bytes, BootEpoch), DiskError> {
        let mut tries = 1;
        loop {
            let key = shows.map(|granted| granted.capability.key);
            let session = self.session(hail, key, options).await?;
            let boot = session.boot();
            let asked = match shows {
                Some(granted) => session.ask(&granted.secret, head, data.clone()),
                None => session.order(head, data.clone()),
            };
            let mut in_use = InUse { link: self, session, later: Later::Perhaps };
            let Ok((request, asked)) = asked else { continue };
            // These do no harm whenever they are executed.
            let does_harm = ![ReadHead::NUMBER, FlushHead::NUMBER].contains(&H::NUMBER);
            in_use.later = if does_harm { Later::Perhaps } else { Later::Never };
            let reply = self.rpc.call(&Credential::None, &request, options).await;
            let reply = reply.map_err(DiskError::Rpc)?.results;
            let answered = asked.answered::<H>(reply);
            in_use.later = match (&answered, key) {
                (Err(AskError::Reply(_)), _) => Later::Perhaps,
                // Anybody can say so, and let the request come later.
                (Err(AskError::Hearsay(Refusal::OldKey)), Some(key)) if does_harm => {
                    Later::PerhapsUnder(key)
                }
                (Err(AskError::Hearsay(refusal)), _)
                    if does_harm || refusal.remedy() == Remedy::Handshake =>
                {
                    Later::Perhaps
                }
                (Ok(_) | Err(AskError::Refused(_) | AskError::Hearsay(_)), _) => Later::Never,
            };
            match answered {
                Ok((done, data)) => return Ok((done, data, boot)),
                Err(AskError::Hearsay(refusal))
                    if refusal.remedy() == Remedy::Handshake && tries < TRIES_MAX => {}
                Err(AskError::Reply(why)) => return Err(self.not_genuine(why)),
                Err(AskError::Refused(refusal)) => return Err(DiskError::Refused(refusal)),
                Err(AskError::Hearsay(refusal)) => return Err(DiskError::Hearsay(refusal)),
            }
            tries += 1;
        }
    }

    /// The session for a request that shows a capability with this key; makes one if there is none.
    async fn session(
        &self,
        hail: &impl Hail,
        shown: Option<KeyEpoch>,
        options: CallOptions,
    ) -> Result<Arc<Session>, DiskError> {
        let usable = self.slot().usable(shown);
        match usable {
            Some(session) => Ok(session),
            // Boxed: each call has room for it, and hardly any makes it.
            None => Box::pin(self.begin_session(hail, shown, options)).await,
        }
    }

    async fn begin_session(
        &self,
        hail: &impl Hail,
        shown: Option<KeyEpoch>,
        options: CallOptions,
    ) -> Result<Arc<Session>, DiskError> {
        let _hailing = self.hailing.lock().await;
        let ends = {
            let mut slot = self.slot();
            if let Some(session) = slot.usable(shown) {
                return Ok(session);
            }
            // It stays in use if the disk does not know this key any more: the next one may show
            // that all is well.
            slot.current.clone().or_else(|| slot.over.clone())
        };
        let (call, hailing) = hail(larder_io::secret::random(), ends.as_deref());
        let reply = self.rpc.call(&Credential::None, &call, options).await;
        let done = reply.map_err(DiskError::Rpc)?.results.map_err(DiskError::Hearsay)?;
        let session = hailing.welcomed(&done);
        let session = session.map_err(|forged| self.not_genuine(forged.into()))?;
        let session = Arc::new(session);
        *self.slot() = Slot { current: Some(Arc::clone(&session)), ..Slot::default() };
        Ok(session)
    }

    /// A session is used no longer.
    fn retire(&self, session: &Arc<Session>) {
        let mut slot = self.slot();
        if slot.is_current(session) {
            slot.over = slot.current.take();
            slot.doubted = None;
        }
    }

    /// A session is used no longer unless the disk does not accept this key any more.
    fn doubt(&self, session: &Arc<Session>, key: KeyEpoch) {
        let mut slot = self.slot();
        if slot.is_current(session) {
            slot.doubted = slot.doubted.max(Some(key));
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
