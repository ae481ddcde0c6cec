//! Changes that no server takes.

use larder_io::{Fault, Image, OpenMode};

use super::killed::open_in;
use super::*;

/// The files that were set aside, with their content.
fn aside(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let files = disk.files().into_iter();
    let content = |path: String| {
        let file = disk.open(&path, OpenMode::Existing).unwrap();
        let mut content = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        (path, content)
    };
    files.map(|(path, _)| path).filter(|path| path.starts_with("set-aside/")).map(content).collect()
}

/// Four chunks, of which the third was never held, with an edit across the end of the first.
fn edited(cache: &Cache) -> (Arc<CachedFile>, Vec<u8>) {
    let file = cache.file(cache.assign(b"edited"));
    file.reset(b"v1", 4 * CHUNK);
    fill(&file, b"v1", 9, 0..2 * CHUNK);
    fill(&file, b"v1", 9, 3 * CHUNK..4 * CHUNK);
    file.write(CHUNK - 3, b"edited").unwrap();
    let mut expected = bytes(9, 0..4 * CHUNK);
    expected[2 * CHUNK as usize..3 * CHUNK as usize].fill(0);
    expected[CHUNK as usize - 3..][..6].copy_from_slice(b"edited");
    (file, expected)
}

#[test]
fn what_is_set_aside_is_a_file_with_all_that_was_held() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    let numbers = format!("{:x}.{:x}", file.number().0, file.local_number());
    let kept = file.set_aside("dir/name", ConflictKind::Written, "changed").unwrap();
    assert_eq!(kept, Some(format!("set-aside/{numbers}_dir_name")));
    assert_eq!(aside(&disk), [(kept.unwrap(), expected)]);
    assert_eq!((file.dirty(), file.version(), cache.unsent()), (vec![], None, vec![]));
    assert_eq!((cache.usage().set_aside, cache.usage().bytes, cache.usage().files), (1, 0, 0));
    let again = file.set_aside("dir/name", ConflictKind::Written, "changed").unwrap();
    assert_eq!(again, None, "nothing is left to be set aside");
    let [found] = &cache.conflicts(0, 9)[..] else { panic!("it is one conflict") };
    let conflict = &found.conflict;
    assert_eq!((conflict.kind, conflict.file), (ConflictKind::Written, Some(file.number())));
    assert_eq!((&conflict.name[..], &conflict.wanted[..]), (&b"dir/name"[..], &b"name"[..]));
    assert_eq!((&conflict.aside, &conflict.reason[..]), (&aside(&disk)[0].0, "changed"));

    file.reset(b"v2", 3);
    fill(&file, b"v2", 1, 0..3);
    assert_eq!(read(&file, 0..3), Some(bytes(1, 0..3)));
    cache.close().unwrap();
    let cache = open_in(&disk, 2);
    assert_eq!((cache.usage().set_aside, cache.usage().dirty_dropped), (1, 0));
}

#[test]
fn what_was_held_is_set_aside_with_it_after_a_restart_too() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    cache.close().unwrap();
    let cache = open_in(&disk, 2);
    cache
        .file(file.number())
        .set_aside("name", ConflictKind::Written, "changed")
        .unwrap()
        .expect("it was");
    assert_eq!(aside(&disk)[0].1, expected);
}

#[test]
fn a_cache_in_memory_keeps_nothing_for_later() {
    let cache = Cache::in_memory(Arc::new(SimClock::new()), crate::Limits::in_memory()).unwrap();
    let (file, _) = edited(&cache);
    assert_eq!(file.set_aside("name", ConflictKind::Written, "changed").unwrap(), None);
    assert_eq!((file.dirty(), cache.usage().set_aside), (vec![], 0));
}

/// Wherever a crash of the process or the disk interrupts it, the changes are unsent or set aside.
#[test]
fn changes_are_unsent_or_set_aside_whatever_is_cut_short() {
    let disk = SimDisk::recording();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    cache.checkpoint().unwrap();
    let before = disk.logged();
    file.set_aside("name", ConflictKind::Written, "changed").unwrap().expect("it was");
    cache.close().unwrap();
    let (mut unsent, mut kept) = (0, 0);
    for point in disk.crash_points().filter(|point| point.logged() >= before) {
        let at = point.logged();
        let image = point.image(Image::Written);
        let cache = open_in(&image, 1);
        let file = cache.file(file.number());
        if let [(_, found)] = &aside(&image)[..] {
            assert_eq!((found, file.dirty()), (&expected, vec![]), "{at}");
            let told = cache.conflicts(0, 9);
            assert_eq!(told.len(), 1, "{at}");
            assert_eq!(told[0].conflict.aside, aside(&image)[0].0, "{at}");
            kept += 1;
        } else {
            let mut edit = [0; 6];
            file.read_dirty(CHUNK - 3, &mut edit).unwrap();
            assert_eq!((&edit, aside(&image)), (b"edited", vec![]), "{at}");
            assert_eq!(cache.count_conflicts(), (0, 0), "{at}");
            unsent += 1;
        }
        assert_eq!(cache.usage().dirty_dropped, 0, "{at}");
    }
    assert!(unsent > 0 && kept > 0, "{unsent} {kept}");
    let rebooted = disk.crash(Image::Synced);
    assert_eq!(aside(&rebooted)[0].1, expected, "it outlives a boot");
}

/// Whichever operation of the disk fails, the changes are set aside or stay unsent.
#[test]
fn what_cannot_be_set_aside_stays_unsent() {
    let mut refused = 0;
    for nth in 1.. {
        let disk = SimDisk::new();
        let cache = open_in(&disk, 1);
        let (file, expected) = edited(&cache);
        let fails_at = disk.operations() + nth;
        disk.inject(Fault::EioAt(fails_at));
        let tried = file.set_aside("name", ConflictKind::Written, "changed");
        let is_past = disk.operations() < fails_at;
        disk.heal();
        if tried.is_err() {
            assert_eq!((cache.unsent(), aside(&disk)), (vec![file.number()], vec![]), "{nth}");
            file.set_aside("name", ConflictKind::Written, "changed").unwrap().expect("it was");
            refused += 1;
        }
        assert_eq!(aside(&disk)[0].1, expected, "{nth}");
        if is_past {
            break;
        }
    }
    assert!(refused > 3, "{refused}");
}
