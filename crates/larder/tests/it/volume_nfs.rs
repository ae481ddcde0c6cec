//! NFS clients of a volume that its own process serves: `larder serve --nfs`.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use bytes::Bytes;
use larder_vfs::{Cred, Error, New, Remote, SetAttr, Stability};
use serde_json::Value;

use crate::harness::{Mount, larder, pattern, scratch, shell_as, succeed};
use crate::ports::free_address;
use crate::reexport::{Forger, runtime};
use crate::server::Server;
use crate::shell::Shell;

/// A new volume, and where it serves NFS clients; with more options.
pub(crate) fn volume(more: &[&str]) -> (Server, SocketAddr) {
    let nfs = free_address();
    let given = nfs.to_string();
    (Server::volume(&[&["--size", "1G", "--nfs", &given], more].concat()), nfs)
}

/// Mounts it by NFS.
fn by_nfs(server: &Server, nfs: SocketAddr, options: &[&str]) -> Mount {
    let mut mount = Mount::unmounted(server, options);
    mount.set_url(format!("nfs://{nfs}/"));
    mount.mount();
    mount
}

/// `larder status --json` where the server runs.
fn status(server: &Server) -> Vec<Value> {
    let output = succeed(server.larder_here().args(["status", "--json"]));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nfs_clients_and_mounts_of_a_volume_see_what_the_other_has_closed() {
    let (server, nfs) = volume(&[]);
    let direct = Mount::new(&server, &[]);
    let (cached, plain) = (by_nfs(&server, nfs, &[]), by_nfs(&server, nfs, &["plain"]));
    let mounts = [&direct, &cached, &plain];
    fs::create_dir(cached.path("dir")).unwrap();
    for round in 0..18_usize {
        let (writer, reader) = (mounts[round % 3], mounts[(round + 1 + round / 9) % 3]);
        let data = pattern(round as u64, 1 + round * 9770);
        fs::write(writer.path("dir/shared"), &data).unwrap();
        assert!(fs::read(reader.path("dir/shared")).unwrap() == data, "round {round}");
    }
    fs::rename(plain.path("dir"), plain.path("moved")).unwrap();
    assert!(direct.path("moved/shared").exists() && !direct.path("dir").exists());

    let all = status(&server);
    let export = all.iter().find(|one| one["listen"] == nfs.to_string()).expect("it is listed");
    assert_eq!(export["source"], format!("larder://{}/", server.address()));
    assert_eq!(
        (&export["state"], &export["server"]["reachable"]),
        (&"mounted".into(), &true.into())
    );
    let volume = all.iter().find(|one| one["server"] == "volume").expect("it is listed");
    assert_eq!(volume["sessions"], 2, "that of the mount, and that of the export");
    let counted =
        succeed(server.larder_here().args(["stat", "--json", "--export", &nfs.to_string()]));
    let counted: Value = serde_json::from_slice(&counted.stdout).unwrap();
    assert!(counted["rpc"]["WRITE"]["calls"].as_u64().unwrap() > 0, "{counted}");
}

/// Both kinds of clients go on, with the same handles; none waits until the session of the export
/// that was killed is over.
#[test]
fn nfs_clients_of_a_volume_go_on_when_its_process_was_killed() {
    let (mut server, nfs) = volume(&[]);
    let (direct, mount) = (Mount::new(&server, &[]), by_nfs(&server, nfs, &["plain", "hard"]));
    fs::create_dir_all(direct.path("a/b")).unwrap();
    let bytes = pattern(3, 4 << 20);
    fs::write(direct.path("a/b/file"), &bytes).unwrap();
    let local = scratch("larder-local-");
    fs::write(local.path().join("bytes"), &bytes).unwrap();
    let (at, local) = (mount.path("a/b"), local.path());
    let (at_shown, local_shown) = (at.display(), local.display());
    let mut shell = Shell::new(Command::new("/bin/sh"));
    shell.run(&format!("exec 3<{at_shown}/file 4>{at_shown}/out"));
    shell.run(&format!("dd bs=100000 count=1 status=none <&3 >{local_shown}/read"));
    let inode = fs::metadata(at.join("file")).unwrap().ino();
    shell.run(&format!("cat {local_shown}/bytes >&4; sync {at_shown}/out; printf more >&4"));
    server.kill();
    server.restart();
    shell.run(&format!("cat <&3 >>{local_shown}/read"));
    assert!(fs::read(local.join("read")).unwrap() == bytes, "read on");
    assert_eq!(fs::metadata(at.join("file")).unwrap().ino(), inode);
    shell.run("printf ' and more' >&4");
    shell.run("exec 3<&- 4>&-");
    let expected = [&bytes[..], b"more and more"].concat();
    assert!(fs::read(direct.path("a/b/out")).unwrap() == expected);
    assert!(fs::read(mount.path("a/b/out")).unwrap() == expected);
    fs::write(direct.path("a/b/file"), b"by the other").unwrap();
    assert_eq!(fs::read(mount.path("a/b/file")).unwrap(), b"by the other");
    let all = status(&server);
    let volume = all.iter().find(|one| one["server"] == "volume").unwrap();
    assert_eq!(volume["sessions"], 2, "the killed export's ended when its next life began");
}

/// Bytes of which no client was told that they are safe are sent before the volume ends.
#[test]
fn a_served_volume_ends_in_order_with_its_export() {
    let (mut server, nfs) = volume(&[]);
    let data = Bytes::from(pattern(1, 200_000));
    runtime().block_on(async {
        let Forger { nfs, root } = &Forger::of(nfs).await;
        let cred = Cred::root();
        let made = nfs.make(&cred, root, "file".as_ref(), New::File, SetAttr::default());
        let file = made.await.unwrap().found.handle;
        let written = nfs.write(&cred, &file, None, 0, data.clone(), Stability::Unstable);
        written.await.unwrap();
    });
    server.end();
    let log = server.log();
    assert!(!log.contains("did not") && !log.contains("ERROR"), "{log}");
    server.restart();
    let direct = Mount::new(&server, &[]);
    assert!(fs::read(direct.path("file")).unwrap() == data);
}

#[test]
fn an_nfs_address_that_is_taken_is_told_before_anything_is_made() {
    let dir = scratch("larder-taken-");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut serve = larder();
    serve.env("LARDER_RUNTIME_DIR", dir.path().join("run")).arg("serve");
    serve.arg(dir.path().join("volume")).args(["--listen", "127.0.0.1:0", "--nfs", &address]);
    let done = serve.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!((done.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(&format!("--nfs: cannot listen at {address}")), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The ids that NFS clients send are judged as by `larder export`.
#[test]
fn who_does_what_on_a_volume_over_nfs_follows_from_the_options() {
    const ANN: u32 = 4001;
    let (mut server, nfs) = volume(&["--nfs-root-squash"]);
    let direct = Mount::new(&server, &["hard"]);
    for (name, mode) in [("secret", 0o600), ("public", 0o644)] {
        fs::write(direct.path(name), name).unwrap();
        fs::set_permissions(direct.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(direct.path("open")).unwrap();
    fs::set_permissions(direct.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    runtime().block_on(async {
        let forger = Forger::of(nfs).await;
        let root = Cred::root();
        let secret = forger.named(&forger.root, "secret").await;
        forger.is_kept_out_of(&root, &secret, Error::AccessDenied).await;
        let public = forger.named(&forger.root, "public").await;
        assert_eq!(forger.read(&root, &public).await, Ok(Bytes::from_static(b"public")));
    });
    let mount = by_nfs(&server, nfs, &["plain", "hard"]);
    let made = mount.path("open/made").display().to_string();
    assert!(shell_as(ANN, ANN, &format!("umask 077; echo ann > {made}")));
    let owned = fs::metadata(direct.path("open/made")).unwrap();
    assert_eq!((owned.uid(), owned.mode() & 0o777), (ANN, 0o600));
    assert!(!shell_as(ANN + 1, ANN + 1, &format!("cat {made}")));
    assert_eq!(fs::write(mount.path("new"), "").unwrap_err().raw_os_error(), Some(libc::EACCES));

    server.end();
    server.restart_with("--nfs-root-squash", "--nfs-read-only");
    // The export says so when it is asked for what a caller may do.
    let refused = fs::write(mount.path("open/made"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    let refused = fs::create_dir(mount.path("open/dir")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(mount.path("secret")).unwrap(), b"secret");
    fs::write(direct.path("open/made"), "by a mount").unwrap();
}
