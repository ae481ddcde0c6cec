//! Changes by other clients are seen when they must be, and never as a mixture of versions.

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::harness::{BOTH, Kind, Mount, Server, eventually, pattern};

#[test]
fn change_is_seen_at_next_open_with_close_to_open() {
    for kind in BOTH {
        let server = Server::start(kind);
        fs::write(server.path("file"), "first version").unwrap();
        let mount = Mount::new(&server, &[]);
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "first version");
        fs::write(server.path("file"), "second, longer version").unwrap();
        let seen = fs::read_to_string(mount.path("file")).unwrap();
        assert_eq!(seen, "second, longer version", "{kind:?}");
    }
}

#[test]
fn change_is_seen_at_once_with_noac() {
    for kind in BOTH {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &["noac"]);
        for round in 0..20 {
            let text = format!("version {round}");
            fs::write(server.path("file"), &text).unwrap();
            assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), text, "{kind:?}");
            assert_eq!(fs::metadata(mount.path("file")).unwrap().len(), text.len() as u64);
        }
        fs::remove_file(server.path("file")).unwrap();
        assert!(!mount.path("file").exists(), "{kind:?}");
        fs::write(server.path("new"), "").unwrap();
        assert!(mount.path("new").exists(), "{kind:?}");
    }
}

/// The change keeps size and modification time; only the change time shows it.
#[test]
fn change_with_old_mtime_is_seen() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "aaaa").unwrap();
    let mount = Mount::new(&server, &["noac"]);
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "aaaa");
    let mtime = fs::metadata(server.path("file")).unwrap().modified().unwrap();
    fs::write(server.path("file"), "bbbb").unwrap();
    fs::File::options().write(true).open(server.path("file")).unwrap().set_modified(mtime).unwrap();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "bbbb");
}

/// A reader of a wholly cached copy keeps its version; a reader of a partly cached one gets an
/// error rather than a mixture.
#[test]
fn sequential_read_never_mixes_versions() {
    let server = Server::start(Kind::Larder);
    let (old, new) = (pattern(1, 8 << 20), pattern(2, 8 << 20));
    for whole in [true, false] {
        fs::write(server.path("file"), &old).unwrap();
        let mount = Mount::new(&server, &["noac"]);
        let mut head = vec![0; 1 << 20];
        if whole {
            assert!(fs::read(mount.path("file")).unwrap() == old);
        } else {
            fs::File::open(mount.path("file")).unwrap().read_exact(&mut head).unwrap();
        }
        let mut reader = fs::File::open(mount.path("file")).unwrap();
        reader.read_exact(&mut head).unwrap();
        assert!(head[..] == old[..head.len()]);

        fs::write(server.path("file"), &new).unwrap();
        assert!(fs::read(mount.path("file")).unwrap() == new, "a new open sees the new version");

        let mut rest = Vec::new();
        match reader.read_to_end(&mut rest) {
            Ok(_) => assert!(rest[..] == old[head.len()..], "whole {whole}: two versions mixed"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(116), "{error}"),
        }
        reader.seek(SeekFrom::Start(0)).unwrap();
    }
}

/// The handle that we have is stale; the name, which the kernel still trusts, leads to the new
/// file. (The replacement is made through the server: nfs-ganesha keeps a file that was removed
/// behind its back.)
#[test]
fn file_replaced_on_the_server_is_found_by_its_name() {
    for kind in BOTH {
        let server = Server::start(kind);
        let (mount, other) = (Mount::new(&server, &[]), Mount::new(&server, &["noac"]));
        fs::write(other.path("file"), "old").unwrap();
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "old", "{kind:?}");
        for round in 0..5 {
            let text = format!("round {round}");
            fs::remove_file(other.path("file")).unwrap();
            fs::write(other.path("file"), &text).unwrap();
            assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), text, "{kind:?}");
        }
    }
}

#[test]
fn two_mounts_see_each_others_writes_after_close() {
    for kind in BOTH {
        let server = Server::start(kind);
        let (one, two) = (Mount::new(&server, &["noac"]), Mount::new(&server, &["noac"]));
        for round in 0..10 {
            let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            let bytes = pattern(round, 100_000 + usize::try_from(round).unwrap());
            fs::write(from.path("file"), &bytes).unwrap();
            assert!(fs::read(to.path("file")).unwrap() == bytes, "{kind:?} round {round}");
        }
    }
}

#[test]
fn file_grows_under_a_reader_that_follows_it() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("log"), "one\n").unwrap();
    let mount = Mount::new(&server, &["noac"]);
    let mut reader = fs::File::open(mount.path("log")).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let mut log = fs::File::options().append(true).open(server.path("log")).unwrap();
    std::io::Write::write_all(&mut log, b"two\n").unwrap();
    eventually("the second line is read", || {
        // What `tail -f` does: check the size, then read on.
        reader.metadata().unwrap();
        reader.read_to_string(&mut text).unwrap();
        text == "one\ntwo\n"
    });
}

/// What programs do: a read that is to be repeated is.
fn read_again(file: &fs::File, bytes: &mut [u8], at: u64) -> usize {
    loop {
        match file.read_at(bytes, at) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.unwrap(),
        }
    }
}

/// For a process that has a file open and reads it through the kernel's page cache, a file that
/// another client truncates ends there, whatever else that client does to it in the meantime: zeros
/// never appear in the place of what was cut off.
#[test]
fn a_file_that_another_mount_cuts_ends_there_for_its_readers() {
    let server = Server::start(Kind::Volume);
    let options = ["noac", "nopassthrough"];
    let (one, two) = (Mount::new(&server, &options), Mount::new(&server, &options));
    for round in 0..60 {
        let data = pattern(round, 161_384);
        let name = format!("file{round}");
        fs::write(one.path(&name), &data).unwrap();
        let there = fs::File::options().write(true).open(one.path(&name)).unwrap();
        let reader = fs::File::open(two.path(&name)).unwrap();
        let mut bytes = vec![7; 200_000];
        assert_eq!(read_again(&reader, &mut bytes, 0), data.len());
        there.set_len(2).unwrap();
        assert_eq!(reader.metadata().unwrap().len(), 2);
        // The attributes are reported again, and no bytes.
        there.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let read = read_again(&reader, &mut bytes[..38_963], 1);
        let shown = &bytes[..read];
        if shown != &data[1..2] {
            let same = shown.iter().zip(&data[1..]).take_while(|(is, was)| is == was).count();
            let zeros = shown.iter().rev().take_while(|byte| **byte == 0).count();
            let told = format!("round {round}: {read} bytes, {same} old, {zeros} zeros at the end");
            let mut again = vec![0; 38_963];
            let one = read_again(&reader, &mut again, 1);
            let len = reader.metadata().unwrap().len();
            let two = read_again(&reader, &mut again, 1);
            panic!("{told}; again {one}, then {len} and {two}");
        }
    }
}
