//! Late commits: what is answered before it is durable, and what a crash of the machine leaves.

mod directories;
mod random;
mod retained;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use larder_wire::meta::calls;
use larder_wire::meta::words::{FileId, Medium, Mode};
use larder_wire::meta::{BLOCK_BYTES, Status};

use super::memory::{MEMORY, memory};
use super::rig::{Rig, dentry, mode, refused, size};
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, Writes};
use crate::rights::Caller;
use crate::store::key;
use crate::store::records::Inode;
use crate::volume::{self, Joining};

const B: u64 = BLOCK_BYTES;

/// A volume with a disk and a memory disk on another machine, over an engine with late commits.
fn rig() -> Rig {
    let rig = Rig::new(64);
    rig.engine.let_be_late();
    let mut rig = rig.crash();
    assert_eq!(rig.enrol(memory(64), Joining::Anywhere).unwrap(), MEMORY);
    rig.disks.restart(MEMORY);
    // Nobody opens files again.
    for _ in 0..2 {
        rig.wait(Duration::from_secs(20));
        rig.attributes(FileId::ROOT).unwrap();
    }
    rig.sync_all();
    rig
}

/// How many commits a call leaves that are not durable, beside those before.
fn late(rig: &mut Rig, run: impl FnOnce(&mut Rig)) -> usize {
    let before = rig.engine.late();
    run(rig);
    rig.engine.late().saturating_sub(before)
}

fn ignore<T>(_: T) {}

/// What the next server takes over after a crash of the machine that keeps so many of the commits
/// that are not durable.
fn taken_after_crash(rig: &Rig, kept: usize) -> MemoryEngine {
    let engine = rig.engine.after_crash_of_machine(kept);
    volume::take(&engine).unwrap();
    engine
}

/// Makes, writes and closes a volatile file.
fn make(rig: &mut Rig, dir: FileId, text: &str) -> FileId {
    let opened = rig.create_volatile(dir, text).unwrap();
    let file = opened.file.after.file;
    write(rig, file, 0..B);
    rig.close(opened.open).unwrap();
    file
}

fn write(rig: &mut Rig, file: FileId, range: std::ops::Range<u64>) {
    let layout = rig.alloc_on(Medium::Memory(1), file, range.clone()).unwrap().layout;
    rig.commit(file, &layout, range).unwrap();
}

fn is_there(rig: &Rig, text: &str) -> Option<FileId> {
    let call = calls::Lookup { session: rig.session, dentry: dentry(FileId::ROOT, text) };
    rig.read(&Caller::root(), &call).unwrap().found.map(|found| found.file)
}

fn lost_bytes(rig: &Rig, file: FileId) -> u64 {
    volume::lost(&rig.engine).unwrap().get(&file).map_or(0, |lost| lost.bytes)
}

/// The records of files, of their names and of their bytes.
fn files(engine: &MemoryEngine) -> Writes {
    let mut all = Writes::new();
    let mut each = |key: &[u8], value: &[u8]| {
        if matches!(key[0], b'e' | b'i' | b'x') {
            all.insert(key.to_vec(), Some(value.to_vec()));
        }
        ControlFlow::Continue(())
    };
    engine.view().unwrap().scan(&[], &[0xff], &mut each).unwrap();
    all
}

/// Which calls wait for the disk, by what they are about. Late ones are there after the death of
/// the server alone, and are durable with the next call that waits.
#[test]
fn what_is_about_volatile_files_alone_is_late() {
    let mut rig = rig();
    let root = FileId::ROOT;
    assert!(late(&mut rig, |rig| ignore(make(rig, root, "a"))) >= 3);
    let a = is_there(&rig, "a").unwrap();
    let truncated = |rig: &mut Rig| ignore(rig.set(a, size(100)).unwrap());
    assert_eq!(late(&mut rig, truncated), 1);
    assert_eq!(late(&mut rig, |rig| ignore(rig.set(a, mode(0o600)).unwrap())), 1);
    let link = |rig: &mut Rig| {
        let sequence = rig.next();
        rig.call(&Caller::root(), calls::Link { sequence, file: a, dentry: dentry(root, "b") })
            .unwrap();
    };
    assert_eq!(late(&mut rig, link), 1);
    let rename = |from: &'static str, to: &'static str| {
        move |rig: &mut Rig| {
            let (sequence, keep) = (rig.next(), false);
            let (from, to) = (dentry(root, from), dentry(root, to));
            rig.call(&Caller::root(), calls::Rename { sequence, from, to, keep }).unwrap();
        }
    };
    assert_eq!(late(&mut rig, rename("b", "c")), 1);
    assert_eq!(late(&mut rig, |rig| ignore(rig.remove(root, "c").unwrap())), 1);
    // The server dies, its machine does not.
    let mut rig = rig.crash();
    assert_eq!(is_there(&rig, "a"), Some(a));
    assert_eq!(rig.attributes(a).unwrap().size, 100);
    make(&mut rig, root, "d");
    assert!(rig.engine.late() > 0);
    // Everything before is durable with this.
    rig.create(&Caller::root(), root, "edited").unwrap();
    assert_eq!(rig.engine.late(), 0);
    let edited = is_there(&rig, "edited").unwrap();
    for durable in [
        &(|rig: &mut Rig| ignore(rig.set(edited, mode(0o600)).unwrap())) as &dyn Fn(&mut Rig),
        &|rig| ignore(rig.write(edited, 0..B).unwrap()),
        &|rig| ignore(rig.mkdir(&Caller::root(), root, "dir").unwrap()),
        &|rig| rename("d", "edited2")(rig),
        &|rig| rename("edited", "edited3")(rig),
        &|rig| rename("edited2", "edited3")(rig),
    ] {
        make(&mut rig, root, "late");
        assert!(rig.engine.late() > 0);
        // The fourth is about a volatile file alone.
        durable(&mut rig);
        rig.remove(root, "late").unwrap();
    }
    rig.check();
}

/// A durable call makes all that was committed before durable, in each case in which a volatile
/// file or name meets a durable one.
#[test]
fn what_a_durable_file_is_part_of_is_durable() {
    type Step = fn(&mut Rig);
    let steps: [(&str, Step); 8] = [
        ("removes a durable file", |rig| ignore(rig.remove(FileId::ROOT, "durable").unwrap())),
        ("replaces a durable file", |rig| {
            let (sequence, keep) = (rig.next(), false);
            let (from, to) = (dentry(FileId::ROOT, "v"), dentry(FileId::ROOT, "durable"));
            rig.call(&Caller::root(), calls::Rename { sequence, from, to, keep }).unwrap();
        }),
        ("writes to a disk", |rig| {
            let file = is_there(rig, "v").unwrap();
            rig.write(file, 0..B).unwrap();
        }),
        ("writes a durable file in memory", |rig| {
            let file = is_there(rig, "durable").unwrap();
            write(rig, file, 0..B);
        }),
        ("makes a directory", |rig| {
            rig.mkdir(&Caller::root(), FileId::ROOT, "dir").unwrap();
        }),
        ("changes a directory", |rig| ignore(rig.set(FileId::ROOT, mode(0o777)).unwrap())),
        ("raises an empty file", |rig| {
            let file = rig.create_volatile(FileId::ROOT, "empty").unwrap().file.after.file;
            assert_eq!(
                super::rig::decode::<larder_wire::meta::Res<()>>(
                    &rig.destage(file, 0).try_recv().unwrap()
                ),
                Ok(())
            );
        }),
        ("begins a session", |rig| {
            rig.begin_session([3; 16], 1).unwrap();
        }),
    ];
    for (what, step) in steps {
        let mut rig = rig();
        rig.create(&Caller::root(), FileId::ROOT, "durable").unwrap();
        make(&mut rig, FileId::ROOT, "v");
        assert!(rig.engine.late() > 0, "{what}");
        step(&mut rig);
        let left = rig.engine.after_crash_of_machine(0);
        assert_eq!(files(&left), files(&rig.engine), "{what}");
        rig.check();
    }
}

/// A volatile file that was raised, or has bytes on a disk, is durable from then on.
#[test]
fn what_was_promised_to_be_durable_is_not_volatile_any_more() {
    for raise in [true, false] {
        let mut rig = rig();
        let file = rig.create_volatile(FileId::ROOT, "v").unwrap().file.after.file;
        if raise {
            rig.destage(file, 0).try_recv().unwrap();
        } else {
            rig.write(file, 0..B).unwrap();
        }
        assert_eq!(rig.engine.late(), 0);
        assert_eq!(late(&mut rig, |rig| ignore(rig.set(file, mode(0o600)).unwrap())), 0);
        assert_eq!(late(&mut rig, |rig| ignore(rig.remove(FileId::ROOT, "v").unwrap())), 0);
        let rig = rig.crash_of_machine(0);
        assert_eq!(is_there(&rig, "v"), None);
        rig.check();
    }
}

/// Blocks of a volatile file that is removed are not cleared before the removal is durable: a crash
/// that undoes it brings the file back with its bytes.
#[test]
fn blocks_are_cleared_when_their_removal_is_durable() {
    let mut rig = rig();
    let file = make(&mut rig, FileId::ROOT, "v");
    // Older than what may have been changed late.
    rig.sync_all();
    rig.disks.take_cleared(MEMORY);
    rig.remove(FileId::ROOT, "v").unwrap();
    assert_eq!(rig.disks.take_cleared(MEMORY), 0);
    // The removal is undone.
    let undone = taken_after_crash(&rig, 0);
    assert_eq!(volume::lost(&undone).unwrap(), BTreeMap::new(), "the file is as it was");
    let inode = undone.view().unwrap().get(&key::inode(file)).unwrap();
    assert!(inode.is_some());
    rig.sync();
    assert_ne!(rig.disks.take_cleared(MEMORY), 0);
    rig.sync_all();
    rig.check();
}

/// Every number of late commits that a crash keeps: the file is there as it was closed, or lost,
/// or gone. Once all is durable and nobody has written for a moment, it stays.
#[test]
fn a_crash_leaves_a_volatile_file_whole_lost_or_gone() {
    let mut rig = rig();
    let opened = rig.create_volatile(FileId::ROOT, "v").unwrap();
    let file = opened.file.after.file;
    write(&mut rig, file, 0..B);
    write(&mut rig, file, B..2 * B);
    let late = rig.engine.late();
    assert!(late >= 3);
    for kept in 0..=late {
        let engine = taken_after_crash(&rig, kept);
        assert_eq!(crate::check(&engine).unwrap(), [], "{kept}");
        let lost = volume::lost(&engine).unwrap();
        let size = rig.attributes(file).unwrap().size;
        assert_eq!(size, 2 * B);
        if let Some(lost) = lost.get(&file) {
            assert!(lost.bytes > 0, "{kept}");
        }
        assert_eq!(lost.contains_key(&file), kept >= 3, "{kept}: before that it is gone");
        if kept > 0 {
            assert_eq!(volume::losses(&engine).unwrap().len(), 1, "{kept}");
        }
    }
    // Durable, but perhaps changed since.
    rig.sync();
    let engine = taken_after_crash(&rig, 0);
    assert!(volume::lost(&engine).unwrap().contains_key(&file));
    rig.sync_all();
    let rig = rig.crash_of_machine(0);
    assert_eq!((is_there(&rig, "v"), lost_bytes(&rig, file)), (Some(file), 0));
    rig.check();
}

/// A file that was not changed for long is changed late only after a change that is durable, since
/// a crash would show what it was before.
#[test]
fn an_old_volatile_file_is_marked_durably_before_it_is_changed_late() {
    let mut rig = rig();
    let file = make(&mut rig, FileId::ROOT, "v");
    rig.sync_all();
    assert_eq!(late(&mut rig, |rig| ignore(rig.set(file, size(1)).unwrap())), 0);
    let records = rig.records::<Inode>(b'i');
    assert!(records.iter().any(|(_, inode)| inode.file() == file && inode.late != 0));
    assert_eq!(late(&mut rig, |rig| ignore(rig.set(file, size(2)).unwrap())), 1);
    let mut rig = rig.crash_of_machine(0);
    assert!(lost_bytes(&rig, file) > 0, "what it was before is not shown");
    // Its removal needs no such mark.
    rig.sync_all();
    rig.remove(FileId::ROOT, "v").unwrap();
    rig.check();
}

/// Numbers of files, versions and places in listings that clients were given by late commits which
/// are lost are not given to others; and blocks that such commits gave them are cleared.
#[test]
fn what_was_given_by_lost_commits_is_not_given_again() {
    let mut rig = rig();
    let root_before = rig.attributes(FileId::ROOT).unwrap().change;
    rig.disks.take_cleared(MEMORY);
    let lost = make(&mut rig, FileId::ROOT, "lost");
    let seen = rig.attributes(FileId::ROOT).unwrap().change;
    assert!(seen > root_before);
    let mut rig = rig.crash_of_machine(0);
    assert_eq!(is_there(&rig, "lost"), None);
    assert_eq!(refused(rig.layout(lost, Mode::Read)), Status::Stale);
    let other = make(&mut rig, FileId::ROOT, "other");
    assert!(other > lost);
    assert!(rig.attributes(FileId::ROOT).unwrap().change > seen);
    assert!(rig.disks.take_cleared(MEMORY) >= 64 * B);
    rig.check();
}

/// A server that ends in order leaves nothing to be lost.
#[test]
fn nothing_is_lost_after_an_orderly_end() {
    let mut rig = rig();
    let file = make(&mut rig, FileId::ROOT, "v");
    rig.end();
    assert_eq!(rig.engine.late(), 0);
    let rig = rig.crash_of_machine(0);
    assert_eq!((is_there(&rig, "v"), lost_bytes(&rig, file)), (Some(file), 0));
    assert_eq!(volume::losses(&rig.engine).unwrap(), []);
    rig.check();
}
