//! Directories, links and special files that are made in a volatile class.

use larder_wire::meta::calls::{self, IfSet, MakeWhat, Special};
use larder_wire::meta::words::{Device, FileId, Kind, Medium, SetAttributes, SetTime};
use larder_wire::xdr::Opaque;

use super::{B, ignore, late, rig, write};
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, Writes};
use crate::rights::Caller;
use crate::store::records::{Entry, Inode};
use crate::store::{Txn, key};
use crate::tests::destaging::move_all;
use crate::tests::rig::{Rig, dentry, mode, name};

const ROOT: FileId = FileId::ROOT;
const MEMORY: Medium = Medium::Memory(1);

/// What is not volatile has its names in directories that are not, and a file with several names,
/// too.
pub(super) fn names_are_as_durable_as_files(engine: &MemoryEngine) {
    let (view, none) = (engine.view().unwrap(), Writes::new());
    let txn = Txn::new(&*view, &none);
    for (key, entry) in txn.scan_all::<Entry>(b"e").unwrap() {
        let dir = FileId(u64::from_be_bytes(*key[1..].first_chunk().unwrap()));
        let inode = |file| txn.get::<Inode>(&key::inode(file)).unwrap().unwrap();
        let (dir, file) = (inode(dir), inode(entry.file));
        let has_many = !file.is_directory() && file.attributes.links > 1;
        let may_be_late = file.late != 0 && !has_many;
        assert!(dir.late == 0 || may_be_late, "{dir:?} has {file:?}");
    }
}

fn link_to(target: &str) -> MakeWhat {
    MakeWhat::Symlink(Opaque::copy_from_slice(target.as_bytes()))
}

fn rename(rig: &mut Rig, from: (FileId, &str), to: (FileId, &str)) {
    let (sequence, keep) = (rig.next(), false);
    let (from, to) = (dentry(from.0, from.1), dentry(to.0, to.1));
    rig.call(&Caller::root(), calls::Rename { sequence, from, to, keep }).unwrap();
}

fn link(rig: &mut Rig, file: FileId, (dir, text): (FileId, &str)) {
    let (sequence, dentry) = (rig.next(), dentry(dir, text));
    rig.call(&Caller::root(), calls::Link { sequence, file, dentry }).unwrap();
}

fn remove_directory(rig: &mut Rig, dir: FileId, text: &str) {
    let (sequence, dentry) = (rig.next(), dentry(dir, text));
    rig.call(&Caller::root(), calls::RmDir { sequence, dentry }).unwrap();
}

fn volatile_directory(rig: &mut Rig, dir: FileId, text: &str) -> FileId {
    rig.make(MEMORY, (dir, text), MakeWhat::Directory).unwrap()
}

fn is_volatile(rig: &Rig, file: FileId) -> bool {
    let all = rig.records::<Inode>(b'i');
    all.iter().any(|(_, inode)| inode.file() == file && inode.late != 0)
}

/// A tree is made, described, moved and removed, and nobody waits for a disk.
#[test]
fn directories_links_and_special_files_wait_for_no_disk() {
    let mut rig = rig();
    let durable = rig.mkdir(&Caller::root(), ROOT, "durable").unwrap();
    let dir = volatile_directory(&mut rig, ROOT, "dir");
    let inner = volatile_directory(&mut rig, dir, "inner");
    let symlink = rig.make(MEMORY, (inner, "symlink"), link_to("../x")).unwrap();
    let fifo = MakeWhat::Special(Special { kind: Kind::Fifo, device: Device::default() });
    let fifo = rig.make(MEMORY, (inner, "fifo"), fifo).unwrap();
    assert_eq!(rig.engine.late(), 4);
    let times = SetAttributes { mtime: SetTime::Now, ..SetAttributes::default() };
    let steps: [&dyn Fn(&mut Rig); 13] = [
        &|rig| ignore(rig.set(inner, mode(0o700)).unwrap()),
        &|rig| ignore(rig.set(inner, times).unwrap()),
        &|rig| ignore(rig.set(symlink, times).unwrap()),
        &|rig| ignore(rig.set(fifo, mode(0o600)).unwrap()),
        &|rig| {
            let (sequence, if_set, value) = (rig.next(), IfSet::Create, Opaque::default());
            let (file, name) = (dir, name("user.a"));
            let call = calls::SetXattr { sequence, file, name, value, if_set };
            rig.call(&Caller::root(), call).unwrap();
        },
        &|rig| {
            let (sequence, file, name) = (rig.next(), dir, name("user.a"));
            rig.call(&Caller::root(), calls::RemoveXattr { sequence, file, name }).unwrap();
        },
        &|rig| rename(rig, (dir, "inner"), (durable, "moved")),
        &|rig| rename(rig, (durable, "moved"), (dir, "inner")),
        &|rig| rename(rig, (inner, "symlink"), (dir, "fifo")),
        &|rig| rename(rig, (inner, "fifo"), (dir, "fifo")),
        &|rig| ignore(rig.remove(dir, "fifo").unwrap()),
        &|rig| remove_directory(rig, dir, "inner"),
        &|rig| remove_directory(rig, ROOT, "dir"),
    ];
    for (at, step) in steps.iter().enumerate() {
        assert_eq!(late(&mut rig, step), 1, "{at}");
        names_are_as_durable_as_files(&rig.engine);
    }
    rig.check();
}

/// Long after they were made, too: there are no bytes that could be older than what is told.
#[test]
fn what_has_no_bytes_is_late_however_old_it_is() {
    let mut rig = rig();
    let dir = volatile_directory(&mut rig, ROOT, "dir");
    let symlink = rig.make(MEMORY, (dir, "symlink"), link_to("x")).unwrap();
    for _ in 0..20 {
        super::make(&mut rig, ROOT, "v");
        rig.sync_all();
        rig.remove(ROOT, "v").unwrap();
    }
    for file in [dir, symlink] {
        assert_eq!(late(&mut rig, |rig| ignore(rig.set(file, mode(0o700)).unwrap())), 1);
    }
    let rig = rig.crash_of_machine(0);
    assert_eq!(rig.attributes(dir).unwrap().mode, 0o755);
    assert_eq!(crate::volume::losses(&rig.engine).unwrap(), []);
    rig.check();
}

/// Those of other classes are made durably, and so are all on a volume without memory disks.
#[test]
fn what_is_not_volatile_is_made_durably() {
    let mut rig = rig();
    for medium in [Medium::Disk, Medium::Memory(2)] {
        for (at, what) in [MakeWhat::Directory, link_to("x")].into_iter().enumerate() {
            let text = format!("{medium:?}{at}");
            let made = late(&mut rig, |rig| ignore(rig.make(medium, (ROOT, &text), what).unwrap()));
            assert_eq!(made, 0, "{text}");
        }
    }
    let rig = Rig::new(64);
    rig.engine.let_be_late();
    let mut rig = rig.crash();
    assert_eq!(late(&mut rig, |rig| ignore(volatile_directory(rig, ROOT, "dir"))), 0);
}

/// Each way in which something durable gets into a directory, or becomes durable there: this is
/// durable with the directories above it, which are not volatile any more; others still are.
#[test]
fn a_directory_with_something_durable_is_not_volatile() {
    type Step = fn(&mut Rig, FileId);
    let steps: [(&str, Step); 12] = [
        ("makes a file", |rig, dir| ignore(rig.create(&Caller::root(), dir, "new").unwrap())),
        ("makes a directory", |rig, dir| ignore(rig.mkdir(&Caller::root(), dir, "new").unwrap())),
        ("makes a link", |rig, dir| {
            rig.make(Medium::Disk, (dir, "new"), link_to("x")).unwrap();
        }),
        ("links a file", |rig, dir| {
            let file = super::is_there(rig, "durable").unwrap();
            link(rig, file, (dir, "new"));
        }),
        ("moves a file", |rig, dir| rename(rig, (ROOT, "durable"), (dir, "new"))),
        ("moves a directory", |rig, dir| rename(rig, (ROOT, "durable-dir"), (dir, "new"))),
        ("raises a file", |rig, dir| {
            let file = super::make(rig, dir, "new");
            ignore(rig.destage(file, 0));
            move_all(rig);
        }),
        ("raises an empty file that came from elsewhere", |rig, dir| {
            let file = rig.create_volatile(ROOT, "v").unwrap().file.after.file;
            rename(rig, (ROOT, "v"), (dir, "new"));
            ignore(rig.destage(file, 0));
        }),
        ("writes a file to a disk", |rig, dir| {
            let file = rig.create_volatile(dir, "new").unwrap().file.after.file;
            rig.write(file, 0..B).unwrap();
        }),
        ("moves what is due to a disk", |rig, dir| {
            let file = super::make(rig, dir, "new");
            ignore(rig.destage(file, 1));
            rig.wait(std::time::Duration::from_secs(1));
            move_all(rig);
        }),
        ("raises a link", |rig, dir| {
            let link = rig.make(MEMORY, (dir, "new"), link_to("x")).unwrap();
            assert!(!rig.destage(link, 0).try_recv().unwrap().failed);
        }),
        ("raises a directory", |rig, dir| {
            let new = volatile_directory(rig, dir, "new");
            assert!(!rig.destage(new, 0).try_recv().unwrap().failed);
        }),
    ];
    for (what, step) in steps {
        let mut rig = rig();
        rig.create(&Caller::root(), ROOT, "durable").unwrap();
        rig.mkdir(&Caller::root(), ROOT, "durable-dir").unwrap();
        let above = volatile_directory(&mut rig, ROOT, "above");
        let dir = volatile_directory(&mut rig, above, "dir");
        let beside = volatile_directory(&mut rig, above, "beside");
        assert_eq!(rig.engine.late(), 3);
        step(&mut rig, dir);
        let left = super::taken_after_crash(&rig, 0).view().unwrap();
        assert!(left.get(&key::entry(dir, b"new")).unwrap().is_some(), "{what}");
        names_are_as_durable_as_files(&rig.engine);
        assert!(!is_volatile(&rig, above) && !is_volatile(&rig, dir), "{what}");
        assert!(is_volatile(&rig, beside), "{what}");
        for (of, expected) in [(above, 0), (dir, 0), (beside, 1)] {
            let changed = late(&mut rig, |rig| ignore(rig.set(of, mode(0o700)).unwrap()));
            assert_eq!(changed, expected, "{what}");
        }
        let moved = late(&mut rig, |rig| rename(rig, (ROOT, "above"), (ROOT, "other")));
        assert_eq!(moved, 0, "{what}");
        let rig = rig.crash_of_machine(0);
        assert_eq!(super::is_there(&rig, "other"), Some(above));
        let call = calls::Lookup { session: rig.session, dentry: dentry(dir, "new") };
        assert!(rig.read(&Caller::root(), &call).unwrap().found.is_some(), "{what}");
        rig.check();
    }
}

/// A volatile file with two names: if it is raised later, nobody would know where they are.
#[test]
fn a_directory_with_a_file_of_several_names_is_not_volatile() {
    let mut rig = rig();
    let [one, two, three] =
        ["one", "two", "three"].map(|text| volatile_directory(&mut rig, ROOT, text));
    let file = super::make(&mut rig, one, "file");
    assert_eq!(late(&mut rig, |rig| link(rig, file, (two, "file"))), 1, "no disk is waited for");
    assert!(!is_volatile(&rig, one) && !is_volatile(&rig, two) && is_volatile(&rig, three));
    assert_eq!(late(&mut rig, |rig| rename(rig, (two, "file"), (three, "file"))), 1);
    assert!(!is_volatile(&rig, three));
    names_are_as_durable_as_files(&rig.engine);
    // With one name it can be followed again.
    rig.remove(one, "file").unwrap();
    let four = volatile_directory(&mut rig, ROOT, "four");
    rename(&mut rig, (three, "file"), (four, "file"));
    assert!(is_volatile(&rig, four));
    ignore(rig.destage(file, 0));
    move_all(&mut rig);
    assert!(!is_volatile(&rig, four));
    names_are_as_durable_as_files(&rig.engine);
}

/// A crash at each commit of making and removing a tree: directories and links are there as they
/// were after one of the calls, nothing but a file counts as lost, and numbers are not given again.
#[test]
fn a_crash_leaves_directories_and_links_as_they_were_at_some_moment() {
    let mut rig = rig();
    let dir = volatile_directory(&mut rig, ROOT, "dir");
    let symlink = rig.make(MEMORY, (dir, "symlink"), link_to("file")).unwrap();
    let file = rig.create_volatile(dir, "file").unwrap().file.after.file;
    write(&mut rig, file, 0..B);
    rename(&mut rig, (ROOT, "dir"), (ROOT, "moved"));
    let late = rig.engine.late();
    assert_eq!(late, 6);
    let mut seen = Vec::new();
    for kept in 0..=late {
        let engine = super::taken_after_crash(&rig, kept);
        assert_eq!(crate::check(&engine).unwrap(), [], "{kept}");
        let (view, none) = (engine.view().unwrap(), Writes::new());
        let txn = Txn::new(&*view, &none);
        let names = txn.scan_all::<Entry>(b"e").unwrap().into_iter();
        let names: Vec<String> =
            names.map(|(key, _)| String::from_utf8(key[9..].to_vec()).unwrap()).collect();
        seen.push(names.join(" "));
        let lost: Vec<FileId> = crate::volume::lost(&engine).unwrap().into_keys().collect();
        assert_eq!(lost, if kept >= 5 { vec![file] } else { vec![] }, "{kept}");
        for known in [dir, symlink] {
            let Some(inode) = txn.get::<Inode>(&key::inode(known)).unwrap() else { continue };
            let told = rig.attributes(known).unwrap();
            assert!(inode.attributes.change > told.change, "{kept}: {inode:?}");
        }
    }
    assert_eq!(seen[..3], ["", "dir", "dir symlink"]);
    assert_eq!(seen[late], "moved file symlink");
    let mut rig = rig.crash_of_machine(0);
    assert!(volatile_directory(&mut rig, ROOT, "dir") > file, "a number that was given");
    rig.check();
}
