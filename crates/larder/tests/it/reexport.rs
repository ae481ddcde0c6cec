//! An export of a cached server: one machine fetches for all, and answers like a file server.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use bytes::Bytes;
use larder_remote::nfs3::{MountOptions, Nfs3};
use larder_vfs::{Cookie, Cred, Error, Handle, New, Remote, Removal, SetAttr, Stability};

use crate::harness::{Kind, Mount, Server, eventually, pattern, scratch, shell_as, succeed};
use crate::shell::Shell;
use crate::volume_nfs;

/// The files behind an export, as others than the export see them.
enum Behind {
    /// The server's own directory.
    Directory(PathBuf),
    /// A volume has none: another mount of it.
    Volume(Mount),
}

impl Behind {
    fn of(kind: Kind, server: &Server) -> Behind {
        match kind {
            Kind::Volume => Behind::Volume(Mount::new(server, &[])),
            Kind::Larder | Kind::Ganesha | Kind::Samba => Behind::Directory(server.path("")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Behind::Directory(dir) => dir.join(name),
            Behind::Volume(mount) => mount.path(name),
        }
    }
}

/// Calls of a procedure that an export made to the server behind it.
fn asked_behind(export: &Server, procedure: &str) -> u64 {
    let output = succeed(export.stat().arg("--json"));
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stat["behind"]["rpc"][procedure]["calls"].as_u64().unwrap_or(0)
}

#[test]
fn what_one_client_read_the_next_one_gets_from_the_cache() {
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        let bytes = pattern(1, 3 << 20);
        fs::create_dir(behind.path("dir")).unwrap();
        fs::write(behind.path("dir/file"), &bytes).unwrap();
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
    for kind in [Kind::Larder, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        let export = Server::reexport(&server, &[]);
        let (one, two) = (Mount::new(&export, &[]), Mount::new(&export, &[]));
        let bytes = pattern(2, 2 << 20);
        fs::create_dir(one.path("dir")).unwrap();
        fs::write(one.path("dir/file"), &bytes).unwrap();
        assert!(fs::read(behind.path("dir/file")).unwrap() == bytes, "{kind:?}: at close");
        assert!(fs::read(two.path("dir/file")).unwrap() == bytes, "{kind:?}");
        fs::write(two.path("dir/file"), b"shorter").unwrap();
        assert_eq!(fs::read(one.path("dir/file")).unwrap(), b"shorter", "{kind:?}: close-to-open");
        fs::rename(one.path("dir/file"), one.path("moved")).unwrap();
        assert_eq!(fs::read(behind.path("moved")).unwrap(), b"shorter", "{kind:?}");
        fs::remove_file(one.path("moved")).unwrap();
        assert!(!behind.path("moved").exists(), "{kind:?}");
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
        (Kind::Volume, &[]),
        // There all files are the same user's.
        (Kind::Samba, &["uid=1000", "gid=1000"]),
    ] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        let export = Server::reexport(&server, options);
        let mount = Mount::new(&export, &[]);
        fs::create_dir(mount.path("dir")).unwrap();
        fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o777)).unwrap();
        let name = |name: &str| mount.path("dir").join(name).display().to_string();
        let made = format!("umask 0222; exec 3>{}; echo made >&3; exec 3>&-", name("made"));
        assert!(shell_as(ANN, ANN, &made), "{kind:?}");
        assert_eq!(fs::read(behind.path("dir/made")).unwrap(), b"made\n", "{kind:?}");
        let file = name("changed");
        assert!(shell_as(ANN, ANN, &format!("echo before > {file}")), "{kind:?}");
        let changed = format!("exec 3>>{file} 4<{file}; chmod 0 {file}; echo after >&3; exec 3>&-");
        assert!(shell_as(ANN, ANN, &format!("{changed}; test \"$(wc -l <&4)\" -eq 2")), "{kind:?}");
        // A share knows no mode that bars from reading.
        let reads = shell_as(ANN, ANN, &format!("cat {file}"));
        assert_eq!(reads, kind == Kind::Samba, "{kind:?}: an open is judged");
        assert!(!shell_as(ANN + 1, ANN + 1, &format!("echo more >> {}", name("made"))), "{kind:?}");
        assert_eq!(fs::read(behind.path("dir/changed")).unwrap(), b"before\nafter\n", "{kind:?}");
    }
}

/// Changes behind an export are seen through it as through a mount: at the next open by a client
/// whose own attributes have expired.
#[test]
fn what_changes_behind_it_is_seen_through_it() {
    for kind in [Kind::Larder, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        fs::write(behind.path("file"), b"before").unwrap();
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
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        fs::create_dir_all(behind.path("a/b")).unwrap();
        let bytes = pattern(3, 4 << 20);
        fs::write(behind.path("a/b/file"), &bytes).unwrap();
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
        assert!(fs::read(behind.path("a/b/out")).unwrap() == expected, "{kind:?}");
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

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// An NFS client that has mounted an export, and may make up handles of a volume.
pub(crate) struct Forger {
    pub(crate) nfs: Nfs3,
    pub(crate) root: Handle,
}

impl Forger {
    pub(crate) async fn of(address: SocketAddr) -> Forger {
        let port = Some(address.port());
        let options = MountOptions { port, ..MountOptions::new(&address.ip().to_string(), "/") };
        let nfs = Nfs3::mount(&options).await.unwrap();
        let root = nfs.root().await.unwrap().handle;
        Forger { nfs, root }
    }

    /// The handle of a file by its number, which follows the volume's id.
    fn numbered(&self, number: u64) -> Handle {
        let (volume, _) = self.root.as_bytes().split_at(16);
        Handle::new(&[volume, &number.to_be_bytes()].concat())
    }

    /// The handle of a name, as root is told.
    pub(crate) async fn named(&self, dir: &Handle, name: &str) -> Handle {
        let found = self.nfs.lookup(&Cred::root(), dir, name.as_ref()).await.unwrap();
        found.found.unwrap().handle
    }

    pub(crate) async fn read(&self, cred: &Cred, file: &Handle) -> Result<Bytes, Error> {
        Ok(self.nfs.read(cred, file, None, 0, 100).await?.data)
    }

    /// Neither reads nor changes a file: each call is refused with `why`.
    pub(crate) async fn is_kept_out_of(&self, cred: &Cred, file: &Handle, why: Error) {
        assert_eq!(self.read(cred, file).await, Err(why));
        let data = Bytes::from_static(b"changed");
        let written = self.nfs.write(cred, file, None, 0, data, Stability::FileSync).await;
        assert_eq!(written.err(), Some(why));
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(self.nfs.setattr(cred, file, cut, None).await.err(), Some(why));
    }

    /// Neither sees nor changes the names in a directory.
    async fn is_kept_out_of_directory(&self, cred: &Cred, dir: &Handle) {
        let (nfs, why) = (&self.nfs, Some(Error::AccessDenied));
        assert_eq!(nfs.lookup(cred, dir, "secret".as_ref()).await.err(), why);
        assert_eq!(nfs.readdir(cred, dir, Cookie::default(), 4096).await.err(), why);
        let made = nfs.make(cred, dir, "new".as_ref(), New::File, SetAttr::default()).await;
        assert_eq!(made.err(), why);
        assert_eq!(nfs.remove(cred, dir, "secret".as_ref(), Removal::File).await.err(), why);
    }
}

/// Handles of a volume carry no seal. A client that makes one up gets what the rights of the file
/// itself allow, also when the export has its bytes in the cache, and nothing by a number that no
/// file has.
#[test]
fn a_guessed_handle_of_a_volume_is_judged_by_its_file() {
    let (server, by_itself) = volume_nfs::volume(&[]);
    let direct = Mount::new(&server, &[]);
    let mode = |name: &str, mode| {
        fs::set_permissions(direct.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(direct.path("private")).unwrap();
    for name in ["private/secret", "private/public", "gone"] {
        fs::write(direct.path(name), name).unwrap();
    }
    mode("private/secret", 0o600);
    mode("private/public", 0o644);
    mode("private", 0o700);
    mode("gone", 0o666);
    let (root, ann) = (Cred::root(), Cred::new(1000, 1000, &[]));
    // Another export tells the handles, so that this one does not know them.
    let told = Server::reexport(&server, &[]);
    let [private, gone, secret, public] = runtime().block_on(async {
        let told = Forger::of(told.address()).await;
        let private = told.named(&told.root, "private").await;
        let inside = [told.named(&private, "secret").await, told.named(&private, "public").await];
        let [secret, public] = inside;
        [private, told.named(&told.root, "gone").await, secret, public]
    });
    fs::remove_file(direct.path("gone")).unwrap();
    let export = Server::reexport(&server, &[]);
    for address in [export.address(), by_itself] {
        fs::write(direct.path("later"), "later").unwrap();
        runtime().block_on(async {
            let forger = Forger::of(address).await;
            for round in ["unknown to the export", "in its cache"] {
                forger.is_kept_out_of(&ann, &secret, Error::AccessDenied).await;
                forger.is_kept_out_of_directory(&ann, &private).await;
                let read = forger.read(&root, &secret).await;
                assert_eq!(read, Ok(Bytes::from_static(b"private/secret")), "{round}");
            }
            // A file does not know the directories that lead to it.
            assert_eq!(forger.read(&ann, &public).await, Ok(Bytes::from_static(b"private/public")));

            let later = forger.nfs.lookup(&root, &forger.root, "later".as_ref()).await.unwrap();
            let later = later.found.unwrap().handle;
            assert_eq!(forger.read(&root, &later).await, Ok(Bytes::from_static(b"later")));
            fs::remove_file(direct.path("later")).unwrap();
            let own = secret.as_bytes();
            let mut nowhere = vec![later, gone.clone(), Handle::new(&own[1..])];
            nowhere.push(Handle::new(&[own, &[0]].concat()));
            nowhere.extend([0, u64::MAX].map(|number| forger.numbered(number)));
            // Of other volumes.
            nowhere.extend([0, 15].map(|at| {
                let mut bytes = own.to_vec();
                bytes[at] ^= 1;
                Handle::new(&bytes)
            }));
            for handle in &nowhere {
                forger.is_kept_out_of(&root, handle, Error::Stale).await;
            }
        });
    }
    for name in ["private/secret", "private/public"] {
        assert_eq!(fs::read_to_string(direct.path(name)).unwrap(), name);
    }
}

/// A client may list a directory without having asked for its rights. Names that another user's
/// listing brought into the cache are kept from it, too.
#[test]
fn a_cached_listing_is_denied_to_who_may_not_read_the_directory() {
    for kind in [Kind::Larder, Kind::Volume] {
        let server = Server::start(kind);
        let behind = Behind::of(kind, &server);
        fs::create_dir(behind.path("private")).unwrap();
        fs::set_permissions(behind.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(behind.path("private/secret"), "names are secret").unwrap();
        let export = Server::reexport(&server, &[]);
        runtime().block_on(async {
            let Forger { nfs, root: top } = &Forger::of(export.address()).await;
            let (root, ann) = (Cred::root(), Cred::new(1000, 1000, &[]));
            let private = nfs.lookup(&root, top, "private".as_ref()).await.unwrap();
            let private = private.found.unwrap().handle;
            for cred in [&ann, &root, &root, &ann] {
                let listed = nfs.readdir(cred, &private, Cookie::default(), 4096).await;
                let listed = listed.map(|page| page.entries.iter().any(|one| one.name == "secret"));
                let wanted = if *cred == root { Ok(true) } else { Err(Error::AccessDenied) };
                assert_eq!(listed, wanted, "{kind:?}");
            }
        });
    }
}
