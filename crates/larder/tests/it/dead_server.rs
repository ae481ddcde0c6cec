//! The server goes away: every call ends in time, and cached files stay readable.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Kind, MayForget, Mount, Server, eventually, pattern, run, said, waits_in};
use crate::unmounts::{TRIES, is_unmounted_in_time};

#[test]
fn umount_returns_in_time_when_the_server_is_dead() {
    for frozen in [true, false] {
        let in_time = (0..TRIES).any(|_| {
            let mut server = Server::start(Kind::Larder);
            fs::write(server.path("file"), "x").unwrap();
            let mount = Mount::new(&server, &[]);
            fs::read(mount.path("file")).unwrap();
            if frozen {
                server.freeze();
            } else {
                server.kill();
            }
            is_unmounted_in_time(&mount)
        });
        assert!(in_time, "frozen {frozen}");
    }
}

#[test]
fn umount_returns_in_time_while_a_call_waits_for_ever() {
    let in_time = (0..TRIES).any(|_| {
        let server = Server::start(Kind::Larder);
        fs::write(server.path("file"), "x").unwrap();
        let mount = Mount::new(&server, &["hard"]);
        server.freeze();
        let path = mount.path("file");
        let waiting = std::thread::spawn(move || fs::read(path));
        let in_time = is_unmounted_in_time(&mount);
        server.thaw();
        assert!(waiting.join().unwrap().is_err());
        in_time
    });
    assert!(in_time);
}

#[test]
fn operations_on_a_dead_server_end_and_cached_data_stays_readable() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 1 << 20);
    fs::write(server.path("cached"), &bytes).unwrap();
    fs::write(server.path("other"), &bytes).unwrap();
    let mount = Mount::new(&server, &["timeo=30", "retrans=1"]);
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    server.freeze();
    let start = Instant::now();
    let error = fs::read(mount.path("other")).unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.raw_os_error(), Some(110), "{error}");
    // 6 s are asked for. Without that it would be 45 s.
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    let start = Instant::now();
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    assert!(start.elapsed() < took / 2, "once it is known to be dead, no wait");
    assert_eq!(mount.status()["server"]["reachable"], false);
    assert!(mount.log().contains("not responding"), "{}", mount.log());
    server.thaw();
    eventually("the server is used again", || {
        fs::read(mount.path("other")).is_ok_and(|read| read == bytes)
    });
}

/// Also on a hard mount, as with the kernel's own clients, and even if it has files to be flushed
/// when it exits. What it wrote is sent when the server is back.
#[test]
fn killed_process_does_not_wait_for_a_silent_server() {
    let server = Server::start(Kind::Larder);
    // One each: a process that makes a name keeps others from the directory.
    let dirs = ["a", "b", "c", "d"].map(|name| server.path(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let mount = Mount::new(&server, &["hard"]);
    run("ls", &["-l", mount.path("").to_str().unwrap()]);
    let start = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(mount.path("")).stdin(Stdio::piped());
        shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut writer = start("exec 3>written; echo data >&3; echo ready; read line");
    writer.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    server.freeze();
    let scripts =
        ["exec stat a/absent", "exec ls b", "exec mkdir c/made", ": >d/new; exec sleep 100"];
    let mut all: Vec<Child> = scripts.map(start).into();
    for child in &all {
        eventually("it waits for the server", || waits_in(child.id(), "request_wait_answer"));
    }
    all.push(writer);
    for child in &mut all {
        run("kill", &["-KILL", &child.id().to_string()]);
        eventually("it ends", || child.try_wait().unwrap().is_some());
    }
    server.thaw();
    let written = || fs::read_to_string(server.path("written")).is_ok_and(|it| it == "data\n");
    eventually("what was written is sent", written);
    eventually("nothing is open", || mount.status()["reads"]["open_files"] == 0);
    let forgetting = MayForget::now();
    eventually("every reference comes back", || {
        forgetting.names();
        let kernel = mount.json(&["stat"])["kernel"].clone();
        kernel["given"] == kernel["returned"]
    });
}

#[test]
fn server_restart_is_not_noticed() {
    let mut server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    fs::write(server.path("dir/file"), "before").unwrap();
    let mount = Mount::new(&server, &["noac"]);
    assert_eq!(fs::read_to_string(mount.path("dir/file")).unwrap(), "before");
    server.kill();
    fs::write(server.path("dir/file"), "after, longer").unwrap();
    server.restart();
    // Until it is known that the server is back, cached bytes are read.
    eventually("the server is used again", || {
        let read = fs::read_to_string(mount.path("dir/file")).unwrap();
        assert!(["before", "after, longer"].contains(&&*read), "{read}");
        read == "after, longer"
    });
    fs::write(mount.path("dir/new"), "x").unwrap();
    assert_eq!(fs::read_to_string(server.path("dir/new")).unwrap(), "x");
}

/// What the kernel wrote itself to an open file counts as unsent, and no unmount leaves it behind
/// silently. The file is open in another process: when we start one, our open files are flushed.
#[test]
fn what_the_kernel_wrote_itself_counts_as_unsent() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    let at = mount.path("").to_str().unwrap().to_owned();
    let output = format!("of={}", mount.path("file").display());
    let mut writer = Command::new("dd");
    writer.args(["bs=100000", "iflag=fullblock", &output]).stdin(Stdio::piped());
    let mut writer = writer.stderr(Stdio::null()).spawn().unwrap();
    let mut input = writer.stdin.take().unwrap();
    let listed = |mount: &Mount| said(mount, &["cache", "ls", "--unsent", &at]).1;
    eventually("it is open", || mount.status()["reads"]["open_files"] == 1);
    assert_eq!((listed(&mount).as_str(), &mount.status()["dirty"]["files"]), ("", &0.into()));
    let bytes = pattern(1, 100_000);
    input.write_all(&bytes).unwrap();
    // Its age in whole seconds is the machine's.
    eventually("it is written", || {
        let dirty = &mount.status()["dirty"];
        let age = &dirty["oldest_s"];
        assert!(age.is_u64() || age.is_null(), "{dirty}");
        let wanted = serde_json::json!({
            "files": 1, "bytes": 100_000, "bytes_is_bound": true, "oldest_s": age,
        });
        *dirty == wanted
    });
    assert!(listed(&mount).contains("file  (at most 97.7 KiB unsent)"), "{}", listed(&mount));
    server.freeze();
    let (code, told) = said(&mount, &["umount", &at]);
    assert!(code == Some(1) && told.contains("did not reach the server"), "{code:?} {told}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    server.thaw();
    mount.mount();
    eventually("the next mount sends it", || fs::read(server.path("file")).unwrap() == bytes);
}
