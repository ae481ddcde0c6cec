//! Deliberate damage: each kind is found, and mended without side effects, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::words::{DiskId, FileId, SessionId};
use larder_wire::xdr::Opaque;

use super::FaultKind as Is;
use super::*;
use crate::data::Map;
use crate::engine::memory::MemoryEngine;
use crate::rights::Caller;
use crate::store::key::Pool;
use crate::store::records::{Blocks, Disk, Extent, Listed, Orphan, Owner as OwnerRecord, Slot};
use crate::tests::rig::{Rig, dentry};

mod memory;
mod random;
mod retaining;

const B: u64 = BLOCK_BYTES;
const DISK: DiskId = DiskId(1);
const LATER: Time = Time { seconds: 2_000_000_000, nanoseconds: 0 };

/// `/a`, `/dir/b`, `/dir/below/c`, each of two blocks, and a hard link `/dir/link` of `a`. `b` is
/// the file that was changed last.
struct Tree {
    engine: MemoryEngine,
    a: FileId,
    b: FileId,
    dir: FileId,
    below: FileId,
    c: FileId,
}

fn file(rig: &mut Rig, dir: FileId, text: &str) -> FileId {
    let opened = rig.create(&Caller::root(), dir, text).unwrap();
    let file = opened.file.after.file;
    rig.write(file, 0..2 * B).unwrap();
    rig.close(opened.open).unwrap();
    file
}

fn tree() -> Tree {
    let (mut rig, root) = (Rig::new(64), Caller::root());
    let dir = rig.mkdir(&root, FileId::ROOT, "dir").unwrap();
    let below = rig.mkdir(&root, dir, "below").unwrap();
    let a = file(&mut rig, FileId::ROOT, "a");
    let c = file(&mut rig, below, "c");
    let sequence = rig.next();
    let link = larder_wire::meta::calls::Link { sequence, file: a, dentry: dentry(dir, "link") };
    rig.call(&root, link).unwrap();
    rig.wait(std::time::Duration::from_secs(1));
    let b = file(&mut rig, dir, "b");
    rig.check();
    Tree { engine: rig.engine.clone(), a, b, dir, below, c }
}

/// Changes records behind the server's back.
fn damage(engine: &MemoryEngine, change: impl FnOnce(&mut Txn<'_>)) {
    let view = engine.view().unwrap();
    let none = Writes::new();
    let mut txn = Txn::new(&*view, &none);
    change(&mut txn);
    let owner = txn.get::<OwnerRecord>(&key::owner()).unwrap().map(|owner| owner.to_bytes());
    let owner = crate::engine::Owner { key: key::owner(), value: owner };
    engine.commit(&txn.finish().0, &owner).unwrap();
}

fn read<T>(engine: &MemoryEngine, read: impl FnOnce(&Txn<'_>) -> T) -> T {
    let view = engine.view().unwrap();
    let none = Writes::new();
    read(&Txn::new(&*view, &none))
}

fn kinds(faults: &[Fault]) -> Vec<FaultKind> {
    faults.iter().map(|fault| fault.kind).collect()
}

/// Faults are mended, and none is left; a check changes nothing.
fn mends(engine: &MemoryEngine) -> Vec<Fault> {
    let commits = engine.commits();
    let found = check(engine).unwrap();
    assert_eq!(engine.commits(), commits);
    assert_eq!(repair(engine, LATER).unwrap(), found);
    assert_eq!(check(engine).unwrap(), [], "after {found:?}");
    found
}

fn inode(engine: &MemoryEngine, file: FileId) -> Inode {
    read(engine, |txn| txn.get(&key::inode(file)).unwrap().unwrap())
}

fn change(txn: &mut Txn<'_>, file: FileId, change: impl FnOnce(&mut Inode)) {
    let mut inode: Inode = txn.get(&key::inode(file)).unwrap().unwrap();
    change(&mut inode);
    txn.put(key::inode(file), &inode);
}

fn entry(txn: &Txn<'_>, dir: FileId, text: &str) -> Entry {
    txn.get(&key::entry(dir, text.as_bytes())).unwrap().unwrap()
}

/// Takes a name away, as far as its directory knows of it.
fn unname(txn: &mut Txn<'_>, dir: FileId, text: &str) {
    let Entry { file, cookie } = entry(txn, dir, text);
    txn.delete(key::entry(dir, text.as_bytes()));
    txn.delete(key::listed(dir, cookie));
    let of: Option<Inode> = txn.get(&key::inode(file)).unwrap();
    change(txn, dir, |dir| {
        dir.entries -= 1;
        dir.attributes.links -= u32::from(of.is_some_and(|of| of.is_directory()));
    });
}

/// Enters a name, as far as its directory knows of it.
fn enter(txn: &mut Txn<'_>, dir: FileId, text: &str, file: FileId) {
    let cookie = 1000 + file.0;
    txn.put(key::entry(dir, text.as_bytes()), &Entry { file, cookie });
    txn.put(
        key::listed(dir, cookie),
        &Listed { file, name: Opaque::copy_from_slice(text.as_bytes()) },
    );
    let of: Option<Inode> = txn.get(&key::inode(file)).unwrap();
    change(txn, dir, |dir| {
        dir.next_cookie = dir.next_cookie.max(cookie + 1);
        dir.entries += 1;
        dir.attributes.links += u32::from(of.is_some_and(|of| of.is_directory()));
    });
}

/// The only extent of a file, and its key.
fn extent(txn: &Txn<'_>, file: FileId) -> (Vec<u8>, Extent) {
    let all = txn.scan_all::<Extent>(&key::extent(file, 0)[..9]).unwrap();
    let [one] = &all[..] else { panic!("{all:?}") };
    one.clone()
}

/// Bytes of the disk by offset of a file, a block for each.
fn bytes_of(engine: &MemoryEngine, file: FileId) -> BTreeMap<u64, u64> {
    let pieces =
        read(engine, |txn| Map::File(file).overlapping(txn, &(0..u64::MAX), usize::MAX).unwrap());
    let blocks = pieces.iter().flat_map(|piece| {
        let blocks = 0..piece.length() / B;
        blocks.map(|block| (piece.offset + block * B, piece.position + block * B))
    });
    blocks.collect()
}

fn at(fault: &Fault) -> Option<&str> {
    fault.path.as_deref().map(|path| std::str::from_utf8(path).unwrap())
}

fn at_path(engine: &MemoryEngine, path: &str) -> Option<FileId> {
    read(engine, |txn| {
        path.split('/').skip(1).try_fold(FileId::ROOT, |dir, name| {
            let entry = txn.get::<Entry>(&key::entry(dir, name.as_bytes())).unwrap();
            entry.map(|entry| entry.file)
        })
    })
}

#[test]
fn a_sound_volume_is_left_as_it_is() {
    let tree = tree();
    assert_eq!(mends(&tree.engine), []);
}

/// Description, faults that are found, and how the damage is done.
type Damage = (&'static str, &'static [FaultKind], fn(&mut Txn<'_>, &Tree));

/// Of inodes and their counts.
const DAMAGED_FILES: &[Damage] = &[
    ("links", &[Is::Links], |txn, tree| {
        change(txn, tree.a, |inode| inode.attributes.links = 7);
    }),
    ("links of a directory", &[Is::Links], |txn, tree| {
        change(txn, tree.dir, |inode| inode.attributes.links = 0);
    }),
    ("entries", &[Is::Entries], |txn, tree| change(txn, tree.dir, |inode| inode.entries = 9)),
    ("used", &[Is::Used], |txn, tree| change(txn, tree.b, |inode| inode.attributes.used = B)),
    ("parent", &[Is::Parent], |txn, tree| {
        change(txn, tree.below, |inode| inode.parent = FileId::ROOT);
    }),
    ("the root's parent", &[Is::Parent], |txn, tree| {
        change(txn, FileId::ROOT, |inode| inode.parent = tree.dir);
    }),
    ("number", &[Is::Number], |txn, tree| {
        let inode: Inode = txn.get(&key::inode(tree.a)).unwrap().unwrap();
        let mut other = inode.clone();
        other.attributes.file = tree.b;
        txn.put(key::inode(tree.a), &other);
    }),
    ("next number", &[Is::Number], |txn, _| {
        let mut volume: Volume = txn.get(&key::volume()).unwrap().unwrap();
        volume.next_file = 2;
        txn.put(key::volume(), &volume);
    }),
    ("size", &[Is::Size], |txn, tree| change(txn, tree.b, |inode| inode.attributes.size = 1)),
    ("a file's inode", &[Is::Inode], |txn, tree| txn.delete(key::inode(tree.b))),
    ("a directory's inode", &[Is::Inode], |txn, tree| txn.delete(key::inode(tree.dir))),
    ("the root", &[Is::Inode], |txn, _| txn.delete(key::inode(FileId::ROOT))),
    ("inode and bytes", &[Is::Lost, Is::Name, Is::Name], |txn, tree| {
        let (key, _) = extent(txn, tree.a);
        txn.delete(key);
        txn.delete(key::inode(tree.a));
    }),
];

/// Of names and listings.
const DAMAGED_NAMES: &[Damage] = &[
    ("a name", &[Is::Unnamed], |txn, tree| unname(txn, tree.dir, "b")),
    ("a directory's name", &[Is::Unnamed], |txn, _| unname(txn, FileId::ROOT, "dir")),
    ("an entry", &[Is::Listing], |txn, tree| txn.delete(key::entry(tree.dir, b"b"))),
    ("a listing", &[Is::Listing], |txn, tree| {
        let cookie = entry(txn, tree.dir, "b").cookie;
        txn.delete(key::listed(tree.dir, cookie));
    }),
    ("a listing of another", &[Is::Listing], |txn, tree| {
        let (cookie, file) = (entry(txn, tree.dir, "b").cookie, tree.c);
        txn.put(
            key::listed(tree.dir, cookie),
            &Listed { file, name: Opaque::copy_from_slice(b"b") },
        );
    }),
    ("a listing of nothing", &[Is::Listing], |txn, tree| {
        let (file, name) = (FileId(500), Opaque::copy_from_slice(b"nothing"));
        txn.put(key::listed(tree.dir, 0), &Listed { file, name });
    }),
];

/// Of the tree, of blocks and sessions.
const DAMAGED_REST: &[Damage] = &[
    ("cookies", &[Is::Listing], |txn, tree| {
        change(txn, tree.dir, |inode| inode.next_cookie = 1);
    }),
    ("a name in a file", &[Is::Name, Is::Listing], |txn, tree| {
        txn.put(key::entry(tree.a, b"x"), &Entry { file: tree.b, cookie: 1 });
        let name = Opaque::copy_from_slice(b"y");
        txn.put(key::listed(tree.a, 0), &Listed { file: tree.b, name });
    }),
    ("a name of the root", &[Is::Name], |txn, tree| enter(txn, tree.dir, "up", FileId::ROOT)),
    ("dots", &[Is::Name, Is::Unnamed], |txn, tree| {
        unname(txn, tree.dir, "b");
        enter(txn, tree.dir, "..", tree.b);
    }),
    ("a second name", &[Is::SecondName], |txn, tree| {
        enter(txn, FileId::ROOT, "below", tree.below);
    }),
    ("a circle", &[Is::Loop], |txn, tree| {
        unname(txn, FileId::ROOT, "dir");
        enter(txn, tree.below, "dir", tree.dir);
        change(txn, tree.dir, |inode| inode.parent = tree.below);
    }),
    ("an orphan with a name", &[Is::Orphan], |txn, tree| {
        txn.put(key::orphan(tree.b), &Orphan {});
    }),
    ("an orphan of nothing", &[Is::Orphan], |txn, _| {
        txn.put(key::orphan(FileId(77)), &Orphan {});
    }),
    ("an extent", &[Is::Lost], |txn, tree| {
        let (key, _) = extent(txn, tree.a);
        txn.delete(key);
        change(txn, tree.a, |inode| inode.attributes.used = 0);
    }),
    ("an extent without bytes", &[Is::Extent, Is::Lost, Is::Used], |txn, tree| {
        let (key, mut extent) = extent(txn, tree.a);
        extent.valid = 0;
        txn.put(key, &extent);
    }),
    ("replies", &[Is::Session], |txn, _| {
        let (sequence, procedure, reply) = (1, 3, Opaque::default());
        txn.put(key::slot(SessionId([8; 16]), 1), &Slot { sequence, procedure, reply });
    }),
    ("a session", &[Is::Session], |txn, _| {
        let extent = a_free_block(txn);
        txn.put(key::provisional(SessionId([8; 16]), FileId(3), B), &extent);
    }),
];

/// A block that was free, and is not any more.
fn a_free_block(txn: &mut Txn<'_>) -> Extent {
    let mut free = txn.scan_all::<Blocks>(&[Pool::Free.tag()]).unwrap();
    let (key, blocks) = free.pop().unwrap();
    let end = number(&key).unwrap();
    txn.delete(key);
    let length = blocks.length - B;
    txn.put(key::blocks(Pool::Free, DISK, end - B), &Blocks { length });
    Extent { valid: B, disk: DISK, position: end - B }
}

/// Each damage, and the exact faults that are found.
#[test]
fn each_damage_is_found_and_mended_and_no_more() {
    let all = [DAMAGED_FILES, DAMAGED_NAMES, DAMAGED_REST].concat();
    for (what, wanted, change) in all {
        let tree = tree();
        damage(&tree.engine, |txn| change(txn, &tree));
        let found = check(&tree.engine).unwrap();
        assert_eq!(kinds(&found), wanted, "{what}: {found:?}");
        mends(&tree.engine);
    }
}

/// Names and bytes of a file whose inode is gone belong to a new one.
#[test]
fn what_belongs_to_a_lost_inode_stays_where_it_was() {
    let tree = tree();
    let before = bytes_of(&tree.engine, tree.b);
    damage(&tree.engine, |txn| {
        txn.delete(key::inode(tree.b));
        txn.delete(key::inode(tree.dir));
    });
    let found = mends(&tree.engine);
    let paths: Vec<_> = found.iter().map(at).collect();
    assert_eq!(paths, [Some("/dir"), Some("/dir/b")]);
    assert_eq!(at_path(&tree.engine, "/dir/b"), Some(tree.b));
    assert_eq!(at_path(&tree.engine, "/dir/below/c"), Some(tree.c));
    assert_eq!(bytes_of(&tree.engine, tree.b), before);
    let file = inode(&tree.engine, tree.b).attributes;
    assert_eq!((file.size, file.mode, file.links), (2 * B, 0o700, 1));
}

/// A file without a name goes to `lost+found`, with everything below it, and later ones beside it.
#[test]
fn what_nothing_names_goes_to_lost_and_found() {
    let tree = tree();
    damage(&tree.engine, |txn| unname(txn, tree.dir, "b"));
    let found = mends(&tree.engine);
    assert_eq!(at(&found[0]), Some(&format!("/lost+found/#{}", tree.b.0)[..]));
    damage(&tree.engine, |txn| unname(txn, FileId::ROOT, "dir"));
    mends(&tree.engine);
    let path = format!("/lost+found/#{}/below/c", tree.dir.0);
    assert_eq!(at_path(&tree.engine, &path), Some(tree.c));
    let dir = at_path(&tree.engine, "/lost+found").unwrap();
    let dir = inode(&tree.engine, dir);
    assert_eq!((dir.entries, dir.attributes.mode), (2, 0o700));
    assert_eq!(dir.attributes.links, 3);
}

/// A file called `lost+found` that is not a directory is left alone.
#[test]
fn a_file_that_is_called_lost_and_found_is_in_nobodys_way() {
    let tree = tree();
    damage(&tree.engine, |txn| {
        unname(txn, FileId::ROOT, "a");
        unname(txn, tree.dir, "link");
        unname(txn, tree.dir, "b");
        enter(txn, FileId::ROOT, "lost+found", tree.a);
    });
    let found = mends(&tree.engine);
    assert_eq!(kinds(&found), [FaultKind::Unnamed, FaultKind::Links]);
    assert_eq!(at(&found[0]), Some(&format!("/lost+found.1/#{}", tree.b.0)[..]));
}

/// Two files with the same blocks: the one that was changed last has them, the other one has zeros
/// there, and no block has two owners or is both owned and free.
#[test]
fn blocks_of_two_files_are_those_of_the_one_that_was_changed_last() {
    let tree = tree();
    let bytes = bytes_of(&tree.engine, tree.b);
    damage(&tree.engine, |txn| {
        let (_, theirs) = extent(txn, tree.b);
        let (key, mine) = extent(txn, tree.a);
        let position = theirs.position + B;
        txn.put(key, &Extent { position, ..mine });
    });
    let found = mends(&tree.engine);
    // The second block of the other file is free, or another owner's.
    assert!(kinds(&found).contains(&FaultKind::Shared), "{found:?}");
    assert_eq!(bytes_of(&tree.engine, tree.b), bytes);
    assert!(!bytes_of(&tree.engine, tree.a).contains_key(&0));
    assert_eq!(inode(&tree.engine, tree.a).attributes.size, 2 * B);
}

/// Blocks that a file has are no longer free, and are given to no one else.
#[test]
fn no_capability_covers_a_free_block_after_a_repair() {
    let tree = tree();
    let (_, used) = read(&tree.engine, |txn| extent(txn, tree.a));
    let bytes = used.position..used.position + used.length();
    for pool in [Pool::Free, Pool::Draining] {
        damage(&tree.engine, |txn| {
            let length = used.length();
            txn.put(key::blocks(pool, DISK, bytes.end), &Blocks { length });
        });
        assert_eq!(kinds(&mends(&tree.engine)), [FaultKind::Shared]);
        assert_eq!(read(&tree.engine, |txn| extent(txn, tree.a)).1, used);
    }
    // All free blocks at once.
    damage(&tree.engine, |txn| {
        for (key, _) in txn.scan_all::<Blocks>(&[Pool::Free.tag()]).unwrap() {
            txn.delete(key);
        }
        txn.put(key::blocks(Pool::Free, DISK, 64 * B), &Blocks { length: 64 * B });
    });
    let found = mends(&tree.engine);
    assert_eq!(kinds(&found), [FaultKind::Shared; 3]);
}

/// Blocks in no place drain: the next server has them cleared before they are allocated.
#[test]
fn lost_blocks_drain_before_they_are_free() {
    let tree = tree();
    let free = volume::space(&tree.engine).unwrap().bytes_free;
    damage(&tree.engine, |txn| {
        for (key, _) in txn.scan_all::<Blocks>(&[Pool::Free.tag()]).unwrap() {
            txn.delete(key);
        }
    });
    assert!(mends(&tree.engine).iter().all(|fault| fault.kind == FaultKind::Lost));
    assert_eq!(volume::space(&tree.engine).unwrap().bytes_free, 0);
    let rig = Rig::over(tree.engine.clone(), std::sync::Arc::default(), true);
    assert_eq!(rig.free_bytes_of_all(), free);
    rig.check();
}

/// Bytes that are where the file has others are kept as a file of their own.
#[test]
fn bytes_in_the_way_of_others_are_kept() {
    let tree = tree();
    let (before, theirs) = (bytes_of(&tree.engine, tree.b), bytes_of(&tree.engine, tree.a));
    damage(&tree.engine, |txn| {
        // The blocks of `a` are those of the second and third block of `b`.
        let (key, extent) = extent(txn, tree.a);
        txn.delete(key);
        txn.put(key::extent(tree.b, 3 * B), &extent);
        change(txn, tree.a, |inode| inode.attributes.used = 0);
        change(txn, tree.b, |inode| inode.attributes.used = 4 * B);
    });
    let found = mends(&tree.engine);
    assert_eq!(kinds(&found), [FaultKind::Extent, FaultKind::Size, FaultKind::Unnamed]);
    let moved = FileId(found[2].file.unwrap());
    assert_eq!(bytes_of(&tree.engine, moved), BTreeMap::from([(B, theirs[&0])]));
    assert_eq!(inode(&tree.engine, moved).attributes.size, 2 * B);
    let mut both = before;
    both.insert(2 * B, theirs[&B]);
    assert_eq!(bytes_of(&tree.engine, tree.b), both);
}

/// Bytes of an object that is not a file are kept as a file.
#[test]
fn bytes_of_a_directory_are_kept_as_a_file() {
    let tree = tree();
    let theirs = bytes_of(&tree.engine, tree.a);
    damage(&tree.engine, |txn| {
        let (key, extent) = extent(txn, tree.a);
        txn.delete(key);
        txn.put(key::extent(tree.dir, 2 * B), &extent);
        change(txn, tree.a, |inode| inode.attributes.used = 0);
    });
    let found = mends(&tree.engine);
    assert_eq!(kinds(&found), [FaultKind::Extent, FaultKind::Unnamed]);
    assert_eq!(bytes_of(&tree.engine, FileId(found[1].file.unwrap())), theirs);
}

/// A disk that does not exist may exist again later: this is reported and left.
#[test]
fn what_is_on_a_disk_that_is_not_there_is_left_as_it_is() {
    let tree = tree();
    let before = bytes_of(&tree.engine, tree.a);
    let disk: Disk = read(&tree.engine, |txn| txn.get(&key::disk(DISK)).unwrap().unwrap());
    damage(&tree.engine, |txn| txn.delete(key::disk(DISK)));
    let found = repair(&tree.engine, LATER).unwrap();
    assert!(found.iter().all(|fault| fault.kind == FaultKind::Disk), "{found:?}");
    let left = check(&tree.engine).unwrap();
    assert!(left.iter().all(|fault| fault.remedy.is_none()) && left.len() == 1, "{left:?}");
    assert_eq!(bytes_of(&tree.engine, tree.a), before);
    damage(&tree.engine, |txn| txn.put(key::disk(DISK), &disk));
    mends(&tree.engine);
    assert_eq!(bytes_of(&tree.engine, tree.a), before);
}

/// A record that cannot be decoded ends the check; nothing is guessed.
#[test]
fn what_cannot_be_read_is_not_mended() {
    let tree = tree();
    damage(&tree.engine, |txn| {
        txn.put(key::inode(tree.a), &Orphan {});
    });
    let commits = tree.engine.commits();
    assert!(matches!(check(&tree.engine), Err(VolumeError::Unreadable)));
    assert!(matches!(repair(&tree.engine, LATER), Err(VolumeError::Unreadable)));
    // It was taken.
    assert_eq!(tree.engine.commits(), commits + 1);
}

/// A server that owns the volume loses it to a repair, and changes nothing afterwards.
#[test]
fn a_repair_owns_the_volume() {
    let mut rig = Rig::new(8);
    assert_eq!(repair(&rig.engine, LATER).unwrap(), []);
    let made = rig.mkdir(&Caller::root(), FileId::ROOT, "late");
    assert_eq!(made.unwrap_err(), Status::Later);
}
