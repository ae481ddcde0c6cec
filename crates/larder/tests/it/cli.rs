//! The commands around a mount: their output, that they never hang, and that they leave nothing
//! behind.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{
    Kind, MARKS, Mount, Server, check, eventually, pattern, run, said, scratch, succeed,
};
use crate::unmounts::TRIES;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_mounted(mount: &Mount) -> bool {
    let top = mount.path("");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", text(&top).trim_end_matches('/')))
}

#[test]
fn an_unknown_option_names_what_was_meant() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::unmounted(&server, &["ro", "rsise=1M"]);
    let output = mount.command().output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("did you mean rsize"), "{line}");
}

#[test]
fn plain_with_a_cache_is_wrong_usage() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::unmounted(&server, &[]);
    let (url, mnt) = (server.url(), mount.path(""));
    let args = ["mount", &url, text(&mnt), "--cache", "/no", "-o", "plain"];
    check(&mount, &args, 2, "--cache none");
}

#[test]
fn a_failed_mount_leaves_nothing() {
    let mut server = Server::start(Kind::Larder);
    let mount = Mount::unmounted(&server, &[]);
    server.kill();
    for foreground in [false, true] {
        let mut command = mount.command();
        command.args(foreground.then_some("--foreground"));
        let output = command.output().unwrap();
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        assert!(!is_mounted(&mount));
        assert!(!mount.cache().exists());
        let run = mount.path("").parent().unwrap().join("run");
        let left: Vec<_> = fs::read_dir(run)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_none_or(|extension| extension != "log"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_mountpoint_serves_one_mount() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let (url, mnt) = (server.url(), mount.path(""));
    check(&mount, &["mount", &url, text(&mnt), "--cache", "none"], 1, "busy");
}

#[test]
fn without_mounts_there_is_nothing_to_tell() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::unmounted(&server, &[]);
    check(&mount, &["status"], 0, "nothing is mounted");
    check(&mount, &["status", "--json"], 0, "[]");
    for command in ["status", "stat", "umount"] {
        check(&mount, &[command, text(&mount.path(""))], 1, "no larder mount");
    }
}

#[test]
fn a_mount_in_use_is_detached_only_when_asked() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "abc").unwrap();
    // A server that takes a second to answer, on a busy machine, counts as dead: then the mount is
    // removed even if it is in use.
    let stays = std::iter::repeat_with(|| {
        let mount = Mount::new(&server, &[]);
        let file = fs::File::open(mount.path("file")).unwrap();
        let (code, told) = said(&mount, &["umount", text(&mount.path(""))]);
        println!("{told}");
        (code == Some(1) && told.contains("in use")).then_some((mount, file))
    });
    let (mount, mut file) = stays.take(TRIES).flatten().next().unwrap();
    assert!(is_mounted(&mount));
    check(&mount, &["umount", "--lazy", text(&mount.path(""))], 0, "");
    assert!(!is_mounted(&mount));
    let mut read = String::new();
    file.read_to_string(&mut read).unwrap();
    assert_eq!(read, "abc");
}

/// As in fstab(5): mount(8) looks for a program in /sbin, which is ours in a mount namespace of its
/// own.
#[test]
fn mount_finds_its_helper() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "by mount(8)").unwrap();
    let mount = Mount::unmounted(&server, &[]);
    let script = "mount -t tmpfs none /usr/sbin && ln -s \"$LARDER\" /usr/sbin/mount.larder \
        && echo \"$URL $MNT larder rw,nosuid,_netdev,noauto,cache=$CACHE,actimeo=1 0 0\" >\"$FSTAB\" \
        && mount -T \"$FSTAB\" \"$MNT\" </dev/null && cat \"$MNT/file\" && grep -F \" ${MNT%/} \" /proc/mounts \
        && \"$LARDER\" umount \"$MNT\"";
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script]).envs([
        ("LARDER", Path::new(env!("CARGO_BIN_EXE_larder"))),
        ("URL", Path::new(&server.url())),
        ("MNT", &mount.path("")),
        ("CACHE", &mount.cache()),
        ("FSTAB", &mount.cache().with_file_name("fstab")),
        ("LARDER_RUNTIME_DIR", &mount.cache().with_file_name("run")),
    ]);
    let output = succeed(&mut shell);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("by mount(8)") && said.contains("nosuid"), "{said}");
    assert!(mount.cache().join("larder-cache").exists());
}

/// And it reports that. If the log is not a file, SIGHUP is such a signal, too.
#[test]
fn a_signal_unmounts_in_the_foreground() {
    let server = Server::start(Kind::Larder);
    for signal in ["INT", "TERM", "HUP"] {
        let mount = Mount::unmounted(&server, &[]);
        let mut daemon = mount.command();
        let daemon = daemon.arg("--foreground").stdout(Stdio::null()).stderr(Stdio::piped());
        let daemon = daemon.spawn().unwrap();
        eventually("it is mounted", || {
            said(&mount, &["status", "--json"]).1.contains("\"mounted\"")
        });
        run("kill", &[&format!("-{signal}"), &daemon.id().to_string()]);
        let ended = daemon.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{told}");
        assert!(told.contains(&format!("SIG{signal}: unmounting")), "{told}");
        assert!(!is_mounted(&mount));
    }
}

#[test]
fn umount_removes_the_mount_of_a_killed_daemon() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    mount.kill_processes();
    eventually("it is dead", || said(&mount, &["status"]).1.contains("is dead: larder umount"));
    let output = mount.command().output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("dead: larder umount"));
    assert!(mount.unmount() < Duration::from_secs(5));
    assert!(!is_mounted(&mount));
    check(&mount, &["status"], 0, "nothing is mounted");
    mount.mount();
}

#[test]
fn traces_of_a_daemon_that_left_no_mount_are_removed() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    mount.kill();
    eventually("they are gone", || said(&mount, &["status"]).1.contains("nothing is mounted"));
    mount.mount();
}

#[test]
fn commands_answer_when_the_server_is_silent() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    server.freeze();
    let mnt = mount.path("");
    let begin = Instant::now();
    check(&mount, &["status"], 0, "source");
    check(&mount, &["stat", text(&mnt)], 0, "procedure");
    check(&mount, &["cache", "ls", text(&mnt)], 0, "");
    check(&mount, &["cache", "verify", text(&mnt)], 0, "0 wrong");
    // Calls that wait for the server wait for 45 s.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    mount.unmount();
    server.thaw();
}

#[test]
fn cache_commands_work_mounted_and_not() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 1 << 20)).unwrap();
    let mut mount = Mount::new(&server, &[]);
    let (mnt, cache) = (mount.path(""), mount.cache());
    check(&mount, &["cache", "warm", text(&mnt)], 0, "1 files, 1.00 MiB read");
    mount.landed(1 << 20);
    check(&mount, &["cache", "pin", text(&mount.path("file"))], 0, "");
    let (_, listed) = said(&mount, &["cache", "ls", text(&mnt), "--json"]);
    let file: serde_json::Value = serde_json::from_str(listed.trim()).unwrap();
    assert_eq!((&file["held_bytes"], &file["pinned"]), (&(1 << 20).into(), &true.into()));
    check(&mount, &["cache", "cull", text(&mnt), "--to", "0"], 0, "0 files removed");
    // A directory whose daemon lives is asked there.
    check(&mount, &["cache", "verify", text(&cache)], 0, "64 chunks, 0 wrong");
    mount.unmount();
    check(&mount, &["cache", "verify", text(&cache)], 0, "64 chunks, 0 wrong");
    check(&mount, &["cache", "ls", text(&cache)], 0, "1.00 MiB of   1.00 MiB  file  (pinned)");
    check(&mount, &["cache", "ls", text(&cache), "--unsent"], 0, "");
    check(&mount, &["cache", "drop", text(&cache)], 0, "1 files removed");
    // It is still known to be pinned.
    check(&mount, &["cache", "ls", text(&cache)], 0, "0 B of   1.00 MiB");
}

#[test]
fn status_tells_how_often_the_cache_had_a_file() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 8 << 20)).unwrap();
    let mount = Mount::new(&server, &["actimeo=7", "noatime"]);
    fs::read(mount.path("file")).unwrap();
    mount.landed(8 << 20);
    for _ in 0..3 {
        fs::read(mount.path("file")).unwrap();
    }
    let mnt = mount.path("");
    check(&mount, &["status", text(&mnt)], 0, "75 %: 3 of 4 opens for reading");
    check(&mount, &["status", text(&mnt)], 0, "actimeo=7,noatime\n");
    let (_, told) = said(&mount, &["status", "--json", text(&mnt)]);
    let status: serde_json::Value = serde_json::from_str(&told).unwrap();
    let options: Vec<_> = MARKS.split(',').chain(["actimeo=7", "noatime"]).collect();
    assert_eq!(status["options"], serde_json::json!(options));
    let reads = &status["reads"];
    assert_eq!(
        (&reads["opens_for_reading"], &reads["opens_of_whole_files"]),
        (&4.into(), &3.into())
    );
}

#[test]
fn status_counts_what_the_server_refused() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let rpc = || {
        let (_, told) = said(&mount, &["status", "--json", text(&mount.path(""))]);
        let status: serde_json::Value = serde_json::from_str(&told).unwrap();
        (status["rpc"]["errors"].as_u64().unwrap(), status["rpc"]["refused"].as_u64().unwrap())
    };
    let before = rpc();
    assert!(fs::metadata(mount.path("not-there")).is_err());
    assert_eq!(rpc(), (before.0 + 1, before.1 + 1));
}

#[test]
fn status_finds_the_mount_of_a_path() {
    let server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    let mut mount = Mount::new(&server, &[]);
    let top = mount.path("");
    for below in ["dir", "dir/not-there", "dir/../.", ""] {
        let (code, told) = said(&mount, &["status", text(&mount.path(below))]);
        assert_eq!(code, Some(0), "{below}: {told}");
        assert!(told.starts_with(text(&top).trim_end_matches('/')), "{below}: {told}");
    }
    check(&mount, &["status", text(&mount.path(".."))], 1, "nor in one");
    // Removing a mount takes its mountpoint only.
    check(&mount, &["umount", text(&mount.path("dir"))], 1, "no larder mount");
    mount.unmount();
}

#[test]
fn cache_ls_shows_no_more_bytes_than_a_file_has() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 1884)).unwrap();
    let mount = Mount::new(&server, &[]);
    fs::read(mount.path("file")).unwrap();
    mount.landed(1884);
    check(&mount, &["cache", "ls", text(&mount.path(""))], 0, "1.84 KiB of   1.84 KiB  file");
}

#[test]
fn verify_tells_of_a_corrupted_byte() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 1 << 20)).unwrap();
    let mut mount = Mount::new(&server, &[]);
    fs::read(mount.path("file")).unwrap();
    mount.landed(1 << 20);
    mount.unmount();
    assert_eq!(corrupt(&mount.cache().join("data")), 1);
    check(&mount, &["cache", "verify", text(&mount.cache())], 1, "1 wrong");
    check(&mount, &["cache", "verify", text(&mount.cache())], 0, "0 wrong");
}

/// Changes a byte in the middle of every file of a tree; returns how many there are.
fn corrupt(folder: &Path) -> usize {
    let change = |path: &Path| {
        if path.is_dir() {
            return corrupt(path);
        }
        let mut file = fs::File::options().read(true).write(true).open(path).unwrap();
        let (mut byte, middle) = ([0], file.metadata().unwrap().len() / 2);
        file.seek(SeekFrom::Start(middle)).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(SeekFrom::Start(middle)).unwrap();
        file.write_all(&[!byte[0]]).unwrap();
        1
    };
    fs::read_dir(folder).unwrap().map(|entry| change(&entry.unwrap().path())).sum()
}

#[test]
fn a_pinned_tree_is_kept_with_what_comes_later() {
    let server = Server::start(Kind::Larder);
    fs::create_dir_all(server.path("tools/sub")).unwrap();
    for name in ["tools/sub/first", "other"] {
        fs::write(server.path(name), pattern(1, 1 << 16)).unwrap();
    }
    let mut mount = Mount::new(&server, &[]);
    let (mnt, tools) = (mount.path(""), mount.path("tools"));
    check(&mount, &["cache", "warm", text(&mnt)], 0, "2 files");
    check(&mount, &["cache", "pin", text(&tools)], 0, "");
    fs::write(server.path("tools/later"), pattern(2, 1 << 16)).unwrap();
    assert!(fs::read(mount.path("tools/later")).unwrap() == pattern(2, 1 << 16));
    mount.landed(3 << 16);
    let (_, listed) = said(&mount, &["cache", "ls", text(&mnt)]);
    assert_eq!(listed.matches("(pinned)").count(), 2, "{listed}");
    check(&mount, &["cache", "cull", text(&mnt), "--to", "0"], 0, "1 files removed");
    mount.remount();
    check(&mount, &["cache", "cull", text(&mnt), "--to", "0"], 0, "0 files removed");
    mount.unmount();
    check(&mount, &["cache", "cull", text(&mount.cache()), "--to", "0"], 0, "0 files removed");
    mount.mount();
    check(&mount, &["cache", "pin", "--undo", text(&tools)], 0, "");
    check(&mount, &["cache", "cull", text(&mnt), "--to", "0"], 0, "2 files removed");
}

#[test]
fn pin_and_warm_without_a_cache_say_so() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::plain(&server, &[]);
    let mnt = mount.path("");
    check(&mount, &["cache", "pin", text(&mnt)], 1, "has no cache on disk");
    check(&mount, &["cache", "warm", text(&mnt)], 1, "has no cache on disk");
}

/// In the first such case, the file in the way was the machine's password file.
#[test]
fn commands_leave_a_directory_that_is_no_cache_as_it_was() {
    let server = Server::start(Kind::Larder);
    let dir = scratch("larder-no-cache-");
    fs::write(dir.path().join("passwd"), "root").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_cache(dir.path().to_owned());
    let is_as_it_was = |after: &str| {
        let mode = fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o755, "{after}");
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["passwd"], "{after}");
    };
    assert!(!mount.command().output().unwrap().status.success());
    is_as_it_was("mount");
    for command in [&["ls"][..], &["verify"], &["cull", "--to", "0"], &["drop"]] {
        let (code, said) = said(&mount, &[&["cache"], command, &[text(dir.path())]].concat());
        assert_eq!(code, Some(1), "{command:?}: {said}");
        is_as_it_was(command[0]);
    }
}

#[test]
fn an_export_can_do_without_udp() {
    for (more, is_free) in [(&[][..], false), (&["--no-udp"], true)] {
        let server = Server::larder(&[&["--no-root-squash"], more].concat());
        fs::write(server.path("file"), "by TCP").unwrap();
        assert_eq!(UdpSocket::bind(server.address()).is_ok(), is_free, "{more:?}");
        let mount = Mount::new(&server, &[]);
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "by TCP", "{more:?}");
    }
}
