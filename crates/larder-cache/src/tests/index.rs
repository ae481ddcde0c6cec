//! The index against a map: what is put is read, in whatever layer it is, and what was committed or
//! logged is there after a restart.

use std::collections::BTreeMap;

use larder_io::{BootId, Image};
use proptest::prelude::*;

use super::*;
use crate::index::Index;

const BOOT: BootId = BootId(7);
/// Keys of two tables, so that a scan of one reaches the other's.
const KEYS: u8 = 12;

#[derive(Clone, Debug)]
enum Step {
    /// Changes that go together.
    Put(Vec<(u8, Option<u8>)>),
    Commit,
    /// Makes durable what was put, by a sync of the log.
    Sync,
    /// Gives back memory: the database is closed and opened.
    Shed,
    /// The process dies, and the next one finds what the machine has.
    Die,
    /// The machine fails.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..KEYS, proptest::option::of(any::<u8>()));
    prop_oneof![
        6 => proptest::collection::vec(change, 1..5).prop_map(Step::Put),
        2 => Just(Step::Commit),
        2 => Just(Step::Sync),
        1 => Just(Step::Shed),
        1 => Just(Step::Die),
        1 => Just(Step::Crash),
    ]
}

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u8) -> Vec<u8> {
    vec![if number < KEYS / 2 { b'a' } else { b'b' }, number]
}

fn open_index(disk: &SimDisk) -> Index {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let index = Index::open(&disk, false, Box::new(|| ())).unwrap();
    index.replay(Some(BOOT));
    index.reserve_numbers(1);
    index.commit().unwrap();
    // Its name is durable, as after an open of a cache.
    disk.sync_dir("").unwrap();
    index
}

/// All records of one table, read some at a time.
fn scanned(index: &Index, table: u8, page: usize) -> Records {
    let (mut all, mut start) = (Records::new(), vec![table]);
    loop {
        let (records, next) = index.scan(&[table], &start, page);
        for (key, value) in records {
            assert_eq!(all.insert(key, value), None, "a record comes once");
        }
        match next {
            Some(next) => start = next,
            None => return all,
        }
    }
}

fn check(index: &Index, expected: &Records) {
    for number in 0..KEYS {
        assert_eq!(index.get(&key(number)), expected.get(&key(number)).cloned(), "{number}");
    }
    for table in [b'a', b'b'] {
        let of_table = |(key, _): &(&Vec<u8>, &Vec<u8>)| key[0] == table;
        let expected: Records =
            expected.iter().filter(of_table).map(|(k, v)| (k.clone(), v.clone())).collect();
        for page in [1, 2, 100] {
            assert_eq!(scanned(index, table, page), expected, "pages of {page}");
        }
        assert!(index.scan_all(&[table]).into_iter().eq(expected), "at once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// The death of a process loses nothing; a crash of the machine loses what was not committed.
    #[test]
    fn what_was_put_is_read_and_comes_back(steps in proptest::collection::vec(step(), 1..25)) {
        let mut disk = SimDisk::new();
        let mut index = open_index(&disk);
        let (mut now, mut committed) = (Records::new(), Records::new());
        for step in steps {
            match step {
                Step::Put(changes) => {
                    for (number, value) in &changes {
                        match value {
                            Some(value) => now.insert(key(*number), vec![*value; 20]),
                            None => now.remove(&key(*number)),
                        };
                    }
                    let change = |(number, value): (u8, Option<u8>)| {
                        (key(number), value.map(|value| vec![value; 20]))
                    };
                    index.put_all(changes.into_iter().map(change).collect());
                }
                Step::Commit => {
                    index.commit().unwrap();
                    committed = now.clone();
                }
                Step::Sync => {
                    index.make_durable(index.mark()).unwrap();
                    committed = now.clone();
                }
                Step::Shed => index.shed(),
                Step::Die => {
                    disk = disk.crash(Image::Written);
                    index = open_index(&disk);
                    committed = now.clone();
                }
                Step::Crash => {
                    // The log is of another boot then, and its file is gone with everything that
                    // was not synced.
                    disk = disk.crash(Image::Synced);
                    index = open_index(&disk);
                    now = committed.clone();
                }
            }
            check(&index, &now);
        }
    }
}

/// A number is assigned only once, whatever happens to the process or the machine.
#[test]
fn numbers_are_new_after_each_death() {
    let mut disk = SimDisk::new();
    let mut last = 0;
    for round in 0..6 {
        let index = open_index(&disk);
        for _ in 0..3 {
            let number = index.next_number();
            assert!(number > last, "{number} after {last}");
            last = number;
        }
        disk = disk.crash(if round % 2 == 0 { Image::Synced } else { Image::Written });
    }
}
