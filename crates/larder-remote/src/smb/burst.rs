//! Bursts of writes: they share an open for writing, from the first one until they are committed.
//!
//! The burst belongs to the file that is open here, so that it ends with its token at the latest. A
//! write without a token has an open of its own. It is not left open for longer: servers report the
//! time of a change late while a client may write (Samba up to 2 s).

use super::files::ServerOpen;
use super::link::Link;
use super::status::Failure;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The open for writing of a file, if there is one.
#[derive(Default)]
pub(super) struct Burst(tokio::sync::Mutex<Option<Writing>>);

struct Writing {
    open: Arc<ServerOpen>,
    /// Writes in flight.
    users: u32,
    /// Something was written that was not committed yet.
    dirty: bool,
}

/// The open through which to commit.
pub(super) enum ToCommit {
    /// Others still write by it, and close it.
    Shared(Arc<ServerOpen>),
    /// It is to be closed with the commit.
    Last(Arc<ServerOpen>),
    /// There is none.
    Nothing,
}

impl Burst {
    /// Begins a write, through the burst's open if there is one, or else through `opening`.
    pub(super) async fn write(
        self: &Arc<Self>,
        link: &Link,
        opening: impl Future<Output = Result<Arc<ServerOpen>, Failure>>,
    ) -> Result<Writer, Failure> {
        let mut held = self.0.lock().await;
        let open = match &mut *held {
            Some(writing) if writing.open.is_on(link) => {
                writing.users += 1;
                Arc::clone(&writing.open)
            }
            _ => {
                *held = None;
                let open = opening.await?;
                *held = Some(Writing { open: Arc::clone(&open), users: 1, dirty: false });
                open
            }
        };
        Ok(Writer { open, burst: Some(Arc::clone(self)), counted_in: true })
    }

    /// Closes the open, and waits until it is.
    pub(super) async fn close(&self) {
        if let Some(writing) = self.0.lock().await.take() {
            writing.open.close().await;
        }
    }

    /// The open through which to commit what was written.
    pub(super) async fn to_commit(&self, link: &Link) -> ToCommit {
        let mut writing = self.0.lock().await;
        match &mut *writing {
            Some(shared) if shared.users > 0 && shared.open.is_on(link) => {
                ToCommit::Shared(Arc::clone(&shared.open))
            }
            _ => match writing.take().filter(|last| last.open.is_on(link)) {
                Some(last) => ToCommit::Last(last.open),
                None => ToCommit::Nothing,
            },
        }
    }

    /// Ends a write. Returns the open if it is no longer needed.
    async fn wrote(&self, open: &Arc<ServerOpen>, unstable: bool) -> Option<Arc<ServerOpen>> {
        let mut held = self.0.lock().await;
        let writing = held.as_mut().filter(|writing| Arc::ptr_eq(&writing.open, open))?;
        writing.users -= 1;
        writing.dirty |= unstable;
        if writing.users > 0 || writing.dirty {
            return None;
        }
        held.take().map(|writing| writing.open)
    }

    /// An open that the server closed is of no use for the next try.
    async fn give_up(&self, open: &Arc<ServerOpen>) {
        let mut held = self.0.lock().await;
        if held.as_ref().is_some_and(|writing| Arc::ptr_eq(&writing.open, open)) {
            *held = None;
        }
    }
}

/// A write in progress, which is ended even if its caller gives it up.
pub(super) struct Writer {
    open: Arc<ServerOpen>,
    /// The burst to which it belongs.
    burst: Option<Arc<Burst>>,
    counted_in: bool,
}

impl Writer {
    /// A write that is part of no burst.
    pub(super) fn alone(open: Arc<ServerOpen>) -> Writer {
        Writer { open, burst: None, counted_in: false }
    }

    /// The open to write through.
    pub(super) fn open(&self) -> &Arc<ServerOpen> {
        &self.open
    }

    fn count_out(&mut self, unstable: bool) -> Option<JoinHandle<Option<Arc<ServerOpen>>>> {
        let burst = self.burst.clone().filter(|_| std::mem::take(&mut self.counted_in))?;
        let open = Arc::clone(&self.open);
        Some(tokio::spawn(async move { burst.wrote(&open, unstable).await }))
    }

    /// Ends the write. Returns the open if it is no longer needed.
    pub(super) async fn done(&mut self, unstable: bool) -> Option<Arc<ServerOpen>> {
        match self.count_out(unstable) {
            Some(counting) => counting.await.unwrap_or(None),
            None => Some(Arc::clone(&self.open)),
        }
    }

    /// The write failed: the next one has another open.
    pub(super) async fn failed(mut self) {
        drop(self.done(false).await);
        if let Some(burst) = &self.burst {
            burst.give_up(&self.open).await;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Some of it may be written, and not flushed.
        drop(self.count_out(true));
    }
}
