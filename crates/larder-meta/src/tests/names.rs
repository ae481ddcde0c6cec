//! Making, finding and removing names, case by case. Random sequences are in `model`.

use std::sync::atomic::{AtomicUsize, Ordering};

use larder_wire::meta::Status;
use larder_wire::meta::calls::{self, OpenWhat};
use larder_wire::meta::words::{FileId, Kind, Mode, OpenId, SetAttributes};

use super::rig::{Rig, dentry, mode, name, refused, size, user};
use crate::engine::{Engine, EngineError, View, Visitor, Writes};
use crate::names;
use crate::rights::Caller;
use crate::store::Txn;

const ROOT: FileId = FileId::ROOT;

#[test]
fn a_change_tells_what_was_before_and_what_is_after() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let before = rig.attributes(ROOT).unwrap();
    let made = rig.create(&root, ROOT, "a").unwrap();
    let dir = made.dir.unwrap();
    assert!(made.created);
    assert_eq!(dir.before, before.version());
    assert!(dir.after.change > before.change && dir.after.ctime > before.ctime);
    assert_eq!(rig.attributes(ROOT).unwrap(), dir.after);
    assert_eq!(rig.attributes(made.file.after.file).unwrap(), made.file.after);
    let removed = rig.remove(ROOT, "a").unwrap();
    assert_eq!(removed.dir.before, dir.after.version());
    assert_eq!(removed.file.before, made.file.after.version());
    assert_eq!(removed.file.after.links, 0);
    rig.check();
}

/// Writing, truncating and punching make new data; links, names, modes, owners, times and extended
/// attributes do not.
#[test]
fn only_data_moves_the_version_of_the_data() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let file = rig.create(&root, ROOT, "a").unwrap().file.after.file;
    rig.write(file, 0..8192).unwrap();
    let mut now = rig.attributes(file).unwrap().version();
    assert_eq!(now.change, now.data_change);
    let mut is_new = |rig: &Rig, what: &str, is_data: bool| {
        let before = std::mem::replace(&mut now, rig.attributes(file).unwrap().version());
        assert!(now.change > before.change, "{what}");
        let data = if is_data { now.change } else { before.data_change };
        assert_eq!(now.data_change, data, "{what}");
    };
    let sequence = rig.next();
    rig.call(&root, calls::Link { sequence, file, dentry: dentry(ROOT, "b") }).unwrap();
    is_new(&rig, "link", false);
    rig.set(file, mode(0o600)).unwrap();
    is_new(&rig, "chmod", false);
    rig.set(file, SetAttributes { uid: Some(5), ..SetAttributes::default() }).unwrap();
    is_new(&rig, "chown", false);
    rig.write(file, 0..10).unwrap();
    is_new(&rig, "write", true);
    let (sequence, keep) = (rig.next(), false);
    let (from, to) = (dentry(ROOT, "b"), dentry(ROOT, "c"));
    rig.call(&root, calls::Rename { sequence, from, to, keep }).unwrap();
    is_new(&rig, "rename", false);
    let (sequence, name, if_set) = (rig.next(), name("user.a"), calls::IfSet::Either);
    rig.call(&root, calls::SetXattr { sequence, file, name, value: "v".into(), if_set }).unwrap();
    is_new(&rig, "setxattr", false);
    let changed = rig.set(file, size(5000)).unwrap().file;
    is_new(&rig, "truncate", true);
    assert!(changed.before.data_change < changed.after.data_change);
    let removed = rig.remove(ROOT, "c").unwrap().file;
    is_new(&rig, "unlink", false);
    assert_eq!(removed.before.data_change, removed.after.data_change);
}

#[test]
fn numbers_are_never_given_again() {
    let mut rig = Rig::new(16);
    let mut last = ROOT;
    for _ in 0..20 {
        let opened = rig.create(&Caller::root(), ROOT, "a").unwrap();
        let file = opened.file.after.file;
        assert!(file > last);
        last = file;
        rig.close(opened.open).unwrap();
        rig.remove(ROOT, "a").unwrap();
        assert_eq!(refused(rig.attributes(file)), Status::Stale);
    }
    let mut rig = rig.crash();
    assert!(rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file > last);
}

#[test]
fn an_open_file_without_a_name_is_there_until_its_last_close() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let opened = rig.create(&root, ROOT, "a").unwrap();
    let file = opened.file.after.file;
    rig.write(file, 0..5000).unwrap();
    let again = rig.open(&root, OpenWhat::File(file), Mode::Read).unwrap();
    rig.remove(ROOT, "a").unwrap();
    rig.check();
    assert_eq!(rig.attributes(file).unwrap().links, 0);
    rig.close(opened.open).unwrap();
    assert_eq!(rig.layout(file, Mode::Read).unwrap().layout.extents.0.len(), 1);
    rig.close(again.open).unwrap();
    assert_eq!(refused(rig.attributes(file)), Status::Stale);
    rig.check();
    // With the next group the blocks are free.
    rig.mkdir(&root, ROOT, "d").unwrap();
    assert_eq!(rig.free_bytes(), 16 * 4096);
    rig.check();
}

/// One CLOSE closes many files. What is not open in the session, or is named twice, does no harm.
#[test]
fn one_call_closes_many_files() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let mut made = |name: &str| {
        let opened = rig.create(&root, ROOT, name).unwrap();
        rig.write(opened.file.after.file, 0..4096).unwrap();
        (opened.file.after.file, opened.open)
    };
    let [(a, of_a), (b, of_b), (c, of_c)] = ["a", "b", "c"].map(&mut made);
    let again = rig.open(&root, OpenWhat::File(b), Mode::Read).unwrap().open;
    for name in ["a", "b", "c"] {
        rig.remove(ROOT, name).unwrap();
    }
    rig.close_all(&[of_a, OpenId(7), of_b, of_a, of_c]).unwrap();
    rig.check();
    let left = [a, b, c].map(|file| rig.attributes(file).is_ok());
    assert_eq!(left, [false, true, false], "b is open once more");
    assert_eq!(refused(rig.close_all(&[of_a, of_b, OpenId(7)])), Status::BadOpen);
    assert_eq!(refused(rig.close_all(&[])), Status::BadOpen);
    rig.close_all(&[of_c, again]).unwrap();
    assert_eq!(refused(rig.attributes(b)), Status::Stale);
    rig.check();
}

/// As link(2) has it.
#[test]
fn an_open_file_without_a_name_gets_none_again() {
    let mut rig = Rig::new(16);
    let opened = rig.create(&Caller::root(), ROOT, "a").unwrap();
    let file = opened.file.after.file;
    rig.remove(ROOT, "a").unwrap();
    let sequence = rig.next();
    let linked =
        rig.call(&Caller::root(), calls::Link { sequence, file, dentry: dentry(ROOT, "b") });
    assert_eq!(refused(linked), Status::NotFound);
    rig.check();
    rig.close(opened.open).unwrap();
    assert_eq!(refused(rig.attributes(file)), Status::Stale);
    rig.check();
}

#[test]
fn listings_go_on_where_they_were_whatever_changes() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    for number in 0..100 {
        rig.mkdir(&root, ROOT, &format!("d{number:02}")).unwrap();
    }
    let (mut cookie, mut listed) = (0, Vec::new());
    loop {
        let (session, bytes_max) = (rig.session, 700);
        let call = calls::ReadDir { session, dir: ROOT, cookie, bytes_max, attributes: true };
        let part = rig.read(&root, &call).unwrap();
        for entry in &part.entries.0 {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            let attributes = entry.attributes.unwrap();
            assert_eq!((attributes.file, attributes.kind), (entry.file, Kind::Directory));
            let sequence = rig.next();
            rig.call(&root, calls::RmDir { sequence, dentry: dentry(ROOT, &name) }).unwrap();
            listed.push(name);
            cookie = entry.cookie;
        }
        if part.end {
            break;
        }
    }
    let wanted: Vec<String> = (0..100).map(|number| format!("d{number:02}")).collect();
    assert_eq!(listed, wanted);
    rig.check();
}

/// A view that counts what is scanned.
struct Counted<'a> {
    view: Box<dyn View + 'a>,
    scanned: &'a AtomicUsize,
}

impl View for Counted<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.view.get(key)
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        self.view.scan(from, until, &mut |key, value| {
            self.scanned.fetch_add(1, Ordering::Relaxed);
            each(key, value)
        })
    }
}

/// A listing reads each name once, and few twice: at the end of a reply.
#[test]
fn a_listing_reads_few_names_that_it_does_not_tell() {
    const NAMES: usize = 1200;
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let dir = rig.mkdir(&root, ROOT, "dir").unwrap();
    for number in 0..NAMES {
        rig.mkdir(&root, dir, &format!("f{number:08}")).unwrap();
    }
    let session = rig.session;
    for attributes in [false, true] {
        let (scanned, none) = (AtomicUsize::new(0), Writes::new());
        let (mut told, mut cookie) = (0, 0);
        loop {
            let view = Counted { view: rig.engine.view().unwrap(), scanned: &scanned };
            let call = calls::ReadDir { session, dir, cookie, bytes_max: 16 << 10, attributes };
            let part = names::list(&Txn::new(&view, &none), &root, &call).unwrap();
            told += part.entries.0.len();
            let Some(last) = part.entries.0.last().filter(|_| !part.end) else { break };
            cookie = last.cookie;
        }
        let scanned = scanned.into_inner();
        assert_eq!(told, NAMES);
        assert!(scanned <= NAMES * 3 / 2, "{scanned} were read, with attributes {attributes}");
    }
}

#[test]
fn rename_in_all_its_cases() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let outer = rig.mkdir(&root, ROOT, "outer").unwrap();
    let inner = rig.mkdir(&root, outer, "inner").unwrap();
    let file = rig.create(&root, ROOT, "file").unwrap().file.after.file;
    let mut rename = |from: (FileId, &str), to: (FileId, &str), keep| {
        let sequence = rig.next();
        let (from, to) = (dentry(from.0, from.1), dentry(to.0, to.1));
        let renamed = rig.call(&root, calls::Rename { sequence, from, to, keep });
        rig.check();
        renamed
    };
    assert_eq!(refused(rename((ROOT, "outer"), (inner, "x"), false)), Status::Invalid);
    assert_eq!(refused(rename((ROOT, "outer"), (outer, "x"), false)), Status::Invalid);
    assert_eq!(refused(rename((ROOT, "file"), (ROOT, "outer"), false)), Status::IsDirectory);
    assert_eq!(refused(rename((ROOT, "outer"), (ROOT, "file"), false)), Status::NotDirectory);
    assert_eq!(refused(rename((ROOT, "file"), (ROOT, "outer"), true)), Status::Exists);
    assert_eq!(refused(rename((ROOT, "none"), (ROOT, "x"), false)), Status::NotFound);
    let moved = rename((outer, "inner"), (ROOT, "inner"), false).unwrap();
    assert_eq!((moved.from_dir.after.links, moved.to_dir.after.links), (2, 4));
    let moved = rename((ROOT, "inner"), (ROOT, "outer"), false).unwrap();
    assert_eq!(moved.replaced.unwrap().after.file, outer);
    assert_eq!(moved.from_dir, moved.to_dir);
    let moved = rename((ROOT, "file"), (inner, "file"), true).unwrap();
    assert_eq!((moved.moved.after.file, moved.replaced), (file, None));
}

#[test]
fn a_group_of_one_call_sees_what_calls_before_it_did() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let mkdir = |rig: &mut Rig, text: &str, slot| {
        let mut sequence = rig.next();
        sequence.slot = slot;
        calls::MkDir { sequence, dentry: dentry(ROOT, text), set: mode(0o755) }.into()
    };
    let calls = vec![mkdir(&mut rig, "a", 0), mkdir(&mut rig, "a", 1), mkdir(&mut rig, "b", 2)];
    let commits = rig.engine.commits();
    let replies = rig.group(calls.into_iter().map(|call| (&root, call)).collect());
    assert_eq!(rig.engine.commits(), commits + 1);
    let statuses: Vec<bool> =
        replies.into_iter().map(|mut reply| reply.try_recv().unwrap().failed).collect();
    assert_eq!(statuses, [false, true, false]);
    assert_eq!(rig.attributes(ROOT).unwrap().links, 4);
    rig.check();
}

#[test]
fn names_that_no_directory_has() {
    let mut rig = Rig::new(16);
    let root = Caller::root();
    let long = "n".repeat(256);
    assert_eq!(refused(rig.mkdir(&root, ROOT, &long)), Status::NameTooLong);
    assert_eq!(refused(rig.mkdir(&root, ROOT, ".")), Status::Exists);
    assert_eq!(refused(rig.remove(ROOT, "..")), Status::Invalid);
    let dir = rig.mkdir(&root, ROOT, "d").unwrap();
    let lookup = |text| calls::Lookup { session: rig.session, dentry: dentry(dir, text) };
    let found = |text| rig.read(&root, &lookup(text)).unwrap().found.unwrap().file;
    assert_eq!((found("."), found("..")), (dir, ROOT));
    assert_eq!(rig.read(&root, &lookup("x")).unwrap().found, None);
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let mut rig = Rig::new(16);
    let (root, other) = (Caller::root(), user(5, &[]));
    let file = rig.create(&root, ROOT, "a").unwrap().file.after.file;
    let mut set = |caller: &Caller, text: &str, value: &'static str, if_set| {
        let sequence = rig.next();
        let (name, value) = (name(text), value.into());
        let call = calls::SetXattr { sequence, file, name, value, if_set };
        rig.call(caller, call).map(|changed| changed.file.after.change)
    };
    set(&root, "user.a", "one", calls::IfSet::Create).unwrap();
    assert_eq!(refused(set(&root, "user.a", "x", calls::IfSet::Create)), Status::Exists);
    assert_eq!(refused(set(&root, "user.b", "x", calls::IfSet::Replace)), Status::NoAttribute);
    assert_eq!(refused(set(&other, "user.a", "x", calls::IfSet::Either)), Status::AccessDenied);
    assert_eq!(refused(set(&other, "trusted.a", "x", calls::IfSet::Either)), Status::NotPermitted);
    assert_eq!(refused(set(&root, "system.a", "x", calls::IfSet::Either)), Status::NotSupported);
    set(&root, "trusted.t", "two", calls::IfSet::Either).unwrap();
    let get = |rig: &Rig, caller: &Caller, text: &str| {
        let call = calls::GetXattr { session: rig.session, file, name: name(text) };
        rig.read(caller, &call).map(|got| got.value.to_vec())
    };
    assert_eq!(get(&rig, &other, "user.a").unwrap(), b"one");
    assert_eq!(refused(get(&rig, &other, "trusted.t")), Status::NoAttribute);
    let list = |rig: &Rig, caller: &Caller| {
        let call = calls::ListXattr { session: rig.session, file };
        rig.read(caller, &call).unwrap().names.0.len()
    };
    assert_eq!((list(&rig, &root), list(&rig, &other)), (2, 1));
    let sequence = rig.next();
    rig.call(&root, calls::RemoveXattr { sequence, file, name: name("user.a") }).unwrap();
    assert_eq!(refused(get(&rig, &root, "user.a")), Status::NoAttribute);
    rig.remove(ROOT, "a").unwrap();
    rig.check();
}

#[test]
fn times_of_versions_differ_although_the_clock_stands_still() {
    let mut rig = Rig::new(16);
    let file = rig.create(&Caller::root(), ROOT, "a").unwrap().file.after.file;
    let mut last = rig.attributes(file).unwrap().ctime;
    for bits in [0o600, 0o640, 0o600] {
        let after = rig.set(file, mode(bits)).unwrap().file.after;
        assert!(after.ctime > last);
        last = after.ctime;
    }
    let nothing = rig.set(file, SetAttributes::default()).unwrap().file;
    assert_eq!(nothing.before, nothing.after.version());
    assert!(last >= rig.now());
}
