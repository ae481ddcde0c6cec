//! What the server denies a user is denied to that user for cached data too.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use larder_testkit::Squash;

use crate::harness::{BOTH, Kind, Mount, Server, eventually, shell_as};

const ANN: u32 = 4001;
const BOB: u32 = 4002;

fn private_file(server: &Server) {
    fs::write(server.path("secret"), "of ann").unwrap();
    chown(server.path("secret"), Some(ANN), Some(ANN)).unwrap();
    fs::set_permissions(server.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(server.path("home")).unwrap();
    fs::write(server.path("home/open"), "readable by all, but in a private directory").unwrap();
    chown(server.path("home"), Some(ANN), Some(ANN)).unwrap();
    fs::set_permissions(server.path("home"), fs::Permissions::from_mode(0o700)).unwrap();
}

fn cat(mount: &Mount, name: &str) -> String {
    format!("cat {}", mount.path(name).display())
}

#[test]
fn cached_data_of_one_user_is_denied_to_another() {
    for kind in BOTH {
        let server = Server::start(kind);
        private_file(&server);
        let mount = Mount::new(&server, &[]);
        for _ in 0..2 {
            for name in ["secret", "home/open"] {
                assert!(shell_as(ANN, ANN, &cat(&mount, name)), "{kind:?}: {name}");
                assert!(!shell_as(BOB, BOB, &cat(&mount, name)), "{kind:?}: {name}");
            }
        }
        fs::set_permissions(server.path("secret"), fs::Permissions::from_mode(0o000)).unwrap();
        let mount = Mount::new(&server, &["noac"]);
        assert!(!shell_as(BOB, BOB, &cat(&mount, "secret")), "{kind:?}");
    }
}

#[test]
fn squashed_root_is_denied_what_the_server_denies_it() {
    for kind in BOTH {
        let server = match kind {
            Kind::Larder => Server::larder(&["--root-squash"]),
            Kind::Ganesha => Server::ganesha(Squash::Root),
            Kind::Samba => unreachable!("no NFS server"),
            Kind::Volume => panic!("it squashes nobody"),
        };
        private_file(&server);
        let mount = Mount::new(&server, &[]);
        for _ in 0..2 {
            for name in ["secret", "home/open"] {
                assert!(shell_as(ANN, ANN, &cat(&mount, name)), "{kind:?}: {name}");
                assert!(!shell_as(0, 0, &cat(&mount, name)), "{kind:?}: {name} by root");
            }
        }
        let made = shell_as(0, 0, &format!("echo > {}", mount.path("by-root").display()));
        assert!(made, "{kind:?}: the export's top is open to all");
        let owner =
            std::os::unix::fs::MetadataExt::uid(&fs::metadata(server.path("by-root")).unwrap());
        assert_ne!(owner, 0, "{kind:?}: root is nobody there");
    }
}

#[test]
fn files_belong_to_the_user_who_made_them() {
    for kind in BOTH {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &[]);
        assert!(shell_as(BOB, BOB, &format!("echo hi > {}", mount.path("his").display())));
        let made = fs::metadata(server.path("his")).unwrap();
        let uid = std::os::unix::fs::MetadataExt::uid(&made);
        assert_eq!(uid, BOB, "{kind:?}");
        assert!(!shell_as(ANN, ANN, &format!("echo no > {}", mount.path("his").display())));
        assert_eq!(fs::read_to_string(server.path("his")).unwrap(), "hi\n", "{kind:?}");
    }
}

/// pjdfstest, chmod/12. The kernel asks for it on behalf of the writer, whose request a server
/// refuses.
#[test]
fn a_write_by_another_user_than_the_owner_drops_set_uid() {
    let works = [
        "exec 3>>$f; printf x >&3; test $(stat -c %a $f) = 777; exec 3>&-",
        "exec 3<>$f; printf x >&3; test $(stat -Lc %a /proc/self/fd/3) = 777; exec 3>&-",
        "truncate -s 1 $f",
        "python3 -c 'import os, sys; os.truncate(sys.argv[1], 1)' $f",
        ": >$f",
    ];
    for kind in BOTH {
        let server = Server::start(kind);
        // nfs-ganesha keeps the bit of a file that is truncated, whichever user does it.
        let works = if kind == Kind::Ganesha { &works[..2] } else { &works[..] };
        for options in [&[][..], &["nopassthrough"], &["plain"]] {
            let mount = Mount::new(&server, options);
            for (number, work) in works.iter().enumerate() {
                let name = format!("{}{number}", options.concat());
                fs::write(mount.path(&name), "program").unwrap();
                chown(mount.path(&name), Some(ANN), Some(ANN)).unwrap();
                let mode =
                    |mode| fs::set_permissions(mount.path(&name), fs::Permissions::from_mode(mode));
                mode(0o4777).unwrap();
                let who = format!("{kind:?} {options:?}: {work}");
                let set = format!("f={}; set -e; ", mount.path(&name).display());
                assert!(!shell_as(BOB, BOB, &format!("{set} chmod 777 $f")), "{who}");
                assert!(shell_as(BOB, BOB, &format!("{set} {work}")), "{who}");
                for path in [mount.path(&name), server.path(&name)] {
                    let mode = fs::metadata(path).unwrap().permissions().mode();
                    assert_eq!(mode & 0o7777, 0o777, "{who}");
                }
                assert!(shell_as(ANN, ANN, &format!("{set} chmod 4755 $f")), "{who}");
                assert_eq!(
                    fs::metadata(mount.path(&name)).unwrap().permissions().mode() & 0o7777,
                    0o4755
                );
            }
        }
    }
}
/// Bars a user from a file or directory by an access control list, as `setfacl -m u:UID:---` does
/// (acl(5)): the mode does not show it.
fn bar(path: &Path, uid: u32) {
    const NOBODY: u32 = u32::MAX;
    let mode = fs::metadata(path).unwrap().permissions().mode();
    let right = |shift: u32| u16::try_from(mode >> shift & 7).unwrap();
    // Tag, rights, id: the owner, the user, the group, the mask, all others.
    let entries = [
        (0x01, right(6), NOBODY),
        (0x02, 0, uid),
        (0x04, right(3), NOBODY),
        (0x10, right(3), NOBODY),
        (0x20, right(0), NOBODY),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "system.posix_acl_access", &list, flags).unwrap();
    assert_eq!(fs::metadata(path).unwrap().permissions().mode(), mode);
}

/// A file that all may read, two directories down.
fn public_file(server: &Server) {
    fs::create_dir_all(server.path("d/deep")).unwrap();
    fs::write(server.path("d/deep/file"), "for all but one").unwrap();
    for name in ["d", "d/deep"] {
        fs::set_permissions(server.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Through names and bytes that other users have brought into the kernel and the cache. nfs-ganesha
/// judges by mode bits alone, so there no user is barred.
#[test]
fn a_user_barred_by_an_access_control_list_gets_at_nothing_that_others_have_read() {
    let server = Server::start(Kind::Larder);
    public_file(&server);
    bar(&server.path("d"), BOB);
    let mount = Mount::new(&server, &[]);
    let deep = mount.path("d/deep");
    for _ in 0..2 {
        assert!(shell_as(0, 0, &cat(&mount, "d/deep/file")));
        assert!(shell_as(0, 0, &format!("ls {}", deep.display())));
        assert!(shell_as(ANN, ANN, &cat(&mount, "d/deep/file")));
        for script in [
            cat(&mount, "d/deep/file"),
            format!("ls {}", deep.display()),
            format!("echo > {}/new", deep.display()),
        ] {
            assert!(!shell_as(BOB, BOB, &script), "{script}");
        }
    }
}

/// Names are requested and attributes are not; then each open follows a lookup, which counts as the
/// check of the file's attributes, and not of rights.
const BRIEF: [&[&str]; 2] = [&["actimeo=1"], &["actimeo=1", "lookupcache=none"]];

/// Waits until it is denied, which must be when a timeout of a second is over: far from the 30 s
/// for which directories are trusted otherwise, on a busy machine.
fn is_denied_in_time(who: &str, mut is_denied: impl FnMut() -> bool) {
    let begin = Instant::now();
    eventually(who, &mut is_denied);
    assert!(begin.elapsed() < Duration::from_secs(15), "{who}: after {:?}", begin.elapsed());
}

#[test]
fn a_user_denied_at_the_server_reads_on_for_no_longer_than_attributes_are_trusted() {
    for (kind, options) in BOTH.into_iter().flat_map(|kind| BRIEF.map(|options| (kind, options))) {
        let server = Server::start(kind);
        public_file(&server);
        let mount = Mount::new(&server, options);
        let read = |uid| shell_as(uid, uid, &cat(&mount, "d/deep/file"));
        assert!(read(BOB) && read(ANN), "{kind:?}");
        match kind {
            Kind::Ganesha => {
                chown(server.path("d"), Some(ANN), None).unwrap();
                fs::set_permissions(server.path("d"), fs::Permissions::from_mode(0o700)).unwrap();
            }
            _ => bar(&server.path("d"), BOB),
        }
        let who = format!("{kind:?} {options:?}");
        is_denied_in_time(&who, || !read(BOB));
        // Even while another user, who may read, keeps the known names and attributes fresh.
        for round in 0..10 {
            assert!(read(ANN), "{who}: round {round}");
            assert!(!read(BOB), "{who}: round {round}");
        }
    }
}

#[test]
fn root_loses_its_rights_when_the_export_begins_to_squash_it() {
    for options in BRIEF {
        let mut server = Server::larder(&["--no-root-squash"]);
        private_file(&server);
        let mount = Mount::new(&server, options);
        for name in ["secret", "home/open"] {
            assert!(shell_as(0, 0, &cat(&mount, name)), "{options:?}: {name}");
        }
        server.kill();
        server.restart_with("--no-root-squash", "--root-squash");
        for name in ["secret", "home/open"] {
            let is_denied = || !shell_as(0, 0, &cat(&mount, name));
            is_denied_in_time(&format!("{options:?}: {name}"), is_denied);
            assert!(shell_as(ANN, ANN, &cat(&mount, name)), "{options:?}: {name}");
        }
    }
}
