//! Conflicts on record.

use larder_io::Image;

use super::killed::{booted, open_in};
use super::*;
use crate::{Conflict, FoundConflict};

fn beside(name: &str) -> Conflict {
    Conflict {
        kind: ConflictKind::Made,
        dir: Some(FileNo::ROOT),
        file: None,
        name: format!("{name}.conflict-here-0").into_bytes(),
        wanted: name.as_bytes().to_vec(),
        aside: String::new(),
        reason: String::new(),
    }
}

fn numbers(cache: &Cache) -> Vec<u64> {
    cache.conflicts(0, usize::MAX).iter().map(|found| found.number).collect()
}

/// They outlive the process, the machine and a clean stop, with their numbers and times, until they
/// are cleared. A number is not given again.
#[test]
fn conflicts_stay_on_record_until_they_are_cleared() {
    let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
    let open_at = |disk: &SimDisk, boot| {
        Cache::open(Arc::new(disk.clone()), clock.clone(), booted(boot)).unwrap()
    };
    let cache = open_at(&disk, 1);
    clock.set_wall_by(77);
    cache.put_names([], vec![beside("a"), beside("b")]);
    clock.advance(std::time::Duration::from_secs(1));
    cache.put_names([], vec![beside("c")]);
    let found =
        |number, found_sec, name| FoundConflict { number, found_sec, conflict: beside(name) };
    let all = [found(1, 77, "a"), found(2, 77, "b"), found(3, 78, "c")];
    assert_eq!(cache.conflicts(0, 9), all);
    assert_eq!(cache.conflicts(1, 1), all[1..2]);
    // The process dies.
    drop(cache);
    let cache = open_at(&disk, 1);
    assert_eq!(cache.conflicts(0, 9), all);
    cache.keep_names(cache.names_mark()).unwrap();
    // The machine does.
    drop(cache);
    let disk = disk.crash(Image::Synced);
    let cache = open_at(&disk, 2);
    assert_eq!(cache.conflicts(0, 9), all);
    assert_eq!((cache.clear_conflicts(Some(2)), cache.clear_conflicts(Some(2))), (1, 0));
    cache.close().unwrap();
    let cache = open_at(&disk, 3);
    assert_eq!((numbers(&cache), cache.count_conflicts()), (vec![1, 3], (2, 0)));
    assert_eq!(cache.clear_conflicts(None), 2);
    cache.close().unwrap();
    let cache = open_at(&disk, 4);
    assert_eq!(cache.count_conflicts(), (0, 0));
    cache.put_names([], vec![beside("d")]);
    assert_eq!(numbers(&cache), [4]);
}

/// Wherever the process or the machine dies, the conflict is on record exactly if the change of
/// names is by which it was found.
#[test]
fn a_conflict_is_on_record_with_the_change_that_found_it() {
    let disk = SimDisk::recording();
    let cache = open_in(&disk, 1);
    let before = disk.logged();
    for number in 1..6u64 {
        let mark = cache.put_names([(number, Some(vec![9; 100]))], vec![beside("a")]);
        if number % 2 == 0 {
            cache.keep_names(mark).unwrap();
        }
    }
    cache.checkpoint().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for point in disk.crash_points().filter(|point| point.logged() >= before) {
        for (image, boot) in [(Image::Written, 1), (Image::Synced, 2), (Image::Torn(7), 2)] {
            let cache = open_in(&point.image(image), boot);
            let names: Vec<u64> = cache.names().into_iter().map(|(number, _)| number).collect();
            assert_eq!(numbers(&cache), names, "{} {image:?}", point.logged());
            seen.insert(names.len());
        }
    }
    assert!(seen.len() == 6, "{seen:?}");
}

/// Without the head, numbers go on behind the last record, and what is no record is left out.
#[test]
fn numbers_go_on_where_the_head_is_lost() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    cache.put_names([], vec![beside("a"), beside("b"), beside("c")]);
    cache.clear_conflicts(Some(1));
    for (number, damaged) in [(0, None), (2, Some(b"no record".to_vec()))] {
        let key = crate::conflicts::key_of(number);
        cache.store.index.put(key, damaged);
    }
    cache.close().unwrap();
    let cache = open(&disk);
    assert_eq!((numbers(&cache), cache.count_conflicts()), (vec![3], (2, 0)));
    cache.put_names([], vec![beside("d")]);
    assert_eq!(numbers(&cache), [3, 4]);
    // What nobody can read can be cleared.
    assert_eq!(cache.clear_conflicts(Some(2)), 1);
    assert_eq!(cache.clear_conflicts(None), 2);
    assert_eq!(cache.count_conflicts(), (0, 0));
}

/// Each file that is set aside is a conflict of its own, beside those of names.
#[test]
fn what_is_set_aside_is_numbered_with_the_others() {
    let disk = SimDisk::new();
    let cache = open(&disk);
    cache.put_names([], vec![beside("a")]);
    for name in ["b", "dir/c"] {
        let file = cache.file(cache.assign(name.as_bytes()));
        file.reset(b"v1", 10);
        file.write(2, b"ours").unwrap();
        file.set_aside(name, ConflictKind::Refused, "no space").unwrap().expect("it was");
    }
    cache.put_names([], vec![beside("d")]);
    let wanted = |found: &FoundConflict| String::from_utf8(found.conflict.wanted.clone()).unwrap();
    let all = cache.conflicts(0, 9);
    assert_eq!(all.iter().map(wanted).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    let aside = all.iter().map(|found| found.conflict.aside.clone());
    let aside: Vec<_> = aside.filter(|aside| !aside.is_empty()).collect();
    assert_eq!(aside, cache.set_aside());
    assert_eq!(cache.clear_conflicts(None), 4);
    assert_eq!(cache.set_aside(), aside, "no file is touched");
}
