//! Random histories while the server is out of reach, compared with the same ones on a server that
//! is not: the answers are the same, and in the end the server has the same tree. Answers are lost
//! and machines crash when it is back.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, Weak};
use std::task::{Context, Poll, Waker};

use larder_vfs::{Attr, Change, Error, Held, Listed, SetTime, Stability, Time, Trouble};

use super::*;
use crate::leased::Right;
use crate::overlay::There;
use crate::shared::Target;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What a client would have cached of the server, through another connection. The journal knows
/// what has changed here since.
struct Snapshot {
    server: MemRemote,
    /// A file that was described before the server changed it.
    before: Mutex<Option<(Handle, Attr)>>,
}

impl Snapshot {
    /// What it has of a file, which the server describes like this now.
    fn of(&self, file: &Handle, now: Attr) -> Attr {
        let before = self.before.lock().unwrap();
        before.as_ref().filter(|(known, _)| known == file).map_or(now, |(_, attr)| *attr)
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the model answers at once"),
    }
}

impl Held for Snapshot {
    fn held(&self, file: &Handle) -> Option<Attr> {
        Some(self.of(file, ready(self.server.getattr(&Cred::root(), file)).ok()?))
    }

    fn held_name(&self, dir: &Handle, name: &OsStr) -> Option<Option<Found>> {
        let found = ready(self.server.lookup(&Cred::root(), dir, name)).ok()?.found;
        Some(found.map(|found| Found { attr: self.of(&found.handle, found.attr), ..found }))
    }

    fn bring<'a>(&'a self, _file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn held_entries(&self, dir: &Handle) -> Option<Vec<Listed>> {
        let listing =
            ready(self.server.readdir(&Cred::root(), dir, Cookie::default(), 1 << 20)).ok()?;
        listing.eof.then_some(listing.entries)
    }
}

/// Handles of the server for objects that were made here, which only the server knows.
struct Through {
    names: Weak<Names>,
    held: Snapshot,
}

impl Through {
    fn server(&self, handle: &Handle) -> Option<Handle> {
        match self.names.upgrade()?.shared().target(handle).ok()? {
            Target::Server(handle) => Some(handle),
            Target::Waiting(_) => None,
        }
    }
}

impl Held for Through {
    fn held(&self, file: &Handle) -> Option<Attr> {
        let names = self.names.upgrade()?;
        let attr = self.held.held(&self.server(file)?)?;
        Some(names.shared().show(file, attr))
    }

    fn held_name(&self, dir: &Handle, name: &OsStr) -> Option<Option<Found>> {
        let names = self.names.upgrade()?;
        let found = self.held.held_name(&self.server(dir)?, name)?;
        Some(found.map(|found| names.shared().show_found(found)))
    }

    fn bring<'a>(&'a self, file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        self.held.bring(file)
    }

    fn held_entries(&self, dir: &Handle) -> Option<Vec<Listed>> {
        self.held.held_entries(&self.server(dir)?)
    }
}

/// A machine that may work without its server, and a server on which the same is done at once.
pub(super) struct Pair {
    pub(super) rig: Rig,
    held: Arc<Through>,
    pub(super) top: Handle,
    pub(super) reference: MemRemote,
    random: Random,
    count: i64,
    licence: Licence,
}

const NONE: Licence = Licence { sole: false, leased: false, offline: false };

/// Why a machine may work without its server: its user permits it, or no other client changes
/// names.
pub(super) const LICENCES: [Licence; 2] =
    [Licence { offline: true, ..NONE }, Licence { sole: true, ..NONE }];

fn licensed(rig: &Rig, licence: Licence) -> (Arc<Names>, Arc<Through>) {
    let (server, cache, clock) = (rig.server.clone(), rig.cache.clone(), rig.clock.clone());
    let names = Arc::new(Names::new(server, cache, clock, "here", licence));
    let held = Snapshot { server: rig.server.another_client(), before: Mutex::default() };
    let held = Arc::new(Through { names: Arc::downgrade(&names), held });
    let weak: Weak<Through> = Arc::downgrade(&held);
    names.deferring().unwrap().held_by(weak);
    (names, held)
}

impl Pair {
    pub(super) async fn new(licence: Licence, seed: u64) -> Pair {
        let mut rig = Rig::on(SimDisk::new()).await;
        let (names, held) = licensed(&rig, licence);
        rig.names = names;
        let (reference, top) = (MemRemote::new(), rig.top().await);
        Pair { rig, held, top, reference, random: Random(seed), count: 0, licence }
    }

    /// What is cached of a file is this, whatever the server has by now.
    pub(super) fn has_held(&self, file: &Handle, before: Attr) {
        *self.held.held.before.lock().unwrap() = Some((file.clone(), before));
    }

    /// The object with a name here: its handle and kind.
    pub(super) async fn find(&self, dir: &Handle, name: &str) -> Option<(Handle, Kind)> {
        let shared = self.rig.names.shared();
        let there = shared.what_is_at(&user(), dir, name.as_ref(), Right::Licence).await??;
        let state = shared.state();
        let kind = state.kind_of(&there)?;
        let handle = match there {
            There::Waiting(no) => state.journal().handle(no),
            There::Moved(no) => state.journal().taken().get(no)?.handle.clone(),
            There::Linked(no) => {
                let file = state.journal().links().get(no)?.file.clone();
                state.journal().client_handle(&file)
            }
            There::Server(found) => found.handle,
        };
        drop(state);
        Some((shared.known_as(&handle), kind))
    }

    async fn find_there(&self, dir: &Handle, name: &str) -> Option<Handle> {
        let found = self.reference.lookup(&user(), dir, name.as_ref()).await.unwrap().found;
        found.map(|found| found.handle)
    }

    /// A directory, on both.
    async fn dir(&mut self) -> (Handle, Handle) {
        let mut here = self.top.clone();
        let mut there = self.reference.root().await.unwrap().handle;
        while self.random.below(3) > 0 {
            let name = NAMES[self.random.below(4) as usize];
            match self.find(&here, name).await {
                Some((handle, Kind::Directory)) => {
                    here = handle;
                    there = self.find_there(&there, name).await.expect("it is on both");
                }
                _ => break,
            }
        }
        (here, there)
    }

    /// Does the same on both, unless this machine may not.
    async fn step(&mut self) -> bool {
        let (here, there) = self.dir().await;
        let name = NAMES[self.random.below(4) as usize];
        self.count += 1;
        let mtime = Some(SetTime::To(Time { sec: 1000 + self.count, nsec: 0 }));
        let set = SetAttr { mtime, ..mode(0o700 + self.random.below(64) as u32) };
        let remote = self.rig.remote();
        let named = OsStr::new(name);
        let said;
        let (done, same): (Result<()>, Result<()>) = match self.random.below(13) {
            choice @ 0..=3 => {
                let new = match choice {
                    0 | 1 => New::FileExclusive,
                    2 => New::Directory,
                    _ => New::Symlink(format!("{}", self.count).into()),
                };
                said = format!("make {new:?}");
                let done = remote.make(&user(), &here, named, new.clone(), set).await.map(drop);
                if done == Err(Error::TimedOut) {
                    return false;
                }
                (done, self.reference.make(&user(), &there, named, new, set).await.map(drop))
            }
            choice @ 4..=5 => {
                let what = if choice == 4 { Removal::File } else { Removal::Directory };
                said = format!("{what:?}");
                let done = remote.remove(&user(), &here, named, what).await.map(drop);
                if done == Err(Error::TimedOut) {
                    return false;
                }
                (done, self.reference.remove(&user(), &there, named, what).await.map(drop))
            }
            6..=8 => {
                let (to_here, to_there) = self.dir().await;
                let to = OsStr::new(NAMES[self.random.below(4) as usize]);
                let remote = self.rig.remote();
                said = format!("rename to {to_here:?}/{to:?}");
                let (from, target) = ((&here, named), (&to_here, to));
                let done = remote.rename(&user(), from, target).await.map(drop);
                if done == Err(Error::TimedOut) {
                    return false;
                }
                let (from, target) = ((&there, named), (&to_there, to));
                (done, self.reference.rename(&user(), from, target).await.map(drop))
            }
            9 => return self.alter((&here, &there), name, set).await,
            _ => {
                let (to_here, to_there) = self.dir().await;
                let to = OsStr::new(NAMES[self.random.below(4) as usize]);
                said = format!("link to {to_here:?}/{to:?}");
                let Some((file, kind)) = self.find(&here, name).await else { return true };
                if kind == Kind::Directory {
                    return true;
                }
                let other = self.find_there(&there, name).await.expect("it is on both");
                let remote = self.rig.remote();
                let done = remote.link(&user(), &file, &to_here, to).await.map(drop);
                if done == Err(Error::TimedOut) {
                    return false;
                }
                (done, self.reference.link(&user(), &other, &to_there, to).await.map(drop))
            }
        };
        assert_eq!(done, same, "{said} {name}");
        true
    }

    async fn alter(&self, (here, there): (&Handle, &Handle), name: &str, set: SetAttr) -> bool {
        let Some((file, kind)) = self.find(here, name).await else { return true };
        if kind == Kind::Symlink {
            return true;
        }
        let size = (kind == Kind::File && set.mode.unwrap_or(0) & 1 == 1).then_some(0);
        let set = SetAttr { size, ..set };
        let answer = self.rig.deferring().set_here(&user(), &file, &set, None);
        let Some(answer) = answer else { return false };
        answer.unwrap();
        let other = self.find_there(there, name).await.expect("it is on both");
        self.reference.setattr(&user(), &other, set, None).await.map(drop::<Change>).unwrap();
        true
    }

    pub(super) fn leave(&self) {
        self.rig.server.time_out();
    }

    /// The process dies, and another one continues.
    pub(super) fn die(self) -> Pair {
        self.crash(None)
    }

    fn crash(self, image: Option<Image>) -> Pair {
        let Pair { rig, held, top, reference, random, count, licence } = self;
        drop(held);
        let mut rig = rig.crash(image);
        let (names, held) = licensed(&rig, licence);
        rig.names = names;
        Pair { rig, held, top, reference, random, count, licence }
    }

    /// The server is back, perhaps with one call that goes wrong, or after a crash.
    async fn come_back(mut self) -> Pair {
        if self.random.below(2) == 0 {
            self.rig.deferring().keep().await.unwrap();
            let image = match self.random.below(3) {
                0 => None,
                1 => Some(Image::Synced),
                _ => Some(Image::Torn(self.random.next())),
            };
            self = self.crash(image);
        }
        self.rig.server.reconnect();
        for _ in 0..self.random.below(4) {
            let trouble = match self.random.below(3) {
                0 => Trouble::Unanswered,
                1 => Trouble::Refused(Error::NoSpace),
                _ => Trouble::Refused(Error::TimedOut),
            };
            self.rig.server.trouble_after(self.random.below(12), trouble);
            let _ = self.rig.deferring().replay(None).await;
            self.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
        }
        self.rig.names.shared().state().forget_known();
        self
    }

    async fn check(&self) {
        let replayed = self.rig.deferring().replay(None).await;
        assert_eq!(replayed, Ok(()), "{:#?}", self.rig.deferring().deferred());
        self.rig.is_quiet("nobody else has changed anything");
        assert_eq!(tree(&*self.rig.server).await, tree(&self.reference).await);
        assert_eq!(tree(self.rig.remote()).await, tree(&self.reference).await);
    }
}

#[tokio::test]
async fn what_is_done_without_the_server_is_done_there_when_it_is_back() {
    let (seed, rounds) = seed("what_is_done_without_the_server", 80);
    let (mut done, mut refused) = (0, 0);
    for round in 0..rounds {
        println!("round {round}");
        let licence = LICENCES[(round % 2) as usize];
        let mut pair = Pair::new(licence, seed.wrapping_mul(9_000_011) + round).await;
        for _ in 0..3 {
            pair.leave();
            for _ in 0..30 {
                match pair.step().await {
                    true => done += 1,
                    false => refused += 1,
                }
            }
            pair = pair.come_back().await;
            pair.check().await;
        }
        drop(pair.held);
    }
    println!("{done} steps, {refused} that need the server");
    assert!(done > 4 * refused && refused > 0);
}

/// Nothing of other clients is removed, replaced or changed, and both objects are kept where names
/// conflict.
#[tokio::test]
async fn what_somebody_else_changed_meanwhile_stays() {
    let pair = Pair::new(LICENCES[0], 1).await;
    let (top, other) = (pair.top.clone(), pair.rig.server.another_client());
    let root = Cred::root();
    let at = |sec| SetAttr {
        uid: Some(1000),
        mtime: Some(SetTime::To(Time { sec, nsec: 0 })),
        ..mode(0o644)
    };
    let make = async |name: &str| {
        let made = other.make(&root, &top, name.as_ref(), New::FileExclusive, at(1)).await;
        made.unwrap().found.handle
    };
    let mut files = Vec::new();
    for name in ["changed", "moved", "set", "gone", "replaced", "same"] {
        files.push(make(name).await);
    }
    pair.leave();
    for name in ["changed", "gone", "same"] {
        pair.rig.remove(&top, name, Removal::File).await.unwrap();
    }
    let rename = async |from: &str, to: &str| {
        let (from, to) = ((&top, OsStr::new(from)), (&top, OsStr::new(to)));
        pair.rig.remote().rename(&user(), from, to).await.unwrap();
    };
    rename("moved", "there").await;
    pair.rig.made(&top, "new", New::FileExclusive).await.unwrap();
    rename("new", "replaced").await;
    pair.rig.deferring().set_here(&user(), &files[2], &mode(0o600), None).unwrap().unwrap();
    // Meanwhile.
    make("there").await;
    for file in [&files[0], &files[2], &files[4]] {
        other.setattr(&root, file, at(2), None).await.unwrap();
    }
    other.remove(&root, &top, "gone".as_ref(), Removal::File).await.unwrap();
    pair.rig.server.reconnect();
    pair.rig.names.shared().state().forget_known();
    pair.rig.deferring().replay(None).await.unwrap();
    let left = tree(&other).await;
    let names: Vec<_> = left.keys().map(String::as_str).collect();
    let (replaced, there) = ("/replaced.conflict-here-0", "/there.conflict-here-0");
    assert_eq!(names, ["/changed", "/replaced", replaced, "/set", "/there", there]);
    assert_eq!(left["/set"].mode, 0o644);
    assert_eq!(tree(pair.rig.remote()).await, left);
    let mut told = pair.rig.conflicts();
    told.sort();
    let all = [
        (ConflictKind::Renamed, "replaced", &replaced[1..]),
        (ConflictKind::Renamed, "there", &there[1..]),
        (ConflictKind::Removed, "changed", "changed"),
        (ConflictKind::Removed, "replaced", "replaced"),
        (ConflictKind::Attributes, "", ""),
    ];
    assert_eq!(told, all.map(|(kind, wanted, kept)| (kind, wanted.to_owned(), kept.to_owned())));
    // They are told until a user clears them, by the next process too.
    let Pair { rig, held, .. } = pair;
    drop(held);
    let rig = rig.crash(Some(Image::Written));
    assert_eq!(rig.cache.clear_conflicts(None), 5);
}

/// The server has set what was set here, and its answer is lost: the client does not take this for
/// another client's version, and what is cached of the file stays.
#[tokio::test]
async fn attributes_that_the_server_was_asked_for_are_no_other_version_while_its_answer_is_out() {
    let pair = Pair::new(LICENCES[0], 2).await;
    let (top, root) = (pair.top.clone(), Cred::root());
    let other = pair.rig.server.another_client();
    let set = SetAttr { uid: Some(1000), ..mode(0o644) };
    let made = other.make(&root, &top, "file".as_ref(), New::FileExclusive, set).await.unwrap();
    let file = made.found.handle;
    pair.leave();
    let set = pair.rig.deferring().set_here(&user(), &file, &mode(0o600), None);
    let shown = set.unwrap().unwrap().after.unwrap();
    pair.rig.server.reconnect();
    pair.rig.server.trouble_after(1, Trouble::Unanswered);
    pair.rig.deferring().replay(Some(&file)).await.unwrap_err();
    assert!(!pair.rig.server.is_trouble_to_come());
    let attr = pair.rig.remote().getattr(&user(), &file).await.unwrap();
    assert!(attr.validator().same_data(&shown.validator()), "{attr:?} {shown:?}");
    assert_eq!(attr.mode, 0o600);
}

/// What waits can still be changed and removed here while the server is silent, whoever asks for it
/// to be there: the server was not asked for it. So it is in the process that finds the names of a
/// dead one, and in each kind of mount.
#[tokio::test]
async fn what_waits_is_not_attempted_at_a_silent_server() {
    for licence in [LICENCES[0], LICENCES[1], Licence::default()] {
        let rig = Rig::new().await;
        let top = rig.top().await;
        let dir = rig.made(&top, "dir", New::Directory).await.unwrap().handle;
        for name in ["one", "two"] {
            rig.made(&dir, name, New::File).await.unwrap();
        }
        let mut rig = rig.crash(None);
        let (names, _held) = licensed(&rig, licence);
        rig.names = names;
        rig.server.time_out();
        let replayed = rig.deferring().replay(None).await;
        assert_eq!(replayed, Err(Error::TimedOut), "{licence:?}");
        let (user, at) = (user(), |name| (&dir, OsStr::new(name)));
        let text = "text".into();
        let one = rig.find(&dir, "one").await.unwrap().handle;
        let write = rig.remote().write(&user, &one, None, 0, text, Stability::Unstable).await;
        assert_eq!(write.map(drop), Err(Error::TimedOut), "{licence:?}");
        assert_eq!(rig.server.calls("make"), 0);
        if licence == Licence::default() {
            // Names are not changed here any more; what there is is found and listed.
            rig.server.reconnect();
            rig.deferring().replay(None).await.unwrap();
            assert_eq!(tree(&*rig.server).await.len(), 3);
            continue;
        }
        rig.deferring().set_here(&user, &one, &mode(0o600), None).unwrap().unwrap();
        rig.remote().rename(&user, at("one"), at("other")).await.unwrap();
        rig.remove(&dir, "two", Removal::File).await.unwrap();
        rig.made(&dir, "new", New::File).await.unwrap();
        assert_eq!(rig.server.calls("make"), 0);
        rig.server.reconnect();
        rig.deferring().replay(None).await.unwrap();
        let left = tree(&*rig.server).await;
        assert_eq!(left.keys().collect::<Vec<_>>(), ["/dir", "/dir/new", "/dir/other"]);
        assert_eq!(left["/dir/other"].mode, 0o600);
    }
}

/// The server falls silent while many objects are made: those that it was not asked for can be
/// changed here.
#[tokio::test]
async fn objects_that_a_server_was_not_asked_for_any_more_are_not_attempted() {
    let rig = Rig::new().await;
    let top = rig.top().await;
    for name in ["a", "b", "c", "d"] {
        rig.made(&top, name, New::File).await.unwrap();
    }
    // The second one has no answer, whoever makes it there.
    rig.server.trouble_after(1, Trouble::Unanswered);
    assert_eq!(rig.deferring().replay(None).await, Err(Error::TimedOut));
    let calls = rig.server.calls_total();
    rig.remove(&top, "c", Removal::File).await.unwrap();
    let (from, to) = ((&top, OsStr::new("d")), (&top, OsStr::new("e")));
    rig.remote().rename(&user(), from, to).await.unwrap();
    assert_eq!(rig.server.calls_total(), calls);
    let rig = rig.crash(None);
    rig.deferring().replay(None).await.unwrap();
    assert_eq!(tree(&*rig.server).await.keys().collect::<Vec<_>>(), ["/a", "/b", "/e"]);
}

/// Something of the server's is taken out of a directory and gets the directory's name after that
/// is removed: each waits for the other at the server.
#[tokio::test]
async fn what_gets_the_name_of_its_own_directory_is_there_when_the_server_is_back() {
    for licence in LICENCES {
        let pair = Pair::new(licence, 3).await;
        let (top, root) = (pair.top.clone(), Cred::root());
        let other = pair.rig.server.another_client();
        let mut dir = top.clone();
        let set = SetAttr { uid: Some(1000), ..mode(0o755) };
        for name in ["a", "b"] {
            let made = other.make(&root, &dir, name.as_ref(), New::Directory, set).await;
            dir = made.unwrap().found.handle;
        }
        let file = other.make(&root, &dir, "file".as_ref(), New::FileExclusive, set).await.unwrap();
        let above = pair.find(&top, "a").await.unwrap().0;
        pair.leave();
        let user = user();
        let rename = async |from: (&Handle, &str), to: (&Handle, &str)| {
            let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
            pair.rig.remote().rename(&user, from, to).await.unwrap();
        };
        rename((&dir, "file"), (&top, "x")).await;
        pair.rig.remove(&above, "b", Removal::Directory).await.unwrap();
        pair.rig.remove(&top, "a", Removal::Directory).await.unwrap();
        rename((&top, "x"), (&top, "a")).await;
        pair.rig.server.reconnect();
        pair.rig.names.shared().state().forget_known();
        pair.rig.deferring().replay(None).await.unwrap();
        let left = tree(&*pair.rig.server).await;
        assert_eq!(left.keys().collect::<Vec<_>>(), ["/a"], "{licence:?}");
        assert_eq!(left["/a"].kind, Kind::File);
        assert_eq!(pair.rig.find(&top, "a").await.unwrap().handle, file.found.handle);
    }
}

/// A file gives way to a directory that gets its name and then the file itself; whichever answer is
/// lost, both are there in the end.
#[tokio::test]
async fn what_gave_way_is_found_again_although_the_answer_was_lost() {
    let mut losses = 0;
    for count in 0.. {
        let pair = Pair::new(LICENCES[0], 4).await;
        let (top, user) = (pair.top.clone(), user());
        let other = pair.rig.server.another_client();
        let set = SetAttr { uid: Some(1000), ..mode(0o644) };
        let named = OsStr::new("name");
        other.make(&Cred::root(), &top, named, New::FileExclusive, set).await.unwrap();
        pair.leave();
        let remote = pair.rig.remote();
        remote.rename(&user, (&top, named), (&top, "x".as_ref())).await.unwrap();
        let dir = pair.rig.made(&top, "name", New::Directory).await.unwrap().handle;
        let (from, to) = ((&top, OsStr::new("x")), (&dir, OsStr::new("file")));
        remote.rename(&user, from, to).await.unwrap();
        pair.rig.server.reconnect();
        pair.rig.names.shared().state().forget_known();
        pair.rig.server.trouble_after(count, Trouble::Unanswered);
        let _ = pair.rig.deferring().replay(None).await;
        let was_lost = !pair.rig.server.is_trouble_to_come();
        pair.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
        pair.rig.deferring().replay(None).await.unwrap();
        let left = tree(&*pair.rig.server).await;
        assert_eq!(left.keys().collect::<Vec<_>>(), ["/name", "/name/file"], "{count}");
        if !was_lost {
            break;
        }
        losses += 1;
    }
    assert!(losses > 3, "{losses}");
}

/// A directory is removed, and gives way meanwhile to one that gets its name and what was in it.
/// The removal, with which the change began, finds it under its temporary name.
#[tokio::test]
async fn what_gives_way_while_it_is_removed_is_no_conflict() {
    for licence in LICENCES {
        let pair = Pair::new(licence, 5).await;
        let (top, user) = (pair.top.clone(), user());
        let other = pair.rig.server.another_client();
        let set = |mode| SetAttr { uid: Some(1000), mode: Some(mode), ..SetAttr::default() };
        let made =
            other.make(&Cred::root(), &top, "dir".as_ref(), New::Directory, set(0o755)).await;
        let old = made.unwrap().found.handle;
        let file = other.make(&Cred::root(), &old, "file".as_ref(), New::File, set(0o644)).await;
        pair.leave();
        let remote = pair.rig.remote();
        let new = pair.rig.made(&top, "new", New::Directory).await.unwrap().handle;
        let rename = async |from: (&Handle, &str), to: (&Handle, &str)| {
            let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
            remote.rename(&user, from, to).await.unwrap();
        };
        rename((&old, "file"), (&new, "file")).await;
        rename((&top, "new"), (&top, "dir")).await;
        pair.rig.server.reconnect();
        pair.rig.names.shared().state().forget_known();
        pair.rig.deferring().replay(Some(&old)).await.unwrap();
        pair.rig.deferring().replay(None).await.unwrap();
        pair.rig.is_quiet(&format!("{licence:?}"));
        let left = tree(&*pair.rig.server).await;
        assert_eq!(left.keys().collect::<Vec<_>>(), ["/dir", "/dir/file"], "{licence:?}");
        let dir = pair.rig.find(&top, "dir").await.unwrap().handle;
        let found = pair.rig.find(&dir, "file").await.unwrap().handle;
        assert_eq!(found, file.as_ref().unwrap().found.handle);
    }
}
