//! An export of a cached server: one machine fetches for all, and answers as a file server does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::harness::{Kind, Mount, Server, eventually, pattern, scratch, succeed};
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

/// What changes behind an export is seen through it as through a mount: at the next open of a client
/// whose own attributes are not trusted any more.
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
