//! Puts versions into the archive and deletes them there, as the committer says.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use larder_archive::Source;
use larder_io::Clock;
use tokio::sync::{mpsc, oneshot, watch};

use crate::archive::{Store, Version};
use crate::committer::{Event, ToArchive};
use crate::destaging::is_due;
use crate::disks::Disks;
use crate::live::archiving::{Part, Unread, Work};
use crate::resilvering::tell;

/// With what the worker works.
#[derive(Clone)]
struct Worker {
    store: Arc<dyn Store>,
    disks: Arc<dyn Disks>,
    queue: mpsc::WeakSender<Event>,
}

/// Begins to work, if there is a store.
pub(crate) fn begin(
    store: Option<Arc<dyn Store>>,
    disks: &Arc<dyn Disks>,
    clock: &Arc<dyn Clock>,
    queue: &mpsc::Sender<Event>,
    first: watch::Receiver<Option<std::time::Instant>>,
) {
    let Some(store) = store else { return };
    let worker = Worker { store, disks: Arc::clone(disks), queue: queue.downgrade() };
    tokio::spawn(drive(worker, Arc::clone(clock), first));
}

/// Runs until the committer has ended. `first` is when there is something to do, as the committer
/// publishes it.
async fn drive(
    worker: Worker,
    clock: Arc<dyn Clock>,
    mut first: watch::Receiver<Option<std::time::Instant>>,
) {
    while is_due(&*clock, &mut first).await {
        let (waiter, next) = oneshot::channel();
        if !tell(&worker.queue, Event::Archive(ToArchive::Next(waiter))).await {
            return;
        }
        match next.await {
            Ok(Some(work)) => {
                let worker = worker.clone();
                tokio::spawn(async move { worker.carry_out(work).await });
            }
            Ok(None) => {}
            // The committer changes nothing any more.
            Err(_) => return,
        }
    }
}

impl Worker {
    async fn carry_out(&self, work: Work) {
        let done = match work {
            Work::Put(version, bytes) => {
                let mut source = Reading { worker: self, version };
                let put = self.store.put(&version, bytes, &mut source).await;
                ToArchive::Put(version, put)
            }
            Work::Delete(version) => ToArchive::Deleted(version, self.store.delete(&version).await),
        };
        tell(&self.queue, Event::Archive(done)).await;
    }

    /// Reads bytes of a version from the disks.
    async fn read(&self, version: Version, offset: u64, length: usize) -> io::Result<Bytes> {
        let (mut at, end) = (offset, offset + length as u64);
        let mut bytes = BytesMut::zeroed(length);
        while at < end {
            let (waiter, part) = oneshot::channel();
            let asked = Event::Archive(ToArchive::Part(version, at..end, waiter));
            if !tell(&self.queue, asked).await {
                return Err(io::Error::other("the server ends"));
            }
            let part = part.await.map_err(|_gone| io::Error::other("the server ends"))?;
            let Part { end: next, reads } = part.map_err(|why| match why {
                Unread::Changed => io::Error::other("it was changed"),
                Unread::Away => io::Error::other("its disks are away, or have lost it"),
            })?;
            for one in reads {
                let read = self.disks.read(one.from, one.bytes.clone()).await;
                let read = read.ok_or_else(|| io::Error::other("a disk does not answer"))?;
                let start = usize::try_from(one.offset - offset).map_err(io::Error::other)?;
                bytes[start..start + read.len()].copy_from_slice(&read);
            }
            if next <= at {
                return Err(io::Error::other("nothing of it can be read"));
            }
            at = next;
        }
        Ok(bytes.freeze())
    }
}

/// The bytes of a version that is put.
struct Reading<'a> {
    worker: &'a Worker,
    version: Version,
}

impl Source for Reading<'_> {
    fn read(
        &mut self,
        offset: u64,
        length: usize,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>> {
        Box::pin(self.worker.read(self.version, offset, length))
    }
}
