//! The embedded engine on a disk that loses what was not synced, at every point where it may.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use larder_io::{Disk, Image, SimDisk};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::engine::{Engine, EngineError, Owner, Writes};
use redb::{Database, ReadableDatabase, TableDefinition};

const NOBODY: &[u8] = b"owner";

fn sizes() -> Sizes {
    Sizes { log_bytes: 64 << 10, layers_bytes: 8 << 10, cache_bytes: 1 << 20 }
}

fn open(disk: &SimDisk) -> Result<Embedded, EngineError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Embedded::open(&disk, sizes())
}

pub(crate) fn nobody() -> Owner {
    Owner { key: NOBODY.to_vec(), value: None }
}

/// The batch of a number: two keys that change together, and one of its own.
pub(crate) fn batch(number: u64) -> Writes {
    let value = || Some(number.to_be_bytes().to_vec());
    let filler = Some(vec![number as u8; 700]);
    let mut writes = Writes::from([(b"a".to_vec(), value()), (b"z".to_vec(), value())]);
    writes.insert([b"n", &number.to_be_bytes()[..]].concat(), filler);
    if number > 3 {
        writes.insert([b"n", &(number - 3).to_be_bytes()[..]].concat(), None);
    }
    writes
}

/// The last batch that the store has, all of it.
pub(crate) fn last(engine: &dyn Engine) -> u64 {
    let view = engine.view().unwrap();
    let number = |key: &[u8]| {
        view.get(key).unwrap().map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
    };
    let last = number(b"a");
    assert_eq!(last, number(b"z"));
    let mut found = Vec::new();
    view.scan(b"n", b"o", &mut |key, value| {
        let number = u64::from_be_bytes(key[1..].try_into().unwrap());
        assert_eq!(value, [number as u8; 700]);
        found.push(number);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let wanted: Vec<u64> = (1..=last).filter(|number| number + 3 > last).collect();
    assert_eq!(found, wanted);
    last
}

/// Whatever part of what was not synced the disk has kept: each batch is there whole or not at all,
/// all that were answered are, and the store continues from there.
#[test]
fn a_batch_is_there_whole_or_not_at_all() {
    const BATCHES: u64 = 40;
    let disk = SimDisk::recording();
    let engine = open(&disk).unwrap();
    // How far the disk's log was when a batch was answered.
    let mut answered = vec![disk.logged()];
    for number in 1..=BATCHES {
        engine.commit(&batch(number), &nobody()).unwrap();
        answered.push(disk.logged());
    }
    let begun = answered[0];
    drop(engine);
    let mut tried = 0;
    for point in disk.crash_points().filter(|point| point.logged() >= begun) {
        let promised = answered.iter().filter(|logged| **logged <= point.logged()).count() - 1;
        for image in [Image::Synced, Image::Written, Image::Torn(point.logged() as u64)] {
            let left = point.image(image);
            let engine = open(&left).unwrap();
            let last = last(&engine);
            assert!(
                (promised as u64..=promised as u64 + 1).contains(&last),
                "{promised} were answered, {last} are there: {image:?} at {}",
                point.logged()
            );
            engine.commit(&batch(last + 1), &nobody()).unwrap();
            tried += 1;
        }
    }
    assert!(tried > 200, "{tried} images");
}

/// Late commits between others, and syncs beside them: a crash of the machine keeps all batches up
/// to one of them, and that is none before the last that is durable; the store continues from
/// there, and nothing of what was lost comes back.
#[test]
fn late_commits_are_lost_from_the_end_and_never_before_a_durable_one() {
    const BATCHES: u64 = 60;
    let disk = SimDisk::recording();
    let engine = open(&disk).unwrap();
    // How far the disk's log was when all up to a batch were durable, and when it was answered.
    let (mut durable, mut answered) = (vec![(disk.logged(), 0)], Vec::new());
    for number in 1..=BATCHES {
        match number % 7 {
            0 => engine.commit(&batch(number), &nobody()).unwrap(),
            _ => engine.commit_late(&batch(number), &nobody()).unwrap(),
        }
        answered.push(disk.logged());
        if number % 11 == 0 {
            engine.sync().unwrap();
        }
        if number % 7 == 0 || number % 11 == 0 {
            durable.push((disk.logged(), number));
        }
    }
    let begun = durable[0].0;
    drop(engine);
    let (mut tried, mut lost) = (0, 0);
    for point in disk.crash_points().filter(|point| point.logged() >= begun) {
        let promised = durable.iter().rfind(|(logged, _)| *logged <= point.logged()).unwrap().1;
        let made = answered.iter().filter(|logged| **logged <= point.logged()).count() as u64;
        for image in [
            Image::Synced,
            Image::Written,
            Image::Torn(point.logged() as u64),
            Image::Torn(!(point.logged() as u64)),
        ] {
            let left = point.image(image);
            let engine = open(&left).unwrap();
            let there = last(&engine);
            assert!(
                (promised..=made + 1).contains(&there),
                "{promised} are durable, {made} were answered, {there} are there: {image:?} at {}",
                point.logged()
            );
            assert!(image != Image::Written || there >= made, "the process alone has died");
            lost += made.saturating_sub(there);
            engine.commit_late(&batch(there + 1), &nobody()).unwrap();
            drop(engine);
            assert_eq!(last(&open(&left).unwrap()), there + 1);
            tried += 1;
        }
    }
    assert!(tried > 300 && lost > 100, "{tried} images, {lost} batches were lost");
}

/// A late commit costs no sync of the disk; a sync makes all of them durable.
#[test]
fn a_late_commit_does_not_sync() {
    let disk = SimDisk::new();
    let engine = open(&disk).unwrap();
    for number in 1..=5 {
        let before = disk.operations();
        engine.commit_late(&batch(number), &nobody()).unwrap();
        assert_eq!(disk.operations() - before, 1, "a write");
    }
    assert_eq!(last(&engine), 5);
    assert_eq!(last(&open(&disk.crash(Image::Synced)).unwrap()), 0);
    assert_eq!(last(&open(&disk.crash(Image::Written)).unwrap()), 5);
    engine.sync().unwrap();
    assert_eq!(last(&open(&disk.crash(Image::Synced)).unwrap()), 5);
}

#[test]
fn a_store_that_failed_promises_nothing_more() {
    let disk = SimDisk::new();
    let engine = open(&disk).unwrap();
    engine.commit(&batch(1), &nobody()).unwrap();
    disk.inject(larder_io::Fault::EioFrom(disk.operations() + 1));
    assert!(matches!(engine.commit(&batch(2), &nobody()), Err(EngineError::Failed(_))));
    disk.heal();
    assert!(matches!(engine.commit(&batch(2), &nobody()), Err(EngineError::Failed(_))));
    assert_eq!(last(&engine), 1);
}

#[test]
fn an_owner_that_is_another_now_commits_nothing() {
    let engine = open(&SimDisk::new()).unwrap();
    let taken = Writes::from([(NOBODY.to_vec(), Some(b"x".to_vec()))]);
    engine.commit(&taken, &nobody()).unwrap();
    assert!(matches!(engine.commit(&batch(1), &nobody()), Err(EngineError::NotOwner)));
    let owner = Owner { key: NOBODY.to_vec(), value: Some(b"x".to_vec()) };
    engine.commit(&batch(1), &owner).unwrap();
    assert_eq!(last(&engine), 1);
}

#[test]
fn a_store_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(larder_io::RealDisk::open(dir.path()).unwrap());
    let first = Embedded::open(&disk, sizes()).unwrap();
    let again: Arc<dyn Disk> = Arc::new(larder_io::RealDisk::open(dir.path()).unwrap());
    let second = Embedded::open(&again, sizes());
    assert!(matches!(second, Err(EngineError::Busy)), "{second:?}");
    drop(first);
    Embedded::open(&again, sizes()).unwrap();
}

/// Another format, and a file that is not a store at all: one line that says so, and the file is
/// not changed.
#[test]
fn what_is_no_store_of_this_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tree.redb"), b"my thesis").unwrap();
    let disk: Arc<dyn Disk> = Arc::new(larder_io::RealDisk::open(dir.path()).unwrap());
    let refused = Embedded::open(&disk, sizes()).unwrap_err().to_string();
    assert!(refused.starts_with("the metadata store failed: "), "{refused}");
    assert_eq!(refused.lines().count(), 1);
    assert_eq!(std::fs::read(dir.path().join("tree.redb")).unwrap(), b"my thesis");
}

/// A sound store whose own record names another format: one line that says which, and no record of
/// it is changed. (redb writes to its own file when it opens it.)
#[test]
fn a_store_of_another_version_is_refused_and_left_as_it_is() {
    const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("larder-meta");
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(larder_io::RealDisk::open(dir.path()).unwrap());
    let engine = Embedded::open(&disk, sizes()).unwrap();
    engine.commit(&batch(1), &nobody()).unwrap();
    drop(engine);
    let database = Database::create(dir.path().join("tree.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut table = transaction.open_table(TABLE).unwrap();
    let other = &b"larder metadata store 7"[..];
    assert!(table.insert(&b"\0format"[..], other).unwrap().is_some(), "it had one");
    drop(table);
    transaction.commit().unwrap();
    drop(database);

    let tree = dir.path().join("tree.redb");
    let files = || -> BTreeMap<OsString, Vec<u8>> {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name());
        let others = names.filter(|name| name != "tree.redb");
        others.map(|name| (name.clone(), std::fs::read(dir.path().join(name)).unwrap())).collect()
    };
    let records = || -> Vec<(Vec<u8>, Vec<u8>)> {
        let database = Database::create(&tree).unwrap();
        let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
        let all = table.range::<&[u8]>(..).unwrap().map(Result::unwrap);
        all.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).collect()
    };
    let (before, recorded) = (files(), records());
    assert!(!before.is_empty(), "there is a log");
    for _ in 0..2 {
        let refused = Embedded::open(&disk, sizes()).unwrap_err().to_string();
        let said = "it is \"larder metadata store 7\", this version reads \"larder metadata";
        assert!(refused.contains(said) && refused.lines().count() == 1, "{refused}");
        let after = files();
        assert!(after.keys().eq(before.keys()));
        for (name, bytes) in &before {
            assert!(after[name] == *bytes, "{} was changed", name.display());
        }
        assert!(records() == recorded);
    }
}

/// A long log, and what it contains after checkpoints.
#[test]
fn what_was_committed_is_there_after_many_checkpoints() {
    let disk = SimDisk::new();
    let engine = open(&disk).unwrap();
    for number in 1..=500 {
        engine.commit(&batch(number), &nobody()).unwrap();
        if number % 97 == 0 {
            assert_eq!(last(&engine), number);
        }
    }
    // A batch that is larger than the log ever was.
    let mut large = batch(501);
    large.insert(b"large".to_vec(), Some(vec![5; 200 << 10]));
    engine.commit(&large, &nobody()).unwrap();
    drop(engine);
    let engine = open(&disk).unwrap();
    assert_eq!(last(&engine), 501);
    let large = engine.view().unwrap().get(b"large").unwrap();
    assert_eq!(large.map(|value| value.len()), Some(200 << 10));
}
