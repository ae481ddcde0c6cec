//! The committer gives changes their order, carries calls out in groups and commits each group. One
//! thread or task at a time has it ([`crate::turn`]); only its thread commits.
//!
//! It is a loop over a closed set of events: take those that wait, apply each to the store's view
//! and to [`Live`], commit what they wrote in one batch, then answer. While a commit waits for the
//! disk, the next group gathers; so however many callers there are, each waits for two commits at
//! most.
//!
//! A call that conflicts with leases of other sessions is set aside until they are returned
//! ([`crate::leases`]), and carried out then. So is a commit whose bytes may still be on their way,
//! until the disks report them durable.
//!
//! A call that ends capabilities is answered when the disks have acknowledged their revocation
//! ([`crate::held`]); its blocks are freed after that. Other calls do not wait for it.
//!
//! A group that a crash of the machine may undo is committed late, and answered before it is
//! durable ([`crate::late`]).
//!
//! Invariants:
//! - Nothing else is answered before it is durable, and nothing before the disks know of it.
//! - After a commit that failed nothing is changed any more.
//! - Blocks that the disks have cleared become free sooner or later, whatever fails meanwhile.

mod archiving;
mod begun;
mod ended;
mod finished;
mod freeing;
mod leaving;
mod resilvering;
mod waiting;

pub(crate) use archiving::{ArchiveAsked, ToArchive};
use ended::Ended;
use finished::Finished;
pub(crate) use finished::{DisksWaiter, KeysWaiter, NextStale, Waiter};
use freeing::Freeing;
pub(crate) use freeing::{AwaitTime, Wake};
pub(crate) use leaving::Destaged;
use leaving::Leaving;
use waiting::{Lateness, answer};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use larder_io::Clock;
use larder_wire::meta::Status;
use larder_wire::meta::recall::Recall;
use larder_wire::meta::words::{DiskId, FileId, Sequence, SessionId};
use larder_wire::xdr::Opaque;
use tokio::sync::{oneshot, watch};

use crate::activity::Activity;
use crate::archive::queue::Queue;
use crate::change::{Bearer, Change, Reply};
use crate::channels::Recaller;
use crate::data::copies::Sets;
use crate::destage::Destage;
use crate::disks::{Acknowledged, Disks, Failed, Limits, Moved, Stores, Witnessed};
use crate::engine::{Engine, EngineError, View, Writes};
use crate::held::{Held, Revoking, Ticket};
use crate::in_place::{InPlace, Mark};
use crate::leases::{Action, CallNumber};
use crate::live::{Cleared, Live, Moment, Restoring};
use crate::ownership::Ownership;
use crate::request::Request;
pub(crate) use crate::request::wall;
use crate::rights::Caller;
use crate::sessions::Sessions;
use crate::slots::{Slots, Verdict};
use crate::store::records::Slot;
use crate::store::{Txn, key};
use crate::volume::{DisksChange, Owned};

/// Most events of a group: the work of one commit, for which others wait.
const GROUP_MAX: usize = 1024;

/// The events.
pub(crate) enum Event {
    /// A call came.
    Call(Box<Called>),
    /// The disks have revoked the capabilities of this ticket.
    Revoked(Ticket),
    /// The bytes that a commit says are in flight are on the disks, durably; or that is not known.
    Written(CallNumber, bool),
    /// The disks have cleared blocks.
    Cleared(Vec<Cleared>),
    /// The disks have what was left by writers that do not commit.
    Flushed(Vec<Mark>),
    /// The engine has made all durable up to this late commit; or it has failed.
    Synced(Result<u64, EngineError>),
    /// Asks for the next stale blocks.
    NextStale(oneshot::Sender<NextStale>),
    /// The task for this disk was carried out, or has failed.
    TaskEnded(DiskId, bool),
    /// Memory disks can hold so many bytes.
    Limits(Limits),
    /// From which stores disks serve, or would.
    Stores(Stores),
    /// Bytes are due on other disks.
    Due(oneshot::Sender<()>),
    /// The worker of the archive asks or reports.
    Archive(ToArchive),
    /// A client asks what the archive has of a file.
    AskArchive(ArchiveAsked),
    /// A client asks for what a file has on memory disks to be on others.
    Destage(Destaged),
    /// A file's bytes were copied to other disks, except to these.
    Moved(FileId, Failed),
    /// The volume is to have other disks.
    Disks(DisksChange, DisksWaiter),
    /// The disks' keys are to have another epoch.
    RotateKeys(KeysWaiter),
    /// Asks for the server's activity.
    Activity(oneshot::Sender<Activity>),
    /// A session's client can be called by another connection.
    Reached(SessionId),
    /// A client has the disks looked at, and waits until what is noticed is on record.
    Look(Waiter),
    /// A group was begun that is to be committed.
    Begun,
    /// A wait is over.
    Wake(Wake),
    /// Some time has passed.
    Tick,
    /// The server is to end: nothing is changed or answered any more, and the volume is released.
    End(oneshot::Sender<()>),
}

/// A call, and the receiver of its reply.
pub(crate) struct Called {
    pub(crate) caller: Caller,
    pub(crate) change: Change,
    /// Random bytes.
    pub(crate) fresh: [u8; 16],
    pub(crate) waiter: Waiter,
}

/// Lets something at the disks end in an event.
pub(crate) type Await = Box<dyn Fn(Acknowledged, Event) + Send>;

/// Waits for the bytes that a commit says are in flight, and reports by [`Event::Written`].
pub(crate) type AwaitWritten = Box<dyn Fn(Witnessed, CallNumber) + Send>;

/// Waits for the copies of a move, and reports by [`Event::Moved`].
pub(crate) type AwaitMoved = Box<dyn Fn(Moved, FileId) + Send>;

/// Has the engine make late commits durable soon, and reports by [`Event::Synced`] the number that
/// it finds here when it begins.
pub(crate) type AwaitSynced = Box<dyn Fn(Arc<AtomicU64>) + Send>;

/// The order of changes.
pub(crate) struct Committer {
    engine: Arc<dyn Engine>,
    disks: Arc<dyn Disks>,
    clock: Arc<dyn Clock>,
    sessions: Arc<Sessions>,
    volume: Owned,
    live: Live,
    slots: Slots<Waiter>,
    await_disks: Await,
    await_written: AwaitWritten,
    await_moved: AwaitMoved,
    await_synced: AwaitSynced,
    /// The number of the last late commit.
    last_late: Arc<AtomicU64>,
    /// Whether the engine makes late commits durable.
    syncs: bool,
    /// Disks that have left.
    left_disks: watch::Sender<BTreeSet<DiskId>>,
    /// When the next bytes are due on other disks.
    first_due: watch::Sender<Option<Instant>>,
    /// When there is something to do in the archive.
    first_to_archive: watch::Sender<Option<Instant>>,
    /// Calls that wait for the disks.
    held: Held<Finished>,
    leaving: Leaving,
    recaller: Arc<dyn Recaller>,
    /// Calls that wait for leases of others, or for the disks to have the bytes that they name.
    aside: BTreeMap<CallNumber, Aside>,
    /// Those of them that wait no more.
    ready: VecDeque<CallNumber>,
    next_call: CallNumber,
    /// What was carried out beside the thread, which commits it.
    begun: Option<Group>,
    freeing: Freeing,
    /// What was left by writers that do not commit, and cannot change any more.
    left: BTreeSet<Mark>,
    ownership: Arc<Ownership>,
    /// Until when clients may open files again that nothing names.
    grace_until: Option<Instant>,
    /// After a commit that failed: the answer to every call.
    failed: Option<Status>,
    /// Why another server is to go on, if one is.
    over: watch::Sender<Option<String>>,
}

/// A call that is to be carried out, and its slot, if it has one.
struct Pending {
    called: Called,
    sequence: Option<Sequence>,
}

/// Work that waits until others have returned leases, until the disks have the bytes that it names,
/// or until there is room.
enum Aside {
    Call(Box<Pending>),
    /// A file gets another version of its data.
    Mend(Mark),
}

/// The results of a group so far.
#[derive(Default)]
struct Group {
    writes: Writes,
    finished: Vec<Finished>,
    /// How many of its transactions may be late.
    late: u64,
    /// Whether another one must not be, or an answer promises what was committed before.
    is_durable: bool,
    /// Whether it is committed even without writes: that renews the term for which the volume is
    /// ours.
    renews: bool,
    /// The receiver of the server's end.
    end: Option<oneshot::Sender<()>>,
}

/// The parts with which a committer works.
pub(crate) struct Parts {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) disks: Arc<dyn Disks>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) volume: Owned,
    pub(crate) slots: Slots<Waiter>,
    pub(crate) sets: Sets,
    /// Blocks that drained when the store was opened.
    pub(crate) draining: Vec<(DiskId, Range<u64>)>,
    pub(crate) in_place: InPlace,
    pub(crate) destage: Destage,
    pub(crate) leaving: crate::leaving::Leaving,
    pub(crate) archive: (Queue, Restoring),
    /// Files that clients retain, and the sessions of these.
    pub(crate) retained: Vec<(SessionId, FileId)>,
    pub(crate) await_disks: Await,
    pub(crate) await_written: AwaitWritten,
    pub(crate) await_moved: AwaitMoved,
    pub(crate) await_synced: AwaitSynced,
    pub(crate) await_time: AwaitTime,
    pub(crate) recaller: Arc<dyn Recaller>,
    pub(crate) ownership: Arc<Ownership>,
}

impl Committer {
    /// Begins to order changes. Capabilities from before are being voided; until they are, calls
    /// that end some wait, and blocks that were draining continue to drain.
    pub(crate) fn new(parts: Parts) -> Committer {
        let Parts {
            engine,
            disks,
            clock,
            sessions,
            volume,
            slots,
            sets,
            draining,
            in_place,
            destage,
            leaving,
            archive,
            retained,
            await_disks,
            await_written,
            await_moved,
            await_synced,
            await_time,
            recaller,
            ownership,
        } = parts;
        let mut held = Held::default();
        let void = held.begin(Revoking::FromBefore);
        await_disks(disks.void_all(), Event::Revoked(void));
        let freeing = Freeing::new(await_time, &draining);
        let ended = Ended { draining, left: in_place.all_left(), ..Ended::default() };
        let waits = held.hold_for(void, Finished::nobody_asked(ended)).is_none();
        debug_assert!(waits, "nobody has said that it is done");
        let live = Live::new(
            volume.clone(),
            Arc::clone(&disks),
            Arc::clone(&sessions),
            Arc::clone(&recaller),
            (sets, in_place, retained),
            (destage, leaving, archive),
        );
        Committer {
            engine,
            disks,
            first_due: watch::Sender::new(live.first_due(clock.instant())),
            grace_until: Some(clock.instant() + sessions.lease()),
            clock,
            sessions,
            volume,
            live,
            slots,
            await_disks,
            await_written,
            await_moved,
            await_synced,
            last_late: Arc::default(),
            syncs: false,
            left_disks: watch::Sender::default(),
            first_to_archive: watch::Sender::default(),
            held,
            leaving: Leaving::default(),
            recaller,
            aside: BTreeMap::new(),
            ready: VecDeque::new(),
            next_call: CallNumber(1),
            begun: None,
            freeing,
            left: BTreeSet::new(),
            ownership,
            failed: None,
            over: watch::Sender::new(None),
        }
    }

    /// Tells why another server is to go on, once one is.
    pub(crate) fn over(&self) -> watch::Receiver<Option<String>> {
        self.over.subscribe()
    }

    /// Tells which disks have left.
    pub(crate) fn left_disks(&self) -> watch::Receiver<BTreeSet<DiskId>> {
        self.left_disks.subscribe()
    }

    /// Tells when the next bytes are due on other disks.
    pub(crate) fn first_due(&self) -> watch::Receiver<Option<Instant>> {
        self.first_due.subscribe()
    }

    /// Tells when there is something to do in the archive.
    pub(crate) fn first_to_archive(&self) -> watch::Receiver<Option<Instant>> {
        self.first_to_archive.subscribe()
    }

    /// Carries out a group: what was begun, `first`, and the events in `more`, while there are any.
    pub(crate) fn group(&mut self, first: Event, more: &mut dyn FnMut() -> Option<Event>) {
        let group = self.gather(first, more);
        self.commit(group);
        // What ended with the group may be what other calls were waiting for.
        if !self.ready.is_empty() || !self.left.is_empty() {
            let mut group = Group::default();
            if let Ok(view) = self.engine.steady_view() {
                self.go_on(&*view, &mut group);
            }
            self.commit(group);
        }
        self.tell_due();
    }

    /// Carries out, without a commit, `first` and the events in `more` after what was begun.
    fn gather(&mut self, first: Event, more: &mut dyn FnMut() -> Option<Event>) -> Group {
        let mut group = self.begun.take().unwrap_or_default();
        match self.engine.steady_view() {
            Ok(view) => {
                self.apply(&*view, &mut group, first);
                for event in std::iter::from_fn(more).take(GROUP_MAX) {
                    self.apply(&*view, &mut group, event);
                }
                // Beside what is committed anyway.
                if group.is_synced() || group.end.is_some() {
                    self.free_cleared(&*view, &mut group);
                }
            }
            Err(error) => {
                self.fail(&error);
                self.refuse(&mut group, first);
            }
        }
        group
    }

    /// Tells those who wait for it when something is due.
    fn tell_due(&mut self) {
        let now = self.clock.instant();
        let first = self.live.first_due(now).filter(|_| self.failed.is_none());
        self.first_due.send_if_modified(|known| std::mem::replace(known, first) != first);
        let first = self.live.first_to_archive().filter(|_| self.failed.is_none());
        self.first_to_archive.send_if_modified(|known| std::mem::replace(known, first) != first);
    }

    fn apply(&mut self, view: &dyn View, group: &mut Group, event: Event) {
        match event {
            Event::Call(called) => self.call(view, group, *called),
            Event::Revoked(ticket) => self.revoked(ticket),
            Event::Written(number, is_there) => self.witnessed(number, is_there),
            Event::Cleared(blocks) => self.are_cleared(view, group, blocks),
            Event::Synced(done) => self.synced(group, done),
            Event::Flushed(left) => left.into_iter().for_each(|mark| self.mend(view, group, mark)),
            Event::NextStale(asked) => self.next_stale(view, group, asked),
            Event::TaskEnded(disk, is_done) => {
                tracing::debug!(disk = disk.0, is_done, "resilvering has ended");
                // Blocks whose update is not recorded stay stale, and are found again.
                self.internal(view, group, |live, txn| live.end_task(txn, disk, is_done));
            }
            Event::Due(waiter) => {
                self.begin_moves(view, group);
                // A driver that is gone does not wait.
                let _ = waiter.send(());
            }
            Event::Destage(asked) => self.destage(view, group, asked),
            Event::Archive(asked) => self.archive(view, group, asked),
            Event::AskArchive(asked) => self.tell_archived(view, group, asked),
            Event::Moved(file, failed) => {
                self.end_move(view, group, file, &failed);
                self.make_room(view, group);
            }
            Event::Limits(limits) => self.note_limits(view, group, limits),
            Event::Stores(stores) => self.note_stores(view, group, stores),
            Event::Disks(change, waiter) => {
                self.change_disks(view, group, &change, Some(waiter));
            }
            Event::RotateKeys(waiter) => self.rotate_keys(view, group, waiter),
            Event::Activity(asked) => {
                // A caller that is gone does not wait.
                self.live.look_at_pressure(self.clock.instant());
                let _ = asked.send(self.live.activity(self.clock.instant()));
            }
            Event::Reached(session) => {
                self.live.session_is_reached(session);
                self.act();
            }
            Event::Look(waiter) => self.look_for(view, group, waiter),
            // The group is.
            Event::Begun => {}
            Event::Wake(wake) => self.wake(view, group, wake),
            Event::Tick => self.tick(view, group),
            Event::End(done) => group.end = Some(done),
        }
        self.go_on(view, group);
    }

    /// Carries out what follows for leases and locks.
    fn act(&mut self) {
        for free in self.live.take_free_locks() {
            self.recaller.tell_free(free);
        }
        for action in self.live.take_actions() {
            match action {
                Action::Go(call) => self.ready.push_back(call),
                Action::Recall { session, file, number, keep } => {
                    self.recaller.recall(Recall { session, file, number, keep });
                }
                Action::Condemn(session) => {
                    tracing::info!(
                        ?session,
                        "a client does not give a lease back: it is not renewed"
                    );
                    self.sessions.condemn(session);
                }
                // The next caller that asks takes it.
                Action::Give(_) => {}
            }
        }
    }

    fn call(&mut self, view: &dyn View, group: &mut Group, mut called: Called) {
        let bearer = called.change.bearer();
        let instant = self.clock.instant();
        let session = bearer.session().map(|id| self.sessions.renew(id, instant)).transpose();
        let session = match session {
            _ if self.failed.is_some() => {
                let status = self.failed.unwrap_or(Status::Io);
                return answer(called.waiter, Reply::refused(status));
            }
            Err(status) => return answer(called.waiter, Reply::refused(status)),
            Ok(session) => session,
        };
        let mut sequence = None;
        if let (Bearer::Slot(call), Some(session)) = (bearer, session) {
            let (procedure, waiter) = (called.change.procedure(), called.waiter);
            called.waiter = match self.slots.begin(call, procedure, session.slots, waiter) {
                Verdict::New(waiter) => waiter,
                Verdict::Replay(waiter, bytes) => {
                    let failed = !bytes.starts_with(&[0; 4]);
                    return answer(waiter, Reply { bytes, failed });
                }
                Verdict::Joined => return,
                Verdict::Refused(waiter, status) => return answer(waiter, Reply::refused(status)),
            };
            sequence = Some(call);
        }
        let number = self.next_number();
        let pending = Pending { called, sequence };
        match self.on_way(&pending.called.change) {
            Some(blocks) => self.await_written(number, blocks, pending),
            None => self.begin(view, group, number, pending),
        }
    }

    fn carry_out(
        &mut self,
        view: &dyn View,
        group: &mut Group,
        number: CallNumber,
        pending: Pending,
    ) {
        let Pending { called: Called { caller, change, fresh, waiter }, sequence } = pending;
        let session = change.bearer().session().unwrap_or(SessionId([0; 16]));
        let request = Request {
            caller: &caller,
            session,
            client: self.sessions.client(session),
            now: wall(&*self.clock),
        };
        let mut txn = Txn::new(view, &group.writes);
        let room_comes = self.may_get_room(number);
        let moment = Moment { instant: self.clock.instant(), fresh, room_comes };
        let mut reply = self.live.carry_out(&mut txn, &request, moment, &change);
        if reply.is_no_space() {
            drop(txn);
            if self.waits_for_room(view, group, (number, &change)) {
                let called = Called { caller, change, fresh, waiter };
                self.aside.insert(number, Aside::Call(Box::new(Pending { called, sequence })));
                return;
            }
            txn = Txn::new(view, &group.writes);
        }
        self.freeing.is_not_short(number);
        if !reply.failed
            && let Err(status) = self.live.follow_archived(&mut txn, moment.instant)
        {
            reply = Reply::refused(status);
        }
        let depends_on_nothing = txn.is_empty() && group.writes.is_empty();
        let ended = if reply.failed {
            Ended::default()
        } else {
            if let Some(call) = sequence.filter(|_| !txn.is_empty()) {
                let (sequence, procedure) = (call.sequence, change.procedure());
                let reply = Opaque(reply.bytes.clone());
                txn.put(key::slot(call.session, call.slot), &Slot { sequence, procedure, reply });
            }
            let standing = self.judge(&mut txn, Some(&change));
            let (writes, effects) = txn.finish();
            group.take(writes, standing);
            self.ended(effects)
        };
        self.act();
        let finished =
            Finished { sequence, reply: Some((waiter, reply)), ..Finished::nobody_asked(ended) };
        if depends_on_nothing {
            // There is no commit of other calls to wait for.
            self.answer_or_revoke(finished);
        } else {
            group.finished.push(finished);
        }
        if self.live.is_release_due() {
            self.internal(view, group, Live::release_closed);
        }
        if self.live.was_refused() {
            self.internal(view, group, Live::end_refused);
        }
        self.note_restarts(view, group);
    }

    /// How what a transaction has written may be committed.
    fn judge(&mut self, txn: &mut Txn<'_>, change: Option<&Change>) -> Lateness {
        if txn.is_empty() {
            return Lateness::Nothing;
        }
        match self.live.may_be_late(txn, change) {
            Ok(true) => Lateness::Late,
            // What cannot be read is not late.
            Ok(false) | Err(_) => Lateness::Durable,
        }
    }
}
