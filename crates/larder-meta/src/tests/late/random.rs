//! Random histories of volatile and durable files, directories and links, with crashes of the
//! server and of its machine, compared with what was answered.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::calls::{self, IfSet, MakeWhat, Retention};
use larder_wire::meta::words::{FileId, Kind, Medium, Mode};
use larder_wire::xdr::Opaque;

use super::directories::names_are_as_durable_as_files;
use super::{B, MEMORY, rig};
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, Writes};
use crate::rights::Caller;
use crate::store::records::{Entry, Extent, Inode, Xattr};
use crate::store::{Txn, key};
use crate::tests::destaging::move_all;
use crate::tests::mirrors::granted;
use crate::tests::random::Random;
use crate::tests::rig::{Rig, dentry, mode, name, size};
use crate::volume;
use crate::whereabouts::Whereabouts;

const BLOCKS: u64 = 3;
const NAMES: u64 = 4;
const ROOT: FileId = FileId::ROOT;
const XATTR: &str = "user.a";

/// The blocks of a file that have bytes, and what they are.
type Content = BTreeMap<u64, u64>;
/// A name in a directory.
type At = (FileId, String);
type Names = BTreeMap<At, FileId>;
/// The mode of what has no bytes, and a directory's extended attribute.
type Look = (u32, Option<u8>);
/// All that has no bytes.
type Shape = BTreeMap<At, (FileId, Look)>;

struct World {
    rig: Rig,
    random: Random,
    names: Names,
    files: BTreeMap<FileId, Content>,
    /// Files that the client retains, and how many bytes.
    retained: BTreeMap<FileId, u64>,
    /// Directories and links.
    bare: BTreeMap<FileId, (Kind, Look)>,
    /// What is there after any crash, with its names and everything that was answered.
    durable: BTreeSet<FileId>,
    /// Volatile files that were not changed since everything was durable.
    settled: BTreeSet<FileId>,
    /// Lost files that were removed, and may still be there without a name.
    given_up: BTreeSet<FileId>,
    /// How it was since everything was durable, and after how many commits.
    frames: Vec<(usize, Shape)>,
    next: u64,
    lost: u64,
    gone: u64,
    kept: u64,
    bare_gone: u64,
    still_retained: u64,
}

/// What a store has.
struct Stored {
    names: Names,
    inodes: BTreeMap<FileId, Inode>,
    shape: Shape,
}

fn stored(engine: &MemoryEngine) -> Stored {
    let (view, none) = (engine.view().unwrap(), Writes::new());
    let txn = Txn::new(&*view, &none);
    let at = |key: &[u8]| {
        let dir = u64::from_be_bytes(*key[1..].first_chunk().unwrap());
        (FileId(dir), String::from_utf8(key[9..].to_vec()).unwrap())
    };
    let names = txn.scan_all::<Entry>(b"e").unwrap().into_iter();
    let names: Names = names.map(|(key, entry)| (at(&key), entry.file)).collect();
    let inodes = txn.scan_all::<Inode>(b"i").unwrap().into_iter();
    let inodes: BTreeMap<_, _> = inodes.map(|(_, inode)| (inode.file(), inode)).collect();
    let xattrs = txn.scan_all::<Xattr>(b"a").unwrap().into_iter();
    let xattrs: BTreeMap<_, _> = xattrs.map(|(key, xattr)| (at(&key), xattr.value[0])).collect();
    let look = |file: FileId| {
        let xattr = xattrs.get(&(file, XATTR.to_owned())).copied();
        (inodes[&file].attributes.mode, xattr)
    };
    let is_bare = |file: &FileId| inodes[file].attributes.kind != Kind::File;
    let bare = names.iter().filter(|(_, file)| is_bare(file));
    let shape = bare.map(|(at, file)| (at.clone(), (*file, look(*file)))).collect();
    Stored { names, inodes, shape }
}

/// All paths of these files.
fn paths(names: &Names, of: &BTreeSet<FileId>) -> BTreeMap<String, FileId> {
    let path = |at: &At| {
        let (mut path, mut dir) = (at.1.clone(), at.0);
        while dir != ROOT {
            let (above, _) = names.iter().find(|(_, file)| **file == dir).unwrap();
            path = format!("{}/{path}", above.1);
            dir = above.0;
        }
        path
    };
    let of = names.iter().filter(|(_, file)| of.contains(file));
    of.map(|(at, file)| (path(at), *file)).collect()
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            rig: rig(),
            random: Random(seed * 2 + 1),
            names: Names::new(),
            files: BTreeMap::new(),
            retained: BTreeMap::new(),
            bare: BTreeMap::new(),
            durable: BTreeSet::new(),
            settled: BTreeSet::new(),
            given_up: BTreeSet::new(),
            frames: Vec::new(),
            next: 0,
            lost: 0,
            gone: 0,
            kept: 0,
            bare_gone: 0,
            still_retained: 0,
        };
        world.note();
        world
    }

    /// A name in some directory.
    fn at(&mut self) -> At {
        let dirs: Vec<FileId> =
            self.names.values().copied().filter(|it| self.is_dir(*it)).collect();
        let which = self.random.below(dirs.len() as u64 + 1) as usize;
        let dir = dirs.get(which).copied().unwrap_or(ROOT);
        (dir, format!("n{}", self.random.below(NAMES)))
    }

    fn free(&mut self) -> Option<At> {
        Some(self.at()).filter(|at| !self.names.contains_key(at))
    }

    fn is_dir(&self, file: FileId) -> bool {
        self.bare.get(&file).is_some_and(|(kind, _)| *kind == Kind::Directory)
    }

    fn is_empty(&self, dir: FileId) -> bool {
        self.names.keys().all(|(of, _)| *of != dir)
    }

    fn some(&mut self, fits: impl Fn(&World, FileId) -> bool) -> Option<(At, FileId)> {
        let all = self.names.iter().filter(|(_, file)| fits(self, **file));
        let all: Vec<(At, FileId)> = all.map(|(at, file)| (at.clone(), *file)).collect();
        let which = self.random.below(all.len().max(1) as u64) as usize;
        all.get(which).cloned()
    }

    fn some_file(&mut self) -> Option<(At, FileId)> {
        self.some(|world, file| world.files.contains_key(&file))
    }

    fn create(&mut self) {
        let Some(at) = self.free() else { return };
        let is_volatile = self.random.below(4) > 0;
        let opened = match is_volatile {
            true => self.rig.create_volatile(at.0, &at.1).unwrap(),
            false => self.rig.create(&Caller::root(), at.0, &at.1).unwrap(),
        };
        let file = opened.file.after.file;
        self.is_new(file);
        self.rig.close(opened.open).unwrap();
        if !is_volatile {
            self.durable.insert(file);
        }
        self.names.insert(at, file);
        self.files.insert(file, Content::new());
    }

    fn is_new(&self, file: FileId) {
        let is_known = self.files.contains_key(&file) || self.bare.contains_key(&file);
        assert!(!is_known, "{file:?} was given before");
    }

    /// Makes a directory or a symbolic link.
    fn make(&mut self) {
        let Some(at) = self.free() else { return };
        let is_volatile = self.random.below(5) > 0;
        let medium = if is_volatile { Medium::Memory(1) } else { Medium::Disk };
        let (what, kind) = match self.random.below(3) {
            0 => (MakeWhat::Symlink("t".into()), Kind::Symlink),
            _ => (MakeWhat::Directory, Kind::Directory),
        };
        let file = self.rig.make(medium, (at.0, &at.1), what).unwrap();
        self.is_new(file);
        if !is_volatile {
            self.durable.insert(file);
        }
        self.names.insert(at, file);
        self.bare.insert(file, (kind, (0o755, None)));
    }

    /// Changes attributes of what has no bytes.
    fn describe(&mut self) {
        let Some((_, file)) = self.some(|world, file| world.bare.contains_key(&file)) else {
            return;
        };
        let value = self.random.below(64) as u8;
        let (kind, look) = self.bare.get_mut(&file).unwrap();
        if *kind == Kind::Directory && value.is_multiple_of(2) {
            look.1 = Some(value);
            let (sequence, if_set) = (self.rig.next(), IfSet::Either);
            let (name, value) = (name(XATTR), Opaque(vec![value].into()));
            let call = calls::SetXattr { sequence, file, name, value, if_set };
            self.rig.call(&Caller::root(), call).unwrap();
        } else {
            look.0 = 0o700 + u32::from(value);
            self.rig.set(file, mode(look.0)).unwrap();
        }
    }

    /// Writes a block of a file, in its class or durably.
    fn write(&mut self) {
        let Some((_, file)) = self.some_file() else { return };
        let is_on_disk = self.durable.contains(&file) || self.random.below(12) == 0;
        let medium = if is_on_disk { Medium::Disk } else { Medium::Memory(1) };
        let block = self.random.below(BLOCKS);
        let range = block * B..(block + 1) * B;
        let Ok(given) = self.rig.alloc_on(medium, file, range.clone()) else { return };
        let extent = given.layout.extents.0.iter().find(|extent| extent.offset <= range.start);
        let extent = *extent.unwrap();
        let at = extent.position + (range.start - extent.offset);
        if !is_on_disk && extent.disk == MEMORY {
            let there = self.rig.disks.block(MEMORY, at);
            assert_eq!(there, 0, "foreign bytes in a block that is given");
        }
        self.next += 1;
        let mut grants = given.layout.grants.0.iter();
        let grant = grants.find(|grant| grant.disk == extent.disk && grant.mode == Mode::Write);
        let name = granted(grant.unwrap()).name;
        assert!(self.rig.disks.write(name, &(at..at + B), self.next));
        self.rig.commit(file, &given.layout, range).unwrap();
        if self.retained.remove(&file).is_some() {
            // That was all.
            self.rig.retain(file, Retention::Released).unwrap();
        }
        self.files.get_mut(&file).unwrap().insert(block, self.next);
        self.settled.remove(&file);
        if extent.disk != MEMORY {
            self.durable.insert(file);
        }
    }

    /// The client retains a file that has no bytes, or says that it has more of it.
    fn retain(&mut self) {
        let is_empty = |world: &World, file| world.files.get(&file).is_some_and(Content::is_empty);
        let Some((_, file)) = self.some(is_empty) else { return };
        self.next += 1;
        self.rig.retain_bytes(file, self.next);
        self.retained.insert(file, self.next);
        self.settled.remove(&file);
    }

    /// A file has lost a name. The client drops what it retains of it with the last one.
    fn unnamed(&mut self, file: FileId) {
        self.settled.remove(&file);
        if self.names.values().all(|one| *one != file) {
            self.retained.remove(&file);
        }
    }

    fn cut(&mut self) {
        let Some((_, file)) = self.some_file() else { return };
        let blocks = self.random.below(BLOCKS);
        if blocks == 0 {
            self.retained.remove(&file);
        }
        self.rig.set(file, size(blocks * B)).unwrap();
        self.files.get_mut(&file).unwrap().retain(|block, _| *block < blocks);
        self.settled.remove(&file);
    }

    /// An object of any kind gets a stronger class.
    fn raise(&mut self) {
        let Some((_, file)) = self.some(|_, _| true) else { return };
        let _answer = self.rig.destage(file, 0);
        move_all(&mut self.rig);
        self.durable.insert(file);
    }

    fn remove(&mut self) {
        let Some((at, file)) = self.some(|world, file| !world.is_dir(file) || world.is_empty(file))
        else {
            return;
        };
        if self.is_dir(file) {
            let (sequence, dentry) = (self.rig.next(), dentry(at.0, &at.1));
            self.rig.call(&Caller::root(), calls::RmDir { sequence, dentry }).unwrap();
        } else {
            self.rig.remove(at.0, &at.1).unwrap();
        }
        self.names.remove(&at);
        self.unnamed(file);
    }

    fn link(&mut self) {
        let Some((_, file)) = self.some(|world, file| !world.is_dir(file)) else { return };
        let Some(at) = self.free() else { return };
        let (sequence, dentry) = (self.rig.next(), dentry(at.0, &at.1));
        self.rig.call(&Caller::root(), calls::Link { sequence, file, dentry }).unwrap();
        self.names.insert(at, file);
        self.settled.remove(&file);
    }

    fn rename(&mut self) {
        let (Some((from, file)), to) = (self.some(|_, _| true), self.at()) else { return };
        let there = self.names.get(&to).copied();
        let is_free = |it: FileId| match self.is_dir(file) {
            true => self.is_dir(it) && self.is_empty(it),
            false => !self.is_dir(it),
        };
        if there.is_some_and(|it| it == file || !is_free(it)) || self.is_within(to.0, file) {
            return;
        }
        let (sequence, keep) = (self.rig.next(), false);
        let (one, other) = (dentry(from.0, &from.1), dentry(to.0, &to.1));
        let call = calls::Rename { sequence, from: one, to: other, keep };
        self.rig.call(&Caller::root(), call).unwrap();
        self.names.remove(&from);
        if let Some(replaced) = self.names.insert(to, file) {
            self.unnamed(replaced);
        }
        self.settled.remove(&file);
    }

    fn is_within(&self, dir: FileId, above: FileId) -> bool {
        let mut at = dir;
        while at != ROOT && at != above {
            at = self.names.iter().find(|(_, file)| **file == at).unwrap().0.0;
        }
        at == above
    }

    fn settle(&mut self) {
        self.rig.sync_all();
        self.settled = self.names.values().copied().collect();
    }

    fn content(&self, file: FileId) -> Content {
        let mut content = Content::new();
        for (key, extent) in self.rig.records::<Extent>(b'x') {
            if key[1..9] != file.0.to_be_bytes() {
                continue;
            }
            let end = key::last_number(&key).unwrap();
            let start = end - extent.length();
            for at in (0..extent.length()).step_by(B as usize) {
                let what = self.rig.disks.block(extent.disk, extent.position + at);
                content.insert((start + at) / B, what);
            }
        }
        content
    }

    fn shape(&self) -> Shape {
        let look = |file: &FileId| self.bare.get(file).map(|(_, look)| (*file, *look));
        let bare = self.names.iter().filter_map(|(at, file)| Some((at.clone(), look(file)?)));
        bare.collect()
    }

    /// A step was made.
    fn note(&mut self) {
        let (late, shape) = (self.rig.engine.late(), self.shape());
        if let Some((last, before)) = self.frames.last()
            && *last > late
        {
            // Something in between was durable.
            self.frames = vec![(0, before.clone())];
        }
        self.frames.push((late, shape));
        names_are_as_durable_as_files(&self.rig.engine);
    }

    /// What a crash of the machine leaves that keeps so many commits: all that has no bytes is as
    /// it was at that moment, and what is durable is where it is now.
    fn judge(&self, engine: &MemoryEngine, kept: usize) {
        assert_eq!(crate::check(engine).unwrap(), []);
        let stored = stored(engine);
        let next = self.frames.partition_point(|(late, _)| *late <= kept);
        let mut may_be = self.frames[next - 1..].iter().take(2).map(|(_, shape)| shape);
        assert!(may_be.any(|shape| *shape == stored.shape), "{kept}: {:?}", stored.shape);
        let durable = |names: &Names| paths(names, &self.durable);
        assert_eq!(durable(&stored.names), durable(&self.names), "{kept}");
    }

    /// The server dies, or its machine crashes.
    fn crash(mut self) -> World {
        let late = self.rig.engine.late();
        for kept in 0..=late {
            let engine = self.rig.engine.after_crash_of_machine(kept);
            volume::take(&engine).unwrap();
            self.judge(&engine, kept);
        }
        let is_machine = self.random.below(3) > 0;
        let kept = self.random.below(late as u64 + 1) as usize;
        let is_all = !is_machine || kept == late;
        self.rig = match is_machine {
            true => self.rig.crash_of_machine(kept),
            false => self.rig.crash(),
        };
        self.rig.check();
        let Stored { names, inodes, shape } = stored(&self.rig.engine);
        let mut lost: BTreeSet<FileId> =
            volume::lost(&self.rig.engine).unwrap().into_keys().collect();
        lost.retain(|file| !self.given_up.contains(file));
        assert!(is_machine || (lost.is_empty() && names == self.names), "the machine goes on");
        for file in self.settled.iter().filter(|file| self.names.values().any(|one| one == *file)) {
            assert!(inodes.contains_key(file) && !lost.contains(file), "{file:?} was settled");
        }
        let of_files = inodes.iter().filter(|(_, inode)| inode.attributes.kind == Kind::File);
        for (file, inode) in of_files {
            let known = self.files.get(file).expect("it was made");
            if self.given_up.contains(file) {
                continue;
            }
            if lost.contains(file) {
                assert!(!self.durable.contains(file), "{file:?}, {inode:?}");
                continue;
            }
            assert_eq!(self.content(*file), *known, "{file:?}, {inode:?}, all are there: {is_all}");
            if inode.attributes.links == 0 {
                // It may be open.
                continue;
            }
            let retained = self.retained.get(file);
            let whereabouts = retained.map_or(Whereabouts::AtDisks, |bytes| {
                Whereabouts::Retained { client: [1; 16], bytes: *bytes }
            });
            assert_eq!(inode.whereabouts, whereabouts, "{file:?}, all are there: {is_all}");
            self.still_retained += u64::from(is_machine && retained.is_some());
        }
        self.retained.retain(|file, _| inodes.contains_key(file) && !lost.contains(file));
        let is_gone = |file: &&FileId| !inodes.contains_key(file);
        self.lost += names.values().filter(|file| lost.contains(file)).count() as u64;
        self.gone += self.names.values().filter(is_gone).count() as u64;
        self.kept += names.values().filter(|file| !lost.contains(file)).count() as u64;
        self.bare_gone += self.shape().values().filter(|(file, _)| is_gone(&file)).count() as u64;
        self.names = names;
        for (file, look) in shape.values() {
            self.bare.get_mut(file).unwrap().1 = *look;
        }
        let all: Vec<(At, FileId)> =
            self.names.iter().map(|(at, file)| (at.clone(), *file)).collect();
        for (at, _) in all.iter().filter(|(_, file)| lost.contains(file)) {
            self.rig.remove(at.0, &at.1).unwrap();
            self.names.remove(at);
        }
        self.given_up.extend(lost);
        self.settled.clear();
        self.frames = vec![(0, self.shape())];
        self
    }
}

/// After each crash the volume is sound, what a client retains is so many bytes as it told last, or
/// the file counts as lost; what was durable is there under the names that it had, and
/// a volatile file that is there has the bytes that were committed last, or counts as lost.
/// Directories and links are as they were after one of the last commits, whichever. No block is
/// given with bytes of another file.
#[test]
fn random_histories_lose_volatile_files_alone_and_show_nothing_old() {
    let rounds: u64 = std::env::var("LARDER_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let (mut lost, mut gone, mut kept, mut bare_gone, mut retained) = (0, 0, 0, 0, 0);
    for seed in 1..=rounds {
        let mut world = World::new(seed);
        for _ in 0..220 {
            match world.random.below(60) {
                0..8 => world.create(),
                8..22 => world.write(),
                22..24 => world.cut(),
                24 => world.retain(),
                25..29 => world.remove(),
                29..34 => world.rename(),
                34..44 => world.make(),
                44..48 => world.describe(),
                48..50 => world.link(),
                50 => world.raise(),
                51..56 => drop(world.rig.sync()),
                56 => world.settle(),
                _ => world = world.crash(),
            }
            world.note();
        }
        world.rig.check();
        (lost, gone, kept) = (lost + world.lost, gone + world.gone, kept + world.kept);
        bare_gone += world.bare_gone;
        retained += world.still_retained;
    }
    let all = [lost, gone, kept, 2 * bare_gone, 2 * retained];
    assert!(all.iter().all(|count| *count > rounds), "{all:?}");
}
