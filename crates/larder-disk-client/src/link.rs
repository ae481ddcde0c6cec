//! One session with one disk, made and remade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_rpc::{CallOptions, RpcClient};
use larder_wire::capability::BootEpoch;
use larder_wire::disk::sealed::ReplyError;
use larder_wire::disk::session::{AskError, Hailing, Session};
use larder_wire::disk::words::{FlushHead, HandshakeCall, Head, ReadHead, Remedy};
use larder_wire::rpc::Credential;
use larder_wire::seal::{KEY_BYTES, Secret};

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
    over: Option<Arc<Session>>,
}

/// A session in use by one request. If the request may still take effect later, unobserved, the
/// session must not be used again.
struct InUse<'a> {
    link: &'a Link,
    session: Arc<Session>,
    may_come_later: bool,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        if self.may_come_later {
            self.link.retire(&self.session);
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
        if let Some(session) = self.current() {
            session.skip_to(sequence);
        }
    }

    /// Counts an answer that is not from the disk.
    pub(crate) fn not_genuine(&self, why: ReplyError) -> DiskError {
        self.forged.fetch_add(1, Relaxed);
        DiskError::NotGenuine(why)
    }

    /// Calls the disk, with the secret of the capability in `head`, or `None` if it has none.
    /// Returns the results, the data, and the boot of the disk that answered.
    pub(crate) async fn call<H: Head>(
        &self,
        hail: &impl Hail,
        secret: Option<&Secret>,
        head: &H,
        data: Bytes,
        options: CallOptions,
    ) -> Result<(H::Done, Bytes, BootEpoch), DiskError> {
        let mut tries = 1;
        loop {
            let session = self.session(hail, options).await?;
            let boot = session.boot();
            let asked = match secret {
                Some(secret) => session.ask(secret, head, data.clone()),
                None => session.order(head),
            };
            let mut in_use = InUse { link: self, session, may_come_later: true };
            let Ok((request, asked)) = asked else { continue };
            // These do no harm whenever they are executed.
            let does_harm = ![ReadHead::NUMBER, FlushHead::NUMBER].contains(&H::NUMBER);
            in_use.may_come_later = does_harm;
            let reply = self.rpc.call(&Credential::None, &request, options).await;
            let reply = reply.map_err(DiskError::Rpc)?.results;
            let answered = asked.answered::<H>(reply);
            in_use.may_come_later = match &answered {
                Err(AskError::Reply(_)) => true,
                // Anybody can say so, and let the request come later.
                Err(AskError::Hearsay(refusal)) => {
                    does_harm || refusal.remedy() == Remedy::Handshake
                }
                Ok(_) | Err(AskError::Refused(_)) => false,
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

    /// The session; makes one if there is none.
    async fn session(
        &self,
        hail: &impl Hail,
        options: CallOptions,
    ) -> Result<Arc<Session>, DiskError> {
        match self.current() {
            Some(session) => Ok(session),
            // Boxed: each call has room for it, and hardly any makes it.
            None => Box::pin(self.begin_session(hail, options)).await,
        }
    }

    async fn begin_session(
        &self,
        hail: &impl Hail,
        options: CallOptions,
    ) -> Result<Arc<Session>, DiskError> {
        let _hailing = self.hailing.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let over = self.slot().over.clone();
        let (call, hailing) = hail(larder_io::secret::random(), over.as_deref());
        let reply = self.rpc.call(&Credential::None, &call, options).await;
        let done = reply.map_err(DiskError::Rpc)?.results.map_err(DiskError::Hearsay)?;
        let session = hailing.welcomed(&done);
        let session = session.map_err(|forged| self.not_genuine(forged.into()))?;
        let session = Arc::new(session);
        *self.slot() = Slot { current: Some(Arc::clone(&session)), over: None };
        Ok(session)
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.slot().current.clone()
    }

    /// A session is used no longer.
    fn retire(&self, session: &Arc<Session>) {
        let mut slot = self.slot();
        if slot.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            slot.over = slot.current.take();
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
