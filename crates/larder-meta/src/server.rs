//! The metadata program as a service of `larder-rpc`, and the threads behind it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_io::Clock;
use larder_rpc::server::{Answer, Backchannel, Call, Service};
use larder_rpc::{Program, random_u64};
use larder_wire::capability::KeyEpoch;
use larder_wire::meta::words::{DiskId, SessionId};
use larder_wire::meta::{self, MetaProc, Res, Status, calls};
use larder_wire::rpc::{AUTH_TOOWEAK, CallHeader, Credential, Outcome};
use larder_wire::xdr::{Encode, Encoder};
use tokio::sync::{mpsc, oneshot, watch};

use crate::activity::Activity;
use crate::alone::Alone;
use crate::archive::Store;
use crate::archiver;
use crate::change::{Change, Reply};
use crate::channels::{Channels, Recaller};
use crate::committer::{
    ArchiveAsked, Await, AwaitMoved, AwaitSynced, AwaitTime, AwaitWritten, Called, Committer,
    Destaged, Event, Parts, Waiter,
};
use crate::destaging;
use crate::disks::{Acknowledged, Disks, Moved, Witnessed};
use crate::engine::{Engine, EngineError, Writes};
use crate::leaving::Leaving;
use crate::live::Restoring;
use crate::loading::{Loaded, load};
use crate::ownership::Ownership;
use crate::reads::{LooksIn, Read, beside, renewed};
use crate::resilvering;
use crate::rights::Caller;
use crate::sessions::Sessions;
use crate::store::Txn;
use crate::turn::Turn;
use crate::volume::{DisksChange, DisksChanged, Joining, NewDisk, Owned, Removal, VolumeError};

/// Most events that wait for the committer. Beyond them, callers wait.
const QUEUE_MAX: usize = 4096;
/// After so long the sync begins that makes a late commit durable.
const LATE_FOR: Duration = Duration::from_millis(200);
/// How long memory disks may take to say whether they were started again.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// Divisor of a session's lease: how often expired sessions are searched for.
const TICKS_PER_LEASE: u32 = 4;
/// The user of callers without credentials.
const NOBODY: u32 = 65_534;

/// The metadata program.
pub const PROGRAM: Program =
    Program { number: meta::PROGRAM, version: meta::VERSION, procedures: meta::PROCEDURE_NAMES };

/// How a metadata server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a session lasts without a call. Also the time after a start in which clients may
    /// open files again that have no name any more.
    pub lease: Duration,
    /// How many bytes per second are copied to bring disks up to date that have copies of others.
    pub resilver_rate: u64,
    /// Where versions of files are put that are to be in an archive.
    pub archive: Option<Arc<dyn Store>>,
    /// Whether what memory disks have is put there when its class wants it durable, in place of
    /// being moved to lasting disks. Means nothing without an archive.
    pub is_archive_durable: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(30),
            resilver_rate: 100 << 20,
            archive: None,
            is_archive_durable: false,
        }
    }
}

/// The metadata server of a volume: a service to put behind [`larder_rpc::server::Server`]. Clones
/// are the same. It ends when the last is dropped.
#[derive(Clone)]
pub struct Metadata {
    engine: Arc<dyn Engine>,
    disks: Arc<dyn Disks>,
    clock: Arc<dyn Clock>,
    sessions: Arc<Sessions>,
    channels: Arc<Channels>,
    alone: Arc<Alone>,
    epoch: u64,
    ownership: Arc<Ownership>,
    queue: mpsc::Sender<Event>,
    turn: Arc<Turn>,
    over: watch::Receiver<Option<String>>,
    left: watch::Receiver<BTreeSet<DiskId>>,
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Metadata {
    /// Begins to serve a volume that was [taken](crate::volume::take). To be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`VolumeError`]
    pub fn start(
        engine: Arc<dyn Engine>,
        volume: Owned,
        disks: Arc<dyn Disks>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Metadata, VolumeError> {
        let sessions = Arc::new(Sessions::new(options.lease));
        let ownership = Arc::new(Ownership::new(engine.term(), Arc::clone(&clock)));
        let archive = (options.archive.as_deref(), options.is_archive_durable);
        let Loaded { slots, sets, draining, in_place, destage, archive, retained } =
            load(&*engine, &sessions, &*clock, archive)?;
        let rate = options.resilver_rate.max(1);
        let (queue, events) = mpsc::channel(QUEUE_MAX);
        let channels = Arc::new(Channels::new(tokio::runtime::Handle::current()));
        let (await_disks, await_written, await_moved) = reporters(&queue);
        let (epoch, volume_id) = (volume.epoch, volume.id);
        let committer = Committer::new(Parts {
            engine: Arc::clone(&engine),
            disks: Arc::clone(&disks),
            clock: Arc::clone(&clock),
            sessions: Arc::clone(&sessions),
            volume,
            slots,
            sets,
            draining,
            in_place,
            destage,
            leaving: Leaving::new(rate),
            archive: (archive, Restoring::new(volume_id, options.archive.clone())),
            retained,
            await_disks,
            await_written,
            await_moved,
            await_synced: synced_soon(&engine, &clock, &queue),
            await_time: woken(&clock, &queue),
            recaller: Arc::clone(&channels) as Arc<dyn Recaller>,
            ownership: Arc::clone(&ownership),
        });
        let first_due = committer.first_due();
        archiver::begin(options.archive, &disks, &clock, &queue, committer.first_to_archive());
        let ticks = options.lease / TICKS_PER_LEASE;
        let pause = ownership.renewal().map_or(ticks, |renewal| renewal.min(ticks));
        let metadata = Metadata {
            engine,
            disks,
            clock,
            sessions,
            channels,
            alone: committer.alone(),
            epoch,
            ownership,
            queue,
            over: committer.over(),
            left: committer.left_disks(),
            turn: Arc::new(Turn::new(committer)),
        };
        let started = metadata.turn.start(events);
        started.map_err(|error| EngineError::Failed(error.to_string()))?;
        // Started even if there are no copies yet: memory disks may be enrolled beside each other.
        let (disks, clock) = (Arc::clone(&metadata.disks), Arc::clone(&metadata.clock));
        let (stores, limits) = (disks.stores(), disks.limits());
        let queue = || metadata.queue.downgrade();
        tokio::spawn(resilvering::drive(disks, Arc::clone(&clock), rate, queue()));
        tokio::spawn(destaging::drive(Arc::clone(&clock), first_due, queue()));
        tokio::spawn(destaging::tell_all(stores, queue(), Event::Stores));
        tokio::spawn(destaging::tell_all(limits, queue(), Event::Limits));
        tokio::spawn(tick(clock, pause, queue()));
        Ok(metadata)
    }

    /// The server's activity. Waits for its turn among the calls.
    pub async fn activity(&self) -> Activity {
        let (asked, answer) = oneshot::channel();
        // The default is returned if the committer is gone.
        let _ = self.queue.send(Event::Activity(asked)).await;
        answer.await.unwrap_or_default()
    }

    /// Adds a disk to the volume. Returns when this is durable, and no capability on a disk that it
    /// replaces is valid any more: 30 s later if that disk is away. It must be added to the disks
    /// that this server controls before ([`ControlledDisks::add`]).
    ///
    /// [`ControlledDisks::add`]: crate::disks::ControlledDisks::add
    ///
    /// # Errors
    /// As [`volume::enrol`](crate::volume::enrol)
    pub async fn enrol(&self, new: NewDisk, joining: Joining) -> Result<DiskId, VolumeError> {
        self.change_disks(DisksChange::Enrol { new, joining }).await.map(|done| done.disk)
    }

    /// Removes a disk from the volume; one that is not empty leaves from now on, and is gone when
    /// what is on it is on others. Returns when this is durable.
    ///
    /// # Errors
    /// As [`volume::remove_disk`](crate::volume::remove_disk)
    pub async fn remove_disk(&self, disk: DiskId) -> Result<Removal, VolumeError> {
        self.change_disks(DisksChange::Remove(disk)).await.map(|done| done.removal)
    }

    /// Keeps a disk that leaves. Returns when this is durable.
    ///
    /// # Errors
    /// As [`volume::keep_disk`](crate::volume::keep_disk)
    pub async fn keep_disk(&self, disk: DiskId) -> Result<Removal, VolumeError> {
        self.change_disks(DisksChange::Keep(disk)).await.map(|done| done.removal)
    }

    /// The disks that have left since the server began, after each that leaves. The caller sees to
    /// it that no server controls them any more.
    pub fn left(&self) -> watch::Receiver<BTreeSet<DiskId>> {
        self.left.clone()
    }

    /// Puts another epoch of the disks' keys on record, and returns it when that is durable. The
    /// caller has the disks told ([`rotate`](crate::rotate)).
    pub(crate) async fn next_key(&self) -> Result<KeyEpoch, VolumeError> {
        let (waiter, done) = oneshot::channel();
        let sent = self.queue.send(Event::RotateKeys(waiter)).await;
        sent.map_err(|_| VolumeError::Ended)?;
        done.await.unwrap_or(Err(VolumeError::Ended))
    }

    async fn change_disks(&self, change: DisksChange) -> Result<DisksChanged, VolumeError> {
        let (waiter, done) = oneshot::channel();
        let sent = self.queue.send(Event::Disks(change, waiter)).await;
        sent.map_err(|_| VolumeError::Ended)?;
        done.await.unwrap_or(Err(VolumeError::Ended))
    }

    /// Which owner of the volume this server is: higher than all before it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Releases the volume, so that the next server need not wait for the end of the term. Later
    /// calls are told to come again.
    pub async fn end(&self) {
        let (done, is_done) = oneshot::channel();
        // A committer that is gone has ended.
        if self.queue.send(Event::End(done)).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Resolves when nothing can be changed here any more and another server must continue: another
    /// process has taken the volume, or the engine is away. Returns the reason. Calls are told to
    /// come again.
    pub async fn over(&self) -> String {
        let mut over = self.over.clone();
        match over.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // The committer's thread lasts as long as this object.
            _ => std::future::pending().await,
        }
    }

    /// The reply; or only that the call must be repeated, if another process may own the volume by
    /// now. To be called when the reply is made, after everything in it was read.
    fn while_ours(&self, reply: Reply) -> Reply {
        if self.ownership.is_ours() { reply } else { Reply::refused(Status::Later) }
    }

    /// Answers a call that changes nothing.
    fn read<R>(&self, (caller, channel): From<'_>, call: &R) -> Reply
    where
        R: Read,
        R::Results: Encode,
    {
        self.while_ours(Reply::of(&self.results((caller, channel), call)))
    }

    fn results<R: Read>(&self, (caller, channel): From<'_>, call: &R) -> Res<R::Results> {
        self.sessions.renew(call.session(), self.clock.instant())?;
        self.note(call.session(), channel);
        let view = self.engine.view().map_err(|error| error.status())?;
        let none = Writes::new();
        call.read(&Txn::new(&*view, &none), caller)
    }

    /// Answers a call that looks into a directory, or has the committer recall leases of others
    /// first.
    async fn look_in<R>(&self, from: From<'_>, call: R) -> Reply
    where
        R: LooksIn + Into<Change>,
        R::Results: Encode,
    {
        match beside(&self.alone, &call, || self.results(from, &call)) {
            Some(results) => self.while_ours(Reply::of(&results)),
            None => self.change(from, call).await,
        }
    }

    /// Has the committer carry a call out in its turn.
    async fn change(&self, (caller, channel): From<'_>, change: impl Into<Change>) -> Reply {
        let (waiter, reply): (Waiter, _) = oneshot::channel();
        let (caller, change) = (caller.clone(), change.into());
        if let Some(session) = change.bearer().session().filter(|id| self.sessions.is_there(*id)) {
            self.note(session, channel);
        }
        let mut fresh = [0; 16];
        if let Change::Session(_) = change {
            let (low, high) = fresh.split_at_mut(8);
            low.copy_from_slice(&random_u64().to_ne_bytes());
            high.copy_from_slice(&random_u64().to_ne_bytes());
        }
        let called = Box::new(Called { caller, change, fresh, waiter });
        let sent = match self.turn.at_once(called, &self.queue) {
            Ok(()) => Ok(()),
            Err(called) => self.queue.send(Event::Call(called)).await,
        };
        match (sent, reply.await) {
            (Ok(()), Ok(reply)) => self.while_ours(reply),
            _ => Reply::refused(Status::Io),
        }
    }

    /// Records the connection by which a session can be called.
    fn note(&self, session: SessionId, channel: Option<&Backchannel>) {
        if channel.is_some_and(|channel| self.channels.note(session, channel)) {
            let queue = self.queue.clone();
            tokio::spawn(async move {
                // A committer that is gone has nothing to recall.
                let _ = queue.send(Event::Reached(session)).await;
            });
        }
    }

    /// Has a file's bytes moved from memory disks to others.
    async fn destage(&self, (_, channel): From<'_>, call: &calls::Destage) -> Reply {
        if let Err(status) = self.sessions.renew(call.session, self.clock.instant()) {
            return self.while_ours(Reply::refused(status));
        }
        self.note(call.session, channel);
        let (waiter, reply) = oneshot::channel();
        let asked = Destaged { file: call.file, due_ms: call.due_ms, waiter };
        let sent = self.queue.send(Event::Destage(asked)).await;
        match (sent, reply.await) {
            (Ok(()), Ok(reply)) => self.while_ours(reply),
            _ => Reply::refused(Status::Io),
        }
    }

    /// Tells what the archive has of a file.
    async fn archive(&self, (_, channel): From<'_>, call: &calls::Archive) -> Reply {
        if let Err(status) = self.sessions.renew(call.session, self.clock.instant()) {
            return self.while_ours(Reply::refused(status));
        }
        self.note(call.session, channel);
        let (waiter, reply) = oneshot::channel();
        let asked = ArchiveAsked { file: call.file, within_ms: call.within_ms, waiter };
        let sent = self.queue.send(Event::AskArchive(asked)).await;
        match (sent, reply.await) {
            (Ok(()), Ok(reply)) => self.while_ours(reply),
            _ => Reply::refused(Status::Io),
        }
    }

    /// Tells which files have lost bytes; if the client wants that, as the disks say now.
    async fn lost(&self, from: From<'_>, call: &calls::Lost) -> Reply {
        if let Err(status) = self.sessions.renew(call.session, self.clock.instant()) {
            return self.while_ours(Reply::refused(status));
        }
        if call.look {
            // A disk that does not answer cannot say what it has lost.
            let _ = self.clock.timeout(LOOK_MAX, self.disks.look()).await;
            let (waiter, noticed) = oneshot::channel();
            let sent = self.queue.send(Event::Look(waiter)).await;
            match (sent, noticed.await) {
                (Ok(()), Ok(reply)) if !reply.failed => {}
                (Ok(()), Ok(reply)) => return self.while_ours(reply),
                _ => return Reply::refused(Status::Io),
            }
        }
        self.read(from, call)
    }

    fn renew(&self, channel: Option<&Backchannel>, call: &calls::Renew) -> Reply {
        let of = |_| {
            self.note(call.session, channel);
            let view = self.engine.view().map_err(|error| error.status())?;
            let none = Writes::new();
            renewed(&Txn::new(&*view, &none), self.epoch, &*self.disks)
        };
        let renewed = self.sessions.renew(call.session, self.clock.instant()).and_then(of);
        self.while_ours(Reply::of(&renewed))
    }
}

/// The user and client of a call, and the backchannel to the client.
type From<'a> = (&'a Caller, Option<&'a Backchannel>);

/// What lets work at the disks end in events for the committer.
fn reporters(queue: &mpsc::Sender<Event>) -> (Await, AwaitWritten, AwaitMoved) {
    let (runtime, reports) = (tokio::runtime::Handle::current(), queue.downgrade());
    let await_disks = Box::new(move |acknowledged: Acknowledged, event| {
        report(&runtime, &reports, async move {
            acknowledged.await;
            event
        });
    });
    let (runtime, reports) = (tokio::runtime::Handle::current(), queue.downgrade());
    let await_written = Box::new(move |witnessed: Witnessed, number| {
        report(&runtime, &reports, async move { Event::Written(number, witnessed.await) });
    });
    let (runtime, reports) = (tokio::runtime::Handle::current(), queue.downgrade());
    let await_moved = Box::new(move |moved: Moved, file| {
        report(&runtime, &reports, async move { Event::Moved(file, moved.await) });
    });
    (await_disks, await_written, await_moved)
}

/// Has the engine make late commits durable, [`LATE_FOR`] after the first of them.
fn synced_soon(
    engine: &Arc<dyn Engine>,
    clock: &Arc<dyn Clock>,
    queue: &mpsc::Sender<Event>,
) -> AwaitSynced {
    let (runtime, reports) = (tokio::runtime::Handle::current(), queue.downgrade());
    let (engine, clock) = (Arc::clone(engine), Arc::clone(clock));
    Box::new(move |last: Arc<AtomicU64>| {
        let (engine, clock) = (Arc::clone(&engine), Arc::clone(&clock));
        report(&runtime, &reports, async move {
            clock.sleep_until(clock.instant() + LATE_FOR).await;
            let sync = move || {
                let number = last.load(Ordering::Acquire);
                engine.sync().map(|()| number)
            };
            let done = tokio::task::spawn_blocking(sync).await;
            Event::Synced(done.unwrap_or_else(|gone| Err(EngineError::Failed(gone.to_string()))))
        });
    })
}

/// What lets waits end in events for the committer.
fn woken(clock: &Arc<dyn Clock>, queue: &mpsc::Sender<Event>) -> AwaitTime {
    let (runtime, reports) = (tokio::runtime::Handle::current(), queue.downgrade());
    let clock = Arc::clone(clock);
    Box::new(move |time, wake| {
        let (clock, until) = (Arc::clone(&clock), clock.instant() + time);
        report(&runtime, &reports, async move {
            clock.sleep_until(until).await;
            Event::Wake(wake)
        });
    })
}

/// Sends the committer an event once it has happened.
fn report(
    runtime: &tokio::runtime::Handle,
    queue: &mpsc::WeakSender<Event>,
    event: impl Future<Output = Event> + Send + 'static,
) {
    let queue = queue.clone();
    runtime.spawn(async move {
        let event = event.await;
        if let Some(queue) = queue.upgrade() {
            // A committer that is gone has nothing to answer.
            let _ = queue.send(event).await;
        }
    });
}

/// Lets the committer end expired sessions, and renew the term, periodically.
async fn tick(clock: Arc<dyn Clock>, pause: Duration, queue: mpsc::WeakSender<Event>) {
    loop {
        let Some(sender) = queue.upgrade() else { return };
        if sender.send(Event::Tick).await.is_err() {
            return;
        }
        drop(sender);
        clock.sleep_until(clock.instant() + pause).await;
    }
}

/// Results that are encoded already.
struct Encoded(Reply);

impl Encode for Encoded {
    fn encode(&self, out: &mut Encoder) {
        out.put_fixed(&self.0.bytes);
    }
}

/// Reads the arguments of a call and has it answered.
macro_rules! run {
    ($call:ident, |$args:ident: $type:ident| $reply:expr) => {
        match $call.arguments::<calls::$type>() {
            Ok($args) => {
                let reply: Reply = $reply;
                let failed = reply.failed;
                $call.reply(&Encoded(reply), failed)
            }
            Err(garbage) => garbage,
        }
    };
}

impl Service for Metadata {
    type Caller = Caller;

    fn programs(&self) -> &[Program] {
        &[PROGRAM]
    }

    fn admit(&self, header: &CallHeader) -> Result<Caller, Outcome> {
        let nobody = Caller { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
        match &header.credential {
            Credential::Sys(sys) => {
                Ok(Caller { uid: sys.uid, gid: sys.gid, groups: sys.groups.0.clone() })
            }
            Credential::None => Ok(nobody),
            // To ask whether we are there takes no credential.
            Credential::Other { .. } if header.procedure == 0 => Ok(nobody),
            Credential::Other { .. } => Err(Outcome::AuthError(AUTH_TOOWEAK)),
        }
    }

    /// Slots recognise a repeated call, even after a restart.
    fn is_repeatable(&self, _program: u32, _procedure: u32) -> bool {
        true
    }

    fn results_bytes_max(&self, _program: u32, procedure: u32, _call: &[u8]) -> usize {
        MetaProc::try_from(procedure).map_or(0, MetaProc::results_bytes_max)
    }

    fn calls_back(&self) -> bool {
        true
    }

    async fn call(&self, mut call: Call<Caller>) -> Answer {
        let (caller, channel) = (call.caller.clone(), call.backchannel.clone());
        let from = (&caller, channel.as_ref());
        let Ok(procedure) = MetaProc::try_from(call.header.procedure) else {
            return call.refuse(Outcome::ProcUnavail);
        };
        match procedure {
            MetaProc::Null => call.reply(&(), false),
            MetaProc::Session => run!(call, |a: Session| self.change(from, a).await),
            MetaProc::Renew => run!(call, |a: Renew| self.renew(from.1, &a)),
            MetaProc::EndSession => run!(call, |a: EndSession| self.change(from, a).await),
            MetaProc::GetAttr => run!(call, |a: GetAttr| self.read(from, &a)),
            MetaProc::SetAttr => run!(call, |a: SetAttr| self.change(from, a).await),
            MetaProc::Lookup => run!(call, |a: Lookup| self.look_in(from, a).await),
            MetaProc::Open => run!(call, |a: Open| self.change(from, a).await),
            MetaProc::Close => run!(call, |a: Close| self.change(from, a).await),
            MetaProc::GetCaps => run!(call, |a: GetCaps| self.change(from, a).await),
            MetaProc::Alloc => run!(call, |a: Alloc| self.change(from, a).await),
            MetaProc::AllocNear => run!(call, |a: AllocNear| self.change(from, a).await),
            MetaProc::CommitExtents => run!(call, |a: CommitExtents| self.change(from, a).await),
            MetaProc::Punch => run!(call, |a: Punch| self.change(from, a).await),
            MetaProc::Preallocate => run!(call, |a: Preallocate| self.change(from, a).await),
            MetaProc::MkDir => run!(call, |a: MkDir| self.change(from, a).await),
            MetaProc::Symlink => run!(call, |a: Symlink| self.change(from, a).await),
            MetaProc::ReadLink => run!(call, |a: ReadLink| self.read(from, &a)),
            MetaProc::MkNod => run!(call, |a: MkNod| self.change(from, a).await),
            MetaProc::Make => run!(call, |a: Make| self.change(from, a).await),
            MetaProc::Link => run!(call, |a: Link| self.change(from, a).await),
            MetaProc::Remove => run!(call, |a: Remove| self.change(from, a).await),
            MetaProc::RmDir => run!(call, |a: RmDir| self.change(from, a).await),
            MetaProc::Rename => run!(call, |a: Rename| self.change(from, a).await),
            MetaProc::ReadDir => run!(call, |a: ReadDir| self.look_in(from, a).await),
            MetaProc::Access => run!(call, |a: Access| self.read(from, &a)),
            MetaProc::FsStat => run!(call, |a: FsStat| self.read(from, &a)),
            MetaProc::GetXattr => run!(call, |a: GetXattr| self.read(from, &a)),
            MetaProc::SetXattr => run!(call, |a: SetXattr| self.change(from, a).await),
            MetaProc::ListXattr => run!(call, |a: ListXattr| self.read(from, &a)),
            MetaProc::RemoveXattr => run!(call, |a: RemoveXattr| self.change(from, a).await),
            MetaProc::Look => run!(call, |a: Look| self.change(from, a).await),
            MetaProc::ReturnLease => run!(call, |a: ReturnLease| self.change(from, a).await),
            MetaProc::Lock => run!(call, |a: Lock| self.change(from, a).await),
            MetaProc::TestLock => run!(call, |a: TestLock| self.change(from, a).await),
            MetaProc::AwaitLock => run!(call, |a: AwaitLock| self.change(from, a).await),
            MetaProc::ForgoLock => run!(call, |a: ForgoLock| self.change(from, a).await),
            MetaProc::LocksClaimed => run!(call, |a: LocksClaimed| self.change(from, a).await),
            MetaProc::Destage => run!(call, |a: Destage| self.destage(from, &a).await),
            MetaProc::Archive => run!(call, |a: Archive| self.archive(from, &a).await),
            MetaProc::Retain => run!(call, |a: Retain| self.change(from, a).await),
            MetaProc::Lost => run!(call, |a: Lost| self.lost(from, &a).await),
        }
    }
}
