//! Operations on bytes of disks that the metadata server performs as a client: it copies them from
//! one disk to another, because disks do not talk to each other, and makes them durable.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl, DiskError};
use larder_io::Clock;
use larder_rpc::{CallOptions, Config, ConnectError, RpcClient, Transport};
use larder_wire::capability::DiskId;
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::disk::session::Granted;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::extents::extents;
use super::outcome::Outcome;
use super::questions::{self, Questions, TOGETHER_WAIT, Waiting};

/// How long a disk may take for a request.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a disk waits for bytes that a client says are in flight. A disk that takes longer has
/// so much to do that it costs little if the client waits for it first.
const WRITTEN_WAIT: Duration = Duration::from_secs(1);

/// The connections to a disk, made when they are first used.
#[derive(Debug)]
pub(super) struct Data {
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    client: OnceCell<DiskClient>,
    /// To ask whether something was written. Separate from the connection for orders, which must
    /// not wait.
    control: OnceCell<DiskControl>,
    questions: Questions,
    whose: Control,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDone {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the disk gives fewer bytes than asked for")]
    Short,
}

impl Data {
    pub(super) fn new(address: SocketAddr, whose: Control, clock: &Arc<dyn Clock>) -> Data {
        let clock = Arc::clone(clock);
        let (client, control) = (OnceCell::new(), OnceCell::new());
        Data { address, clock, client, control, questions: Questions::default(), whose }
    }

    async fn client(&self) -> Result<&DiskClient, ConnectError> {
        let connect = async || self.connect().await.map(DiskClient::new);
        self.client.get_or_try_init(connect).await
    }

    async fn control(&self) -> Result<&DiskControl, ConnectError> {
        let connect = async || Ok(DiskControl::new(self.connect().await?, self.whose.clone()));
        self.control.get_or_try_init(connect).await
    }

    async fn connect(&self) -> Result<RpcClient, ConnectError> {
        let mut config = Config::new(self.address, Transport::Tcp, DISK_PROGRAM);
        (config.connections, config.timeout) = (1, ANSWER_MAX);
        config.retransmissions = 0;
        config.clock = Arc::clone(&self.clock);
        RpcClient::connect(config).await
    }

    /// Waits until these blocks have been written. Resolves to whether they were, durably; a disk
    /// that does not confirm it in time has not written them. It is asked from now on. To be called
    /// within a tokio runtime.
    pub(super) fn has_written(
        self: &Arc<Data>,
        blocks: Vec<Range<u64>>,
    ) -> impl Future<Output = bool> + Send + use<> {
        let waiting = self.questions.add(blocks);
        if waiting.as_ref().is_some_and(|waiting| waiting.is_to_ask) {
            let data = Arc::clone(self);
            tokio::spawn(async move { data.ask_all().await });
        }
        async move {
            match waiting {
                Some(Waiting { answer, .. }) => answer.await.unwrap_or(false),
                None => false,
            }
        }
    }

    /// Asks the disk what waits, until nothing does.
    async fn ask_all(self: &Arc<Data>) {
        while let Some(mut questions) = self.questions.next() {
            if questions.len() > 1 {
                match self.ask(&questions::together(&questions), TOGETHER_WAIT).await {
                    Some(true) => {
                        questions.drain(..).for_each(|question| question.answer(true));
                    }
                    // Whose bytes these are is not known, or the disk refuses one of them.
                    Some(false) => {}
                    None => questions.drain(..).for_each(|question| question.answer(false)),
                }
            }
            let mut asked = JoinSet::new();
            for question in questions {
                let data = Arc::clone(self);
                asked.spawn(async move {
                    let is_written = data.ask(&question.blocks, WRITTEN_WAIT).await;
                    question.answer(is_written.unwrap_or(false));
                });
            }
            let all = async { while asked.join_next().await.is_some() {} };
            // Later ones do not wait for bytes that do not come.
            let _ = self.clock.timeout(TOGETHER_WAIT, all).await;
            asked.detach_all();
        }
    }

    /// Asks the disk, which waits so long. `None`: it does not answer.
    async fn ask(&self, blocks: &[Range<u64>], wait: Duration) -> Option<bool> {
        let asked = async {
            // It makes sense: that was looked at before.
            let Ok(extents) = extents(blocks) else { return Ok(false) };
            self.control().await?.await_written(extents, wait).await.map_err(NotDone::Disk)
        };
        match self.clock.timeout(WRITTEN_WAIT * 2, asked).await {
            Ok(Ok(is_written)) => Some(is_written),
            Ok(Err(error)) => {
                tracing::debug!(disk = self.whose.disk.0, "it is not known what it has: {error}");
                matches!(error, NotDone::Disk(DiskError::Refused(_))).then_some(false)
            }
            Err(_) => None,
        }
    }
}

/// Makes durable what was written to a disk before.
///
/// # Errors
/// [`NotDone`]
pub(super) async fn flush(disk: &Data, granted: &Granted) -> Result<(), NotDone> {
    disk.client().await?.flush(granted, CallOptions::default()).await?;
    Ok(())
}

/// Something that is done at disks.
type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A disk, and what the metadata server may do there.
type Granting = Option<(Arc<Data>, Granted)>;

/// Copies bytes to `target` of another disk, durably, if there are both. If that is not done, any
/// part of them may have been written.
pub(super) fn copy(from: Granting, to: Granting, bytes: Range<u64>, target: u64) -> Doing<Outcome> {
    Box::pin(async move {
        let Some((from, read)) = from else { return Outcome::NotRead };
        let Some((to, write)) = to else { return Outcome::NotWritten };
        for at in bytes.clone().step_by(DATA_BYTES_MAX) {
            let end = bytes.end.min(at + DATA_BYTES_MAX as u64);
            let (from_disk, to_disk) = (from.whose.disk.0, to.whose.disk.0);
            let data = match read_all(&from, &read, at..end).await {
                Ok(data) => data,
                Err(error) => {
                    tracing::debug!(from_disk, to_disk, "not read, to be copied: {error}");
                    return Outcome::NotRead;
                }
            };
            if let Err(error) = write_all(&to, &write, target + (at - bytes.start), data).await {
                tracing::debug!(from_disk, to_disk, "not written, to be copied: {error}");
                return Outcome::NotWritten;
            }
        }
        Outcome::Done
    })
}

/// Reads bytes of a disk, if there is one.
pub(super) fn read(from: Granting, bytes: Range<u64>) -> Doing<Option<Bytes>> {
    Box::pin(async move {
        let (from, granted) = from?;
        let read = read_all(&from, &granted, bytes).await;
        let disk = from.whose.disk.0;
        read.inspect_err(|error| tracing::debug!(disk, "not read: {error}")).ok()
    })
}

async fn read_all(from: &Data, granted: &Granted, bytes: Range<u64>) -> Result<Bytes, NotDone> {
    let mut all = BytesMut::new();
    for at in bytes.clone().step_by(DATA_BYTES_MAX) {
        // It fits: the largest request does.
        let length = (bytes.end - at).min(DATA_BYTES_MAX as u64) as u32;
        let data = from.client().await?.read(granted, at, length, CallOptions::default()).await?;
        if data.len() != length as usize {
            return Err(NotDone::Short);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// Writes bytes to a disk, if there is one, durably. Resolves to whether that was done.
pub(super) fn write(to: Granting, at: u64, bytes: Bytes) -> Doing<bool> {
    Box::pin(async move {
        let Some((to, granted)) = to else { return false };
        let written = write_all(&to, &granted, at, bytes).await;
        let disk = to.whose.disk.0;
        written.inspect_err(|error| tracing::debug!(disk, "not written: {error}")).is_ok()
    })
}

async fn write_all(to: &Data, granted: &Granted, at: u64, bytes: Bytes) -> Result<(), NotDone> {
    for begin in (0..bytes.len()).step_by(DATA_BYTES_MAX) {
        let data = bytes.slice(begin..bytes.len().min(begin + DATA_BYTES_MAX));
        let (options, at) = (CallOptions::default(), at + begin as u64);
        to.client().await?.write(granted, at, data, true, options).await?;
    }
    Ok(())
}

/// Parts, by their disks.
pub(super) fn by_disk<T>(parts: Vec<(DiskId, T)>) -> BTreeMap<DiskId, Vec<T>> {
    let mut by_disk: BTreeMap<DiskId, Vec<T>> = BTreeMap::new();
    for (disk, part) in parts {
        by_disk.entry(disk).or_default().push(part);
    }
    by_disk
}
