//! Mounts that begin, or go on, while their server is away.

use std::fs;

use crate::harness::{Kind, Mount, Server, eventually, pattern, run, said, succeed};
use crate::unmounts::{TRIES, is_unmounted_in_time};

/// Servers that can be killed and started again.
const KINDS: [Kind; 2] = [Kind::Larder, Kind::Samba];

/// Calls end after nine seconds, which a running server does not take even on a busy machine;
/// attributes are trusted for zero seconds.
const IMPATIENT: [&str; 2] = ["timeo=30", "actimeo=0"];

fn is_reachable(mount: &Mount) -> bool {
    mount.status()["server"]["reachable"].as_bool().unwrap()
}

/// A worker that begins while the server is silent, after a death or an upgrade, serves cached
/// files. Commands answer, and once the server is back everything works as before.
#[test]
fn workers_begin_without_a_silent_server() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 200_000);
    fs::write(server.path("cached"), &bytes).unwrap();
    fs::write(server.path("other"), "here").unwrap();
    let mount = Mount::new(&server, &IMPATIENT);
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    server.freeze();
    let [_, first] = mount.pids();
    succeed(mount.larder().arg("upgrade").arg(mount.path("")));
    let [_, second] = mount.pids();
    assert_ne!(first, second);
    assert!(fs::read(mount.path("cached")).unwrap() == bytes, "after an upgrade");
    assert!(!is_reachable(&mount));

    run("kill", &["-KILL", &second.to_string()]);
    eventually("another worker serves", || mount.pids()[1] != second);
    assert!(fs::read(mount.path("cached")).unwrap() == bytes, "after a death");
    let status = mount.status();
    let problem = status["server"]["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("no answer within 5 s"), "{problem}");
    let error = fs::read(mount.path("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));

    fs::write(server.path("cached"), "changed").unwrap();
    server.thaw();
    eventually("the server is used again", || is_reachable(&mount));
    assert_eq!(fs::read(mount.path("cached")).unwrap(), b"changed");
    assert_eq!(fs::read(mount.path("other")).unwrap(), b"here");
}

/// With option `bg` a mount begins with the content of its cache, and what is written then is sent
/// when the server is back.
#[test]
fn a_mount_begins_without_its_server() {
    for kind in KINDS {
        let mut server = Server::start(kind);
        let bytes = pattern(2, 100_000);
        fs::create_dir(server.path("dir")).unwrap();
        fs::write(server.path("dir/cached"), &bytes).unwrap();
        fs::write(server.path("dir/edited"), "first\n").unwrap();
        fs::write(server.path("dir/gone"), "first\n").unwrap();
        fs::write(server.path("dir/unread"), "not cached").unwrap();
        let mut mount = Mount::new(&server, &[&IMPATIENT[..], &["bg"]].concat());
        for name in ["cached", "edited", "gone"] {
            fs::read(mount.path("dir").join(name)).unwrap();
        }
        run("ls", &["-l", mount.path("dir").to_str().unwrap()]);
        mount.unmount();
        server.kill();

        mount.mount();
        let names = |path| {
            let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        };
        assert_eq!(names(mount.path("dir")), ["cached", "edited", "gone", "unread"], "{kind:?}");
        assert!(fs::read(mount.path("dir/cached")).unwrap() == bytes, "{kind:?}");
        let error = fs::read(mount.path("dir/unread")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{kind:?}");
        assert!(!is_reachable(&mount));
        let problem = mount.status()["server"]["problem"].as_str().unwrap().to_owned();
        assert!(problem.contains("check"), "{kind:?}: {problem}");
        // close(2) reports that the server does not have it; it is not lost.
        for name in ["edited", "gone"] {
            let script = format!("echo second >>{}", mount.path("dir").join(name).display());
            drop(std::process::Command::new("sh").args(["-c", &script]).output().unwrap());
        }
        assert_eq!(fs::read(mount.path("dir/edited")).unwrap(), b"first\nsecond\n", "{kind:?}");
        assert_eq!(mount.status()["dirty"]["files"], 2, "{kind:?}");
        let (code, unsent) =
            said(&mount, &["cache", "ls", "--unsent", mount.path("").to_str().unwrap()]);
        // The unsent bytes are exact even for files that the kernel wrote itself.
        let wanted = "  dir/edited  (7 B unsent)\n";
        assert!(unsent.contains(wanted), "{kind:?}: {unsent}");
        assert_eq!(code, Some(3), "{kind:?}");

        fs::remove_file(server.path("dir/gone")).unwrap();
        server.restart();
        eventually("the server is used", || is_reachable(&mount));
        assert_eq!(fs::read(mount.path("dir/unread")).unwrap(), b"not cached", "{kind:?}");
        let sent = || fs::read(server.path("dir/edited")).unwrap() == b"first\nsecond\n";
        eventually("what was written is sent", sent);
        eventually("what the server refuses is kept", || mount.status()["cache"]["set_aside"] == 1);
        let kept = fs::read_dir(mount.cache().join("set-aside")).unwrap().next().unwrap().unwrap();
        assert!(kept.file_name().to_str().unwrap().ends_with("_dir_gone"), "{kept:?}");
        assert_eq!(fs::read(kept.path()).unwrap(), b"first\nsecond\n", "{kind:?}");
        fs::write(server.path("dir/cached"), "changed").unwrap();
        eventually("changes are seen", || {
            fs::read(mount.path("dir/cached")).unwrap() == b"changed"
        });
    }
}

/// Without `bg` it does not, and says what would help; nor does a mount with an empty cache, or one
/// that the server refuses.
#[test]
fn a_mount_without_its_server_is_asked_for() {
    let why = |mount: &Mount| {
        let failed = mount.command().output().unwrap();
        let text = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success(), "{text}");
        text
    };
    let mut server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    mount.unmount();
    server.kill();
    let text = why(&mount);
    assert!(text.contains("option bg mounts what"), "{text}");

    for options in [&["fg"], &["bg", "retry=0"][..]] {
        let unseen = Mount::unmounted(&server, options);
        let text = why(&unseen);
        assert!(!text.contains("option bg"), "{text}");
        assert!(!unseen.cache().exists());
        assert_eq!(said(&unseen, &["status"]).1, "nothing is mounted\n");
    }

    let mut samba = Server::start(Kind::Samba);
    let mut mount = Mount::new(&samba, &["bg"]);
    mount.unmount();
    samba.as_samba().set_password("another").unwrap();
    let text = why(&mount);
    assert!(text.contains("the password"), "{text}");
}

/// Nothing is cached: with `bg` the command returns, and the mount appears when the server answers.
#[test]
fn a_server_that_was_never_seen_is_tried_in_the_background() {
    for (kind, option) in
        [(Kind::Larder, "survive"), (Kind::Larder, "nosurvive"), (Kind::Samba, "survive")]
    {
        let mut server = Server::start(kind);
        fs::write(server.path("file"), "late").unwrap();
        let mut mount = Mount::unmounted(&server, &["bg", option]);
        server.kill();
        mount.mount();
        let status = mount.status();
        assert_eq!(status["state"], "trying", "{kind:?}: {status}");
        let problem = status["server"]["problem"].as_str().unwrap();
        assert!(problem.contains("cannot mount"), "{kind:?}: {problem}");
        assert!(!mount.cache().exists() && !mount.path("file").exists());
        let (code, told) = said(&mount, &["stat", mount.path("").to_str().unwrap()]);
        assert!(code == Some(1) && told.contains("not mounted yet"), "{kind:?}: {told}");
        let again = mount.command().output().unwrap();
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(!again.status.success() && told.contains("is trying to mount"), "{told}");
        eventually("a second try fails", || mount.log().matches("next try in").count() > 1);
        server.restart();
        eventually("it is mounted", || mount.status()["state"] == "mounted");
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"late", "{kind:?}");
        mount.unmount();
        assert_eq!(said(&mount, &["status"]).1, "nothing is mounted\n");
    }
}

/// `larder umount` and a signal end the attempts; so does a running server that refuses the mount.
#[test]
fn a_mount_that_is_tried_can_be_ended() {
    let mut server = Server::start(Kind::Larder);
    server.kill();
    for option in ["survive", "nosurvive"] {
        for signal in [false, true] {
            let mut mount = Mount::unmounted(&server, &["bg", option]);
            mount.mount();
            assert_eq!(mount.status()["state"], "trying");
            if signal {
                let [keeper, _] = mount.pids();
                run("kill", &[&keeper.to_string()]);
            } else {
                mount.unmount();
            }
            let status = || said(&mount, &["status"]).1;
            eventually("it is ended", || status() == "nothing is mounted\n");
            assert!(mount.log().contains("given up before it was made"), "{}", mount.log());
        }
    }
    let mut mount = Mount::unmounted(&server, &["bg"]);
    mount.set_url(format!("{}missing", server.url()));
    mount.mount();
    server.restart();
    eventually("it is refused", || said(&mount, &["status"]).1 == "nothing is mounted\n");
    let log = mount.log();
    assert!(log.contains("given up after") && log.contains("has no export /missing"), "{log}");
}

/// It unmounts, and ends in time, before the server was ever there.
#[test]
fn a_mount_without_its_server_unmounts_in_time() {
    let in_time = (0..TRIES).any(|_| {
        let mut server = Server::start(Kind::Larder);
        fs::write(server.path("cached"), "here").unwrap();
        let mut mount = Mount::new(&server, &["bg", "hard"]);
        fs::read(mount.path("cached")).unwrap();
        mount.unmount();
        server.kill();
        mount.mount();
        assert_eq!(fs::read(mount.path("cached")).unwrap(), b"here");
        let path = mount.path("absent");
        let waiting = std::thread::spawn(move || fs::read(path));
        let in_time = is_unmounted_in_time(&mount);
        assert!(waiting.join().unwrap().is_err());
        in_time
    });
    assert!(in_time);
}
