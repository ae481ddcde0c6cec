//! Pinned trees that are kept whole and fresh.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Kind, Mount, Server, check, eventually, kill, pattern, said};

/// A round each second.
const OFTEN: &str = "hoard=1";

fn pin(mount: &Mount, tree: &str, priority: &str) {
    let path = mount.path(tree);
    check(mount, &["cache", "pin", "--priority", priority, path.to_str().unwrap()], 0, "");
}

/// What `larder status` reports of the tree at this path.
fn hoarded(mount: &Mount, path: &str) -> serde_json::Value {
    let status = mount.status();
    let trees = status["hoard"].as_array().cloned().unwrap_or_default();
    trees.into_iter().find(|tree| tree["path"] == path).unwrap_or_default()
}

/// Waits for a round that finds so many files, and as many of them whole.
fn await_whole(mount: &Mount, path: &str, files: u64) {
    eventually("the tree is whole", || {
        let tree = hoarded(mount, path);
        tree["files"] == files && tree["whole_files"] == files && tree["failed"] == 0
    });
}

fn put(server: &Server, name: &str, seed: u64, bytes: usize) -> Vec<u8> {
    let content = pattern(seed, bytes);
    fs::create_dir_all(server.path(name).parent().unwrap()).unwrap();
    fs::write(server.path(name), &content).unwrap();
    content
}

fn is(path: &Path, content: &[u8]) -> bool {
    fs::read(path).unwrap() == content
}

/// No process reads the tree while the server is there. What another client changes, adds and
/// removes in it follows.
#[test]
fn a_hoarded_tree_is_whole_and_fresh_without_the_server() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        let large = put(&server, "tools/sub/large", 1, 3 << 20);
        put(&server, "tools/changed", 2, 70_000);
        put(&server, "tools/removed", 3, 9);
        put(&server, "other", 4, 9);
        let mut mount = Mount::new(&server, &["offline", "actimeo=1", OFTEN]);
        pin(&mount, "tools", "7");
        await_whole(&mount, "tools", 3);
        let changed = put(&server, "tools/changed", 5, 90_000);
        let added = put(&server, "tools/new/added", 6, 1 << 17);
        put(&server, "tools/new/empty", 7, 0);
        fs::remove_file(server.path("tools/removed")).unwrap();
        let bytes = (large.len() + changed.len() + added.len()) as u64;
        eventually("a round finds the tree as it is now", || {
            let tree = hoarded(&mount, "tools");
            tree["files"] == 4 && tree["bytes"] == bytes && tree["whole_bytes"] == bytes
        });
        let text = mount.path("").to_str().unwrap().to_owned();
        check(&mount, &["offline", &text], 0, "");
        mount.remount();
        assert!(is(&mount.path("tools/sub/large"), &large), "{kind:?}");
        assert!(is(&mount.path("tools/changed"), &changed), "{kind:?}");
        assert!(is(&mount.path("tools/new/added"), &added), "{kind:?}");
        assert!(!mount.path("tools/removed").exists(), "{kind:?}");
        assert!(fs::read(mount.path("other")).is_err(), "{kind:?}: nobody wanted it");
    }
}

/// Short files that were fetched are in memory until a checkpoint: a round ends with one.
#[test]
fn what_a_round_has_fetched_outlives_the_worker() {
    let server = Server::start(Kind::Larder);
    let names: Vec<_> = (0..20).map(|count| format!("tools/{count}")).collect();
    let contents: Vec<_> =
        (1..).zip(&names).map(|(seed, name)| put(&server, name, seed, 3_000)).collect();
    let mount = Mount::new(&server, &["offline", "actimeo=86400", OFTEN]);
    pin(&mount, "tools", "7");
    await_whole(&mount, "tools", 20);
    server.freeze();
    let [_, worker] = mount.pids();
    kill([worker; 2]);
    for (name, content) in names.iter().zip(&contents) {
        assert!(is(&mount.path(name), content), "{name}");
    }
    server.thaw();
}

/// The more important tree gets the room, though the other had it first.
#[test]
fn room_goes_to_the_more_important_tree() {
    let server = Server::start(Kind::Larder);
    for name in ["minor/a", "minor/b", "major/a", "major/b"] {
        put(&server, name, 1, 4 << 20);
    }
    // Culling ends at 85 % of it: there is room for two files.
    let mount = Mount::new(&server, &["cache_max=13M", OFTEN]);
    pin(&mount, "minor", "1");
    await_whole(&mount, "minor", 2);
    pin(&mount, "major", "1000");
    await_whole(&mount, "major", 2);
    eventually("the other gives its room up", || {
        let tree = hoarded(&mount, "minor");
        tree["left_out_files"] == 2 && tree["whole_files"] == 0
    });
    let shown = said(&mount, &["status", mount.path("").to_str().unwrap()]).1;
    assert!(shown.contains("/major (1000): 2 of 2 files, 8.00 MiB of 8.00 MiB"), "{shown}");
    assert!(shown.contains("/minor (1): 0 of 2 files"), "{shown}");
    assert!(shown.contains("2 files have no room"), "{shown}");
    let major = mount.path("major");
    check(&mount, &["cache", "pin", "--undo", major.to_str().unwrap()], 0, "");
    await_whole(&mount, "minor", 2);
    assert!(hoarded(&mount, "major").is_null());
}

/// The local files in the cache directory that have this content; each is damaged.
fn damage(mount: &Mount, content: &[u8]) {
    let (mut left, mut count) = (vec![mount.cache().join("data")], 0);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else if is(&entry.path(), content) {
                let file = fs::OpenOptions::new().write(true).open(entry.path()).unwrap();
                file.write_all_at(&[!content[50_000]], 50_000).unwrap();
                count += 1;
            }
        }
    }
    assert_eq!(count, 1);
}

/// Whether the mount is there or not while a byte changes on the cache's disk: within the interval
/// that is found, and the server's bytes are here again.
#[test]
fn a_damaged_hoarded_file_is_right_again_without_the_server() {
    let server = Server::start(Kind::Larder);
    let (one, two) = (put(&server, "one", 1, 200_000), put(&server, "two", 2, 200_000));
    let mut mount = Mount::new(&server, &["offline", "actimeo=1", OFTEN, "hoard_check=1"]);
    pin(&mount, "", "7");
    await_whole(&mount, "", 2);
    let is_found = |mount: &Mount, count: u64| {
        eventually("damage is found", || hoarded(mount, "")["wrong_chunks"] == count);
        eventually("it is whole again", || {
            let checked = hoarded(mount, "")["verified_age_s"].as_u64();
            checked.is_some_and(|age_s| age_s <= 1) && hoarded(mount, "")["whole_files"] == 2
        });
    };
    damage(&mount, &one);
    is_found(&mount, 1);
    mount.unmount();
    damage(&mount, &two);
    mount.mount();
    is_found(&mount, 1);
    let shown = said(&mount, &["status", mount.path("").to_str().unwrap()]).1;
    assert!(shown.contains("; checksums compared "), "{shown}");
    check(&mount, &["offline", mount.path("").to_str().unwrap()], 0, "");
    assert!(is(&mount.path("one"), &one) && is(&mount.path("two"), &two));
}

/// A file may be hoarded by itself, and a mount can do without any of this.
#[test]
fn a_pin_with_a_priority_is_refused_where_nothing_is_hoarded() {
    let server = Server::start(Kind::Larder);
    let content = put(&server, "one", 1, 100_000);
    let mut mount = Mount::new(&server, &["offline", OFTEN]);
    pin(&mount, "one", "3");
    await_whole(&mount, "one", 1);
    check(&mount, &["offline", mount.path("").to_str().unwrap()], 0, "");
    assert!(is(&mount.path("one"), &content));
    check(&mount, &["online", mount.path("").to_str().unwrap()], 0, "");
    mount.set_options(&server, &["hoard=0"]);
    mount.remount();
    let one = mount.path("one");
    let typed = ["cache", "pin", "--priority", "3", one.to_str().unwrap()];
    check(&mount, &typed, 1, "the mount has hoard=0");
}
