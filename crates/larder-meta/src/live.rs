//! The server's state besides the store, and what calls do to both.
//!
//! [`Live::carry_out`] is the server without threads, sockets and durability: a function of a
//! transaction, a call, and what is open and granted. Its result is valid once the transaction is
//! committed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use larder_wire::meta::calls::{
    Alloc, AllocNear, Entries, FileChanged, GetCaps, LayoutGiven, Look, LookAt, LookedAt, Open,
    Opened, Preallocate, ReadDir, Retain, ReturnLease, SessionGiven,
};
use larder_wire::meta::words::{
    ByteRange, FileId, Kind, LeaseGiven, LeaseKind, Medium, Mode, OpenId, Seen, SessionId, Time,
};
use larder_wire::meta::{SLOTS_MAX, Status};
use larder_wire::xdr::Array;

use crate::alone::Alone;
use crate::archive::queue::Queue;
use crate::change::{Change, Reply};
use crate::channels::Recaller;
use crate::data;
use crate::data::blocks::{Cursors, Room};
use crate::data::copies::Sets;
use crate::destage::Destage;
use crate::disks::Disks;
use crate::in_place::{InPlace, Mark};
use crate::inode;
use crate::issued::{Table, Taken};
use crate::late::Late;
use crate::leases::{Action, Event, Leases};
use crate::leaving::Leaving;
use crate::locks::Locks;
use crate::names;
use crate::opens::{self, Opens};
use crate::request::Request;
use crate::resilver::Resilver;
use crate::rights::{READ, WRITE};
use crate::sessions::{self, Sessions, Standing};
use crate::store::records::{self, Inode, Orphan, Slot};
use crate::store::txn::Revoked;
use crate::store::{Txn, key};
use crate::stores::StoresSeen;
use crate::volume::Owned;
use crate::{attributes, xattrs};

pub(crate) mod archiving;
mod copying;
pub(crate) mod destaging;
mod lateness;
mod leasing;
mod locking;
mod memory;
mod opening;
mod orphans;
mod reporting;
mod restoring;
mod retaining;
mod yielding;

pub(crate) use copying::{Cleared, Doing};
use opening::{Target, resolve};
pub(crate) use restoring::Restoring;

/// Most sessions at a time. One is a client, not a user.
const SESSIONS_MAX: usize = 4096;

/// So many closed files may have blocks that were given ahead, before these are given up together:
/// each disk is asked once to revoke their capabilities, and once to clear them.
const CLOSED_MAX: usize = 64;

/// How many times a session could return a recalled lease within the time that it lasts without a
/// call.
const RECALLS_PER_LEASE: u32 = 2;

/// How many times a session could miss its turn for a lock within the time that it lasts without a
/// call.
const TURNS_PER_LEASE: u32 = 4;

/// The open files, capabilities, leases, locks and sessions.
pub(crate) struct Live {
    volume: Owned,
    disks: Arc<dyn Disks>,
    sessions: Arc<Sessions>,
    opens: Opens,
    issued: Table,
    leases: Leases,
    /// Those for writing, as others read it.
    alone: Arc<Alone>,
    locks: Locks,
    recaller: Arc<dyn Recaller>,
    /// Actions for leases that are to be carried out.
    actions: Vec<Action>,
    /// Capabilities that end with the call in progress.
    ended: Vec<Taken>,
    cursors: Cursors,
    sets: Sets,
    /// What was noticed of memory disks.
    noticed: memory::Noticed,
    stores: StoresSeen,
    resilver: Resilver,
    destage: Destage,
    leaving: Leaving,
    archive: Queue,
    restoring: Restoring,
    yielding: yielding::Yielding,
    /// Files that the session no longer has open for writing, and that have blocks which were
    /// given ahead.
    closed: BTreeSet<(SessionId, FileId)>,
    /// A call found no room since those were last given up.
    is_short: bool,
    in_place: InPlace,
    late: Late,
    /// Files for which a commit was refused, since they were last returned.
    refused: Vec<Mark>,
}

/// The circumstances of a call besides its arguments and its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    /// Random bytes, for a session if one begins.
    pub(crate) fresh: [u8; 16],
    /// Whether the call is carried out again if it is refused for want of room.
    pub(crate) room_comes: bool,
}

impl Live {
    /// Nothing is open yet.
    pub(crate) fn new(
        volume: Owned,
        disks: Arc<dyn Disks>,
        sessions: Arc<Sessions>,
        recaller: Arc<dyn Recaller>,
        (sets, in_place, retained): (Sets, InPlace, Vec<(SessionId, FileId)>),
        (destage, leaving, archive): (Destage, Leaving, (Queue, Restoring)),
    ) -> Live {
        let mut opens = Opens::new(volume.epoch);
        let late = Late::new(volume.epoch, volume.boot.is_some());
        let patience = sessions.lease() / RECALLS_PER_LEASE;
        let mut leases = Leases::new(volume.epoch, patience);
        let mut locks = Locks::new(sessions.lease() / TURNS_PER_LEASE, sessions.lease());
        for session in sessions.left_over() {
            leases.apply(Event::FromBefore { session });
            locks.expect_claims(session);
            opens.expect_claims();
        }
        let alone = Arc::new(Alone::default());
        retaining::restore(&mut leases, &alone, retained);
        Live {
            volume,
            disks,
            sessions,
            opens,
            issued: Table::default(),
            leases,
            alone,
            locks,
            recaller,
            actions: Vec::new(),
            ended: Vec::new(),
            cursors: Cursors::default(),
            sets,
            noticed: memory::Noticed::default(),
            stores: StoresSeen::default(),
            resilver: Resilver::default(),
            destage,
            leaving,
            archive: archive.0,
            restoring: archive.1,
            yielding: yielding::Yielding::default(),
            closed: BTreeSet::new(),
            is_short: false,
            in_place,
            late,
            refused: Vec::new(),
        }
    }

    /// An event of leases. [`Live::take_actions`] returns what follows.
    pub(crate) fn on_lease(&mut self, event: Event) {
        let about = match &event {
            Event::Returned { returned, .. } => Some(returned.file),
            Event::Gone { file } | Event::Inherited { file, .. } => Some(*file),
            _ => None,
        };
        if let Event::Ended { session } = &event {
            self.alone.forget(*session);
        }
        self.actions.append(&mut self.leases.apply(event));
        about.into_iter().for_each(|file| self.alone.set(file, self.leases.alone(file)));
    }

    /// The capabilities that ended since the last call of this, including these: to be revoked at
    /// the disks.
    pub(crate) fn end(&mut self, revoked: BTreeSet<Revoked>) -> Vec<Taken> {
        self.ended.extend(revoked.into_iter().flat_map(|revoked| self.issued.take(revoked)));
        std::mem::take(&mut self.ended)
    }

    /// Whether it is time to give up what closed files were given ahead.
    pub(crate) fn is_release_due(&self) -> bool {
        self.closed.len() >= CLOSED_MAX || (self.is_short && !self.closed.is_empty())
    }

    /// Gives up what closed files were given ahead.
    pub(crate) fn release_closed(&mut self, txn: &mut Txn<'_>) -> Result<(), Status> {
        self.is_short = false;
        for (session, file) in std::mem::take(&mut self.closed) {
            if !self.opens.is_written(session, file) {
                data::release_ahead(txn, session, file)?;
            }
        }
        Ok(())
    }

    /// Carries a call out. If the reply is a failure, the transaction must not be committed.
    pub(crate) fn carry_out(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        change: &Change,
    ) -> Reply {
        let opens = &self.opens;
        let may_be_open = |file| opens.may_be_open(file);
        match change {
            Change::Session(call) => {
                Reply::of(&self.begin_session(txn, (moment, request.now), call))
            }
            Change::EndSession(call) => {
                Reply::of(&self.end_session(txn, call.session, None, request.now))
            }
            Change::GetCaps(call) => Reply::of(&self.get_caps(txn, request, moment, call)),
            Change::SetAttr(call) => {
                let may = self.allows(request, call.open, call.file, Mode::Write);
                let set = may.and_then(|may| {
                    attributes::set(txn, request, call.file, call.set, call.guard, may)
                });
                Reply::of(&set)
            }
            Change::Open(call) => Reply::of(&self.open(txn, request, moment, call)),
            Change::Close(call) => Reply::of(&self.close(txn, request.session, &call.opens.0)),
            Change::Alloc(call) => Reply::of(&self.alloc(txn, request, moment, &(*call).into())),
            Change::AllocNear(call) => Reply::of(&self.alloc(txn, request, moment, call)),
            Change::CommitExtents(call) => Reply::of(&self.commit(txn, request, moment, call)),
            Change::Punch(call) => {
                let may = self.need_data(txn, request, call.file, call.open, Mode::Write);
                Reply::of(&may.and_then(|_| data::punch(txn, request, call.file, call.range)))
            }
            Change::Preallocate(call) => Reply::of(&self.preallocate(txn, request, call)),
            Change::MkDir(_) | Change::Symlink(_) | Change::MkNod(_) | Change::Make(_) => {
                Reply::of(&self.late.make(txn, request, change, &self.sets))
            }
            Change::Link(call) => Reply::of(&names::link(txn, request, call.file, &call.dentry)),
            Change::Remove(call) => {
                Reply::of(&names::remove(txn, request, &call.dentry, &may_be_open))
            }
            Change::RmDir(call) => Reply::of(&names::remove_directory(txn, request, &call.dentry)),
            Change::Rename(call) => {
                let (from, to) = (&call.from, &call.to);
                Reply::of(&names::rename(txn, request, from, to, call.keep, &may_be_open))
            }
            Change::SetXattr(call) => {
                let value = call.value.clone();
                Reply::of(&xattrs::set(txn, request, call.file, &call.name, value, call.if_set))
            }
            Change::RemoveXattr(call) => {
                Reply::of(&xattrs::remove(txn, request, call.file, &call.name))
            }
            Change::ReturnLease(call) => Reply::of(&self.return_leases(txn, request, call)),
            Change::Retain(call) => Reply::of(&self.retain(txn, request, *call)),
            Change::Look(call) => Reply::of(&self.look(txn, request, moment, call)),
            Change::Lookup(call) => Reply::of(&names::lookup(txn, request.caller, &call.dentry)),
            Change::ReadDir(call) => Reply::of(&self.list(txn, request, call)),
            Change::Lock(call) => Reply::of(&self.lock(txn, request, moment, call)),
            Change::TestLock(call) => Reply::of(&self.test_lock(txn, call)),
            Change::AwaitLock(call) => Reply::of(&self.await_lock(txn, moment, call)),
            Change::ForgoLock(call) => Reply::of(&self.forgo_lock(moment, call)),
            Change::LocksClaimed(call) => {
                self.locks.claimed(call.session);
                Reply::of(&Ok(()))
            }
        }
    }

    /// Whether an open file allows `mode` on `file`. `OpenId::NONE` allows nothing and is not an
    /// error.
    fn allows(
        &self,
        request: &Request<'_>,
        open: OpenId,
        file: FileId,
        mode: Mode,
    ) -> Result<bool, Status> {
        if open == OpenId::NONE {
            return Ok(false);
        }
        let open = self.opens.get(request.session, open).filter(|open| open.file == file);
        let opened = open.ok_or(Status::BadOpen)?.mode;
        let lacks = (mode.reads() && !opened.reads()) || (mode.writes() && !opened.writes());
        if lacks { Err(Status::AccessDenied) } else { Ok(true) }
    }

    /// A regular file whose data the caller may use in this way.
    fn need_data(
        &self,
        txn: &Txn<'_>,
        request: &Request<'_>,
        file: FileId,
        open: OpenId,
        mode: Mode,
    ) -> Result<Inode, Status> {
        let inode = inode::regular(txn, file)?;
        if !self.allows(request, open, file, mode)? {
            for (needs, bits) in [(mode.reads(), READ), (mode.writes(), WRITE)] {
                if needs {
                    request.caller.need_data(&inode.attributes, bits)?;
                }
            }
        }
        Ok(inode)
    }

    fn open(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &Open,
    ) -> Result<Opened, Status> {
        let Target { inode, created, file, dir } = resolve(txn, request, &call.what)?;
        let inode = match created {
            true => self.late.made(txn, call.allocate, inode, &self.sets),
            false => inode,
        };
        if !created {
            for (needs, bits) in [(call.mode.reads(), READ), (call.mode.writes(), WRITE)] {
                if needs {
                    request.caller.need(&inode.attributes, bits)?;
                }
            }
        }
        let (session, number) = (request.session, inode.file());
        let takes = call.mode.writes() && !inode.whereabouts.is_lost();
        let wanted = call.allocate.filter(|_| takes);
        if let (Some(medium), Some(range)) = (wanted, call.range.get()) {
            // The client learns from ALLOC if there is no space.
            let is_there = &|disk| self.disks.is_there(disk);
            let room = Room { sets: &self.sets, is_there, medium };
            let cursors = &mut self.cursors;
            match data::allocate_ahead(txn, session, number, &range, cursors, room) {
                Ok(()) => (),
                Err(Status::NoSpace) if !moment.room_comes => self.is_short = true,
                Err(status) => {
                    self.is_short |= status == Status::NoSpace;
                    return Err(status);
                }
            }
        }
        let layout = self.layout(txn, session, number, call.mode, call.range, moment)?;
        let open = self.opens.open(session, number, call.mode);
        let lease = self.give(session, number, call.lease);
        Ok(Opened { open, created, file, dir, lease, layout })
    }

    fn look(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &Look,
    ) -> Result<LookedAt, Status> {
        let (dir, attributes) = match &call.at {
            LookAt::File(file) => (None, attributes::get(txn, *file)?),
            LookAt::Name(dentry) => {
                let found = names::lookup(txn, request.caller, dentry)?;
                let dir = Some(found.dir);
                let Some(attributes) = found.found else {
                    return Ok(LookedAt { dir, found: None });
                };
                (dir, attributes)
            }
        };
        let (session, caller, file) = (request.session, request.caller, attributes.file);
        let is_readable = attributes.kind == Kind::File
            && attributes.size > 0
            && caller.need_data(&attributes, READ).is_ok();
        let empty = ByteRange { offset: call.range.offset, length: 0 };
        let range = if is_readable { call.range } else { empty };
        let layout = self.layout(txn, session, file, Mode::Read, range, moment)?;
        let granted = caller.access(&attributes);
        let lease = self.give(session, file, call.lease);
        Ok(LookedAt { dir, found: Some(Seen { attributes, granted, lease, layout }) })
    }

    /// A lease for a session, if one is available and the client can be notified of its end.
    fn give(&mut self, session: SessionId, file: FileId, kind: LeaseKind) -> Option<LeaseGiven> {
        if kind == LeaseKind::None || !self.recaller.reaches(session) {
            return None;
        }
        match self.leases.apply(Event::Asked { session, file, kind })[..] {
            [Action::Give(given)] => {
                self.alone.set(file, self.leases.alone(file));
                Some(given)
            }
            _ => None,
        }
    }

    fn retain(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        call: Retain,
    ) -> Result<(), Status> {
        let may = self.need_data(txn, request, call.file, OpenId::NONE, Mode::Write);
        retaining::told(txn, request, (call, may), (&self.leases, &mut self.noticed))
    }

    fn return_leases(
        &mut self,
        txn: &Txn<'_>,
        request: &Request<'_>,
        call: &ReturnLease,
    ) -> Result<(), Status> {
        retaining::may_return(txn, request, call, &self.leases)?;
        for returned in &call.returned.0 {
            self.on_lease(Event::Returned { session: request.session, returned: *returned });
        }
        Ok(())
    }

    fn list(&self, txn: &Txn<'_>, by: &Request<'_>, call: &ReadDir) -> Result<Entries, Status> {
        let listed = names::list(txn, by.caller, call)?;
        Ok(self.leases.hide_others(by.session, listed))
    }

    /// Closes those of `opens` that are open, if any is.
    fn close(&mut self, txn: &mut Txn<'_>, of: SessionId, opens: &[OpenId]) -> Result<(), Status> {
        let opens = opens.iter().filter_map(|open| self.opens.close(of, *open));
        let closed: Vec<opens::Open> = opens.collect();
        if closed.is_empty() {
            return Err(Status::BadOpen);
        }
        closed.into_iter().try_for_each(|one| self.closed(txn, of, one))
    }

    /// A file was closed: blocks that were given ahead are taken back some time after its last
    /// writer in the session. A file without names is removed with its last close, and they with
    /// it.
    fn closed(
        &mut self,
        txn: &mut Txn<'_>,
        session: SessionId,
        closed: opens::Open,
    ) -> Result<(), Status> {
        let opens::Open { file, mode } = closed;
        let is_last_writer = mode.writes() && !self.opens.is_written(session, file);
        if is_last_writer && data::has_ahead(txn, session, file)? {
            self.closed.insert((session, file));
        }
        if !self.opens.may_be_open(file) && txn.get::<Orphan>(&key::orphan(file))?.is_some() {
            data::release_ahead(txn, session, file)?;
            let inode = inode::get(txn, file)?;
            names::forget(txn, &inode)?;
        }
        Ok(())
    }

    fn get_caps(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &GetCaps,
    ) -> Result<LayoutGiven, Status> {
        let inode = self.need_data(txn, request, call.file, call.open, call.mode)?;
        let session = request.session;
        let layout = self.layout(txn, session, call.file, call.mode, call.range, moment)?;
        restoring::told(call.range, layout.covered)?;
        Ok(LayoutGiven { attributes: inode.attributes, layout })
    }

    fn alloc(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        moment: Moment,
        call: &AllocNear,
    ) -> Result<LayoutGiven, Status> {
        let Alloc { file, open, range, medium, .. } = call.alloc;
        let bytes = range.get().ok_or(Status::Invalid)?;
        let inode = self.need_data(txn, request, file, open, Mode::Write)?;
        if inode.whereabouts.is_lost() {
            return Err(Status::Lost);
        }
        let is_there = &|disk| self.disks.is_there(disk);
        let room = Room { sets: &self.sets, is_there, medium };
        let (whose, wanted) = ((request.session, file), (&bytes, &call.near.0[..]));
        let allocated = data::allocate(txn, whose, wanted, &mut self.cursors, room);
        allocated.inspect_err(|status| self.is_short |= *status == Status::NoSpace)?;
        let layout = self.layout(txn, request.session, file, Mode::Write, range, moment)?;
        restoring::told(range, layout.covered)?;
        Ok(LayoutGiven { attributes: inode.attributes, layout })
    }

    fn preallocate(
        &mut self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        call: &Preallocate,
    ) -> Result<FileChanged, Status> {
        self.need_data(txn, request, call.file, call.open, Mode::Write)?;
        let is_there = &|disk| self.disks.is_there(disk);
        let room = Room { sets: &self.sets, is_there, medium: Medium::Disk };
        let (file, cursors) = (call.file, &mut self.cursors);
        let done = data::preallocate(txn, request, file, call.range, cursors, room);
        self.is_short |= matches!(done, Err(Status::NoSpace));
        done
    }

    fn begin_session(
        &mut self,
        txn: &mut Txn<'_>,
        (moment, now): (Moment, Time),
        call: &larder_wire::meta::calls::Session,
    ) -> Result<SessionGiven, Status> {
        let slots = call.slots.clamp(1, SLOTS_MAX);
        let there = self.sessions.of_client(call.client);
        if let Some((id, session)) = there {
            if session.boot == call.boot && session.standing != Standing::Condemned {
                self.sessions.resume(id, moment.instant);
                self.on_lease(Event::Resumed { session: id });
                return Ok(self.session_given(id, session.slots, true));
            }
            self.end_session(txn, id, Some((SessionId(moment.fresh), moment.instant)), now)?;
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(Status::Later);
        }
        let id = SessionId(moment.fresh);
        let (client, boot) = (call.client, call.boot);
        if let Some((before, _)) = there {
            self.locks.take_over(before, id, moment.instant);
        }
        txn.put(key::session(id), &records::Session { client, boot, slots });
        let (renewed, standing) = (moment.instant, Standing::Good);
        self.sessions.add(id, sessions::Session { client, boot, slots, renewed, standing });
        Ok(self.session_given(id, slots, false))
    }

    fn session_given(&self, session: SessionId, slots: u32, resumed: bool) -> SessionGiven {
        SessionGiven {
            session,
            slots,
            lease_ms: u32::try_from(self.sessions.lease().as_millis()).unwrap_or(u32::MAX),
            resumed,
            volume: self.volume.id,
            server_boot: self.volume.epoch,
            root: FileId::ROOT,
            copies: u32::try_from(self.sets.copies()).unwrap_or(u32::MAX),
            disks: Array(self.disks_told()),
            has_archive: self.archive.has_archive(),
        }
    }

    /// Ends a session: gives up what it holds, except its leases: those end when its capabilities
    /// are revoked. Its client may have another one, the `heir`, from that moment on.
    pub(crate) fn end_session(
        &mut self,
        txn: &mut Txn<'_>,
        session: SessionId,
        heir: Option<(SessionId, Instant)>,
        now: Time,
    ) -> Result<(), Status> {
        for open in self.opens.of_session(session) {
            self.close(txn, session, &[open])?;
        }
        data::release_all(txn, session)?;
        let prefix = &key::slot(session, 0)[..17];
        for (key, _) in txn.scan_all::<Slot>(prefix)? {
            txn.delete(key);
        }
        txn.delete(key::session(session));
        if let Some(of) = self.sessions.get(session) {
            let kept = retaining::left(txn, &of, heir.is_some(), &mut self.noticed, now)?;
            for (file, (to, now)) in kept.into_iter().zip(heir.into_iter().cycle()) {
                self.on_lease(Event::Inherited { from: session, to, file, now });
            }
        }
        txn.revoke(Revoked::All(session));
        self.sessions.remove(session);
        self.recaller.forget(session);
        Ok(())
    }
}
