//! Mounts from beginning to end, over our own server.

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use crate::ground::{Ground, send_signal, wait_until};

/// Content that differs at every place.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251) % 256) as u8).collect()
}

#[test]
fn rereading_after_remount_costs_no_read() {
    let ground = Ground::with_server();
    let bytes = content(3 << 20);
    std::fs::write(ground.path("export/file"), &bytes).unwrap();
    ground.mount(&[]);
    assert_eq!(std::fs::read(ground.path("mnt/file")).unwrap(), bytes);
    assert!(ground.calls("READ") > 0);
    ground.umount();
    assert!(!ground.is_mounted());
    ground.mount(&[]);
    assert_eq!(std::fs::read(ground.path("mnt/file")).unwrap(), bytes);
    assert_eq!(ground.calls("READ"), 0);
    ground.umount();
}

#[test]
fn the_plain_client_reads_and_writes() {
    let ground = Ground::with_server();
    ground.mount(&["--cache", "none", "-o", "plain"]);
    let bytes = content(300_000);
    std::fs::write(ground.path("mnt/new"), &bytes).unwrap();
    assert_eq!(std::fs::read(ground.path("export/new")).unwrap(), bytes);
    assert_eq!(std::fs::read(ground.path("mnt/new")).unwrap(), bytes);
    assert!(ground.status()[0]["cache"].is_null());
    ground.umount();
}

#[test]
fn what_is_closed_is_on_the_server() {
    let ground = Ground::with_server();
    ground.mount(&[]);
    let bytes = content(1_000_000);
    std::fs::write(ground.path("mnt/new"), &bytes).unwrap();
    assert_eq!(std::fs::read(ground.path("export/new")).unwrap(), bytes);
    ground.umount();
}

#[test]
fn status_and_stat_tell_of_the_mount() {
    let ground = Ground::with_server();
    ground.mount(&[]);
    let status = ground.status();
    assert_eq!(status.len(), 1);
    assert_eq!(status[0]["state"], "mounted");
    assert_eq!(status[0]["source"], ground.source());
    assert_eq!(status[0]["server"]["reachable"], true);
    assert_eq!(status[0]["cache"]["dir"], ground.text("cache"));
    let shown = ground.larder(&["status", &ground.text("mnt")]).ok();
    assert!(shown.contains("answers"), "{shown}");
    assert!(ground.larder(&["stat", &ground.text("mnt")]).ok().contains("procedure"));
    ground.umount();
    assert!(ground.status().is_empty());
}

#[test]
fn one_mountpoint_and_one_cache_serve_one_mount() {
    let ground = Ground::with_server();
    ground.mount(&[]);
    let (source, mnt, other, cache) =
        (ground.source(), ground.text("mnt"), ground.text("other"), ground.text("cache"));
    std::fs::create_dir(&other).unwrap();
    let line = ground.larder(&["mount", &source, &mnt, "--cache", "none"]).fails(1);
    assert!(line.contains("busy"), "{line}");
    let line = ground.larder(&["mount", &source, &other, "--cache", &cache]).fails(1);
    assert!(line.contains("in use"), "{line}");
    assert!(ground.larder(&["cache", "verify", &cache]).ok().contains("0 wrong"));
    ground.umount();
}

#[test]
fn a_cache_on_the_mount_is_refused() {
    let ground = Ground::with_server();
    ground.mount(&[]);
    let (source, other, cache) = (ground.source(), ground.text("other"), ground.text("mnt/cache"));
    std::fs::create_dir(&other).unwrap();
    let line = ground.larder(&["mount", &source, &other, "--cache", &cache]).fails(1);
    assert!(line.contains("FUSE"), "{line}");
    assert!(!ground.path("export/cache").exists(), "the directory is removed again");
    ground.umount();
}

#[test]
fn a_mount_in_use_is_not_unmounted() {
    let ground = Ground::with_server();
    std::fs::write(ground.path("export/file"), "abc").unwrap();
    ground.mount(&[]);
    let mut file = std::fs::File::open(ground.path("mnt/file")).unwrap();
    let mnt = ground.text("mnt");
    let line = ground.larder(&["umount", &mnt]).fails(1);
    assert!(line.contains("in use"), "{line}");
    assert!(ground.is_mounted());
    ground.larder(&["umount", "--lazy", &mnt]).ok();
    assert!(!ground.is_mounted());
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "abc");
}

#[test]
fn a_signal_unmounts_in_the_foreground() {
    let ground = Ground::with_server();
    let (source, mnt) = (ground.source(), ground.text("mnt"));
    let mut daemon = ground.start(&["mount", &source, &mnt, "--cache", "none", "--foreground"]);
    wait_until("the mount is made", || ground.is_mounted());
    wait_until("the daemon answers", || {
        ground.status().first().is_some_and(|one| one["state"] == "mounted")
    });
    send_signal(daemon.id(), "INT");
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    assert!(!ground.is_mounted());
}

#[test]
fn umount_removes_the_mount_of_a_killed_daemon() {
    let ground = Ground::with_server();
    ground.mount(&[]);
    send_signal(ground.daemon(), "KILL");
    wait_until("the daemon is dead", || {
        ground.status().first().is_some_and(|one| one["state"] == "dead")
    });
    let begin = Instant::now();
    ground.umount();
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(!ground.is_mounted());
    assert!(ground.status().is_empty());
    ground.mount(&[]);
    ground.umount();
}

#[test]
fn umount_returns_when_the_server_is_dead() {
    let mut ground = Ground::with_server();
    std::fs::write(ground.path("export/file"), "abc").unwrap();
    ground.mount(&[]);
    assert_eq!(std::fs::read(ground.path("mnt/file")).unwrap(), b"abc");
    ground.kill_server();
    let begin = Instant::now();
    ground.umount();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(!ground.is_mounted());
}

#[test]
fn status_answers_when_the_server_is_dead() {
    let mut ground = Ground::with_server();
    ground.mount(&["-o", "timeo=10,retrans=1"]);
    ground.kill_server();
    let begin = Instant::now();
    assert_eq!(ground.status()[0]["state"], "mounted");
    ground.larder(&["stat", &ground.text("mnt"), "--json"]).ok();
    ground.larder(&["cache", "ls", &ground.text("mnt")]).ok();
    assert!(begin.elapsed() < Duration::from_secs(5));
    ground.umount();
}

#[test]
fn cache_commands_work_mounted_and_not() {
    let ground = Ground::with_server();
    let bytes = content(1 << 20);
    std::fs::write(ground.path("export/file"), &bytes).unwrap();
    ground.mount(&[]);
    let (mnt, cache) = (ground.text("mnt"), ground.text("cache"));
    ground.larder(&["cache", "warm", &mnt]).ok();
    ground.larder(&["cache", "pin", &ground.text("mnt/file")]).ok();
    let listed = ground.larder(&["cache", "ls", &mnt, "--json"]).ok();
    let file: serde_json::Value = serde_json::from_str(listed.trim()).unwrap();
    assert_eq!((&file["held_bytes"], &file["pinned"]), (&(1 << 20).into(), &true.into()));
    assert!(ground.larder(&["cache", "cull", &mnt, "--to", "0"]).ok().starts_with("0 files"));
    ground.umount();
    assert!(ground.larder(&["cache", "verify", &cache]).ok().contains("0 wrong"));
    assert_eq!(ground.larder(&["cache", "ls", &cache]).ok().lines().count(), 1);
    ground.larder(&["cache", "drop", &cache]).ok();
    assert_eq!(ground.larder(&["cache", "ls", &cache]).ok(), "");
}

#[test]
fn verify_finds_a_corrupted_byte_and_reads_give_the_servers() {
    let ground = Ground::with_server();
    let bytes = content(1 << 20);
    std::fs::write(ground.path("export/file"), &bytes).unwrap();
    ground.mount(&[]);
    assert_eq!(std::fs::read(ground.path("mnt/file")).unwrap(), bytes);
    ground.umount();
    assert_eq!(corrupt_data_files(&ground.path("cache/data")), 1);
    let said = ground.larder(&["cache", "verify", &ground.text("cache")]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("1 wrong"), "{said:?}");
    ground.mount(&[]);
    assert_eq!(std::fs::read(ground.path("mnt/file")).unwrap(), bytes);
    ground.umount();
}

/// Changes a byte in the middle of every data file; answers how many there are.
fn corrupt_data_files(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            if path.is_dir() {
                return corrupt_data_files(&path);
            }
            let mut file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
            file.seek(SeekFrom::Start(middle)).unwrap();
            file.read_exact(&mut byte).unwrap();
            file.seek(SeekFrom::Start(middle)).unwrap();
            file.write_all(&[!byte[0]]).unwrap();
            1
        })
        .sum()
}

#[test]
fn the_server_ends_well_on_a_signal() {
    let mut ground = Ground::with_server();
    assert_eq!(ground.end_server(), Some(0));
}
