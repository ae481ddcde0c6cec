//! Mounts that make lost files again as soon as these are known to be lost.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use super::{Lossy, USER, larder_in, told};
use crate::harness::{Mount, eventually, larder, succeed};

/// Runs a shell's command whose output is recorded.
fn run(mount: &Mount, freshness: &str, script: &str) {
    let args = ["run", "--freshness", freshness, "--", "sh", "-c", script];
    succeed(&mut larder_in(mount, &mount.path(""), &args));
}

/// The files that stay lost, and why.
fn stay_lost(mount: &Mount) -> Vec<(String, String)> {
    let told = mount.status();
    let all = told["stay_lost"].as_array().cloned().unwrap_or_default();
    let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
    all.iter().map(|one| (text(one, "path"), text(one, "why"))).collect()
}

/// Nobody opens the files, and two mounts make them. Commands whose results always differ show that
/// each ran once.
#[test]
fn lost_files_are_made_again_at_once_and_once_by_all_mounts() {
    const FILES: u64 = 6;
    let mut lossy = Lossy::new();
    let mounts = [lossy.mount_with(&["rebuild=now"]), lossy.mount_with(&["rebuild=now"])];
    let [mount, other] = &mounts;
    for number in 1..FILES {
        run(mount, "latest", &format!("cat /proc/sys/kernel/random/uuid > out-{number}"));
    }
    run(mount, "latest", &format!("cat out-1 out-2 out-3 > out-{FILES}"));
    fs::write(mount.path("gone"), "bytes").unwrap();
    run(mount, "version", "cat gone > out-gone");
    fs::rename(mount.path("gone"), mount.path("moved")).unwrap();
    fs::write(mount.path("out-no-rule"), "bytes").unwrap();

    lossy.lose_at_once();
    let all = || mounts.iter().map(|mount| told(mount, "made")).sum::<u64>();
    eventually("all are made", || all() == FILES);
    let why = "its input gone is missing";
    for mount in &mounts {
        eventually("it is known what cannot be made", || !stay_lost(mount).is_empty());
        let path = mount.path("out-gone").display().to_string();
        assert_eq!(stay_lost(mount), [(path, why.to_owned())]);
        eventually("nothing is left to do", || {
            told(mount, "running") + told(mount, "waiting") == 0
        });
    }
    let read =
        |mount: &Mount, number| fs::read_to_string(mount.path(&format!("out-{number}"))).unwrap();
    let (here, there): (Vec<_>, Vec<_>) =
        (1..=FILES).map(|number| (read(mount, number), read(other, number))).unzip();
    assert_eq!(here, there);
    assert_eq!(here[5], here[..3].concat(), "out of those that were made again");
    assert_eq!(all(), FILES, "each was made once");
    let mut told = [0; 8];
    let lost = rustix::fs::getxattr(mount.path("out-no-rule"), "user.larder.lost", &mut told[..]);
    assert_eq!(lost, Ok(1), "nothing says how it was made");

    // What is made by hand is not listed any more, on any mount.
    fs::rename(mount.path("moved"), mount.path("gone")).unwrap();
    succeed(&mut larder_in(other, &other.path(""), &["rebuild", "out-gone"]));
    for mount in &mounts {
        assert_eq!(stay_lost(mount), []);
    }
    let shown = succeed(mount.larder().arg("status")).stdout;
    assert!(String::from_utf8(shown).unwrap().contains("made again, 0 being made, 0 waiting"));
}

/// Root's daemon has each file made by a process of its owner. The commands tell which user runs
/// them: one by what it makes, the other by how it fails.
#[test]
fn what_is_made_at_once_is_made_as_its_owner() {
    let mut lossy = Lossy::new();
    let mount = lossy.mount_with(&["rebuild=now"]);
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    run(&mount, "version", "id -u > out-root");
    fs::write(dir.join("out-failed"), "bytes").unwrap();
    for path in [&dir, &dir.join("out-failed")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let as_user = |args: &[&str]| {
        succeed(larder_in(&mount, &dir, args).uid(USER).gid(USER));
    };
    as_user(&["run", "--", "sh", "-c", "id -u > out-id"]);
    let fails = ["class", "rebuild", "out-failed", "--", "sh", "-c", "id -u >&2; exit 3"];
    as_user(&fails);

    lossy.lose_at_once();
    eventually("both are made", || told(&mount, "made") == 2);
    eventually("it is known what cannot be made", || !stay_lost(&mount).is_empty());
    let why = format!("the command ended with status 3: {USER}");
    assert_eq!(stay_lost(&mount), [(dir.join("out-failed").display().to_string(), why)]);
    for (path, user) in [(mount.path("out-root"), 0), (dir.join("out-id"), USER)] {
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{user}\n"));
        assert_eq!(fs::metadata(&path).unwrap().uid(), user);
    }
}

/// A mount that makes files ends as soon as one that does not; and goes on if it stays.
#[test]
fn what_is_made_at_once_does_not_keep_the_mount() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount_with(&["rebuild=now"]);
    fs::write(mount.path("out-slow"), "bytes").unwrap();
    let slow = ["class", "rebuild", "out-slow", "--", "sleep", "1000"];
    succeed(&mut larder_in(&mount, &mount.path(""), &slow));
    lossy.lose_at_once();
    let sandboxes = || {
        let all = fs::read_dir("/var/tmp").unwrap().map(|entry| entry.unwrap().path());
        let ours = |dir: &Path| fs::read_dir(dir.join("root").join(mount_root(&mount))).is_ok();
        all.filter(|dir| ours(dir)).count()
    };
    eventually("it is being made", || told(&mount, "running") == 1 && sandboxes() > 0);
    // It is in use.
    let open = fs::File::open(mount.path("")).unwrap();
    assert!(!mount.larder().arg("umount").arg(mount.path("")).status().unwrap().success());
    eventually("it is made anew", || told(&mount, "running") == 1);
    drop(open);
    mount.unmount();
}

/// A sandbox asks the kernel to end it with its parent. If that was killed before, nobody ends the
/// command.
#[test]
fn a_sandbox_whose_parent_is_gone_begins_nothing() {
    let text = |text: &str| serde_json::json!({ "Unix": text.as_bytes() });
    let cell = serde_json::json!({
        "root": text("/"), "dir": text("/"), "command": [text("sleep"), text("1000")],
        "shown": [], "copied": [], "dirs": [], "links": [], "environment": [],
    });
    let mut sandbox = larder();
    sandbox.arg0("larder-confined").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sandbox = sandbox.spawn().unwrap();
    // As if the parent died when it had written this.
    writeln!(sandbox.stdin.take().unwrap(), "{cell}").unwrap();
    let end = sandbox.wait_with_output().unwrap().stdout;
    let end = String::from_utf8(end).unwrap();
    assert!(end.contains("the process that asked for it is gone"), "{end}");
}

/// Where a mount is, for a path below another directory.
fn mount_root(mount: &Mount) -> String {
    mount.path("").display().to_string().trim_matches('/').to_owned()
}

/// A command that makes lost files need not wait until the server has noticed the loss, whatever
/// the mount knows of them.
#[test]
fn who_asks_for_lost_files_has_the_loss_noticed() {
    let mut lossy = Lossy::new();
    let mount = lossy.mount();
    run(&mount, "version", "echo bytes > out");
    for _ in 0..3 {
        assert_eq!(fs::read_to_string(mount.path("out")).unwrap(), "bytes\n");
        lossy.lose_at_once();
        let made = succeed(&mut larder_in(&mount, &mount.path(""), &["rebuild", "out"]));
        let made = String::from_utf8(made.stdout).unwrap();
        assert_eq!(made, format!("made {}\n", mount.path("out").display()));
    }
}
