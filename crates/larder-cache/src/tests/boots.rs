//! What an orderly stop keeps, in this boot and the next.

use larder_io::Image;

use super::killed::open_in;
use super::*;

#[test]
fn a_stop_with_unsent_changes_keeps_them_and_a_clean_one_keeps_no_log() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, b"unsent").unwrap();
    cache.put_session(b"key", b"value");
    cache.close().unwrap();
    assert!(disk.files().iter().all(|(path, _)| path != "clean"));
    let cache = open_in(&disk, 1);
    let no = file.number();
    assert_eq!(cache.unsent(), [no]);
    assert_eq!(cache.session_records(), [(b"key".to_vec(), b"value".to_vec())]);
    let file = cache.file(no);
    let mut sent = [0; 6];
    file.read_dirty(0, &mut sent).unwrap();
    assert_eq!((&sent, file.size()), (b"unsent", 6));
    file.mark_clean(0..6);
    file.set_version(b"v2", 6);
    assert_eq!(cache.unsent(), []);
    cache.drop_session(b"key");
    for _ in 0..16 {
        cache.checkpoint().unwrap();
    }
    cache.close().unwrap();
    assert!(disk.files().iter().all(|(path, _)| !path.starts_with("log.")));
    assert!(disk.files().iter().any(|(path, _)| path == "clean"));
    assert_eq!(read(&open_in(&disk, 1).file(no), 0..6), Some(b"unsent".to_vec()));
}

/// What a file has to send, if it has anything to send.
fn unsent_of(cache: &Cache, file: &CachedFile) -> Option<Vec<(u64, Vec<u8>)>> {
    let file = cache.file(file.number());
    let found = |range: std::ops::Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_dirty(range.start, &mut bytes).unwrap();
        (range.start, bytes)
    };
    let is_unsent = cache.unsent().contains(&file.number());
    is_unsent.then(|| file.dirty().into_iter().map(found).collect())
}

/// After an orderly stop with unsent changes these are there in the next boot, and the one after.
/// Wherever a crash interrupts it, those of each file are there as they were, or not at all.
#[test]
fn a_stop_with_unsent_changes_keeps_them_over_a_reboot() {
    let disk = SimDisk::recording();
    let cache = open_in(&disk, 1);
    let (new, old) = (cache.file(cache.assign(b"new")), filled(&cache, b"v1", 9, 4 * CHUNK));
    cache.checkpoint().unwrap();
    new.reset(b"v1", 0);
    new.write(0, b"unsent").unwrap();
    old.write(CHUNK + 5, b"edited").unwrap();
    cache.put_session(b"key", b"value");
    let before = disk.logged();
    cache.close().unwrap();
    let expected = [vec![(0, b"unsent".to_vec())], vec![(CHUNK + 5, b"edited".to_vec())]];
    let found = |cache: &Cache| [unsent_of(cache, &new), unsent_of(cache, &old)];

    let mut kept = 0;
    for point in disk.crash_points().filter(|point| point.logged() >= before) {
        let at = point.logged();
        for kind in [Image::Synced, Image::Written, Image::Torn(at as u64)] {
            let cache = open_in(&point.image(kind), 2);
            let found = found(&cache);
            let lost = found.iter().filter(|file| file.is_none()).count();
            for (file, expected) in found.iter().zip(&expected) {
                assert!(file.as_ref().is_none_or(|file| file == expected), "{at} {kind:?}");
            }
            // They belong to the changes.
            assert_eq!(cache.session_records().len(), usize::from(lost < 2));
            assert_eq!(cache.usage().dirty_dropped, lost as u64, "{at} {kind:?}");
            kept += 2 - lost;
        }
    }
    assert!(kept > 0, "some come after the last sync");

    // A stop in which nothing was sent keeps them as well, and so does a crash.
    let disk = disk.crash(Image::Synced);
    let cache = open_in(&disk, 2);
    assert_eq!(found(&cache), expected.clone().map(Some));
    cache.close().unwrap();
    let disk = disk.crash(Image::Synced);
    assert_eq!(found(&open_in(&disk, 3)), expected.clone().map(Some));
    let disk = disk.crash(Image::Synced);
    let cache = open_in(&disk, 4);
    assert_eq!(found(&cache), expected.clone().map(Some));
    let old_again = cache.file(old.number());
    let clean = read(&old_again, 0..CHUNK);
    assert!(clean.is_none_or(|clean| clean == bytes(9, 0..CHUNK)));

    // Later changes are there only if that stop was orderly, too.
    old_again.write(0, b"more").unwrap();
    cache.checkpoint().unwrap();
    let after = open_in(&disk.crash(Image::Synced), 5);
    assert_eq!(found(&after), [Some(expected[0].clone()), None]);
    assert_eq!(after.usage().dirty_dropped, 1);
}

#[test]
fn after_a_reboot_unsent_changes_are_dropped_and_counted() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (new, old) = (cache.file(cache.assign(b"new")), filled(&cache, b"v1", 9, CHUNK));
    cache.checkpoint().unwrap();
    new.reset(b"v1", 0);
    new.write(0, b"unsent").unwrap();
    old.write(0, b"unsent").unwrap();
    let image = disk.crash(Image::Written);
    assert_eq!(open_in(&image, 1).usage().dirty_dropped, 0);
    let after = open_in(&image, 2);
    assert_eq!(after.usage().dirty_dropped, 2);
    assert_eq!(
        (after.file(new.number()).version(), after.file(old.number()).version()),
        (None, None)
    );
}

/// What the kernel writes itself is not durable just because the earlier content of the file was.
#[test]
fn a_bypass_after_a_stop_with_unsent_changes_ends_their_mark() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let file = cache.file(cache.assign(b"new"));
    file.reset(b"v1", 0);
    file.write(0, b"unsent").unwrap();
    cache.close().unwrap();
    let cache = open_in(&disk, 2);
    assert_eq!(cache.unsent(), [file.number()]);
    let _kernel = begin_bypass(&cache.file(file.number())).expect("it is whole");
    cache.checkpoint().unwrap();
    let after = open_in(&disk.crash(Image::Synced), 3);
    assert_eq!((after.unsent(), after.usage().dirty_dropped), (vec![], 1));
}
