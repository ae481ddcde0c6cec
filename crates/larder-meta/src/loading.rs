//! What a server keeps in memory beside the store, as the store has it when the server begins.

use std::ops::Range;

use larder_io::Clock;
use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, Sequence, SessionId};

use crate::archive::Store;
use crate::archive::file::OnRecord;
use crate::archive::queue::Queue;
use crate::committer::Waiter;
use crate::data::copies::Sets;
use crate::data::{blocks, memory};
use crate::destage::{Destage, Moments};
use crate::engine::{Engine, Writes};
use crate::in_place::InPlace;
use crate::retained;
use crate::sessions::{self, Sessions, Standing};
use crate::slots::Slots;
use crate::store::records::{self, Session, Slot};
use crate::store::{Txn, key};
use crate::volume::VolumeError;

/// Where the keys of sessions begin.
const NO_SESSION: SessionId = SessionId([0; 16]);

/// What the store has of the sessions of the previous life.
pub(crate) struct Loaded {
    pub(crate) slots: Slots<Waiter>,
    pub(crate) sets: Sets,
    pub(crate) draining: Vec<(DiskId, Range<u64>)>,
    pub(crate) in_place: InPlace,
    pub(crate) destage: Destage,
    pub(crate) archive: Queue,
    /// Files that clients retain, and the sessions of these.
    pub(crate) retained: Vec<(SessionId, FileId)>,
}

/// Loads the state that is kept in memory beside the store. Sessions count as renewed now. With
/// `is_durable` the archive is the volume's level durable, for what may be in memory for a time.
pub(crate) fn load(
    engine: &dyn Engine,
    sessions: &Sessions,
    clock: &dyn Clock,
    (archive, is_durable): (Option<&dyn Store>, bool),
) -> Result<Loaded, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    load_from(&Txn::new(&*view, &none), sessions, clock, (archive, is_durable))
        .map_err(|_logged| VolumeError::Unreadable)
}

fn load_from(
    txn: &Txn<'_>,
    sessions: &Sessions,
    clock: &dyn Clock,
    (archive, is_durable): (Option<&dyn Store>, bool),
) -> Result<Loaded, Status> {
    let id = |key: &[u8]| key[1..].first_chunk().map(|id| SessionId(*id)).ok_or(Status::Io);
    let renewed = clock.instant();
    for (key, session) in txn.scan_all::<Session>(&key::session(NO_SESSION)[..1])? {
        let Session { client, boot, slots } = session;
        let standing = Standing::FromBefore;
        sessions.add(id(&key)?, sessions::Session { client, boot, slots, renewed, standing });
    }
    let mut slots = Slots::new();
    for (key, last) in txn.scan_all::<Slot>(&key::slot(NO_SESSION, 0)[..1])? {
        let slot = u32::from_be_bytes(*key.last_chunk().ok_or(Status::Io)?);
        let Slot { sequence, procedure, reply } = last;
        slots.load(Sequence { session: id(&key)?, slot, sequence }, procedure, reply.0);
    }
    let mut in_place = InPlace::default();
    for (key, _) in txn.scan_all::<records::InPlace>(&key::in_place(FileId(0), NO_SESSION)[..1])? {
        let (file, session) = key[1..].split_first_chunk().ok_or(Status::Io)?;
        let session = SessionId(*session.first_chunk().ok_or(Status::Io)?);
        let mark = (FileId(u64::from_be_bytes(*file)), session);
        in_place.load(mark, sessions.is_there(session));
    }
    let mut destage = Destage::new(Moments::new(renewed, wall_ms(clock)));
    for (set, file, due_ms) in memory::all_due(txn)? {
        destage.note(set, file, due_ms);
    }
    let (sets, draining) = (Sets::load(txn)?, blocks::draining(txn)?);
    let archive = Queue::load(txn, destage.moments(), archive.map(Store::url), is_durable)?;
    for file in archive.due_files() {
        let late_ms = OnRecord::load(txn, file)?.late_ms();
        for set in memory::sets_of(txn, file, &sets)? {
            destage.note(set, file, late_ms);
        }
    }
    for (set, file) in memory::lost_on_sets(txn, &sets)? {
        if archive.knows(file) {
            // What the archive has of it is read.
            destage.note(set, file, 0);
        }
    }
    let of_client = |(client, file)| Some((sessions.of_client(client)?.0, file));
    let retained = retained::all(txn)?.into_iter().filter_map(of_client).collect();
    Ok(Loaded { slots, sets, draining, in_place, destage, archive, retained })
}

/// What the wall clock shows, in ms since the epoch.
fn wall_ms(clock: &dyn Clock) -> u64 {
    let wall = clock.wall();
    u64::try_from(wall.sec).unwrap_or(0) * 1000 + u64::from(wall.nsec) / 1_000_000
}
