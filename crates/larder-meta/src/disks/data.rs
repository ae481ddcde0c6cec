//! Operations on bytes of disks: it has one disk fetch them from another, and as a client of a disk
//! makes them durable, and reads and writes what goes to the archive and comes from there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl, DiskError};
use larder_io::Clock;
use larder_rpc::{CallOptions, Config, ConnectError, RpcClient, RpcError, Transport};
use larder_wire::capability::DiskId;
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::disk::session::Granted;
use larder_wire::rpc::Outcome as RpcOutcome;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::extents::extents;
use super::outcome::Outcome;
use super::questions::{self, Questions, TOGETHER_WAIT, Waiting};

/// How long a disk may take for a request.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a disk may take to fetch something: longer than it waits for the other disk, so that it
/// can tell whose fault it was.
const FETCH_MAX: Duration = Duration::from_secs(20);
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
    /// To have the disk fetch something. It may wait for another disk, and no question is to wait
    /// for that.
    fetching: OnceCell<DiskControl>,
    /// Why it did not fetch something, when that was tried last.
    problem: Mutex<Option<String>>,
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
        Data {
            address,
            clock,
            client: OnceCell::new(),
            control: OnceCell::new(),
            fetching: OnceCell::new(),
            problem: Mutex::default(),
            questions: Questions::default(),
            whose,
        }
    }

    /// The disk's address for other disks, from that for clients. On this machine, without an
    /// address there, it is where an order of ours comes from.
    pub(super) fn reached_by_others(&self, public: &str) -> String {
        match public.starts_with(':') && !self.address.ip().is_loopback() {
            true => self.address.to_string(),
            false => public.to_owned(),
        }
    }

    async fn client(&self) -> Result<&DiskClient, ConnectError> {
        let connect = async || self.connect(ANSWER_MAX).await.map(DiskClient::new);
        self.client.get_or_try_init(connect).await
    }

    async fn control(&self) -> Result<&DiskControl, ConnectError> {
        self.control.get_or_try_init(async || self.connect_control(ANSWER_MAX).await).await
    }

    async fn fetching(&self) -> Result<&DiskControl, ConnectError> {
        self.fetching.get_or_try_init(async || self.connect_control(FETCH_MAX).await).await
    }

    async fn connect_control(&self, timeout: Duration) -> Result<DiskControl, ConnectError> {
        Ok(DiskControl::new(self.connect(timeout).await?, self.whose.clone()))
    }

    async fn connect(&self, timeout: Duration) -> Result<RpcClient, ConnectError> {
        let mut config = Config::new(self.address, Transport::Tcp, DISK_PROGRAM);
        (config.connections, config.timeout) = (1, timeout);
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

impl Data {
    /// Why the disk did not fetch something, when that was tried last.
    pub(super) fn problem(&self) -> Option<String> {
        self.lock_problem().clone()
    }

    /// It was tried to have the disk fetch something.
    fn tried(&self, problem: Option<String>) {
        let mut last = self.lock_problem();
        // Once: it is tried again and again.
        if let Some(why) = problem.as_ref().filter(|_| *last != problem) {
            tracing::warn!(disk = self.whose.disk.0, "{why}");
        }
        *last = problem;
    }

    fn lock_problem(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the disk fetch bytes that another one has from `at` on, and write them to `target`,
    /// durably.
    async fn fetch(
        &self,
        from: &Elsewhere,
        at: u64,
        (write, target): (&Granted, u64),
        length: u32,
    ) -> Outcome {
        let (disk, Elsewhere { address, granted }) = (self.whose.disk.0, from);
        let source = granted.capability.disk.0;
        let asked = async {
            let (to, from) = ((&write.capability, target), (granted, address.as_str(), at));
            Ok::<_, NotDone>(self.fetching().await?.fetch(to, from, length).await?)
        };
        let (outcome, problem) = match asked.await {
            Ok(None) => (Outcome::Done, None),
            Ok(Some(why)) => {
                let why = format!("it cannot copy from disk {source}: {why}");
                (Outcome::NotRead, Some(why))
            }
            Err(NotDone::Disk(DiskError::Rpc(RpcError::Refused(RpcOutcome::ProcUnavail)))) => {
                let why = format!(
                    "it cannot copy from disk {source}: its larder is of a version before disks \
                     did that; update it"
                );
                (Outcome::NotWritten, Some(why))
            }
            // What becomes of it says why, if the disk is away.
            Err(error) => {
                tracing::debug!(disk, source, "nothing was copied there: {error}");
                (Outcome::NotWritten, None)
            }
        };
        self.tried(problem);
        outcome
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

/// A disk, as another one reaches it, and what that may do there.
pub(super) struct Elsewhere {
    pub(super) address: String,
    pub(super) granted: Granted,
}

/// Has a disk copy bytes of another one to `target` of its own, durably, if there are both. If that
/// is not done, any part of them may have been written.
pub(super) fn copy(
    from: Option<Elsewhere>,
    to: Granting,
    bytes: Range<u64>,
    target: u64,
) -> Doing<Outcome> {
    Box::pin(async move {
        let Some(from) = from else { return Outcome::NotRead };
        let Some((to, write)) = to else { return Outcome::NotWritten };
        for at in bytes.clone().step_by(DATA_BYTES_MAX) {
            // It fits: the largest request does.
            let length = (bytes.end - at).min(DATA_BYTES_MAX as u64) as u32;
            match to.fetch(&from, at, (&write, target + (at - bytes.start)), length).await {
                Outcome::Done => {}
                failed => return failed,
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
