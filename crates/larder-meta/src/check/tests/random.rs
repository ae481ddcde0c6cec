//! Random damage on random volumes.

use larder_wire::meta::calls::Retention;

use super::*;

/// Volumes, unless the variable `LARDER_META_DAMAGES` says otherwise.
const VOLUMES: u64 = 150;

/// A generator that is the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}

/// A volume of files and directories, some of them open, written, truncated and removed.
fn volume(random: &mut Random) -> MemoryEngine {
    let (mut rig, root) = (Rig::new(96), Caller::root());
    let (mut dirs, mut files) = (vec![FileId::ROOT], Vec::new());
    for step in 0..12 + random.below(30) {
        let dir = dirs[random.below(dirs.len())];
        let text = format!("n{}", random.below(12));
        match random.below(8) {
            0 => dirs.extend(rig.mkdir(&root, dir, &text)),
            1 => drop(rig.remove(dir, &text)),
            2 if !files.is_empty() => {
                let (file, sequence) = (files[random.below(files.len())], rig.next());
                let dentry = dentry(dir, &format!("l{step}"));
                let _ = rig.call(&root, larder_wire::meta::calls::Link { sequence, file, dentry });
            }
            3 if !files.is_empty() => {
                let file = files[random.below(files.len())];
                let size = random.below(5 * B as usize) as u64;
                let _ = rig.set(file, crate::tests::rig::size(size));
            }
            4 if !files.is_empty() => {
                let file = files[random.below(files.len())];
                drop(rig.alloc(file, 0..random.below(6) as u64 * B + 1));
            }
            5 => {
                let Ok(opened) = rig.create(&root, dir, &text) else { continue };
                let file = opened.file.after.file;
                rig.be_alone(file);
                let bytes = random.below(3 * B as usize) as u64;
                let _ = rig.retain(file, Retention::Retained(bytes));
                match random.below(4) {
                    0 => drop(rig.write(file, 0..B)),
                    1 => drop(rig.retain(file, Retention::GivenUp)),
                    _ => {}
                }
                rig.close(opened.open).unwrap();
            }
            _ => {
                let Ok(opened) = rig.create(&root, dir, &text) else { continue };
                let (file, at) = (opened.file.after.file, random.below(4) as u64 * B);
                let _ = rig.write(file, at..at + 1 + random.below(3 * B as usize) as u64);
                files.push(file);
                if random.below(3) > 0 {
                    rig.close(opened.open).unwrap();
                }
            }
        }
    }
    rig.check();
    rig.engine.clone()
}

/// Records that may be damaged: all except those of the volume, its owner and its disks.
fn records(engine: &MemoryEngine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let view = engine.view().unwrap();
    let visitor = &mut |key: &[u8], value: &[u8]| {
        if !b"vwk".contains(&key[0]) {
            all.push((key.to_vec(), value.to_vec()));
        }
        std::ops::ControlFlow::Continue(())
    };
    view.scan(b"", b"\xff", visitor).unwrap();
    all
}

/// Removes a record, stores it under another key, or changes a number in it: the result is still a
/// record.
fn harm(engine: &MemoryEngine, random: &mut Random) -> String {
    let all = records(engine);
    let (key, value) = all[random.below(all.len())].clone();
    let of_its_kind: Vec<_> = all.iter().filter(|(other, _)| other[0] == key[0]).collect();
    let (other, _) = of_its_kind[random.below(of_its_kind.len())].clone();
    let mut writes = Writes::new();
    let what = match random.below(4) {
        0 => {
            writes.insert(key.clone(), None);
            format!("{} is lost", key.escape_ascii())
        }
        1 => {
            writes.insert(other.clone(), Some(value));
            format!("{} is that of {}", other.escape_ascii(), key.escape_ascii())
        }
        // Numbers of keys and values are words; the format of a value stays.
        2 => {
            let mut near = key.clone();
            let last = near.len() - 1;
            near[last.saturating_sub(random.below(3))] ^= 1 << random.below(8);
            writes.insert(key.clone(), None);
            writes.insert(near.clone(), Some(value));
            format!("{} is {}", key.escape_ascii(), near.escape_ascii())
        }
        _ => {
            let mut strange = value.clone();
            let at = 4 + random.below((strange.len() - 4).max(1));
            if let Some(byte) = strange.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
            writes.insert(key.clone(), Some(strange));
            format!("{} has another byte {at}", key.escape_ascii())
        }
    };
    let owner = read(engine, |txn| txn.get::<OwnerRecord>(&key::owner()).unwrap());
    let value = owner.map(|owner| owner.to_bytes());
    engine.commit(&writes, &crate::engine::Owner { key: key::owner(), value }).unwrap();
    what
}

/// Inodes that are there, whatever they say.
fn files(engine: &MemoryEngine) -> BTreeSet<u64> {
    let all = records(engine).into_iter().filter(|(key, _)| key[0] == b'i');
    all.map(|(key, _)| number(&key).unwrap()).collect()
}

#[test]
fn whatever_is_damaged_is_mended_at_once_and_no_file_is_lost() {
    let volumes = std::env::var("LARDER_META_DAMAGES").map_or(VOLUMES, |all| all.parse().unwrap());
    let seeds = match std::env::var("LARDER_META_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 1..=volumes,
    };
    let mut mended = 0;
    for seed in seeds {
        // Where a test fails, its output is shown.
        println!("LARDER_META_SEED={seed}");
        let mut random = Random(seed);
        let engine = volume(&mut random);
        for _ in 0..=random.below(4) {
            println!("{}", harm(&engine, &mut random));
        }
        let before = files(&engine);
        let found = match check(&engine) {
            Ok(found) => found,
            // What is no longer a record is not interpreted.
            Err(VolumeError::Unreadable) => continue,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(repair(&engine, LATER).unwrap(), found);
        let left = check(&engine).unwrap();
        assert!(left.iter().all(|fault| fault.remedy.is_none()), "{left:?} after {found:?}");
        let after = files(&engine);
        assert!(before.is_subset(&after), "{before:?} {after:?}");
        all_can_be_reached(&engine, &after);
        mended += usize::from(!found.is_empty());
        if left.is_empty() {
            let rig = Rig::over(engine, std::sync::Arc::default(), true);
            rig.check();
        }
    }
    assert!(mended as u64 > volumes / 2 || volumes < 10, "{mended}");
}

/// Each file but orphans can be found from the root.
fn all_can_be_reached(engine: &MemoryEngine, files: &BTreeSet<u64>) {
    let entries = read(engine, |txn| txn.scan_all::<Entry>(b"e").unwrap());
    let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (key, entry) in entries {
        children.entry(directory(&key).unwrap().0).or_default().push(entry.file.0);
    }
    let orphans = read(engine, |txn| txn.scan_all::<Orphan>(b"o").unwrap());
    let mut reached: BTreeSet<u64> = orphans.iter().map(|(key, _)| number(key).unwrap()).collect();
    let mut rest = vec![FileId::ROOT.0];
    while let Some(file) = rest.pop() {
        if reached.insert(file) {
            rest.extend(children.get(&file).into_iter().flatten());
        }
    }
    assert!(files.is_subset(&reached), "{files:?} {reached:?}");
}
