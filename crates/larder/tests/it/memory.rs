//! Files that need no more than this machine's memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::harness::{Kind, Mount, Server, eventually, kill, pattern, said, succeed};

const OPTIONS: &[&str] = &["exclusive", "class=scratch", "actimeo=86400"];

/// The directory of a mount in this machine's memory.
pub(crate) fn memory_of(mount: &Mount) -> PathBuf {
    let (cache, uid) = (fs::metadata(mount.cache()).unwrap(), rustix::process::geteuid().as_raw());
    PathBuf::from(format!("/dev/shm/larder-{uid}/{:x}-{:x}", cache.dev(), cache.ino()))
}

/// Local files below a directory: how many, and their bytes.
fn local_files(top: &Path) -> (usize, u64) {
    let dirs = fs::read_dir(top.join("data")).into_iter().flatten().flatten();
    let files = dirs.flat_map(|dir| fs::read_dir(dir.path()).unwrap().flatten());
    files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.metadata().unwrap().len()))
}

/// What `larder explain` says of a file.
pub(crate) fn explained(mount: &Mount, name: &str) -> serde_json::Value {
    let mut command = mount.larder();
    command.arg("explain").arg(mount.path(name)).arg("--json");
    serde_json::from_slice(&succeed(&mut command).stdout).unwrap()
}

fn sync(mount: &Mount) {
    let (code, told) = said(mount, &["sync", mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}");
}

/// A mount that has already made the requests that are made only once.
fn ready(server: &Server, options: &[&str]) -> Mount {
    let mount = Mount::new(server, options);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("second"), "text").unwrap();
    mount
}

#[test]
fn what_scratch_makes_writes_and_removes_costs_no_call_and_no_file_of_the_cache() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        let mount = ready(&server, OPTIONS);
        let before = (mount.calls_by_procedure(), local_files(&mount.cache()));
        let large = pattern(1, 3 << 20);
        for count in 0..20 {
            fs::write(mount.path("small"), format!("text {count}")).unwrap();
            fs::write(mount.path("large"), &large).unwrap();
            let file = fs::OpenOptions::new().append(true).open(mount.path("small")).unwrap();
            file.sync_all().unwrap();
            let (files, bytes) = local_files(&memory_of(&mount));
            assert!(files >= 3 && bytes > 3 << 20, "{files} {bytes}");
            drop(file);
            fs::remove_file(mount.path("small")).unwrap();
            fs::remove_file(mount.path("large")).unwrap();
        }
        assert_eq!((mount.calls_by_procedure(), local_files(&mount.cache())), before, "{kind:?}");
        let told = explained(&mount, "second");
        assert_eq!(told["class"], "scratch");
        assert_eq!(told["durable"]["level"], "memory", "{told}");
        assert_eq!(
            (&told["durable"]["promised"], &told["durable"]["due"]),
            (&"memory".into(), &"unmount".into())
        );
        let (_, unsaved) = said(&mount, &["status", "--unsaved"]);
        assert!(unsaved.contains("second: 4 B unsent, class scratch, memory"), "{unsaved}");
        assert!(fs::read(server.path("second")).is_err(), "{kind:?}");
    }
}

/// Processes die; the bytes are where they were.
#[test]
fn what_is_in_memory_outlives_our_processes() {
    let server = Server::start(Kind::Larder);
    let mut mount = ready(&server, OPTIONS);
    let large = pattern(2, 5 << 20);
    fs::write(mount.path("large"), &large).unwrap();
    let [_, worker] = mount.pids();
    kill([worker, worker]);
    assert_eq!(fs::read(mount.path("large")).unwrap(), large, "another worker");
    mount.kill();
    mount.mount();
    assert_eq!(fs::read(mount.path("large")).unwrap(), large, "another mount");
    assert_eq!(fs::read(mount.path("second")).unwrap(), b"text");
    sync(&mount);
    assert_eq!(fs::read(server.path("large")).unwrap(), large);
}

/// An unmount, like `larder sync`, sends to the server what is only here; nothing stays in memory.
#[test]
fn what_is_in_memory_goes_to_the_server_at_an_unmount() {
    let server = Server::start(Kind::Larder);
    let mut mount = ready(&server, OPTIONS);
    let large = pattern(3, 5 << 20);
    fs::write(mount.path("large"), &large).unwrap();
    let memory = memory_of(&mount);
    assert!(!server.path("large").exists() && memory.exists());
    mount.unmount();
    assert_eq!(fs::read(server.path("large")).unwrap(), large);
    assert!(!memory.exists());
    // Without the server it stays here, on the disk.
    mount.mount();
    fs::write(mount.path("more"), "only here").unwrap();
    let mut server = server;
    server.kill();
    let unmounted = mount.larder().arg("umount").arg(mount.path("")).output().unwrap();
    assert!(!unmounted.status.success(), "it says that something is left");
    assert!(!memory_of(&mount).exists());
    server.restart();
    mount.mount();
    assert_eq!(fs::read(mount.path("more")).unwrap(), b"only here");
    sync(&mount);
    assert_eq!(fs::read(server.path("more")).unwrap(), b"only here");
}

/// A stronger name, class or open makes it as durable as that says.
#[test]
fn a_writer_that_wants_more_than_memory_gets_it() {
    let folder = crate::harness::scratch("larder-rules-");
    let rules = folder.path().join("rules.toml");
    let text = "[[rule]]\nglob = '*.tmp'\nclass = 'scratch'\n[[rule]]\nglob = '*.o'\nclass = 'generated'\n";
    fs::write(&rules, text).unwrap();
    let rules = format!("rules={}", rules.display());
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &["exclusive", &rules, "actimeo=86400"]);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("first/first.o"), "").unwrap();
    for name in ["a.tmp", "b.tmp", "c.tmp", "d.tmp"] {
        fs::write(mount.path(name), format!("text of {name}")).unwrap();
        assert_eq!(explained(&mount, name)["durable"]["level"], "memory", "{name}");
    }
    fs::rename(mount.path("a.tmp"), mount.path("a.o")).unwrap();
    eventually("this machine's disk has it", || {
        explained(&mount, "a.o")["durable"]["level"] == "local"
    });
    assert!(!server.path("a.o").exists());
    fs::rename(mount.path("b.tmp"), mount.path("b.c")).unwrap();
    assert_eq!(fs::read(server.path("b.c")).unwrap(), b"text of b.tmp");
    let path = mount.path("c.tmp").to_str().unwrap().to_owned();
    assert_eq!(said(&mount, &["class", "set", "critical", &path]), (Some(0), String::new()));
    fs::OpenOptions::new().append(true).open(&path).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(server.path("c.tmp")).unwrap(), b"text of c.tmp");
    fs::hard_link(mount.path("d.tmp"), mount.path("d.c")).unwrap();
    assert_eq!(fs::read(server.path("d.c")).unwrap(), b"text of d.tmp");
    // What is on the disk now is there for the next mount, even if memory is lost.
    mount.kill();
    let _ = fs::remove_dir_all(memory_of(&mount));
    mount.mount();
    assert_eq!(fs::read(mount.path("a.o")).unwrap(), b"text of a.tmp");
}

/// If names are at the server, bytes are too, a little later; and without a place in memory the
/// class behaves like stronger ones.
#[test]
fn without_exclusive_names_scratch_goes_to_the_server_and_says_so() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["class=scratch", "wback=1"]);
    fs::write(mount.path("file"), "scratch").unwrap();
    crate::harness::eventually("it is sent", || {
        fs::read(server.path("file")).is_ok_and(|bytes| bytes == b"scratch")
    });
    let raised = &explained(&mount, "file")["raised"];
    assert_eq!(raised, "bytes are durable within 1 s: their names are there");
    let mount = Mount::new(&server, &["class=scratch", "exclusive", "scratch=0"]);
    fs::write(mount.path("file"), "on the disk").unwrap();
    let raised = explained(&mount, "file")["raised"].as_str().unwrap().to_owned();
    assert!(raised.contains("close waits for local"), "{raised}");
    assert_eq!(local_files(&memory_of(&mount)).0, 0);
}
