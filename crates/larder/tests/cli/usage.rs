//! Wrong usage and failures: one line, the right exit code, nothing left behind.

use crate::ground::Ground;

#[test]
fn an_unknown_option_names_what_was_meant() {
    let ground = Ground::new();
    let mnt = ground.text("mnt");
    let line = ground.larder(&["mount", "nfs://server/", &mnt, "-o", "ro,rsise=1M"]).fails(2);
    assert!(line.contains("did you mean rsize"), "{line}");
}

#[test]
fn a_bad_source_is_wrong_usage() {
    let ground = Ground::new();
    for source in ["smb://server/share", "server", "nfs://"] {
        ground.larder(&["mount", source, &ground.text("mnt")]).fails(2);
    }
}

#[test]
fn plain_with_a_cache_is_wrong_usage() {
    let ground = Ground::new();
    let (mnt, cache) = (ground.text("mnt"), ground.text("cache"));
    let args = ["mount", "nfs://server/", &mnt, "--cache", &cache, "-o", "plain"];
    let line = ground.larder(&args).fails(2);
    assert!(line.contains("--cache none"), "{line}");
}

#[test]
fn a_failed_mount_leaves_nothing() {
    let ground = Ground::new();
    let (source, mnt, cache) = (ground.source(), ground.text("mnt"), ground.text("cache"));
    for more in [&[][..], &["--foreground"]] {
        let args = [&["mount", &source, &mnt, "--cache", &cache], more].concat();
        let line = ground.larder(&args).fails(1);
        assert!(line.contains(&source), "{line}");
        assert!(!ground.is_mounted());
        assert!(!ground.path("cache").exists());
        let left =
            std::fs::read_dir(ground.path("run")).unwrap().map(|entry| entry.unwrap().path());
        let left: Vec<_> =
            left.filter(|path| path.extension().is_none_or(|kind| kind != "log")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_mountpoint_in_use_is_told() {
    let ground = Ground::new();
    let line = ground.larder(&["mount", "nfs://server/", "/proc"]).fails(1);
    assert!(line.contains("busy"), "{line}");
}

#[test]
fn nothing_is_mounted() {
    let ground = Ground::new();
    assert_eq!(ground.larder(&["status"]).ok(), "nothing is mounted\n");
    assert!(ground.status().is_empty());
    for command in ["umount", "stat", "status"] {
        ground.larder(&[command, &ground.text("mnt")]).fails(1);
    }
}

#[test]
fn traces_of_a_dead_daemon_without_a_mount_are_removed() {
    let ground = Ground::new();
    ground.status();
    let record = serde_json::json!({
        "mountpoint": ground.text("mnt"), "source": "nfs://server/", "cache": null, "pid": 1, "log": null
    });
    std::fs::write(ground.path("run/0123.json"), record.to_string()).unwrap();
    // Its name is made from the mountpoint, so only a mount that is there would be found again.
    assert!(ground.status().is_empty());
}
