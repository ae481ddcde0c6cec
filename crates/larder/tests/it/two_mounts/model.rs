//! The answers that each of two mounts may give, pure. There is one truth, the server's; what a
//! mount may still believe of it is a set.
//!
//! Data. A mount sees its own writes at once; the server gets them at any time before the mount's
//! close or fsync has ended. An open shows everything that the other mount has closed. A mount that
//! had the file open while the other one wrote sees old or new bytes, byte by byte. If both had
//! unsent bytes, each byte is in the end one that one of them wrote.
//!
//! Names. A change by the other mount is seen when `names_age` is over, and may be seen before.
//! Sizes: the same with `size_age`, unless the file was opened.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::layers::{HOLE, Layers, WriteId};

/// The unit in which a file that the kernel writes itself is compared, and sent.
const CHUNK: u64 = 16 << 10;

/// One of the two mounts.
pub(crate) type Who = usize;

/// Number of a file or directory.
pub(crate) type Id = usize;

/// Lowest and highest that a size may be.
pub(crate) type Size = (u64, u64);

/// The root directory.
pub(crate) const ROOT: Id = 0;

/// For how long the other one's changes may stay unseen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    pub(crate) names: Duration,
    pub(crate) sizes: Duration,
}

/// A size that a mount may report, until this long after it was replaced.
#[derive(Clone, Copy, Debug)]
struct Told {
    size: Size,
    over: Option<Duration>,
}

/// What a mount has written to a file and not closed.
#[derive(Clone, Debug)]
struct Unsent {
    /// The last write first, then what the other mount has closed since.
    layers: Layers,
    end: u64,
}

/// A file, or a directory.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Names at the server.
    pub(crate) names: u32,
    /// Removed by this mount while it had the file open: at the server the file has a hidden name.
    pub(crate) hidden_by: Option<Who>,
    /// What this mount has written to it was in vain: it was removed. What the mount is shown of
    /// it from then on does not matter.
    pub(crate) written_in_vain: [bool; 2],
    /// The mount that has removed names of it without the other one's knowledge, or by a name that
    /// it mistook for another file's.
    unlinked_by: [bool; 2],
    /// The mount that has given it further names, and the one that has removed one without knowing
    /// all of them.
    linked_by: [bool; 2],
    lost_track: [bool; 2],
    /// Size without unsent bytes.
    certain: u64,
    /// Size that it may have since whole chunks were sent.
    slack: u64,
    server: Layers,
    unsent: [Unsent; 2],
    told: [Vec<Told>; 2],
}

impl Object {
    fn new() -> Object {
        let unsent = || Unsent { layers: Layers::empty(), end: 0 };
        let told = || vec![Told { size: (0, 0), over: None }];
        Object {
            names: 1,
            hidden_by: None,
            written_in_vain: [false; 2],
            unlinked_by: [false; 2],
            linked_by: [false; 2],
            lost_track: [false; 2],
            certain: 0,
            slack: 0,
            server: Layers::empty(),
            unsent: [unsent(), unsent()],
            told: [told(), told()],
        }
    }

    /// The size, as it may be at the server, and as an open may show it to `who`.
    fn size(&self, who: Option<Who>) -> Size {
        let own = who.map_or(0, |who| self.unsent[who].end);
        let ends = self.unsent.iter().map(|unsent| unsent.end);
        (self.certain.max(own), ends.fold(self.certain.max(self.slack), u64::max))
    }

    pub(crate) fn is_unsent(&self, who: Who) -> bool {
        !self.unsent[who].layers.is_empty()
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) who: Who,
    pub(crate) id: Id,
    pub(crate) writes: bool,
    /// The other one has changed the file since.
    pub(crate) is_overtaken: bool,
    /// What may be read through it, and where it may end.
    layers: Layers,
    sizes: Vec<Size>,
}

impl Open {
    fn shortest(&self) -> u64 {
        self.sizes.iter().map(|size| size.0).min().unwrap_or(0)
    }
}

/// What a name has stood for.
#[derive(Clone, Debug)]
struct Binding {
    child: Option<Id>,
    over: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Name {
    history: Vec<Binding>,
    /// The first one that each of the mounts may still believe.
    first: [usize; 2],
}

/// A path: a name in the root directory or in one below it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) dir: Option<&'static str>,
    pub(crate) name: &'static str,
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, slash) = self.dir.map_or(("", ""), |dir| (dir, "/"));
        write!(f, "{dir}{slash}{}", self.name)
    }
}

/// The possible results of a read.
pub(crate) struct View {
    layers: Layers,
    sizes: Vec<Size>,
}

impl View {
    /// Whether it explains the result of a read of up to `len` bytes at `at`.
    pub(crate) fn explain(&self, at: u64, len: u64, read: &[u8]) -> Result<(), String> {
        let got = read.len() as u64;
        let may_end = |(low, high): &Size| {
            let least = low.saturating_sub(at).min(len);
            let most = high.saturating_sub(at).min(len);
            (least..=most).contains(&got)
        };
        if !self.sizes.iter().any(may_end) {
            return Err(format!("{got} of {len} bytes at {at}, sizes {:?}", self.sizes));
        }
        self.layers.explain(at, read)
    }

    /// Where it may end; none if there is no telling.
    pub(crate) fn ends(&self) -> Vec<u64> {
        if self.sizes.iter().any(|(low, high)| low != high) {
            return vec![];
        }
        let mut ends: Vec<u64> = self.sizes.iter().map(|size| size.0).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Whether it is a size that it may have.
    pub(crate) fn explain_size(&self, size: u64) -> Result<(), String> {
        let may_be = self.sizes.iter().any(|(low, high)| (*low..=*high).contains(&size));
        if may_be { Ok(()) } else { Err(format!("size {size}, not of {:?}", self.sizes)) }
    }
}

/// The truth, and what each mount may believe.
pub(crate) struct Model {
    pub(crate) ages: Ages,
    /// The kernel reads files itself, and may write those that are open for writing.
    pub(crate) kernel_writes: bool,
    /// Before a mount changes a file, the other one is made to send its unsent bytes.
    recalls: bool,
    pub(crate) now: Duration,
    objects: Vec<Object>,
    names: BTreeMap<(Id, &'static str), Name>,
    opens: BTreeMap<u32, Open>,
    last_open: u32,
    last_write: WriteId,
}

impl Model {
    pub(crate) fn new(ages: Ages, kernel_writes: bool, recalls: bool) -> Model {
        Model {
            ages,
            kernel_writes,
            recalls,
            now: Duration::ZERO,
            objects: vec![Object::new()],
            names: BTreeMap::new(),
            opens: BTreeMap::new(),
            last_open: 0,
            last_write: HOLE,
        }
    }

    /// How many files and directories there have been.
    pub(crate) fn count(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn object(&self, id: Id) -> &Object {
        &self.objects[id]
    }

    pub(crate) fn open(&self, open: u32) -> &Open {
        &self.opens[&open]
    }

    /// Whether a mount, or `who`, has it open.
    pub(crate) fn is_open(&self, id: Id, who: Option<Who>) -> bool {
        self.opens.values().any(|open| open.id == id && who.is_none_or(|who| open.who == who))
    }

    /// Whether `who` may find an open file gone: the other mount has removed a name of it, perhaps
    /// the last one.
    pub(crate) fn may_be_stale(&self, who: Who, id: Id) -> bool {
        let object = &self.objects[id];
        object.names == 0 && object.unlinked_by[1 - who]
            || object.hidden_by == Some(1 - who)
            || object.lost_track[who]
    }

    // Names.

    fn bindings(&self, who: Who, at: (Id, &'static str)) -> Vec<Option<Id>> {
        let Some(name) = self.names.get(&at) else { return vec![None] };
        let is_young = |over: Duration| self.now.saturating_sub(over) < self.ages.names;
        let believed = name.history[name.first[who]..].iter();
        let believed = believed.filter(|binding| binding.over.is_none_or(is_young));
        believed.map(|binding| binding.child).collect()
    }

    fn binding(&self, at: (Id, &'static str)) -> Option<Id> {
        self.names.get(&at)?.history.last()?.child
    }

    /// What a path stands for at the server.
    pub(crate) fn truth(&self, path: Path) -> Option<Id> {
        self.binding((self.parent(path)?, path.name))
    }

    /// The directory of a path, at the server.
    pub(crate) fn parent(&self, path: Path) -> Option<Id> {
        path.dir.map_or(Some(ROOT), |dir| self.binding((ROOT, dir)))
    }

    /// What a path may stand for from a mount's point of view, including the truth.
    pub(crate) fn views(&self, who: Who, path: Path) -> Vec<Option<Id>> {
        let parents = path.dir.map_or(vec![Some(ROOT)], |dir| self.bindings(who, (ROOT, dir)));
        let below =
            |dir: Option<Id>| dir.map_or(vec![None], |dir| self.bindings(who, (dir, path.name)));
        let mut views: Vec<_> = parents.into_iter().flat_map(below).collect();
        views.push(self.truth(path));
        views.sort_unstable();
        views.dedup();
        views
    }

    /// What a directory's name may stand for from a mount's point of view.
    pub(crate) fn directory_views(&self, who: Who, dir: Option<&'static str>) -> Vec<Option<Id>> {
        dir.map_or(vec![Some(ROOT)], |dir| self.bindings(who, (ROOT, dir)))
    }

    /// `who` gives a name another meaning. It may still take it for one of `stale`, since it took
    /// that for its new one.
    fn bind(&mut self, who: Who, at: (Id, &'static str), child: Option<Id>, stale: &[Option<Id>]) {
        let now = self.now;
        let none = || Name { history: vec![Binding { child: None, over: None }], first: [0; 2] };
        let name = self.names.entry(at).or_insert_with(none);
        name.history.last_mut().expect("it has one").over = Some(now);
        name.first[who] = name.history.len();
        name.history.extend(stale.iter().map(|child| Binding { child: *child, over: Some(now) }));
        name.history.push(Binding { child, over: None });
    }

    fn place(&self, path: Path) -> (Id, &'static str) {
        (self.parent(path).expect("checked: its directory is there"), path.name)
    }

    /// A new file or directory.
    pub(crate) fn make(&mut self, who: Who, path: Path) -> Id {
        let id = self.objects.len();
        self.objects.push(Object::new());
        self.bind(who, self.place(path), Some(id), &[]);
        id
    }

    fn lose_name(&mut self, who: Who, id: Id, path: Path) {
        let is_mistaken = self.views(who, path).len() > 1;
        let is_open = self.is_open(id, Some(who));
        let object = &mut self.objects[id];
        object.names -= 1;
        object.unlinked_by[who] = true;
        // He may not know how many names there are.
        object.unlinked_by[1 - who] |= is_mistaken || object.linked_by[1 - who];
        object.lost_track[who] |= object.linked_by[1 - who] && self.ages.names > Duration::ZERO;
        if object.names == 0 && is_open {
            object.hidden_by = Some(who);
        }
    }

    /// The name at a path is removed.
    pub(crate) fn remove(&mut self, who: Who, path: Path) {
        let id = self.truth(path).expect("checked: it is there");
        self.lose_name(who, id, path);
        self.bind(who, self.place(path), None, &[]);
    }

    /// A file gets another name.
    pub(crate) fn link(&mut self, who: Who, id: Id, to: Path) {
        self.objects[id].names += 1;
        self.objects[id].linked_by[who] = true;
        self.bind(who, self.place(to), Some(id), &[]);
    }

    /// A name becomes another one.
    pub(crate) fn rename(&mut self, who: Who, from: Path, to: Path) {
        let id = self.truth(from).expect("checked: it is there");
        let stale: Vec<_> = self.views(who, from).into_iter().filter(Option::is_some).collect();
        if let Some(replaced) = self.truth(to) {
            self.lose_name(who, replaced, to);
        }
        self.bind(who, self.place(from), None, &[]);
        self.bind(who, self.place(to), Some(id), &stale);
    }

    /// Whether a removed file was open: it has a hidden name until a moment after its close.
    pub(crate) fn hides(&self) -> bool {
        self.objects.iter().any(|object| object.hidden_by.is_some())
    }

    /// Names in a directory, at the server.
    pub(crate) fn listing(&self, dir: Id) -> Vec<&'static str> {
        let in_it = self.names.keys().filter(|(parent, _)| *parent == dir);
        in_it.filter(|at| self.binding(**at).is_some()).map(|(_, name)| *name).collect()
    }

    /// Whether a name may be present, or absent, in a directory from a mount's point of view.
    pub(crate) fn may_be_listed(&self, who: Who, dir: Id, name: &'static str) -> [bool; 2] {
        let views = self.bindings(who, (dir, name));
        [views.iter().any(Option::is_some), views.iter().any(Option::is_none)]
    }

    // Data.

    /// What the server has.
    pub(crate) fn at_server(&self, id: Id) -> View {
        let object = &self.objects[id];
        View { layers: object.server.clone(), sizes: vec![object.size(None)] }
    }

    /// Whether `who` is writing the file: then it continues with its own state, without the server.
    fn is_written(&self, who: Who, id: Id) -> bool {
        let writes = |open: &Open| open.id == id && open.who == who && open.writes;
        let is_open = self.opens.values().any(writes);
        self.objects[id].is_unsent(who) || self.kernel_writes && is_open
    }

    /// What an open by `who` shows.
    pub(crate) fn fresh(&self, who: Who, id: Id) -> View {
        let object = &self.objects[id];
        let (mut layers, mut sizes) = (object.server.clone(), vec![object.size(Some(who))]);
        for (range, ids) in object.unsent[who].layers.pieces() {
            layers.set(range.clone(), ids[0]);
            layers.add(range, &ids);
        }
        for (range, ids) in object.unsent[1 - who].layers.pieces() {
            layers.add(range, &ids[..1]);
        }
        if self.is_written(who, id) {
            let own = self.opens.values().filter(|open| open.id == id && open.who == who);
            for open in own {
                layers.merge(&open.layers);
                sizes.extend(&open.sizes);
            }
        }
        View { layers, sizes }
    }

    /// What may be read through an open file.
    pub(crate) fn view(&self, open: u32) -> View {
        let Open { layers, sizes, .. } = self.opens[&open].clone();
        View { layers, sizes }
    }

    /// What a mount may report of a file's size without an open.
    pub(crate) fn told(&self, who: Who, id: Id) -> View {
        let object = &self.objects[id];
        let is_young = |over: Duration| self.now.saturating_sub(over) < self.ages.sizes;
        let is_written = self.is_written(who, id);
        let told = object.told[who].iter();
        let told = told.filter(|told| is_written || told.over.is_none_or(is_young));
        View { layers: Layers::empty(), sizes: told.map(|told| told.size).collect() }
    }

    /// `who` opens a file.
    pub(crate) fn opened(&mut self, who: Who, id: Id, writes: bool) -> u32 {
        let View { layers, sizes } = self.fresh(who, id);
        if !self.is_written(who, id) {
            self.objects[id].told[who].retain(|told| told.over.is_none());
        }
        let is_overtaken = false;
        self.last_open += 1;
        self.opens.insert(self.last_open, Open { who, id, writes, is_overtaken, layers, sizes });
        self.last_open
    }

    /// The sizes have changed: to `own` for the mount that changed it, from the earlier size for
    /// each.
    fn resize(&mut self, who: Who, id: Id, own: impl Fn(Size) -> Size) {
        let (now, other) = (self.now, 1 - who);
        let object = &mut self.objects[id];
        object.told[who].iter_mut().for_each(|told| told.size = own(told.size));
        let size = object.size(Some(other));
        let last = object.told[other].last_mut().expect("there is a last one");
        if last.size != size {
            last.over = Some(now);
            object.told[other].push(Told { size, over: None });
        }
        for open in self.opens.values_mut().filter(|open| open.id == id) {
            if open.who == who {
                open.sizes.iter_mut().for_each(|size| *size = own(*size));
            } else {
                open.sizes.push(size);
                open.is_overtaken = true;
            }
            open.sizes.sort_unstable();
            open.sizes.dedup();
        }
    }

    /// Number of the next write.
    pub(crate) fn next_write(&mut self) -> WriteId {
        self.last_write += 1;
        self.last_write
    }

    /// `who` has written; the server may have it.
    pub(crate) fn write(&mut self, who: Who, id: Id, range: Range<u64>, write: WriteId) {
        let object = &mut self.objects[id];
        let hole = object.certain..range.start;
        object.server.add(hole.clone(), &[HOLE]);
        object.server.add(range.clone(), &[write]);
        let unsent = &mut object.unsent[who];
        unsent.layers.set(range.clone(), write);
        unsent.end = unsent.end.max(range.end);
        for open in self.opens.values_mut().filter(|open| open.id == id) {
            if open.who == who {
                open.layers.add(open.shortest()..hole.end, &[HOLE]);
                open.layers.set(range.clone(), write);
            } else {
                open.layers.add(hole.clone(), &[HOLE]);
                open.layers.add(range.clone(), &[write]);
            }
        }
        let end = range.end;
        self.resize(who, id, |(low, high)| (low.max(end), high.max(end)));
    }

    /// What `who` has written is at the server.
    pub(crate) fn flush(&mut self, who: Who, id: Id) {
        self.send_whole_chunks(who, id);
        let object = &mut self.objects[id];
        let Unsent { layers, end } = object.unsent[who].clone();
        for (range, sent) in layers.pieces() {
            // Over what the other mount has sent before; mounts that have the file open see it.
            for open in self.opens.values_mut().filter(|open| open.id == id && open.who != who) {
                open.layers.add(range.clone(), &sent);
            }
            object.server.set(range.clone(), sent[0]);
            object.server.add(range.clone(), &sent);
            for (other, ids) in object.unsent[1 - who].layers.pieces() {
                let common = other.start.max(range.start)..other.end.min(range.end);
                object.server.add(common.clone(), &ids[..1]);
                // The last write stays the first.
                object.unsent[1 - who].layers.change(common, |ids| {
                    ids.extend(
                        sent.iter().filter(|id| !ids.contains(id)).copied().collect::<Vec<_>>(),
                    );
                });
            }
        }
        object.unsent[who] = Unsent { layers: Layers::empty(), end: 0 };
        object.certain = object.certain.max(end);
        if self.recalls {
            self.send_whole_chunks(1 - who, id);
        }
        self.resize(who, id, |size| size);
    }

    /// Of a file that the kernel wrote, whole chunks are sent, with its writer's view of the rest.
    fn send_whole_chunks(&mut self, who: Who, id: Id) {
        let object = &mut self.objects[id];
        let is_own = |open: &&Open| self.kernel_writes && open.id == id && open.who == who;
        let own: Vec<Open> = self.opens.values().filter(is_own).cloned().collect();
        let size = own.iter().flat_map(|open| &open.sizes).map(|size| size.1).max().unwrap_or(0);
        for open in &own {
            for (range, _) in object.unsent[who].layers.pieces() {
                let start = range.start / CHUNK * CHUNK;
                let end = range.end.div_ceil(CHUNK).saturating_mul(CHUNK).min(size);
                object.slack = object.slack.max(end);
                for (seen, ids) in open.layers.pieces() {
                    let common = seen.start.max(start)..seen.end.min(end);
                    object.server.add(common.clone(), &ids);
                    let is_others = |open: &&mut Open| open.id == id && open.who != who;
                    for open in self.opens.values_mut().filter(is_others) {
                        open.layers.add(common.clone(), &ids);
                    }
                    object.unsent[1 - who].layers.change(common, |unsent| {
                        let new = ids.iter().filter(|id| !unsent.contains(id)).copied();
                        let new: Vec<WriteId> = new.collect();
                        unsent.extend(if unsent.is_empty() { vec![] } else { new });
                    });
                }
            }
        }
    }

    /// Which size the server has, if that was not certain.
    pub(crate) fn learn_size(&mut self, id: Id, size: u64) {
        let object = &mut self.objects[id];
        if (object.certain..=object.slack).contains(&size) {
            object.certain = size;
        }
        object.slack = 0;
    }

    /// `who` truncates or extends a file, at the server too.
    pub(crate) fn truncate(&mut self, who: Who, id: Id, size: u64) {
        self.flush(who, id);
        let object = &mut self.objects[id];
        assert!(!object.is_unsent(1 - who), "checked: the other one has nothing unsent");
        let grown = object.certain..size;
        (object.certain, object.slack) = (size, 0);
        object.server.clear_from(size);
        object.server.add(grown.clone(), &[HOLE]);
        for open in self.opens.values_mut().filter(|open| open.id == id) {
            if open.who == who {
                open.layers.clear_from(size);
                open.layers.add(open.shortest()..size, &[HOLE]);
            } else {
                open.layers.add(grown.clone(), &[HOLE]);
            }
        }
        self.resize(who, id, |_| (size, size));
    }

    /// A write of `who` failed, since the file is gone.
    pub(crate) fn write_in_vain(&mut self, who: Who, id: Id) {
        self.objects[id].written_in_vain[who] = true;
    }

    /// Whether what `who` read may change at any moment: the other mount may send something.
    pub(crate) fn may_be_overtaken(&self, open: u32) -> bool {
        let open = &self.opens[&open];
        open.is_overtaken || self.objects[open.id].is_unsent(1 - open.who)
    }

    /// A descriptor is closed.
    pub(crate) fn closed(&mut self, open: u32) {
        let Open { who, id, writes, .. } = self.opens[&open];
        if writes {
            self.flush(who, id);
        }
        self.opens.remove(&open);
    }
}
