//! Bad input gets one clear line, a non-zero exit code, and leaves nothing behind.

use std::fs;

use crate::harness::{Kind, Mount, Server, larder};

fn refused(mount: &Mount, code: i32, word: &str) {
    let output = mount.command().output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.contains(word), "{word:?} is not in {line:?}");
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(mount.path("").to_str().unwrap().trim_end_matches('/')));
}

#[test]
fn bad_mounts_are_refused() {
    let server = Server::start(Kind::Larder);
    refused(&Mount::unmounted(&server, &["nosuchoption"]), 2, "nosuchoption");

    let mut gone = Server::start(Kind::Larder);
    let mount = Mount::unmounted(&gone, &["timeo=10", "retrans=0"]);
    gone.kill();
    refused(&mount, 1, "refused");

    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_url(format!("{}no/such/dir", server.url()));
    refused(&mount, 1, "no/such/dir");

    let below = Mount::new(&server, &[]);
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_cache(below.path("cache"));
    refused(&mount, 1, "FUSE");

    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_mountpoint("no-such-directory");
    refused(&mount, 1, "no-such-directory");
}

#[test]
fn commands_tell_what_is_wrong() {
    for (args, code) in [
        (&["mount"][..], 2),
        (&["nonsense"][..], 2),
        (&["umount", "/nonexistent/mnt"][..], 1),
        (&["stat", "/nonexistent/mnt", "--json"][..], 1),
        (&["stat"][..], 2),
        (&["stat", "/nonexistent/mnt", "--export", "127.0.0.1:1"][..], 2),
        (&["stat", "--export", "127.0.0.1:1"][..], 1),
        (&["stat", "/nonexistent/mnt", "--series", "10us", "--out", "/nonexistent/file"][..], 2),
        (&["stat", "/nonexistent/mnt", "--series", "1ms"][..], 2),
        (
            &["stat", "--export", "127.0.0.1:1", "--series", "1ms", "--out", "/nonexistent/file"][..],
            2,
        ),
        (&["cache", "ls", "/nonexistent/cache"][..], 1),
        (&["sync", "/nonexistent/mnt"][..], 1),
        (&["export", "/nonexistent/dir", "--listen", "127.0.0.1:0"][..], 1),
    ] {
        let output = larder().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!told.is_empty(), "{args:?}");
        // The error, in one line, with the word that is wrong. For wrong usage there are further
        // lines.
        if code == 1 {
            assert_eq!(told.trim_end().lines().count(), 1, "{args:?}: {told}");
            let names = args.iter().any(|arg| told.contains(arg) && arg.len() > "export".len());
            assert!(names, "{args:?}: {told}");
        }
    }
}

#[test]
fn status_and_stat_name_what_people_and_scripts_need() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "x").unwrap();
    let mount = Mount::new(&server, &[]);
    fs::read(mount.path("file")).unwrap();
    let stat = mount.larder().args(["stat", "--json"]).arg(mount.path("")).output().unwrap();
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    let read = &stat["rpc"]["READ"];
    assert_eq!(read["calls"], 1);
    for key in ["errors", "retransmits", "bytes_sent", "bytes_received"] {
        assert!(read[key].is_u64(), "{key}");
    }
    for key in ["p50", "p99"] {
        assert!(read["latency_us"][key].is_number(), "{key}");
    }
    let shown = mount.larder().arg("status").output().unwrap();
    assert!(shown.status.success());
    assert!(String::from_utf8_lossy(&shown.stdout).contains("mnt"));
}

#[test]
fn export_ends_with_zero_on_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let mut child =
        larder().arg("export").arg(dir.path()).args(["--listen", "127.0.0.1:0"]).spawn().unwrap();
    // Before that it would end by the signal.
    crate::harness::eventually("it handles the signal", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        caught & 1 << (libc::SIGTERM - 1) != 0
    });
    crate::harness::run("kill", &["-TERM", &child.id().to_string()]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
