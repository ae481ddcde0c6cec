//! Volumes of larder's own servers: `larder serve DIR`, mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::basics::{BASIC, SPECIAL, on};
use crate::harness::{
    Mount, eventually, larder, pattern, scratch, succeed, tree, write_undisturbed,
};
use crate::server::{Kind, Server};

/// What was written and closed, or synced, is there after both servers were killed and restarted;
/// the mount continues, and so does a new one without the first one's cache.
#[test]
fn a_volume_outlives_its_servers() {
    let mut server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, &[]);
    for number in 0..40_usize {
        let dir = mount.path(&format!("d{}", number % 4));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{number}")), pattern(number as u64, number * 3000)).unwrap();
    }
    fs::write(mount.path("large"), pattern(7, 5 << 20)).unwrap();
    let before = tree(&mount.path(""));
    server.kill();
    server.restart();
    assert!(tree(&mount.path("")) == before);
    fs::write(mount.path("later"), b"after the restart").unwrap();
    fs::rename(mount.path("d1"), mount.path("moved")).unwrap();
    let after = tree(&mount.path(""));
    server.kill();
    server.restart();
    let another = Mount::new(&server, &[]);
    assert!(tree(&another.path("")) == after);
    assert_eq!(after.len(), before.len() + 1);
}

/// Data does not pass through the metadata server: its procedures are counted, and so are those of
/// the disk.
#[test]
fn a_mount_of_a_volume_reports_what_it_asks_of_which_server() {
    let server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, &[]);
    write_undisturbed(&mount.path("file"), &pattern(1, 3 << 20));
    let calls = mount.calls_by_procedure();
    let count = |name: &str| calls.get(name).copied().unwrap_or(0);
    // The blocks that the file was given ahead may be separate from the rest of its first MiB.
    assert!((3..=4).contains(&count("WRITE")), "{calls:?}");
    assert!(count("COMMIT_EXTENTS") >= 1 && count("HANDSHAKE") == 1, "{calls:?}");
}

#[test]
fn basic_work_is_right_on_a_volume() {
    on(Kind::Volume, &BASIC);
}

#[test]
fn special_work_is_right_on_a_volume() {
    on(Kind::Volume, &SPECIAL);
}

/// Two mounts: an open shows what the other one has closed.
#[test]
fn two_mounts_of_a_volume_are_close_to_open() {
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    for round in 0..30_u64 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let data = pattern(round, 1 + round as usize * 977);
        fs::write(writer.path("shared"), &data).unwrap();
        assert!(fs::read(reader.path("shared")).unwrap() == data, "round {round}");
    }
}

/// Calls of a mount, except those that keep its session alive.
fn calls(mount: &Mount) -> BTreeMap<String, u64> {
    let mut calls = mount.calls_by_procedure();
    calls.retain(|name, count| name != "RENEW" && *count > 0);
    calls
}

/// The calls that a mount makes during some work.
fn calls_of(mount: &Mount, work: impl FnOnce()) -> BTreeMap<String, u64> {
    let before = calls(mount);
    work();
    let mut more = calls(mount);
    for (name, count) in &mut more {
        *count -= before.get(name).copied().unwrap_or(0);
    }
    more.retain(|_, count| *count > 0);
    more
}

/// However long it lasts, and however short attributes may be trusted.
#[test]
fn under_leases_of_a_volume_stat_open_and_read_cost_no_call() {
    let server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, &["actimeo=1"]);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/file"), "leased").unwrap();
    let look = || {
        assert_eq!(fs::metadata(mount.path("dir/file")).unwrap().len(), 6);
        assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"leased");
        assert!(!mount.path("dir/none").exists());
    };
    // Nobody waits for the lease on a directory.
    eventually("there are leases", || {
        let twice = || {
            look();
            look();
        };
        calls_of(&mount, twice).is_empty()
    });
    let begin = Instant::now();
    let more = calls_of(&mount, || {
        while begin.elapsed() < Duration::from_millis(1500) {
            look();
        }
    });
    assert!(more.is_empty(), "{more:?}");
}

/// Something that one mount has cached is changed by another one: the first one knows when the
/// second one's call returns, whatever it was, and however long it trusts cached attributes.
#[test]
fn what_another_mount_of_a_volume_changes_is_seen_at_once() {
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    for round in 0..12_u64 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let dir = format!("d{}", round / 4);
        let here = |name: &str| reader.path(&format!("{dir}/{name}"));
        let there = |name: &str| writer.path(&format!("{dir}/{name}"));
        assert_eq!(here("").exists(), round % 4 > 0, "round {round}");
        fs::create_dir_all(there("")).unwrap();
        assert!(here("").is_dir() && !here("file").exists(), "round {round}");
        let first = pattern(round, 1 + round as usize * 977);
        fs::write(there("file"), &first).unwrap();
        assert!(fs::read(here("file")).unwrap() == first, "round {round}");
        let mut open = fs::File::open(here("file")).unwrap();
        let second = pattern(round + 100, 5000);
        fs::write(there("file"), &second).unwrap();
        assert_eq!(fs::metadata(here("file")).unwrap().len(), 5000, "round {round}");
        assert!(fs::read(here("file")).unwrap() == second, "round {round}");
        let mut rest = Vec::new();
        match open.read_to_end(&mut rest) {
            Ok(_) => assert!(rest == first || rest == second, "a mixture in round {round}"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
        }
        fs::set_permissions(there("file"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::metadata(here("file")).unwrap().permissions().mode() & 0o777, 0o600);
        fs::hard_link(there("file"), there("link")).unwrap();
        assert_eq!(fs::metadata(here("file")).unwrap().nlink(), 2, "round {round}");
        fs::rename(there("file"), there("moved")).unwrap();
        assert!(!here("file").exists() && here("moved").exists(), "round {round}");
        fs::remove_file(there("link")).unwrap();
        let names: Vec<_> =
            fs::read_dir(here("")).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names, ["moved"], "round {round}");
        assert_eq!(fs::metadata(here("moved")).unwrap().nlink(), 1, "round {round}");
        fs::remove_file(here("moved")).unwrap();
        assert!(!there("moved").exists(), "round {round}");
    }
}

/// Another mount's link, chmod, rename or unlink is not a change of the data: a process that has
/// the file open and has not read all of it continues to read, and cached bytes are not read again.
#[test]
fn what_another_mount_makes_of_links_and_modes_leaves_data_readable_and_cached() {
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    let chmod = |by: &Mount, mode| {
        fs::set_permissions(by.path("file"), Permissions::from_mode(mode)).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 4] = [
        ("link", &|| fs::hard_link(two.path("file"), two.path("link")).unwrap()),
        ("chmod", &|| chmod(&two, 0o600)),
        ("rename", &|| fs::rename(two.path("link"), two.path("other")).unwrap()),
        ("unlink", &|| fs::remove_file(two.path("other")).unwrap()),
    ];
    for (round, (what, change)) in (0..).zip(changes) {
        let data = pattern(round, 6 << 20);
        fs::write(two.path("file"), &data).unwrap();
        let mut open = fs::File::open(one.path("file")).unwrap();
        let mut seen = vec![0; 100_000];
        open.read_exact(&mut seen).unwrap();
        change();
        open.read_to_end(&mut seen).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(seen == data, "{what}");
    }
    let read = || calls_of(&one, || assert_eq!(fs::read(one.path("file")).unwrap().len(), 6 << 20));
    eventually("it is cached", || !read().contains_key("READ"));
    chmod(&two, 0o644);
    assert_eq!(fs::metadata(one.path("file")).unwrap().permissions().mode() & 0o777, 0o644);
    let calls = read();
    assert!(!calls.contains_key("READ"), "{calls:?}");
}

/// A lookup returns all that is needed to read a small file: its bytes are the second round trip.
#[test]
fn a_cold_small_file_of_a_volume_costs_two_round_trips() {
    let server = Server::start(Kind::Volume);
    let writer = Mount::new(&server, &[]);
    for number in 0..20 {
        fs::write(writer.path(&format!("f{number}")), pattern(number, 40_000)).unwrap();
    }
    let mount = Mount::new(&server, &[]);
    // It is connected to the disk, and the directory is leased.
    eventually("the first one is read without more", || {
        fs::read(mount.path("f0")).unwrap();
        calls_of(&mount, || assert!(!mount.path("none").exists())).is_empty()
    });
    for number in 1..20 {
        let read = calls_of(&mount, || {
            assert!(
                fs::read(mount.path(&format!("f{number}"))).unwrap() == pattern(number, 40_000)
            );
        });
        let wanted = [("LOOK", 1), ("READ", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(read, BTreeMap::from(wanted), "f{number}");
    }
}

/// The calls to make, write and close a small file in a directory that was listed or made here: the
/// file with blocks and a grant, and in one round trip its bytes to the disk and the commit (see
/// `a_small_new_file_is_committed_while_it_is_written`). No caller waits for the CLOSE.
#[test]
fn a_small_new_file_of_a_volume_costs_two_round_trips() {
    let server = Server::start(Kind::Volume);
    let (mount, other) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    fs::create_dir(other.path("listed")).unwrap();
    fs::write(other.path("listed/theirs"), "x").unwrap();
    fs::create_dir(mount.path("made")).unwrap();
    for dir in ["listed", "made"] {
        let path = |name: &str| mount.path(&format!("{dir}/{name}"));
        if dir == "listed" {
            assert_eq!(fs::read_dir(path("")).unwrap().count(), 1);
        }
        // No call waits for the lease on a directory, or for the connection to the disk.
        let mut names = (0..).map(|number| path(&format!("absent{number}")));
        eventually("absent names cost nothing", || {
            fs::write(path("first"), "connects").unwrap();
            calls_of(&mount, || assert!(!names.next().unwrap().exists())).is_empty()
        });
        for number in 0..10 {
            let mut made = calls_of(&mount, || {
                write_undisturbed(&path(&format!("f{number}")), &pattern(number, 40_000));
            });
            // A CLOSE of this file, or a late one of the one before.
            made.remove("CLOSE");
            let once = ["OPEN", "WRITE", "COMMIT_EXTENTS"].map(|name| (name.to_owned(), 1));
            assert_eq!(made, BTreeMap::from(once), "{dir}/f{number}");
        }
    }
}

/// A mount that knows all names of a directory finds what another one makes there, in whatever way,
/// as soon as that is made; and neither makes a name that the other one has made.
#[test]
fn what_another_mount_makes_in_a_directory_that_is_known_whole_is_found() {
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    fs::create_dir(one.path("dir")).unwrap();
    fs::write(two.path("elsewhere"), "x").unwrap();
    type Way<'a> = (&'a str, &'a dyn Fn(&Path));
    let ways: [Way<'_>; 5] = [
        ("file", &|path| fs::write(path, "x").unwrap()),
        ("directory", &|path| fs::create_dir(path).unwrap()),
        ("symlink", &|path| std::os::unix::fs::symlink("x", path).unwrap()),
        ("link", &|path| fs::hard_link(two.path("elsewhere"), path).unwrap()),
        ("renamed", &|path| fs::rename(two.path("elsewhere"), path).unwrap()),
    ];
    let mut made = 0;
    for (what, make) in ways {
        fs::read_dir(one.path("dir")).unwrap().for_each(drop);
        for name in [format!("dir/{what}"), format!("dir/{what}-again")] {
            let here = one.path(&name);
            assert!(fs::symlink_metadata(&here).is_err(), "{name}");
            fs::write(one.path("dir/ours"), "between").unwrap();
            assert!(fs::symlink_metadata(&here).is_err(), "{name}");
            make(&two.path(&name));
            assert!(fs::symlink_metadata(&here).is_ok(), "{name}");
            let refused = fs::create_dir(&here).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EEXIST), "{name}");
            if what == "renamed" {
                fs::rename(&here, one.path("elsewhere")).unwrap();
                assert!(two.path("elsewhere").exists() && !two.path(&name).exists());
            } else {
                made += 1;
            }
            fs::remove_file(one.path("dir/ours")).unwrap();
        }
        assert_eq!(fs::read_dir(one.path("dir")).unwrap().count(), made, "{what}");
    }
}

/// Appends each line by one write(2), so many of them by one open file; under flock(2), or not.
fn append(path: &Path, lines: &[String], per_open: usize, locks: bool) {
    let lock = |log: &fs::File, operation| {
        if locks {
            flock(log, operation).unwrap();
        }
    };
    for some in lines.chunks(per_open) {
        let mut log = fs::OpenOptions::new().append(true).open(path).unwrap();
        for line in some {
            lock(&log, FlockOperation::LockExclusive);
            log.write_all(line.as_bytes()).unwrap();
            lock(&log, FlockOperation::Unlock);
        }
    }
}

/// Appends on two mounts at the same time, on one of them with an open for each line. Returns what
/// the file is then.
fn append_on_two_mounts(lines: &[Vec<String>; 2], locks: bool) -> Vec<u8> {
    let server = Server::start(Kind::Volume);
    let mounts = [Mount::new(&server, &[]), Mount::new(&server, &[])];
    fs::write(mounts[0].path("log"), "").unwrap();
    std::thread::scope(|scope| {
        for ((mount, lines), per_open) in mounts.iter().zip(lines).zip([1, 7]) {
            let log = mount.path("log");
            scope.spawn(move || append(&log, lines, per_open, locks));
        }
    });
    let stored = fs::read(Mount::plain(&server, &[]).path("log")).unwrap();
    for mount in &mounts {
        assert!(fs::read(mount.path("log")).unwrap() == stored, "both see the same");
    }
    stored
}

/// Lines of all lengths, which lie across blocks.
#[test]
fn lines_that_two_mounts_of_a_volume_append_under_a_lock_are_all_there() {
    let line = |writer: &str, number: usize| {
        format!("{writer}{number:03} {}\n", writer.repeat(1 + number * 337 % 900))
    };
    let lines = ["a", "b"].map(|writer| (0..40).map(|number| line(writer, number)).collect());
    let log = String::from_utf8(append_on_two_mounts(&lines, true)).unwrap();
    for (writer, lines) in ["a", "b"].into_iter().zip(&lines) {
        let own = log.split_inclusive('\n').filter(|line| line.starts_with(writer));
        assert!(own.eq(lines), "{writer}: {log}");
    }
    assert_eq!(log.len(), lines.iter().flatten().map(String::len).sum::<usize>());
}

/// Lines of one length, of which a block holds a whole number: without a lock one may be written
/// over another, and each place has a whole one of them, once; nothing is between them.
#[test]
fn lines_that_two_mounts_of_a_volume_append_without_a_lock_are_whole() {
    const LEN: usize = 64;
    const LINES: usize = 150;
    let line = |writer: &str, number| format!("{writer}{number:03} {}\n", writer.repeat(LEN - 6));
    let lines = ["a", "b"].map(|writer| (0..LINES).map(|number| line(writer, number)).collect());
    let log = append_on_two_mounts(&lines, false);
    let mut left: BTreeSet<&[u8]> = lines.iter().flatten().map(String::as_bytes).collect();
    for (place, found) in log.chunks(LEN).enumerate() {
        assert!(left.remove(found), "at {place}: {:?}", String::from_utf8_lossy(found));
    }
    // Nobody writes over a line of its own.
    assert!(log.len() >= LINES * LEN, "{} bytes", log.len());
}

/// Another mount removes a file that is open here and not read yet.
#[test]
fn what_is_open_on_a_volume_is_there_whatever_another_mount_removes() {
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    let data = pattern(3, 6 << 20);
    fs::write(two.path("file"), &data).unwrap();
    let mut open = fs::File::open(one.path("file")).unwrap();
    fs::remove_file(two.path("file")).unwrap();
    assert!(!one.path("file").exists());
    let mut seen = Vec::new();
    open.read_to_end(&mut seen).unwrap();
    assert!(seen == data);
}

/// The NFS export is one more client.
#[test]
fn nfs_clients_use_a_volume_by_way_of_an_export() {
    let server = Server::start(Kind::Volume);
    let export = Server::reexport(&server, &[]);
    let (by_nfs, direct) = (Mount::plain(&export, &["noac"]), Mount::new(&server, &[]));
    fs::create_dir(by_nfs.path("dir")).unwrap();
    fs::write(by_nfs.path("dir/file"), pattern(1, 3 << 20)).unwrap();
    assert!(fs::read(direct.path("dir/file")).unwrap() == pattern(1, 3 << 20));
    fs::rename(by_nfs.path("dir"), by_nfs.path("moved")).unwrap();
    fs::write(direct.path("other"), b"not by NFS").unwrap();
    assert_eq!(fs::read(by_nfs.path("other")).unwrap(), b"not by NFS");
}

#[test]
fn what_is_no_volume_is_not_served() {
    let dir = scratch("larder-no-volume-");
    fs::write(dir.path().join("mine"), b"data").unwrap();
    let serve = |args: &[&str]| {
        let done = larder().arg("serve").arg(dir.path()).args(args).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (code, said) = serve(&["--listen", "127.0.0.1:0"]);
    assert!(code == Some(1) && said.contains("not empty, and holds no volume"), "{said}");
    let (code, said) = serve(&["--listen", "192.0.2.1:2050"]);
    assert!(code == Some(2) && said.contains("--cert"), "{said}");
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
}

/// A program that makes, renames, links and removes thousands of names.
#[test]
fn git_works_on_a_volume() {
    let server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, &[]);
    let script = r#"
        set -e
        export GIT_CONFIG_GLOBAL=/dev/null
        git init -q repository && cd repository
        git config user.email ann@office.example && git config user.name Ann
        for i in $(seq 60); do mkdir -p d$((i % 7)); seq $i 400 >d$((i % 7))/f$i; done
        git add . && git commit -qm first
        git mv d1 moved && git rm -q d2/f2 && git commit -qm second
        git clone -q . ../clone && cd ../clone
        git gc -q && git fsck --strict && test -z "$(git status --porcelain)"
    "#;
    succeed(Command::new("sh").args(["-c", script]).current_dir(mount.path("")));
}
