//! State in memory: the journal, and what the server said that concerns it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use larder_cache::NamesMark;
use larder_io::Clock;
use larder_vfs::{Attr, Cred, Error, Found, Handle, Time};

use crate::journal::Journal;
use crate::known::Known;
use crate::object::{Dir, ObjectNo, Place, after};

/// Most directories of which something is known.
const KNOWN_MAX: usize = 4096;
/// By then the server has what nobody promised to give it sooner or later.
const DUE_AFTER: Duration = Duration::from_secs(30);
/// How coarse the times of servers are: times that are made here are at least so old when a server
/// makes its own, so that they do not look newer than what it says afterwards.
const CLOCK_COARSENESS_NS: i64 = 20_000_000;
const SECOND_NS: i64 = 1_000_000_000;

/// What is known, in memory. The journal's part of it is in the cache as well.
pub(crate) struct State {
    journal: Journal,
    known: HashMap<Dir, Known>,
    /// What waited in directories when they were listed; it keeps its positions there.
    listed: HashMap<Dir, BTreeSet<ObjectNo>>,
    /// Which owner and group the server gives what these make.
    owners: HashMap<(u32, u32), (u32, u32)>,
    /// When what waits is made at the server.
    due: HashMap<ObjectNo, Instant>,
    /// What the server said to what it did not make.
    failures: HashMap<ObjectNo, Error>,
    /// How much of the journal the cache has.
    recorded: NamesMark,
    /// Since when the server has an object, where that may not be on the disk.
    unkept: HashMap<ObjectNo, NamesMark>,
    /// The server's file system.
    fsid: Option<u64>,
    /// What is to be added to our clock to have the server's, in nanoseconds; a bit less.
    clock_ahead_ns: Option<i64>,
    last_time: Time,
}

impl State {
    /// Of a journal as an earlier process left it, of which the cache has so much: what waits is
    /// due.
    pub(crate) fn new(journal: Journal, now: Instant, recorded: NamesMark) -> State {
        let due = journal.objects().filter(|(no, _)| journal.waiting(*no).is_some());
        let due = due.map(|(no, _)| (no, now)).collect();
        State {
            journal,
            known: HashMap::new(),
            listed: HashMap::new(),
            owners: HashMap::new(),
            due,
            failures: HashMap::new(),
            recorded,
            unkept: HashMap::new(),
            fsid: None,
            clock_ahead_ns: None,
            last_time: Time::default(),
        }
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// To change it; what has changed is to be recorded before the state is let go.
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// What is known of a directory of the server.
    pub(crate) fn known(&self, dir: &Dir) -> Option<&Known> {
        self.known.get(dir)
    }

    pub(crate) fn known_mut(&mut self, dir: &Dir) -> Option<&mut Known> {
        self.known.get_mut(dir)
    }

    /// What waits, and when it is made at the server.
    pub(crate) fn all_due(&self) -> impl Iterator<Item = (ObjectNo, Instant)> {
        self.due.iter().map(|(no, due)| (*no, *due))
    }

    /// When an object is made at the server, if it waits.
    pub(crate) fn due(&self, no: ObjectNo) -> Option<Instant> {
        self.due.get(&no).copied()
    }

    /// What the server said when it did not make an object.
    pub(crate) fn failure(&self, no: ObjectNo) -> Option<Error> {
        self.failures.get(&no).copied()
    }

    pub(crate) fn fail(&mut self, no: ObjectNo, error: Error) {
        self.failures.insert(no, error);
    }

    /// The server's file system is known from its first answer on.
    pub(crate) fn see_file_system(&mut self, fsid: u64) {
        self.fsid.get_or_insert(fsid);
    }

    /// The server has given what somebody has made an owner.
    pub(crate) fn learn_owner(&mut self, cred: &Cred, made: &Attr) {
        self.owners.insert((cred.uid, cred.gid), (made.uid, made.gid));
    }

    /// The attributes of what waits.
    pub(crate) fn attr(&self, no: ObjectNo) -> Option<Attr> {
        let (_, waiting) = self.journal.waiting(no)?;
        Some(waiting.attr(no, self.fsid.unwrap_or(0), self.journal.subdirectories(&Dir::Made(no))))
    }

    /// What waits, as the client finds it.
    pub(crate) fn found(&self, no: ObjectNo) -> Option<Found> {
        Some(Found { handle: self.journal.handle(no), attr: self.attr(no)? })
    }

    /// The attributes of a directory in which something was or is made, as applications see them.
    pub(crate) fn dir_attr(&self, dir: &Dir) -> Option<Attr> {
        if let Dir::Made(no) = dir
            && let Some(attr) = self.attr(*no)
        {
            return Some(attr);
        }
        let mut attr = self.known.get(dir)?.shown();
        attr.nlink += self.journal.subdirectories(dir);
        if let Dir::Made(no) = dir {
            attr.fileid = no.fileid();
        }
        Some(attr)
    }

    /// Whether a directory has such a name, as far as that is known without asking.
    pub(crate) fn has(&self, dir: &Dir, name: &OsStr) -> Option<bool> {
        if self.journal.waiting_at(dir, name).is_some() {
            return Some(true);
        }
        match dir {
            Dir::Made(no) if self.journal.waiting(*no).is_some() => Some(false),
            _ => self.known.get(dir)?.has(name),
        }
    }

    /// Something is known of a directory from now on.
    pub(crate) fn learn(&mut self, dir: Dir, known: Known) -> &mut Known {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&dir) {
            self.known.clear();
        }
        self.known.entry(dir).insert_entry(known).into_mut()
    }

    /// What is listed here of a directory, in which this waits `now`: that, and what waited there
    /// in an earlier listing and still exists.
    pub(crate) fn list(&mut self, dir: &Dir, now: BTreeSet<ObjectNo>) -> BTreeSet<ObjectNo> {
        let mut all = self.listed.remove(dir).unwrap_or_default();
        all.retain(|no| self.journal.get(*no).is_some());
        all.extend(now);
        if self.listed.len() >= KNOWN_MAX {
            self.listed.clear();
        }
        if !all.is_empty() {
            self.listed.insert(dir.clone(), all.clone());
        }
        all
    }

    /// Whether something waited in a directory when it was listed.
    pub(crate) fn has_listed(&self, dir: &Dir) -> bool {
        self.listed.contains_key(dir)
    }

    /// The server is to have this object soon, unless somebody promises otherwise.
    pub(crate) fn set_due(&mut self, no: ObjectNo, now: Instant, within: Option<Duration>) {
        self.due.insert(no, now + within.unwrap_or(DUE_AFTER));
    }

    /// The server has an object, as is recorded now.
    pub(crate) fn is_named(&mut self, no: ObjectNo) {
        self.unkept.insert(no, self.recorded);
        self.waits_no_more(no);
    }

    /// Since when the server has an object, if that may not be on the disk.
    pub(crate) fn unkept(&self, no: ObjectNo) -> Option<NamesMark> {
        self.unkept.get(&no).copied()
    }

    /// More is on the disk.
    pub(crate) fn forget_kept(&mut self, is_kept: impl Fn(NamesMark) -> bool) {
        self.unkept.retain(|_, named| !is_kept(*named));
    }

    pub(crate) fn set_recorded(&mut self, recorded: NamesMark) {
        self.recorded = recorded;
    }

    /// How much of the journal the cache has.
    pub(crate) fn recorded(&self) -> NamesMark {
        self.recorded
    }

    /// Whether the server takes somebody for whom he is here.
    pub(crate) fn is_himself(&self, cred: &Cred) -> bool {
        let ids = (cred.uid, cred.gid);
        self.owners.get(&ids) == Some(&ids)
    }

    /// An object does not wait any more.
    pub(crate) fn waits_no_more(&mut self, no: ObjectNo) {
        self.due.remove(&no);
        self.failures.remove(&no);
    }

    /// The place of a name in a directory of the client.
    pub(crate) fn place(&self, dir: &Handle, name: &OsStr) -> Place {
        Place { dir: self.journal.dir(dir), name: name.to_owned() }
    }

    /// The present moment, as a time of files: by the server's clock as far as that is known, and
    /// later than any that was asked for before.
    pub(crate) fn time(&mut self, clock: &dyn Clock) -> Time {
        let ahead = self.clock_ahead_ns.unwrap_or(-CLOCK_COARSENESS_NS);
        let now = nanoseconds(clock).saturating_add(ahead);
        let nsec = u32::try_from(now.rem_euclid(SECOND_NS)).expect("less than a second");
        let time = Time { sec: now.div_euclid(SECOND_NS), nsec };
        self.last_time = time.max(after(self.last_time));
        self.last_time
    }

    /// The server has made something just now, and gave it this time.
    pub(crate) fn learn_time(&mut self, clock: &dyn Clock, made: Time) {
        let made = made.sec.saturating_mul(SECOND_NS).saturating_add(i64::from(made.nsec));
        let ahead = made.saturating_sub(nanoseconds(clock));
        self.clock_ahead_ns = Some(ahead.saturating_sub(CLOCK_COARSENESS_NS));
    }
}

/// The wall clock, in nanoseconds since 1970.
fn nanoseconds(clock: &dyn Clock) -> i64 {
    let wall = clock.wall();
    wall.sec.saturating_mul(SECOND_NS).saturating_add(i64::from(wall.nsec))
}
