//! A committer over an engine in memory and disks that a test moves on.

mod archive;
mod begun;
mod disks;
mod enrolling;
mod late;
mod moves;
mod retaining;
mod waits;

pub(crate) use archive::{FakeStore, Given};
pub(crate) use disks::FakeDisks;
use waits::Waits;

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_io::{Clock, SimClock};
use larder_wire::Procedure;
use larder_wire::meta::calls::{self, SessionGiven};
use larder_wire::meta::recall::{LockFree, Recall};
use larder_wire::meta::words::{
    ByteRange, Dentry, FileId, IfExists, LeaseKind, Medium, Mode, Name, OpenId, Sequence,
    SessionId, SetAttributes, Time, VolumeId, Written,
};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};
use larder_wire::xdr::{Array, Decode, Encode};
use tokio::sync::oneshot;

use super::commits::commit;
use crate::change::{Change, Reply};
use crate::channels::Recaller;
use crate::committer::{Called, Committer, Event, Parts, wall};
use crate::disks::{Disks, Moved};
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, Writes};
use crate::live::Restoring;
use crate::ownership::Ownership;
use crate::reads::{LooksIn, Read, beside};
use crate::rights::Caller;
use crate::sessions::Sessions;
use crate::store::{Record, Txn};
use crate::volume::{self, NewDisk};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Clients that can all be called.
#[derive(Debug, Default)]
pub(crate) struct FakeRecaller(Mutex<Vec<Recall>>, Mutex<Vec<LockFree>>);

impl FakeRecaller {
    /// The leases that were recalled since the last call of this.
    pub(crate) fn take(&self) -> Vec<Recall> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// The notifications about reserved locks since the last call of this.
    pub(crate) fn take_free(&self) -> Vec<LockFree> {
        std::mem::take(&mut self.1.lock().unwrap())
    }
}

impl Recaller for FakeRecaller {
    fn reaches(&self, _session: SessionId) -> bool {
        true
    }

    fn recall(&self, recall: Recall) {
        self.0.lock().unwrap().push(recall);
    }

    fn tell_free(&self, free: LockFree) {
        self.1.lock().unwrap().push(free);
    }

    fn forget(&self, _session: SessionId) {}
}

/// A server.
pub(crate) struct Rig {
    pub(crate) engine: MemoryEngine,
    pub(crate) disks: Arc<FakeDisks>,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) recaller: Arc<FakeRecaller>,
    pub(crate) store: Arc<FakeStore>,
    committer: Committer,
    sessions: Arc<Sessions>,
    pub(crate) ownership: Arc<Ownership>,
    /// Events that follow when the disks have carried out a request.
    asked: Arc<Mutex<VecDeque<Event>>>,
    /// Copies that are to be made of files that are moved.
    copying: Arc<Mutex<Vec<(FileId, Moved)>>>,
    /// Late commits that the engine is to make durable: the number of the last.
    syncing: Arc<Mutex<Option<Arc<AtomicU64>>>>,
    /// Waits that have not ended, in their order.
    waits: Waits,
    /// What was made of them.
    copied: Vec<Event>,
    /// Whether disks answer at once.
    pub(crate) is_quick: bool,
    pub(crate) session: SessionId,
    pub(crate) sequence: u32,
    fresh: u64,
}

/// A caller without privileges.
pub(crate) fn user(uid: u32, groups: &[u32]) -> Caller {
    Caller { uid, gid: uid, groups: groups.to_vec() }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

pub(crate) fn dentry(dir: FileId, text: &str) -> Dentry {
    Dentry { dir, name: name(text) }
}

pub(crate) fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

pub(crate) fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

impl Rig {
    /// A server of a new volume with a disk of this many blocks, and a session.
    pub(crate) fn new(blocks: u64) -> Rig {
        Rig::with_disks(&[blocks])
    }

    /// The same with disks of these sizes in blocks.
    pub(crate) fn with_disks(blocks: &[u64]) -> Rig {
        Rig::with_copies(1, blocks)
    }

    /// The same with this many copies of each block.
    pub(crate) fn with_copies(copies: u32, blocks: &[u64]) -> Rig {
        let engine = MemoryEngine::new();
        volume::create(&engine, VolumeId([7; 16]), copies, Time::default()).unwrap();
        for blocks in blocks {
            let bytes = blocks * BLOCK_BYTES;
            let disk = NewDisk { id: [1; 16], address: "disk:1".into(), bytes, is_memory: false };
            volume::add_disk(&engine, &disk).unwrap();
        }
        let mut rig = Rig::over(engine, Arc::default(), true);
        rig.session = rig.begin_session([1; 16], 1).unwrap().session;
        rig
    }

    /// A server of the volume in `engine`. If the disks are quick, they have voided the
    /// capabilities from before.
    pub(crate) fn over(engine: MemoryEngine, disks: Arc<FakeDisks>, is_quick: bool) -> Rig {
        let clock = Arc::new(SimClock::new());
        clock.advance(Duration::from_secs(1_000_000_000));
        Rig::over_at(engine, (disks, Arc::default()), is_quick, clock)
    }

    /// The same at a time.
    fn over_at(
        engine: MemoryEngine,
        (disks, store): (Arc<FakeDisks>, Arc<FakeStore>),
        is_quick: bool,
        clock: Arc<SimClock>,
    ) -> Rig {
        let sessions = Arc::new(Sessions::new(LEASE));
        let asked: Arc<Mutex<VecDeque<Event>>> = Arc::default();
        let (events, on_way) = (Arc::clone(&asked), Arc::clone(&asked));
        let copying: Arc<Mutex<Vec<(FileId, Moved)>>> = Arc::default();
        let (moves, syncing) = (Arc::clone(&copying), Arc::<Mutex<_>>::default());
        let on_sync = Arc::clone(&syncing);
        let waits = Waits::default();
        let volume = volume::take(&engine).unwrap();
        let engine_commits = engine.commits();
        let loaded = crate::loading::load(&engine, &sessions, &*clock, store.given()).unwrap();
        let recaller = Arc::new(FakeRecaller::default());
        let ownership = Arc::new(Ownership::new(engine.term(), Arc::clone(&clock) as _));
        let parts = Parts {
            recaller: Arc::clone(&recaller) as Arc<dyn Recaller>,
            engine: Arc::new(engine.clone()),
            disks: Arc::clone(&disks) as Arc<dyn Disks>,
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            sessions: Arc::clone(&sessions),
            slots: loaded.slots,
            sets: loaded.sets,
            draining: loaded.draining,
            in_place: loaded.in_place,
            destage: loaded.destage,
            leaving: crate::leaving::Leaving::new(u64::MAX),
            retained: loaded.retained,
            archive: (loaded.archive, Restoring::new(volume.id, Some(Arc::clone(&store) as _))),
            volume,
            await_disks: Box::new(move |_ready, event| events.lock().unwrap().push_back(event)),
            await_written: Box::new(move |_, number| {
                on_way.lock().unwrap().push_back(Event::Written(number, false));
            }),
            await_moved: Box::new(move |moved, file| moves.lock().unwrap().push((file, moved))),
            await_synced: Box::new(move |last| *on_sync.lock().unwrap() = Some(last)),
            await_time: waits.begin(&clock),
            ownership: Arc::clone(&ownership),
        };
        let committer = Committer::new(parts);
        // No two servers of one volume draw the same.
        let fresh = engine_commits << 32;
        let mut rig = Rig {
            engine,
            disks,
            clock,
            recaller,
            store,
            committer,
            sessions,
            ownership,
            asked,
            copying,
            syncing,
            waits,
            copied: Vec::new(),
            is_quick,
            session: SessionId([0; 16]),
            sequence: 0,
            fresh,
        };
        if is_quick {
            rig.acknowledge_all();
        }
        rig
    }

    /// The server dies, and another one begins on what it has committed. Clients resume their
    /// sessions.
    pub(crate) fn crash(self) -> Rig {
        let mut rig = self.crash_unknown();
        rig.resume_all();
        rig
    }

    /// Clients learn that the server was restarted.
    pub(crate) fn resume_all(&mut self) {
        for id in self.sessions.left_over() {
            let session = self.sessions.get(id).unwrap();
            let (client, boot) = (session.client, session.boot);
            let given = self.begin_session(client, boot).unwrap();
            assert!(given.resumed && given.session == id);
        }
    }

    /// The same, and the client does not know of it.
    pub(crate) fn crash_unknown(self) -> Rig {
        let engine = self.engine.after_crash();
        self.over_after(engine)
    }

    /// Another server, over what is left of the engine.
    fn over_after(self, engine: MemoryEngine) -> Rig {
        self.disks.forget_asked();
        let mut rig = Rig::over_at(engine, (self.disks, self.store), self.is_quick, self.clock);
        rig.session = self.session;
        rig.sequence = self.sequence;
        rig
    }

    /// The disks carry out their oldest request. `false` if there is none.
    pub(crate) fn acknowledge(&mut self) -> bool {
        self.acknowledge_at(0)
    }

    /// The disks carry out one of their requests: as when one disk is away.
    pub(crate) fn acknowledge_at(&mut self, at: usize) -> bool {
        let Some(event) = self.asked.lock().unwrap().remove(at) else { return false };
        let is_there = self.disks.carry_out(at);
        let event = match event {
            Event::Written(number, _) => Event::Written(number, is_there),
            event => event,
        };
        self.committer.group(event, &mut || None);
        true
    }

    /// Something happens.
    pub(crate) fn event(&mut self, event: Event) {
        self.committer.group(event, &mut || None);
        if self.is_quick {
            self.acknowledge_all();
        }
    }

    /// Some time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.pass(time);
        self.committer.group(Event::Tick, &mut || None);
        if self.is_quick {
            self.acknowledge_all();
        }
    }

    /// The server ends in order.
    pub(crate) fn end(&mut self) {
        let (done, mut is_done) = oneshot::channel();
        self.committer.group(Event::End(done), &mut || None);
        is_done.try_recv().unwrap();
    }

    /// Whether it is known that another server is to go on.
    pub(crate) fn is_over(&self) -> bool {
        self.committer.over().borrow().is_some()
    }

    /// The bearer of the next call.
    pub(crate) fn next(&mut self) -> Sequence {
        self.sequence += 1;
        self.same()
    }

    /// The bearer of the last call.
    pub(crate) fn same(&self) -> Sequence {
        Sequence { session: self.session, slot: 0, sequence: self.sequence }
    }

    /// Calls are sent together. Returns the replies that have arrived.
    pub(crate) fn group(&mut self, calls: Vec<(&Caller, Change)>) -> Vec<oneshot::Receiver<Reply>> {
        let mut replies = Vec::new();
        let mut events = VecDeque::new();
        let mut is_begun = false;
        for (caller, change) in calls {
            let (called, reply) = self.called(caller, change);
            replies.push(reply);
            // Every second call that may be comes before the thread's turn.
            if called.change.is_brief() && self.fresh.is_multiple_of(2) && events.is_empty() {
                is_begun |= self.committer.carry_out_at_once(called);
            } else {
                events.push_back(Event::Call(Box::new(called)));
            }
        }
        if let Some(first) = events.pop_front().or(is_begun.then_some(Event::Begun)) {
            self.committer.group(first, &mut || events.pop_front());
        }
        if self.is_quick {
            self.acknowledge_all();
        }
        replies
    }

    fn called(&mut self, caller: &Caller, change: Change) -> (Called, oneshot::Receiver<Reply>) {
        let (waiter, reply) = oneshot::channel();
        self.fresh += 1;
        let mut fresh = [9; 16];
        fresh[..8].copy_from_slice(&self.fresh.to_le_bytes());
        (Called { caller: caller.clone(), change, fresh, waiter }, reply)
    }

    /// A call of root, whose reply is not awaited here.
    pub(crate) fn group_call<P: Into<Change>>(&mut self, call: P) -> oneshot::Receiver<Reply> {
        self.group(vec![(&Caller::root(), call.into())]).pop().unwrap()
    }

    /// A call, and its reply if it comes by now.
    pub(crate) fn ask<P>(&mut self, caller: &Caller, call: P) -> Option<P::Res>
    where
        P: Procedure + Into<Change>,
    {
        let mut replies = self.group(vec![(caller, call.into())]);
        let reply = replies.pop().unwrap().try_recv().ok()?;
        Some(decode(&reply))
    }

    /// A call that is answered at once.
    pub(crate) fn call<P>(&mut self, caller: &Caller, call: P) -> P::Res
    where
        P: Procedure + Into<Change>,
    {
        self.ask(caller, call).expect("an answer at once")
    }

    /// A call that changes nothing.
    pub(crate) fn read<R>(&self, caller: &Caller, call: &R) -> Res<R::Results>
    where
        R: Read,
        R::Results: Encode + Decode,
    {
        self.sessions.renew(call.session(), self.clock.instant())?;
        let view = self.engine.view().unwrap();
        let none = Writes::new();
        call.read(&Txn::new(&*view, &none), caller)
    }

    /// A call that looks into a directory: its reply, which may come later.
    pub(crate) fn look_in<R>(&mut self, call: R) -> oneshot::Receiver<Reply>
    where
        R: LooksIn + Into<Change>,
        R::Results: Encode + Decode,
    {
        match beside(&self.committer.alone(), &call, || self.read(&Caller::root(), &call)) {
            None => self.group_call(call),
            Some(results) => {
                let (waiter, reply) = oneshot::channel();
                waiter.send(Reply::of(&results)).unwrap();
                reply
            }
        }
    }

    pub(crate) fn begin_session(&mut self, client: [u8; 16], boot: u64) -> Res<SessionGiven> {
        self.call(&Caller::root(), calls::Session { client, boot, slots: 4 })
    }

    /// Opens a file of this name, which is made if it does not exist.
    pub(crate) fn create(
        &mut self,
        caller: &Caller,
        dir: FileId,
        text: &str,
    ) -> Res<calls::Opened> {
        let set = mode(0o644);
        let create = calls::Create { dentry: dentry(dir, text), set, if_exists: IfExists::Open };
        self.open(caller, calls::OpenWhat::Create(create), Mode::ReadWrite)
    }

    pub(crate) fn open(
        &mut self,
        caller: &Caller,
        what: calls::OpenWhat,
        mode: Mode,
    ) -> Res<calls::Opened> {
        let sequence = self.next();
        let range = ByteRange { offset: 0, length: 1 << 20 };
        let (lease, allocate) = (LeaseKind::None, None);
        self.call(caller, calls::Open { sequence, what, mode, lease, range, allocate })
    }

    pub(crate) fn close(&mut self, open: OpenId) -> Res<()> {
        self.close_all(&[open])
    }

    pub(crate) fn close_all(&mut self, opens: &[OpenId]) -> Res<()> {
        let sequence = self.next();
        self.call(&Caller::root(), calls::Close { sequence, opens: Array(opens.to_vec()) })
    }

    pub(crate) fn mkdir(&mut self, caller: &Caller, dir: FileId, text: &str) -> Res<FileId> {
        let sequence = self.next();
        let call = calls::MkDir { sequence, dentry: dentry(dir, text), set: mode(0o755) };
        self.call(caller, call).map(|made| made.made.file)
    }

    pub(crate) fn remove(&mut self, dir: FileId, text: &str) -> Res<calls::NameChanged> {
        let sequence = self.next();
        self.call(&Caller::root(), calls::Remove { sequence, dentry: dentry(dir, text) })
    }

    pub(crate) fn set(&mut self, file: FileId, set: SetAttributes) -> Res<calls::FileChanged> {
        let sequence = self.next();
        let open = OpenId::NONE;
        self.call(&Caller::root(), calls::SetAttr { sequence, file, open, set, guard: None })
    }

    pub(crate) fn alloc(&mut self, file: FileId, range: Range<u64>) -> Res<calls::LayoutGiven> {
        self.alloc_on(Medium::Disk, file, range)
    }

    /// The same on a medium.
    pub(crate) fn alloc_on(
        &mut self,
        medium: Medium,
        file: FileId,
        range: Range<u64>,
    ) -> Res<calls::LayoutGiven> {
        let (sequence, open, range) = (self.next(), OpenId::NONE, range.into());
        self.call(&Caller::root(), calls::Alloc { sequence, file, open, range, medium })
    }

    /// Commits that bytes of a file were written where `layout` has them.
    pub(crate) fn commit(
        &mut self,
        file: FileId,
        layout: &larder_wire::meta::words::Layout,
        range: Range<u64>,
    ) -> Res<calls::FileChanged> {
        let call = self.committing(file, layout, range);
        self.call(&Caller::root(), call)
    }

    pub(crate) fn committing(
        &mut self,
        file: FileId,
        layout: &larder_wire::meta::words::Layout,
        range: Range<u64>,
    ) -> calls::CommitExtents {
        let parts = layout.extents.0.iter().filter_map(|extent| {
            let blocks = extent.length.next_multiple_of(BLOCK_BYTES);
            let start = range.start.max(extent.offset);
            let end = range.end.min(extent.offset + blocks);
            let position = extent.position + start.saturating_sub(extent.offset);
            (start < end).then(|| Written {
                offset: start,
                length: end - start,
                disk: extent.disk,
                position,
            })
        });
        commit(self.next(), file, parts.collect())
    }

    /// Makes a file's bytes be written and committed.
    pub(crate) fn write(&mut self, file: FileId, range: Range<u64>) -> Res<calls::FileChanged> {
        let given = self.alloc(file, range.clone())?;
        self.commit(file, &given.layout, range)
    }

    pub(crate) fn layout(&mut self, file: FileId, mode: Mode) -> Res<calls::LayoutGiven> {
        let range = ByteRange { offset: 0, length: 1 << 30 };
        let (session, open) = (self.session, OpenId::NONE);
        self.call(&Caller::root(), calls::GetCaps { session, file, open, mode, range })
    }

    pub(crate) fn attributes(&self, file: FileId) -> Res<larder_wire::meta::words::Attributes> {
        self.read(&Caller::root(), &calls::GetAttr { session: self.session, file })
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let call = calls::FsStat { session: self.session };
        self.read(&Caller::root(), &call).unwrap().bytes_free
    }

    /// The same, whether there is a session or not.
    pub(crate) fn free_bytes_of_all(&self) -> u64 {
        volume::space(&self.engine).unwrap().bytes_free
    }

    /// The records with a tag.
    pub(crate) fn records<R: Record>(&self, tag: u8) -> Vec<(Vec<u8>, R)> {
        let view = self.engine.view().unwrap();
        let none = Writes::new();
        Txn::new(&*view, &none).scan_all(&[tag]).unwrap()
    }

    /// All that the store has.
    pub(crate) fn dump(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        self.engine.view().unwrap().scan(&[], &[0xff], &mut each).unwrap();
        all
    }

    /// Nothing is wrong with the volume.
    pub(crate) fn check(&self) {
        let faults = crate::check(&self.engine).unwrap();
        assert_eq!(faults, []);
    }

    pub(crate) fn now(&self) -> Time {
        wall(&*self.clock)
    }
}

pub(crate) fn decode<T: Decode>(reply: &Reply) -> T {
    let mut bytes = reply.bytes.clone();
    let decoded = T::decode(&mut bytes).unwrap();
    assert!(bytes.is_empty());
    decoded
}

/// The status of a refusal.
pub(crate) fn refused<T: std::fmt::Debug>(result: Res<T>) -> Status {
    result.expect_err("this is refused")
}
