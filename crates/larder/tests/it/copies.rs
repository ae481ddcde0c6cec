//! Copies within a server, as programs ask for them: cp(1) and copy_file_range(2).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::copy_file_range;

use crate::harness::{Kind, Mount, Server, pattern, succeed};
use crate::several_disks::{Disk, Volume};

fn copy(from: &Path, to: &Path) {
    let told = succeed(Command::new("cp").arg(from).arg(to));
    assert_eq!(String::from_utf8_lossy(&told.stderr), "");
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Bytes that were read from the server and written to it, in requests.
fn transfers(mount: &Mount) -> [u64; 2] {
    ["READ", "WRITE"].map(|procedure| mount.calls(procedure))
}

#[test]
fn what_a_share_copies_does_not_pass_the_client() {
    copied_at_the_server(Kind::Samba, "IOCTL");
}

#[test]
fn what_a_volume_copies_does_not_pass_the_client() {
    copied_at_the_server(Kind::Volume, "WRITE_FROM");
}

/// The disks take turns, and a copy is on those of its source.
#[test]
fn what_a_volume_of_several_disks_copies_does_not_pass_the_client() {
    let mut volume = Volume::with_copies(1, 3);
    volume.disks.iter_mut().for_each(Disk::start);
    copied_by(&Server::meta(&["--engine", &volume.engine()]), "WRITE_FROM");
}

fn copied_at_the_server(kind: Kind, procedure: &str) {
    copied_by(&Server::start(kind), procedure);
}

/// Copies files; `procedure` has it done.
fn copied_by(server: &Server, procedure: &str) {
    let two = Mount::new(server, &[]);
    let content = pattern(1, (5 << 20) + 5);
    fs::write(two.path("from"), &content).unwrap();
    for options in [&[][..], &["nopassthrough"], &["plain"]] {
        let one = Mount::new(server, options);
        if options.is_empty() {
            // The kernel uses a local file, which gets the cached bytes.
            assert!(fs::read(one.path("from")).unwrap() == content);
        }
        let before = transfers(&one);
        copy(&one.path("from"), &one.path("to"));
        assert_eq!(transfers(&one), before, "{options:?}");
        assert!(one.calls(procedure) >= 2, "the server was asked to copy");
        assert!(fs::read(two.path("to")).unwrap() == content, "{options:?}");
        assert!(fs::read(one.path("to")).unwrap() == content, "{options:?}");
        fs::remove_file(one.path("to")).unwrap();
    }
}

/// Between files that are being written, and within one: earlier writes count.
#[test]
fn copies_lie_over_what_was_written_before_and_below_what_is_written_after() {
    [Kind::Samba, Kind::Volume].into_iter().for_each(copies_lie_between);
}

fn copies_lie_between(kind: Kind) {
    let server = Server::start(kind);
    let two = Mount::new(&server, &[]);
    for options in [&[][..], &["nopassthrough"], &["plain"]] {
        let one = Mount::new(&server, options);
        let (mut from, mut to) = (pattern(1, 1 << 20), pattern(2, 2 << 20));
        fs::write(one.path("from"), &from).unwrap();
        fs::write(one.path("to"), &to).unwrap();
        let (source, target) = (open(&one.path("from")), open(&one.path("to")));
        source.write_all_at(b"unsent", 1000).unwrap();
        from[1000..1006].copy_from_slice(b"unsent");
        target.write_all_at(b"below", 300_000).unwrap();
        let mut places = (500, 200_000);
        while places.0 < 900_500 {
            let len = 900_500 - usize::try_from(places.0).unwrap();
            let (at, from) = (&mut places.1, &mut places.0);
            assert_ne!(copy_file_range(&source, Some(from), &target, Some(at), len), Ok(0));
        }
        to[200_000..1_100_000].copy_from_slice(&from[500..900_500]);
        target.write_all_at(b"above", 400_000).unwrap();
        to[400_000..400_005].copy_from_slice(b"above");
        // Within one file, beyond its end.
        let (mut start, mut end) = (0, 2 << 20);
        while start < 1 << 20 {
            let len = (1 << 20) - usize::try_from(start).unwrap();
            let copied = copy_file_range(&target, Some(&mut start), &target, Some(&mut end), len);
            assert_ne!(copied, Ok(0));
        }
        to.extend_from_within(..1 << 20);
        let mut seen = vec![0; to.len()];
        target.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == to, "{options:?}");
        drop((source, target));
        for mount in [&one, &two] {
            assert!(fs::read(mount.path("to")).unwrap() == to, "{options:?}");
            assert!(fs::read(mount.path("from")).unwrap() == from, "{options:?}");
        }
    }
}

/// NFSv3 has no call for it: the kernel is told so once, and reads and writes.
#[test]
fn files_of_a_server_that_cannot_copy_are_read_and_written() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let content = pattern(1, 1 << 20);
    fs::write(mount.path("from"), &content).unwrap();
    for name in ["one", "two"] {
        copy(&mount.path("from"), &mount.path(name));
        assert!(fs::read(mount.path(name)).unwrap() == content);
    }
    let asked = mount.messages();
    let asked: u64 = asked.iter().filter(|(name, _)| name.starts_with("COPY")).map(|of| of.1).sum();
    assert!(asked <= 2, "the kernel remembers: {asked}");
}
