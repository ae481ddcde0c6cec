//! An export of a cached server: one machine fetches for all, and answers like a file server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::harness::{Kind, Mount, Server, eventually, pattern, scratch, shell_as, succeed};
use crate::shell::Shell;

/// Calls of a procedure that an export made to the server behind it.
fn asked_behind(export: &Server, procedure: &str) -> u64 {
    let output = succeed(export.stat().arg("--json"));
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stat["behind"]["rpc"][procedure]["calls"].as_u64().unwrap_or(0)
}

#[test]
fn what_one_client_read_the_next_one_gets_from_the_cache() {
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba] {
        let server = Server::start(kind);
        let bytes = pattern(1, 3 << 20);
        fs::create_dir(server.path("dir")).unwrap();
        fs::write(server.path("dir/file"), &bytes).unwrap();
        let export = Server::reexport(&server, &[]);
        let one = Mount::new(&export, &[]);
        assert!(fs::read(one.path("dir/file")).unwrap() == bytes, "{kind:?}");
        let cold = asked_behind(&export, "READ");
        assert!(cold > 0, "{kind:?}");
        let two = Mount::plain(&export, &[]);
        assert!(fs::read(two.path("dir/file")).unwrap() == bytes, "{kind:?}");
        assert_eq!(asked_behind(&export, "READ"), cold, "{kind:?}");
        assert_eq!(fs::read_dir(two.path("dir")).unwrap().count(), 1, "{kind:?}");
    }
}

#[test]
fn changes_go_through_to_the_server_and_to_the_other_clients() {
    for kind in [Kind::Larder, Kind::Samba] {
        let server = Server::start(kind);
        let export = Server::reexport(&server, &[]);
        let (one, two) = (Mount::new(&export, &[]), Mount::new(&export, &[]));
        let bytes = pattern(2, 2 << 20);
        fs::create_dir(one.path("dir")).unwrap();
        fs::write(one.path("dir/file"), &bytes).unwrap();
        assert!(fs::read(server.path("dir/file")).unwrap() == bytes, "{kind:?}: at close");
        assert!(fs::read(two.path("dir/file")).unwrap() == bytes, "{kind:?}");
        fs::write(two.path("dir/file"), b"shorter").unwrap();
        assert_eq!(fs::read(one.path("dir/file")).unwrap(), b"shorter", "{kind:?}: close-to-open");
        fs::rename(one.path("dir/file"), one.path("moved")).unwrap();
        assert_eq!(fs::read(server.path("moved")).unwrap(), b"shorter", "{kind:?}");
        fs::remove_file(one.path("moved")).unwrap();
        assert!(!server.path("moved").exists(), "{kind:?}");
    }
}

/// A file server does not know which files are open, so it lets the owner read and write a file
/// whatever its mode is (RFC 1813, 4.4).
#[test]
fn an_owner_reads_and_writes_what_is_open_whatever_its_mode_becomes() {
    const ANN: u32 = 1000;
    for (kind, options) in [
        (Kind::Larder, &[][..]),
        (Kind::Ganesha, &[]),
        // There all files are the same user's.
        (Kind::Samba, &["uid=1000", "gid=1000"]),
    ] {
        let server = Server::start(kind);
        let export = Server::reexport(&server, options);
        let mount = Mount::new(&export, &[]);
        fs::create_dir(mount.path("dir")).unwrap();
        fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o777)).unwrap();
        let name = |name: &str| mount.path("dir").join(name).display().to_string();
        let made = format!("umask 0222; exec 3>{}; echo made >&3; exec 3>&-", name("made"));
        assert!(shell_as(ANN, ANN, &made), "{kind:?}");
        assert_eq!(fs::read(server.path("dir/made")).unwrap(), b"made\n", "{kind:?}");
        let file = name("changed");
        assert!(shell_as(ANN, ANN, &format!("echo before > {file}")), "{kind:?}");
        let changed = format!("exec 3>>{file} 4<{file}; chmod 0 {file}; echo after >&3; exec 3>&-");
        assert!(shell_as(ANN, ANN, &format!("{changed}; test \"$(wc -l <&4)\" -eq 2")), "{kind:?}");
        // A share knows no mode that bars from reading.
        let reads = shell_as(ANN, ANN, &format!("cat {file}"));
        assert_eq!(reads, kind == Kind::Samba, "{kind:?}: an open is judged");
        assert!(!shell_as(ANN + 1, ANN + 1, &format!("echo more >> {}", name("made"))), "{kind:?}");
        assert_eq!(fs::read(server.path("dir/changed")).unwrap(), b"before\nafter\n", "{kind:?}");
    }
}

/// Changes behind an export are seen through it as through a mount: at the next open by a client
/// whose own attributes have expired.
#[test]
fn what_changes_behind_it_is_seen_through_it() {
    for kind in [Kind::Larder, Kind::Samba] {
        let server = Server::start(kind);
        fs::write(server.path("file"), b"before").unwrap();
        let export = Server::reexport(&server, &["actimeo=1"]);
        let mount = Mount::new(&export, &["actimeo=1"]);
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"before");
        let direct = Mount::new(&server, &[]);
        fs::write(direct.path("file"), b"and after").unwrap();
        eventually("the change arrives", || fs::read(mount.path("file")).unwrap() == b"and after");
    }
}

#[test]
fn handles_and_acknowledged_writes_survive_its_death() {
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba] {
        let server = Server::start(kind);
        fs::create_dir_all(server.path("a/b")).unwrap();
        let bytes = pattern(3, 4 << 20);
        fs::write(server.path("a/b/file"), &bytes).unwrap();
        let mut export = Server::reexport(&server, &[]);
        let mount = Mount::new(&export, &["hard"]);
        let local = scratch("larder-local-");
        fs::write(local.path().join("bytes"), &bytes).unwrap();
        let (at, local) = (mount.path("a/b"), local.path());
        let (at_shown, local_shown) = (at.display(), local.display());
        let mut shell = Shell::new(Command::new("/bin/sh"));
        shell.run(&format!("exec 3<{at_shown}/file 4>{at_shown}/out"));
        shell.run(&format!("dd bs=100000 count=1 status=none <&3 >{local_shown}/read"));
        let inode = fs::metadata(at.join("file")).unwrap().ino();
        shell.run(&format!("cat {local_shown}/bytes >&4; sync {at_shown}/out; printf more >&4"));
        export.kill();
        export.restart();
        shell.run(&format!("cat <&3 >>{local_shown}/read"));
        assert!(fs::read(local.join("read")).unwrap() == bytes, "{kind:?}: read on");
        assert_eq!(fs::metadata(at.join("file")).unwrap().ino(), inode, "{kind:?}");
        shell.run("printf ' and more' >&4");
        shell.run("exec 3<&- 4>&-");
        let expected = [&bytes[..], b"more and more"].concat();
        assert!(fs::read(server.path("a/b/out")).unwrap() == expected, "{kind:?}");
        assert!(fs::read(mount.path("a/b/out")).unwrap() == expected, "{kind:?}");
    }
}

/// The content of an export's cache can be listed, filled, checked and trimmed while it serves.
#[test]
fn commands_work_on_the_cache_of_an_export() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(4, 300_000);
    fs::create_dir_all(server.path("dir/sub")).unwrap();
    for name in ["dir/one", "dir/sub/two", "beside"] {
        fs::write(server.path(name), &bytes).unwrap();
    }
    let export = Server::reexport(&server, &[]);
    let at = export.address().to_string();
    let asked = |args: &[&str]| {
        let output = succeed(export.larder_here().args(args));
        String::from_utf8(output.stdout).unwrap()
    };
    let all: serde_json::Value = serde_json::from_str(&asked(&["status", "--json"])).unwrap();
    let [status] = all.as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!(
        (status["listen"].as_str(), status["state"].as_str()),
        (Some(&*at), Some("mounted"))
    );
    assert!(status["server"]["reachable"].as_bool().unwrap());
    let cache = status["cache"]["dir"].as_str().unwrap().to_owned();
    for shown in [asked(&["status"]), asked(&["status", &at])] {
        assert!(shown.contains(&format!("export at {at}")) && shown.contains(&cache), "{shown}");
    }

    let warmed = asked(&["cache", "warm", &format!("{at}/dir")]);
    assert!(warmed.starts_with("2 files"), "{warmed}");
    let warm = asked_behind(&export, "READ");
    let mount = Mount::plain(&export, &[]);
    for name in ["dir/one", "dir/sub/two"] {
        assert!(fs::read(mount.path(name)).unwrap() == bytes);
    }
    assert_eq!(asked_behind(&export, "READ"), warm, "they were cached");
    for target in [&*at, &cache] {
        let listed = asked(&["cache", "ls", target]);
        assert!(listed.contains("dir/one") && listed.contains("dir/sub/two"), "{listed}");
        assert!(!listed.contains("beside"), "{listed}");
        assert!(asked(&["cache", "verify", target]).contains(" 0 wrong"));
    }
    asked(&["cache", "pin", &format!("{at}/dir/one")]);
    asked(&["cache", "cull", &cache, "--to", "0"]);
    let listed = asked(&["cache", "ls", &at]);
    assert!(listed.contains("dir/one") && listed.contains("(pinned)"), "{listed}");
    assert!(!listed.contains("dir/sub/two"), "{listed}");
}
