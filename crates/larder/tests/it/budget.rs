//! The same work never costs more RPCs with the cache than without.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{BOTH, Mount, Server, kernel_remembers, pattern};

/// A work on a mount, and its name.
type Work = (&'static str, fn(&Path));

/// The file work of the published caching-client benchmark (Badros 1998), scaled down.
const WORKS: [Work; 13] = [
    ("make directories", |top| {
        for i in 0..21 {
            fs::create_dir_all(top.join(format!("tree/d{}/e{}", i % 7, i / 7))).unwrap();
        }
    }),
    ("copy files", |top| {
        for i in 0..70_u64 {
            let to = top.join(format!("tree/d{}/f{i}", i % 7));
            fs::write(to, pattern(i, 200 * usize::try_from(i).unwrap())).unwrap();
        }
    }),
    ("stat files twice", |top| (0..2).for_each(|_| walk(&top.join("tree"), false))),
    ("read files twice", |top| (0..2).for_each(|_| walk(&top.join("tree"), true))),
    ("list directories", |top| (0..4).for_each(|_| walk(&top.join("list"), false))),
    ("read a big file", |top| drop(fs::read(top.join("big")).unwrap())),
    ("read it again", |top| drop(fs::read(top.join("big")).unwrap())),
    ("copy a big file", |top| {
        fs::copy(top.join("big2"), top.join("copy")).unwrap();
    }),
    ("read at random", |top| {
        let file = fs::File::open(top.join("random")).unwrap();
        let mut buffer = vec![0; 2663];
        for i in 0..1000_u64 {
            let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (4_300_000 - 2663);
            let len = usize::try_from(1 + at % 2663).unwrap();
            file.read_exact_at(&mut buffer[..len], at).unwrap();
        }
    }),
    ("append small writes", |top| {
        let mut file = fs::File::create(top.join("log")).unwrap();
        (1..=2000).for_each(|i| write!(file, "{i}").unwrap());
    }),
    ("write small and read back", |top| {
        let mut file = fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(top.join("rw"))
            .unwrap();
        let mut all = Vec::new();
        for i in 1..=200 {
            write!(file, "{i}").unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            all.clear();
            file.read_to_end(&mut all).unwrap();
        }
    }),
    ("rename, link and remove", |top| {
        for i in 0..20 {
            let (one, two) = (top.join(format!("n{i}")), top.join(format!("m{i}")));
            fs::write(&one, "x").unwrap();
            fs::rename(&one, &two).unwrap();
            fs::hard_link(&two, &one).unwrap();
            fs::remove_file(&two).unwrap();
            fs::remove_file(&one).unwrap();
        }
    }),
    ("remove the tree", |top| fs::remove_dir_all(top.join("tree")).unwrap()),
];

fn walk(dir: &Path, read: bool) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            walk(&path, read);
        } else if read {
            let mut bytes = Vec::new();
            fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        }
    }
}

/// Attributes that do not expire while calls are counted: how many do depends on the speed of the
/// machine, on either mount. Every open still asks.
const LASTING: &[&str] = &["actimeo=86400"];

/// The files that the works need.
fn furnish(server: &Server) {
    fs::create_dir(server.path("list")).unwrap();
    for i in 0..500 {
        fs::write(server.path(&format!("list/{i}")), "").unwrap();
    }
    for (name, seed, len) in
        [("big", 1, 6_100_000), ("big2", 2, 6_100_000), ("random", 3, 4_300_000)]
    {
        fs::write(server.path(name), pattern(seed, len)).unwrap();
    }
}

/// By how much counts have grown, where they have.
fn more(
    mut counts: BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    counts.retain(|name, count| {
        *count -= before.get(name).unwrap_or(&0);
        *count > 0
    });
    counts
}

/// Calls of each procedure for each work. The kernel's requests are printed.
fn costs(server: &Server, mount: &Mount) -> Vec<BTreeMap<String, u64>> {
    furnish(server);
    let cost = |work: &Work| {
        let (calls, asked) = (mount.calls_by_procedure(), mount.messages());
        work.1(&mount.path(""));
        println!("{:28} {:?}", work.0, more(mount.messages(), &asked));
        more(mount.calls_by_procedure(), &calls)
    };
    WORKS.iter().map(cost).collect()
}

/// Number of rounds, of which the smallest count is used, work by work. A process that another test
/// starts at the same time closes our descriptors in its own table, and so sends what was written
/// so far: that only adds calls, to either mount.
const ROUNDS: usize = 3;

#[test]
fn cached_work_costs_no_more_rpcs_than_plain() {
    let _counting = kernel_remembers();
    let total = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
    for kind in BOTH {
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (mount, rounds) in [Mount::plain, Mount::new].iter().zip(&mut rounds) {
                let server = Server::start(kind);
                rounds.push(costs(&server, &mount(&server, LASTING)));
            }
        }
        for (at, (work, _)) in WORKS.iter().enumerate() {
            let [plain, cached] = rounds.each_ref().map(|rounds| {
                rounds.iter().map(|costs| &costs[at]).min_by_key(|calls| total(calls)).unwrap()
            });
            println!("{kind:?}: {work:28} plain {plain:?} cached {cached:?}");
            let within = total(cached) <= total(plain);
            assert!(within, "{kind:?}: {work}: plain {plain:?}, cached {cached:?}");
        }
    }
}
