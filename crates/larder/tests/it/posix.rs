//! POSIX behaviour through the mount, per operation and error, and real programs on top.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{BOTH, Kind, Mount, Server, eventually, pattern, run, tree};

/// Runs a check on a fresh mount of each server, with the cache and as a plain client.
fn on_every_mount(check: impl Fn(&Mount, &Server, &str)) {
    for kind in BOTH {
        let server = Server::start(kind);
        check(&Mount::new(&server, &[]), &server, &format!("{kind:?}, cached"));
        let server = Server::start(kind);
        check(&Mount::plain(&server, &[]), &server, &format!("{kind:?}, plain"));
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn operations_fail_with_the_right_errors() {
    on_every_mount(|mount, _, who| {
        let at = |name: &str| mount.path(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("dir/file"), "x").unwrap();
        assert_eq!(errno(fs::create_dir(at("dir"))), libc::EEXIST, "{who}");
        assert_eq!(errno(fs::remove_dir(at("dir"))), libc::ENOTEMPTY, "{who}");
        assert_eq!(errno(fs::remove_file(at("dir"))), libc::EISDIR, "{who}");
        assert_eq!(errno(fs::remove_dir(at("dir/file"))), libc::ENOTDIR, "{who}");
        assert_eq!(errno(fs::remove_file(at("no"))), libc::ENOENT, "{who}");
        assert_eq!(errno(fs::read(at("dir/file/below"))), libc::ENOTDIR, "{who}");
        assert_eq!(errno(fs::rename(at("no"), at("to"))), libc::ENOENT, "{who}");
        assert_eq!(errno(fs::rename(at("dir"), at("dir/below"))), libc::EINVAL, "{who}");
        fs::create_dir(at("empty")).unwrap();
        assert_eq!(errno(fs::rename(at("empty"), at("dir"))), libc::ENOTEMPTY, "{who}");
        assert_eq!(errno(fs::rename(at("dir/file"), at("empty"))), libc::EISDIR, "{who}");
        assert_eq!(errno(fs::hard_link(at("dir"), at("hard"))), libc::EPERM, "{who}");
        let exclusive = fs::File::options().write(true).create_new(true).open(at("dir/file"));
        assert_eq!(errno(exclusive), libc::EEXIST, "{who}");
        let long = "n".repeat(256);
        assert_eq!(errno(fs::write(at(&long), "")), libc::ENAMETOOLONG, "{who}");
        let name = std::ffi::CString::new("user.test").unwrap();
        let attribute = rustix::fs::getxattr(at("dir/file"), &name, &mut [0_u8; 16][..]);
        assert_eq!(attribute.unwrap_err(), rustix::io::Errno::OPNOTSUPP, "{who}");
        fs::remove_file(at("dir/file")).unwrap();
        fs::remove_dir(at("dir")).unwrap();
        assert!(!at("dir").exists(), "{who}");
    });
}

/// Nor by an open for reading, which the kernel sends us before it checks.
#[test]
fn a_program_that_runs_is_not_written_to() {
    on_every_mount(|mount, _, who| {
        let program = mount.path("program");
        // By a process of its own: a process that another test is just starting would have it open
        // for writing.
        run("cp", &["/usr/bin/sleep", program.to_str().unwrap()]);
        let len = fs::metadata(&program).unwrap().len();
        let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
            let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
            let opened = rustix::fs::open(&program, flags, rustix::fs::Mode::empty());
            assert_eq!(opened.unwrap_err(), rustix::io::Errno::TXTBSY, "{who} {flags:?}");
        }
        assert_eq!(fs::metadata(&program).unwrap().len(), len, "{who}");
        assert!(running.try_wait().unwrap().is_none(), "{who}: it runs on");
        running.kill().unwrap();
        running.wait().unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
        eventually(&format!("{who}: it is released"), || {
            rustix::fs::open(&program, flags, rustix::fs::Mode::empty()).is_ok()
        });
        assert_eq!(fs::metadata(&program).unwrap().len(), 0, "{who}");
    });
}

/// close(2) returns before the kernel releases the file: an unlink may find it still open, and hide
/// it.
#[test]
fn files_unlinked_just_after_close_leave_nothing_behind() {
    on_every_mount(|mount, server, who| {
        for i in 0..100 {
            let path = mount.path(&format!("file{}", i % 3));
            fs::write(&path, "x").unwrap();
            if i % 2 == 0 {
                fs::read(&path).unwrap();
            }
            fs::remove_file(&path).unwrap();
        }
        eventually(who, || fs::read_dir(server.path("")).unwrap().count() == 0);
    });
}

#[test]
fn data_is_what_was_written() {
    on_every_mount(|mount, server, who| {
        let at = |name: &str| mount.path(name);
        let mut file =
            fs::File::options().read(true).write(true).create_new(true).open(at("file")).unwrap();
        let mut model = pattern(1, 200_000);
        file.write_all(&model).unwrap();
        file.write_all_at(b"in the middle", 100_000).unwrap();
        model[100_000..][..13].copy_from_slice(b"in the middle");
        file.write_all_at(b"behind a hole", 400_000).unwrap();
        model.resize(400_000, 0);
        model.extend_from_slice(b"behind a hole");
        assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{who}: size while open");
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == model, "{who}: read while open");
        file.sync_all().unwrap();
        assert!(fs::read(server.path("file")).unwrap() == model, "{who}: at the server");
        file.set_len(150_001).unwrap();
        model.truncate(150_001);
        file.set_len(160_000).unwrap();
        model.resize(160_000, 0);
        drop(file);
        assert!(fs::read(at("file")).unwrap() == model, "{who}: after truncation");
        assert!(fs::read(server.path("file")).unwrap() == model, "{who}: truncated at the server");

        let mut append = fs::File::options().append(true).open(at("file")).unwrap();
        for i in 0..100 {
            let piece = format!("{i}");
            append.write_all(piece.as_bytes()).unwrap();
            model.extend_from_slice(piece.as_bytes());
        }
        drop(append);
        assert!(fs::read(server.path("file")).unwrap() == model, "{who}: appended");
        fs::File::create(at("file")).unwrap();
        assert_eq!(fs::read(server.path("file")).unwrap(), b"", "{who}: O_TRUNC");
    });
}

#[test]
fn mapped_memory_reads_and_writes_the_file() {
    on_every_mount(|mount, server, who| {
        fs::write(server.path("mapped"), pattern(1, 100_000)).unwrap();
        let script = r"
import mmap, sys
with open(sys.argv[1], 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0)
    assert len(m) == 100000
    m[5000:5005] = b'hello'
    m.flush()
    m[90000:90005] = b'world'
    m.close()
";
        run("python3", &["-c", script, mount.path("mapped").to_str().unwrap()]);
        let mut model = pattern(1, 100_000);
        model[5000..5005].copy_from_slice(b"hello");
        model[90_000..90_005].copy_from_slice(b"world");
        assert!(fs::read(mount.path("mapped")).unwrap() == model, "{who}");
        let begin = Instant::now();
        crate::harness::eventually("the mapping is written back", || {
            fs::read(server.path("mapped")).unwrap() == model
        });
        assert!(begin.elapsed() < Duration::from_secs(25), "{who}: after 30 s the kernel would");
    });
}

/// A process closes the file that it has mapped, and stores to a page then that it had stored to
/// before: the page is not on the disk yet, so no time of a local file changes.
#[test]
fn what_is_stored_to_mapped_memory_after_the_close_arrives() {
    let script = r"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size = ctypes.c_size_t(int(sys.argv[2]))
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.truncate(file, size.value)
both = mmap.PROT_READ | mmap.PROT_WRITE
at = libc.mmap(None, size, both, mmap.MAP_SHARED, file, ctypes.c_long(0))
ctypes.memmove(at, b'first', 5)
os.close(file)
# As long as these take, whoever heard of the close has looked at the file.
for i in range(50): os.path.exists(f'{sys.argv[1]}-{i}')
ctypes.memmove(at, b'later', 5)
libc.munmap(ctypes.c_void_p(at), size)
";
    on_every_mount(|mount, server, who| {
        for size in [8192, 3 << 20] {
            let (name, text) = (format!("mapped-{size}"), size.to_string());
            run("python3", &["-c", script, mount.path(&name).to_str().unwrap(), &text]);
            let mut expected = vec![0; size];
            expected[..5].copy_from_slice(b"later");
            crate::harness::eventually("the mapping is written back", || {
                let done = mount.larder().arg("sync").arg(mount.path("")).output().unwrap();
                done.status.success() && fs::read(server.path(&name)).unwrap() == expected
            });
            assert!(fs::read(mount.path(&name)).unwrap() == expected, "{who}");
        }
    });
}

#[test]
fn open_file_outlives_its_name() {
    on_every_mount(|mount, server, who| {
        let bytes = pattern(1, 50_000);
        fs::write(mount.path("file"), &bytes).unwrap();
        let mut file = fs::File::options().read(true).write(true).open(mount.path("file")).unwrap();
        fs::remove_file(mount.path("file")).unwrap();
        assert!(!mount.path("file").exists(), "{who}");
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == bytes, "{who}");
        file.write_all_at(b"still", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        crate::harness::eventually("the hidden name is gone", || {
            fs::read_dir(server.path("")).unwrap().count() == 0
        });

        fs::write(mount.path("old"), "old").unwrap();
        fs::write(mount.path("new"), "new").unwrap();
        let mut open = fs::File::open(mount.path("old")).unwrap();
        fs::rename(mount.path("new"), mount.path("old")).unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old", "{who}: replaced while open");
        assert_eq!(fs::read_to_string(mount.path("old")).unwrap(), "new", "{who}");
    });
}

/// What fstat(2) tells of a file before it is closed is what stat(2) tells afterwards: git takes a
/// file for changed otherwise.
#[test]
fn the_time_before_a_close_is_the_time_after_it() {
    for kind in [BOTH[0], BOTH[1], Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        for mount in [Mount::new(&server, &[]), Mount::plain(&server, &[])] {
            for round in 0..20 {
                let path = mount.path(&format!("file{round}"));
                let mut file = fs::File::create(&path).unwrap();
                file.write_all(&pattern(round, 3000)).unwrap();
                let told = file.metadata().unwrap().modified().unwrap();
                drop(file);
                assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), told, "{kind:?}");
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// A process works in a directory that another one removes.
#[test]
fn a_removed_directory_is_empty_for_who_works_in_it() {
    for kind in [BOTH[0], BOTH[1], Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &[]);
        let script = format!(
            "mkdir {0}/dir; cd {0}/dir; rmdir ../dir; ls -a >/dev/null; test -z \"$(ls)\"; stat -f .; \
             ! touch file 2>/dev/null; mkdir ../dir; touch ../dir/file; test -z \"$(ls)\"",
            mount.path("").display()
        );
        run("sh", &["-e", "-c", &script]);
    }
}

#[test]
fn a_tree_is_removed_while_removed_files_of_it_are_open() {
    on_every_mount(|mount, server, who| {
        removes_a_tree_in_use(mount, who);
        crate::harness::eventually("the hidden names are gone", || {
            fs::read_dir(server.path("")).unwrap().count() == 0
        });
    });
}

/// Removes a tree whose files are open, as rm(1) does and as programs do that remove file by file.
pub(crate) fn removes_a_tree_in_use(mount: &Mount, who: &str) {
    let inner = mount.path("tree/inner");
    fs::create_dir_all(&inner).unwrap();
    let bytes = pattern(3, 70_000);
    let make = |name: &str| {
        fs::write(inner.join(name), &bytes).unwrap();
        fs::File::options().read(true).write(true).open(inner.join(name)).unwrap()
    };
    let open = ["first", "second", "third"].map(make);
    fs::remove_file(inner.join("first")).unwrap();
    fs::remove_file(inner.join("second")).unwrap();
    let listed = fs::read_dir(&inner).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(listed.collect::<Vec<_>>(), ["third"], "{who}");
    assert_eq!(errno(fs::remove_dir(&inner)), libc::ENOTEMPTY, "{who}");
    crate::harness::run("rm", &["-r", mount.path("tree").to_str().unwrap()]);
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 0, "{who}");
    for file in open {
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes, "{who}");
        file.write_all_at(b"still", 0).unwrap();
        file.sync_all().unwrap();
    }
}

#[test]
fn attributes_names_and_links_are_kept() {
    on_every_mount(|mount, server, who| {
        let at = |name: &str| mount.path(name);
        fs::write(at("file"), "x").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(at("file")).unwrap().mode() & 0o7777, 0o4751, "{who}");
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
        fs::File::options().write(true).open(at("file")).unwrap().set_modified(time).unwrap();
        assert_eq!(fs::metadata(at("file")).unwrap().modified().unwrap(), time, "{who}");
        assert_eq!(fs::metadata(server.path("file")).unwrap().modified().unwrap(), time, "{who}");

        fs::hard_link(at("file"), at("hard")).unwrap();
        let (one, two) = (fs::metadata(at("file")).unwrap(), fs::metadata(at("hard")).unwrap());
        assert_eq!((one.ino(), one.nlink()), (two.ino(), 2), "{who}");
        symlink("../some/where", at("soft")).unwrap();
        assert_eq!(fs::read_link(at("soft")).unwrap(), OsStr::new("../some/where"), "{who}");

        for name in [
            OsString::from("n".repeat(255)),
            OsString::from_vec(vec![0xff, 0xfe, b' ', b'\n', 0x80]),
            OsStr::from_bytes("späße".as_bytes()).to_owned(),
        ] {
            let path = mount.path("").join(&name);
            fs::write(&path, name.as_bytes()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), name.as_bytes(), "{who}");
            let listed = fs::read_dir(mount.path("")).unwrap();
            assert!(listed.map(|entry| entry.unwrap().file_name()).any(|n| n == name), "{who}");
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(fs::metadata(at("fifo")).unwrap().mode() & 0o170_000, 0o010_000, "{who}");
    });
}

#[test]
fn many_names_are_listed_once_each() {
    on_every_mount(|mount, server, who| {
        fs::create_dir(server.path("big")).unwrap();
        for i in 0..3000 {
            fs::write(server.path(&format!("big/name-{i:05}")), "").unwrap();
        }
        for _ in 0..2 {
            let listed = fs::read_dir(mount.path("big")).unwrap();
            let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 3000, "{who}");
        }
        run("rm", &["-r", mount.path("big").to_str().unwrap()]);
        assert!(!server.path("big").exists(), "{who}");
    });
}

/// What is mounted at the server is not exported, and the server reports that for its name.
#[test]
fn a_mount_point_in_an_export_hides_no_name() {
    let server = Server::start(Kind::Larder);
    fs::create_dir_all(server.path("dir/m")).unwrap();
    for name in ["a", "b", "n", "z"] {
        fs::write(server.path(&format!("dir/{name}")), name).unwrap();
    }
    let over = server.path("dir/m");
    run("mount", &["-t", "tmpfs", "none", over.to_str().unwrap()]);
    for mount in [Mount::new(&server, &[]), Mount::plain(&server, &[])] {
        let listed = fs::read_dir(mount.path("dir")).unwrap();
        let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "m", "n", "z"]);
        for name in ["a", "b", "n", "z"] {
            assert_eq!(fs::read_to_string(mount.path(&format!("dir/{name}"))).unwrap(), name);
        }
        assert_eq!(errno(fs::metadata(mount.path("dir/m"))), libc::EACCES);
    }
    run("umount", &[over.to_str().unwrap()]);
}

#[test]
fn read_only_mount_refuses_changes() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "x").unwrap();
    let mount = Mount::new(&server, &["ro"]);
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "x");
    assert_eq!(errno(fs::write(mount.path("file"), "y")), libc::EROFS);
    assert_eq!(errno(fs::create_dir(mount.path("dir"))), libc::EROFS);
}

#[test]
fn synchronous_open_is_at_the_server_after_each_write() {
    on_every_mount(|mount, server, who| {
        let mut file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_SYNC)
            .open(mount.path("file"))
            .unwrap();
        for i in 1..20 {
            file.write_all(b"line\n").unwrap();
            assert_eq!(fs::metadata(server.path("file")).unwrap().len(), 5 * i, "{who}");
        }
    });
}

#[test]
fn tar_and_rsync_round_trips_are_exact() {
    on_every_mount(|mount, server, who| {
        let source = tempfile::tempdir().unwrap();
        let from = source.path();
        for i in 0..30 {
            fs::create_dir_all(from.join(format!("d{}", i % 5))).unwrap();
            fs::write(from.join(format!("d{}/f{i}", i % 5)), pattern(i, 7000)).unwrap();
        }
        fs::hard_link(from.join("d0/f0"), from.join("d1/hard")).unwrap();
        symlink("f1", from.join("d1/soft")).unwrap();
        let sparse = fs::File::create(from.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 3 << 20).unwrap();
        let target = mount.path("rsync");
        let (from_arg, to_arg) = (format!("{}/", from.display()), format!("{}/", target.display()));
        // nfs-ganesha accepts times of symbolic links, and does not set them.
        let options = ["-aHS", "--omit-link-times"];
        run("rsync", &[&options[..], &[&from_arg, &to_arg]].concat());
        let again = ["--itemize-changes", "--checksum", &from_arg, &to_arg];
        let again = run("rsync", &[&options[..], &again].concat());
        assert_eq!(String::from_utf8_lossy(&again.stdout), "", "{who}: rsync finds differences");
        assert!(tree(from) == tree(&server.path("rsync")), "{who}");

        let archive = mount.path("archive.tar");
        run("tar", &["-cSf", archive.to_str().unwrap(), "-C", from.to_str().unwrap(), "."]);
        fs::create_dir(mount.path("untar")).unwrap();
        let untar = mount.path("untar");
        run("tar", &["-xf", archive.to_str().unwrap(), "-C", untar.to_str().unwrap()]);
        run("diff", &["-r", "--no-dereference", from.to_str().unwrap(), untar.to_str().unwrap()]);
    });
}

#[test]
fn git_clone_passes_fsck() {
    on_every_mount(|mount, _, _| {
        let source = tempfile::tempdir().unwrap();
        let from = source.path().to_str().unwrap();
        let script = format!(
            "cd {from} && git init -q && for i in $(seq 40); do echo $i > f$i; done && git add . && \
             git -c user.name=t -c user.email=t@t commit -qm one && \
             git clone -q --no-local {from} {to} && cd {to} && git fsck --strict && \
             test -z \"$(git status --porcelain)\" && echo x >> f1 && git status --porcelain | grep -q f1",
            to = mount.path("clone").display()
        );
        run("sh", &["-ec", &script]);
    });
}

#[test]
fn sqlite_keeps_its_database() {
    on_every_mount(|mount, _, who| {
        let database = mount.path("data.db");
        let script = "create table t(a integer primary key, b text); begin; \
             with recursive n(i) as (select 1 union all select i+1 from n where i<5000) \
             insert into t select i, hex(randomblob(40)) from n; commit; \
             delete from t where a%3=0; update t set b='x' where a%5=0; vacuum; \
             pragma integrity_check; select count(*) from t;";
        let output = run("sqlite3", &[database.to_str().unwrap(), script]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n3334\n", "{who}");
    });
}

/// `LARDER_STRESS_S=N` gives the stressors N seconds.
#[test]
fn fio_and_stress_ng_verify() {
    let seconds = std::env::var("LARDER_STRESS_S").unwrap_or_else(|_| "1".to_owned());
    on_every_mount(|mount, _, _| {
        let dir = mount.path("").to_str().unwrap().to_owned();
        for pattern in ["write", "randwrite"] {
            let (rw, directory) = (format!("--rw={pattern}"), format!("--directory={dir}"));
            let args =
                ["--name=verify", "--size=8m", "--bs=4k", "--verify=crc32c", "--end_fsync=1"];
            run("fio", &[&args[..], &[&rw, &directory, "--do_verify=1", "--minimal"]].concat());
        }
        // All at once: so they meet situations that do not occur with one alone. hdd reads and
        // checks a file after writing it whole.
        let stressors = ["hdd", "dentry", "rename", "link", "symlink", "dir", "seek", "utime"];
        let flags = stressors.map(|stressor| [format!("--{stressor}"), "1".to_owned()]);
        let mut args: Vec<&str> = flags.iter().flatten().map(String::as_str).collect();
        args.extend(["--hdd-bytes", "4m", "--verify", "--temp-path", &dir, "--timeout", &seconds]);
        run("stress-ng", &args);
    });
}
