//! Random histories of volatile and durable files, with crashes of the server and of its machine,
//! compared with what was answered.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::calls;
use larder_wire::meta::words::{FileId, Medium, Mode};

use super::{B, MEMORY, rig};
use crate::rights::Caller;
use crate::store::key;
use crate::store::records::{Entry, Extent, Inode};
use crate::tests::mirrors::granted;
use crate::tests::random::Random;
use crate::tests::rig::{Rig, dentry, size};
use crate::volume;

const BLOCKS: u64 = 3;
const NAMES: u64 = 6;

/// The blocks of a file that have bytes, and what they are.
type Content = BTreeMap<u64, u64>;

struct World {
    rig: Rig,
    random: Random,
    names: BTreeMap<String, FileId>,
    files: BTreeMap<FileId, Content>,
    /// Files of which everything that was answered is there after any crash.
    durable: BTreeSet<FileId>,
    /// Volatile files that were not changed since everything was durable.
    settled: BTreeSet<FileId>,
    /// Lost files that were removed, and may still be there without a name.
    given_up: BTreeSet<FileId>,
    next: u64,
    lost: u64,
    gone: u64,
    kept: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let random = Random(seed * 2 + 1);
        let (names, files) = (BTreeMap::new(), BTreeMap::new());
        let (durable, settled) = (BTreeSet::new(), BTreeSet::new());
        let (next, lost, gone, kept) = (0, 0, 0, 0);
        let given_up = BTreeSet::new();
        World {
            rig: rig(),
            random,
            given_up,
            names,
            files,
            durable,
            settled,
            next,
            lost,
            gone,
            kept,
        }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.random.below(NAMES))
    }

    fn some(&mut self) -> Option<(String, FileId)> {
        let at = self.random.below(self.names.len().max(1) as u64) as usize;
        self.names.iter().nth(at).map(|(name, file)| (name.clone(), *file))
    }

    fn create(&mut self) {
        let name = self.name();
        if self.names.contains_key(&name) {
            return;
        }
        let is_volatile = self.random.below(4) > 0;
        let opened = match is_volatile {
            true => self.rig.create_volatile(FileId::ROOT, &name).unwrap(),
            false => self.rig.create(&Caller::root(), FileId::ROOT, &name).unwrap(),
        };
        let file = opened.file.after.file;
        assert!(!self.files.contains_key(&file), "{file:?} was given before");
        self.rig.close(opened.open).unwrap();
        if !is_volatile {
            self.durable.insert(file);
        }
        self.names.insert(name, file);
        self.files.insert(file, Content::new());
    }

    /// Writes a block of a file, in its class or durably.
    fn write(&mut self) {
        let Some((_, file)) = self.some() else { return };
        let is_on_disk = self.durable.contains(&file) || self.random.below(12) == 0;
        let medium = if is_on_disk { Medium::Disk } else { Medium::Memory(1) };
        let block = self.random.below(BLOCKS);
        let range = block * B..(block + 1) * B;
        let Ok(given) = self.rig.alloc_on(medium, file, range.clone()) else { return };
        let extent = given.layout.extents.0.iter().find(|extent| extent.offset <= range.start);
        let extent = *extent.unwrap();
        let at = extent.position + (range.start - extent.offset);
        if !is_on_disk && extent.disk == MEMORY {
            assert_eq!(
                self.rig.disks.block(MEMORY, at),
                0,
                "foreign bytes in a block that is given"
            );
        }
        self.next += 1;
        let grant = given
            .layout
            .grants
            .0
            .iter()
            .find(|grant| grant.disk == extent.disk && grant.mode == Mode::Write);
        let name = granted(grant.unwrap()).name;
        assert!(self.rig.disks.write(name, &(at..at + B), self.next));
        self.rig.commit(file, &given.layout, range).unwrap();
        self.files.get_mut(&file).unwrap().insert(block, self.next);
        self.settled.remove(&file);
        if extent.disk != MEMORY {
            self.durable.insert(file);
        }
    }

    fn cut(&mut self) {
        let Some((_, file)) = self.some() else { return };
        let blocks = self.random.below(BLOCKS);
        self.rig.set(file, size(blocks * B)).unwrap();
        self.files.get_mut(&file).unwrap().retain(|block, _| *block < blocks);
        self.settled.remove(&file);
    }

    fn remove(&mut self) {
        let Some((name, file)) = self.some() else { return };
        self.rig.remove(FileId::ROOT, &name).unwrap();
        self.names.remove(&name);
        self.settled.remove(&file);
    }

    fn rename(&mut self) {
        let (Some((from, file)), to) = (self.some(), self.name()) else { return };
        if from == to {
            return;
        }
        let (sequence, keep) = (self.rig.next(), false);
        let (one, other) = (dentry(FileId::ROOT, &from), dentry(FileId::ROOT, &to));
        let call = calls::Rename { sequence, from: one, to: other, keep };
        self.rig.call(&Caller::root(), call).unwrap();
        self.names.remove(&from);
        if let Some(replaced) = self.names.insert(to, file) {
            self.settled.remove(&replaced);
        }
        self.settled.remove(&file);
    }

    fn settle(&mut self) {
        self.rig.sync_all();
        self.settled = self.names.values().copied().collect();
    }

    fn records(&self) -> (BTreeMap<String, FileId>, BTreeMap<FileId, Inode>) {
        let name = |(key, entry): (Vec<u8>, Entry)| {
            (String::from_utf8(key[9..].to_vec()).unwrap(), entry.file)
        };
        let names = self.rig.records::<Entry>(b'e').into_iter().map(name).collect();
        let inodes = self.rig.records::<Inode>(b'i').into_iter();
        (names, inodes.map(|(_, inode)| (inode.file(), inode)).collect())
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

    /// The server dies, or its machine crashes.
    fn crash(mut self) -> World {
        let is_machine = self.random.below(3) > 0;
        let kept = self.random.below(self.rig.engine.late() as u64 + 1) as usize;
        let is_all = !is_machine || kept == self.rig.engine.late();
        self.rig = match is_machine {
            true => self.rig.crash_of_machine(kept),
            false => self.rig.crash(),
        };
        self.rig.check();
        let (names, inodes) = self.records();
        let mut lost: BTreeSet<FileId> =
            volume::lost(&self.rig.engine).unwrap().into_keys().collect();
        lost.retain(|file| !self.given_up.contains(file));
        assert!(is_machine || (lost.is_empty() && names == self.names), "the machine goes on");
        let of_durable = |names: &BTreeMap<String, FileId>| -> BTreeMap<String, FileId> {
            let durable = names.iter().filter(|(_, file)| self.durable.contains(file));
            durable.map(|(name, file)| (name.clone(), *file)).collect()
        };
        assert_eq!(of_durable(&names), of_durable(&self.names));
        for file in self.settled.iter().filter(|file| self.names.values().any(|one| one == *file)) {
            assert!(inodes.contains_key(file) && !lost.contains(file), "{file:?} was settled");
        }
        for (file, inode) in inodes.iter().filter(|(_, inode)| !inode.is_directory()) {
            let known = self.files.get(file).expect("it was made");
            if self.given_up.contains(file) {
                continue;
            }
            if lost.contains(file) {
                assert!(!self.durable.contains(file), "{file:?}, {inode:?}");
                continue;
            }
            assert_eq!(self.content(*file), *known, "{file:?}, {inode:?}, all are there: {is_all}");
        }
        self.lost += names.values().filter(|file| lost.contains(file)).count() as u64;
        self.gone += self.names.values().filter(|file| !inodes.contains_key(file)).count() as u64;
        self.kept += names.values().filter(|file| !lost.contains(file)).count() as u64;
        self.names = names;
        let all: Vec<(String, FileId)> =
            self.names.iter().map(|(name, file)| (name.clone(), *file)).collect();
        for (name, _) in all.iter().filter(|(_, file)| lost.contains(file)) {
            self.rig.remove(FileId::ROOT, name).unwrap();
            self.names.remove(name);
        }
        self.given_up.extend(lost);
        self.settled.clear();
        self
    }
}

/// After each crash the volume is sound, what was durable is there, and a volatile file that is
/// there has the bytes that were committed last, or counts as lost. No block is given with bytes of
/// another file.
#[test]
fn random_histories_lose_volatile_files_alone_and_show_nothing_old() {
    let rounds: u64 = std::env::var("LARDER_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let (mut lost, mut gone, mut kept) = (0, 0, 0);
    for seed in 1..=rounds {
        let mut world = World::new(seed);
        for _ in 0..160 {
            match world.random.below(40) {
                0..8 => world.create(),
                8..22 => world.write(),
                22..25 => world.cut(),
                25..28 => world.remove(),
                28..31 => world.rename(),
                31..36 => drop(world.rig.sync()),
                36 => world.settle(),
                _ => world = world.crash(),
            }
        }
        world.rig.check();
        (lost, gone, kept) = (lost + world.lost, gone + world.gone, kept + world.kept);
    }
    assert!(lost > rounds && gone > rounds && kept > rounds, "{lost} {gone} {kept}");
}
