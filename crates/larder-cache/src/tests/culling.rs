//! Which files culling takes.

use std::time::Duration;

use larder_io::{BootId, Clock};
use proptest::prelude::*;

use super::*;

/// One file of a cache that is culled.
#[derive(Clone, Debug)]
struct Member {
    /// When it was last used, in hours from the start.
    hour: u64,
    chunks: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Clean,
    Pinned,
    Dirty,
    Open,
}

fn member() -> impl Strategy<Value = Member> {
    let what = prop_oneof![
        6 => Just(What::Clean), 1 => Just(What::Pinned), 1 => Just(What::Dirty), 1 => Just(What::Open),
    ];
    (0..4_u64, 1..5_u64, what).prop_map(|(hour, chunks, what)| Member { hour, chunks, what })
}

/// What is left, by number, if `target` chunks are to be left: hour by hour, and within an hour
/// large before small; but a file that is larger than what is to be freed only if the smaller ones
/// do not suffice, and then the smallest of those.
fn model(members: &[Member], target: u64) -> Vec<bool> {
    let mut left = vec![true; members.len()];
    let total = |left: &[bool]| -> u64 {
        members.iter().zip(left).filter(|(_, left)| **left).map(|(it, _)| it.chunks).sum()
    };
    for hour in 0..4 {
        let mut of_hour: Vec<usize> = (0..members.len())
            .filter(|at| members[*at].hour == hour && members[*at].what == What::Clean)
            .collect();
        of_hour.sort_by_key(|at| (u64::MAX - members[*at].chunks, *at));
        let mut larger = Vec::new();
        for at in of_hour {
            let excess = total(&left).saturating_sub(target);
            if excess == 0 {
                return left;
            }
            if members[at].chunks > excess {
                larger.push(at);
            } else {
                left[at] = false;
            }
        }
        for at in larger.into_iter().rev() {
            if total(&left) <= target {
                return left;
            }
            left[at] = false;
        }
    }
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn culling_takes_the_least_valuable_first(
        members in proptest::collection::vec(member(), 1..10), target in 0..30_u64,
    ) {
        let clock = Arc::new(SimClock::new());
        let at_clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let disk = Arc::new(SimDisk::new());
        let cache = Cache::open(disk, at_clock, config()).unwrap();
        let mut files = vec![None; members.len()];
        let mut opened = Vec::new();
        for hour in 0..4 {
            for (at, member) in members.iter().enumerate().filter(|(_, it)| it.hour == hour) {
                let file = filled(&cache, b"v1", at as u64, member.chunks * CHUNK);
                match member.what {
                    What::Clean => (),
                    What::Pinned => cache.pin(file.number(), true),
                    What::Dirty => file.write(0, b"x").unwrap(),
                    What::Open => opened.push(file.hold()),
                }
                files[at] = Some(file);
            }
            clock.advance(Duration::from_secs(3600));
        }
        let culled = cache.cull(target * CHUNK);
        let is_held = |file: &Option<Arc<CachedFile>>| !file.as_ref().unwrap().held(0..1).is_empty();
        let left: Vec<bool> = files.iter().map(is_held).collect();
        // Numbers decide between files that are equal otherwise, and are assigned by the hour.
        let expected = model(&members, target);
        let chunks = |left: &[bool]| -> Vec<(u64, u64)> {
            let mut chunks: Vec<_> = members.iter().zip(left).filter(|(_, left)| **left)
                .map(|(it, _)| (it.hour, it.chunks)).collect();
            chunks.sort_unstable();
            chunks
        };
        prop_assert_eq!(chunks(&left), chunks(&expected));
        prop_assert_eq!(culled.files, left.iter().filter(|left| !**left).count() as u64);
        let spared = |(member, left): (&Member, &bool)| member.what == What::Clean || *left;
        prop_assert!(members.iter().zip(&left).all(spared));
        let held: u64 = chunks(&left).iter().map(|(_, chunks)| chunks * CHUNK).sum();
        prop_assert_eq!(cache.usage().bytes, held);
    }
}

/// What is unsent, before the kernel has a file, while the kernel writes it, and when that was
/// looked for: (event, bytes, whether that is a bound)
#[test]
fn unsent_bytes_are_told_or_bounded() {
    let cache = open(&SimDisk::new());
    let file = filled(&cache, b"v1", 1, 2 * CHUNK);
    let unsent = |file: &CachedFile| {
        let unsent = file.unsent();
        (unsent.bytes, unsent.is_bound)
    };
    assert_eq!(unsent(&file), (0, false));
    file.write(10, b"local").unwrap();
    assert_eq!(unsent(&file), (5, false));
    let kernel = begin_bypass(&file).unwrap();
    assert_eq!(unsent(&file), (5, false), "the kernel has written nothing");
    kernel.write_at(b"kernel", CHUNK).unwrap();
    assert_eq!(unsent(&file), (2 * CHUNK, true));
    file.collect_bypass().unwrap();
    assert_eq!(unsent(&file), (11, false), "what it wrote");
    kernel.write_at(&bytes(2, 0..CHUNK), 2 * CHUNK).unwrap();
    assert_eq!(unsent(&file), (3 * CHUNK, true));
    file.end_bypass().unwrap();
    assert_eq!(unsent(&file), (CHUNK + 11, false));
    file.begin_sending();
    file.mark_clean(0..u64::MAX);
    assert_eq!((unsent(&file), file.dirty_bytes()), ((0, false), 0));
}

/// A reader of an older version through its local file sees what is changed here, and no more.
#[test]
fn an_older_local_file_takes_over_what_is_dirty() {
    let disk = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(larder_io::RealDisk::open(disk.path()).unwrap());
    let cache = Cache::open(disk, Arc::new(SimClock::new()), config()).unwrap();
    let file = filled(&cache, b"v1", 1, 3 * CHUNK);
    let older = file.whole().unwrap();
    assert!(file.is_backed_by(&older));
    assert!(file.reset(b"v2", 3 * CHUNK));
    assert!(!file.is_backed_by(&older));
    fill(&file, b"v2", 2, 0..3 * CHUNK);
    file.write(CHUNK + 1, b"dirty").unwrap();
    older.take_dirty(&file).unwrap();
    let mut expected = bytes(1, 0..3 * CHUNK);
    expected[CHUNK as usize + 1..CHUNK as usize + 6].copy_from_slice(b"dirty");
    let found = |older: &crate::BackingFile| {
        let mut found = vec![0; older.stamp().unwrap().size as usize];
        rustix::io::pread(older, &mut found, 0).unwrap();
        found
    };
    assert!(found(&older) == expected);
    older.write_at(b"more", 0).unwrap();
    older.set_len(2 * CHUNK).unwrap();
    expected[..4].copy_from_slice(b"more");
    expected.truncate(2 * CHUNK as usize);
    assert!(found(&older) == expected);
    assert!(read(&file, 0..10).unwrap() == bytes(2, 0..10), "the version in use is another file");
}

/// Another run may have to send the changes of a file. A pin that was set or removed, before them
/// or after them, is known to that run too: (whether the index has the file, what comes first)
#[test]
fn a_pin_outlives_the_process_beside_unsent_changes() {
    let booted = || Config { boot: Some(BootId(1)), ..config() };
    for (is_saved, pins_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let disk = SimDisk::new();
        let mut cache = open_with(&disk, booted());
        let no = filled(&cache, b"v1", 1, CHUNK).number();
        if is_saved {
            cache.checkpoint().unwrap();
        }
        for is_pinned in [true, false] {
            if pins_first {
                cache.pin(no, is_pinned);
            }
            cache.file(no).write(5, b"x").unwrap();
            cache.pin(no, is_pinned);
            cache.close().unwrap();
            cache = open_with(&disk, booted());
            let file = cache.file(no);
            file.begin_sending();
            file.mark_clean(0..CHUNK);
            file.set_version(b"v2", CHUNK);
            assert_eq!(file.fill(b"v2", 0, &bytes(2, 0..CHUNK)), Filled::Stored);
            drop(file);
            let culled = cache.cull(0).files;
            assert_eq!(culled, u64::from(!is_pinned), "{is_saved} {pins_first}");
        }
        assert_eq!(cache.list(None, 10), []);
    }
}
