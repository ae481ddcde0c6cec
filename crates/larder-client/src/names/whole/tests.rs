//! The set of a directory's names, over all orders of what can happen to it.

use std::collections::HashSet;

use super::super::changing;
use super::*;
use larder_vfs::Ino;

/// The names of the model, each at its own position of the listing, which begins at 1.
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
/// Names that this mount makes and removes, and names that another one does: each is first, last or
/// between two others.
const OURS: [usize; 2] = [0, 2];
const THEIRS: [usize; 2] = [0, 1];
/// More changes than this are not under way at the same time.
const CHANGES_MAX: usize = 2;

/// A set of names, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Set(u8);

impl Set {
    fn contains(self, name: usize) -> bool {
        self.0 & 1 << name != 0
    }

    fn put(&mut self, name: usize, is_in: bool) {
        self.0 = self.0 & !(1 << name) | u8::from(is_in) << name;
    }

    fn names(self) -> impl Iterator<Item = usize> {
        (0..NAMES.len()).filter(move |name| self.contains(*name))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Change {
    name: usize,
    makes: bool,
    is_carried_out: bool,
    /// The directory's epoch has ended since it began.
    is_late: bool,
}

/// A page on its way that the lease vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    start: usize,
    /// What the server had when it answered.
    answer: Option<Set>,
}

/// A directory at the server, and this mount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    server: Set,
    changes: Vec<Change>,
    /// Changes without an answer that the server may still carry out.
    given_up: Vec<Change>,
    asked: Option<Asked>,
    whole: Held,
    /// Names with changes under way that have met others.
    met: Set,
}

/// [`Whole`] as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    Unknown,
    Unanswered,
    Until(u64, Set),
    Known(Set),
}

impl Held {
    fn of(whole: &Whole) -> Held {
        let set = |names: &Names| {
            let number = |name: &[u8]| NAMES.iter().position(|known| *known == name);
            let mut set = Set::default();
            names.names.iter().for_each(|name| set.put(number(name).unwrap(), true));
            set
        };
        match whole {
            Whole::Unknown => Held::Unknown,
            Whole::Unanswered => Held::Unanswered,
            Whole::Until { next, names, .. } => Held::Until(*next, set(names)),
            Whole::Known(names) => Held::Known(set(names)),
        }
    }

    fn whole(&self, room: &Room) -> Whole {
        let names = |set: Set| {
            let mut names = Names::none(room);
            set.names().for_each(|name| assert!(names.add(NAMES[name])));
            names
        };
        match self {
            Held::Unknown => Whole::Unknown,
            Held::Unanswered => Whole::Unanswered,
            Held::Until(next, set) => Whole::Until { next: *next, verifier: 0, names: names(*set) },
            Held::Known(set) => Whole::Known(names(*set)),
        }
    }
}

impl World {
    fn with(&self, change: impl FnOnce(&mut Whole, &Room)) -> World {
        let room = Room::default();
        let mut whole = self.whole.whole(&room);
        change(&mut whole, &room);
        World { whole: Held::of(&whole), ..self.clone() }
    }

    /// The changes of `name` that are under way, as [`changing`] counts them.
    fn counted(&self, name: usize) -> changing::Names {
        let (mut names, dentry) = (changing::Names::default(), dentry(name));
        let count = self.changes.iter().filter(|change| change.name == name).count();
        (0..count).for_each(|_| names.begin(dentry.clone()));
        if self.met.contains(name) && count == 1 {
            names.begin(dentry.clone());
            names.end(&dentry);
        }
        names
    }

    fn begin(&self, name: usize, makes: bool) -> World {
        let mut next = self.with(|whole, _| whole.add(NAMES[name]));
        next.changes.push(Change { name, makes, is_carried_out: false, is_late: false });
        next.changes.sort();
        if next.changes.iter().filter(|change| change.name == name).count() > 1 {
            next.met.put(name, true);
        }
        next.asked = None;
        next
    }

    fn carry_out(&self, number: usize) -> World {
        let mut next = self.clone();
        let change = &mut next.changes[number];
        change.is_carried_out = true;
        let change = *change;
        next.apply(change);
        next.changes.sort();
        next
    }

    fn apply(&mut self, change: Change) {
        self.server.put(change.name, change.makes);
    }

    /// A change ends: with the server's answer, or without.
    fn end(&self, number: usize, is_answered: bool) -> World {
        let change = self.changes[number];
        let meet = self.counted(change.name).end(&dentry(change.name));
        let left = match (is_answered, change.makes) {
            (false, _) => Left::Unknown,
            (true, true) => Left::Perhaps,
            (true, false) => Left::Nothing,
        };
        let left = left.unless(meet || change.is_late);
        let mut next = self.with(|whole, _| whole.end_change(NAMES[change.name], left));
        next.changes.remove(number);
        if !is_answered && !change.is_carried_out {
            next.given_up.push(change);
        }
        if next.changes.iter().all(|other| other.name != change.name) {
            next.met.put(change.name, false);
        }
        next.asked = None;
        next
    }

    /// The server carries out what was given up.
    fn carry_out_given_up(&self) -> World {
        let mut next = self.clone();
        for change in std::mem::take(&mut next.given_up) {
            next.apply(change);
        }
        next
    }

    fn ask(&self, start: usize) -> World {
        World { asked: Some(Asked { start, answer: None }), ..self.clone() }
    }

    fn answer(&self) -> World {
        let mut next = self.clone();
        next.asked.iter_mut().for_each(|asked| asked.answer = Some(next.server));
        next
    }

    /// The reply is taken in: one entry of the listing.
    fn take_page(&self) -> World {
        let asked = self.asked.unwrap();
        let mut rest = asked.answer.unwrap().names().filter(|name| *name >= asked.start);
        let (entry, is_more) = (rest.next(), rest.next().is_some());
        let then = entry.filter(|_| is_more).map(|name| name as u64 + 1);
        let start = (asked.start as u64, 0);
        let mut next = self.with(|whole, room| whole.take(page(start, entry, then, room)));
        next.asked = None;
        next
    }

    /// Another client makes or removes a name: the lease ends before, and with it the epoch. What
    /// was given up is over by then.
    fn change_elsewhere(&self, name: usize) -> World {
        let mut next = self.with(|whole, _| whole.end());
        next.given_up.clear();
        let makes = !next.server.contains(name);
        next.apply(Change { name, makes, is_carried_out: true, is_late: false });
        next.changes.iter_mut().for_each(|change| change.is_late = true);
        next.changes.sort();
        next.asked = None;
        next
    }

    fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        if self.changes.len() < CHANGES_MAX {
            let begin = |name| [true, false].map(|makes| self.begin(name, makes));
            next.extend(OURS.into_iter().flat_map(begin));
        }
        next.extend(THEIRS.map(|name| self.change_elsewhere(name)));
        for number in 0..self.changes.len() {
            match self.changes[number].is_carried_out {
                true => next.push(self.end(number, true)),
                false => next.push(self.carry_out(number)),
            }
            if self.given_up.is_empty() {
                next.push(self.end(number, false));
            }
        }
        if !self.given_up.is_empty() {
            next.push(self.carry_out_given_up());
        }
        match &self.asked {
            None if !self.changes.is_empty() => {}
            None => next.extend((0..=NAMES.len()).map(|start| self.ask(start))),
            Some(Asked { answer: None, .. }) => next.push(self.answer()),
            Some(_) => next.push(self.take_page()),
        }
        next
    }
}

fn dentry(name: usize) -> (Ino, std::ffi::OsString) {
    (Ino(1), str::from_utf8(NAMES[name]).unwrap().into())
}

/// A page with one entry at most.
fn page(
    (start, verifier): (u64, u64),
    name: Option<usize>,
    next: Option<u64>,
    room: &Room,
) -> NamesOfPage<'_, impl Iterator<Item = &'static [u8]>> {
    let names = name.into_iter().map(|name| NAMES[name]);
    NamesOfPage { start, verifier, names, next, room }
}

/// Over all orders in which this mount and another one change names, the server carries that out
/// and answers or does not, and pages are asked for, answered and taken in: a name that the set
/// lacks is not in the directory.
#[test]
fn in_all_orders_of_events_a_name_that_is_lacking_is_absent() {
    let unknown = World {
        server: Set::default(),
        changes: Vec::new(),
        given_up: Vec::new(),
        asked: None,
        whole: Held::Unknown,
        met: Set::default(),
    };
    let made_here = unknown.with(Whole::set_empty);
    let mut seen = HashSet::from([unknown.clone(), made_here.clone()]);
    let (mut rest, mut answers) = (vec![unknown, made_here], HashSet::new());
    while let Some(world) = rest.pop() {
        let whole = world.whole.whole(&Room::default());
        for (number, name) in NAMES.into_iter().enumerate() {
            let (lacks, exists) = (whole.lacks(name), world.server.contains(number));
            assert!(!(lacks && exists), "{world:#?} lacks {number}");
            answers.insert((matches!(whole, Whole::Known(_)), lacks, exists));
        }
        rest.extend(world.next().into_iter().filter(|next| seen.insert(next.clone())));
    }
    // It says that names are absent, and knows of others that they may be there.
    assert!(answers.contains(&(true, true, false)) && answers.contains(&(true, false, true)));
    println!("{} states", seen.len());
}

/// One name more than there is room for, of one directory or of several: that one is not known
/// whole any more, and its room is free.
#[test]
fn a_set_that_finds_no_room_ends_and_gives_its_room_back() {
    let room = Room::of(2 * (NAME_BYTES + 1));
    let mut sets = [Whole::default(), Whole::default()];
    for set in &mut sets {
        set.set_empty(&room);
    }
    sets[0].add(NAMES[0]);
    sets[0].add(NAMES[0]);
    sets[1].add(NAMES[1]);
    assert!(!sets[1].lacks(NAMES[1]) && sets[1].lacks(NAMES[0]));
    sets[1].add(NAMES[2]);
    assert!(matches!(sets[1], Whole::Unknown));
    sets[0].add(NAMES[1]);
    assert!(sets[0].lacks(NAMES[2]), "the other one has room for one more");
    sets[0].end_change(NAMES[0], Left::Nothing);
    sets[0].add(NAMES[2]);
    assert!(sets[0].lacks(NAMES[0]) && !sets[0].lacks(NAMES[2]));
    sets[1].take(page((0, 0), Some(0), None, &room));
    assert!(matches!(sets[1], Whole::Unknown), "there is no room for the page");
    sets[0].end();
    sets[1].take(page((0, 0), Some(0), None, &room));
    assert!(sets[1].lacks(NAMES[1]) && !sets[1].lacks(NAMES[0]));
}

/// A page that continues another listing says nothing about the names before it.
#[test]
fn a_page_of_another_listing_does_not_continue_this_one() {
    let room = Room::default();
    let mut set = Whole::default();
    set.take(page((1, 7), Some(1), None, &room));
    assert!(matches!(set, Whole::Unknown));
    set.take(page((0, 7), Some(0), Some(1), &room));
    set.take(page((1, 8), Some(1), None, &room));
    set.take(page((2, 7), Some(1), None, &room));
    assert!(matches!(set, Whole::Until { next: 1, .. }) && !set.lacks(NAMES[2]));
    set.take(page((1, 7), Some(1), None, &room));
    assert!(set.lacks(NAMES[2]) && !set.lacks(NAMES[0]) && !set.lacks(NAMES[1]));
}
