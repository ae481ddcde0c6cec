//! Changes that no server takes.

use larder_io::{Fault, Image, OpenMode};

use super::killed::open_in;
use super::*;
use crate::conflicts::Conflict;
use crate::{Step, StepEvent};

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

/// What is wanted of a file beside the other one.
fn beside_of(cache: &Cache) -> Vec<(Step, Vec<u8>)> {
    cache.besides().into_iter().map(|one| (one.step, one.wanted)).collect()
}

/// What the server is asked for, step by step, and all that is on record after each.
fn place(cache: &Cache) {
    let dir = FileNo(7);
    let [mut beside] = <[_; 1]>::try_from(cache.besides()).unwrap();
    let name = b"name.conflict-here-9".to_vec();
    for event in [
        StepEvent::Ask { name, mark_sec: 5 },
        StepEvent::Made { handle: b"handle".to_vec() },
        StepEvent::Written,
    ] {
        beside = cache.step_beside(beside, event, dir, "").unwrap();
    }
    assert_eq!(cache.step_beside(beside, StepEvent::Removed, dir, ""), None);
}

/// Wherever a crash of the process interrupts it, the changes are unsent; or aside, with what is to
/// become of them; or at the server and nowhere else. The conflict on record says where.
#[test]
fn what_is_set_aside_for_the_server_is_on_record_whatever_is_cut_short() {
    let disk = SimDisk::recording();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    cache.checkpoint().unwrap();
    let before = disk.logged();
    let wanted = Some(b"wanted".to_vec());
    file.set_aside_for("dir/name", ConflictKind::Written, "", wanted).unwrap().expect("it was");
    place(&cache);
    cache.close().unwrap();
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for point in disk.crash_points().filter(|point| point.logged() >= before) {
        let at = point.logged();
        let image = point.image(Image::Written);
        let cache = open_in(&image, 1);
        let is_unsent = !cache.file(file.number()).dirty().is_empty();
        let (kept, told, beside) = (aside(&image), cache.conflicts(0, 9), beside_of(&cache));
        assert!(beside.iter().all(|(_, wanted)| wanted == b"wanted"), "{at}");
        let step = beside.first().map(|(step, _)| step.clone());
        let what = match (is_unsent, step) {
            (true, step) => {
                assert!(kept.is_empty() && told.is_empty() && step.is_none(), "{at}: {step:?}");
                "unsent"
            }
            (false, Some(Step::Placed { .. })) => "placed",
            (false, Some(_)) => {
                assert!(kept[0].1 == expected && told.len() == 1, "{at}");
                assert_eq!(told[0].conflict.aside, kept[0].0, "{at}");
                assert_eq!((&told[0].conflict.name[..], beside.len()), (&b"dir/name"[..], 1));
                "aside"
            }
            (false, None) => {
                assert!(kept.is_empty(), "{at}: nothing is left to be done");
                "done"
            }
        };
        if what == "placed" || what == "done" {
            let conflict = &told[0].conflict;
            assert_eq!((told.len(), conflict.dir, &conflict.aside[..]), (1, Some(FileNo(7)), ""));
            assert_eq!(&conflict.name[..], b"name.conflict-here-9");
        }
        *seen.entry(what).or_default() += 1;
    }
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), ["aside", "done", "placed", "unsent"]);
}

/// After a crash of the machine what was to become of a file that is set aside is still known, and
/// how far the server was asked.
#[test]
fn how_far_a_file_is_on_its_way_outlives_the_machine() {
    let disk = SimDisk::recording();
    let cache = open_in(&disk, 1);
    let (file, _) = edited(&cache);
    let kept = file.begin_keeping().unwrap();
    kept.wait().unwrap();
    let before = disk.logged();
    let wanted = Some(b"wanted".to_vec());
    file.set_aside_for("name", ConflictKind::Written, "", wanted).unwrap().expect("it was");
    let mut steps = Vec::new();
    let dir = FileNo(7);
    let [beside] = <[_; 1]>::try_from(cache.besides()).unwrap();
    let ask = StepEvent::Ask { name: b"kept".to_vec(), mark_sec: 5 };
    let beside = cache.step_beside(beside, ask, dir, "").unwrap();
    steps.push((disk.logged(), beside.step.clone()));
    let made = StepEvent::Made { handle: b"handle".to_vec() };
    let beside = cache.step_beside(beside, made, dir, "").unwrap();
    steps.push((disk.logged(), beside.step.clone()));
    let beside = cache.step_beside(beside, StepEvent::Refused, dir, "no room").unwrap();
    steps.push((disk.logged(), beside.step.clone()));
    assert_eq!(cache.conflicts(0, 9)[0].conflict.reason, "no room");
    assert_eq!(cache.step_beside(beside, StepEvent::Removed, dir, ""), None);
    assert_eq!((cache.besides(), aside(&disk).len()), (vec![], 1));
    for point in disk.crash_points().filter(|point| point.logged() >= before) {
        let image = point.image(Image::Synced);
        let cache = open_in(&image, 2);
        let is_unsent = !cache.file(file.number()).dirty().is_empty();
        assert_eq!(aside(&image).len(), usize::from(!is_unsent), "{}", point.logged());
        let known = steps.iter().rfind(|(logged, _)| *logged <= point.logged());
        let Some((_, known)) = known else { continue };
        let found = beside_of(&cache).into_iter().next().map(|(step, _)| step);
        let later = steps.iter().map(|(_, step)| step).skip_while(|step| *step != known);
        let is_later = found.as_ref().is_none_or(|found| later.clone().any(|step| step == found));
        assert!(is_later, "{}: {found:?} after {known:?}", point.logged());
    }
}

/// A conflict that another machine has kept is listed once, until a user clears it. What this
/// machine brings to the server is its own, also before the server has all of it.
#[test]
fn what_other_machines_keep_is_listed_once() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (file, _) = edited(&cache);
    let dir = FileNo(7);
    let wanted = Some(b"wanted".to_vec());
    file.set_aside_for("name", ConflictKind::Written, "", wanted).unwrap().expect("it was");
    let [beside] = <[_; 1]>::try_from(cache.besides()).unwrap();
    let own = b"name.conflict-here-9".to_vec();
    let ask = StepEvent::Ask { name: own.clone(), mark_sec: 5 };
    let beside = cache.step_beside(beside, ask, dir, "").unwrap();
    let listed = |cache: &Cache| -> Vec<(ConflictKind, Vec<u8>)> {
        cache.conflicts(0, 9).into_iter().map(|it| (it.conflict.kind, it.conflict.name)).collect()
    };
    let ours = |name: &[u8]| (ConflictKind::Written, name.to_vec());
    cache.saw_conflict(dir, &own, b"name");
    assert_eq!(listed(&cache), [ours(b"name")], "the server was asked for it");
    let made = StepEvent::Made { handle: b"handle".to_vec() };
    let beside = cache.step_beside(beside, made, dir, "").unwrap();
    let beside = cache.step_beside(beside, StepEvent::Written, dir, "").unwrap();
    cache.saw_conflict(dir, &own, b"name");
    assert_eq!(cache.step_beside(beside, StepEvent::Removed, dir, ""), None);
    cache.saw_conflict(dir, &own, b"name");
    assert_eq!(listed(&cache), [ours(&own)], "it is there");
    let other = b"name.conflict-there-9".to_vec();
    let theirs = (ConflictKind::Elsewhere, other.clone());
    for _ in 0..2 {
        cache.saw_conflict(dir, &other, b"name");
        assert_eq!(listed(&cache), [ours(&own), theirs.clone()]);
    }
    // The same name in another directory is another file.
    cache.saw_conflict(FileNo(8), &other, b"name");
    assert_eq!(listed(&cache), [ours(&own), theirs.clone(), theirs.clone()]);
    assert_eq!(cache.clear_conflicts(Some(2)), 1);
    assert_eq!(listed(&cache), [ours(&own), theirs.clone()]);
    // The process dies, and the next one sees the same names again.
    drop((file, cache));
    let cache = open_in(&disk, 1);
    assert_eq!(listed(&cache), [ours(&own), theirs.clone()]);
    cache.saw_conflict(dir, &own, b"name");
    cache.saw_conflict(FileNo(8), &other, b"name");
    assert_eq!(listed(&cache), [ours(&own), theirs.clone()]);
    // What a user has cleared is new when it is seen again.
    cache.saw_conflict(dir, &other, b"name");
    assert_eq!(listed(&cache), [ours(&own), theirs.clone(), theirs]);
}

/// An earlier version set files aside without a record: they are listed when their file is used.
#[test]
fn what_was_set_aside_without_a_record_is_listed() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    let no = file.number();
    file.set_aside("name", ConflictKind::Written, "changed").unwrap().expect("it was");
    assert_eq!(cache.clear_conflicts(None), 1);
    let [(path, kept)] = &aside(&disk)[..] else { panic!("one file is aside") };
    assert_eq!(kept, &expected);
    let serial: u64 = {
        let name = path.rsplit('/').next().unwrap();
        u64::from_str_radix(name.split(['.', '_']).nth(1).unwrap(), 16).unwrap()
    };
    assert!(!cache.store.was_set_aside(no, serial + 1), "that one was not");
    assert_eq!(cache.count_conflicts().0, 0);
    for _ in 0..2 {
        assert!(cache.store.was_set_aside(no, serial));
        let told = cache.conflicts(0, 9);
        assert_eq!(told.len(), 1);
        let conflict = &told[0].conflict;
        assert_eq!((&conflict.aside, conflict.file), (path, Some(no)));
        assert_eq!(conflict.kind, ConflictKind::Refused);
    }
}

/// What is to be brought to the server can be read until it is there; a user may remove it first.
#[test]
fn what_is_on_its_way_can_be_read() {
    let disk = SimDisk::new();
    let cache = open_in(&disk, 1);
    let (file, expected) = edited(&cache);
    let wanted = Some(b"wanted".to_vec());
    file.set_aside_for("name", ConflictKind::Written, "", wanted).unwrap().expect("it was");
    let [beside] = <[_; 1]>::try_from(cache.besides()).unwrap();
    let local = cache.open_aside(&beside).unwrap();
    let mut bytes = vec![0; expected.len()];
    local.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes, local.len().unwrap()), (expected.clone(), expected.len() as u64));
    disk.remove(&beside.aside).unwrap();
    let gone = cache.open_aside(&beside).map(drop).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
}

/// Who lists what is on its way while a file is just being set aside leaves that alone: only what a
/// process that died has intended is no more.
#[test]
fn what_is_just_being_set_aside_is_on_its_way_afterwards() {
    for dies in [false, true] {
        let disk = SimDisk::new();
        let mut cache = open_in(&disk, 1);
        let (file, _) = edited(&cache);
        let local = (file.number(), file.local_number());
        let to = "set-aside/there".to_owned();
        let conflict = Conflict::aside(local.0, to, "name", ConflictKind::Written, "");
        cache.store.intend_beside(local, &conflict, b"wanted".to_vec());
        assert_eq!(beside_of(&cache), [], "dies: {dies}");
        drop(file);
        if dies {
            drop(cache);
            cache = open_in(&disk, 1);
        }
        cache.store.put_aside(local, conflict);
        assert_eq!(beside_of(&cache).len(), usize::from(!dies), "dies: {dies}");
    }
}
