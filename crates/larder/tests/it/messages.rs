//! How many messages between the kernel and the daemon ordinary calls need (docs/fuse-messages.md).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::harness::{Kind, Mount, Server, eventually, kernel_remembers, pattern};
use crate::unmounts::when_unused;

/// Messages that the kernel sends on its own.
const UNASKED: [&str; 2] = ["FORGET", "BATCHFORGET"];

/// The first round may need more, for requests that are made once: the smallest count is used.
const ROUNDS: u64 = 5;

fn count(name: &str, all: &BTreeMap<String, u64>) -> u64 {
    all.get(name).copied().unwrap_or(0)
}

/// Messages so far, when no more files and directories are open than the test has open. A release
/// is sent after close(2) has returned.
fn at_rest(mount: &Mount, open: u64) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    eventually("what was opened is released", || {
        all = mount.messages();
        let [file, new, dir, closed, closed_dir] =
            ["OPEN", "CREATE", "OPENDIR", "RELEASE", "RELEASEDIR"].map(|name| count(name, &all));
        file + new + dir == closed + closed_dir + open
    });
    all
}

/// The fewest messages that the work needed in a round, as `NAME NAME*2 ...`. The test has this
/// many files `open`.
fn cost(mount: &Mount, open: u64, work: impl FnMut(u64)) -> String {
    cost_but(&UNASKED, mount, open, work)
}

/// The same while the test has files open for writing: programs that are started close our
/// descriptors in their own table, and each of these closes sends a FLUSH.
fn cost_beside_open(mount: &Mount, open: u64, work: impl FnMut(u64)) -> String {
    cost_but(&[&UNASKED[..], &["FLUSH"]].concat(), mount, open, work)
}

/// The same without these messages.
fn cost_but(left_out: &[&str], mount: &Mount, open: u64, mut work: impl FnMut(u64)) -> String {
    let one = |round: u64, work: &mut dyn FnMut(u64)| {
        let before = at_rest(mount, open);
        work(round);
        let after = at_rest(mount, open);
        let cost = after.iter().map(|(name, count_)| (name.clone(), count_ - count(name, &before)));
        cost.filter(|(name, count)| *count > 0 && !left_out.contains(&name.as_str()))
            .collect::<BTreeMap<_, _>>()
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|round| one(round, &mut work)).collect();
    let least = rounds.into_iter().min_by_key(|cost| cost.values().sum::<u64>()).unwrap();
    let shown = |(name, count): (String, u64)| match count {
        1 => name,
        count => format!("{name}*{count}"),
    };
    least.into_iter().map(shown).collect::<Vec<_>>().join(" ")
}

#[test]
fn warm_calls_cost_the_fewest_messages() {
    let _counting = kernel_remembers();
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 4000);
    fs::create_dir(server.path("dir")).unwrap();
    for number in 0..100 {
        fs::write(server.path(&format!("dir/file{number}")), &bytes).unwrap();
    }
    let mount = Mount::new(&server, &["actimeo=86400"]);
    let file = mount.path("dir/file7");
    let read = || {
        let mut found = vec![0; bytes.len()];
        File::open(&file).unwrap().read_exact(&mut found).unwrap();
        assert!(found == bytes);
    };
    let list = || {
        let listed = fs::read_dir(mount.path("dir")).unwrap();
        assert!(listed.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>() > 0);
    };
    list();
    read();

    assert_eq!(cost(&mount, 0, |_| assert!(fs::metadata(&file).unwrap().is_file())), "");
    assert_eq!(cost(&mount, 0, |_| read()), "OPEN RELEASE");
    assert_eq!(cost(&mount, 0, |_| list()), "GETATTR OPENDIR READDIRPLUS*2 RELEASEDIR");
    let new = |round: u64| mount.path(&format!("new{round}"));
    let create = |round: u64| {
        let created = File::options().write(true).create_new(true).open(new(round)).unwrap();
        created.write_all_at(&bytes, 0).unwrap();
    };
    // The first write requests something that we do not have; the kernel does not ask again.
    create(ROUNDS);
    assert_eq!(cost(&mount, 0, create), "CREATE FLUSH GETATTR LOOKUP RELEASE");
    assert_eq!(cost(&mount, 0, |round| fs::remove_file(new(round)).unwrap()), "GETATTR UNLINK");
}

/// What a database does, with a cache and without: a page written in place and synced, in an open
/// file.
#[test]
fn a_synced_write_costs_a_cached_mount_what_it_costs_a_plain_one() {
    let _counting = kernel_remembers();
    let server = Server::start(Kind::Larder);
    fs::write(server.path("base"), pattern(1, 1 << 20)).unwrap();
    for make in [Mount::plain, Mount::new] {
        let mount = make(&server, &["actimeo=86400"]);
        let file = File::options().read(true).write(true).open(mount.path("base")).unwrap();
        let synced = |round: u64| {
            file.write_all_at(&[round as u8; 4096], 4096 * 7).unwrap();
            file.sync_all().unwrap();
        };
        synced(0);
        let calls = mount.all_calls();
        assert_eq!(cost_beside_open(&mount, 1, synced), "FSYNC WRITE");
        assert_eq!(mount.all_calls() - calls, ROUNDS, "one WRITE each");
    }
}

/// Which requests reach us from the calls that ask for durability, on the running kernel
/// (docs/semantics.md).
#[test]
fn fsync_reaches_us_and_sync_does_not() {
    let _counting = kernel_remembers();
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["nopassthrough", "actimeo=86400"]);
    fs::create_dir(mount.path("dir")).unwrap();
    let file = File::options().write(true).create_new(true).open(mount.path("a")).unwrap();
    let dir = File::open(mount.path("dir")).unwrap();
    let cost = |work: &mut dyn FnMut(u64)| cost_beside_open(&mount, 2, work);
    let at_server = || fs::read(server.path("a")).unwrap();

    file.write_all_at(b"one", 0).unwrap();
    let sync = cost(&mut |_| {
        rustix::fs::sync();
        rustix::fs::syncfs(&dir).unwrap();
    });
    assert_eq!(sync, "", "sync(2) and syncfs(2)");
    assert_eq!(cost(&mut |_| file.sync_all().unwrap()), "FSYNC");
    assert_eq!(at_server(), b"one");
    // Refused the first time, and never requested again: names are durable when the call returns.
    assert_eq!(cost(&mut |_| dir.sync_all().unwrap()), "");

    file.write_all_at(b"two", 0).unwrap();
    drop((file, dir));
    // Everything was closed before the unmount, and the close has sent it.
    let top = mount.path("");
    when_unused(&top, || Command::new("umount").arg(&top).output().unwrap());
    assert_eq!(at_server(), b"two");
}
