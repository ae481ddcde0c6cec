//! State in memory: the journal, and the server's reports that concern it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use larder_cache::NamesMark;
use larder_io::Clock;
use larder_vfs::{Attr, Cred, Error, Found, Handle, Time, Volatile};

use crate::crossing::Changes;
use crate::dir_lease::DirLeases;
use crate::doubt::Asking;
use crate::due_times::DueTimes;
use crate::journal::Journal;
use crate::object::{Dentry, Dir, ObjectNo, after};
use crate::server_dir::ServerDir;

/// Most directories of which something is known.
const KNOWN_MAX: usize = 4096;
/// By then the server has objects for which no caller has set another time.
const DUE_AFTER: Duration = Duration::from_secs(30);
/// How coarse the times of servers are: times that are set here are at least this much earlier when
/// a server sets its own, so that they are not later than what it reports afterwards.
const CLOCK_COARSENESS_NS: i64 = 20_000_000;
/// Least number of dentries at which those that need not be known are forgotten.
const LEFT_MIN: usize = 1024;
const SECOND_NS: i64 = 1_000_000_000;

/// What is known, in memory. The journal is in the cache as well.
pub(crate) struct State {
    journal: Journal,
    known: HashMap<Dir, ServerDir>,
    dir_leases: DirLeases,
    changes: Changes,
    /// Objects that were waiting in directories when they were listed; they keep their positions
    /// there.
    listed: HashMap<Dir, BTreeSet<ObjectNo>>,
    /// The owner and group that the server gives to objects made by these users.
    owners: HashMap<(u32, u32), (u32, u32)>,
    /// When waiting objects are made at the server.
    due: DueTimes,
    /// The server's errors for objects that it did not make.
    failures: HashMap<ObjectNo, Error>,
    /// Files made by this process whose bytes may be in the memory of machines alone: so may the
    /// server's record of them.
    volatile: HashMap<ObjectNo, Volatile>,
    /// How much of the journal the cache has.
    recorded: NamesMark,
    /// Objects that the server has, where that may not be recorded on the disk yet, and since
    /// which mark.
    unkept: HashMap<ObjectNo, NamesMark>,
    /// Dentries at which something waited that waits there no more, where that may not be on the
    /// disk yet, and since which mark.
    left: HashMap<Dentry, NamesMark>,
    /// From so many on, those that are on the disk by now are forgotten.
    left_max: usize,
    /// The server's file system.
    fsid: Option<u64>,
    /// What must be added to our clock to get the server's, in nanoseconds; slightly less.
    clock_ahead_ns: Option<i64>,
    last_time: Time,
    /// How many names the server has of files that are to get more there, as it said when it was
    /// not being asked for one.
    server_links: HashMap<Dir, u32>,
    /// Changes of bytes and attributes that the server was asked for, by its handles.
    asking: HashMap<Handle, Asking>,
}

impl State {
    /// From the journal of an earlier process, with its size in the cache: waiting objects are due.
    pub(crate) fn new(journal: Journal, now: Instant, recorded: NamesMark) -> State {
        let due = journal.objects().filter(|(no, _)| journal.waiting(*no).is_some());
        let taken = journal.taken().waiting().map(|(no, _)| no);
        let altered = journal.altered_waiting();
        let links = journal.links().all().map(|(no, _)| no);
        let due = due.map(|(no, _)| no).chain(taken).chain(altered).chain(links);
        let due = DueTimes::new(due, now);
        State {
            journal,
            known: HashMap::new(),
            dir_leases: DirLeases::default(),
            changes: Changes::default(),
            listed: HashMap::new(),
            owners: HashMap::new(),
            due,
            failures: HashMap::new(),
            recorded,
            volatile: HashMap::new(),
            unkept: HashMap::new(),
            left: HashMap::new(),
            left_max: LEFT_MIN,
            fsid: None,
            clock_ahead_ns: None,
            last_time: Time::default(),
            server_links: HashMap::new(),
            asking: HashMap::new(),
        }
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The journal, for changes, which must be recorded before the state is unlocked.
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// What is known of a directory of the server.
    pub(crate) fn known(&self, dir: &Dir) -> Option<&ServerDir> {
        self.known.get(dir)
    }

    pub(crate) fn known_mut(&mut self, dir: &Dir) -> Option<&mut ServerDir> {
        self.known.get_mut(dir)
    }

    /// The server's leases on directories.
    pub(crate) fn dir_leases(&self) -> &DirLeases {
        &self.dir_leases
    }

    pub(crate) fn dir_leases_mut(&mut self) -> &mut DirLeases {
        &mut self.dir_leases
    }

    /// Changes of names that are under way.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(crate) fn changes_mut(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// What waits in a directory is made at the server as soon as possible.
    pub(crate) fn is_due_in(&mut self, dir: &Dir, now: Instant) {
        let taken = self.journal.taken();
        let moved = taken.in_dir(dir).chain(taken.origins_in(dir));
        let moved = moved.chain(self.journal.links().in_dir(dir));
        let all: Vec<ObjectNo> =
            self.journal.waiting_in(dir).chain(moved).map(|(_, no)| no).collect();
        for no in all {
            self.due.hurry(no, now);
        }
    }

    /// Waiting objects, and when they are made at the server.
    pub(crate) fn all_due(&self) -> impl Iterator<Item = (ObjectNo, Instant)> {
        self.due.iter()
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first()
    }

    /// Has all that waits made at the server soon if there is little room for more. Returns whether
    /// that is news.
    pub(crate) fn make_room(&mut self, now: Instant) -> bool {
        self.due.make_room(now)
    }

    /// When an object is made at the server, if it waits.
    pub(crate) fn due(&self, no: ObjectNo) -> Option<Instant> {
        self.due.get(no)
    }

    /// The server's error when it did not make an object.
    pub(crate) fn failure(&self, no: ObjectNo) -> Option<Error> {
        self.failures.get(&no).copied()
    }

    pub(crate) fn fail(&mut self, no: ObjectNo, error: Error) {
        self.failures.insert(no, error);
    }

    /// What the server last refused with this error.
    pub(crate) fn failed_as(&self, error: Error) -> impl Iterator<Item = ObjectNo> {
        self.failures.iter().filter(move |(_, one)| **one == error).map(|(no, _)| *no)
    }

    /// It was refused for a reason that is over.
    pub(crate) fn fail_no_more(&mut self, no: ObjectNo) {
        self.failures.remove(&no);
    }

    /// A directory is gone: nothing is known of it.
    pub(crate) fn forget_dir(&mut self, dir: &Dir) {
        self.known.remove(dir);
        self.dir_leases.forget(dir);
    }

    /// The server's file system is known from its first answer on.
    pub(crate) fn see_file_system(&mut self, fsid: u64) {
        self.fsid.get_or_insert(fsid);
    }

    /// The server has given an owner to an object that a user made.
    pub(crate) fn learn_owner(&mut self, cred: &Cred, made: &Attr) {
        self.owners.insert((cred.uid, cred.gid), (made.uid, made.gid));
    }

    /// The attributes of a waiting object.
    pub(crate) fn attr(&self, no: ObjectNo) -> Option<Attr> {
        let (_, waiting) = self.journal.waiting(no)?;
        let this = Dir::Made(no);
        let mut attr = waiting.attr(no, self.fsid.unwrap_or(0), self.journal.subdirectories(&this));
        attr.nlink += self.journal.links().count_of(&this);
        Some(attr)
    }

    /// A waiting object, as the client finds it.
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
        let (taken, links) = (self.journal.taken(), self.journal.links());
        let is_moved = taken.at(dir, name).is_some() || links.at(dir, name).is_some();
        if self.journal.waiting_at(dir, name).is_some() || is_moved {
            return Some(true);
        }
        if taken.from(dir, name).is_some() {
            return Some(false);
        }
        match dir {
            Dir::Made(no) if self.journal.waiting(*no).is_some() => Some(false),
            _ => self.known.get(dir)?.has(name),
        }
    }

    /// Something is known of a directory from now on.
    pub(crate) fn learn(&mut self, dir: Dir, known: ServerDir) -> &mut ServerDir {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&dir) {
            self.known.clear();
        }
        self.known.entry(dir).insert_entry(known).into_mut()
    }

    /// The objects listed here for a directory with these objects waiting `now`: those, and objects
    /// that were waiting in an earlier listing and still exist.
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

    /// The server is to have this object soon, unless a caller sets another time. Returns when.
    pub(crate) fn set_due(
        &mut self,
        no: ObjectNo,
        now: Instant,
        within: Option<Duration>,
    ) -> Instant {
        let due = now + within.unwrap_or(DUE_AFTER);
        self.due.set(no, due);
        due
    }

    /// The server is to have this object by then.
    pub(crate) fn set_due_at(&mut self, no: ObjectNo, due: Instant) {
        self.due.set(no, due);
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
        self.left.retain(|_, left| !is_kept(*left));
    }

    /// Notes what the changes that were just recorded took away.
    pub(crate) fn note_left(&mut self, is_kept: impl Fn(NamesMark) -> bool) {
        for dentry in self.journal.take_left() {
            self.left.insert(dentry, self.recorded);
        }
        if self.left.len() > self.left_max {
            self.left.retain(|_, left| !is_kept(*left));
            self.left_max = (2 * self.left.len()).max(LEFT_MIN);
        }
    }

    /// Since which mark something that waited at a dentry waits there no more, if that may not be
    /// on the disk.
    pub(crate) fn left(&self, dentry: &Dentry) -> Option<NamesMark> {
        self.left.get(dentry).copied()
    }

    pub(crate) fn set_recorded(&mut self, recorded: NamesMark) {
        self.recorded = recorded;
    }

    /// How much of the journal the cache has.
    pub(crate) fn recorded(&self) -> NamesMark {
        self.recorded
    }

    /// Whether the server treats a user as the same user as this machine does.
    pub(crate) fn is_same_user(&self, cred: &Cred) -> bool {
        let ids = (cred.uid, cred.gid);
        self.owners.get(&ids) == Some(&ids)
    }

    /// Whether the server was seen to map a user to another one.
    pub(crate) fn is_somebody_else(&self, cred: &Cred) -> bool {
        let ids = (cred.uid, cred.gid);
        self.owners.get(&ids).is_some_and(|owner| *owner != ids)
    }

    /// Forgets what is known of the server's directories: other clients may have changed them.
    /// Returns these directories, and those with waiting objects.
    pub(crate) fn forget_known(&mut self) -> BTreeSet<Dir> {
        let waiting = self.journal.objects().filter(|(no, _)| self.due.get(*no).is_some());
        let mut dirs: BTreeSet<Dir> =
            waiting.map(|(_, object)| object.dentry.dir.clone()).collect();
        let taken = self.journal.taken().waiting().map(|(_, taken)| taken);
        dirs.extend(taken.flat_map(|one| {
            let to = one.dentry.as_ref().map(|dentry| dentry.dir.clone());
            to.into_iter().chain([one.origin.dir.clone()])
        }));
        dirs.extend(self.journal.links().dirs().cloned());
        dirs.extend(self.known.drain().map(|(dir, _)| dir));
        dirs
    }

    /// The number of a file's names, of which the server says that it has so many. While it is
    /// being asked for further ones, nobody knows whether that counts these.
    pub(crate) fn count_links(&mut self, file: &Dir, at_server: u32) -> u32 {
        let waiting = self.journal.links().count_of(file);
        if waiting == 0 {
            return at_server;
        }
        let is_asked = self.journal.links().of(file).any(|(_, linked)| linked.is_attempted);
        if !is_asked {
            self.server_links.insert(file.clone(), at_server);
        }
        self.server_links.get(file).copied().unwrap_or(at_server) + waiting
    }

    /// Whether the server has said how many names of a file it has.
    pub(crate) fn knows_links(&self, file: &Dir) -> bool {
        self.server_links.contains_key(file)
    }

    /// The server has one more.
    pub(crate) fn is_linked(&mut self, file: &Dir) {
        if self.journal.links().count_of(file) == 0 {
            self.server_links.remove(file);
        } else if let Some(count) = self.server_links.get_mut(file) {
            *count += 1;
        }
    }

    /// Changes of bytes and attributes in flight to the server.
    pub(crate) fn asking(&self) -> &HashMap<Handle, Asking> {
        &self.asking
    }

    pub(crate) fn asking_mut(&mut self) -> &mut HashMap<Handle, Asking> {
        &mut self.asking
    }

    /// Waiting objects are made at the server as soon as possible.
    pub(crate) fn all_is_due(&mut self, now: Instant) {
        self.due.hurry_all(now);
    }

    /// Whether an object that was made here has lost its only name.
    pub(crate) fn is_gone(&self, no: ObjectNo) -> bool {
        let Some(object) = self.journal.get(no) else { return true };
        let Some(named) = self.journal.named(no).filter(|named| !named.is_linked) else {
            return false;
        };
        if self.journal.links().count_of(&Dir::Made(no)) > 0 {
            return false;
        }
        let Dentry { dir, name } = &object.dentry;
        let taken = self.journal.taken();
        let taken = taken.from(dir, name).and_then(|no| taken.get(no));
        taken.is_some_and(|one| one.dentry.is_none() && one.handle == named.handle)
    }

    /// An object does not wait any more.
    pub(crate) fn waits_no_more(&mut self, no: ObjectNo) {
        self.due.remove(no);
        self.failures.remove(&no);
        self.volatile.remove(&no);
    }

    /// How the bytes of a file that waits may be in the memory of machines; `None`: the server is
    /// not to lose it.
    pub(crate) fn volatile(&self, no: ObjectNo) -> Option<Volatile> {
        self.volatile.get(&no).copied()
    }

    pub(crate) fn set_volatile(&mut self, no: ObjectNo, volatile: Option<Volatile>) {
        self.volatile.remove(&no);
        self.volatile.extend(volatile.map(|volatile| (no, volatile)));
    }

    /// The dentry of a name in a directory of the client.
    pub(crate) fn dentry(&self, dir: &Handle, name: &OsStr) -> Dentry {
        Dentry { dir: self.journal.dir(dir), name: name.to_owned() }
    }

    /// The present moment, as a time of files: by the server's clock as far as that is known, and
    /// later than any that was returned before.
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
